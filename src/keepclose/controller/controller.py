"""The controller as a whole: caches fill, then workers sync Services until it is stopped.

This module only wires the parts together and runs them; no part depends on the internals of
another. A crash at any point does no harm: the next controller reads everything again and
continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import structlog

from keepclose.controller.mirroring import MirroringPart
from keepclose.controller.parts import Part, ServicePart
from keepclose.demand.opening import open_demand
from keepclose.demand.reader import DEMAND_PAUSE_S, DemandReader
from keepclose.demand.settings import DemandOptions
from keepclose.demand.sources import ReadPages
from keepclose.heuristics.process import close_heuristics
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.event_publisher import EventPublisher, RecordingEventPublisher
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.settings import (
    MIRRORING_COMPONENT,
    MIRRORING_QUEUE,
    ControllerSettings,
    defer_answers,
)
from keepclose.runtime.program import Parts, keep_running
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)
BeforeSync = Callable[[Caches], Awaitable[None]]


class Controller:
    """Reconciles the EndpointSlices of a cluster; run it once.

    The client must not retry requests by itself: the queue does all backing off.
    """

    def __init__(
        self,
        client: Client,
        settings: ControllerSettings,
        *,
        clock: Clock,
        recorder: EventRecorder,
        observer: Observer | None = None,
        publisher: EventPublisher | None = None,
        mirroring_recorder: EventRecorder | None = None,
        random: Random | None = None,
        before_sync: BeforeSync | None = None,
        demand: DemandOptions | None = None,
        read_pages: ReadPages | None = None,
    ) -> None:
        """Wire the parts; `before_sync` is awaited after the caches are full, before any sync.

        With `demand` heuristics plan with measured shares. `read_pages` reads flow agents that
        the options do not reach. Raises ConfigError for an address that cannot work.
        """
        self._settings = settings = defer_answers(settings)
        self._clock = clock
        self._before_sync = before_sync
        self._recorder = recorder
        self._mirroring_recorder = mirroring_recorder or EventRecorder(
            client, component=MIRRORING_COMPONENT, clock=clock
        )
        self._random = random or Random()  # noqa: S311 - spreads load, keeps no secret
        self._server_changed = asyncio.Event()
        """Set when the API server may have restarted with other feature gates."""
        self.caches = Caches()
        self.reflectors = self.caches.reflectors(
            client,
            clock=clock,
            mirrors=settings.mirrors,
            acknowledgements=settings.writes_conditions,
        )
        for reflector in self.reflectors:
            reflector.failure_log.on_recovery = self._on_recovery
        observer = observer or Observer()
        self.services = ServicePart(
            client,
            self.caches,
            settings=settings,
            clock=clock,
            publisher=publisher or RecordingEventPublisher(recorder),
            observer=observer,
        )
        self.demand: DemandReader | None = None
        if demand is not None:
            self.demand = open_demand(
                demand,
                client,
                clock=clock,
                cluster=lambda: self.services.planners.nodes.cluster,
                read_pages=read_pages,
            )
            self.services.planners.demand = self.demand.store
        self.parts: list[Part] = [self.services]
        if settings.mirrors:
            self.parts.append(self._new_mirroring(client, publisher, observer))
        for part in self.parts:
            part.subscribe()
        self.synced = asyncio.Event()
        """Set once all caches have been complete and the workers run."""

    def _new_mirroring(
        self, client: Client, publisher: EventPublisher | None, observer: Observer
    ) -> MirroringPart:
        mirroring = MirroringPart(
            client,
            self.caches,
            settings=self._settings,
            clock=self._clock,
            publisher=publisher or RecordingEventPublisher(self._mirroring_recorder),
            observer=observer.mirroring,
        )
        observer.watch_queue(MIRRORING_QUEUE, mirroring.queue)
        return mirroring

    @property
    def is_idle(self) -> bool:
        """Whether no key is queued, delayed or being synced."""
        return all(part.is_idle for part in self.parts)

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan that a sync of the Service would compute now; None without one."""
        return self.services.explain(key)

    async def run(self) -> None:
        """Run until cancelled, then let running syncs finish.

        Raise ConfigError for settings that cannot work; no other error ends the controller.
        """
        background: list[Coroutine[Any, Any, Any]] = [
            reflector.run() for reflector in self.reflectors
        ]
        background += [self._recorder.run(), self._mirroring_recorder.run()]
        background += [self.services.resync(self._random), self.services.tick()]
        background += [self._begin(), self._recheck_dropped_fields()]
        if self.demand is not None:
            background.append(self._measure_demand(self.demand))
        parts = Parts(background)
        try:
            await parts.until_ended()
        finally:
            try:
                # NB: reflectors keep running meanwhile, so that the last syncs see current state.
                for part in self.parts:
                    await part.workers.stop(self._settings.grace_s)
            finally:
                # NB: after the syncs, which would report a closed heuristic as failed.
                close_heuristics(self._settings.plan.heuristics)
                await parts.stop()

    async def _begin(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        if self._before_sync is not None:
            await self._before_sync(self.caches)
        if self.demand is not None:
            await self.demand.wait_for_first()
        for part in self.parts:
            part.workers.start()
        self.synced.set()
        _log.info("caches are complete", services=len(self.caches.services))

    async def _measure_demand(self, demand: DemandReader) -> None:
        # NB: the zones of agents and series are those of the nodes.
        for reflector in self.reflectors:
            await reflector.synced.wait()
        await keep_running(
            lambda: demand.run(self.services.queue.add),
            what="measured demand",
            after_s=DEMAND_PAUSE_S,
        )

    def _on_recovery(self) -> None:
        self._server_changed.set()
        for part in self.parts:
            part.on_recovery()

    async def _recheck_dropped_fields(self) -> None:
        """Check periodically, and after each outage, which fields the API server stores now."""
        while True:
            period_s = self._random.uniform(*self._settings.recheck_s)
            with suppress(TimeoutError):
                await self._clock.wait_for(self._server_changed.wait(), period_s)
            was_away = self._server_changed.is_set()
            self._server_changed.clear()
            for part in self.parts:
                await part.writer.guard.recheck()
            # NB: afterwards, because conditions report which fields are dropped.
            if was_away:
                self.services.release_conditions()
