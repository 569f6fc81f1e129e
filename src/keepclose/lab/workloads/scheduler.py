"""Which node each waiting pod gets, or in the scheduler's words why none will have it.

Nodes that may not have a pod fall away first. Of the others, the one wins that the pod's own wishes
favour, then the one whose zone and then itself has the fewest pods of the same controller, then the
fewest pods at all, and last the one whose name comes first: the same input gives the same places.
No pod is evicted to make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from keepclose.lab.resourcefit import pod_requests, resource_refusals
from keepclose.lab.spreading import SpreadRule, spread_rules
from keepclose.lab.workloads.node_fit import dislikes, likes, node_refusal, port_refusal
from keepclose.lab.workloads.pods import WorkloadPod
from keepclose.model.workload import Node

NO_NODES: Final = "no nodes available to schedule pods"


class Placement(NamedTuple):
    """The node of a pod, "" when there is none, and then the reason."""

    pod: WorkloadPod
    node: str
    reason: str = ""

    @property
    def placed(self) -> WorkloadPod:
        """The pod as it is on its node."""
        return replace(self.pod, spec=replace(self.pod.spec, node_name=self.node))


def place_pods(
    pending: Iterable[WorkloadPod], *, nodes: Iterable[Node], pods: Iterable[WorkloadPod]
) -> list[Placement]:
    """Return a place for each pending pod, in the order in which they were chosen.

    Urgent pods come first, then older ones. Each counts the places of those before it. Of the
    other pods only those that have a node and did not end matter.
    """
    board = _Board(nodes, pods)
    return [board.place(pod) for pod in sorted(pending, key=_turn)]


def _turn(pod: WorkloadPod) -> tuple[object, ...]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "9", pod.key)


class _Board:
    """The nodes with the pods on them, to which each new place is added."""

    def __init__(self, nodes: Iterable[Node], pods: Iterable[WorkloadPod]) -> None:
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._zones = {node.name: node.zone for node in self._nodes}
        self._there: dict[str, list[WorkloadPod]] = {node.name: [] for node in self._nodes}
        # How many pods a controller, or "" for all of them, has on a node and in a zone.
        self._on_node: Counter[tuple[str, str]] = Counter()
        self._in_zone: Counter[tuple[str, str]] = Counter()
        self._used: dict[str, Counter[str]] = {node.name: Counter() for node in self._nodes}
        for pod in pods:
            if pod.spec.node_name in self._there and not pod.has_ended:
                self._add(pod)

    def place(self, pod: WorkloadPod) -> Placement:
        """Choose a node and put the pod there."""
        if not self._nodes:
            return Placement(pod, "", NO_NODES)
        binding, wished = spread_rules(pod, nodes=self._nodes, there=self._there)
        requests = pod_requests(pod.spec)
        fitting: list[Node] = []
        refusals: Counter[str] = Counter()
        for node in self._nodes:
            reasons = self._refusals(pod, node, binding, requests)
            if reasons:
                refusals.update(reasons)
            else:
                fitting.append(node)
        if not fitting:
            return Placement(pod, "", _explain(len(self._nodes), refusals))
        placement = Placement(pod, self._best(pod, fitting, wished).name)
        self._add(placement.placed)
        return placement

    def _add(self, pod: WorkloadPod) -> None:
        name = pod.spec.node_name
        self._there[name].append(pod)
        self._used[name].update(pod_requests(pod.spec))
        if pod.is_terminating:
            return
        owner = pod.controller
        for uid in ("", owner.uid) if owner and owner.uid else ("",):
            self._on_node[uid, name] += 1
            self._in_zone[uid, self._zones[name]] += 1

    def _refusals(
        self,
        pod: WorkloadPod,
        node: Node,
        binding: Sequence[SpreadRule],
        requests: Mapping[str, int],
    ) -> list[str]:
        """Return why the first check that fails refuses the node; only resources give several."""
        there = self._there[node.name]
        refusal = node_refusal(pod.spec, node) or port_refusal(pod.spec, there)
        if refusal:
            return [refusal]
        scarce = resource_refusals(requests, node, used=self._used[node.name], pods=len(there))
        if scarce:
            return scarce
        return [one for rule in binding if (one := rule.refusal(node))][:1]

    def _best(
        self, pod: WorkloadPod, fitting: Sequence[Node], wished: Sequence[SpreadRule]
    ) -> Node:
        owner = pod.controller
        uid = owner.uid if owner else ""

        def badness(node: Node) -> tuple[object, ...]:
            return (
                dislikes(pod.spec, node),
                -likes(pod.spec, node),
                *(rule.crowd(node) for rule in wished),
                self._in_zone[uid, node.zone],
                self._on_node[uid, node.name],
                self._in_zone["", node.zone],
                self._on_node["", node.name],
                node.name,
            )

        return min(fitting, key=badness)


def _explain(number: int, refusals: Counter[str]) -> str:
    shown = sorted(f"{count} {reason}" for reason, count in refusals.items())
    return f"0/{number} nodes are available: {', '.join(shown)}."
