"""Causes in EndpointSlices: what stands in them, beside what the planner would write.

Nodes go by the slices as they are, of any writer. A difference is stale, another controller's
choice, or a change that was being written while the input was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from shlex import quote
from typing import NamedTuple

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.service_facts import ServiceFacts, name_address
from keepclose.advise.verification_causes import name_some
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import ServicePort
from keepclose.model.well_known import (
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    SERVICE_NAME_LABEL,
)
from keepclose.routing.hint_facts import group_of
from keepclose.slices.slice_metadata import is_owned_by


class SliceDifference(NamedTuple):
    """Addresses by how their endpoints in the slices differ from the planned ones."""

    gone: tuple[str, ...] = ()
    """In the slices, and not planned."""
    missing: tuple[str, ...] = ()
    """Planned, and not in the slices."""
    changed: tuple[str, ...] = ()
    """In both with other conditions, nodes, zones or ports."""
    hints: tuple[str, ...] = ()
    """In both with other hints, while ready."""

    @property
    def is_stale(self) -> bool:
        """Whether the slices show other endpoints than the Pods."""
        return bool(self.gone or self.missing or self.changed)


def compare_slices(facts: ServiceFacts) -> SliceDifference:
    """Return how the slices of the input differ from the plan; nothing without both."""
    if not facts.has_slices or not facts.knows_pods or not facts.knows_nodes:
        return SliceDifference()
    if facts.service.spec.selector is None:
        return SliceDifference()
    managed_by = facts.settings.managed_by
    planned_slices = [
        each
        for each in facts.planned.slices
        if each.metadata.labels.get(MANAGED_BY_LABEL) == managed_by
    ]
    written, planned = endpoints_by_address(facts.written), endpoints_by_address(planned_slices)
    gone = [address for address in written if address not in planned]
    if not facts.selected and written:
        # The plan takes Pods from the slices where the input has none of them.
        gone = [address for address, _ in written.items()]
        planned = {}
    both = [address for address in written if address in planned]
    changed = [address for address in both if _state(written[address]) != _state(planned[address])]
    hints = [
        address
        for address in both
        if address not in changed
        and written[address][0].is_ready
        and hints_of(written[address][0]) != hints_of(planned[address][0])
    ]
    return SliceDifference(
        tuple(gone),
        tuple(address for address in planned if address not in written),
        tuple(changed),
        tuple(hints),
    )


def explain_slice_faults(
    facts: ServiceFacts, difference: SliceDifference
) -> Iterator[TrafficCause]:
    """Yield what is wrong with the slices: missing, stale, without a label, or another's."""
    if facts.service.spec.type == "ExternalName" or not facts.has_slices:
        return
    unlabelled = _without_service(facts)
    if facts.service.spec.selector is None:
        if not facts.slices and unlabelled:
            yield _name_service(facts, unlabelled)
        yield from _port_names(facts)
        return
    older = [
        each
        for each in facts.written
        if facts.service.metadata.uid
        and each.metadata.owner_references
        and not is_owned_by(each, facts.service)
    ]
    if older:
        yield TrafficCause(
            TrafficCauseCode.SLICES_OF_OLDER_SERVICE,
            f"EndpointSlice {name_some(each.metadata.name for each in older)} belongs to an older "
            "Service of this name, which was deleted: its endpoints count until it is collected",
            f"EndpointSlice {facts.key.namespace}/{older[0].metadata.name}",
            fix=f"kubectl delete endpointslice -n {quote(facts.key.namespace)} "
            f"{quote(older[0].metadata.name)}",
        )
    yield from _foreign(facts)
    if not facts.written and difference.missing:
        if unlabelled:
            yield _name_service(facts, unlabelled)
        yield TrafficCause(
            TrafficCauseCode.SLICES_NOT_WRITTEN,
            f"the input has no slice of the EndpointSlice controller for the Service, and "
            f"{_count(difference.missing, 'endpoint')} should be there: no controller runs, it is "
            "behind, or it may not write",
            facts.subject,
            fix=f"kubectl get lease -n kube-system kube-controller-manager; kubectl get events "
            f"-n {quote(facts.key.namespace)} --field-selector involvedObject.name="
            f"{quote(facts.key.name)}",
            weight=CauseWeight.DEFEATS if facts.ready_endpoints() else CauseWeight.BLOCKS,
        )
    elif difference.is_stale:
        yield _stale(facts, difference)
    yield from _port_names(facts)


