"""A legacy Endpoints object, read as slices would say it.

Subsets are first brought into the one agreed layout of the API, so that the same addresses and
ports always give the same slices, however their author grouped them. Follows the EndpointSlice
mirroring controller: a mirrored endpoint says only whether it is ready, and the mirrored slice
belongs to the Endpoints object, not to the Service.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.model.addresses import canonical
from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointAddress,
    EndpointConditions,
    EndpointPort,
    Endpoints,
    EndpointSlice,
    EndpointsPort,
    EndpointSubset,
)
from keepclose.model.meta import ObjectMeta, controller_reference
from keepclose.model.well_known import (
    LAST_APPLIED_ANNOTATION,
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    SERVICE_NAME_LABEL,
    TRIGGER_TIME_ANNOTATION,
)
from keepclose.slices.slice_metadata import name_prefix

_NOT_COPIED = (TRIGGER_TIME_ANNOTATION, LAST_APPLIED_ANNOTATION)
_READY = EndpointConditions(ready=True)
_NOT_READY = EndpointConditions(ready=False)


def repack(subsets: Iterable[EndpointSubset]) -> tuple[EndpointSubset, ...]:
    """Return the subsets in the one agreed layout: ports with the same addresses stand together.

    All of it is sorted. An address that is both ready and not ready at a port is not ready.
    """
    readiness: dict[EndpointsPort | None, dict[tuple[str, str], bool]] = {}
    addresses: dict[tuple[str, str], EndpointAddress] = {}
    for subset in subsets:
        for ready, group in ((True, subset.addresses), (False, subset.not_ready_addresses)):
            for address in group:
                uid = "" if address.target_ref is None else address.target_ref.uid
                key = (address.ip, uid)
                addresses.setdefault(key, address)
                for port in subset.ports or (None,):
                    states = readiness.setdefault(port, {})
                    states[key] = ready and states.get(key, True)
    ports_by_states: dict[tuple[tuple[tuple[str, str], bool], ...], list[EndpointsPort]] = {}
    for port, states in readiness.items():
        together = ports_by_states.setdefault(tuple(sorted(states.items())), [])
        if port is not None:
            together.append(port)
    packed = [
        EndpointSubset(
            addresses=tuple(addresses[key] for key, ready in states if ready),
            not_ready_addresses=tuple(addresses[key] for key, ready in states if not ready),
            ports=tuple(sorted(ports, key=_port_order)),
        )
        for states, ports in ports_by_states.items()
    ]
    return tuple(sorted(packed, key=lambda subset: [_port_order(port) for port in subset.ports]))


def mirrored_endpoint(address: EndpointAddress, *, ready: bool) -> Endpoint:
    """Return an address as an endpoint, in canonical form if it is an address at all."""
    return Endpoint(
        addresses=(canonical(address.ip) or address.ip,),
        conditions=_READY if ready else _NOT_READY,
        hostname=address.hostname or None,
        target_ref=address.target_ref,
        node_name=address.node_name,
    )


def mirrored_slice(
    endpoints: Endpoints,
    *,
    address_type: str,
    ports: tuple[EndpointPort, ...],
    mirrored: Iterable[Endpoint] = (),
) -> EndpointSlice:
    """Return a slice to create that mirrors the object, which owns it."""
    meta = endpoints.metadata
    return EndpointSlice(
        metadata=ObjectMeta(
            generate_name=name_prefix(meta.name),
            namespace=meta.namespace,
            labels={
                **meta.labels,
                SERVICE_NAME_LABEL: meta.name,
                MANAGED_BY_LABEL: MIRRORING_CONTROLLER,
            },
            annotations={
                key: value for key, value in meta.annotations.items() if key not in _NOT_COPIED
            },
            owner_references=(controller_reference("Endpoints", meta),),
        ),
        address_type=address_type,
        endpoints=tuple(mirrored),
        ports=ports,
    )


def _port_order(port: EndpointsPort) -> tuple[str, int, str, str]:
    return (port.name, port.port, port.protocol, port.app_protocol or "")
