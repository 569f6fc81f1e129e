"""Tells a controller's own writes of slices from those of other clients, and how its writes failed.

The watch returns the controller's own writes as events, which must not queue a Service.
`slices.changes` decides which Services an event affects; this module adds what only a running
controller meets: an event can arrive before the answer to the write that caused it, a slice can
leave the controller without being deleted, and a slice of a previous controller can be deleted.

A failure of the API server says nothing about the key. A key that the server asked to wait
(Retry-After) is not retried sooner; one whose sync found the server unavailable is requeued as soon
as the server is back, even after its retries were used up.
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


class RetryAfter:
    """The keys of one queue that the API server delayed, and those that it could not serve."""

    def __init__(self) -> None:
        self._waits: dict[NamespacedName, float] = {}
        self._unavailable: set[NamespacedName] = set()

    def record(self, key: NamespacedName, outcome: WriteOutcome) -> None:
        """Record the outcome of a sync's writes in place of the previous one of the key."""
        self._waits.pop(key, None)
        self._unavailable.discard(key)
        if outcome.wait_s > 0:
            self._waits[key] = outcome.wait_s
        if outcome.is_unavailable:
            self._unavailable.add(key)

    def forget(self, key: NamespacedName) -> None:
        """Forget a key that needs no more writes."""
        self.record(key, WriteOutcome())

    def take_wait(self, key: NamespacedName) -> float:
        """Return and reset the seconds that the server asked the key to wait; 0 without any."""
        return self._waits.pop(key, 0.0)

    def unavailable(self) -> Iterable[NamespacedName]:
        """Return the keys whose last sync found the API server unavailable."""
        return tuple(self._unavailable)


class OwnWrites:
    """Filters events of the slices of one controller: its own writes affect no Service."""

    def __init__(
        self, cache: Cache[EndpointSlice], tracker: SliceTracker, *, managed_by: str
    ) -> None:
        self._cache = cache
        self._tracker = tracker
        self._managed_by = managed_by
        self._deferred: dict[NamespacedName, set[NamespacedName]] = {}

    def services(
        self, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> Iterable[NamespacedName]:
        """Return the Services to sync after a slice was created, changed or deleted."""
        tracker, managed_by = self._tracker, self._managed_by
        if new is None:
            if old is None:
                return ()
            if is_managed_by(old, managed_by) and not tracker.has(old):
                # NB: own deletions are tracked, so another client deleted this slice.
                return _service_keys(old)
            return services_for_deleted_slice(old, tracker=tracker, managed_by=managed_by)
        if old is not None and self._is_leaving(old, new):
            # NB: else the tracker would wait forever for a slice that will not come back.
            if is_managed_by(old, managed_by):
                tracker.handle_deletion(old)
            return services_for_changed_slice(old, new, tracker=tracker, managed_by=managed_by)
        deferred = self._deferred.get(new.service_key)
        if deferred is not None:
            deferred.add(new.metadata.key)
            return ()
        if old is None:
            return services_for_added_slice(new, tracker=tracker, managed_by=managed_by)
        if old.metadata.owner_references != new.metadata.owner_references and is_managed_by(
            new, managed_by
        ):
            # NB: a change of owner references does not raise the generation.
            return _service_keys(new)
        return services_for_changed_slice(old, new, tracker=tracker, managed_by=managed_by)

    def begin_writes(self, service: NamespacedName) -> None:
        """Defer events of this Service's slices until its writes are answered."""
        self._deferred[service] = set()

    def end_writes(self, service: NamespacedName) -> bool:
        """Return whether another client wrote slices of the Service meanwhile."""
        slices = [self._cache.get(key) for key in self._deferred.pop(service, ())]
        return any(
            bool(
                services_for_added_slice(
                    endpoint_slice, tracker=self._tracker, managed_by=self._managed_by
                )
            )
            for endpoint_slice in slices
            if endpoint_slice is not None
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


def _service_keys(endpoint_slice: EndpointSlice) -> tuple[NamespacedName, ...]:
    key = service_of(endpoint_slice)
    return () if key is None else (key,)