def managers_of(slices: Iterable[EndpointSlice]) -> tuple[str, ...]:
    """Return who manages the slices, by their label; "" for a slice without one."""
    return tuple(sorted({each.metadata.labels.get(MANAGED_BY_LABEL, "") for each in slices}))


def endpoints_by_address(
    slices: Iterable[EndpointSlice],
) -> dict[str, tuple[Endpoint, EndpointSlice]]:
    """Return the endpoints by address; of an address in two slices, the ready one counts."""
    found: dict[str, tuple[Endpoint, EndpointSlice]] = {}
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            address = name_address(endpoint)
            if address not in found or endpoint.is_ready:
                found[address] = (endpoint, endpoint_slice)
    return found


def _state(entry: tuple[Endpoint, EndpointSlice]) -> tuple[object, ...]:
    """Return what a node reads of an endpoint besides hints."""
    endpoint, endpoint_slice = entry
    ports = sorted(
        (port.name or "", port.protocol or "TCP", port.port) for port in endpoint_slice.ports
    )
    conditions = endpoint.conditions
    return (
        conditions.ready is not False,
        conditions.terminating is True,
        endpoint.node_name or "",
        endpoint.zone or "",
        tuple(ports),
    )


def hints_of(endpoint: Endpoint) -> tuple[str, str]:
    """Return the zones and the nodes that an endpoint is hinted for, each as one text."""
    hints = endpoint.hints
    if hints is None:
        return "", ""
    return group_of(hints), ",".join(sorted(hint.name for hint in hints.for_nodes))


def _stale(facts: ServiceFacts, difference: SliceDifference) -> TrafficCause:
    written = endpoints_by_address(facts.written)
    parts: list[str] = []
    if difference.gone:
        names = name_some(_name(written[each][0]) for each in difference.gone)
        parts.append(f"{_count(difference.gone, 'endpoint')} without a Pod in the input ({names})")
    if difference.missing:
        names = name_some(difference.missing)
        parts.append(f"without {_count(difference.missing, 'endpoint')} that Pods give ({names})")
    if difference.changed:
        names = name_some(_name(written[each][0]) for each in difference.changed)
        parts.append(
            f"{_count(difference.changed, 'endpoint')} with another state, node, zone or port "
            f"({names})"
        )
    return TrafficCause(
        TrafficCauseCode.SLICES_STALE,
        f"the slices are not as the Pods are: {'; '.join(parts)}. The controller is behind, or a "
        "change was being written while the input was read",
        facts.subject,
        fix=describe_slices(facts),
    )


def _name(endpoint: Endpoint) -> str:
    target = endpoint.target_ref
    return target.name if target is not None and target.name else name_address(endpoint)


def _foreign(facts: ServiceFacts) -> Iterator[TrafficCause]:
    others = [
        each
        for each in facts.foreign
        if each.metadata.labels.get(MANAGED_BY_LABEL) != MIRRORING_CONTROLLER
    ]
    if not others:
        return
    names = [name or "no controller" for name in managers_of(others)]
    count = sum(len(each.endpoints) for each in others)
    yield TrafficCause(
        TrafficCauseCode.SLICES_OF_OTHER_CONTROLLER,
        f"EndpointSlice {name_some(each.metadata.name for each in others)} of {', '.join(names)} "
        f"has {count} endpoint{'' if count == 1 else 's'} that nodes use too; the EndpointSlice "
        "controller never changes them or their hints",
        f"EndpointSlice {facts.key.namespace}/{others[0].metadata.name}",
        fix=f"kubectl get endpointslice -n {quote(facts.key.namespace)} "
        f"{quote(others[0].metadata.name)} -o yaml",
        weight=CauseWeight.NOTE,
    )


