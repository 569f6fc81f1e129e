"""The controller as a whole: caches fill, then workers sync Services until it is stopped.

This module only wires the parts together and runs them; no part depends on the internals of
another. A crash at any point does no harm: the next controller reads everything again and
continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import structlog

from keepclose.controller.acknowledgements import TICK_S, AcknowledgementLedger, HonoredConditions
from keepclose.controller.event_handlers import EventHandlers, PodLatencies
from keepclose.controller.mirroring import Mirroring
from keepclose.controller.reconciler import Reconciler
from keepclose.controller.service_planners import ServicePlanners
from keepclose.controller.writes import SliceWriter
from keepclose.heuristics.process import close_heuristics
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.caches import Caches, NodeFacts
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention, find_writer
from keepclose.reconcile.dropped_fields import SliceGuard, try_update
from keepclose.reconcile.event_publisher import EventPublisher, RecordingEventPublisher
from keepclose.reconcile.instrumentation import NoOpObserver, Observer
from keepclose.reconcile.settings import (
    CONTROLLER_QUEUE,
    MIRRORING_COMPONENT,
    MIRRORING_QUEUE,
    ControllerSettings,
    defer_answers,
)
from keepclose.runtime.program import Parts
from keepclose.runtime.workers import Workers
from keepclose.slices.service_planner import ServicePlan
from keepclose.slices.trackers import SliceTracker

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
    ) -> None:
        """Wire the parts; `before_sync` is awaited after the caches are full, before any sync."""
        settings = defer_answers(settings)
        self._settings = settings
        self._clock = clock
        self._before_sync = before_sync
        self._recorder = recorder
        self._mirroring_recorder = mirroring_recorder or EventRecorder(
            client, component=MIRRORING_COMPONENT, clock=clock
        )
        self._random = random or Random()  # noqa: S311 - spreads load, keeps no secret
        observer = observer or NoOpObserver()
        mirroring_publisher = publisher or RecordingEventPublisher(self._mirroring_recorder)
        publisher = publisher or RecordingEventPublisher(recorder)
        self.caches = Caches()
        self.reflectors = self.caches.reflectors(
            client,
            clock=clock,
            mirrors=settings.mirrors,
            acknowledgements=settings.writes_conditions,
        )
        self.queue: WorkQueue[NamespacedName] = WorkQueue(
            clock, first_delay_s=settings.retry_delay_s
        )
        observer.watch_queue(CONTROLLER_QUEUE, self.queue)
        latencies = PodLatencies(clock, on_reached=observer.reached)
        self.acknowledgements = AcknowledgementLedger(on_due=self.queue.add)
        tracker = SliceTracker()
        self.guard = SliceGuard(
            self.caches.slices,
            managed_by=settings.plan.managed_by,
            try_write=partial(try_update, client),
            on_due=self.queue.add,
        )
        self._server_changed = asyncio.Event()
        """Set when the API server may have restarted with other feature gates."""
        nodes = NodeFacts(self.caches.nodes)
        self.contention = Contention(clock)
        observer.watch_contention(self.contention)
        self.planners = ServicePlanners(self.caches, settings.plan)
        honored = HonoredConditions(
            self.acknowledgements,
            slices_of=lambda key: self.caches.slices_of(key, settings.plan.managed_by),
            facts_of=self.planners.facts_of,
            gates=settings.plan.gates,
            prefix=settings.plan.condition_prefix,
        )
        self.event_handlers = EventHandlers(
            self.caches,
            settings=settings,
            queue=self.queue,
            planners=self.planners,
            nodes=nodes,
            tracker=tracker,
            contention=self.contention,
            latencies=latencies,
        )
        self._conditions = ConditionWriter(
            client,
            self.caches.services,
            clock=clock,
            prefix=settings.plan.condition_prefix,
            complete=honored.complete,
        )
        self.reconciler = Reconciler(
            self.caches,
            settings=settings,
            planners=self.planners,
            nodes=nodes,
            event_handlers=self.event_handlers,
            tracker=tracker,
            guard=self.guard,
            contention=self.contention,
            find_writer=partial(find_writer, client),
            requeue_after=self.queue.add_after,
            writer=SliceWriter(
                client, self.caches.slices, tracker, self.guard, on_written=observer.written
            ),
            conditions=self._conditions,
            publisher=publisher,
            observer=observer,
            latencies=latencies,
        )
        self._worker_pools = [
            Workers(
                self.queue,
                self.reconciler.sync,
                number=settings.workers,
                most_retries=settings.most_retries,
                clock=clock,
                on_synced=observer.synced,
                take_wait=self.reconciler.retry_after.take_wait,
            )
        ]
        for reflector in self.reflectors:
            reflector.failure_log.on_recovery = self._on_recovery
        self.caches.slices.subscribe(self.guard.on_slice)
        self.event_handlers.subscribe()
        if settings.writes_conditions:
            honored.subscribe(self.caches)
        if settings.mirrors:
            self.mirroring = Mirroring(
                client,
                self.caches,
                settings=settings,
                clock=clock,
                publisher=mirroring_publisher,
                observer=observer.mirroring,
            )
            observer.watch_queue(MIRRORING_QUEUE, self.mirroring.queue)
            self.mirroring.subscribe()
            self._worker_pools.append(
                Workers(
                    self.mirroring.queue,
                    self.mirroring.sync,
                    number=settings.mirroring_workers,
                    most_retries=settings.most_retries,
                    clock=clock,
                    on_synced=observer.mirroring.synced,
                    take_wait=self.mirroring.retry_after.take_wait,
                )
            )
        self.synced = asyncio.Event()
        """Set once all caches have been complete and the workers run."""

    @property
    def is_idle(self) -> bool:
        """Whether no key is queued, delayed or being synced."""
        queues = [self.queue, *([self.mirroring.queue] if self._settings.mirrors else [])]
        return not any(queue.depth or queue.delayed or queue.running for queue in queues)

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan that a sync of the Service would compute now; None without one."""
        return self.reconciler.explain(key)

    async def run(self) -> None:
        """Run until cancelled, then let running syncs finish.

        Raise ConfigError for settings that cannot work; no other error ends the controller.
        """
        background: list[Coroutine[Any, Any, Any]] = [
            reflector.run() for reflector in self.reflectors
        ]
        background += [self._recorder.run(), self._mirroring_recorder.run()]
        background += [self._resync(), self._begin(), self._recheck_dropped_fields()]
        if self._settings.writes_conditions:
            background.append(self._tick())
        parts = Parts(background)
        try:
            await parts.until_ended()
        finally:
            try:
                # NB: reflectors keep running meanwhile, so that the last syncs see current state.
                for pool in self._worker_pools:
                    await pool.stop(self._settings.grace_s)
            finally:
                # NB: after the syncs, which would report a closed heuristic as failed.
                close_heuristics(self._settings.plan.heuristics)
                await parts.stop()

    async def _begin(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        if self._before_sync is not None:
            await self._before_sync(self.caches)
        for pool in self._worker_pools:
            pool.start()
        self.synced.set()
        _log.info("caches are complete", services=len(self.caches.services))

    def _on_recovery(self) -> None:
        """Requeue at once what failed while the API server was unavailable."""
        self._server_changed.set()
        for key in self.reconciler.retry_after.unavailable():
            self.queue.add(key)
        if self._settings.mirrors:
            for key in self.mirroring.retry_after.unavailable():
                self.mirroring.queue.add(key)

    async def _recheck_dropped_fields(self) -> None:
        """Check periodically, and after each outage, which fields the API server stores now."""
        while True:
            period_s = self._random.uniform(*self._settings.recheck_s)
            with suppress(TimeoutError):
                await self._clock.wait_for(self._server_changed.wait(), period_s)
            is_recovered = self._server_changed.is_set()
            self._server_changed.clear()
            await self.guard.recheck()
            if self._settings.mirrors:
                await self.mirroring.guard.recheck()
            # NB: only a real write shows whether conditions are stored, one for each Service.
            for key in self._conditions.release() if is_recovered else ():
                self.queue.add(key)

    async def _tick(self) -> None:
        """Advance the time of the acknowledgement ledger."""
        while True:
            await self._clock.sleep(TICK_S)
            self.acknowledgements.tick()

    async def _resync(self) -> None:
        """Resync every Service about twice a day, in case an event was missed."""
        while True:
            await self._clock.sleep(self._random.uniform(*self._settings.resync_s))
            self._conditions.release()
            for key in self.caches.services:
                self.queue.add(key)
