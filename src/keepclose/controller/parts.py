"""The parts of the controller: each has a queue, workers that sync its keys, and a slice writer.

As in Kubernetes there are two, which share only caches: one for Services with a selector, in this
module, and one that mirrors Endpoints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from random import Random

from keepclose.controller.acknowledgements import TICK_S, HonoredConditions
from keepclose.controller.event_handlers import EventHandlers, PodLatencies
from keepclose.controller.reconciler import Reconciler, ServiceReports
from keepclose.controller.service_planners import ServicePlanners
from keepclose.controller.weight_followers import WeightFollowers
from keepclose.controller.writes import SliceWriter
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention, find_writer
from keepclose.reconcile.event_publisher import EventPublisher
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.settings import CONTROLLER_QUEUE, ControllerSettings
from keepclose.runtime.workers import Result, Workers
from keepclose.slices.service_planner import ServicePlan


class Part(ABC):
    """A queue of Services, the workers that sync them, and the writer of their slices."""

    def __init__(
        self,
        queue: WorkQueue[NamespacedName],
        writer: SliceWriter,
        *,
        kind: str,
        workers: int,
        most_retries: int,
        clock: Clock,
        on_synced: Callable[[NamespacedName, Result, float], None],
    ) -> None:
        self.queue = queue
        self.writer = writer
        self.workers = Workers(
            queue,
            self.sync,
            kind=kind,
            number=workers,
            most_retries=most_retries,
            clock=clock,
            on_synced=on_synced,
            take_wait=writer.retry_after.take_wait,
        )

    @property
    def is_idle(self) -> bool:
        """Whether no key is queued, delayed or being synced."""
        return not (self.queue.depth or self.queue.delayed or self.queue.running)

    @abstractmethod
    def subscribe(self) -> None:
        """Receive the present content of the caches and every later change."""

    @abstractmethod
    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the slices of a Service as far as that is possible now."""

    def on_recovery(self) -> None:
        """Requeue at once what failed while the API server was unavailable."""
        for key in self.writer.retry_after.unavailable():
            self.queue.add(key)


class ServicePart(Part):
    """Reconciles the slices and conditions of Services with a selector."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        *,
        settings: ControllerSettings,
        clock: Clock,
        publisher: EventPublisher,
        observer: Observer,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._clock = clock
        queue: WorkQueue[NamespacedName] = WorkQueue(clock, first_delay_s=settings.retry_delay_s)
        self.planners = ServicePlanners(caches, settings.plan)
        self._contention = Contention(clock, find_writer=partial(find_writer, client))
        self._latencies = PodLatencies(clock, on_reached=observer.reached)
        handlers = self._event_handlers = EventHandlers(
            caches, queue, self.planners, self._contention, self._latencies, settings=settings
        )
        writer = SliceWriter(
            client,
            caches.slices,
            handlers.own_writes,
            on_due=queue.add,
            on_written=observer.written,
        )
        super().__init__(
            queue,
            writer,
            kind="Service",
            workers=settings.workers,
            most_retries=settings.most_retries,
            clock=clock,
            on_synced=observer.synced,
        )
        self.honored = HonoredConditions(
            caches, settings=settings.plan, facts_of=self.planners.facts_of, on_due=queue.add
        )
        self._weight_followers = WeightFollowers(
            self.honored.ledger, on_change=self._on_weighted_zones
        )
        self._conditions = self._new_condition_writer(client)
        self._reconciler = self._new_reconciler(publisher, observer)
        observer.watch_queue(CONTROLLER_QUEUE, queue)
        observer.watch_contention(self._contention)

    def _new_condition_writer(self, client: Client) -> ConditionWriter:
        return ConditionWriter(
            client,
            self._caches.services,
            clock=self._clock,
            prefix=self._settings.plan.condition_prefix,
            complete=self.honored.complete,
        )

    def _new_reconciler(self, publisher: EventPublisher, observer: Observer) -> Reconciler:
        reports = ServiceReports(
            self._caches,
            settings=self._settings,
            planners=self.planners,
            guard=self.writer.guard,
            contention=self._contention,
            conditions=self._conditions,
            publisher=publisher,
            requeue_after=self.queue.add_after,
        )
        return Reconciler(
            self._caches,
            planners=self.planners,
            writer=self.writer,
            reports=reports,
            contention=self._contention,
            observer=observer,
            latencies=self._latencies,
        )

    def subscribe(self) -> None:
        """Receive the present content of the caches and every later change."""
        self._caches.slices.subscribe(self.writer.guard.on_slice)
        self._event_handlers.subscribe()
        if self._settings.writes_conditions:
            self.honored.subscribe()
            self._weight_followers.subscribe(self._caches)

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan that a sync of the Service would compute now; None without one."""
        return self._reconciler.explain(key)

    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the slices and conditions of a Service as far as that is possible now."""
        return await self._reconciler.sync(key)

    def release_conditions(self) -> None:
        """Allow writes of conditions that were not stored, and requeue their Services."""
        # NB: only a real write shows whether conditions are stored, one for each Service.
        for key in self._conditions.release():
            self.queue.add(key)

    async def tick(self) -> None:
        """Advance the time of acknowledgements, where conditions are written."""
        while self._settings.writes_conditions:
            await self._clock.sleep(TICK_S)
            self.honored.ledger.tick()
            self._weight_followers.tick()

    def _on_weighted_zones(self, zones: frozenset[str]) -> None:
        self.planners.nodes.set_weighted_zones(zones)
        for key in self.planners.by_weights:
            self.queue.add(key)

    async def resync(self, random: Random) -> None:
        """Resync every Service about twice a day, in case an event was missed."""
        while True:
            await self._clock.sleep(random.uniform(*self._settings.resync_s))
            self._conditions.release()
            for key in self._caches.services:
                self.queue.add(key)