def _without_service(facts: ServiceFacts) -> list[EndpointSlice]:
    """Return the slices of the namespace that look like the Service's and lack its label."""
    name = facts.key.name
    return [
        each
        for each in facts.inventory.slices.get(NamespacedName(facts.key.namespace, ""), ())
        if each.metadata.name == name
        or each.metadata.name.startswith(f"{name}-")
        or any(
            owner.kind == "Service" and owner.name == name
            for owner in each.metadata.owner_references
        )
    ]


def _name_service(facts: ServiceFacts, unlabelled: list[EndpointSlice]) -> TrafficCause:
    first = unlabelled[0].metadata.name
    return TrafficCause(
        TrafficCauseCode.SLICES_WITHOUT_SERVICE,
        f"EndpointSlice {name_some(each.metadata.name for each in unlabelled)} has no label "
        f"{SERVICE_NAME_LABEL}, so it belongs to no Service and nodes ignore it",
        f"EndpointSlice {facts.key.namespace}/{first}",
        fix=f"kubectl label endpointslice -n {quote(facts.key.namespace)} {quote(first)} "
        f"{SERVICE_NAME_LABEL}={quote(facts.key.name)}",
        weight=CauseWeight.BLOCKS,
    )


def _port_names(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield ports of the Service that no slice has by that name.

    Target ports that Pods lack are causes of their own, so that only slices by hand are left.
    """
    service = facts.service
    if service.is_headless or not any(held.endpoints for held in facts.slices):
        return
    keys = {
        (port.name or "", port.protocol or "TCP") for held in facts.slices for port in held.ports
    }
    weight = CauseWeight.DEFEATS if facts.has_usable_endpoint else CauseWeight.BLOCKS
    for port in service.spec.ports:
        if (port.name, port.protocol or "TCP") in keys:
            continue
        near = _same_number(port, facts)
        if near is not None:
            held, index = near
            patch = json.dumps(
                [{"op": "replace", "path": f"/ports/{index}/name", "value": port.name}],
                separators=(",", ":"),
            )
            yield TrafficCause(
                TrafficCauseCode.PORT_NAME_DIFFERS,
                f"port {port.name or port.port} of the Service and port "
                f"{held.ports[index].name or '(no name)'} of EndpointSlice {held.metadata.name} "
                f"have the number {held.ports[index].port} and other names: nodes match ports by "
                "name",
                f"EndpointSlice {facts.key.namespace}/{held.metadata.name}",
                fix=f"kubectl patch endpointslice -n {quote(facts.key.namespace)} "
                f"{quote(held.metadata.name)} --type json -p {quote(patch)}",
                weight=weight,
            )
        elif service.spec.selector is None:
            names = name_some(sorted(f"{name or '(no name)'}/{kind}" for name, kind in keys))
            yield TrafficCause(
                TrafficCauseCode.PORT_NAME_DIFFERS,
                f"no slice has the port {port.name or '(no name)'}/{port.protocol or 'TCP'} of the "
                f"Service; they have {names or 'none'}, and nodes match ports by name and protocol",
                facts.subject,
                fix=describe_slices(facts),
                weight=weight,
            )


def _same_number(port: ServicePort, facts: ServiceFacts) -> tuple[EndpointSlice, int] | None:
    """Return the port of a slice with the number of a Service's port, and another name."""
    number = port.target_port if isinstance(port.target_port, int) else port.port
    for held in facts.slices:
        for index, other in enumerate(held.ports):
            is_same = other.port == number and (other.protocol or "TCP") == (port.protocol or "TCP")
            if is_same and (other.name or "") != port.name:
                return held, index
    return None


def describe_slices(facts: ServiceFacts) -> str:
    """Return the command that shows the slices of the Service."""
    return (
        f"kubectl describe endpointslices -n {quote(facts.key.namespace)} "
        f"-l {SERVICE_NAME_LABEL}={quote(facts.key.name)}"
    )


def _count(items: tuple[str, ...], noun: str) -> str:
    return f"{len(items)} {noun}" + ("" if len(items) == 1 else "s")
