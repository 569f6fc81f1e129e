"""How many endpoints go into which slice, and the final steps of a plan.

Follows the EndpointSlice controller. Slices that are written anyway are filled first, the fullest
first. Then one unchanged slice is written only if it takes all the rest, and the one that is filled
best; otherwise slices are created. A single new slice is preferred to several small updates, and no
endpoint is ever moved to save space. Ties go to the slice whose name sorts first.

A Service always has a slice per address type, so that consumers can tell "no pods" from "not yet
seen"; this placeholder is added before hints. A slice to delete is recycled for a slice to create,
because one update costs every watcher less than a delete and a create.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER, TRIGGER_TIME_ANNOTATION
from keepclose.slices.slice_metadata import is_owned_by, is_placeholder_equal, placeholder


class SlicePlan(msgspec.Struct, frozen=True):
    """The writes for one Service and address type, and the slices that stay as they are.

    Slices to create have no name yet. `added` and `removed` count endpoints; endpoints of slices
    whose ports no pod has any more do not count as removed. `reallocated` and `rehinted` count
    endpoints that are in slices already.
    """

    create: tuple[EndpointSlice, ...] = ()
    update: tuple[EndpointSlice, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()
    unchanged: tuple[EndpointSlice, ...] = ()
    added: int = 0
    removed: int = 0
    reallocated: int = 0
    """Endpoints that now serve another zone than the slices say."""
    rehinted: int = 0
    """Endpoints whose hints differ from the written ones."""
    withheld: int = 0
    """Slices that are not created because their Service is being deleted."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self.create or self.update or self.delete)


class SliceShare(NamedTuple):
    """A number of endpoints to add to a slice; the name "" stands for a new slice."""

    slice_name: str
    number: int


def pack(
    count: int, *, updating: Mapping[str, int], unchanged: Mapping[str, int], max_endpoints: int
) -> tuple[SliceShare, ...]:
    """Return which slices take `count` endpoints without a slice; the shares add up to `count`.

    `updating` and `unchanged` are the sizes of the slices by name. A limit below one counts as one.
    """
    limit = max(max_endpoints, 1)
    shares: list[SliceShare] = []
    for name, size in sorted(updating.items(), key=lambda item: (-item[1], item[0])):
        room = min(limit - size, count)
        if room > 0:
            shares.append(SliceShare(name, room))
            count -= room
    while count > 0:
        if count < limit and (best := _best_fit(count, unchanged, limit)) is not None:
            shares.append(SliceShare(best, count))
            break
        portion = min(count, limit)
        shares.append(SliceShare("", portion))
        count -= portion
    return tuple(shares)


def _best_fit(count: int, sizes: Mapping[str, int], limit: int) -> str | None:
    fitting = [(limit - size, name) for name, size in sizes.items() if size + count <= limit]
    return min(fitting)[1] if fitting else None


def add_placeholder(
    plan: SlicePlan,
    service: Service,
    *,
    address_type: str,
    managed_by: str = ENDPOINTSLICE_CONTROLLER,
) -> SlicePlan:
    """Return the plan, with a placeholder to create if the plan would leave no slice.

    If the only slice to delete is already that placeholder, it stays.
    """
    if plan.create or plan.update or plan.unchanged:
        return plan
    empty = placeholder(service, address_type=address_type, managed_by=managed_by)
    if len(plan.delete) == 1 and is_placeholder_equal(plan.delete[0], empty):
        return replace(plan, delete=(), unchanged=plan.delete)
    return replace(plan, create=(empty,))


def finish_plan(plan: SlicePlan, service: Service, *, trigger_time: str = "") -> SlicePlan:
    """Return the plan to write: slices recycled, and the trigger time annotated.

    `trigger_time` is in RFC 3339, "" for none. A Service that is being deleted gets no new slices:
    they would race with the garbage collector.
    """
    create, update, delete = _recycle(plan, service)
    withheld = 0
    if service.metadata.deletion_timestamp is not None:
        create, withheld = (), len(create)
    return replace(
        plan,
        create=tuple(
            [with_trigger_time(endpoint_slice, trigger_time) for endpoint_slice in create]
        ),
        update=tuple(
            [with_trigger_time(endpoint_slice, trigger_time) for endpoint_slice in update]
        ),
        delete=delete,
        withheld=withheld,
    )


def take_over(successor: EndpointSlice, existing: EndpointSlice) -> EndpointSlice:
    """Return the new slice as an update of an existing one, of which only the identity stays."""
    metadata = replace(
        existing.metadata,
        labels=successor.metadata.labels,
        annotations=successor.metadata.annotations,
        owner_references=successor.metadata.owner_references,
    )
    return replace(successor, metadata=metadata)


def with_trigger_time(endpoint_slice: EndpointSlice, trigger_time: str) -> EndpointSlice:
    """Return the slice with the trigger-time annotation; "" removes the annotation."""
    annotations = endpoint_slice.metadata.annotations
    if annotations.get(TRIGGER_TIME_ANNOTATION, "") == trigger_time and (
        trigger_time or TRIGGER_TIME_ANNOTATION not in annotations
    ):
        return endpoint_slice
    changed = {key: value for key, value in annotations.items() if key != TRIGGER_TIME_ANNOTATION}
    if trigger_time:
        changed[TRIGGER_TIME_ANNOTATION] = trigger_time
    return replace(endpoint_slice, metadata=replace(endpoint_slice.metadata, annotations=changed))


def _recycle(
    plan: SlicePlan, service: Service
) -> tuple[tuple[EndpointSlice, ...], tuple[EndpointSlice, ...], tuple[EndpointSlice, ...]]:
    create = list(plan.create)
    update = list(plan.update)
    delete: list[EndpointSlice] = []
    for deletable in plan.delete:
        # NB: the address type of a slice is immutable, and the garbage collector deletes a slice
        # of an older Service of the same name.
        if (
            create
            and create[-1].address_type == deletable.address_type
            and is_owned_by(deletable, service)
        ):
            update.append(take_over(create.pop(), deletable))
        else:
            delete.append(deletable)
    return tuple(create), tuple(update), tuple(delete)
