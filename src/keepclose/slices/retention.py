"""Which fields of a write the API server does not keep, and which writes are therefore pointless.

An API server drops fields whose feature gate is off, and an admission webhook may change fields. A
controller that compares the desired object with the stored one would then repeat the same write
for ever. This module remembers the last write that was not kept, and what was stored instead: while
the object is stored like that, the same write is withheld. Any other write goes out with the field,
so that other changes are never held up and a server that keeps the field again is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.field_errors import differing_fields
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.well_known import TRIGGER_TIME_ANNOTATION
from keepclose.slices.packing import SlicePlan

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")


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
