"""Keeps a controller from repeating writes of fields that its API server drops.

A server with other feature gates or versions drops fields. The guard learns what was stored from
the full answer where a write brings new hints, and else from the watch, which delivers the same
resource version with another content. `Retention` decides which writes are then pointless. A dry
run checks whether the server stores the fields by now, so that the check changes nothing.

An API server drops fields whose feature gate is off, and an admission webhook may change fields. A
controller that compares the desired object with the stored one would then repeat the same write for
ever. `Retention` remembers the last write that was not kept, and what was stored instead: while the
object is stored like that, the same write is withheld. Any other write goes out with the field, so
that other changes are never held up and a server that keeps the field again is noticed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import structlog
from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.errors import KubeError
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.field_errors import describe_fields, differing_fields
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.routing.hint_facts import hint_levels
from keepclose.slices.changes import is_managed_by
from keepclose.slices.packing import SlicePlan, take_over
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)
# Sets of dropped fields that are logged once each.
_MAX_LOGGED: Final = 100
TryWrite = Callable[[EndpointSlice, EndpointSlice], Awaitable[EndpointSlice]]
_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


class SliceGuard:
    """Which fields of one controller's slices the API server does not store.

    The guard calls `on_due` with a Service to requeue. `try_write` is a dry run: it returns what
    the server would store of a slice in place of the present one.
    """

    def __init__(
        self,
        cache: Cache[EndpointSlice],
        *,
        managed_by: str,
        try_write: TryWrite,
        on_due: Callable[[NamespacedName], None],
    ) -> None:
        self._try_write = try_write
        self._cache = cache
        self._managed_by = managed_by
        self._on_due = on_due
        self._retention = retain_slices()
        self._logged: set[tuple[str, ...]] = set()

    def __len__(self) -> int:
        return len(self._retention)

    def record(self, sent: EndpointSlice, stored: EndpointSlice) -> None:
        """Record what the server stored of a write."""
        key = stored.metadata.key
        self._requeue(self._retention.note(key, sent, stored))
        fields = self._retention.fields(key)
        if fields and fields not in self._logged:
            if len(self._logged) >= _MAX_LOGGED:
                # NB: a webhook that sets ever new labels would fill memory and the log.
                self._logged.clear()
            self._logged.add(fields)
            _log.warning(describe_fields(fields), slice=str(key))

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Record from the watch what was stored of a write answered with metadata alone."""
        if new is None:
            if old is not None:
                self._retention.forget(old.metadata.key)
            return
        if (
            old is None
            or old.metadata.resource_version != new.metadata.resource_version
            or not is_managed_by(new, self._managed_by)
        ):
            return
        self.record(old, new)
        if self._retention.fields(new.metadata.key):
            self._on_due(new.service_key)

    def withhold(self, plan: SlicePlan, present: Iterable[EndpointSlice]) -> SlicePlan:
        """Return the plan without updates that the server would not store."""
        return withhold(plan, self._retention, present)

    def withhold_all(self, plan: ServicePlan, present: list[EndpointSlice]) -> ServicePlan:
        """Return the plan of a Service without updates that the server would not store."""
        if not len(self._retention):
            return plan
        plans = {
            address_type: self.withhold(slice_plan, present)
            for address_type, slice_plan in plan.plans.items()
        }
        return replace(plan, plans=plans)

    def is_pointless(self, desired: EndpointSlice, present: EndpointSlice) -> bool:
        """Return whether the server would drop a write, as it dropped the last one."""
        return self._retention.is_pointless(present.metadata.key, desired, present)

    def fields(self, slices: Iterable[EndpointSlice]) -> tuple[str, ...]:
        """Return the fields of these slices that the server does not store, sorted."""
        if not len(self._retention):
            return ()
        dropped = [self._retention.fields(item.metadata.key) for item in slices]
        return tuple(sorted({field for fields in dropped for field in fields}))

    async def recheck(self) -> None:
        """Check by a dry run, for each set of fields, whether the server stores them by now."""
        for key, sent in self._retention.samples():
            present = self._cache.get(key)
            if present is None:
                self._retention.forget(key)
                continue
            try:
                stored = await self._try_write(sent, present)
            except KubeError as error:
                _log.info("dry run of dropped fields failed", slice=str(key), error=str(error))
                continue
            fields = self._retention.fields(key)
            freed = self._retention.note(key, sent, stored)
            if freed or not self._retention.fields(key):
                self._logged.discard(fields)
                _log.info("API server stores fields again", fields=fields)
                self._requeue((key, *freed))

    def _requeue(self, keys: Iterable[NamespacedName]) -> None:
        for key in keys:
            present = self._cache.get(key)
            if present is not None:
                self._on_due(present.service_key)


