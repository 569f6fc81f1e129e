"""A DNS pod on every node, asked over UDP: the user story of KEP-3015, and its second draft.

With PreferSameNode every node asks its own pod. Node-level topology finds out by itself, for a
Service that says nothing, that one DaemonSet is on nearly every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from support.real.labs_running import (
    RunningLab,
    is_fine,
    nodes_of_nodes,
    running_lab,
    until,
    until_equal,
)

# `node-dns` and `agent` have the same pods; a Deployment with as many has `web`.
MANIFEST = """
apiVersion: v1
kind: Service
metadata: {name: node-dns}
spec:
  trafficDistribution: PreferSameNode
  selector: {app: dns}
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: agent}
spec:
  selector: {app: dns}
  ports: [{name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: dns}
spec:
  selector: {matchLabels: {app: dns}}
  template:
    metadata: {labels: {app: dns}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {dns: wanted}
      containers:
      - name: main
        image: coredns/coredns:1.13.1
        ports: [{containerPort: 53, protocol: UDP}]
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
      containers: [{name: main, image: "web:1"}]
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
         labelSelector: {matchLabels: {app: web}}}
"""
ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b", "n4": "zone-b"}
NODES = tuple(ZONES)
OWN_NODE = {node: {node} for node in NODES}
MODE = "--node-level-topology-mode"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """Run two zones of two nodes with a DNS pod on each node."""
    with running_lab(tmp_path_factory.mktemp("dns")) as found:
        found.kubectl("label", "nodes", "--all", "dns=wanted")
        found.apply(MANIFEST)
        found.rolled_out("daemonset/dns")
        found.rolled_out("deployment/web")
        yield found


def have_dns_on(lab: RunningLab, *nodes: str) -> None:
    """Return when there is a DNS pod on these nodes, and on no others."""
    away = [node for node in NODES if node not in nodes]
    lab.kubectl("label", "--overwrite", "node", *nodes, "dns=wanted")
    if away:
        lab.kubectl("label", "node", *away, "dns-")
    until(lambda: lab.pods("dns"), lambda pods: sorted(pods.values()) == sorted(nodes))
    lab.rolled_out("daemonset/dns")


def hints_by_node(lab: RunningLab, service: str, app: str = "dns") -> dict[str, str]:
    """Return the hints of the endpoints by the nodes on which they are."""
    pods, hints = lab.pods(app), lab.hints(service)
    return {pods.get(pod, pod): hint for pod, hint in hints.items()}


def told(text: str, nodes: Iterable[str] = NODES) -> dict[str, str]:
    """Return the hints that the endpoints of nodes should have."""
    return {node: text.format(node=node, zone=ZONES[node]) for node in nodes}


def test_every_node_asks_its_own_pod(lab: RunningLab) -> None:
    """No query leaves its node, and none is lost."""
    until_equal(lambda: hints_by_node(lab, "node-dns"), told("{zone} on {node}"))
    lab.until_routed(OWN_NODE, "node-dns", "--udp")
    report = lab.traffic("node-dns", "--udp", connections=2000)
    assert (report["connections"], report["failed"], report["onNode"]) == (4000, 0, 1.0)


def test_a_node_whose_pod_is_gone_asks_its_neighbours(lab: RunningLab) -> None:
    """Those of its zone first, then all others; as long as nothing changes, no query is lost."""
    far = {"n3", "n4"}
    steps: list[tuple[list[str], dict[str, set[str]]]] = [
        (["n1", "n3", "n4"], {**OWN_NODE, "n2": {"n1"}}),
        (["n3", "n4"], {**OWN_NODE, "n1": far, "n2": far}),
    ]
    try:
        for nodes, want in steps:
            have_dns_on(lab, *nodes)
            until_equal(lambda: hints_by_node(lab, "node-dns"), told("{zone} on {node}", nodes))
            lab.until_routed(want, "node-dns", "--udp")
            report = lab.traffic("node-dns", "--udp", connections=2000)
            assert (nodes_of_nodes(report), is_fine(report)) == (want, True)
    finally:
        have_dns_on(lab, *NODES)
    lab.until_routed(OWN_NODE, "node-dns", "--udp")


def test_one_daemon_set_on_nearly_every_node_is_found_out(lab: RunningLab) -> None:
    """Only where asked to look, and not for pods of a Deployment, though one is on every node.

    Of four nodes one may lack a pod, and two once it is on. Such a node asks all others, because
    nobody wished for zones.
    """
    anywhere = {node: set(NODES) for node in NODES}
    until_equal(lambda: hints_by_node(lab, "agent"), told("none"))
    lab.until_routed(anywhere, "agent", "--udp")
    try:
        lab.keepclose("lab", "gates", MODE, "Auto", "--only=controller")
        until_equal(lambda: hints_by_node(lab, "agent"), told("on {node}"))
        lab.until_routed(OWN_NODE, "agent", "--udp")
        assert hints_by_node(lab, "node-dns") == told("{zone} on {node}")
        assert hints_by_node(lab, "web", "web") == told("none")

        have_dns_on(lab, "n1", "n3")
        until_equal(lambda: hints_by_node(lab, "agent"), told("on {node}", ["n1", "n3"]))
        want = {"n1": {"n1"}, "n2": {"n1", "n3"}, "n3": {"n3"}, "n4": {"n1", "n3"}}
        lab.until_routed(want, "agent", "--udp")
        have_dns_on(lab, "n1")
        until_equal(lambda: hints_by_node(lab, "agent"), told("none", ["n1"]))
        have_dns_on(lab, "n1", "n3")
        until_equal(lambda: hints_by_node(lab, "agent"), told("none", ["n1", "n3"]))
        lab.until_routed({node: {"n1", "n3"} for node in NODES}, "agent", "--udp")
        have_dns_on(lab, "n1", "n2", "n3")
        until_equal(lambda: hints_by_node(lab, "agent"), told("on {node}", ["n1", "n2", "n3"]))
    finally:
        have_dns_on(lab, *NODES)
        lab.keepclose("lab", "gates", MODE, "Manual", "--only=controller")
    until_equal(lambda: hints_by_node(lab, "agent"), told("none"))
    lab.until_routed(anywhere, "agent", "--udp")
