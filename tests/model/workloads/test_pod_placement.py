"""Nodes for waiting pods: who is refused and why, and who is preferred."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.workload import Node
from keepclose.model.workloads.placement import NodePlacement, place_pods
from keepclose.model.workloads.pods import WorkloadPod
from support.lab.labobjects import a_node, a_pod

NO_SCHEDULE = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
SIX = [a_node(f"n{number}", f"zone-{'abc'[number % 3]}") for number in range(6)]


def spread(
    key: str = "topology.kubernetes.io/zone",
    *,
    skew: int = 1,
    when: str = "DoNotSchedule",
    **more: Any,
) -> dict[str, Any]:
    """Return a topology spread constraint over app=web."""
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": when,
        "labelSelector": {"matchLabels": {"app": "web"}},
        **more,
    }


def required(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> Any:
    """Return an affinity with one required term."""
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    return {"nodeAffinity": {key: {"nodeSelectorTerms": [term]}}}


def place_one(
    pod: WorkloadPod, nodes: list[Node], pods: list[WorkloadPod] | None = None
) -> NodePlacement:
    """Return the place of a single pod."""
    (found,) = place_pods([pod], nodes=nodes, pods=pods or [])
    return found


@pytest.mark.parametrize(
    ("spec", "nodes", "pods", "want_reason"),
    [
        pytest.param({}, [], [], "no nodes available to schedule pods", id="no node at all"),
        pytest.param(
            {},
            [a_node("n1", unschedulable=True), a_node("n2", ready=False)],
            [],
            "0/2 nodes are available: 1 node(s) had untolerated taint(s), "
            "1 node(s) were unschedulable.",
            id="one node cordoned and one not ready",
        ),
        pytest.param(
            {"tolerations": [{"key": "dedicated", "operator": "Equal", "value": "web"}]},
            [a_node("n1", taints=[NO_SCHEDULE])],
            [],
            "0/1 nodes are available: 1 node(s) had untolerated taint(s).",
            id="a toleration of another value",
        ),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}},
            [a_node("n1"), a_node("n2", labels={"disk": "hdd"})],
            [],
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            id="no node has the label",
        ),
        pytest.param(
            {"affinity": required({"key": "cores", "operator": "Gt", "values": ["8"]})},
            [a_node("n1", labels={"cores": "8"}), a_node("n2", labels={"cores": "many"})],
            [],
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            id="no node has more than eight cores",
        ),
        pytest.param(
            {"affinity": required()},
            [a_node("n1")],
            [],
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            id="a term without conditions matches no node",
        ),
        pytest.param(
            {"containers": [{"ports": [{"hostPort": 80}]}]},
            [a_node("n1")],
            [a_pod("p", "n1", containers=[{"ports": [{"hostPort": 80}]}])],
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod "
            "ports.",
            id="the port of the node is taken",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread()]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b", taints=[NO_SCHEDULE])],
            [a_pod("p", "n1", ready=True)],
            "0/2 nodes are available: 1 node(s) didn't match pod topology spread constraints, "
            "1 node(s) had untolerated taint(s).",
            id="the empty zone is closed and the other has one already",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread("rack")]},
            [a_node("n1")],
            [],
            "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints "
            "(missing required label).",
            id="no node is in any domain",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread(minDomains=2)]},
            [a_node("n1", "zone-a")],
            [a_pod("p", "n1", ready=True)],
            "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints.",
            id="too few domains count as one that is empty",
        ),
    ],
)
def test_refusals(
    spec: dict[str, Any], nodes: list[Node], pods: list[WorkloadPod], want_reason: str
) -> None:
    """A pod that no node takes learns why, node by node."""
    pod = a_pod("new", **spec)
    assert place_one(pod, nodes, pods) == NodePlacement(pod, "", want_reason)


@pytest.mark.parametrize(
    ("spec", "nodes", "pods", "want_node"),
    [
        pytest.param({}, SIX, [], "n0", id="the first by name when all are equal"),
        pytest.param(
            {"tolerations": [{"operator": "Exists"}]},
            [a_node("n1", unschedulable=True, taints=[NO_SCHEDULE], ready=False)],
            [],
            "n1",
            id="who tolerates everything goes anywhere",
        ),
        pytest.param(
            {"tolerations": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]},
            [a_node("n1", taints=[NO_SCHEDULE])],
            [],
            "n1",
            id="the taint is tolerated by its value",
        ),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}},
            [a_node("n1"), a_node("n2", labels={"disk": "ssd"})],
            [],
            "n2",
            id="the node with the label",
        ),
        pytest.param(
            {
                "affinity": required(
                    {"key": "disk", "operator": "NotIn", "values": ["hdd"]},
                    {"key": "old", "operator": "DoesNotExist"},
                    {"key": "cores", "operator": "Exists"},
                    {"key": "cores", "operator": "Lt", "values": ["8"]},
                )
            },
            [
                a_node("n1", labels={"disk": "hdd", "cores": "4"}),
                a_node("n2", labels={"old": "", "cores": "4"}),
                a_node("n3"),
                a_node("n4", labels={"cores": "4"}),
            ],
            [],
            "n4",
            id="all conditions of a term hold",
        ),
        pytest.param(
            {
                "affinity": required(
                    fields=({"key": "metadata.name", "operator": "In", "values": ["n5"]},)
                )
            },
            SIX,
            [],
            "n5",
            id="pinned to a node by its name",
        ),
        pytest.param(
            {},
            [a_node("n1", taints=[{"key": "k", "effect": "PreferNoSchedule"}]), a_node("n2")],
            [a_pod("p", "n2", ready=True)],
            "n2",
            id="rather a busy node than one to be avoided",
        ),
        pytest.param(
            {
                "affinity": {
                    "nodeAffinity": {
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {
                                "weight": 5,
                                "preference": {
                                    "matchExpressions": [{"key": "ssd", "operator": "Exists"}]
                                },
                            }
                        ]
                    }
                }
            },
            [a_node("n1"), a_node("n2", labels={"ssd": ""})],
            [a_pod("p", "n2", ready=True)],
            "n2",
            id="the node that the pod likes",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread()]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b"), a_node("n3", "zone-b")],
            [a_pod("p", "n1", ready=True), a_pod("q", "n2", ready=True, labels={"app": "x"})],
            "n3",
            id="the zone where none of the selected is",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread()]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b", taints=[NO_SCHEDULE])],
            [a_pod("p", "n1", ready=True, terminating=True)],
            "n1",
            id="pods on their way out do not count",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread(nodeTaintsPolicy="Honor")]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b", taints=[NO_SCHEDULE])],
            [a_pod("p", "n1", ready=True)],
            "n1",
            id="a closed zone is no domain where taints are honoured",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread(when="ScheduleAnyway")]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b")],
            [
                a_pod("p", "n1", ready=True),
                a_pod("q", "n2", labels={}),
                a_pod("r", "n2", labels={}),
            ],
            "n2",
            id="a wish for evenness beats a busy node",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread(when="ScheduleAnyway")]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b", taints=[NO_SCHEDULE])],
            [a_pod(f"p{number}", "n1", ready=True) for number in range(3)],
            "n1",
            id="a wish refuses nobody",
        ),
        pytest.param(
            {"topologySpreadConstraints": [spread(matchLabelKeys=["version"])]},
            [a_node("n1", "zone-a"), a_node("n2", "zone-b", taints=[NO_SCHEDULE])],
            [a_pod("p", "n1", ready=True, labels={"app": "web", "version": "1"})],
            "n1",
            id="only pods with the same value of a label count",
        ),
        pytest.param(
            {"containers": [{"ports": [{"hostPort": 80, "hostIP": "10.0.0.1"}]}]},
            [a_node("n1")],
            [a_pod("p", "n1", containers=[{"ports": [{"hostPort": 80, "hostIP": "10.0.0.2"}]}])],
            "n1",
            id="one port at two addresses",
        ),
    ],
)
def test_choices(
    spec: dict[str, Any], nodes: list[Node], pods: list[WorkloadPod], want_node: str
) -> None:
    """A pod gets the node that fits it best."""
    labels = {"app": "web", "version": "2"}
    assert place_one(a_pod("new", labels=labels, **spec), nodes, pods).node == want_node


def test_pods_spread_over_zones_and_then_nodes() -> None:
    """Six pods of one owner over six nodes in three zones take one node each, zone by zone."""
    pods = [a_pod(f"p{number}", owner="rs") for number in range(6)]
    places = place_pods(pods, nodes=SIX, pods=[])
    assert [place.node for place in places] == ["n0", "n1", "n2", "n3", "n4", "n5"]


def test_pods_of_others_break_ties_only() -> None:
    """The own pods in a zone count before a crowd of others."""
    crowd = [a_pod(f"x{number}", "n1", owner="other", ready=True) for number in range(9)]
    own = a_pod("own", "n0", owner="rs", ready=True)
    nodes = [a_node("n0", "zone-a"), a_node("n1", "zone-b")]
    assert place_one(a_pod("new", owner="rs"), nodes, [own, *crowd]).node == "n1"


def test_urgent_and_older_pods_choose_first() -> None:
    """Of three pods for one place, that of the highest priority gets it, then the oldest."""
    constraint: dict[str, Any] = {"topologySpreadConstraints": [spread("host", skew=1)]}
    nodes = [a_node("n1", labels={"host": "n1"}), a_node("n2", labels={"host": "n2"})]
    pending = [
        a_pod("young", age_s=1, **constraint),
        a_pod("urgent", age_s=2, priority=10, **constraint),
        a_pod("old", age_s=3, **constraint),
    ]
    places = place_pods(pending, nodes=nodes, pods=[])
    assert [(place.pod.metadata.name, place.node) for place in places] == [
        ("urgent", "n1"),
        ("old", "n2"),
        ("young", "n1"),
    ]


def test_ended_pods_hold_no_place() -> None:
    """The port of a pod that ended is free."""
    ports = [{"ports": [{"hostPort": 80}]}]
    ended = a_pod("p", "n1", phase="Succeeded", containers=ports)
    assert place_one(a_pod("new", containers=ports), [a_node("n1")], [ended]).node == "n1"


@settings(deadline=None, max_examples=60)
@given(
    zones=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    number=st.integers(0, 12),
    skew=st.integers(1, 2),
)
def test_spread_holds_for_any_cluster(zones: list[int], number: int, skew: int) -> None:
    """Zones never differ by more than maxSkew, all pods get a place, and the order is no matter."""
    nodes = [
        a_node(f"n{zone}-{place}", f"zone-{zone}")
        for zone, size in enumerate(zones)
        for place in range(size)
    ]
    constraint: dict[str, Any] = {"topologySpreadConstraints": [spread(skew=skew)]}
    pods = [a_pod(f"p{place:02}", owner="rs", **constraint) for place in range(number)]
    places = place_pods(pods, nodes=nodes, pods=[])
    by_zone = Counter(place.node.split("-")[0] for place in places)
    counts = [by_zone[f"n{zone}"] for zone in range(len(zones))]
    assert sum(counts) == number
    assert max(counts) - min(counts) <= 1
    assert place_pods(pods[::-1], nodes=nodes[::-1], pods=[]) == places
