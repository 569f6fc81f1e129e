"""Which news of slices is news: our own writes come back as events and concern nobody.

What concerns whom is said by `slices.changes`. Here is added what only a running controller meets:
an event can be faster than the answer to the write that caused it, a slice can leave us without
being deleted, and one that another controller wrote, the one before us most often, can be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from keepclose.controller.writes import WriteOutcome
from keepclose.kube.cache import Cache
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.slices.changes import (
    is_managed_by,
    service_of,
    services_for_added_slice,
    services_for_changed_slice,
    services_for_deleted_slice,
)
from keepclose.slices.trackers import SliceTracker


class Setbacks:
    """The setbacks of one queue."""

    def __init__(self) -> None:
        self._waits: dict[NamespacedName, float] = {}
        self._cut_off: set[NamespacedName] = set()

    def note(self, key: NamespacedName, outcome: WriteOutcome) -> None:
        """Note how the writes of a sync went; what was noted of the key before is forgotten."""
        self._waits.pop(key, None)
        self._cut_off.discard(key)
        if outcome.wait_s > 0:
            self._waits[key] = outcome.wait_s
        if outcome.is_cut_off:
            self._cut_off.add(key)

    def forget(self, key: NamespacedName) -> None:
        """Forget a key that needs no writes any more."""
        self.note(key, WriteOutcome())

    def take_wait(self, key: NamespacedName) -> float:
        """Return once for how long the server asked the key to stay away; 0 if it did not."""
        return self._waits.pop(key, 0.0)

    def cut_off(self) -> Iterable[NamespacedName]:
        """Return the keys whose last sync found nobody there."""
        return tuple(self._cut_off)


class SliceNews:
    """Judges events of the slices that one controller manages."""

    def __init__(
        self, cache: Cache[EndpointSlice], tracker: SliceTracker, *, managed_by: str
    ) -> None:
        self._cache = cache
        self._tracker = tracker
        self._managed_by = managed_by
        self._put_off: dict[NamespacedName, set[NamespacedName]] = {}

    def services(
        self, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> Iterable[NamespacedName]:
        """Return the Services to sync after a slice came, changed or went."""
        tracker, managed_by = self._tracker, self._managed_by
        if new is None:
            if old is None:
                return ()
            if is_managed_by(old, managed_by) and not tracker.has(old):
                # NB: what we delete is tracked, so this was somebody else.
                return _service(old)
            return services_for_deleted_slice(old, tracker=tracker, managed_by=managed_by)
        if old is not None and self._is_leaving(old, new):
            # NB: else the tracker would wait for ever for a slice that will not come back.
            if is_managed_by(old, managed_by):
                tracker.handle_deletion(old)
            return services_for_changed_slice(old, new, tracker=tracker, managed_by=managed_by)
        put_off = self._put_off.get(new.service_key)
        if put_off is not None:
            put_off.add(new.metadata.key)
            return ()
        if old is None:
            return services_for_added_slice(new, tracker=tracker, managed_by=managed_by)
        if old.metadata.owner_references != new.metadata.owner_references and is_managed_by(
            new, managed_by
        ):
            # NB: owners do not count as content, so the generation tells nothing of them.
            return _service(new)
        return services_for_changed_slice(old, new, tracker=tracker, managed_by=managed_by)

    def begin_writes(self, service: NamespacedName) -> None:
        """Put off the judgement of this Service's slices until its writes are answered."""
        self._put_off[service] = set()

    def end_writes(self, service: NamespacedName) -> bool:
        """Return whether somebody else wrote slices of the Service meanwhile."""
        found = [self._cache.get(key) for key in self._put_off.pop(service, ())]
        return any(
            bool(
                services_for_added_slice(piece, tracker=self._tracker, managed_by=self._managed_by)
            )
            for piece in found
            if piece is not None
        )

    def _is_leaving(self, old: EndpointSlice, new: EndpointSlice) -> bool:
        return (
            is_managed_by(old, self._managed_by) != is_managed_by(new, self._managed_by)
            or old.service_key != new.service_key
            or (
                old.metadata.deletion_timestamp is None
                and new.metadata.deletion_timestamp is not None
            )
        )


def _service(piece: EndpointSlice) -> tuple[NamespacedName, ...]:
    key = service_of(piece)
    return () if key is None else (key,)
