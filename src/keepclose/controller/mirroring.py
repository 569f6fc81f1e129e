"""Keeps slices for Endpoints that somebody wrote by hand for a Service without a selector.

What a mirrored slice says is decided in `slices.mirroring`. A controller of its own, with its own
queue and tracker, beside the one for Services with a selector.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec.structs import replace

from keepclose.controller.own_writes import Setbacks, SliceNews
from keepclose.controller.writes import SliceWriter, WriteOutcome
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import Endpoints, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import MIRRORING_CONTROLLER
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.dropped_fields import SliceGuard, try_update
from keepclose.reconcile.event_publisher import Announcer, object_reference
from keepclose.reconcile.instrumentation import MirroringObserver
from keepclose.reconcile.settings import ControllerSettings
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import MirrorEvent, mirror
from keepclose.slices.trackers import SliceTracker

_CAP_DELAY_S: Final = 100.0


class Mirroring:
    """Syncs Endpoints one key at a time; the key is that of the Service too."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        *,
        settings: ControllerSettings,
        clock: Clock,
        announcer: Announcer,
        observer: MirroringObserver,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._slice_delay_s = max(settings.slice_delay_s, settings.mirroring_batch_s)
        self._announcer = announcer
        self._observer = observer
        self._tracker = SliceTracker()
        self._news = SliceNews(caches.slices, self._tracker, managed_by=MIRRORING_CONTROLLER)
        self._told: dict[NamespacedName, tuple[MirrorEvent, ...]] = {}
        self.setbacks = Setbacks()
        self.queue: WorkQueue[NamespacedName] = WorkQueue(
            clock, first_delay_s=settings.retry_delay_s, cap_delay_s=_CAP_DELAY_S
        )
        self.guard = SliceGuard(
            caches.slices,
            managed_by=MIRRORING_CONTROLLER,
            try_write=partial(try_update, client),
            on_due=self.queue.add,
        )
        self._writer = SliceWriter(
            client, caches.slices, self._tracker, self.guard, on_written=observer.written
        )

    def subscribe(self) -> None:
        """Hear of every change from now on, and of all that is in the caches already."""
        self._caches.endpoints.subscribe(self.hear_endpoints)
        self._caches.services.subscribe(self.hear_service)
        self._caches.slices.subscribe(self.guard.hear_slice)
        self._caches.slices.subscribe(self.hear_slice)

    def hear_endpoints(self, old: Endpoints | None, new: Endpoints | None) -> None:
        """Queue Endpoints that came, changed or went."""
        one = old if new is None else new
        if one is not None:
            self.queue.add_after(one.metadata.key, self._settings.mirroring_batch_s)

    def hear_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service that came, went, or gained or lost its selector."""
        one = old if new is None else new
        if one is None:
            return
        if old is None or new is None or _is_selecting(old) != _is_selecting(new):
            self.queue.add(one.key)

    def hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Queue the Service of a mirrored slice that somebody else wrote."""
        for key in self._news.services(old, new):
            self.queue.add_after(key, self._slice_delay_s)

    async def sync(self, key: NamespacedName) -> Result:
        """Bring the mirrored slices of a Service to what its Endpoints say."""
        existing = self._caches.slices_of(key, MIRRORING_CONTROLLER)
        if self._tracker.is_stale(key, existing):
            return Result.STALE
        endpoints = self._caches.endpoints.get(key)
        mirrored = mirror(
            endpoints,
            self._caches.services.get(key),
            existing=existing,
            max_per_subset=self._settings.mirroring_max,
        )
        mirrored = replace(mirrored, plan=self.guard.withhold(mirrored.plan, existing))
        self._observer.mirrored(key, mirrored)
        outcome = WriteOutcome()
        if not mirrored.plan.is_empty:
            self._news.begin_writes(key)
            try:
                await self._writer.write(
                    f"Endpoints {key}", mirrored.plan, present=existing, outcome=outcome
                )
            finally:
                if self._news.end_writes(key):
                    self.queue.add_after(key, self._slice_delay_s)
        self.setbacks.note(key, outcome)
        self._tell(key, endpoints, mirrored.events)
        if outcome.errors:
            if endpoints is not None:
                self._announcer.warn(
                    object_reference("Endpoints", endpoints.metadata),
                    "FailedToUpdateEndpointSlices",
                    f"Error updating Endpoint Slices for Endpoints {key}: "
                    f"{', '.join(outcome.errors)}",
                )
            return Result.ERROR
        if endpoints is None and not existing:
            self._tracker.delete_service(key)
        return Result.STALE if outcome.is_stale else Result.SUCCESS

    def _tell(
        self, key: NamespacedName, endpoints: Endpoints | None, events: tuple[MirrorEvent, ...]
    ) -> None:
        """Record what is news; the same as last time is none."""
        if endpoints is None or not events:
            self._told.pop(key, None)
            return
        told = self._told.get(key, ())
        self._told[key] = events
        for event in events:
            if event not in told:
                self._announcer.warn(
                    object_reference("Endpoints", endpoints.metadata), event.reason, event.message
                )


def _is_selecting(service: Service) -> bool:
    return service.spec.selector is not None
