"""KEP-3015's own sequences with kubectl and real connections: same node, same zone, anywhere.

The pods move between nodes by cordons and scales, as they would where people take nodes down. What
was tried by hand there, with the gate off and on again, follows at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from support.real.labs_running import RunningLab, running_lab, until, until_equal

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  trafficDistribution: PreferSameNode
  selector: {app: web}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: "agnhost:2.53", args: [serve-hostname, --port=8080]}]
      topologySpreadConstraints:
      - maxSkew: 1
        topologyKey: kubernetes.io/hostname
        whenUnsatisfiable: DoNotSchedule
        nodeTaintsPolicy: Honor
        labelSelector: {matchLabels: {app: web}}
"""
GATE = "PreferSameTrafficDistribution"
ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b"}
NODES = list(ZONES)
OWN_NODE = {node: {node} for node in NODES}
OWN_ZONE = {"n1": {"n1", "n2"}, "n2": {"n1", "n2"}, "n3": {"n3", "n4"}, "n4": {"n3", "n4"}}
ANYWHERE = {node: set(NODES) for node in NODES}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Run two zones of two nodes with a pod on each node."""
    # Of the proposal's drafts one uses node hints too, which is no matter here.
    with running_lab(tmp_path_factory.mktemp("kep3015"), gates="NodeLevelTopology=false") as found:
        found.apply(WEB)
        found.rolled_out("deployment/web")
        yield found


def distribute(lab: RunningLab, value: str) -> None:
    """Set the field."""
    lab.kubectl("patch", "service", "web", "-p", f'{{"spec":{{"trafficDistribution":"{value}"}}}}')


def hints_by_node(lab: RunningLab) -> dict[str, str]:
    """Return the hints of the endpoints by the nodes on which they are."""
    pods, hints = lab.pods("web"), lab.hints("web")
    return {pods.get(pod, pod): hint for pod, hint in hints.items()}


def told(text: str, nodes: list[str] = NODES) -> dict[str, str]:
    """Return the hints that the endpoints of nodes should have."""
    return {node: text.format(node=node, zone=ZONES[node]) for node in nodes}


def until_placed(lab: RunningLab, *nodes: str) -> None:
    """Return when there is one pod on each of these nodes, and there are no others."""
    want = Counter(nodes)
    until(lambda: lab.pods("web"), lambda pods: Counter(pods.values()) == want)
    lab.rolled_out("deployment/web")


def test_an_endpoint_on_the_node_is_used_alone(lab: RunningLab) -> None:
    """Each endpoint is hinted for its node and its zone, and no connection leaves its node."""
    until_equal(lambda: hints_by_node(lab), told("{zone} on {node}"))
    report = lab.until_routed(OWN_NODE, "web")
    assert (report["onNode"], report["inZone"]) == (1.0, 1.0)


def test_prefer_close_is_prefer_same_zone(lab: RunningLab) -> None:
    """Both values give the same hints and the same routes, by the same slices."""
    try:
        distribute(lab, "PreferClose")
        until_equal(lambda: hints_by_node(lab), told("{zone}"))
        report = lab.until_routed(OWN_ZONE, "web")
        assert (report["inZone"], report["mechanism"]) == (1.0, "PreferSameZone")
        written = versions(lab)
        distribute(lab, "PreferSameZone")
        until(lambda: accepted(lab), lambda text: "PreferSameZone" in text)
        report = lab.until_routed(OWN_ZONE, "web")
        assert (report["inZone"], report["mechanism"]) == (1.0, "PreferSameZone")
        assert versions(lab) == written
    finally:
        distribute(lab, "PreferSameNode")
    until_equal(lambda: hints_by_node(lab), told("{zone} on {node}"))
    lab.until_routed(OWN_NODE, "web")


def test_without_an_endpoint_on_the_node_its_zone_serves_it(lab: RunningLab) -> None:
    """A node that lost its pod uses the zone's, and all use all when the zone has none left.

    As pods return, clients return to their zone, and to their node.
    """
    try:
        lab.keepclose("lab", "cordon", "n2")
        lab.kubectl("delete", "pod", pod_on(lab, "n2"), "--wait=false")
        lab.scale("web", 3)
        until_placed(lab, "n1", "n3", "n4")
        until_equal(lambda: hints_by_node(lab), told("{zone} on {node}", ["n1", "n3", "n4"]))
        lab.until_routed({**OWN_NODE, "n2": {"n1"}}, "web")

        lab.keepclose("lab", "cordon", "n1")
        lab.kubectl("delete", "pod", pod_on(lab, "n1"), "--wait=false")
        lab.scale("web", 2)
        until_placed(lab, "n3", "n4")
        far = {"n3", "n4"}
        report = lab.until_routed({"n1": far, "n2": far, "n3": {"n3"}, "n4": {"n4"}}, "web")
        assert report["inZone"] == 0.5

        lab.keepclose("lab", "uncordon", "n2")
        lab.scale("web", 3)
        until_placed(lab, "n2", "n3", "n4")
        lab.until_routed({**OWN_NODE, "n1": {"n2"}}, "web")
    finally:
        lab.keepclose("lab", "heal")
        lab.scale("web", 4)
    until_placed(lab, *NODES)
    lab.until_routed(OWN_NODE, "web")


def test_an_endpoint_is_lost_and_comes_back(lab: RunningLab) -> None:
    """When the node of an endpoint fails, the others do not miss it; healed, all is as before."""
    try:
        lab.keepclose("lab", "fail", "n1")
        until_equal(lambda: hints_by_node(lab), told("{zone} on {node}", ["n2", "n3", "n4"]))
        lab.until_routed({"n2": {"n2"}}, "web", "--from=n2")
        lab.until_routed({"n3": {"n3"}, "n4": {"n4"}}, "web", "--from=zone-b")
    finally:
        lab.keepclose("lab", "heal")
    until_equal(lambda: hints_by_node(lab), told("{zone} on {node}"))
    lab.until_routed(OWN_NODE, "web")


def test_the_gate_is_turned_off_and_on_again(lab: RunningLab) -> None:
    """The value is not known without the gate: no hints at all, for old and new endpoints alike.

    The proposal saw hints go and return with the first change of an endpoint after the restart. A
    controller that looks at every Service when it starts does it before that.
    """
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false")
        until_equal(lambda: hints_by_node(lab), told("none"))
        lab.until_routed(ANYWHERE, "web")
        lab.kubectl("delete", "pod", pod_on(lab, "n4"))
        until_placed(lab, *NODES)
        until_equal(lambda: hints_by_node(lab), told("none"))
        # Unchanged it may stay, and other fields may change beside it.
        lab.kubectl("label", "service", "web", "changed=yes")
        spec = lab.get("service", "web")["spec"]
        assert spec["trafficDistribution"] == "PreferSameNode"
        lab.until_routed(ANYWHERE, "web")
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true")
    until_equal(lambda: hints_by_node(lab), told("{zone} on {node}"))
    lab.kubectl("delete", "pod", pod_on(lab, "n4"))
    until_placed(lab, *NODES)
    until_equal(lambda: hints_by_node(lab), told("{zone} on {node}"))
    lab.until_routed(OWN_NODE, "web")


def test_an_older_proxy_follows_the_zone(lab: RunningLab) -> None:
    """A proxy that does not know node hints keeps connections in the zone by the zone hints."""
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false", "--only=proxy")
        lab.until_routed(OWN_ZONE, "web")
        assert hints_by_node(lab) == told("{zone} on {node}")
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true", "--only=proxy")
    lab.until_routed(OWN_NODE, "web")


def accepted(lab: RunningLab) -> str:
    """Return what the controller last said of the field."""
    found = lab.get("service", "web")["status"]["conditions"]
    return next(str(one["message"]) for one in found if one["type"].endswith("Accepted"))


def versions(lab: RunningLab) -> dict[str, str]:
    """Return the versions of all slices, each of which every write changes."""
    return {
        one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in lab.slices("web")
    }


def pod_on(lab: RunningLab, node: str) -> str:
    """Return the pod of a node."""
    return next(pod for pod, where in lab.pods("web").items() if where == node)
