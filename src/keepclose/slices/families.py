"""Which address types a Service has slices for.

Follows the EndpointSlice controller: the families that the API recorded, else the family of the
cluster IP, else both. Each type is reconciled on its own, so that a dual-stack Service always has
at least two slices.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service


def address_types(service: Service) -> tuple[str, ...]:
    """Return the address types of the Service's slices, the primary one first; never empty."""
    recorded = tuple(
        family for family in dict.fromkeys(service.spec.ip_families) if family in (IPV4, IPV6)
    )
    if recorded:
        return recorded
    cluster_ip = service.spec.cluster_ip
    if cluster_ip in ("", "None"):
        return (IPV4, IPV6)
    return (IPV6 if family_of(cluster_ip) == IPV6 else IPV4,)


def slices_of_other_types(
    slices: Iterable[EndpointSlice], types: tuple[str, ...]
) -> tuple[EndpointSlice, ...]:
    """Return the slices to delete because the Service no longer has their type, by name."""
    stray = [piece for piece in slices if piece.address_type not in types]
    return tuple(sorted(stray, key=lambda piece: piece.metadata.name))
