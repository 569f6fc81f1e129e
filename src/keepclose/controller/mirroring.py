"""Mirrors Endpoints that a user maintains for a Service without a selector to EndpointSlices.

`slices.mirroring` decides what a mirrored slice contains. As in Kubernetes this is a controller of
its own, with its own queue and writer, beside the one for Services with a selector.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from keepclose.controller.own_writes import OwnWrites
from keepclose.controller.parts import Part
from keepclose.controller.writes import SliceWriter, WriteOutcome
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import Endpoints
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import MIRRORING_CONTROLLER
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.event_publisher import EventPublisher, object_reference
from keepclose.reconcile.instrumentation import MirroringObserver
from keepclose.reconcile.settings import ControllerSettings
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import MirrorEvent, plan_mirroring

_MAX_DELAY_S: Final = 100.0


class MirroringPart(Part):
    """The mirroring controller: syncs Endpoints by the key that they share with their Service."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        *,
        settings: ControllerSettings,
        clock: Clock,
        publisher: EventPublisher,
        observer: MirroringObserver,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._slice_delay_s = max(settings.slice_delay_s, settings.mirroring_batch_s)
        self._publisher = publisher
        self._observer = observer
        self._published: dict[NamespacedName, tuple[MirrorEvent, ...]] = {}
        queue: WorkQueue[NamespacedName] = WorkQueue(
            clock, first_delay_s=settings.retry_delay_s, cap_delay_s=_MAX_DELAY_S
        )
        self._own_writes = OwnWrites(
            caches.slices,
            managed_by=MIRRORING_CONTROLLER,
            on_foreign=lambda key: queue.add_after(key, self._slice_delay_s),
            on_awaited=queue.add,
        )
        writer = SliceWriter(
            client, caches.slices, self._own_writes, on_due=queue.add, on_written=observer.written
        )
        super().__init__(
            queue,
            writer,
            kind="Endpoints",
            workers=settings.mirroring_workers,
            most_retries=settings.most_retries,
            clock=clock,
            on_synced=observer.synced,
        )

    def subscribe(self) -> None:
        """Receive the present content of the caches and every later change."""
        self._caches.endpoints.subscribe(self.on_endpoints)
        self._caches.services.subscribe(self.on_service)
        self._caches.slices.subscribe(self.writer.guard.on_slice)
        self._caches.slices.subscribe(self._own_writes.on_slice)

    def on_endpoints(self, old: Endpoints | None, new: Endpoints | None) -> None:
        """Queue Endpoints that were created, changed or deleted."""
        endpoints = old if new is None else new
        if endpoints is not None:
            self.queue.add_after(endpoints.metadata.key, self._settings.mirroring_batch_s)

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service that was created or deleted, or gained or lost its selector."""
        service = old if new is None else new
        if service is None:
            return
        if old is None or new is None or _has_selector(old) != _has_selector(new):
            self.queue.add(service.key)

    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the mirrored slices of a Service with its Endpoints."""
        existing = self._caches.slices_of(key, MIRRORING_CONTROLLER)
        if self._own_writes.is_cache_behind(key, existing):
            return Result.STALE
        endpoints = self._caches.endpoints.get(key)
        mirrored = plan_mirroring(
            endpoints,
            self._caches.services.get(key),
            existing=existing,
            max_per_subset=self._settings.mirroring_max,
        )
        mirrored = replace(mirrored, plan=self.writer.guard.withhold(mirrored.plan, existing))
        self._observer.mirrored(key, mirrored)
        outcome = WriteOutcome()
        if not mirrored.plan.is_empty:
            with self._own_writes.writing(key):
                await self.writer.write(
                    f"Endpoints {key}", mirrored.plan, present=existing, outcome=outcome
                )
        self.writer.retry_after.record(key, outcome)
        self._publish(key, endpoints, mirrored.events)
        if outcome.errors:
            if endpoints is not None:
                self._publisher.publish_warning(
                    object_reference("Endpoints", endpoints.metadata),
                    "FailedToUpdateEndpointSlices",
                    f"Error updating Endpoint Slices for Endpoints {key}: "
                    f"{', '.join(outcome.errors)}",
                )
            return Result.ERROR
        if endpoints is None and not existing:
            self.writer.forget(key)
        return Result.STALE if outcome.is_stale else Result.SUCCESS

    def _publish(
        self, key: NamespacedName, endpoints: Endpoints | None, events: tuple[MirrorEvent, ...]
    ) -> None:
        """Publish the events that the last sync did not publish."""
        if endpoints is None or not events:
            self._published.pop(key, None)
            return
        published = self._published.get(key, ())
        self._published[key] = events
        for event in events:
            if event not in published:
                self._publisher.publish_warning(
                    object_reference("Endpoints", endpoints.metadata), event.reason, event.message
                )


def _has_selector(service: Service) -> bool:
    return service.spec.selector is not None
