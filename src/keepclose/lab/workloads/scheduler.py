"""Which node each waiting pod gets, or in the scheduler's words why none will have it.

Nodes that may not have a pod fall away first. Of the others, the one wins that the pod's own wishes
favour, then the one whose zone and then itself has the fewest pods of the same controller, then the
fewest pods at all, and last the one whose name comes first: the same input gives the same places.
No pod is evicted to make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder, format_event_time
from keepclose.kube.requests import Kind, PatchType
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.constraints import (
    NO_EXECUTE,
    NO_SCHEDULE,
    Expression,
    NodeLabelSelector,
    SpreadConstraint,
)
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.node_fit import (
    dislikes,
    has_untolerated_taint,
    likes,
    matches_affinity,
    node_refusal,
    pod_requests,
    port_refusal,
    resource_refusals,
)
from keepclose.lab.workloads.pods import WORKLOAD_PODS, WorkloadPod
from keepclose.model.meta import ObjectReference
from keepclose.model.workload import Node

UNEVEN: Final = "node(s) didn't match pod topology spread constraints"
NO_DOMAIN: Final = f"{UNEVEN} (missing required label)"
DO_NOT_SCHEDULE: Final = "DoNotSchedule"
_HONOR: Final = "Honor"

PodsByNode = Mapping[str, Sequence[WorkloadPod]]
_NO_NODES: Final = "no nodes available to schedule pods"
UNSCHEDULABLE: Final = "Unschedulable"
_SCHEDULED: Final = "PodScheduled"


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
    selector: NodeLabelSelector = replace(
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


class NodePlacement(NamedTuple):
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
) -> list[NodePlacement]:
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

    def place(self, pod: WorkloadPod) -> NodePlacement:
        """Choose a node and put the pod there."""
        if not self._nodes:
            return NodePlacement(pod, "", _NO_NODES)
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
            return NodePlacement(pod, "", _explain(len(self._nodes), refusals))
        placement = NodePlacement(pod, self._best(pod, fitting, wished).name)
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


class Binder:
    """Finds nodes for waiting pods."""

    def __init__(
        self,
        client: Client,
        caches: WorkloadCaches,
        *,
        expectations: Expectations,
        clock: Clock,
        recorder: EventRecorder,
    ) -> None:
        self._client, self._caches = client, caches
        self._expectations = expectations
        self._clock, self._recorder = clock, recorder
        self._bound: dict[str, WorkloadPod] = {}

    async def sync(self) -> None:
        """Look at all waiting pods once."""
        waiting = self._caches.waiting_pods()
        there = {pod.uid for pod in waiting}
        self._bound = {uid: pod for uid, pod in self._bound.items() if uid in there}
        places = place_pods(
            [pod for pod in waiting if pod.uid not in self._bound],
            nodes=self._caches.nodes.all(),
            pods=[
                *self._caches.pods.all(),
                *self._expectations.assumed(),
                *self._bound.values(),
            ],
        )
        for place in places:
            if place.node:
                await self._bind(place)
            else:
                await self._explain(place)

    async def _bind(self, place: NodePlacement) -> None:
        meta = place.pod.metadata
        # NB: a kind whose name holds the path to one pod: this is how subresources are created.
        kind: Kind[dict[str, Any]] = Kind(
            "", "v1", f"pods/{meta.name}/binding", "Binding", True, dict
        )
        body = {
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": place.node},
        }
        try:
            await self._client.create(kind, body, namespace=meta.namespace)
        except (NotFound, Conflict):
            return
        self._bound[meta.uid] = place.placed
        key = place.pod.key
        self._tell(place.pod, "Normal", "Scheduled", f"Successfully assigned {key} to {place.node}")

    async def _explain(self, place: NodePlacement) -> None:
        """Write why a pod waits, if that is news."""
        pod, meta = place.pod, place.pod.metadata
        known = pod.condition(_SCHEDULED)
        if known is not None and (known.reason, known.message) == (UNSCHEDULABLE, place.reason):
            return
        condition = {
            "type": _SCHEDULED,
            "status": "False",
            "reason": UNSCHEDULABLE,
            "message": place.reason,
            "lastTransitionTime": (known and known.last_transition_time)
            or format_event_time(self._clock.now()),
        }
        try:
            await self._client.patch(
                WORKLOAD_PODS,
                meta.name,
                {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}},
                namespace=meta.namespace,
                type=PatchType.STRATEGIC,
                subresource="status",
            )
        except (NotFound, Conflict):
            return
        self._tell(pod, "Warning", "FailedScheduling", place.reason)

    def _tell(self, pod: WorkloadPod, severity: str, reason: str, message: str) -> None:
        meta = pod.metadata
        reference = ObjectReference(
            kind="Pod",
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            api_version="v1",
            resource_version=meta.resource_version,
        )
        self._recorder.record(reference, severity, reason, message)
