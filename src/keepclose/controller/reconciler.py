"""The sync of one Service: read the caches, plan, write, and report by Events and conditions.

Level-based: a key only names a Service, and a sync reads everything else again, so that a lost or
repeated key does no harm. A sync must never plan from a cache that lags behind the controller's own
writes.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from keepclose.controller.event_handlers import PodLatencies
from keepclose.controller.other_controllers import OTHER_CONTROLLER_FIX
from keepclose.controller.service_planners import ServicePlanners
from keepclose.controller.writes import SliceWriter, WriteOutcome
from keepclose.kube.errors import Conflict, KubeError, NotFound
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.reconcile.event_publisher import EventPublisher
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import service_conditions
from keepclose.routing.hints import SliceSet
from keepclose.runtime.workers import Result
from keepclose.slices.changes import has_same_spec
from keepclose.slices.service_planner import ServicePlan

_log = structlog.get_logger(__name__)


class ServiceReports:
    """Reports to the owner of a Service: by Events, and by the conditions of its status."""

    def __init__(
        self,
        caches: Caches,
        *,
        settings: ControllerSettings,
        planners: ServicePlanners,
        guard: SliceGuard,
        contention: Contention,
        conditions: ConditionWriter,
        publisher: EventPublisher,
        requeue_after: Callable[[NamespacedName, float], None],
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._planners = planners
        self._guard = guard
        self._contention = contention
        self._conditions = conditions
        self._publisher = publisher
        self._requeue_after = requeue_after

    async def report(self, service: Service, plan: ServicePlan, outcome: WriteOutcome) -> None:
        """Report a plan and the outcome of its writes; record failures in the outcome."""
        self._publisher.publish_plan(service, plan)
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        else:
            await self.clear(service, outcome)

    async def clear(self, service: Service, outcome: WriteOutcome) -> None:
        """Remove conditions that an earlier spec or other feature gates left behind."""
        if not self._conditions.is_clear(service):
            await self._write_status(service, (), outcome)

    async def report_contention(
        self, service: Service, plan: ServicePlan, present: list[EndpointSlice], wait_s: float
    ) -> bool:
        """Report that another controller keeps changing the slices, by an Event only once.

        Requeue the Service after the wait. Return whether the conditions could be written.
        """
        key = service.key
        if await self._contention.identify_writer(key, present):
            writer = self._contention.writer(key)
            _log.warning(
                "EndpointSlices are contended",
                service=str(key),
                writer=writer,
                fix=OTHER_CONTROLLER_FIX,
            )
            self._publisher.publish_failure(
                service,
                "EndpointSlicesContended",
                f"{writer} keeps undoing what is written to the EndpointSlices; "
                f"{OTHER_CONTROLLER_FIX}",
            )
        outcome = WriteOutcome()
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        self._requeue_after(key, wait_s)
        return outcome.is_good

    def report_errors(self, service: Service, errors: list[str]) -> None:
        """Report what failed by an Event."""
        self._publisher.publish_failure(
            service,
            "FailedToUpdateEndpointSlices",
            f"Error updating Endpoint Slices for Service {service.key}: {_join(errors)}",
        )

    def forget(self, key: NamespacedName) -> None:
        """Drop the state of a Service that was deleted."""
        self._publisher.forget(key)

    async def _write_conditions(
        self, service: Service, plan: ServicePlan, outcome: WriteOutcome
    ) -> None:
        key = service.key
        current = self._caches.services.get(key)
        if current is None or not has_same_spec(current, service):
            # Its next sync is queued already.
            return
        desired = plan.conditions
        other_writer = self._contention.writer(key)
        if other_writer:
            # No event reports that the other controller stopped, so the Service is requeued.
            self._requeue_after(key, self._contention.left(key))
        stored = self._caches.slices_of(key, self._settings.plan.managed_by)
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
                other_writer=other_writer,
                shares=plan.shares,
                facts=self._planners.facts_of(key),
            )
        await self._write_status(current, desired, outcome)

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


class Reconciler:
    """Syncs Services by key; it must not run twice at once for the same key."""

    def __init__(
        self,
        caches: Caches,
        *,
        planners: ServicePlanners,
        writer: SliceWriter,
        reports: ServiceReports,
        contention: Contention,
        observer: Observer,
        latencies: PodLatencies,
    ) -> None:
        self._caches = caches
        self._planners = planners
        self._writer = writer
        self._reports = reports
        self._contention = contention
        self._observer = observer
        self._latencies = latencies

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan that a sync would compute now; None for a Service without slices here."""
        service = self._caches.services.get(key)
        if service is None or not _has_slices(service):
            return None
        return self._planners.explain(service)

    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the slices of a Service as far as that is possible now.

        A deleted Service is forgotten; the garbage collector deletes its slices. The slices of a
        Service without a selector, or of type ExternalName, are left alone.
        """
        service = self._caches.services.get(key)
        if service is None:
            self._forget(key)
            return Result.SUCCESS
        if not _has_slices(service):
            return await self._release(service)
        own_writes = self._writer.own_writes
        present = self._caches.slices_of(key, own_writes.managed_by)
        if own_writes.is_cache_behind(key, present):
            own_writes.await_event(key)
            return Result.STALE
        try:
            return await self._reconcile(service, present)
        except Exception:
            # A planner in an unknown state is built again from the caches.
            self._planners.drop(key)
            raise

    async def _reconcile(self, service: Service, present: list[EndpointSlice]) -> Result:
        key = service.key
        since = self._latencies.take(key)
        plan = self._writer.guard.withhold_all(await self._planners.plan(service), present)
        self._observer.planned(key, plan)
        self._contention.release_writer(key)
        if not plan.is_empty and (wait_s := self._contention.required_wait(key)) > 0:
            # The slices are left for a while to the controller that keeps changing them.
            self._observer.contended(key)
            is_good = await self._reports.report_contention(service, plan, present, wait_s)
            return Result.SUCCESS if is_good else Result.STALE
        outcome = WriteOutcome()
        if not plan.is_empty:
            self._contention.record_own_write(key)
            with self._writer.own_writes.writing(key):
                await self._write(service, plan, present, outcome)
        if since is not None:
            self._latencies.end(key, since, written=outcome.written, is_good=outcome.is_good)
        await self._reports.report(service, plan, outcome)
        self._writer.retry_after.record(key, outcome)
        errors = [*plan.errors, *outcome.errors]
        if errors:
            self._reports.report_errors(service, errors)
            return Result.ERROR
        if outcome.is_stale:
            self._writer.own_writes.await_event(key)
            return Result.STALE
        # A failed heuristic is retried after a backoff; the endpoints are correct meanwhile.
        return Result.SUCCESS if plan.failure is None else Result.ERROR

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

    async def _release(self, service: Service) -> Result:
        """Leave the slices of a Service alone, and remove the conditions of an earlier spec."""
        self._planners.release(service.key)
        outcome = WriteOutcome()
        await self._reports.clear(service, outcome)
        self._writer.retry_after.record(service.key, outcome)
        if outcome.errors:
            return Result.ERROR
        return Result.STALE if outcome.is_stale else Result.SUCCESS

    def _forget(self, key: NamespacedName) -> None:
        self._planners.forget(key)
        self._writer.forget(key)
        self._reports.forget(key)
        self._contention.forget(key)
        self._latencies.forget(key)
        self._observer.forgotten(key)


def _has_slices(service: Service) -> bool:
    return service.spec.type != "ExternalName" and service.spec.selector is not None


def _join(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""
