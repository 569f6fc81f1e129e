"""How the nodes of a lab are: whole, failed, cut off, cordoned, moved; and what runs on them.

A pure view over Node and Pod objects and over what the lab itself has cut. Whether the cluster has
noticed that a node is cut off stands in the Node, the cut itself does not: nobody could write it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from keepclose.lab.faults.node_status import MarkedNode
from keepclose.lab.refusals import LabRefusal
from keepclose.lab.workloads.pods import WorkloadPod

OK: Final = "ok"
FAILED: Final = "failed"
PARTITIONED: Final = "partitioned"
CORDONED: Final = "cordoned"
NOT_READY: Final = "not ready"
_SHOWN_NAMES: Final = 12


class NodeState(msgspec.Struct, frozen=True, rename="camel"):
    """One node as `lab status` shows it."""

    node: str
    zone: str
    """As labelled now; "" for none."""
    own_zone: str
    """Before it was moved."""
    state: str
    """The worst of what there is: failed, partitioned, not ready, cordoned, ok."""
    is_noticed: bool
    """Whether the cluster knows that the node is silent."""
    is_cordoned: bool
    pods: int
    """That run."""
    ready_pods: int

    @property
    def words(self) -> str:
        """The state in words, with all there is to say."""
        words = {FAILED: "failed", NOT_READY: "not ready"}.get(self.state, "")
        if self.state == PARTITIONED:
            words = "cut off, noticed" if self.is_noticed else "cut off, not noticed"
        parts = [words] if words else []
        if self.is_cordoned:
            parts.append("cordoned")
        if self.zone != self.own_zone:
            parts.append(f"was in {self.own_zone}" if self.own_zone else "had no zone")
        return ", ".join(parts) or OK


def describe_nodes(
    nodes: Iterable[MarkedNode],
    pods: Iterable[WorkloadPod],
    *,
    failed: Collection[str],
    partitioned: Collection[str],
) -> list[NodeState]:
    """Return the state of each node, by zone and name."""
    running: dict[str, int] = {}
    ready: dict[str, int] = {}
    for pod in pods:
        if pod.status.phase == "Running" and not pod.is_terminating:
            name = pod.spec.node_name
            running[name] = running.get(name, 0) + 1
            ready[name] = ready.get(name, 0) + pod.is_ready
    states = [
        NodeState(
            node=node.name,
            zone=node.zone,
            own_zone=node.own_zone,
            state=_state(node, failed=failed, partitioned=partitioned),
            is_noticed=node.is_unreachable,
            is_cordoned=node.spec.unschedulable,
            pods=running.get(node.name, 0),
            ready_pods=ready.get(node.name, 0),
        )
        for node in nodes
    ]
    return sorted(states, key=lambda one: (one.own_zone, one.node))


def find_node(nodes: Sequence[MarkedNode], name: str) -> MarkedNode:
    """Return the node of that name; raises LabRefusal with those there are."""
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise _unknown("node", name, {"nodes": sorted(node.name for node in nodes)})
    return found


def find_nodes(
    nodes: Sequence[MarkedNode], name: str, *, counts_moved: bool = False
) -> list[MarkedNode]:
    """Return the node of that name, or all nodes of the zone; raises LabRefusal.

    A zone is as labelled now; nodes that were moved away may count for the zone they left too.
    """
    zones_of = {
        node.name: {node.zone, node.own_zone} if counts_moved else {node.zone} for node in nodes
    }
    found = [node for node in nodes if node.name == name]
    found = found or [node for node in nodes if name and name in zones_of[node.name]]
    if not found:
        zones = sorted(set().union(*zones_of.values()) - {""})
        known = {"zones": zones, "nodes": sorted(node.name for node in nodes)}
        raise _unknown("node or zone", name, known)
    return sorted(found, key=lambda node: node.name)


def _state(node: MarkedNode, *, failed: Collection[str], partitioned: Collection[str]) -> str:
    if node.name in failed:
        return FAILED
    if node.name in partitioned:
        return PARTITIONED
    if not node.is_ready or node.is_unreachable:
        return NOT_READY
    return CORDONED if node.spec.unschedulable else OK


def _unknown(what: str, name: str, known: dict[str, list[str]]) -> LabRefusal:
    everything = [one for names in known.values() for one in names]
    there = " and ".join(f"{kind} {_shorten(names)}" for kind, names in known.items() if names)
    close = get_close_matches(name, everything, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    if not there:
        return LabRefusal(f"this lab has no nodes, so no {what} {name!r} either", code=3)
    return LabRefusal(f"no {what} is called {name!r}; there are {there}{hint}", code=3)


def _shorten(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN_NAMES])
    left = len(names) - _SHOWN_NAMES
    return f"{shown} and {left} more" if left > 0 else shown
