"""The upgrade and rollback that KEP-4444 tried by hand, with kubectl and real connections.

Its cluster was kind with two workers in two zones; here `keepclose up` runs it, and what was a
downgrade of a program there is its gate here. An API server that knows the field but has its gate
off shows what is stored and keeps it, and takes it from nobody who has none yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from labs_running import (
    JsonObject,
    RunningLab,
    pods_of_nodes,
    running_lab,
    until,
    until_equal,
    zones_of_zones,
)

# As it stands there.
DEMO = """
apiVersion: v1
kind: Service
metadata:
  name: demo-svc
spec:
  type: ClusterIP
  trafficDistribution: PreferClose
  ports:
  - name: tcp
    port: 80
    protocol: TCP
    targetPort: 8080
  selector:
    app: demo-app
---
apiVersion: apps/v1
kind: Deployment
metadata:
  labels:
    app: demo-app
  name: demo
spec:
  replicas: 5
  selector:
    matchLabels:
      app: demo-app
  template: 
    metadata:
      labels:
        app: demo-app
    spec:
      containers:
      - name: agnhost
        image: gcr.io/kubernetes-e2e-test-images/agnhost:2.8
        args: ["serve-hostname", "--port", "8080"]
"""  # noqa: W291 - so does the blank
LATE = """
apiVersion: v1
kind: Service
metadata: {name: late-svc}
spec:
  trafficDistribution: PreferClose
  ports: [{port: 80, targetPort: 8080}]
  selector: {app: demo-app}
"""
GATE = "ServiceTrafficDistribution"
A, B = "zone-a", "zone-b"
NODES = {"n1": A, "n2": A, "n3": B, "n4": B}


class Demo:
    """The Service and its pods, which stay the same all the time."""

    def __init__(self, lab: RunningLab) -> None:
        self.lab = lab
        self.pods = lab.pods("demo-app")
        self.hinted = {pod: NODES[node] for pod, node in self.pods.items()}
        self.bare = dict.fromkeys(self.pods, "none")

    def look_at_rules(self) -> dict[str, set[str]]:
        """Return the pods to which the rules of a node in each zone lead."""
        items = self.lab.get("pods", "-l", "app=demo-app")["items"]
        names = {one["status"]["podIP"]: one["metadata"]["name"] for one in items}
        return {
            node: {names[address] for address in self.lab.rules(node, "demo-svc")}
            for node in ("n1", "n3")
        }

    def until_close(self) -> None:
        """Return when every node routes to its zone alone, by its rules and by connections."""
        want = {
            node: {pod for pod, hint in self.hinted.items() if hint == zone}
            for node, zone in NODES.items()
        }
        self._until(self.hinted, want, {A: {A}, B: {B}})

    def until_anywhere(self, hints: dict[str, str]) -> None:
        """Return when every node routes to all pods, though there are these hints."""
        self._until(hints, {node: set(self.pods) for node in NODES}, {A: {A, B}, B: {A, B}})

    def _until(
        self, hints: dict[str, str], pods: dict[str, set[str]], zones: dict[str, set[str]]
    ) -> None:
        until_equal(lambda: self.lab.hints("demo-svc"), hints)
        report = self.lab.until_routed(pods, "demo-svc", by=pods_of_nodes)
        assert zones_of_zones(report) == zones
        until_equal(self.look_at_rules, {node: pods[node] for node in ("n1", "n3")})

    @property
    def field(self) -> str | None:
        """What the Service says."""
        return distribution(self.lab, "demo-svc")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Run two zones and apply the manifest of the proposal."""
    with running_lab(tmp_path_factory.mktemp("kep4444")) as lab:
        told = lab.kubectl("apply", "-f", "-", stdin=DEMO)
        assert told.splitlines() == ["service/demo-svc created", "deployment.apps/demo created"]
        lab.rolled_out("deployment/demo")
        yield Demo(lab)


def distribution(lab: RunningLab, service: str) -> str | None:
    """Return the traffic distribution that a Service shows."""
    spec: JsonObject = lab.get("service", service)["spec"]
    return spec.get("trafficDistribution")


