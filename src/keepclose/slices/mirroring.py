"""Slices that mirror a hand-written Endpoints object of a Service without a selector.

Follows the EndpointSlice mirroring controller: one slice per address family and set of ports;
addresses beyond the limit are skipped and reported in an Event. Subsets are first repacked into the
canonical layout of the API, so the same addresses and ports always give the same slices, whatever
their grouping. A mirrored slice is owned by the Endpoints object, not by the Service. A mirrored
endpoint only says whether it is ready: it has no zone and no hints, so one mirrored slice makes
proxies ignore all hints of its Service.
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

MAX_PER_SUBSET = 1000
_NOT_COPIED = (TRIGGER_TIME_ANNOTATION, LAST_APPLIED_ANNOTATION)
_READY = EndpointConditions(ready=True)
_NOT_READY = EndpointConditions(ready=False)
_Key: TypeAlias = tuple[str, PortSetKey]


def repack(subsets: Iterable[EndpointSubset]) -> tuple[EndpointSubset, ...]:
    """Return the subsets in canonical layout: ports with the same addresses share a subset.

    Subsets, ports and addresses are sorted. An address that is both ready and not ready at a port
    counts as not ready.
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
        ports_together = ports_by_states.setdefault(tuple(sorted(states.items())), [])
        if port is not None:
            ports_together.append(port)
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
    """Return the endpoint of an address, in canonical form if it is a valid IP address."""
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
    """Return a slice to create that mirrors the Endpoints object and is owned by it."""
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


class MirrorPlan(msgspec.Struct, frozen=True):
    """The writes that mirror an Endpoints object, all address types together.

    `skipped` counts addresses that were invalid or beyond the limit, `updated` endpoints that
    changed in place.
    """

    plan: SlicePlan = SlicePlan()
    events: tuple[MirrorEvent, ...] = ()
    skipped: int = 0
    updated: int = 0
    is_mirroring: bool = True
    """Whether there is an Endpoints object to mirror."""


class _Bundle(msgspec.Struct):
    """The ports and endpoints that one mirrored slice should hold."""

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
    """Return whether the object is mirrored: no leader election record and no opt-out label."""
    meta = endpoints.metadata
    return (
        meta.labels.get(SKIP_MIRROR_LABEL) != "true" and LEADER_ANNOTATION not in meta.annotations
    )


def plan_mirroring(
    endpoints: Endpoints | None,
    service: Service | None,
    *,
    existing: Iterable[EndpointSlice],
    max_per_subset: int = MAX_PER_SUBSET,
) -> MirrorPlan:
    """Return the writes that make the existing mirrored slices match the Endpoints object.

    All of them are deleted if the object or the Service is gone, or the Service has a selector.
    """
    slices = sorted(existing, key=lambda endpoint_slice: endpoint_slice.metadata.name)
    if (
        endpoints is None
        or service is None
        or service.spec.selector is not None
        or not should_mirror(endpoints)
    ):
        return MirrorPlan(SlicePlan(delete=tuple(slices)), is_mirroring=False)
    collected = _collect(endpoints, max_per_subset)
    plan, updated = _plan(endpoints, collected.bundles, slices)
    return MirrorPlan(plan, _events(collected, max_per_subset), collected.skipped, updated)


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
            address_family = family_of(address.ip)
            if address_family is None:
                invalid += 1
                continue
            taken += 1
            endpoint = mirrored_endpoint(address, ready=ready)
            bundles[address_family, key].endpoints[endpoint_id(endpoint)] = endpoint
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
    # NB: the reported number includes the invalid addresses, as in Kubernetes.
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
    for endpoint_slice in slices:
        present.setdefault(
            (endpoint_slice.address_type, port_key(endpoint_slice.ports)), []
        ).append(endpoint_slice)
    create: list[EndpointSlice] = []
    update: list[EndpointSlice] = []
    unchanged: list[EndpointSlice] = []
    delete = [
        endpoint_slice
        for key, group in present.items()
        if key not in bundles
        for endpoint_slice in group
    ]
    added = removed = updated = 0
    for (family, key), bundle in bundles.items():
        group = present.get((family, key), [])
        desired = bundle.endpoints
        if not desired:
            delete.extend(group)
            removed += sum(len(endpoint_slice.endpoints) for endpoint_slice in group)
            continue
        successor = mirrored_slice(
            endpoints, address_type=family, ports=bundle.ports, mirrored=desired.values()
        )
        if not group:
            added += len(desired)
            create.append(successor)
            continue
        first, *rest = group
        delete.extend(rest)
        difference = _compare(first, desired)
        added += difference.added
        removed += difference.removed
        updated += difference.updated
        same_metadata = (
            first.metadata.labels == successor.metadata.labels
            and first.metadata.annotations == successor.metadata.annotations
        )
        if any(difference) or not same_metadata or _has_stale_owner(first, endpoints):
            update.append(take_over(successor, first))
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


def _compare(endpoint_slice: EndpointSlice, desired: Mapping[EndpointId, Endpoint]) -> _Difference:
    removed = updated = 0
    missing = dict(desired)
    for present in endpoint_slice.endpoints:
        endpoint = missing.pop(endpoint_id(present), None)
        if endpoint is None:
            removed += 1
        elif not same_beyond_id(endpoint, present):
            updated += 1
    return _Difference(added=len(missing), removed=removed, updated=updated)


def _has_stale_owner(endpoint_slice: EndpointSlice, endpoints: Endpoints) -> bool:
    """Return whether the slice still belongs to a deleted Endpoints object of the same name.

    The garbage collector deletes such a slice, even if its endpoints are right.
    """
    meta = endpoints.metadata
    return any(
        owner.kind == "Endpoints" and owner.name == meta.name and owner.uid != meta.uid
        for owner in endpoint_slice.metadata.owner_references
    )


def _recycle(
    create: list[EndpointSlice], delete: list[EndpointSlice]
) -> tuple[list[EndpointSlice], list[EndpointSlice], list[EndpointSlice]]:
    """Turn deletions into updates: a slice to create takes over the first slice to delete."""
    recycled: list[EndpointSlice] = []
    created: list[EndpointSlice] = []
    remaining = list(delete)
    for successor in create:
        existing = next(
            (
                candidate
                for candidate in remaining
                if candidate.address_type == successor.address_type
            ),
            None,
        )
        if existing is None:
            created.append(successor)
        else:
            remaining.remove(existing)
            recycled.append(take_over(successor, existing))
    return created, recycled, remaining
