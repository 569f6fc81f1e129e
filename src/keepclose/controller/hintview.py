"""What a webhook knows of the cluster: Services, slices and nodes, and pods where owners matter.

Everything is in memory and kept up by reflectors, so that an answer never waits for a request.
Facts of slices are kept as long as the slice is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.node_changes import NodeView, node_change
from keepclose.routing.hint_facts import SliceFacts, slice_facts
from keepclose.routing.node_level import EndpointOwner, controller_of
from keepclose.slices.settings import Cluster, Settings


class HintView:
    """The caches of a webhook; a `View` for `admission.answer`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.caches = Caches()
        self._nodes = NodeView(self.caches.nodes)
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
