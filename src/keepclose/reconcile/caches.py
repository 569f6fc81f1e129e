"""The caches of a controller: Services, pods, nodes, slices, Endpoints and acknowledgements.

Each kind has one reflector and one cache with the indexes that syncs need, so that no lookup
iterates over all objects.

Which Services a change of a node affects. Kubernetes' own controller queues no Service when a zone
label changes, and ignores allocatable CPU. Here both count: a node that is added, removed or
changes its zone affects the Services with pods on it; a node that changes the CPU shares of zones
affects the Services whose mechanism uses shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keepclose.kube.cache import Cache, Index
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import CONFIG_MAPS, ENDPOINT_SLICES, ENDPOINTS, NODES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.acknowledgements import ACKNOWLEDGEMENT_NAMESPACE, ACKNOWLEDGEMENT_SELECTOR
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.endpointslice.types import Endpoints, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL
from keepclose.model.workload import Node, Pod
from keepclose.slices.settings import ClusterNodes

_LABEL, _NAMESPACE, _NODE, _SERVICE = "label", "namespace", "node", "service"


class Caches:
    """The caches of one controller, and the reflectors that fill them."""

    def __init__(self) -> None:
        self.services: Cache[Service] = Cache()
        self.pods: Cache[Pod] = Cache(
            (
                Index(_LABEL, _labels_of),
                Index(_NAMESPACE, lambda pod: (pod.metadata.namespace,)),
                Index(_NODE, lambda pod: (pod.spec.node_name,)),
            )
        )
        self.nodes: Cache[Node] = Cache()
        self.slices: Cache[EndpointSlice] = Cache(
            (Index(_SERVICE, lambda endpoint_slice: (endpoint_slice.service_key,)),)
        )
        self.endpoints: Cache[Endpoints] = Cache()
        self.acknowledgements: Cache[ConfigMap] = Cache()

    def reflectors(
        self, client: Client, *, clock: Clock, mirrors: bool, acknowledgements: bool = False
    ) -> tuple[Reflector[Any], ...]:
        """Return the reflectors that keep the caches up to date once they run."""
        reflectors: list[Reflector[Any]] = [
            Reflector(client, NODES, self.nodes, clock=clock),
            Reflector(client, SERVICES, self.services, clock=clock),
            Reflector(client, PODS, self.pods, clock=clock),
            Reflector(client, ENDPOINT_SLICES, self.slices, clock=clock),
        ]
        if mirrors:
            reflectors.append(Reflector(client, ENDPOINTS, self.endpoints, clock=clock))
        if acknowledgements:
            reflectors.append(
                Reflector(
                    client,
                    CONFIG_MAPS,
                    self.acknowledgements,
                    clock=clock,
                    namespace=ACKNOWLEDGEMENT_NAMESPACE,
                    label_selector=ACKNOWLEDGEMENT_SELECTOR,
                )
            )
        return tuple(reflectors)

    def selected(self, service: Service) -> list[Pod]:
        """Return the pods that the Service selects; none when it has no selector."""
        selector = service.spec.selector
        namespace = service.metadata.namespace
        if selector is None:
            return []
        if not selector:
            return self.pods.by_index(_NAMESPACE, namespace)
        buckets = [
            self.pods.by_index(_LABEL, (namespace, key, value)) for key, value in selector.items()
        ]
        return [pod for pod in min(buckets, key=len) if matches(selector, pod.metadata.labels)]

    def pods_on(self, node_name: str) -> list[Pod]:
        """Return the pods that run on a node."""
        return self.pods.by_index(_NODE, node_name)

    def slices_of(self, service: NamespacedName, managed_by: str) -> list[EndpointSlice]:
        """Return the slices of a Service that the controller manages, without terminating ones."""
        return [
            endpoint_slice
            for endpoint_slice in self.slices.by_index(_SERVICE, service)
            if (meta := endpoint_slice.metadata).deletion_timestamp is None
            and meta.labels.get(MANAGED_BY_LABEL, "") == managed_by
        ]


def _labels_of(pod: Pod) -> Iterable[tuple[str, str, str]]:
    meta = pod.metadata
    return [(meta.namespace, key, value) for key, value in meta.labels.items()]


class NodeFacts:
    """The Cluster of the cached nodes, computed again only after a relevant change."""

    def __init__(self, nodes: Cache[Node]) -> None:
        self._nodes = nodes
        self._cluster: ClusterNodes | None = None
        self._weighted_zones: frozenset[str] = frozenset()

    def set_weighted_zones(self, zones: frozenset[str]) -> None:
        """Set the zones in which all nodes follow weights."""
        self._weighted_zones = zones
        self._cluster = None

    def invalidate(self) -> None:
        """Compute the cluster again on the next access."""
        self._cluster = None

    @property
    def cluster(self) -> ClusterNodes:
        """The present cluster; the same object until a relevant change."""
        if self._cluster is None:
            self._cluster = ClusterNodes.of(self._nodes.all(), weighted_zones=self._weighted_zones)
        return self._cluster
