"""What the API server does to an EndpointSlice before it checks and stores it, and its warnings.

Sets the generation, drops fields whose feature gate is off unless the stored slice already uses
them, and clears the deprecated topology (KEP-2433, KEP-3015; node hints also serve node-level
topology). It never refuses a slice: that is validation. Slices may be updated without a
resourceVersion, but an update never creates one.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.model.addresses import ip_warnings
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.endpointslice.validation import FQDN, same_endpoints
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata_validation import dns1123_subdomain
from keepclose.model.well_known import (
    ENDPOINTSLICE_CONTROLLER,
    HOSTNAME_LABEL,
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
)

ALLOWS_UNCONDITIONAL_UPDATE: Final = True
ALLOWS_CREATE_ON_UPDATE: Final = False
V1BETA1: Final = "discovery.k8s.io/v1beta1"


def prepare_slice_for_create(
    endpoint_slice: EndpointSlice, *, gates: FeatureGates
) -> EndpointSlice:
    """Return the slice as it is to be validated and stored for the first time."""
    kept = drop_disabled_slice_fields(endpoint_slice, None, gates=gates)
    cleared = drop_deprecated_topology(kept, None)
    return _with_generation(cleared, 1)


def prepare_slice_for_update(
    new: EndpointSlice, old: EndpointSlice, *, gates: FeatureGates
) -> EndpointSlice:
    """Return the new slice as it is to be validated and stored in place of the old one.

    The generation grows by one when labels or anything outside the metadata changed. NB: that is
    judged by what the client sent, before fields are dropped.
    """
    generation = old.metadata.generation + (1 if _differs(new, old) else 0)
    kept = drop_disabled_slice_fields(new, old, gates=gates)
    cleared = drop_deprecated_topology(kept, old)
    return _with_generation(cleared, generation)


def drop_disabled_slice_fields(
    new: EndpointSlice, old: EndpointSlice | None, *, gates: FeatureGates
) -> EndpointSlice:
    """Return the slice without hints whose gates are off.

    What the old slice already uses is kept, so that switching a gate off breaks no stored slice.
    Dropping all hints takes precedence over dropping node hints, which leaves the object itself.
    """
    drop_all = not gates.on(Gate.TOPOLOGY_AWARE_HINTS)
    drop_nodes = not (
        gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION) or gates.on(Gate.NODE_LEVEL_TOPOLOGY)
    )
    for endpoint in () if old is None else old.endpoints:
        if endpoint.hints is not None:
            drop_all = False
            if endpoint.hints.for_nodes:
                drop_nodes = False
                break
    if not drop_all and not drop_nodes:
        return new
    return replace(
        new, endpoints=tuple(_without_hints(one, drop_all=drop_all) for one in new.endpoints)
    )


def drop_deprecated_topology(new: EndpointSlice, old: EndpointSlice | None) -> EndpointSlice:
    """Return the slice without deprecated topology, as writes by way of v1 leave it.

    Nothing changes while the endpoints are the same as the old ones, nor for v1beta1. A missing
    node name is taken from the topology when the old slice's topology named that node too.
    """
    if new.api_version == V1BETA1:
        return new
    if old is not None and same_endpoints(new.endpoints, old.endpoints):
        return new
    if all(endpoint.deprecated_topology is None for endpoint in new.endpoints):
        return new
    known = deprecated_node_names(old)
    return replace(
        new, endpoints=tuple(_without_topology(endpoint, known) for endpoint in new.endpoints)
    )


def deprecated_node_names(endpoint_slice: EndpointSlice | None) -> frozenset[str]:
    """Return the node names that stand in the slice's deprecated topology."""
    if endpoint_slice is None:
        return frozenset()
    names = (
        (endpoint.deprecated_topology or {}).get(HOSTNAME_LABEL, "")
        for endpoint in endpoint_slice.endpoints
    )
    return frozenset(name for name in names if name)


def warnings_on_create(endpoint_slice: EndpointSlice) -> list[str]:
    """Return what to tell the client who created the slice."""
    warnings: list[str] = []
    if endpoint_slice.address_type == FQDN:
        # NB: slices have no spec, but this is the path that clients are shown.
        warnings.append("spec.addressType: FQDN endpoints are deprecated")
    return warnings + _bad_ip_warnings(endpoint_slice)


def warnings_on_update(endpoint_slice: EndpointSlice) -> list[str]:
    """Return what to tell the client who changed the slice."""
    return _bad_ip_warnings(endpoint_slice)


def _bad_ip_warnings(endpoint_slice: EndpointSlice) -> list[str]:
    # The two built-in controllers correct their addresses themselves.
    manager = endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL)
    if manager in (ENDPOINTSLICE_CONTROLLER, MIRRORING_CONTROLLER):
        return []
    return [
        warning
        for i, endpoint in enumerate(endpoint_slice.endpoints)
        for j, address in enumerate(endpoint.addresses)
        for warning in ip_warnings(f"endpoints[{i}].addresses[{j}]", address)
    ]


def _differs(new: EndpointSlice, old: EndpointSlice) -> bool:
    return (
        new.metadata.labels != old.metadata.labels
        or new.address_type != old.address_type
        or new.ports != old.ports
        or not same_endpoints(new.endpoints, old.endpoints)
    )


def _with_generation(endpoint_slice: EndpointSlice, generation: int) -> EndpointSlice:
    metadata = replace(endpoint_slice.metadata, generation=generation)
    return replace(endpoint_slice, metadata=metadata)


def _without_hints(endpoint: Endpoint, *, drop_all: bool) -> Endpoint:
    if endpoint.hints is None:
        return endpoint
    if drop_all:
        return replace(endpoint, hints=None)
    if not endpoint.hints.for_nodes:
        return endpoint
    return replace(endpoint, hints=replace(endpoint.hints, for_nodes=()))


def _without_topology(endpoint: Endpoint, known_nodes: frozenset[str]) -> Endpoint:
    if endpoint.deprecated_topology is None:
        return endpoint
    node_name = endpoint.node_name
    named = endpoint.deprecated_topology.get(HOSTNAME_LABEL, "")
    if node_name is None and named in known_nodes and not dns1123_subdomain(named):
        node_name = named
    return replace(endpoint, node_name=node_name, deprecated_topology=None)
