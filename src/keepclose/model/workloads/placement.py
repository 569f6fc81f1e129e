"""Which node each waiting pod gets, or in kube-scheduler's words why none fits.

Nodes that do not fit are filtered out first. Of the others the node wins that the pod prefers, then
the one whose zone, and then itself, has the fewest pods of the same controller, then the fewest
pods at all, and last the first by name: the same input gives the same placements. No pod is evicted
to make room.

Topology spread follows kube-scheduler's PodTopologySpread. A constraint counts the pods that its
selector matches in the pod's namespace, without terminating ones, over the nodes that the pod may
use. DoNotSchedule rejects a node whose domain would have over maxSkew pods more than the emptiest;
ScheduleAnyway only prefers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from keepclose.model.workload import Node
from keepclose.model.workloads.constraints import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Expression,
    NodeLabelSelector,
    SpreadConstraint,
)
from keepclose.model.workloads.node_fit import (
    avoided_taints,
    has_untolerated_taint,
    matches_affinity,
    node_refusal,
    pod_requests,
    port_refusal,
    preferred_weight,
    resource_refusals,
)
from keepclose.model.workloads.pods import WorkloadPod

UNEVEN: Final = "node(s) didn't match pod topology spread constraints"
NO_DOMAIN: Final = f"{UNEVEN} (missing required label)"
DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_HONOR: Final = "Honor"
PodsByNode = Mapping[str, Sequence[WorkloadPod]]
_NO_NODES: Final = "no nodes available to schedule pods"


class SpreadRule:
    """A spread constraint of a pod, with the number of pods in each domain."""

    def __init__(
        self,
        constraint: SpreadConstraint,
        pod: WorkloadPod,
        *,
        nodes: Iterable[Node],
        there: PodsByNode,
        keys: Sequence[str],
    ) -> None:
        """Count the pods; a node without one of the keys is in no domain."""
        self._key = constraint.topology_key
        self._max_skew = constraint.max_skew
        selects = _selection(constraint, pod)
        self._self = int(selects(pod))
        self.counts: dict[str, int] = {}
        for node in nodes:
            labels = node.metadata.labels
            if any(key not in labels for key in keys) or not _counts(constraint, pod, node):
                continue
            matching = sum(
                selects(other) for other in there.get(node.name, ()) if not other.is_terminating
            )
            domain = labels[self._key]
            self.counts[domain] = self.counts.get(domain, 0) + matching
        least = min(self.counts.values(), default=0)
        self._least = 0 if len(self.counts) < (constraint.min_domains or 1) else least

    def refusal(self, node: Node) -> str:
        """Return why the constraint rejects the node, "" if it does not."""
        domain = node.metadata.labels.get(self._key)
        if domain is None:
            return NO_DOMAIN
        skew = self.counts.get(domain, 0) + self._self - self._least
        return UNEVEN if skew > self._max_skew else ""

    def excess(self, node: Node) -> int:
        """Return how many pods the node's domain has over the emptiest; without a domain, most."""
        domain = node.metadata.labels.get(self._key)
        if domain is None:
            return max(self.counts.values(), default=0) + 1
        return self.counts.get(domain, 0) - self._least


def spread_rules(
    pod: WorkloadPod, *, nodes: Iterable[Node], there: PodsByNode
) -> tuple[list[SpreadRule], list[SpreadRule]]:
    """Return the rules that must hold, and those that are preferred."""
    nodes = list(nodes)
    binding: list[SpreadRule] = []
    preferred: list[SpreadRule] = []
    for hard, rules in ((True, binding), (False, preferred)):
        constraints = [
            constraint
            for constraint in pod.spec.topology_spread_constraints
            if (constraint.when_unsatisfiable == DO_NOT_SCHEDULE) is hard
        ]
        keys = [constraint.topology_key for constraint in constraints]
        rules += [
            SpreadRule(constraint, pod, nodes=nodes, there=there, keys=keys)
            for constraint in constraints
        ]
    return binding, preferred


