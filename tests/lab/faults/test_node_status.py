"""What trouble looks like in Node objects: patches over nodes in all states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.lab.faults.node_status import (
    CORDON_ANNOTATION,
    UNREACHABLE,
    ZONE_ANNOTATION,
    LifecycleNode,
    cordon_patch,
    original_zone_patch,
    pod_unready_patch,
    ready_status_patch,
    taint_patch,
    uncordon_patch,
    unreachable_status_patch,
    untaint_patch,
    zone_patch,
)
from keepclose.model.json_values import JsonObject
from keepclose.model.well_known import ZONE_LABEL

TIME = "2026-11-16T05:00:00Z"
BOTH = [
    {"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": TIME},
    {"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": TIME},
]
MINE = {"key": "example.dev/mine", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}


def a_node(
    zone: str = "zone-a",
    *,
    annotations: dict[str, str] | None = None,
    conditions: dict[str, str] | None = None,
    **spec: Any,
) -> LifecycleNode:
    """Return a node, ready unless told otherwise."""
    statuses = {"Ready": "True"} if conditions is None else conditions
    raw = {
        "metadata": {
            "name": "n1",
            "resourceVersion": "7",
            "labels": {ZONE_LABEL: zone} if zone else {},
            "annotations": annotations or {},
        },
        "spec": spec,
        "status": {"conditions": [{"type": t, "status": s} for t, s in statuses.items()]},
    }
    return msgspec.convert(raw, LifecycleNode)


def statuses(patch: JsonObject | None) -> dict[str, tuple[str, str]]:
    """Return status and reason of the conditions that a patch changes."""
    found = patch["status"]["conditions"] if patch else []
    assert all(one["lastTransitionTime"] == TIME for one in found)
    return {one["type"]: (one["status"], one["reason"]) for one in found}


def test_all_conditions_of_a_silent_node_are_unknown() -> None:
    """The node lifecycle controller doubts all that the kubelet reported, and nothing else."""
    node = a_node(conditions={"Ready": "True", "DiskPressure": "False", "Own": "True"})
    unknown = ("Unknown", "NodeStatusUnknown")
    assert statuses(unreachable_status_patch(node, time=TIME)) == {
        "Ready": unknown,
        "DiskPressure": unknown,
    }
    silent = a_node(conditions={"Ready": "Unknown", "DiskPressure": "Unknown"})
    assert unreachable_status_patch(silent, time=TIME) is None


def test_conditions_of_a_node_that_is_heard_again() -> None:
    """All conditions are as a kubelet reports them, also where Ready was never reported."""
    node = a_node(conditions={"Ready": "Unknown", "PIDPressure": "Unknown", "Own": "Unknown"})
    assert statuses(ready_status_patch(node, time=TIME)) == {
        "Ready": ("True", "KubeletReady"),
        "PIDPressure": ("False", "KubeletHasSufficientPID"),
    }
    assert statuses(ready_status_patch(a_node(conditions={}), time=TIME)) == {
        "Ready": ("True", "KubeletReady")
    }
    assert ready_status_patch(a_node(), time=TIME) is None


@pytest.mark.parametrize(
    ("taints", "want"),
    [
        pytest.param([], BOTH, id="none before"),
        pytest.param([MINE], [MINE, *BOTH], id="another stays, with its time"),
        pytest.param([BOTH[0]], BOTH, id="one of the two is there"),
        pytest.param([*BOTH, MINE], None, id="nothing to do"),
    ],
)
def test_tainting(taints: list[JsonObject], want: list[JsonObject] | None) -> None:
    """A silent node has both taints beside those it had, in a patch for this version alone."""
    patch = taint_patch(a_node(taints=taints), time=TIME)
    if want is None:
        assert patch is None
    else:
        assert patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": want}}


def test_untainting() -> None:
    """Only the taints of silence go, and the list goes with the last."""
    patch = untaint_patch(a_node(taints=[*BOTH, MINE]))
    assert patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [MINE]}}
    patch = untaint_patch(a_node(taints=BOTH))
    assert patch == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": None}}
    assert untaint_patch(a_node(taints=[MINE])) is None


@pytest.mark.parametrize(
    ("zone", "annotations", "target", "want_label", "want_remembered"),
    [
        pytest.param("zone-a", {}, "zone-b", "zone-b", "zone-a", id="a first move is remembered"),
        pytest.param(
            "zone-b", {ZONE_ANNOTATION: "zone-a"}, "zone-c", "zone-c", "zone-a", id="a second one"
        ),
        pytest.param(
            "zone-b", {ZONE_ANNOTATION: "zone-a"}, "zone-a", "zone-a", None, id="back home"
        ),
        pytest.param("zone-a", {}, "", None, "zone-a", id="to no zone"),
        pytest.param("", {}, "zone-a", "zone-a", "", id="from no zone"),
        pytest.param("zone-a", {ZONE_ANNOTATION: ""}, "", None, None, id="back to no zone"),
    ],
)
def test_moving(
    zone: str,
    annotations: dict[str, str],
    target: str,
    want_label: str | None,
    want_remembered: str | None,
) -> None:
    """The zone before the first move is kept until the node is there again."""
    assert zone_patch(a_node(zone, annotations=annotations), target) == {
        "metadata": {
            "labels": {ZONE_LABEL: want_label},
            "annotations": {ZONE_ANNOTATION: want_remembered},
        }
    }


def test_nothing_to_move() -> None:
    """A node that is in the zone, or never left its own, gets no patch."""
    assert zone_patch(a_node("zone-a"), "zone-a") is None
    assert zone_patch(a_node(""), "") is None
    assert original_zone_patch(a_node()) is None


def test_going_home() -> None:
    """A moved node goes back; where somebody put it back by hand only the memory goes."""
    assert original_zone_patch(a_node("zone-b", annotations={ZONE_ANNOTATION: "zone-a"})) == {
        "metadata": {
            "labels": {ZONE_LABEL: "zone-a"},
            "annotations": {ZONE_ANNOTATION: None},
        }
    }
    assert original_zone_patch(a_node("zone-a", annotations={ZONE_ANNOTATION: "zone-a"})) == {
        "metadata": {"annotations": {ZONE_ANNOTATION: None}}
    }


def test_cordons() -> None:
    """Ours are marked, and only ours go when only ours are asked for."""
    free = a_node()
    ours = a_node(unschedulable=True, annotations={CORDON_ANNOTATION: "true"})
    others = a_node(unschedulable=True)
    assert cordon_patch(free) == {
        "metadata": {"annotations": {CORDON_ANNOTATION: "true"}},
        "spec": {"unschedulable": True},
    }
    assert cordon_patch(others) is None
    want = {
        "metadata": {"annotations": {CORDON_ANNOTATION: None}},
        "spec": {"unschedulable": None},
    }
    assert uncordon_patch(ours) == uncordon_patch(others) == want
    assert uncordon_patch(ours, only_ours=True) == want
    assert uncordon_patch(others, only_ours=True) is None
    assert uncordon_patch(free) is None


def test_pods_of_a_silent_node() -> None:
    """A pod is not ready any more, if it still is the same."""
    assert pod_unready_patch("u1", time=TIME) == {
        "metadata": {"uid": "u1"},
        "status": {
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": TIME}]
        },
    }
