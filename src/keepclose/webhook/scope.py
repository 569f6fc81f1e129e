"""Which Services are in the scope of a webhook, beside the built-in EndpointSlice controller.

A Service is in scope when it requests, by an annotation that the built-in controller does not know,
a mechanism that needs nothing but hints. The field trafficDistribution and the topology mode Auto
are left to the built-in controller. A request that a webhook cannot serve is reported, never served
in part.

The view of the cluster (Services, slices, nodes, and pods where their owners matter) is in memory
and kept up to date by reflectors, so that an answer never waits for a request. Services in scope
are tracked with every event, so that events of other Services cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    SUBSETTING_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.model.workload import Node
from keepclose.reconcile.caches import Caches, NodeFacts
from keepclose.routing.hint_facts import SliceFacts, slice_facts
from keepclose.routing.node_level import EndpointOwner, controller_of
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    annotation_path,
    choose_strategy,
    topology_annotation,
)
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.node_changes import node_change
from keepclose.slices.settings import ClusterNodes, PlannerSettings

if TYPE_CHECKING:
    from keepclose.demand.store import DemandStore

_OUR_ANNOTATIONS: Final = frozenset(
    {TRAFFIC_DISTRIBUTION_ANNOTATION, NODE_TOPOLOGY_ANNOTATION, SUBSETTING_ANNOTATION}
)
_HINT_STRATEGIES: Final = frozenset(
    {
        StrategyName.SAME_ZONE,
        StrategyName.SAME_NODE,
        StrategyName.CUSTOM,
        StrategyName.NODE_LEVEL,
    }
)


class HintScope(msgspec.Struct, frozen=True):
    """Whether a webhook sets the hints of a Service.

    `is_requested` means that an annotation requests it, `is_ours` that the webhook sets the hints,
    and `obstacle` is the reason why a request is not served, "" when it is.
    """

    strategy: Strategy
    is_requested: bool
    is_ours: bool
    obstacle: str = ""


def decide_scope(service: Service, settings: PlannerSettings) -> HintScope:
    """Return the scope of a Service; one without a selector is never in scope."""
    strategy = choose_strategy(service, gates=settings.gates, heuristics=settings.heuristics)
    if service.spec.type == "ExternalName" or service.spec.selector is None:
        return HintScope(strategy, is_requested=False, is_ours=False)
    annotations = service.metadata.annotations
    by_distribution = TRAFFIC_DISTRIBUTION_ANNOTATION in annotations
    by_nodes = (
        NODE_TOPOLOGY_ANNOTATION in annotations or topology_annotation(service)[1] == "Node"
    ) and settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY)
    if not (by_distribution or by_nodes or strategy.name is StrategyName.SUBSETTING):
        return HintScope(strategy, is_requested=False, is_ours=False)
    obstacle = _find_obstacle(strategy)
    if obstacle:
        return HintScope(strategy, is_requested=True, is_ours=False, obstacle=obstacle)
    if strategy.name in _HINT_STRATEGIES or by_nodes:
        return HintScope(strategy, is_requested=True, is_ours=True)
    reason = strategy.reasons[-1].message if strategy.reasons else ""
    return HintScope(strategy, is_requested=True, is_ours=False, obstacle=reason)


def without_our_annotations(service: Service) -> Service:
    """Return the Service as the built-in controller sees it, without keepclose's annotations."""
    meta = service.metadata
    kept = {key: value for key, value in meta.annotations.items() if key not in _OUR_ANNOTATIONS}
    return replace(service, metadata=replace(meta, annotations=kept))


def _find_obstacle(strategy: Strategy) -> str:
    match strategy.name:
        case StrategyName.SUBSETTING:
            return (
                f"{strategy.source} needs slices of its own for each zone, which a webhook cannot "
                "create; run the controller with --mode=replace or use "
                f"{annotation_path(TRAFFIC_DISTRIBUTION_ANNOTATION)}"
            )
        case StrategyName.TOPOLOGY_KEYS:
            return f"{strategy.source} governs, and it uses no hints"
        case StrategyName.AUTO:
            return (
                f"{strategy.source} takes precedence, and the built-in EndpointSlice controller "
                "follows it by itself"
            )
        case _:
            return ""


