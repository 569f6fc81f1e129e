"""Slices that mirror a hand-written Endpoints object of a Service without a selector.

Follows the EndpointSlice mirroring controller: one slice per address family and set of ports, what
exceeds the limit is left out and told. A mirrored endpoint says only whether it is ready; it has no
zone and no hints, so that one mirrored slice makes proxies ignore all hints of its Service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from keepclose.model.addresses import IPV4, IPV6, canonical, family_of
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
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    LAST_APPLIED_ANNOTATION,
    LEADER_ANNOTATION,
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    SERVICE_NAME_LABEL,
    SKIP_MIRROR_LABEL,
    TRIGGER_TIME_ANNOTATION,
)
from keepclose.slices.endpoints import EndpointId, PortSetKey, endpoint_id, port_key, same_beyond_id
from keepclose.slices.packing import SlicePlan, take_over
from keepclose.slices.slice_metadata import name_prefix

_NOT_COPIED = (TRIGGER_TIME_ANNOTATION, LAST_APPLIED_ANNOTATION)
_READY = EndpointConditions(ready=True)
_NOT_READY = EndpointConditions(ready=False)
MAX_PER_SUBSET = 1000
_Key: TypeAlias = tuple[str, PortSetKey]


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


class MirrorEvent(msgspec.Struct, frozen=True):
    """A warning on an Endpoints object."""

    reason: Literal["InvalidIPAddress", "TooManyAddressesToMirror"]
    message: str


class Mirrored(msgspec.Struct, frozen=True):
    """The writes that mirror an Endpoints object, all address types together.

    `skipped` counts the addresses left out, for either reason; `updated` the endpoints rewritten.
    """

    plan: SlicePlan = SlicePlan()
    events: tuple[MirrorEvent, ...] = ()
    skipped: int = 0
    updated: int = 0
    is_mirroring: bool = True
    """Whether there is something to mirror at all."""


class _Bundle(msgspec.Struct):
    """What one slice should hold."""

    ports: tuple[EndpointPort, ...]
    endpoints: dict[EndpointId, Endpoint] = {}


class _Collected(NamedTuple):
    bundles: dict[_Key, _Bundle]
    skipped: int
    invalid: int


class _Difference(NamedTuple):
    added: int
    removed: int
    updated: int


def should_mirror(endpoints: Endpoints) -> bool:
    """Return whether the object describes backends, and its author did not opt out."""
    meta = endpoints.metadata
    return (
        meta.labels.get(SKIP_MIRROR_LABEL) != "true" and LEADER_ANNOTATION not in meta.annotations
    )


def mirror(
    endpoints: Endpoints | None,
    service: Service | None,
    *,
    existing: Iterable[EndpointSlice],
    max_per_subset: int = MAX_PER_SUBSET,
) -> Mirrored:
    """Return the writes after which the existing mirrored slices say what the object says.

    Without the object or the Service, or once the Service has a selector, all of them go.
    """
    slices = sorted(existing, key=lambda piece: piece.metadata.name)
    if (
        endpoints is None
        or service is None
        or service.spec.selector is not None
        or not should_mirror(endpoints)
    ):
        return Mirrored(SlicePlan(delete=tuple(slices)), is_mirroring=False)
    collected = _collect(endpoints, max_per_subset)
    plan, updated = _plan(endpoints, collected.bundles, slices)
    return Mirrored(plan, _events(collected, max_per_subset), collected.skipped, updated)


def _collect(endpoints: Endpoints, limit: int) -> _Collected:
    bundles: dict[_Key, _Bundle] = {}
    skipped = invalid = 0
    for subset in repack(endpoints.subsets):
        ports = tuple(
            EndpointPort(port.name, port.protocol or "TCP", port.port, port.app_protocol)
            for port in subset.ports
        )
        key = port_key(ports)
        for family in (IPV4, IPV6):
            bundles.setdefault((family, key), _Bundle(ports))
        states = [(address, True) for address in subset.addresses]
        states += [(address, False) for address in subset.not_ready_addresses]
        taken = 0
        for address, ready in states:
            if taken >= limit:
                break
            family_found = family_of(address.ip)
            if family_found is None:
                invalid += 1
                continue
            taken += 1
            endpoint = mirrored_endpoint(address, ready=ready)
            bundles[family_found, key].endpoints[endpoint_id(endpoint)] = endpoint
        skipped += len(states) - taken
    return _Collected(bundles, skipped, invalid)


def _events(collected: _Collected, limit: int) -> tuple[MirrorEvent, ...]:
    events: list[MirrorEvent] = []
    if collected.invalid:
        events.append(
            MirrorEvent(
                "InvalidIPAddress",
                f"Skipped {collected.invalid} invalid IP addresses when mirroring "
                "to EndpointSlices",
            )
        )
    # NB: the number told includes the invalid addresses, as in Kubernetes.
    if collected.skipped > collected.invalid:
        events.append(
            MirrorEvent(
                "TooManyAddressesToMirror",
                f"A max of {limit} addresses can be mirrored to EndpointSlices per Endpoints "
                f"subset. {collected.skipped} addresses were skipped",
            )
        )
    return tuple(events)


def _plan(
    endpoints: Endpoints, bundles: Mapping[_Key, _Bundle], slices: list[EndpointSlice]
) -> tuple[SlicePlan, int]:
    present: dict[_Key, list[EndpointSlice]] = {}
    for piece in slices:
        present.setdefault((piece.address_type, port_key(piece.ports)), []).append(piece)
    create: list[EndpointSlice] = []
    update: list[EndpointSlice] = []
    unchanged: list[EndpointSlice] = []
    delete = [piece for key, group in present.items() if key not in bundles for piece in group]
    added = removed = updated = 0
    for (family, key), bundle in bundles.items():
        group = present.get((family, key), [])
        wanted = bundle.endpoints
        if not wanted:
            delete.extend(group)
            removed += sum(len(piece.endpoints) for piece in group)
            continue
        fresh = mirrored_slice(
            endpoints, address_type=family, ports=bundle.ports, mirrored=wanted.values()
        )
        if not group:
            added += len(wanted)
            create.append(fresh)
            continue
        first, *rest = group
        delete.extend(rest)
        difference = _compare(first, wanted)
        added += difference.added
        removed += difference.removed
        updated += difference.updated
        same_metadata = (
            first.metadata.labels == fresh.metadata.labels
            and first.metadata.annotations == fresh.metadata.annotations
        )
        if any(difference) or not same_metadata or _has_stale_owner(first, endpoints):
            update.append(take_over(fresh, first))
        else:
            unchanged.append(first)
    create, recycled, delete = _recycle(create, delete)
    if endpoints.metadata.deletion_timestamp is not None:
        create = []
    plan = SlicePlan(
        create=tuple(create),
        update=(*update, *recycled),
        delete=tuple(delete),
        unchanged=tuple(unchanged),
        added=added,
        removed=removed,
    )
    return plan, updated


def _compare(piece: EndpointSlice, wanted: Mapping[EndpointId, Endpoint]) -> _Difference:
    removed = updated = 0
    missing = dict(wanted)
    for present in piece.endpoints:
        endpoint = missing.pop(endpoint_id(present), None)
        if endpoint is None:
            removed += 1
        elif not same_beyond_id(endpoint, present):
            updated += 1
    return _Difference(added=len(missing), removed=removed, updated=updated)


def _has_stale_owner(endpoint_slice: EndpointSlice, endpoints: Endpoints) -> bool:
    """Return whether the slice still belongs to a deleted Endpoints object of the same name.

    The garbage collector deletes such a slice, however right its endpoints are.
    """
    meta = endpoints.metadata
    return any(
        owner.kind == "Endpoints" and owner.name == meta.name and owner.uid != meta.uid
        for owner in endpoint_slice.metadata.owner_references
    )


def _recycle(
    create: list[EndpointSlice], delete: list[EndpointSlice]
) -> tuple[list[EndpointSlice], list[EndpointSlice], list[EndpointSlice]]:
    """Let slices to delete lend their names to slices to create, the first to the first."""
    recycled: list[EndpointSlice] = []
    created: list[EndpointSlice] = []
    doomed = list(delete)
    for fresh in create:
        lender = next((one for one in doomed if one.address_type == fresh.address_type), None)
        if lender is None:
            created.append(fresh)
        else:
            doomed.remove(lender)
            recycled.append(take_over(fresh, lender))
    return created, recycled, doomed
