"""Writes of EndpointSlices and of the legacy Endpoints, by the rules of the model.

The generation of a slice counts labels too, so that its writer can see whether another client
changed it. Hints whose gate is off are dropped unless the stored slice has some. Protocols of
Endpoints default to TCP. Their addresses are validated like those of slices; their ports are
validated too.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.registry.strategy import ObjectWrite, PlainStrategy, same
from keepclose.model.addresses import endpoint_ip_errors, ip_warnings, legacy_ip_errors
from keepclose.model.endpointslice.strategy import (
    ALLOWS_CREATE_ON_UPDATE,
    ALLOWS_UNCONDITIONAL_UPDATE,
    prepare_slice_for_create,
    prepare_slice_for_update,
    slice_warnings_on_create,
    slice_warnings_on_update,
)
from keepclose.model.endpointslice.types import (
    EndpointAddress,
    Endpoints,
    EndpointSlice,
    EndpointsPort,
)
from keepclose.model.endpointslice.validation import (
    PROTOCOLS,
    default_endpoint_slice,
    validate_endpoint_slice,
    validate_endpoint_slice_update,
)
from keepclose.model.field_errors import FieldError, invalid, not_supported, required
from keepclose.model.gates import Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import (
    dns1123_label,
    dns1123_subdomain,
    port_number,
    qualified_name,
)

DEPRECATED: Final = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
_MANAGED_BY: Final = ("endpoints.kubernetes.io/managed-by", "endpoint-controller")


class EndpointsStrategy(PlainStrategy):
    """Strategy of the legacy Endpoints."""

    allows_create_on_update = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set the protocol of every port."""
        for subset in write.new.get("subsets") or ():
            for port in subset.get("ports") or ():
                port["protocol"] = port.get("protocol") or "TCP"

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of addresses and ports, unless they are unchanged."""
        if not write.is_create and same(write.new.get("subsets"), write.old.get("subsets")):
            return []
        strict = write.gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
        causes: list[FieldError] = []
        for place, subset in enumerate(write.read_new(Endpoints).subsets):
            field = f"subsets[{place}]"
            if not subset.addresses and not subset.not_ready_addresses:
                causes.append(required(field, "must specify `addresses` or `notReadyAddresses`"))
            for name, addresses in (
                ("addresses", subset.addresses),
                ("notReadyAddresses", subset.not_ready_addresses),
            ):
                for index, address in enumerate(addresses):
                    causes += _address_causes(f"{field}.{name}[{index}]", address, strict=strict)
            for index, port in enumerate(subset.ports):
                causes += _port_causes(f"{field}.ports[{index}]", port, named=len(subset.ports) > 1)
        return causes

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return which addresses are not canonical, unless the Endpoints controller wrote them."""
        label, controller = _MANAGED_BY
        if (write.new["metadata"].get("labels") or {}).get(label) == controller:
            return []
        return [
            warning
            for place, subset in enumerate(write.read_new(Endpoints).subsets)
            for name, addresses in (
                ("addresses", subset.addresses),
                ("notReadyAddresses", subset.not_ready_addresses),
            )
            for index, address in enumerate(addresses)
            for warning in ip_warnings(f"subsets[{place}].{name}[{index}].ip", address.ip)
        ]


class EndpointSliceStrategy(PlainStrategy):
    """Strategy of EndpointSlices."""

    allows_unconditional_update = ALLOWS_UNCONDITIONAL_UPDATE
    allows_create_on_update = ALLOWS_CREATE_ON_UPDATE
    counts_generations = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set what a client may leave out."""
        write.change(default_endpoint_slice(write.read_new(EndpointSlice)))

    def prepare_create(self, write: ObjectWrite) -> None:
        """Set the first generation, drop fields whose gate is off."""
        new_slice = write.read_new(EndpointSlice)
        write.change(prepare_slice_for_create(new_slice, gates=write.gates))
        _write_empty_fields(write.new)

    def prepare_update(self, write: ObjectWrite) -> None:
        """Set the next generation, drop new fields whose gate is off."""
        new_slice, stored = write.read_new(EndpointSlice), write.read_old(EndpointSlice)
        write.change(prepare_slice_for_update(new_slice, stored, gates=write.gates))
        _write_empty_fields(write.new)

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the slice."""
        new_slice = write.read_new(EndpointSlice)
        if write.is_create:
            causes = validate_endpoint_slice(new_slice, gates=write.gates)
        else:
            stored = write.read_old(EndpointSlice)
            causes = validate_endpoint_slice_update(new_slice, stored, gates=write.gates)
        return beyond_metadata(causes)

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return the warnings for the client of an accepted write."""
        new_slice = write.read_new(EndpointSlice)
        return (
            slice_warnings_on_create(new_slice)
            if write.is_create
            else slice_warnings_on_update(new_slice)
        )


def _address_causes(field: str, address: EndpointAddress, *, strict: bool) -> list[FieldError]:
    causes = legacy_ip_errors(f"{field}.ip", address.ip, strict=strict)
    if address.hostname:
        causes += [
            invalid(f"{field}.hostname", address.hostname, text)
            for text in dns1123_label(address.hostname)
        ]
    if address.node_name is not None:
        causes += [
            invalid(f"{field}.nodeName", address.node_name, text)
            for text in dns1123_subdomain(address.node_name)
        ]
    return causes + endpoint_ip_errors(f"{field}.ip", address.ip)


def _port_causes(field: str, port: EndpointsPort, *, named: bool) -> list[FieldError]:
    causes: list[FieldError] = []
    if port.name:
        causes += [invalid(f"{field}.name", port.name, text) for text in dns1123_label(port.name)]
    elif named:
        causes.append(required(f"{field}.name"))
    causes += [invalid(f"{field}.port", port.port, text) for text in port_number(port.port)]
    if port.protocol not in PROTOCOLS:
        causes.append(not_supported(f"{field}.protocol", port.protocol, PROTOCOLS))
    if port.app_protocol is not None:
        causes += [
            invalid(f"{field}.appProtocol", port.app_protocol, text)
            for text in qualified_name(port.app_protocol)
        ]
    return causes


def _write_empty_fields(new: JsonObject) -> None:
    """Write the fields that clients expect even when they are empty."""
    for key in ("endpoints", "ports"):
        if new.get(key) is None:
            new[key] = []
    for endpoint in new["endpoints"]:
        if endpoint.get("conditions") is None:
            endpoint["conditions"] = {}
