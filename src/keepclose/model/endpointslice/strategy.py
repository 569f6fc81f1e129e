"""What the API server does to an EndpointSlice before it validates and stores it, and its warnings.

Sets the generation, drops fields whose feature gate is off unless the stored slice already uses
them, and clears the deprecated topology (KEP-2433, KEP-3015; node hints also serve node-level
topology). It never rejects a slice: validation does. Slices may be updated without a
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
    """Return the slice to validate and store on create."""
    kept = drop_disabled_slice_fields(endpoint_slice, None, gates=gates)
    cleared = drop_deprecated_topology(kept, None)
    return _with_generation(cleared, 1)


def prepare_slice_for_update(
    new: EndpointSlice, old: EndpointSlice, *, gates: FeatureGates
) -> EndpointSlice:
    """Return the slice to validate and store on update.

    The generation grows by one if labels or anything outside the metadata changed. NB: the object
    as sent by the client decides, before fields are dropped.
    """
    generation = old.metadata.generation + (1 if _differs(new, old) else 0)
    kept = drop_disabled_slice_fields(new, old, gates=gates)
    cleared = drop_deprecated_topology(kept, old)
    return _with_generation(cleared, generation)


def drop_disabled_slice_fields(
    new: EndpointSlice, old: EndpointSlice | None, *, gates: FeatureGates
) -> EndpointSlice:
    """Return the slice without hints whose gates are off.

    Hints that the old slice already uses are kept, so that turning a gate off breaks no stored
    slice. Dropping all hints takes precedence over dropping node hints, which keeps the object.
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
    endpoints = tuple(_without_hints(endpoint, drop_all=drop_all) for endpoint in new.endpoints)
    return replace(new, endpoints=endpoints)


def drop_deprecated_topology(new: EndpointSlice, old: EndpointSlice | None) -> EndpointSlice:
    """Return the slice without deprecated topology, as after a write through v1.

    Nothing changes if the endpoints equal the old ones, nor for v1beta1. A missing node name is
    taken from the topology if the topology of the old slice has that node too.
    """
    if new.api_version == V1BETA1:
        return new
    if old is not None and same_endpoints(new.endpoints, old.endpoints):
        return new
    if all(endpoint.deprecated_topology is None for endpoint in new.endpoints):
        return new
    old_nodes = deprecated_node_names(old)
    return replace(
        new, endpoints=tuple(_without_topology(endpoint, old_nodes) for endpoint in new.endpoints)
    )


def deprecated_node_names(endpoint_slice: EndpointSlice | None) -> frozenset[str]:
    """Return the node names in the deprecated topology of the slice."""
    if endpoint_slice is None:
        return frozenset()
    names = (
        (endpoint.deprecated_topology or {}).get(HOSTNAME_LABEL, "")
        for endpoint in endpoint_slice.endpoints
    )
    return frozenset(name for name in names if name)


def slice_warnings_on_create(endpoint_slice: EndpointSlice) -> list[str]:
    """Return the warnings for the client that created the slice."""
    warnings: list[str] = []
    if endpoint_slice.address_type == FQDN:
        # NB: slices have no spec, but kube-apiserver shows this path.
        warnings.append("spec.addressType: FQDN endpoints are deprecated")
    return warnings + _bad_ip_warnings(endpoint_slice)


def slice_warnings_on_update(endpoint_slice: EndpointSlice) -> list[str]:
    """Return the warnings for the client that updated the slice."""
    return _bad_ip_warnings(endpoint_slice)


def _bad_ip_warnings(endpoint_slice: EndpointSlice) -> list[str]:
    # The two built-in controllers write canonical addresses themselves.
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


def _without_topology(endpoint: Endpoint, old_nodes: frozenset[str]) -> Endpoint:
    if endpoint.deprecated_topology is None:
        return endpoint
    node_name = endpoint.node_name
    topology_node = endpoint.deprecated_topology.get(HOSTNAME_LABEL, "")
    if node_name is None and topology_node in old_nodes and not dns1123_subdomain(topology_node):
        node_name = topology_node
    return replace(endpoint, node_name=node_name, deprecated_topology=None)
