"""Defaults and validation of EndpointSlices (discovery.k8s.io/v1), as in kube-apiserver.

Decides which slices a store may accept, and with which messages it rejects the others. It never
changes more than the two defaults and never raises. Port numbers, zones, target references and
conditions are not validated, and an unknown address type leaves the addresses unchecked, as
upstream.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.model.addresses import (
    IPV4,
    IPV6,
    endpoint_ip_errors,
    family_of,
    fqdn_errors,
    legacy_ip_errors,
    strict_ip_errors,
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
PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
MAX_ENDPOINTS: Final = 1000
MAX_ADDRESSES: Final = 100
# NB: the public documentation says 100; kube-apiserver accepts this many.
MAX_PORTS: Final = 20000
MAX_TOPOLOGY_KEYS: Final = 16
MAX_ZONE_HINTS: Final = 8
MAX_NODE_HINTS: Final = 8
_ADDRESS_TYPES: Final = (FQDN, IPV4, IPV6)


def default_endpoint_slice(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """Return the slice with default port names and protocols ("" and TCP)."""
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
    """Return the errors of a defaulted slice.

    With `old`, errors of unchanged endpoints are ignored: they may have been accepted under older
    rules, and an update of labels must not fail because of them.
    """
    errors = validate_metadata(
        endpoint_slice.metadata, namespaced=True, name_check=dns1123_subdomain
    )
    address_type = endpoint_slice.address_type
    if not address_type:
        errors.append(required("addressType"))
    elif address_type not in _ADDRESS_TYPES:
        errors.append(not_supported("addressType", address_type, _ADDRESS_TYPES))
    errors += _validate_ports(endpoint_slice.ports)
    endpoints = endpoint_slice.endpoints
    strict = gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
    endpoint_errors = _validate_endpoints(endpoints, address_type, strict=strict)
    if endpoint_errors and (old is None or not same_endpoints(endpoints, old.endpoints)):
        errors += endpoint_errors
    return errors


def validate_endpoint_slice_update(
    new: EndpointSlice, old: EndpointSlice, *, gates: FeatureGates
) -> list[FieldError]:
    """Return the errors of an update of a slice."""
    errors = validate_metadata_update(new.metadata, old.metadata)
    errors += validate_endpoint_slice(new, gates=gates, old=old)
    if new.address_type != old.address_type:
        errors.append(invalid("addressType", new.address_type, IMMUTABLE))
    return errors


def same_endpoints(new: tuple[Endpoint, ...], old: tuple[Endpoint, ...]) -> bool:
    """Return whether both are equal; an empty deprecated topology equals an absent one."""
    if len(new) != len(old):
        return False
    return all(
        after == before
        or (
            not after.deprecated_topology
            and not before.deprecated_topology
            and replace(after, deprecated_topology=None)
            == replace(before, deprecated_topology=None)
        )
        for after, before in zip(new, old, strict=True)
    )


def _validate_ports(ports: tuple[EndpointPort, ...]) -> list[FieldError]:
    if len(ports) > MAX_PORTS:
        return [too_many("ports", len(ports), MAX_PORTS)]
    errors: list[FieldError] = []
    names: set[str] = set()
    for position, port in enumerate(ports):
        field = f"ports[{position}]"
        name = port.name or ""
        if name:
            errors += _invalid_unless(dns1123_label, f"{field}.name", name)
        if name in names:
            errors.append(duplicate(f"{field}.name", name))
        names.add(name)
        if port.protocol is None:
            errors.append(required(f"{field}.protocol"))
        elif port.protocol not in PROTOCOLS:
            errors.append(not_supported(f"{field}.protocol", port.protocol, PROTOCOLS))
        if port.app_protocol is not None:
            errors += _invalid_unless(qualified_name, f"{field}.appProtocol", port.app_protocol)
    return errors


def _validate_endpoints(
    endpoints: tuple[Endpoint, ...], address_type: str, *, strict: bool
) -> list[FieldError]:
    if len(endpoints) > MAX_ENDPOINTS:
        return [too_many("endpoints", len(endpoints), MAX_ENDPOINTS)]
    errors: list[FieldError] = []
    for position, endpoint in enumerate(endpoints):
        field = f"endpoints[{position}]"
        errors += _validate_addresses(endpoint.addresses, address_type, field=field, strict=strict)
        if endpoint.node_name is not None:
            errors += _invalid_unless(dns1123_subdomain, f"{field}.nodeName", endpoint.node_name)
        if endpoint.deprecated_topology:
            errors += _validate_topology(
                endpoint.deprecated_topology, f"{field}.deprecatedTopology"
            )
        if endpoint.hostname is not None:
            errors += _invalid_unless(dns1123_label, f"{field}.hostname", endpoint.hostname)
        if endpoint.hints is not None:
            errors += _validate_hints(endpoint.hints, f"{field}.hints")
    return errors


def _validate_addresses(
    addresses: tuple[str, ...], address_type: str, *, field: str, strict: bool
) -> list[FieldError]:
    list_field = f"{field}.addresses"
    if not addresses:
        return [required(list_field, "must contain at least 1 address")]
    errors: list[FieldError] = []
    if len(addresses) > MAX_ADDRESSES:
        errors.append(too_many(list_field, len(addresses), MAX_ADDRESSES))
    for position, address in enumerate(addresses):
        address_field = f"{list_field}[{position}]"
        if address_type == FQDN:
            errors += fqdn_errors(address_field, address)
            continue
        if address_type == IPV4:
            malformed = legacy_ip_errors(address_field, address, strict=strict)
        elif address_type == IPV6:
            malformed = strict_ip_errors(address_field, address)
        else:
            break
        if malformed:
            errors += malformed
            continue
        if family_of(address) != address_type:
            # NB: upstream names the list here, not the index.
            errors.append(invalid(list_field, address, f"must be an {address_type} address"))
        errors += endpoint_ip_errors(address_field, address)
    return errors


def _validate_topology(topology: dict[str, str], field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(topology) > MAX_TOPOLOGY_KEYS:
        errors.append(too_many(field, len(topology), MAX_TOPOLOGY_KEYS))
    errors += validate_labels(topology, field)
    if ZONE_LABEL in topology:
        # The zone has its own field; older API versions move it there on conversion.
        errors.append(
            internal(f"{field}[{ZONE_LABEL}]", "reserved key was not removed in conversion")
        )
    return errors


def _validate_hints(hints: EndpointHints, field: str) -> list[FieldError]:
    zones = tuple(zone.name for zone in hints.for_zones)
    if len(zones) > MAX_ZONE_HINTS:
        # NB: node hints are then not validated, as upstream.
        return [too_many(f"{field}.forZones", len(zones), MAX_ZONE_HINTS)]
    errors = _validate_hinted_names(zones, f"{field}.forZones", label_value)
    nodes = tuple(node.name for node in hints.for_nodes)
    if len(nodes) > MAX_NODE_HINTS:
        errors.append(too_many(f"{field}.forNodes", len(nodes), MAX_NODE_HINTS))
        return errors
    errors += _validate_hinted_names(nodes, f"{field}.forNodes", dns1123_subdomain)
    return errors


def _validate_hinted_names(
    names: tuple[str, ...], field: str, name_check: NameCheck
) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for position, name in enumerate(names):
        if name in seen:
            errors.append(duplicate(f"{field}[{position}].name", name))
        seen.add(name)
        errors += _invalid_unless(name_check, f"{field}[{position}].name", name)
    return errors


def _invalid_unless(check: NameCheck, field: str, value: str) -> list[FieldError]:
    return [invalid(field, value, message) for message in check(value)]
