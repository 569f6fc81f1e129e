"""The last touches on a plan: placeholder, recycled slices, and the trigger-time annotation.

Follows the EndpointSlice controller. A Service always has a slice per address type, so that its
consumers can tell "no pods" from "not yet seen". The placeholder is added before hints are; the
rest comes after them. A slice that would be deleted lends its name to one that would be created,
because an update is cheaper for every watcher than both.
"""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER, TRIGGER_TIME_ANNOTATION
from keepclose.slices.packing import SlicePlan
from keepclose.slices.slice_metadata import is_owned_by, is_placeholder_equal, placeholder


def add_placeholder(
    plan: SlicePlan,
    service: Service,
    *,
    address_type: str,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> SlicePlan:
    """Return the plan with a placeholder to create if it would leave no slice at all.

    Where the only slice to delete is that placeholder already, it simply stays.
    """
    if plan.create or plan.update or plan.unchanged:
        return plan
    empty = placeholder(service, address_type=address_type, managed_by=managed_by)
    if len(plan.delete) == 1 and is_placeholder_equal(plan.delete[0], empty):
        return replace(plan, delete=(), unchanged=plan.delete)
    return replace(plan, create=(empty,))


def finish(plan: SlicePlan, service: Service, *, trigger_time: str = "") -> SlicePlan:
    """Return the plan as it is to be written.

    `trigger_time` is RFC 3339, "" when there is none. A Service that is being deleted gets no new
    slices: the garbage collector would race with them.
    """
    create, update, delete = _recycle(plan, service)
    withheld = 0
    if service.metadata.deletion_timestamp is not None:
        create, withheld = (), len(create)
    return replace(
        plan,
        create=tuple([with_trigger_time(piece, trigger_time) for piece in create]),
        update=tuple([with_trigger_time(piece, trigger_time) for piece in update]),
        delete=delete,
        withheld=withheld,
    )


def take_over(successor: EndpointSlice, existing: EndpointSlice) -> EndpointSlice:
    """Return the new slice as an update of an existing one: its identity, nothing else of it."""
    metadata = replace(
        existing.metadata,
        labels=successor.metadata.labels,
        annotations=successor.metadata.annotations,
        owner_references=successor.metadata.owner_references,
    )
    return replace(successor, metadata=metadata)


def with_trigger_time(piece: EndpointSlice, trigger_time: str) -> EndpointSlice:
    """Return the slice with the annotation of when its change was triggered; "" removes it."""
    annotations = piece.metadata.annotations
    if annotations.get(TRIGGER_TIME_ANNOTATION, "") == trigger_time and (
        trigger_time or TRIGGER_TIME_ANNOTATION not in annotations
    ):
        return piece
    changed = {key: value for key, value in annotations.items() if key != TRIGGER_TIME_ANNOTATION}
    if trigger_time:
        changed[TRIGGER_TIME_ANNOTATION] = trigger_time
    return replace(piece, metadata=replace(piece.metadata, annotations=changed))


def _recycle(
    plan: SlicePlan, service: Service
) -> tuple[tuple[EndpointSlice, ...], tuple[EndpointSlice, ...], tuple[EndpointSlice, ...]]:
    create = list(plan.create)
    update = list(plan.update)
    delete: list[EndpointSlice] = []
    for doomed in plan.delete:
        # NB: the address type of a slice cannot change, and a slice of an older Service of the
        # same name is the garbage collector's.
        if (
            create
            and create[-1].address_type == doomed.address_type
            and is_owned_by(doomed, service)
        ):
            update.append(take_over(create.pop(), doomed))
        else:
            delete.append(doomed)
    return tuple(create), tuple(update), tuple(delete)