def test_endpoints_are_hinted_for_their_zones(demo: Demo) -> None:
    """Steps 1 to 3: five pods in two zones, each hinted for its own, and clients stay in theirs."""
    assert sorted(demo.hinted.values()) in ([A, A, A, B, B], [A, A, B, B, B])
    demo.until_close()
    want = {
        "TrafficDistributionAccepted": "True Accepted",
        "TrafficDistributionProgrammed": "True HintsPopulated",
        "TrafficDistributionHonored": "True AllNodesAcknowledged",
    }
    until_equal(lambda: conditions(demo.lab), want)
    warned = demo.lab.get("events", "--field-selector=type=Warning")["items"]
    assert [one for one in warned if one["involvedObject"]["kind"] == "Service"] == []


def test_the_gate_is_turned_off_and_on_again(demo: Demo) -> None:
    """Steps 4 to 8: slices stay and lose their hints, the field is kept, and all of it returns."""
    lab = demo.lab
    names = {one["metadata"]["name"] for one in lab.slices("demo-svc")}
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false")
        demo.until_anywhere(demo.bare)
        assert {one["metadata"]["name"] for one in lab.slices("demo-svc")} == names
        assert demo.field == "PreferClose"
        # A change of something else does not lose it, and a new Service does not get it.
        lab.kubectl("label", "service", "demo-svc", "changed=yes")
        assert demo.field == "PreferClose"
        lab.apply(LATE)
        assert distribution(lab, "late-svc") is None
        lab.apply(LATE)
        assert distribution(lab, "late-svc") is None
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true")
    assert demo.field == "PreferClose"
    demo.until_close()
    # What was dropped was never stored, so it must be said again.
    assert distribution(lab, "late-svc") is None
    lab.apply(LATE)
    assert distribution(lab, "late-svc") == "PreferClose"
    until_equal(lambda: lab.hints("late-svc"), demo.hinted)
    lab.kubectl("delete", "service", "late-svc")


def test_proxies_alone_are_turned_back(demo: Demo) -> None:
    """Steps 9 to 11: rules of such a proxy lead to all endpoints; field and hints stay."""
    lab = demo.lab
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false", "--only=proxy")
        demo.until_anywhere(demo.hinted)
        assert demo.field == "PreferClose"
        until(
            lambda: conditions(lab),
            lambda found: found["TrafficDistributionHonored"] == "False PartiallyHonored",
        )
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true", "--only=proxy")
    demo.until_close()


def test_the_controller_alone_is_turned_back(demo: Demo) -> None:
    """Without hints a proxy that knows the gate has nothing to follow."""
    lab = demo.lab
    try:
        lab.keepclose("lab", "gates", f"{GATE}=false", "--only=controller")
        demo.until_anywhere(demo.bare)
        want = {
            "TrafficDistributionAccepted": "False FeatureDisabled",
            "TrafficDistributionProgrammed": "False NotAccepted",
        }
        until_equal(lambda: conditions(lab), want)
    finally:
        lab.keepclose("lab", "gates", f"{GATE}=true", "--only=controller")
    demo.until_close()


def test_everything_stops_and_starts_with_the_gate_off(demo: Demo) -> None:
    """A cluster that is stopped keeps its objects, and each start follows the gates it is given.

    A Service of the demo's name is not overwritten by the demo that comes to an empty cluster.
    """
    lab = demo.lab
    try:
        lab.down()
        lab.up(f"{GATE}=false", with_demo=True)
        assert lab.pods("demo-app") == demo.pods
        demo.until_anywhere(demo.bare)
        assert demo.field == "PreferClose"
    finally:
        lab.down()
        lab.up()
    assert demo.field == "PreferClose"
    demo.until_close()


def conditions(lab: RunningLab) -> dict[str, str]:
    """Return what the status of the Service says of its field."""
    status: JsonObject = lab.get("service", "demo-svc").get("status", {})
    return {one["type"]: f"{one['status']} {one['reason']}" for one in status["conditions"]}
