"""The sync of one Service: read the caches, plan, write, and report by Events and conditions.

Level-based: a key only names a Service, and a sync reads everything else again, so that a lost or
repeated key does no harm. A sync must never plan from a cache that lags behind the controller's own
writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from keepclose.controller.event_handlers import EventHandlers, PodLatencies
from keepclose.controller.other_controllers import OTHER_CONTROLLER_FIX
from keepclose.controller.own_writes import RetryAfter
from keepclose.controller.service_planners import Refreshed, ServicePlanners
from keepclose.controller.writes import SliceWriter, WriteOutcome
from keepclose.heuristics.process import fetch_answers
from keepclose.kube.errors import Conflict, KubeError, NotFound
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.reconcile.caches import Caches, NodeFacts, depends_on_shares
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.reconcile.event_publisher import EventPublisher
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import service_conditions
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hints import SliceSet
from keepclose.runtime.workers import Result
from keepclose.slices.changes import has_same_spec
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.trackers import SliceTracker, TriggerTimeTracker

_log = structlog.get_logger(__name__)


class Reconciler:
    """Syncs Services by key; it must not run twice at once for the same key."""

    def __init__(
        self,
        caches: Caches,
        *,
        settings: ControllerSettings,
        planners: ServicePlanners,
        nodes: NodeFacts,
        event_handlers: EventHandlers,
        tracker: SliceTracker,
        guard: SliceGuard,
        contention: Contention,
        find_writer: Callable[[NamespacedName], Awaitable[str]],
        requeue_after: Callable[[NamespacedName, float], None],
        writer: SliceWriter,
        conditions: ConditionWriter,
        publisher: EventPublisher,
        observer: Observer,
        latencies: PodLatencies,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._planners = planners
        self._nodes = nodes
        self._event_handlers = event_handlers
        self._tracker = tracker
        self._triggers = TriggerTimeTracker()
        self._guard = guard
        self._contention = contention
        self._find_writer = find_writer
        self._requeue_after = requeue_after
        self._other_writers: dict[NamespacedName, str] = {}
        self._writer = writer
        self._conditions = conditions
        self._publisher = publisher
        self._observer = observer
        self._latencies = latencies
        self._answers: dict[NamespacedName, list[tuple[ZoneDemand, HeuristicAnswer]]] = {}
        """The answers of a deferred heuristic for the last plan of a Service."""
        self.retry_after = RetryAfter()

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan that a sync would compute now; None for a Service without slices here."""
        service = self._caches.services.get(key)
        if service is None or service.spec.type == "ExternalName" or service.spec.selector is None:
            return None
        # NB: planned from scratch, so that reading does not consume changes of the next sync.
        return plan_service(
            service,
            pods=self._caches.selected(service),
            slices=self._caches.slices_of(key, self._settings.plan.managed_by),
            cluster=self._nodes.cluster,
            settings=self._settings.plan,
            answers=self._answers.get(key, ()),
        )

    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the slices of a Service as far as that is possible now.

        A deleted Service is forgotten; the garbage collector deletes its slices. The slices of a
        Service without a selector, or of type ExternalName, are left alone.
        """
        service = self._caches.services.get(key)
        if service is None:
            self._forget(key)
            return Result.SUCCESS
        if service.spec.type == "ExternalName" or service.spec.selector is None:
            self._planners.drop(key)
            self._event_handlers.by_shares.discard(key)
            return await self._clear_conditions(service)
        present = self._caches.slices_of(key, self._settings.plan.managed_by)
        if self._tracker.is_stale(key, present):
            self._event_handlers.awaiting.add(key)
            return Result.STALE
        try:
            return await self._reconcile(service, present)
        except Exception:
            # A planner in an unknown state is built again from the caches.
            self._planners.drop(key)
            raise

    async def _reconcile(self, service: Service, present: list[EndpointSlice]) -> Result:
        since = self._latencies.take(service.key)
        plan = await self._plan(service, present)
        outcome = WriteOutcome()
        if not self._contention.left(service.key):
            self._other_writers.pop(service.key, None)
        if not plan.is_empty and (wait_s := self._contention.required_wait(service.key)) > 0:
            return await self._defer_to_other_writer(service, plan, present, wait_s)
        if not plan.is_empty:
            self._contention.record_own_write(service.key)
            self._event_handlers.own_writes.begin_writes(service.key)
            try:
                await self._write(service, plan, present, outcome)
            finally:
                self._event_handlers.end_writes(service.key)
        if since is not None:
            self._latencies.end(
                service.key, since, written=outcome.written, is_good=outcome.is_good
            )
        self._publisher.publish_plan(service, plan)
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        elif not self._conditions.is_clear(service):
            await self._write_status(service, (), outcome)
        self.retry_after.record(service.key, outcome)
        errors = [*plan.errors, *outcome.errors]
        if errors:
            self._publisher.publish_failure(
                service,
                "FailedToUpdateEndpointSlices",
                f"Error updating Endpoint Slices for Service {service.key}: {_join(errors)}",
            )
            return Result.ERROR
        if outcome.is_stale:
            self._event_handlers.awaiting.add(service.key)
            return Result.STALE
        # A failed heuristic is retried after a backoff; the endpoints are correct meanwhile.
        return Result.SUCCESS if plan.failure is None else Result.ERROR

    async def _defer_to_other_writer(
        self, service: Service, plan: ServicePlan, present: list[EndpointSlice], wait_s: float
    ) -> Result:
        """Leave the slices for a while to the controller that keeps changing them; report it."""
        key = service.key
        self._observer.contended(key)
        if key not in self._other_writers:
            names = [
                await self._find_writer(endpoint_slice.metadata.key)
                for endpoint_slice in present[:1]
            ]
            self._other_writers[key] = next((name for name in names if name), "another controller")
            writer = self._other_writers[key]
            message = f"{writer} keeps undoing what is written to the EndpointSlices"
            _log.warning(
                "EndpointSlices are contended",
                service=str(key),
                writer=writer,
                fix=OTHER_CONTROLLER_FIX,
            )
            self._publisher.publish_failure(
                service, "EndpointSlicesContended", f"{message}; {OTHER_CONTROLLER_FIX}"
            )
        outcome = WriteOutcome()
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        self._requeue_after(key, wait_s)
        return Result.SUCCESS if outcome.is_good else Result.STALE

    def _find_other_writer(self, key: NamespacedName) -> str:
        """Return the controller that keeps reverting the slices of a Service; "" for none."""
        writer = self._other_writers.get(key, "")
        if writer:
            # No event reports that the other controller stopped, so the Service is requeued.
            self._requeue_after(key, self._contention.left(key))
        return writer

    async def _plan(self, service: Service, present: list[EndpointSlice]) -> ServicePlan:
        refreshed = self._planners.refresh(service, self._nodes.cluster)
        trigger_time = self._trigger_time(service, refreshed)
        desired = refreshed.planner.plan(trigger_time=trigger_time)
        self._answers.pop(service.key, None)
        if desired.questions:
            # NB: changes that come meanwhile requeue the Service, and only its next sync passes
            # them to the planner; so the second plan has the questions of the first one.
            heuristics = self._settings.plan.heuristics
            answers = await fetch_answers(heuristics, desired.strategy.value, desired.questions)
            self._answers[service.key] = answers
            desired = refreshed.planner.plan(trigger_time=trigger_time, answers=answers)
        plan = self._guard.withhold_all(desired, present)
        if depends_on_shares(
            plan.strategy, service.metadata.annotations, settings=self._settings.plan
        ):
            self._event_handlers.by_shares.add(service.key)
        else:
            self._event_handlers.by_shares.discard(service.key)
        self._observer.planned(service.key, plan)
        return plan

    async def _write(
        self,
        service: Service,
        plan: ServicePlan,
        present: list[EndpointSlice],
        outcome: WriteOutcome,
    ) -> None:
        owner = f"Service {service.key}"
        for slice_plan in plan.plans.values():
            if not slice_plan.is_empty:
                await self._writer.write(owner, slice_plan, present=present, outcome=outcome)
        if plan.stray:
            await self._writer.delete(owner, plan.stray, outcome=outcome)

    def _trigger_time(self, service: Service, refreshed: Refreshed) -> str:
        if refreshed.is_new:
            return self._triggers.compute(service, refreshed.changed)
        return self._triggers.compute_changed(
            service, changed=refreshed.changed, gone=refreshed.gone
        )

    async def _write_conditions(
        self, service: Service, plan: ServicePlan, outcome: WriteOutcome
    ) -> None:
        current = self._caches.services.get(service.key)
        if current is None or not has_same_spec(current, service):
            # Its next sync is queued already.
            return
        desired = plan.conditions
        other_writer = self._find_other_writer(service.key)
        stored = self._caches.slices_of(service.key, self._settings.plan.managed_by)
        dropped = self._guard.fields(stored)
        if other_writer or dropped or not outcome.is_good:
            failure = _join(outcome.errors) or "another client wrote the slices first"
            desired = service_conditions(
                plan.strategy,
                SliceSet(unchanged=tuple(stored) if dropped else plan.slices),
                prefix=self._settings.plan.condition_prefix,
                write_failed="" if outcome.is_good else failure,
                dropped=dropped,
                heuristic_failed="" if plan.failure is None else plan.failure.message,
                rival=other_writer,
                facts=self._planners.facts_of(service.key),
            )
        await self._write_status(current, desired, outcome)

    async def _clear_conditions(self, service: Service) -> Result:
        """Remove conditions that an earlier spec or other feature gates left behind."""
        if self._conditions.is_clear(service):
            return Result.SUCCESS
        outcome = WriteOutcome()
        await self._write_status(service, (), outcome)
        self.retry_after.record(service.key, outcome)
        if outcome.errors:
            return Result.ERROR
        return Result.STALE if outcome.is_stale else Result.SUCCESS

    async def _write_status(
        self, service: Service, desired: tuple[Condition, ...], outcome: WriteOutcome
    ) -> None:
        try:
            await self._conditions.write(service, desired)
        except (Conflict, NotFound):
            outcome.is_stale = True
        except KubeError as error:
            message = f"failed to update the status of Service {service.key}: {error}"
            outcome.record_error(message, error)

    def _forget(self, key: NamespacedName) -> None:
        self._planners.drop(key)
        self._answers.pop(key, None)
        self.retry_after.forget(key)
        self._tracker.delete_service(key)
        self._triggers.delete_service(key)
        self._event_handlers.by_shares.discard(key)
        self._event_handlers.awaiting.discard(key)
        self._publisher.forget(key)
        self._contention.forget(key)
        self._other_writers.pop(key, None)
        self._latencies.forget(key)
        self._observer.forgotten(key)


def _join(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""
