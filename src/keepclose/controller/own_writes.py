"""Tells a controller's own writes of slices from those of other clients.

The watch returns the controller's own writes as events, which must not queue a Service, and no plan
may be made from a cache that lacks one of them. As in the EndpointSlice controller, the newest
generation of each written slice is kept by Service. A running controller meets more: an event can
arrive before the answer to the write that caused it, a slice can leave the controller without being
deleted, and a slice of a previous controller can be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from keepclose.kube.cache import Cache
from keepclose.kube.errors import NotFound
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.slices.changes import is_managed_by, service_of

_DELETED: Final = -1


class OwnWrites:
    """The writes of one controller to slices, by Service.

    `on_foreign` is called with a Service whose slices another client wrote, and `on_awaited` with a
    Service that awaits an event of its slices.
    """

    def __init__(
        self,
        cache: Cache[EndpointSlice],
        *,
        managed_by: str,
        on_foreign: Callable[[NamespacedName], None],
        on_awaited: Callable[[NamespacedName], None],
    ) -> None:
        self._cache = cache
        self.managed_by = managed_by
        self._on_foreign = on_foreign
        self._on_awaited = on_awaited
        self._generations: dict[NamespacedName, dict[str, int]] = {}
        """The newest known generation of each slice by uid."""
        self._deferred: dict[NamespacedName, dict[NamespacedName, bool]] = {}
        """The slices with events during the writes of their Service, and whether the weights of
        one have changed since it was written."""
        self._awaiting: set[NamespacedName] = set()

    def is_cache_behind(self, service: NamespacedName, slices: Iterable[EndpointSlice]) -> bool:
        """Return whether these slices from the cache are older than what was written."""
        generations = self._generations.get(service)
        if generations is None:
            return False
        matched = 0
        for endpoint_slice in slices:
            generation = generations.get(endpoint_slice.metadata.uid)
            if generation is not None:
                if generation == _DELETED or generation > endpoint_slice.metadata.generation:
                    return True
                matched += 1
        # NB: every matched slice is expected to exist, and no slice comes twice.
        return matched < len(generations) - list(generations.values()).count(_DELETED)

    def await_event(self, service: NamespacedName) -> None:
        """Report the next event of a Service's slices, whichever client wrote them."""
        self._awaiting.add(service)

    @contextmanager
    def writing(self, service: NamespacedName) -> Iterator[None]:
        """Judge events of the Service's slices after the block, when its writes are answered."""
        self._deferred[service] = {}
        try:
            yield
        finally:
            slices = [
                (self._cache.get(key), has_other_weights)
                for key, has_other_weights in self._deferred.pop(service).items()
            ]
            if any(
                item is not None and (has_other_weights or self._is_foreign(item))
                for item, has_other_weights in slices
            ):
                self._on_foreign(service)

    def record(self, stored: EndpointSlice) -> None:
        """Record a slice as the server stored it, and put it into the cache."""
        # NB: before the cache, so that its event is recognised as an own write.
        self._set_generation(stored, stored.metadata.generation)
        self._cache.put(stored)
        deferred = self._deferred.get(stored.service_key, {})
        if stored.metadata.key in deferred:
            deferred[stored.metadata.key] = False
        if self._has_left(stored, self._cache.get(stored.metadata.key)):
            # NB: the deletion event came before this answer, and no other event will follow.
            self._drop(stored)

    @contextmanager
    def deleting(self, endpoint_slice: EndpointSlice) -> Iterator[None]:
        """Expect the deletion of a slice, which the block requests, unless the request fails."""
        # NB: before the request, because the deletion event may arrive before the answer.
        self._set_generation(endpoint_slice, _DELETED)
        try:
            yield
        except NotFound:
            raise
        except BaseException:
            # NB: not for a slice that is gone by now: no event would end the wait for it.
            if self._cache.get(endpoint_slice.metadata.key) is not None:
                self._set_generation(endpoint_slice, endpoint_slice.metadata.generation)
            raise

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Report the Services that await this event, or whose slice another client wrote."""
        for endpoint_slice in (old, new):
            if endpoint_slice is not None and self._is_managed(endpoint_slice):
                key = endpoint_slice.service_key
                if key in self._awaiting:
                    self._awaiting.discard(key)
                    self._on_awaited(key)
        for key in self._foreign_writes(old, new):
            self._on_foreign(key)

    def forget(self, service: NamespacedName) -> None:
        """Forget all writes of a Service."""
        self._generations.pop(service, None)
        self._awaiting.discard(service)

    def _foreign_writes(
        self, old: EndpointSlice | None, new: EndpointSlice | None
    ) -> frozenset[NamespacedName]:
        """Return the Services concerned if another client wrote the slice; none for an own write.

        A slice that moves from one Service to another concerns both, also under another manager.
        """
        if new is None:
            # NB: own deletions are expected, so another client deleted any other slice.
            if old is None or not self._is_managed(old) or self._drop(old) == _DELETED:
                return frozenset()
            return _services_of(old)
        if old is not None and self._has_left(old, new):
            was_managed = self._is_managed(old)
            if was_managed:
                # NB: else the cache would seem behind forever: the slice will not come back.
                self._drop(old)
            is_moved = old.service_key != new.service_key
            if is_moved or was_managed or self._is_managed(new):
                return _services_of(old, new)
            return frozenset()
        # NB: changes of annotations and owner references do not raise the generation.
        has_other_weights = (
            old is not None and self._is_managed(new) and _weights_of(old) != _weights_of(new)
        )
        deferred = self._deferred.get(new.service_key)
        if deferred is not None:
            key = new.metadata.key
            deferred[key] = has_other_weights or deferred.get(key, False)
            return frozenset()
        has_other_owner = (
            old is not None and old.metadata.owner_references != new.metadata.owner_references
        )
        is_changed = has_other_weights or (has_other_owner and self._is_managed(new))
        if is_changed or self._is_foreign(new):
            return _services_of(new)
        return frozenset()

    def _is_foreign(self, endpoint_slice: EndpointSlice) -> bool:
        """Return whether a managed slice is unknown, or newer than the one written here."""
        generations = self._generations.get(endpoint_slice.service_key, {})
        generation = generations.get(endpoint_slice.metadata.uid)
        return self._is_managed(endpoint_slice) and (
            generation is None or endpoint_slice.metadata.generation > generation
        )

    def _has_left(self, before: EndpointSlice, now: EndpointSlice | None) -> bool:
        """Return whether a slice no longer belongs to its Service and manager, or is deleted."""
        return (
            now is None
            or now.metadata.uid != before.metadata.uid
            or now.metadata.deletion_timestamp is not None
            or now.service_key != before.service_key
            or self._is_managed(now) != self._is_managed(before)
        )

    def _is_managed(self, endpoint_slice: EndpointSlice) -> bool:
        return is_managed_by(endpoint_slice, self.managed_by)

    def _set_generation(self, endpoint_slice: EndpointSlice, generation: int) -> None:
        generations = self._generations.setdefault(endpoint_slice.service_key, {})
        generations[endpoint_slice.metadata.uid] = generation

    def _drop(self, endpoint_slice: EndpointSlice) -> int | None:
        """Forget a slice; return its generation, None for an unknown slice."""
        generations = self._generations.get(endpoint_slice.service_key, {})
        return generations.pop(endpoint_slice.metadata.uid, None)


def _weights_of(endpoint_slice: EndpointSlice) -> str | None:
    return endpoint_slice.metadata.annotations.get(ZONE_WEIGHTS_ANNOTATION)


def _services_of(*slices: EndpointSlice) -> frozenset[NamespacedName]:
    return frozenset(
        key for endpoint_slice in slices if (key := service_of(endpoint_slice)) is not None
    )
