"""Caches of the API server's objects: Services, EndpointSlices, the own Node, ServiceCIDRs.

As in kube-proxy, watches select only what a proxy needs: the server leaves out headless Services
and Services of another proxy, and sends only the own Node. The proxy watches all Nodes only if
topologyKeys of a Service refer to labels of other Nodes.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.kube.cache import Cache, Index
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import ApiStruct, NamespacedName, ObjectMeta
from keepclose.model.service.types import Service
from keepclose.model.well_known import HEADLESS_LABEL, PROXY_NAME_LABEL
from keepclose.model.workload import Node

_SERVICE: Final = "service"


class ServiceCidrSpec(ApiStruct, frozen=True):
    """The spec of a ServiceCIDR: ranges of cluster IPs."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(ApiStruct, frozen=True, omit_defaults=False):
    """A ServiceCIDR: ranges from which the API server allocates cluster IPs."""

    api_version: str = "networking.k8s.io/v1"
    kind: str = "ServiceCIDR"
    metadata: ObjectMeta = ObjectMeta()
    spec: ServiceCidrSpec = ServiceCidrSpec()


SERVICE_CIDRS: Final = Kind(
    "networking.k8s.io", "v1", "servicecidrs", "ServiceCIDR", False, ServiceCidr
)


class ProxyCaches:
    """The caches of one proxy, and the reflectors that fill them."""

    def __init__(self) -> None:
        self.services: Cache[Service] = Cache()
        self.slices: Cache[EndpointSlice] = Cache(
            (Index(_SERVICE, lambda endpoint_slice: (endpoint_slice.service_key,)),)
        )
        self.nodes: Cache[Node] = Cache()
        self.all_nodes: Cache[Node] = Cache()
        """All Nodes of the cluster, if `all_nodes_reflector` runs."""
        self.service_cidrs: Cache[ServiceCidr] = Cache()
        self.needed: tuple[Reflector[Any], ...] = ()
        """The reflectors that must have listed before the proxy writes rules."""
        self.reflectors: tuple[Reflector[Any], ...] = ()
        self.all_nodes_reflector: Reflector[Node] | None = None
        """Runs only if topologyKeys refer to labels of other nodes."""

    def reflect(self, client: Client, *, node_name: str, clock: Clock) -> None:
        """Create the reflectors that keep the caches up to date while they run."""
        services = Reflector(
            client,
            SERVICES,
            self.services,
            clock=clock,
            label_selector=f"!{PROXY_NAME_LABEL}",
            field_selector="spec.clusterIP!=None",
        )
        slices = Reflector(
            client,
            ENDPOINT_SLICES,
            self.slices,
            clock=clock,
            label_selector=f"!{HEADLESS_LABEL}",
        )
        node = Reflector(
            client, NODES, self.nodes, clock=clock, field_selector=f"metadata.name={node_name}"
        )
        # NB: an old cluster has no ServiceCIDRs, and a proxy may not be allowed to list them; it
        # works without them.
        cidrs = Reflector(client, SERVICE_CIDRS, self.service_cidrs, clock=clock)
        self.all_nodes_reflector = Reflector(client, NODES, self.all_nodes, clock=clock)
        self.needed = (services, slices, node)
        self.reflectors = (*self.needed, cidrs)

    def slices_of(self, service: NamespacedName) -> list[EndpointSlice]:
        """Return the slices of a Service, of all families."""
        return self.slices.by_index(_SERVICE, service)

    def cluster_ranges(self) -> tuple[str, ...]:
        """Return all ranges of cluster IPs, in order."""
        service_cidrs = self.service_cidrs.all()
        return tuple(sorted({cidr for entry in service_cidrs for cidr in entry.spec.cidrs}))