class HintView:
    """The caches of a webhook; the `ClusterView` of `admission.answer_admission`."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
        self.caches = Caches()
        self.demand: DemandStore | None = None
        """The measured demand of Services; None if CPU counts for all."""
        self._nodes = NodeFacts(self.caches.nodes)
        self._facts: dict[NamespacedName, tuple[EndpointSlice, SliceFacts]] = {}
        self.caches.nodes.subscribe(self._on_node)
        self.caches.slices.subscribe(self._on_slice)
        self.caches.services.subscribe(self._on_service)

    def reflectors(self, client: Client, *, clock: Clock) -> tuple[Reflector[Any], ...]:
        """Return the reflectors that keep the view up to date once they run."""
        caches = self.caches
        reflectors: list[Reflector[Any]] = [
            Reflector(client, NODES, caches.nodes, clock=clock),
            Reflector(client, SERVICES, caches.services, clock=clock),
            Reflector(client, ENDPOINT_SLICES, caches.slices, clock=clock),
        ]
        # Only the detection of node-level Services needs the owners of pods.
        if self.settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY):
            reflectors.append(Reflector(client, PODS, caches.pods, clock=clock))
        return tuple(reflectors)

    @property
    def cluster(self) -> ClusterNodes:
        """The nodes; the same object until a relevant change."""
        return self._nodes.cluster

    def shares(self, service: Service, strategy: Strategy) -> Shares | None:
        """Return the shares by measured demand; None where it does not count."""
        if self.demand is None or strategy.name is not StrategyName.CUSTOM:
            return None
        return self.demand.shares_of(service)

    def service(self, key: NamespacedName) -> Service | None:
        """Return a Service, None when it is not in the cache."""
        return self.caches.services.get(key)

    def slices(self, key: NamespacedName) -> list[EndpointSlice]:
        """Return the slices of a Service that the built-in controller manages."""
        return self.caches.slices_of(key, self.settings.managed_by)

    def owners(self, slices: Sequence[EndpointSlice]) -> list[EndpointOwner]:
        """Return node and owner of the ready endpoints, each pair once, in a fixed order."""
        pairs: dict[tuple[str, OwnerReference | None], None] = {}
        for endpoint_slice in slices:
            for endpoint in endpoint_slice.endpoints:
                if not endpoint.is_ready:
                    continue
                target = endpoint.target_ref
                pod = None
                if target is not None and target.kind == "Pod":
                    namespace = target.namespace or endpoint_slice.metadata.namespace
                    pod = self.caches.pods.get(NamespacedName(namespace, target.name))
                owner = None if pod is None else controller_of(pod.metadata.owner_references)
                pairs[endpoint.node_name or "", owner] = None
        return sorted(pairs, key=lambda pair: (pair[0], "" if pair[1] is None else pair[1].uid))

    def facts(self, endpoint_slice: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice; those of a cached slice are computed once."""
        key = endpoint_slice.metadata.key
        entry = self._facts.get(key)
        if entry is not None and entry[0] is endpoint_slice:
            return entry[1]
        facts = slice_facts(endpoint_slice)
        if self.caches.slices.get(key) is endpoint_slice:
            self._facts[key] = (endpoint_slice, facts)
        return facts

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if not node_change(old, new).is_nothing:
            self._nodes.invalidate()

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        """Stop tracking the demand of a Service that no heuristic hints any more."""
        service = old if new is None else new
        if self.demand is None or service is None:
            return
        scope = None if new is None else decide_scope(new, self.settings)
        if scope is None or not scope.is_ours or scope.strategy.name is not StrategyName.CUSTOM:
            self.demand.forget(service.key)

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if new is None and old is not None:
            self._facts.pop(old.metadata.key, None)


class TrackedServices:
    """The Services that request hints of a webhook, by what becomes of the request."""

    def __init__(self) -> None:
        self.requesting: set[NamespacedName] = set()
        """Services that request hints, served or not."""
        self.ours: set[NamespacedName] = set()
        """Services whose hints the webhook sets."""
        self.leaving: set[NamespacedName] = set()
        """Services that left the scope, whose hints return to the built-in controller."""

    def update(self, key: NamespacedName, scope: HintScope | None, *, is_leading: bool) -> bool:
        """Record the scope of a Service, None for a deleted one; return whether it is affected.

        Only a leader removes hints: before it led, the built-in controller had done so.
        """
        is_affected = (
            key in self.requesting
            or key in self.leaving
            or (scope is not None and scope.is_requested)
        )
        if scope is not None and scope.is_requested:
            self.requesting.add(key)
        else:
            self.requesting.discard(key)
        if scope is None:
            self.ours.discard(key)
            self.leaving.discard(key)
        elif scope.is_ours:
            self.ours.add(key)
            self.leaving.discard(key)
        elif key in self.ours:
            self.ours.discard(key)
            if is_leading:
                self.leaving.add(key)
        return is_affected
