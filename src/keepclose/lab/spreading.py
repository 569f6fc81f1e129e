"""How evenly pods lie over zones, nodes and any other domain of a node's labels.

A topology spread constraint counts the pods that its selector takes in the pod's namespace, those
on their way out left aside, over the nodes that the pod may use. DoNotSchedule refuses a node whose
domain would hold more than maxSkew pods more than the emptiest; ScheduleAnyway only prefers. The
rules are those of the scheduler's PodTopologySpread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from keepclose.lab.workloads.constraints import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Expression,
    LabelSelector,
    SpreadConstraint,
)
from keepclose.lab.workloads.node_fit import has_untolerated_taint, matches_affinity
from keepclose.lab.workloads.pods import WorkloadPod
from keepclose.model.workload import Node

UNEVEN: Final = "node(s) didn't match pod topology spread constraints"
NO_DOMAIN: Final = f"{UNEVEN} (missing required label)"
DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_HONOR: Final = "Honor"

PodsByNode = Mapping[str, Sequence[WorkloadPod]]


class SpreadRule:
    """One constraint of one pod, with the pods of each domain counted."""

    def __init__(
        self,
        constraint: SpreadConstraint,
        pod: WorkloadPod,
        *,
        nodes: Iterable[Node],
        there: PodsByNode,
        keys: Sequence[str],
    ) -> None:
        """Count; a node without one of the keys is in no domain."""
        self._key = constraint.topology_key
        self._max_skew = constraint.max_skew
        selects = _selection(constraint, pod)
        self._self = int(selects(pod))
        self.counts: dict[str, int] = {}
        for node in nodes:
            labels = node.metadata.labels
            if any(key not in labels for key in keys) or not _counts(constraint, pod, node):
                continue
            found = sum(selects(one) for one in there.get(node.name, ()) if not one.is_terminating)
            domain = labels[self._key]
            self.counts[domain] = self.counts.get(domain, 0) + found
        least = min(self.counts.values(), default=0)
        self._least = 0 if len(self.counts) < (constraint.min_domains or 1) else least

    def refusal(self, node: Node) -> str:
        """Return why the pod may not go to the node, "" when it may."""
        domain = node.metadata.labels.get(self._key)
        if domain is None:
            return NO_DOMAIN
        skew = self.counts.get(domain, 0) + self._self - self._least
        return UNEVEN if skew > self._max_skew else ""

    def crowd(self, node: Node) -> int:
        """Return how many pods the node's domain has over the emptiest; without one, most."""
        domain = node.metadata.labels.get(self._key)
        if domain is None:
            return max(self.counts.values(), default=0) + 1
        return self.counts.get(domain, 0) - self._least


def spread_rules(
    pod: WorkloadPod, *, nodes: Iterable[Node], there: PodsByNode
) -> tuple[list[SpreadRule], list[SpreadRule]]:
    """Return the rules that must hold, and those that are only preferred."""
    nodes = list(nodes)
    binding: list[SpreadRule] = []
    wished: list[SpreadRule] = []
    for hard, rules in ((True, binding), (False, wished)):
        some = [
            one
            for one in pod.spec.topology_spread_constraints
            if (one.when_unsatisfiable == DO_NOT_SCHEDULE) is hard
        ]
        keys = [one.topology_key for one in some]
        rules += [SpreadRule(one, pod, nodes=nodes, there=there, keys=keys) for one in some]
    return binding, wished


def _selection(constraint: SpreadConstraint, pod: WorkloadPod) -> Callable[[WorkloadPod], bool]:
    """Return which pods a constraint counts; without a selector it counts none."""
    if constraint.label_selector is None:
        return lambda _: False
    labels = pod.metadata.labels
    own = tuple(
        Expression(key=key, operator="In", values=(labels[key],))
        for key in constraint.match_label_keys
        if key in labels
    )
    selector: LabelSelector = replace(
        constraint.label_selector,
        match_expressions=(*constraint.label_selector.match_expressions, *own),
    )
    namespace = pod.metadata.namespace
    return lambda one: one.metadata.namespace == namespace and selector.matches(one.metadata.labels)


def _counts(constraint: SpreadConstraint, pod: WorkloadPod, node: Node) -> bool:
    if constraint.node_affinity_policy == _HONOR and not matches_affinity(pod.spec, node):
        return False
    return constraint.node_taints_policy != _HONOR or not has_untolerated_taint(
        pod.spec, node, (NO_SCHEDULE, NO_EXECUTE)
    )
