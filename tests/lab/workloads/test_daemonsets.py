"""One pod on every node that may have it, and how those pods are renewed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.lab.workloads.daemonsets import DaemonSetPlan, daemon_labels, plan_daemon_set
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import DaemonSet, DaemonSetStatus
from support.lab.labobjects import NOW, a_daemon_set, a_node, a_pod, stamp

THREE = [a_node("n1"), a_node("n2"), a_node("n3")]
NEW = {"app": "web", **daemon_labels(a_daemon_set())}
OLD = {"app": "web", **daemon_labels(a_daemon_set(image="web:0"))}


def plan_of(
    daemon_set: DaemonSet, pods: list[WorkloadPod], nodes: list[Node] | None = None
) -> DaemonSetPlan:
    """Return the plan for three nodes unless told otherwise."""
    return plan_daemon_set(daemon_set, THREE if nodes is None else nodes, pods, now=NOW)


def steps(plan: DaemonSetPlan) -> tuple[list[str], list[str]]:
    """Return where pods come, and which go."""
    return list(plan.creations), [pod.metadata.name for pod in plan.deletions]


def new(name: str, node: str, **more: Any) -> WorkloadPod:
    """Return a pod of the present template, ready unless told otherwise."""
    return a_pod(name, node, labels=NEW, **{"ready": True, **more})


def old(name: str, node: str, **more: Any) -> WorkloadPod:
    """Return a pod of a former template, ready unless told otherwise."""
    return a_pod(name, node, labels=OLD, **{"ready": True, **more})


@pytest.mark.parametrize(
    ("spec", "nodes", "want_nodes"),
    [
        pytest.param({}, THREE, ["n1", "n2", "n3"], id="every node"),
        pytest.param({}, [], [], id="no node"),
        pytest.param(
            {"nodeSelector": {"disk": "ssd"}},
            [a_node("n1"), a_node("n2", labels={"disk": "ssd"})],
            ["n2"],
            id="nodes with the label",
        ),
        pytest.param({}, [a_node("n1", unschedulable=True)], ["n1"], id="cordoned nodes too"),
        pytest.param(
            {},
            [a_node("n1", taints=[{"key": "k", "effect": "NoSchedule"}]), a_node("n2")],
            ["n2"],
            id="no node with a taint",
        ),
        pytest.param(
            {"tolerations": [{"key": "k", "operator": "Exists"}]},
            [a_node("n1", taints=[{"key": "k", "effect": "NoSchedule"}])],
            ["n1"],
            id="unless it is tolerated",
        ),
        pytest.param({}, [a_node("n1", ready=False)], [], id="no node that is not ready"),
        pytest.param(
            {
                "hostNetwork": True,
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            },
            [
                a_node(
                    "n1",
                    ready=False,
                    taints=[
                        {
                            "key": "node.kubernetes.io/network-unavailable",
                            "effect": "NoSchedule",
                        }
                    ],
                )
            ],
            ["n1"],
            id="what makes the network comes before it",
        ),
        pytest.param({"nodeName": "n3"}, THREE, ["n3"], id="the node that it names"),
    ],
)
def test_nodes_that_get_a_pod(
    spec: dict[str, Any], nodes: list[Node], want_nodes: list[str]
) -> None:
    """Labels and taints decide which nodes get a pod."""
    plan = plan_of(a_daemon_set(**spec), [], nodes)
    assert steps(plan) == (want_nodes, [])
    assert plan.status.desired_number_scheduled == len(want_nodes)


@pytest.mark.parametrize(
    ("pods", "nodes", "want_nodes", "want_gone"),
    [
        pytest.param(
            [new("a", "n1"), new("b", "n2"), new("c", "n3")], THREE, [], [], id="all there"
        ),
        pytest.param(
            [new("b", "n1", age_s=5), new("a", "n1", age_s=9), new("c", "n2"), new("d", "n3")],
            THREE,
            [],
            ["b"],
            id="the oldest stays",
        ),
        pytest.param([new("a", "n1", phase="Failed")], [a_node("n1")], [], ["a"], id="failed"),
        pytest.param(
            [new("a", "n1", terminating=True)], [a_node("n1")], [], [], id="not before it is gone"
        ),
        pytest.param(
            [new("a", "n1")],
            [a_node("n1", taints=[{"key": "k", "effect": "NoExecute"}])],
            [],
            ["a"],
            id="driven away",
        ),
        pytest.param(
            [new("a", "n1")],
            [a_node("n1", taints=[{"key": "k", "effect": "NoSchedule"}])],
            [],
            [],
            id="who is there may stay",
        ),
        pytest.param([new("a", "n1", ready=False)], [a_node("n1", ready=False)], [], [], id="lost"),
    ],
)
def test_pods_are_tended(
    pods: list[WorkloadPod], nodes: list[Node], want_nodes: list[str], want_gone: list[str]
) -> None:
    """Gaps are filled, and what is too many or of no use goes."""
    assert steps(plan_of(a_daemon_set(), pods, nodes)) == (want_nodes, want_gone)


@pytest.mark.parametrize(
    ("strategy", "pods", "want_nodes", "want_gone"),
    [
        pytest.param(
            {}, [old("a", "n1"), old("b", "n2"), old("c", "n3")], [], ["a"], id="one after another"
        ),
        pytest.param(
            {"unavailable": "50%"},
            [old("a", "n1"), old("b", "n2"), old("c", "n3")],
            [],
            ["a", "b"],
            id="a share of the nodes rounded up",
        ),
        pytest.param(
            {},
            [new("a", "n1", ready=False), old("b", "n2"), old("c", "n3")],
            [],
            [],
            id="not before the new one is available",
        ),
        pytest.param(
            {},
            [old("x", "n1", terminating=True), old("b", "n2"), old("c", "n3")],
            [],
            [],
            id="one on its way out counts as missing",
        ),
        pytest.param(
            {},
            [old("a", "n1", ready=False), old("b", "n2", ready=False), old("c", "n3")],
            [],
            ["a", "b"],
            id="useless ones all at once",
        ),
        pytest.param(
            {"kind": "OnDelete"},
            [old("a", "n1"), old("b", "n2"), old("c", "n3")],
            [],
            [],
            id="never by itself",
        ),
        pytest.param(
            {"surge": 2, "unavailable": 0},
            [old("a", "n1"), old("b", "n2"), old("c", "n3")],
            ["n1", "n2"],
            [],
            id="new ones come first",
        ),
        pytest.param(
            {"surge": 1, "unavailable": 0},
            [old("a", "n1"), new("x", "n1", ready=False), old("b", "n2"), old("c", "n3")],
            [],
            [],
            id="no more of them than may be",
        ),
        pytest.param(
            {"surge": 1, "unavailable": 0},
            [old("a", "n1"), new("x", "n1"), old("b", "n2"), old("c", "n3")],
            [],
            ["a"],
            id="then the old one goes",
        ),
        pytest.param(
            {"surge": 1, "unavailable": 0},
            [old("a", "n1", ready=False), old("b", "n2", ready=False), old("c", "n3")],
            ["n1", "n2", "n3"],
            [],
            id="beside useless ones at once",
        ),
    ],
)
def test_updates(
    strategy: dict[str, Any],
    pods: list[WorkloadPod],
    want_nodes: list[str],
    want_gone: list[str],
) -> None:
    """A changed template replaces pods within the bounds."""
    assert steps(plan_of(a_daemon_set(**strategy), pods)) == (want_nodes, want_gone)


def test_status() -> None:
    """Pods are counted by node, those on nodes that do not want them apart."""
    nodes = [*THREE, a_node("n4", taints=[{"key": "k", "effect": "NoSchedule"}])]
    pods = [
        new("a", "n1"),
        old("b", "n2", ready_for_s=2),
        new("d", "n4"),
    ]
    plan = plan_of(a_daemon_set(min_ready=10, generation=3), pods, nodes)
    assert plan.status == DaemonSetStatus(
        observed_generation=3,
        desired_number_scheduled=3,
        current_number_scheduled=2,
        number_misscheduled=1,
        number_ready=2,
        updated_number_scheduled=1,
        number_available=1,
        number_unavailable=2,
    )
    assert plan.recheck_s == 8.0


def test_a_daemon_set_on_its_way_out_changes_nothing() -> None:
    """Its pods are the garbage collector's."""
    whole = a_daemon_set()
    gone = replace(whole, metadata=replace(whole.metadata, deletion_timestamp=stamp()))
    assert steps(plan_of(gone, [new("a", "n1"), new("b", "n1")])) == ([], [])


