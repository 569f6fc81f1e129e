"""What the API server has, as last seen: Services, their slices, the own Node, ranges of addresses.

Only what a proxy needs is asked for, as kube-proxy asks: headless Services and those of another
proxy are left out by the server, and of all Nodes there is but one, unless topologyKeys of a
Service name labels that only the other Nodes have.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.kube.cache import Cache, Index
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Frozen, NamespacedName, ObjectMeta
from keepclose.model.service.types import Service
from keepclose.model.well_known import HEADLESS_LABEL, PROXY_NAME_LABEL
from keepclose.model.workload import Node

_SERVICE: Final = "service"


class ServiceCidrSpec(Frozen, frozen=True):
    """Ranges of cluster IPs."""

    cidrs: tuple[str, ...] = ()


class ServiceCidr(Frozen, frozen=True, omit_defaults=False):
    """Ranges from which Services get their addresses."""

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
            (Index(_SERVICE, lambda one: (one.service_key,)),)
        )
        self.nodes: Cache[Node] = Cache()
        self.all_nodes: Cache[Node] = Cache()
        """All Nodes of the cluster, once the reflector for them runs."""
        self.service_cidrs: Cache[ServiceCidr] = Cache()
        self.needed: tuple[Reflector[Any], ...] = ()
        """Those without which nothing is written."""
        self.reflectors: tuple[Reflector[Any], ...] = ()
        self.all_nodes_reflector: Reflector[Node] | None = None
        """Runs only where topologyKeys ask for labels of other nodes."""

    def reflect(self, client: Client, *, node_name: str, clock: Clock) -> None:
        """Make the reflectors that keep the caches up to date once they run."""
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
        # NB: a cluster may be too old to have these, or not let a proxy see them; it can do
        # without.
        cidrs = Reflector(client, SERVICE_CIDRS, self.service_cidrs, clock=clock)
        self.all_nodes_reflector = Reflector(client, NODES, self.all_nodes, clock=clock)
        self.needed = (services, slices, node)
        self.reflectors = (*self.needed, cidrs)

    def slices_of(self, service: NamespacedName) -> list[EndpointSlice]:
        """Return the slices of a Service, of all families."""
        return self.slices.by_index(_SERVICE, service)

    def cluster_ranges(self) -> tuple[str, ...]:
        """Return all ranges of cluster IPs, in order."""
        return tuple(sorted({cidr for one in self.service_cidrs.all() for cidr in one.spec.cidrs}))
