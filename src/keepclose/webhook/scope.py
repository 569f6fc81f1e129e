"""Which Services a webhook keeps the hints of, beside the built-in EndpointSlice controller.

Only a Service that asks by an annotation which the built-in controller does not know is ours, and
only for a mechanism that needs nothing but hints. Whatever the built-in controller understands
itself, the field trafficDistribution and the topology mode Auto, is left to it. What was asked for
and cannot be had in this way is said, never done by halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

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
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.node_changes import NodeFacts, node_change
from keepclose.routing.hint_facts import SliceFacts, slice_facts
from keepclose.routing.node_level import EndpointOwner, controller_of
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    annotation_path,
    choose_strategy,
    topology_annotation,
)
from keepclose.slices.settings import Cluster, Settings

_OUR_ANNOTATIONS: Final = frozenset(
    {TRAFFIC_DISTRIBUTION_ANNOTATION, NODE_TOPOLOGY_ANNOTATION, SUBSETTING_ANNOTATION}
)
_BY_HINTS: Final = frozenset(
    {
        StrategyName.SAME_ZONE,
        StrategyName.SAME_NODE,
        StrategyName.CUSTOM,
        StrategyName.NODE_LEVEL,
    }
)


class Claim(msgspec.Struct, frozen=True):
    """What a webhook makes of a Service.

    `asks` says whether it wants anything of us at all, `is_ours` whether its hints are ours to
    set, and `obstacle` why a wish is not followed, "" when it is.
    """

    strategy: Strategy
    asks: bool
    is_ours: bool
    obstacle: str = ""


def claim_service(service: Service, settings: Settings) -> Claim:
    """Return whether the hints of a Service are ours; one without a selector never is."""
    strategy = choose_strategy(service, gates=settings.gates, heuristics=settings.heuristics)
    if service.spec.type == "ExternalName" or service.spec.selector is None:
        return Claim(strategy, asks=False, is_ours=False)
    annotations = service.metadata.annotations
    by_distribution = TRAFFIC_DISTRIBUTION_ANNOTATION in annotations
    by_nodes = (
        NODE_TOPOLOGY_ANNOTATION in annotations or topology_annotation(service)[1] == "Node"
    ) and settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY)
    if not (by_distribution or by_nodes or strategy.name is StrategyName.SUBSETTING):
        return Claim(strategy, asks=False, is_ours=False)
    obstacle = _find_obstacle(strategy)
    if obstacle:
        return Claim(strategy, asks=True, is_ours=False, obstacle=obstacle)
    if strategy.name in _BY_HINTS or by_nodes:
        return Claim(strategy, asks=True, is_ours=True)
    reason = strategy.reasons[-1].message if strategy.reasons else ""
    return Claim(strategy, asks=True, is_ours=False, obstacle=reason)


def without_wishes(service: Service) -> Service:
    """Return the Service as the built-in controller reads it: without the annotations of ours."""
    meta = service.metadata
    kept = {key: value for key, value in meta.annotations.items() if key not in _OUR_ANNOTATIONS}
    return replace(service, metadata=replace(meta, annotations=kept))


def _find_obstacle(strategy: Strategy) -> str:
    match strategy.name:
        case StrategyName.SUBSETTING:
            return (
                f"{strategy.source} needs slices of its own for each zone, which a webhook cannot "
                "make; run the controller with --mode=replace or use "
                f"{annotation_path(TRAFFIC_DISTRIBUTION_ANNOTATION)}"
            )
        case StrategyName.TOPOLOGY_KEYS:
            return f"{strategy.source} governs, and it does without hints"
        case StrategyName.AUTO:
            return (
                f"{strategy.source} takes precedence, and the built-in EndpointSlice controller "
                "follows it by itself"
            )
        case _:
            return ""


class HintView:
    """The caches of a webhook; a `View` for `admission.answer`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.caches = Caches()
        self._nodes = NodeFacts(self.caches.nodes)
        self._facts: dict[NamespacedName, tuple[EndpointSlice, SliceFacts]] = {}
        self.caches.nodes.subscribe(self._hear_node)
        self.caches.slices.subscribe(self._hear_slice)

    def reflectors(self, client: Client, *, clock: Clock) -> tuple[Reflector[Any], ...]:
        """Return the reflectors that keep the view up to date once they run."""
        caches = self.caches
        found: list[Reflector[Any]] = [
            Reflector(client, NODES, caches.nodes, clock=clock),
            Reflector(client, SERVICES, caches.services, clock=clock),
            Reflector(client, ENDPOINT_SLICES, caches.slices, clock=clock),
        ]
        # Only the detection of node-level Services asks whose a pod is.
        if self.settings.gates.on(Gate.NODE_LEVEL_TOPOLOGY):
            found.append(Reflector(client, PODS, caches.pods, clock=clock))
        return tuple(found)

    @property
    def cluster(self) -> Cluster:
        """The nodes; the same object as long as nothing that counts has changed."""
        return self._nodes.cluster

    def service(self, key: NamespacedName) -> Service | None:
        """Return a Service, None when it is not known."""
        return self.caches.services.get(key)

    def slices(self, key: NamespacedName) -> list[EndpointSlice]:
        """Return the slices of a Service that the built-in controller manages."""
        return self.caches.slices_of(key, self.settings.managed_by)

    def owners(self, slices: Sequence[EndpointSlice]) -> list[EndpointOwner]:
        """Return node and owner of the ready endpoints, each pair once, in a fixed order."""
        found: dict[tuple[str, OwnerReference | None], None] = {}
        for one in slices:
            for endpoint in one.endpoints:
                if not endpoint.is_ready:
                    continue
                target = endpoint.target_ref
                pod = None
                if target is not None and target.kind == "Pod":
                    namespace = target.namespace or one.metadata.namespace
                    pod = self.caches.pods.get(NamespacedName(namespace, target.name))
                owner = None if pod is None else controller_of(pod.metadata.owner_references)
                found[endpoint.node_name or "", owner] = None
        return sorted(found, key=lambda pair: (pair[0], "" if pair[1] is None else pair[1].uid))

    def facts(self, one: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice; those of a cached one are worked out once."""
        key = one.metadata.key
        known = self._facts.get(key)
        if known is not None and known[0] is one:
            return known[1]
        facts = slice_facts(one)
        if self.caches.slices.get(key) is one:
            self._facts[key] = (one, facts)
        return facts

    def _hear_node(self, old: Node | None, new: Node | None) -> None:
        if not node_change(old, new).is_nothing:
            self._nodes.invalidate()

    def _hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if new is None and old is not None:
            self._facts.pop(old.metadata.key, None)


class Clientele:
    """Sets of Services."""

    def __init__(self) -> None:
        self.asking: set[NamespacedName] = set()
        """Those with a wish, whether it is followed or not."""
        self.ours: set[NamespacedName] = set()
        """Those whose hints we set."""
        self.leaving: set[NamespacedName] = set()
        """Those that were ours, and whose hints are to be the built-in controller's again."""

    def file(self, key: NamespacedName, claim: Claim | None, *, is_leading: bool) -> bool:
        """Take a new version of a Service, None for one that is gone; return whether it matters.

        Only a leader takes hints back: for others the built-in controller has long done it.
        """
        is_concerned = (
            key in self.asking or key in self.leaving or (claim is not None and claim.asks)
        )
        if claim is not None and claim.asks:
            self.asking.add(key)
        else:
            self.asking.discard(key)
        if claim is None:
            self.ours.discard(key)
            self.leaving.discard(key)
        elif claim.is_ours:
            self.ours.add(key)
            self.leaving.discard(key)
        elif key in self.ours:
            self.ours.discard(key)
            if is_leading:
                self.leaving.add(key)
        return is_concerned
