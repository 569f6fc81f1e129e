"""Metadata of slices: labels, owner, name prefix, and the placeholder of a Service without pods.

Follows the EndpointSlice controller. A slice carries the labels of its Service and three of the
controller's own, which a Service can never set. Two more keys are kept from Services here: the zone
or region for which a group of slices is meant (KEP-2004) is decided per slice, so a slice keeps its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.meta import ObjectMeta, controller_reference
from keepclose.model.metadata_validation import dns1123_subdomain, without_prefix_dash
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    ENDPOINTSLICE_CONTROLLER,
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    HEADLESS_LABEL,
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
)

_FOR_PLACES = (FOR_ZONE_LABEL, FOR_REGION_LABEL)
_RESERVED = frozenset({SERVICE_NAME_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL, *_FOR_PLACES})
_NO_LABELS: Mapping[str, str] = {}


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


def slice_labels(
    service: Service,
    existing_labels: Mapping[str, str],
    *,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> tuple[dict[str, str], bool]:
    """Return the labels that a slice should have, and whether they alone call for a write.

    Only labels that are not reserved call for one: those that the Service has and the slice lacks,
    or that others put on the slice. NB: a Service that becomes headless does not.
    """
    labels = {key: value for key, value in service.metadata.labels.items() if key not in _RESERVED}
    present = {key: value for key, value in existing_labels.items() if key not in _RESERVED}
    changed = labels != present
    labels[SERVICE_NAME_LABEL] = service.metadata.name
    labels[MANAGED_BY_LABEL] = managed_by
    if service.spec.cluster_ip in ("", "None"):
        labels[HEADLESS_LABEL] = ""
    for key in _FOR_PLACES:
        if place := existing_labels.get(key):
            labels[key] = place
    return labels, changed


def new_slice(
    service: Service,
    *,
    address_type: str,
    ports: tuple[EndpointPort, ...] = (),
    endpoints: tuple[Endpoint, ...] = (),
    labels_extra: Mapping[str, str] = _NO_LABELS,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> EndpointSlice:
    """Return a slice to create: owned by the Service, its name left to the API server."""
    labels, _ = slice_labels(service, _NO_LABELS, managed_by=managed_by)
    labels.update(labels_extra)
    meta = service.metadata
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=name_prefix(meta.name),
            namespace=meta.namespace,
            labels=labels,
            owner_references=(controller_reference("Service", meta),),
        ),
        address_type=address_type,
        endpoints=endpoints,
        ports=ports,
    )


def name_prefix(name: str) -> str:
    """Return the prefix of slice names: with a dash, unless that makes no valid name."""
    prefix = f"{name}-"
    return name if dns1123_subdomain(without_prefix_dash(prefix)) else prefix


def placeholder(
    service: Service, *, address_type: str, managed_by: str = ENDPOINTSLICE_CONTROLLER
) -> EndpointSlice:
    """Return the slice without ports and endpoints that says: this Service has no pods."""
    return new_slice(service, address_type=address_type, managed_by=managed_by)


def is_placeholder_equal(one: EndpointSlice, other: EndpointSlice) -> bool:
    """Return whether two slices are the same placeholder.

    Names, annotations and owners do not count. NB: as in Kubernetes, a label that is absent counts
    as one that is empty.
    """
    return (
        one.metadata.namespace == other.metadata.namespace
        and one.address_type == other.address_type
        and one.endpoints == other.endpoints
        and one.ports == other.ports
        and _without_empty(one.metadata.labels) == _without_empty(other.metadata.labels)
    )


def is_owned_by(piece: EndpointSlice, service: Service) -> bool:
    """Return whether the slice belongs to this very Service, not to an older one of its name."""
    uid = service.metadata.uid
    return any(
        owner.uid == uid and owner.kind == "Service" and owner.api_version == "v1"
        for owner in piece.metadata.owner_references
    )


def _without_empty(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if value}
