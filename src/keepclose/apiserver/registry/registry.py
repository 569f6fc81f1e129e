"""The strategy of every kind that the server serves, created once at start.

A kind that is served in two groups has one strategy, because it has one store.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from keepclose.apiserver.registry.allocation_ranges import AddressRange, NodePorts, RangeError
from keepclose.apiserver.registry.core_kinds import (
    ConfigMapStrategy,
    LeaseStrategy,
    NamespaceStrategy,
    NodeStrategy,
    ServiceAccountStrategy,
)
from keepclose.apiserver.registry.endpointslices import EndpointSliceStrategy, EndpointsStrategy
from keepclose.apiserver.registry.events import EventStrategy
from keepclose.apiserver.registry.pods import PodStrategy
from keepclose.apiserver.registry.service_allocation import Ranges
from keepclose.apiserver.registry.services import ServiceCIDRStrategy, ServiceStrategy
from keepclose.apiserver.registry.strategy import KindStrategy, PlainStrategy
from keepclose.apiserver.registry.workloads import (
    DaemonSetStrategy,
    DeploymentStrategy,
    ReplicaSetStrategy,
)
from keepclose.apiserver.resources import BY_KIND, RESOURCES

_PLAIN_KINDS: Final[dict[str, type[PlainStrategy]]] = {
    "Namespace": NamespaceStrategy,
    "Node": NodeStrategy,
    "Pod": PodStrategy,
    "Endpoints": EndpointsStrategy,
    "Event": EventStrategy,
    "ConfigMap": ConfigMapStrategy,
    "ServiceAccount": ServiceAccountStrategy,
    "Deployment": DeploymentStrategy,
    "ReplicaSet": ReplicaSetStrategy,
    "DaemonSet": DaemonSetStrategy,
    "Lease": LeaseStrategy,
    "EndpointSlice": EndpointSliceStrategy,
    "ServiceCIDR": ServiceCIDRStrategy,
}


class AllocationSettings(msgspec.Struct, frozen=True):
    """The ranges from which Services are allocated cluster IPs and node ports."""

    # One or two, of different families; the first one is that of the primary family.
    service_cidrs: tuple[str, ...] = ("10.96.0.0/16",)
    first_node_port: int = 30000
    last_node_port: int = 32767
    # None uses the randomness of the operating system.
    seed: int | None = None


def make_ranges(settings: AllocationSettings) -> Ranges:
    """Return the ranges, all free; raises RangeError for settings that contradict each other."""
    random = None if settings.seed is None else Random(settings.seed)  # noqa: S311 (for tests)
    addresses = tuple(AddressRange(cidr, random=random) for cidr in settings.service_cidrs)
    if not 1 <= len(addresses) <= 2 or len(
        {address_range.family for address_range in addresses}
    ) < len(addresses):
        raise RangeError("there must be one range of cluster IPs, or one of each family")
    ports = NodePorts(settings.first_node_port, settings.last_node_port, random=random)
    return Ranges(addresses, ports)


def strategies(
    settings: AllocationSettings | None = None, *, ranges: Ranges | None = None
) -> dict[str, KindStrategy]:
    """Return the strategy of every store, by its name; see `Resource.store`.

    Services are allocated from `ranges`; without it the ranges are those of the settings.
    """
    by_store: dict[str, KindStrategy] = {
        resource.store: _PLAIN_KINDS[resource.kind](resource)
        for resource in RESOURCES
        if not resource.stored_as and resource.kind in _PLAIN_KINDS
    }
    services = BY_KIND["v1", "Service"]
    by_store[services.store] = ServiceStrategy(
        services, ranges or make_ranges(settings or AllocationSettings())
    )
    return by_store