async def try_update(client: Client, sent: EndpointSlice, present: EndpointSlice) -> EndpointSlice:
    """Return what the server would store if the whole slice were replaced."""
    return await client.update(ENDPOINT_SLICES, take_over(sent, present), dry_run=True)


def brings_hints(endpoint_slice: EndpointSlice, before: EndpointSlice | None) -> bool:
    """Return whether a write brings a kind of hints that the slice did not have."""
    return bool(hint_levels([endpoint_slice]) - hint_levels([] if before is None else [before]))


class UnkeptWrite(NamedTuple, Generic[_T]):
    """A write that was not kept: the object as sent, as stored, and the fields that differ."""

    sent: _T
    stored: _T
    fields: tuple[str, ...]


class Retention(Generic[_K, _T]):
    """The last write of each object, if the API server did not keep it completely.

    `content_of` returns the parts of an object to compare, by name, without parts that change with
    every write.
    """

    def __init__(self, content_of: Callable[[_T], dict[str, Any]]) -> None:
        self._content_of = content_of
        self._unkept: dict[_K, UnkeptWrite[_T]] = {}

    def __len__(self) -> int:
        return len(self._unkept)

    def note(self, key: _K, sent: _T, stored: _T) -> Iterable[_K]:
        """Record the outcome of a write; return the objects that may be written again.

        Once a write is kept, these are all objects that had lost one of the same fields.
        """
        sent_content, stored_content = self._content_of(sent), self._content_of(stored)
        if sent_content != stored_content:
            self._unkept[key] = UnkeptWrite(
                sent, stored, differing_fields(sent_content, stored_content)
            )
            return ()
        unkept = self._unkept.pop(key, None)
        return () if unkept is None else self.release(unkept.fields)

    def is_pointless(self, key: _K, desired: _T, present: _T) -> bool:
        """Return whether a write would only repeat the last one, whose result is still stored."""
        unkept = self._unkept.get(key)
        return (
            unkept is not None
            and self._content_of(unkept.sent) == self._content_of(desired)
            and self._content_of(unkept.stored) == self._content_of(present)
        )

    def fields(self, key: _K) -> tuple[str, ...]:
        """Return the fields of an object that were not kept; () if all were."""
        unkept = self._unkept.get(key)
        return () if unkept is None else unkept.fields

    def keys(self) -> tuple[_K, ...]:
        """Return the objects of which a field was not kept."""
        return tuple(self._unkept)

    def samples(self) -> list[tuple[_K, _T]]:
        """Return one object, as sent, for each set of fields that are not kept."""
        by_fields = {unkept.fields: (key, unkept.sent) for key, unkept in self._unkept.items()}
        return list(by_fields.values())

    def release(self, fields: tuple[str, ...]) -> tuple[_K, ...]:
        """Forget the writes that lost one of these fields; return their objects."""
        released = [key for key, unkept in self._unkept.items() if set(unkept.fields) & set(fields)]
        for key in released:
            del self._unkept[key]
        return tuple(released)

    def forget(self, key: _K) -> None:
        """Forget a deleted object."""
        self._unkept.pop(key, None)


SliceRetention = Retention[NamespacedName, EndpointSlice]
"""Retention of slices, by namespace and name."""


def retain_slices() -> SliceRetention:
    """Return an empty retention of slices."""
    return Retention(_slice_content)


def withhold(
    plan: SlicePlan, retention: SliceRetention, present: Iterable[EndpointSlice]
) -> SlicePlan:
    """Return the plan without the updates that the API server would again not keep."""
    if not len(retention) or not plan.update:
        return plan
    stored = {endpoint_slice.metadata.key: endpoint_slice for endpoint_slice in present}
    withheld = {
        key: stored[key]
        for desired in plan.update
        if (key := desired.metadata.key) in stored
        and retention.is_pointless(key, desired, stored[key])
    }
    if not withheld:
        return plan
    update = tuple(desired for desired in plan.update if desired.metadata.key not in withheld)
    return replace(
        plan,
        update=update,
        unchanged=(*plan.unchanged, *withheld.values()),
        rehinted=plan.rehinted if update else 0,
    )


def condition_content(conditions: tuple[Condition, ...]) -> dict[str, Any]:
    """Return conditions by type for comparison, without their transition times."""
    return {
        condition.type: replace(condition, last_transition_time=None) for condition in conditions
    }


def _slice_content(endpoint_slice: EndpointSlice) -> dict[str, Any]:
    meta = endpoint_slice.metadata
    annotations = meta.annotations
    if TRIGGER_TIME_ANNOTATION in annotations:
        annotations = {k: v for k, v in annotations.items() if k != TRIGGER_TIME_ANNOTATION}
    return {
        "endpoints": endpoint_slice.endpoints,
        "ports": endpoint_slice.ports,
        "metadata.labels": meta.labels,
        "metadata.annotations": annotations,
        "metadata.ownerReferences": meta.owner_references,
    }