@settings(deadline=None, max_examples=60)
@given(
    number=st.integers(1, 6),
    bounds=st.sampled_from([(1, 0), (2, 0), ("50%", 0), (0, 1), (0, "40%")]),
    seed=st.integers(0, 2**32),
)
def test_any_update_keeps_its_bounds_and_ends(
    number: int, bounds: tuple[int | str, int | str], seed: int
) -> None:
    """However pods get ready and end, no more nodes lack a pod than may, and none has three."""
    random = Random(seed)
    nodes = [a_node(f"n{place}") for place in range(number)]
    daemon_set = a_daemon_set(unavailable=bounds[0], surge=bounds[1])
    most = {1: 1, 2: 2, "50%": -(-number // 2), 0: 0}[bounds[0]]
    extra = {0: 0, 1: 1, "40%": -(-number * 40 // 100)}[bounds[1]]
    pods = {f"old{place}": old(f"old{place}", f"n{place}") for place in range(number)}
    made = 0
    for _ in range(400):
        if not pods or random.random() < 0.3:
            plan = plan_of(daemon_set, list(pods.values()), nodes)
            for node in plan.creations:
                made += 1
                pods[f"new{made}"] = new(f"new{made}", node, ready=False, age_s=1)
            for pod in plan.deletions:
                meta = replace(pod.metadata, deletion_timestamp=stamp())
                pods[pod.metadata.name] = replace(pod, metadata=meta)
        else:
            one = random.choice(list(pods.values()))
            if one.is_terminating:
                del pods[one.metadata.name]
            elif not one.is_ready:
                pods[one.metadata.name] = new(one.metadata.name, one.spec.node_name, age_s=1)
        active = [pod for pod in pods.values() if pod.is_active]
        served = {pod.spec.node_name for pod in active if pod.is_ready}
        assert number - len(served) <= most
        assert len(active) <= number + extra
    assert sorted(pod.spec.node_name for pod in pods.values()) == sorted(n.name for n in nodes)
    assert all(pod.metadata.labels == NEW and pod.is_ready for pod in pods.values())
