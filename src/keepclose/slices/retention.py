"""What an API server keeps of what was written, and which writes it makes pointless.

A server may drop a field whose feature gate is off, and an admission webhook may change one. A
controller that compares its wish with what is stored would then write the same object for ever.
Here the last write that was not kept is remembered with what became of it: as long as the object is
stored like that, the same write is withheld. Any other write goes out, the field in it, so that
other changes of the object are not held up and a server that keeps the field again is noticed.
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


class Unkept(NamedTuple, Generic[_T]):
    """An object as it was sent and as it was stored, and the fields that differ."""

    sent: _T
    stored: _T
    fields: tuple[str, ...]


class Retention(Generic[_K, _T]):
    """The last writes of each object, as far as a server did not keep them whole.

    `content_of` returns what is compared of an object: a value with names for its parts, without
    what changes with every write.
    """

    def __init__(self, content_of: Callable[[_T], dict[str, Any]]) -> None:
        self._content_of = content_of
        self._unkept: dict[_K, Unkept[_T]] = {}

    def __len__(self) -> int:
        return len(self._unkept)

    def note(self, key: _K, sent: _T, stored: _T) -> Iterable[_K]:
        """Take what became of a write; return the objects that it sets free to be written again.

        These are the objects with the same fields at fault, once a write with them was kept.
        """
        wanted, found = self._content_of(sent), self._content_of(stored)
        if wanted != found:
            self._unkept[key] = Unkept(sent, stored, differing_fields(wanted, found))
            return ()
        before = self._unkept.pop(key, None)
        return () if before is None else self.release(before.fields)

    def is_pointless(self, key: _K, wanted: _T, present: _T) -> bool:
        """Return whether a write would only repeat the last one, whose outcome is still stored."""
        unkept = self._unkept.get(key)
        return (
            unkept is not None
            and self._content_of(unkept.sent) == self._content_of(wanted)
            and self._content_of(unkept.stored) == self._content_of(present)
        )

    def fields(self, key: _K) -> tuple[str, ...]:
        """Return the fields of an object that were not kept; none for one that was kept whole."""
        unkept = self._unkept.get(key)
        return () if unkept is None else unkept.fields

    def keys(self) -> tuple[_K, ...]:
        """Return the objects that were not kept whole."""
        return tuple(self._unkept)

    def samples(self) -> list[tuple[_K, _T]]:
        """Return for each set of fields that are not kept one object, as it was sent."""
        by_fields = {one.fields: (key, one.sent) for key, one in self._unkept.items()}
        return list(by_fields.values())

    def release(self, fields: tuple[str, ...]) -> tuple[_K, ...]:
        """Forget the writes that lost one of these fields; return the objects."""
        freed = [key for key, one in self._unkept.items() if set(one.fields) & set(fields)]
        for key in freed:
            del self._unkept[key]
        return tuple(freed)

    def forget(self, key: _K) -> None:
        """Forget an object that is gone."""
        self._unkept.pop(key, None)


SliceRetention = Retention[NamespacedName, EndpointSlice]
"""Slices by their own names."""


def retain_slices() -> SliceRetention:
    """Return the retention of slices, of which nothing has been written yet."""
    return Retention(_slice_content)


def withhold(
    plan: SlicePlan, retention: SliceRetention, present: Iterable[EndpointSlice]
) -> SlicePlan:
    """Return the plan without the updates that the server would not keep once more."""
    if not len(retention) or not plan.update:
        return plan
    known = {one.metadata.key: one for one in present}
    stays = {
        key: known[key]
        for one in plan.update
        if (key := one.metadata.key) in known and retention.is_pointless(key, one, known[key])
    }
    if not stays:
        return plan
    update = tuple(one for one in plan.update if one.metadata.key not in stays)
    return replace(
        plan,
        update=update,
        unchanged=(*plan.unchanged, *stays.values()),
        rehinted=plan.rehinted if update else 0,
    )


def condition_content(conditions: tuple[Condition, ...]) -> dict[str, Any]:
    """Return what counts of conditions when they are compared: all but the times."""
    return {one.type: replace(one, last_transition_time=None) for one in conditions}


def _slice_content(one: EndpointSlice) -> dict[str, Any]:
    meta = one.metadata
    annotations = meta.annotations
    if TRIGGER_TIME_ANNOTATION in annotations:
        annotations = {k: v for k, v in annotations.items() if k != TRIGGER_TIME_ANNOTATION}
    return {
        "endpoints": one.endpoints,
        "ports": one.ports,
        "metadata.labels": meta.labels,
        "metadata.annotations": annotations,
        "metadata.ownerReferences": meta.owner_references,
    }
