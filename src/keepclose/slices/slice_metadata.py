"""Metadata of slices: address types, labels, owner, name prefix, and the placeholder slice.

Follows the EndpointSlice controller. The address types of a Service are the families that the API
recorded, else the family of the cluster IP, else both. Each type is reconciled on its own, so a
dual-stack Service always has at least two slices.

A slice carries the labels of its Service and three of the controller's own, which a Service can
never set. Two more keys are reserved: the zone or region that a slice is labelled for (KEP-2004) is
decided per slice, so a slice keeps its own.
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

_SUBSET_LABELS = (FOR_ZONE_LABEL, FOR_REGION_LABEL)
_RESERVED_LABELS = frozenset(
    {SERVICE_NAME_LABEL, MANAGED_BY_LABEL, HEADLESS_LABEL, *_SUBSET_LABELS}
)
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
    """Return the slices whose address type the Service no longer has, sorted by name."""
    stray = [
        endpoint_slice for endpoint_slice in slices if endpoint_slice.address_type not in types
    ]
    return tuple(sorted(stray, key=lambda endpoint_slice: endpoint_slice.metadata.name))


def slice_labels(
    service: Service,
    existing_labels: Mapping[str, str],
    *,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> tuple[dict[str, str], bool]:
    """Return the labels that a slice should have, and whether they alone require a write.

    Only a difference in labels that are not reserved requires one. NB: a Service that becomes
    headless does not.
    """
    labels = {
        key: value for key, value in service.metadata.labels.items() if key not in _RESERVED_LABELS
    }
    present = {key: value for key, value in existing_labels.items() if key not in _RESERVED_LABELS}
    changed = labels != present
    labels[SERVICE_NAME_LABEL] = service.metadata.name
    labels[MANAGED_BY_LABEL] = managed_by
    if service.spec.cluster_ip in ("", "None"):
        labels[HEADLESS_LABEL] = ""
    for key in _SUBSET_LABELS:
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
    """Return a slice to create, owned by the Service; the API server generates its name."""
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
    """Return the prefix of slice names: with a dash, unless the name would be invalid."""
    prefix = f"{name}-"
    return name if dns1123_subdomain(without_prefix_dash(prefix)) else prefix


def placeholder(
    service: Service, *, address_type: str, managed_by: str = ENDPOINTSLICE_CONTROLLER
) -> EndpointSlice:
    """Return the slice without ports and endpoints that marks a Service without pods."""
    return new_slice(service, address_type=address_type, managed_by=managed_by)


def is_placeholder_equal(left: EndpointSlice, right: EndpointSlice) -> bool:
    """Return whether two slices are the same placeholder.

    Names, annotations and owners are ignored. NB: as in Kubernetes, an absent label equals an empty
    one.
    """
    return (
        left.metadata.namespace == right.metadata.namespace
        and left.address_type == right.address_type
        and left.endpoints == right.endpoints
        and left.ports == right.ports
        and _without_empty(left.metadata.labels) == _without_empty(right.metadata.labels)
    )


def is_owned_by(endpoint_slice: EndpointSlice, service: Service) -> bool:
    """Return whether this Service owns the slice, and not an older Service of the same name."""
    uid = service.metadata.uid
    return any(
        owner.uid == uid and owner.kind == "Service" and owner.api_version == "v1"
        for owner in endpoint_slice.metadata.owner_references
    )


def _without_empty(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if value}
