"""Defaults and validation of EndpointSlices (discovery.k8s.io/v1), as the API server applies them.

Decides which slices a store may take and with which words it refuses the others; it never changes
more than the two defaults and never raises. Port numbers, zones, target references and conditions
are not looked at, and an unknown address type leaves the addresses unchecked, as upstream.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.model.addresses import (
    IPV4,
    IPV6,
    endpoint_ip_causes,
    family_of,
    fqdn_causes,
    legacy_ip_causes,
    strict_ip_causes,
)
from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointPort, EndpointSlice
from keepclose.model.field_errors import (
    FieldError,
    duplicate,
    internal,
    invalid,
    not_supported,
    required,
    too_many,
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.metadata_validation import (
    IMMUTABLE,
    NameCheck,
    dns1123_label,
    dns1123_subdomain,
    label_value,
    qualified_name,
    validate_labels,
    validate_metadata,
    validate_metadata_update,
)
from keepclose.model.well_known import ZONE_LABEL

FQDN: Final = "FQDN"
_ADDRESS_TYPES: Final = (FQDN, IPV4, IPV6)
PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
MAX_ENDPOINTS: Final = 1000
MAX_ADDRESSES: Final = 100
# NB: the public documentation says 100; the API server takes this many.
MAX_PORTS: Final = 20000
MAX_TOPOLOGY_KEYS: Final = 16
MAX_ZONE_HINTS: Final = 8
MAX_NODE_HINTS: Final = 8


def default_endpoint_slice(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """Return the slice with port names and protocols filled in ("" and TCP)."""
    if all(port.name is not None and port.protocol is not None for port in endpoint_slice.ports):
        return endpoint_slice
    ports = tuple(
        replace(
            port,
            name="" if port.name is None else port.name,
            protocol="TCP" if port.protocol is None else port.protocol,
        )
        for port in endpoint_slice.ports
    )
    return replace(endpoint_slice, ports=ports)


def validate_endpoint_slice(
    endpoint_slice: EndpointSlice, *, gates: FeatureGates, old: EndpointSlice | None = None
) -> list[FieldError]:
    """Return what is wrong with a defaulted slice.

    With `old` the endpoints are forgiven while they are the same: they may have been accepted
    under laxer rules, and a change of labels must not fail on them.
    """
    causes = validate_metadata(
        endpoint_slice.metadata, namespaced=True, name_check=dns1123_subdomain
    )
    address_type = endpoint_slice.address_type
    if not address_type:
        causes.append(required("addressType"))
    elif address_type not in _ADDRESS_TYPES:
        causes.append(not_supported("addressType", address_type, _ADDRESS_TYPES))
    causes += _validate_ports(endpoint_slice.ports)
    endpoints = endpoint_slice.endpoints
    strict = gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
    found = _validate_endpoints(endpoints, address_type, strict=strict)
    if found and (old is None or not same_endpoints(endpoints, old.endpoints)):
        causes += found
    return causes


def validate_endpoint_slice_update(
    new: EndpointSlice, old: EndpointSlice, *, gates: FeatureGates
) -> list[FieldError]:
    """Return what keeps a slice from taking the place of the old one."""
    causes = validate_metadata_update(new.metadata, old.metadata)
    causes += validate_endpoint_slice(new, gates=gates, old=old)
    if new.address_type != old.address_type:
        causes.append(invalid("addressType", new.address_type, IMMUTABLE))
    return causes


def same_endpoints(some: tuple[Endpoint, ...], others: tuple[Endpoint, ...]) -> bool:
    """Return whether both say the same; an empty and an absent deprecated topology do."""
    if len(some) != len(others):
        return False
    return all(
        one == other
        or (
            not one.deprecated_topology
            and not other.deprecated_topology
            and replace(one, deprecated_topology=None) == replace(other, deprecated_topology=None)
        )
        for one, other in zip(some, others, strict=True)
    )


def _validate_ports(ports: tuple[EndpointPort, ...]) -> list[FieldError]:
    if len(ports) > MAX_PORTS:
        return [too_many("ports", len(ports), MAX_PORTS)]
    causes: list[FieldError] = []
    names: set[str] = set()
    for position, port in enumerate(ports):
        field = f"ports[{position}]"
        name = port.name or ""
        if name:
            causes += _invalid_unless(dns1123_label, f"{field}.name", name)
        if name in names:
            causes.append(duplicate(f"{field}.name", name))
        names.add(name)
        if port.protocol is None:
            causes.append(required(f"{field}.protocol"))
        elif port.protocol not in PROTOCOLS:
            causes.append(not_supported(f"{field}.protocol", port.protocol, PROTOCOLS))
        if port.app_protocol is not None:
            causes += _invalid_unless(qualified_name, f"{field}.appProtocol", port.app_protocol)
    return causes


def _validate_endpoints(
    endpoints: tuple[Endpoint, ...], address_type: str, *, strict: bool
) -> list[FieldError]:
    if len(endpoints) > MAX_ENDPOINTS:
        return [too_many("endpoints", len(endpoints), MAX_ENDPOINTS)]
    causes: list[FieldError] = []
    for position, endpoint in enumerate(endpoints):
        field = f"endpoints[{position}]"
        causes += _validate_addresses(endpoint.addresses, address_type, field=field, strict=strict)
        if endpoint.node_name is not None:
            causes += _invalid_unless(dns1123_subdomain, f"{field}.nodeName", endpoint.node_name)
        if endpoint.deprecated_topology:
            causes += _validate_topology(
                endpoint.deprecated_topology, f"{field}.deprecatedTopology"
            )
        if endpoint.hostname is not None:
            causes += _invalid_unless(dns1123_label, f"{field}.hostname", endpoint.hostname)
        if endpoint.hints is not None:
            causes += _validate_hints(endpoint.hints, f"{field}.hints")
    return causes


def _validate_addresses(
    addresses: tuple[str, ...], address_type: str, *, field: str, strict: bool
) -> list[FieldError]:
    whole = f"{field}.addresses"
    if not addresses:
        return [required(whole, "must contain at least 1 address")]
    causes: list[FieldError] = []
    if len(addresses) > MAX_ADDRESSES:
        causes.append(too_many(whole, len(addresses), MAX_ADDRESSES))
    for position, address in enumerate(addresses):
        one = f"{whole}[{position}]"
        if address_type == FQDN:
            causes += fqdn_causes(one, address)
            continue
        if address_type == IPV4:
            malformed = legacy_ip_causes(one, address, strict=strict)
        elif address_type == IPV6:
            malformed = strict_ip_causes(one, address)
        else:
            break
        if malformed:
            causes += malformed
            continue
        if family_of(address) != address_type:
            # NB: upstream names the list here, not the position in it.
            causes.append(invalid(whole, address, f"must be an {address_type} address"))
        causes += endpoint_ip_causes(one, address)
    return causes


def _validate_topology(topology: dict[str, str], field: str) -> list[FieldError]:
    causes: list[FieldError] = []
    if len(topology) > MAX_TOPOLOGY_KEYS:
        causes.append(too_many(field, len(topology), MAX_TOPOLOGY_KEYS))
    causes += validate_labels(topology, field)
    if ZONE_LABEL in topology:
        # The zone has a field of its own; older versions move it there on decoding.
        causes.append(
            internal(f"{field}[{ZONE_LABEL}]", "reserved key was not removed in conversion")
        )
    return causes


def _validate_hints(hints: EndpointHints, field: str) -> list[FieldError]:
    zones = tuple(zone.name for zone in hints.for_zones)
    if len(zones) > MAX_ZONE_HINTS:
        # NB: node hints are then not looked at, as upstream.
        return [too_many(f"{field}.forZones", len(zones), MAX_ZONE_HINTS)]
    causes = _validate_hinted_names(zones, f"{field}.forZones", label_value)
    nodes = tuple(node.name for node in hints.for_nodes)
    if len(nodes) > MAX_NODE_HINTS:
        causes.append(too_many(f"{field}.forNodes", len(nodes), MAX_NODE_HINTS))
        return causes
    causes += _validate_hinted_names(nodes, f"{field}.forNodes", dns1123_subdomain)
    return causes


def _validate_hinted_names(
    names: tuple[str, ...], field: str, name_check: NameCheck
) -> list[FieldError]:
    causes: list[FieldError] = []
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            causes.append(duplicate(f"{field}[{position}].name", name))
        seen.add(name)
        causes += _invalid_unless(name_check, f"{field}[{position}].name", name)
    return causes


def _invalid_unless(check: NameCheck, field: str, value: str) -> list[FieldError]:
    return [invalid(field, value, message) for message in check(value)]
