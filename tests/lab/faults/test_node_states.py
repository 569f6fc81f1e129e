"""How nodes are described, and found by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.node_states import describe_nodes, find_node, find_nodes
from keepclose.lab.faults.node_status import UNREACHABLE, ZONE_ANNOTATION, LifecycleNode
from keepclose.model.well_known import ZONE_LABEL
from support.lab.labobjects import a_pod


def a_node(name: str, zone: str, *, own: str | None = None, **spec: Any) -> LifecycleNode:
    """Return a ready node, moved if it has another zone of its own."""
    annotations = {} if own is None else {ZONE_ANNOTATION: own}
    labels = {ZONE_LABEL: zone} if zone else {}
    raw = {
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(raw, LifecycleNode)


SILENT = [{"key": UNREACHABLE, "effect": "NoExecute"}]
NODES = [a_node("n1", "zone-a"), a_node("n2", "zone-b", own="zone-a"), a_node("n3", "zone-b")]


@pytest.mark.parametrize(
    ("node", "failed", "partitioned", "want_state", "want_words"),
    [
        pytest.param(a_node("n1", "z"), (), (), "ok", "ok", id="well"),
        pytest.param(a_node("n1", "z"), ("n1",), (), "failed", "failed", id="failed"),
        pytest.param(
            a_node("n1", "z"), (), ("n1",), "partitioned", "cut off, not noticed", id="cut off"
        ),
        pytest.param(
            a_node("n1", "z", taints=SILENT),
            (),
            ("n1",),
            "partitioned",
            "cut off, noticed",
            id="cut off and noticed",
        ),
        pytest.param(
            a_node("n1", "z", taints=SILENT), (), (), "not ready", "not ready", id="left by others"
        ),
        pytest.param(
            a_node("n1", "z", unschedulable=True), (), (), "cordoned", "cordoned", id="cordoned"
        ),
        pytest.param(
            a_node("n1", "z", own="y", unschedulable=True),
            ("n1",),
            (),
            "failed",
            "failed, cordoned, was in y",
            id="everything at once",
        ),
        pytest.param(
            a_node("n1", "z", own=""), (), (), "ok", "had no zone", id="moved into a zone"
        ),
    ],
)
def test_state_of_a_node(
    node: LifecycleNode,
    failed: tuple[str, ...],
    partitioned: tuple[str, ...],
    want_state: str,
    want_words: str,
) -> None:
    """The worst counts as the state, and the words tell all."""
    (state,) = describe_nodes([node], [], failed=failed, partitioned=partitioned)
    assert (state.state, state.words) == (want_state, want_words)


def test_pods_of_nodes() -> None:
    """Pods count that run and were not asked to go; nodes come by their own zone and name."""
    pods = [
        a_pod("a", "n1", ready=True, phase="Running"),
        a_pod("b", "n1", ready=False, phase="Running"),
        a_pod("c", "n1", phase="Pending"),
        a_pod("d", "n1", ready=True, phase="Running", terminating=True),
        a_pod("e", "n3", ready=True, phase="Running"),
    ]
    states = describe_nodes(reversed(NODES), pods, failed=(), partitioned=())
    assert [(one.node, one.pods, one.ready_pods) for one in states] == [
        ("n1", 2, 1),
        ("n2", 0, 0),
        ("n3", 1, 1),
    ]


def test_finding_by_zone() -> None:
    """A zone is as labelled now, and for healing also as it was."""
    assert [node.name for node in find_nodes(NODES, "zone-a")] == ["n1"]
    assert [node.name for node in find_nodes(NODES, "zone-a", counts_moved=True)] == ["n1", "n2"]
    assert [node.name for node in find_nodes(NODES, "zone-b")] == ["n2", "n3"]
    assert [node.name for node in find_nodes(NODES, "n3")] == ["n3"]


def test_a_node_wins_over_a_zone_of_its_name() -> None:
    """What is both a node and a zone is the node."""
    nodes = [a_node("one", "two"), a_node("two", "two")]
    assert [node.name for node in find_nodes(nodes, "two")] == ["two"]


@pytest.mark.parametrize(
    ("nodes", "name", "want"),
    [
        pytest.param(
            NODES,
            "zone-bb",
            "no node or zone is called 'zone-bb'; there are zones zone-a, zone-b and nodes "
            "n1, n2, n3; did you mean zone-b?",
            id="close to one",
        ),
        pytest.param(
            [a_node("n1", "")],
            "",
            "no node or zone is called ''; there are nodes n1",
            id="no name and no zones",
        ),
        pytest.param(
            [], "n1", "this lab has no nodes, so no node or zone 'n1' either", id="no nodes"
        ),
    ],
)
def test_unknown_names(nodes: list[LifecycleNode], name: str, want: str) -> None:
    """The refusal names what there is, with exit code 3."""
    with pytest.raises(LabRefusal) as refusal:
        find_nodes(nodes, name)
    assert (str(refusal.value), refusal.value.code) == (want, 3)


def test_many_nodes_are_not_all_named() -> None:
    """A long list is cut."""
    nodes = [a_node(f"n{number:02}", "z") for number in range(14)]
    with pytest.raises(LabRefusal, match="n10, n11 and 2 more"):
        find_node(nodes, "m")
