"""The controller as a whole: caches fill, then workers sync, until it is told to stop.

Built from parts that know nothing of each other's insides; this module only puts them together and
runs them. Crash it at any point: whoever starts next reads everything anew and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import structlog

from keepclose.controller.acknowledgements import TICK_S, AcknowledgementLedger, Honoring
from keepclose.controller.event_handlers import PodLatencies, Subscriptions
from keepclose.controller.mirroring import Mirroring
from keepclose.controller.reconciler import Reconciler
from keepclose.controller.service_planners import States
from keepclose.controller.writes import SliceWriter
from keepclose.heuristics.process import close_heuristics
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention, find_writer
from keepclose.reconcile.dropped_fields import SliceGuard, try_update
from keepclose.reconcile.event_publisher import Announcer, EventAnnouncer
from keepclose.reconcile.instrumentation import Observer, SilentObserver
from keepclose.reconcile.node_changes import NodeFacts
from keepclose.reconcile.settings import (
    MIRRORING_COMPONENT,
    MIRRORING_QUEUE,
    QUEUE,
    ControllerSettings,
    defer_answers,
)
from keepclose.runtime.workers import Workers
from keepclose.slices.service_planner import ServicePlan
from keepclose.slices.trackers import SliceTracker

_log = structlog.get_logger(__name__)
Prelude = Callable[[Caches], Awaitable[None]]


class Controller:
    """Keeps the EndpointSlices of a cluster; run it once.

    Give it a client that does not repeat requests by itself: delays are the queue's.
    """

    def __init__(
        self,
        client: Client,
        settings: ControllerSettings,
        *,
        clock: Clock,
        recorder: EventRecorder,
        observer: Observer | None = None,
        announcer: Announcer | None = None,
        mirroring_recorder: EventRecorder | None = None,
        random: Random | None = None,
        prelude: Prelude | None = None,
    ) -> None:
        """Take the parts; `prelude` is awaited between the caches and the first sync."""
        settings = defer_answers(settings)
        self._settings = settings
        self._clock = clock
        self._prelude = prelude
        self._recorder = recorder
        self._mirroring_recorder = mirroring_recorder or EventRecorder(
            client, component=MIRRORING_COMPONENT, clock=clock
        )
        self._random = random or Random()  # noqa: S311 - spreads load, keeps no secret
        observer = observer or SilentObserver()
        mirroring_announcer = announcer or EventAnnouncer(self._mirroring_recorder)
        announcer = announcer or EventAnnouncer(recorder)
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
        observer.watch_queue(QUEUE, self.queue)
        latencies = PodLatencies(clock, on_reached=observer.reached)
        self.acknowledgements = AcknowledgementLedger(on_due=self.queue.add)
        honoring = Honoring(
            self.acknowledgements,
            slices_of=lambda key: self.caches.slices_of(key, settings.plan.managed_by),
            gates=settings.plan.gates,
            prefix=settings.plan.condition_prefix,
        )
        tracker = SliceTracker()
        self.guard = SliceGuard(
            self.caches.slices,
            managed_by=settings.plan.managed_by,
            try_write=partial(try_update, client),
            on_due=self.queue.add,
        )
        self._doubts = asyncio.Event()
        """Set when the server may be another by now, with other feature gates."""
        nodes = NodeFacts(self.caches.nodes)
        self.contention = Contention(clock)
        observer.watch_contention(self.contention)
        self.states = States(self.caches, settings.plan)
        self.subscriptions = Subscriptions(
            self.caches,
            settings=settings,
            queue=self.queue,
            states=self.states,
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
            complete=honoring.complete,
        )
        self.reconciler = Reconciler(
            self.caches,
            settings=settings,
            states=self.states,
            nodes=nodes,
            subscriptions=self.subscriptions,
            tracker=tracker,
            guard=self.guard,
            contention=self.contention,
            find_writer=partial(find_writer, client),
            come_back=self.queue.add_after,
            writer=SliceWriter(
                client, self.caches.slices, tracker, self.guard, on_written=observer.written
            ),
            conditions=self._conditions,
            announcer=announcer,
            observer=observer,
            latencies=latencies,
        )
        self._crews = [
            Workers(
                self.queue,
                self.reconciler.sync,
                number=settings.workers,
                most_retries=settings.most_retries,
                clock=clock,
                on_synced=observer.synced,
                take_wait=self.reconciler.setbacks.take_wait,
            )
        ]
        for reflector in self.reflectors:
            reflector.complaints.on_recovery = self._catch_up
        self.caches.slices.subscribe(self.guard.hear_slice)
        self.subscriptions.subscribe()
        if settings.writes_conditions:
            honoring.subscribe(self.caches)
        if settings.mirrors:
            self.mirroring = Mirroring(
                client,
                self.caches,
                settings=settings,
                clock=clock,
                announcer=mirroring_announcer,
                observer=observer.mirroring,
            )
            observer.watch_queue(MIRRORING_QUEUE, self.mirroring.queue)
            self.mirroring.subscribe()
            self._crews.append(
                Workers(
                    self.mirroring.queue,
                    self.mirroring.sync,
                    number=settings.mirroring_workers,
                    most_retries=settings.most_retries,
                    clock=clock,
                    on_synced=observer.mirroring.synced,
                    take_wait=self.mirroring.setbacks.take_wait,
                )
            )
        self.synced = asyncio.Event()
        """Set once all caches have been complete and the workers run."""

    @property
    def is_idle(self) -> bool:
        """Whether no key waits, is delayed or is worked on."""
        queues = [self.queue, *([self.mirroring.queue] if self._settings.mirrors else [])]
        return not any(one.depth or one.delayed or one.running for one in queues)

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan of a Service as it would be made now, or None where there is none."""
        return self.reconciler.explain(key)

    async def run(self) -> None:
        """Run until cancelled; syncs under way then end first.

        Only settings that cannot work end it by themselves: ConfigError comes through.
        """
        background: list[Coroutine[Any, Any, Any]] = [one.run() for one in self.reflectors]
        background += [self._recorder.run(), self._mirroring_recorder.run()]
        background += [self._resync(), self._begin(), self._ask_again()]
        if self._settings.writes_conditions:
            background.append(self._tick())
        tasks = [asyncio.create_task(one) for one in background]
        try:
            await _first_failure(tasks)
        finally:
            try:
                # NB: reflectors run on meanwhile, so that the last syncs see the present.
                for crew in self._crews:
                    await crew.stop(self._settings.grace_s)
            finally:
                # NB: after the syncs, which would take a closed heuristic for one that failed.
                close_heuristics(self._settings.plan.heuristics)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> None:
        for reflector in self.reflectors:
            await reflector.synced.wait()
        if self._prelude is not None:
            await self._prelude(self.caches)
        for crew in self._crews:
            crew.start()
        self.synced.set()
        _log.info("caches are complete", services=len(self.caches.services))

    def _catch_up(self) -> None:
        """Try again at once what failed while the server was away, or did not keep."""
        self._doubts.set()
        for key in self.reconciler.setbacks.cut_off():
            self.queue.add(key)
        if self._settings.mirrors:
            for key in self.mirroring.setbacks.cut_off():
                self.mirroring.queue.add(key)

    async def _ask_again(self) -> None:
        """Find out now and then, and after each outage, what the server keeps by now."""
        while True:
            patience_s = self._random.uniform(*self._settings.ask_again_s)
            with suppress(TimeoutError):
                await self._clock.wait_for(self._doubts.wait(), patience_s)
            was_away = self._doubts.is_set()
            self._doubts.clear()
            await self.guard.ask_again()
            if self._settings.mirrors:
                await self.mirroring.guard.ask_again()
            # NB: of conditions only a write can tell, and each Service costs one.
            for key in self._conditions.release() if was_away else ():
                self.queue.add(key)

    async def _tick(self) -> None:
        """Tell the ledger that time passes."""
        while True:
            await self._clock.sleep(TICK_S)
            self.acknowledgements.tick()

    async def _resync(self) -> None:
        """Look at every Service again twice a day or so, whatever may have been missed."""
        while True:
            await self._clock.sleep(self._random.uniform(*self._settings.resync_s))
            self._conditions.release()
            for key in self.caches.services:
                self.queue.add(key)


async def _first_failure(tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for ever, or until a task fails, and raise that."""
    pending = set(tasks)
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