class NodePlacement(NamedTuple):
    """The node of a pod, or "" with the reason why none fits."""

    pod: WorkloadPod
    node: str
    reason: str = ""

    @property
    def placed(self) -> WorkloadPod:
        """The pod bound to its node."""
        return replace(self.pod, spec=replace(self.pod.spec, node_name=self.node))


def place_pods(
    pending: Iterable[WorkloadPod], *, nodes: Iterable[Node], pods: Iterable[WorkloadPod]
) -> list[NodePlacement]:
    """Return a placement for each pending pod, in the order of the decisions.

    Pods of higher priority come first, then older ones. Each pod counts those placed before it. Of
    the other pods only those count that have a node and have not ended.
    """
    snapshot = _Snapshot(nodes, pods)
    return [snapshot.place(pod) for pod in sorted(pending, key=_queue_order)]


class _Snapshot:
    """The nodes with the pods on them, to which each new placement is added."""

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

    def place(self, pod: WorkloadPod) -> NodePlacement:
        """Choose a node and add the pod to it."""
        if not self._nodes:
            return NodePlacement(pod, "", _NO_NODES)
        binding, preferred = spread_rules(pod, nodes=self._nodes, there=self._there)
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
            return NodePlacement(pod, "", _explain(len(self._nodes), refusals))
        placement = NodePlacement(pod, self._best(pod, fitting, preferred).name)
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
        """Return the reasons of the first check that fails; only resources give several."""
        there = self._there[node.name]
        refusal = node_refusal(pod.spec, node) or port_refusal(pod.spec, there)
        if refusal:
            return [refusal]
        scarce = resource_refusals(requests, node, used=self._used[node.name], pods=len(there))
        if scarce:
            return scarce
        return [reason for rule in binding if (reason := rule.refusal(node))][:1]

    def _best(
        self, pod: WorkloadPod, fitting: Sequence[Node], preferred: Sequence[SpreadRule]
    ) -> Node:
        owner = pod.controller
        uid = owner.uid if owner else ""

        def penalty(node: Node) -> tuple[object, ...]:
            return (
                avoided_taints(pod.spec, node),
                -preferred_weight(pod.spec, node),
                *(rule.excess(node) for rule in preferred),
                self._in_zone[uid, node.zone],
                self._on_node[uid, node.name],
                self._in_zone["", node.zone],
                self._on_node["", node.name],
                node.name,
            )

        return min(fitting, key=penalty)


def _selection(constraint: SpreadConstraint, pod: WorkloadPod) -> Callable[[WorkloadPod], bool]:
    """Return the predicate of the pods that a constraint counts; without a selector none."""
    if constraint.label_selector is None:
        return lambda _: False
    labels = pod.metadata.labels
    own = tuple(
        Expression(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels
    )
    selector: NodeLabelSelector = replace(
        constraint.label_selector,
        match_expressions=(*constraint.label_selector.match_expressions, *own),
    )
    namespace = pod.metadata.namespace
    return lambda other: (
        other.metadata.namespace == namespace and selector.matches(other.metadata.labels)
    )


def _counts(constraint: SpreadConstraint, pod: WorkloadPod, node: Node) -> bool:
    if constraint.node_affinity_policy == _HONOR and not matches_affinity(pod.spec, node):
        return False
    return constraint.node_taints_policy != _HONOR or not has_untolerated_taint(
        pod.spec, node, (NO_SCHEDULE, NO_EXECUTE)
    )


def _queue_order(pod: WorkloadPod) -> tuple[object, ...]:
    return (-(pod.spec.priority or 0), pod.metadata.creation_timestamp or "9", pod.key)


def _explain(number: int, refusals: Counter[str]) -> str:
    shown = sorted(f"{count} {reason}" for reason, count in refusals.items())
    return f"0/{number} nodes are available: {', '.join(shown)}."
