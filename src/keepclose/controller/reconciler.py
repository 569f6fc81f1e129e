"""The sync of one Service: read the caches, plan, write, tell.

Level-based: a key says only which Service, and everything else is read anew, so that a lost or
repeated key does no harm. Nothing is planned from a cache that lags behind our own writes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from keepclose.controller.event_handlers import PodLatencies, Subscriptions
from keepclose.controller.other_controllers import FIX
from keepclose.controller.own_writes import Setbacks
from keepclose.controller.service_planners import Refreshed, States
from keepclose.controller.writes import SliceWriter, WriteOutcome
from keepclose.heuristics.process import fetch_answers
from keepclose.kube.errors import Conflict, KubeError, NotFound
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.reconcile.event_publisher import Announcer
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.node_changes import NodeFacts, depends_on_shares
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
    """Syncs Services one key at a time; never the same key twice at once."""

    def __init__(
        self,
        caches: Caches,
        *,
        settings: ControllerSettings,
        states: States,
        nodes: NodeFacts,
        subscriptions: Subscriptions,
        tracker: SliceTracker,
        guard: SliceGuard,
        contention: Contention,
        find_writer: Callable[[NamespacedName], Awaitable[str]],
        come_back: Callable[[NamespacedName, float], None],
        writer: SliceWriter,
        conditions: ConditionWriter,
        announcer: Announcer,
        observer: Observer,
        latencies: PodLatencies,
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._states = states
        self._nodes = nodes
        self._subscriptions = subscriptions
        self._tracker = tracker
        self._triggers = TriggerTimeTracker()
        self._guard = guard
        self._contention = contention
        self._find_writer = find_writer
        self._come_back = come_back
        self._rivals: dict[NamespacedName, str] = {}
        self._writer = writer
        self._conditions = conditions
        self._announcer = announcer
        self._observer = observer
        self._latencies = latencies
        self._answers: dict[NamespacedName, list[tuple[ZoneDemand, HeuristicAnswer]]] = {}
        """What a deferred heuristic answered for the last plan of a Service."""
        self.setbacks = Setbacks()

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan as it would be made now; None for a Service that is none of ours."""
        service = self._caches.services.get(key)
        if service is None or service.spec.type == "ExternalName" or service.spec.selector is None:
            return None
        # NB: from nothing, so that looking does not take changes away from the next sync.
        return plan_service(
            service,
            pods=self._caches.selected(service),
            slices=self._caches.slices_of(key, self._settings.plan.managed_by),
            cluster=self._nodes.cluster,
            settings=self._settings.plan,
            answers=self._answers.get(key, ()),
        )

    async def sync(self, key: NamespacedName) -> Result:
        """Bring the slices of a Service to where they should be, as far as that is possible now.

        A Service that is gone is forgotten; the garbage collector takes its slices. One without a
        selector, or of the type ExternalName, is left alone.
        """
        service = self._caches.services.get(key)
        if service is None:
            self._forget(key)
            return Result.SUCCESS
        if service.spec.type == "ExternalName" or service.spec.selector is None:
            self._states.drop(key)
            self._subscriptions.by_shares.discard(key)
            return await self._clear_conditions(service)
        present = self._caches.slices_of(key, self._settings.plan.managed_by)
        if self._tracker.is_stale(key, present):
            self._subscriptions.awaiting.add(key)
            return Result.STALE
        try:
            return await self._reconcile(service, present)
        except Exception:
            # Whatever a state has come to, the caches make a good one of it.
            self._states.drop(key)
            raise

    async def _reconcile(self, service: Service, present: list[EndpointSlice]) -> Result:
        since = self._latencies.take(service.key)
        plan = await self._plan(service, present)
        outcome = WriteOutcome()
        if not self._contention.left(service.key):
            self._rivals.pop(service.key, None)
        if not plan.is_empty and (wait_s := self._contention.ask(service.key)) > 0:
            return await self._give_way(service, plan, present, wait_s)
        if not plan.is_empty:
            self._contention.note_written(service.key)
            self._subscriptions.news.begin_writes(service.key)
            try:
                await self._write(service, plan, present, outcome)
            finally:
                self._subscriptions.end_writes(service.key)
        if since is not None:
            self._latencies.end(
                service.key, since, written=outcome.written, is_good=outcome.is_good
            )
        self._announcer.announce(service, plan)
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        elif not self._conditions.is_clear(service):
            await self._write_status(service, (), outcome)
        self.setbacks.note(service.key, outcome)
        errors = [*plan.errors, *outcome.errors]
        if errors:
            self._announcer.fail(
                service,
                "FailedToUpdateEndpointSlices",
                f"Error updating Endpoint Slices for Service {service.key}: {_join(errors)}",
            )
            return Result.ERROR
        if outcome.is_stale:
            self._subscriptions.awaiting.add(service.key)
            return Result.STALE
        # A heuristic that failed is asked again after a while; the endpoints are right meanwhile.
        return Result.SUCCESS if plan.failure is None else Result.ERROR

    async def _give_way(
        self, service: Service, plan: ServicePlan, present: list[EndpointSlice], wait_s: float
    ) -> Result:
        """Leave the slices to the controller that keeps changing them, for a while, and say so."""
        key = service.key
        self._observer.contended(key)
        if key not in self._rivals:
            names = [await self._find_writer(one.metadata.key) for one in present[:1]]
            self._rivals[key] = next((name for name in names if name), "another controller")
            message = f"{self._rivals[key]} keeps undoing what is written to the EndpointSlices"
            _log.warning("slices are contended", service=str(key), rival=self._rivals[key], fix=FIX)
            self._announcer.fail(service, "EndpointSlicesContended", f"{message}; {FIX}")
        outcome = WriteOutcome()
        if self._settings.writes_conditions:
            await self._write_conditions(service, plan, outcome)
        self._come_back(key, wait_s)
        return Result.SUCCESS if outcome.is_good else Result.STALE

    def _find_rival(self, key: NamespacedName) -> str:
        """Return the controller that keeps undoing our writes of a Service; "" for none."""
        rival = self._rivals.get(key, "")
        if rival:
            # No event says that the other controller has stopped, so the Service is synced then.
            self._come_back(key, self._contention.left(key))
        return rival

    async def _plan(self, service: Service, present: list[EndpointSlice]) -> ServicePlan:
        refreshed = self._states.refresh(service, self._nodes.cluster)
        trigger_time = self._trigger_time(service, refreshed)
        wish = refreshed.state.plan(trigger_time=trigger_time)
        self._answers.pop(service.key, None)
        if wish.questions:
            # NB: changes that come meanwhile are noted and queue the Service again; the state is
            # told of them by the next sync, so the second plan asks what the first one asked.
            heuristics = self._settings.plan.heuristics
            answers = await fetch_answers(heuristics, wish.strategy.value, wish.questions)
            self._answers[service.key] = answers
            wish = refreshed.state.plan(trigger_time=trigger_time, answers=answers)
        plan = self._guard.withhold_all(wish, present)
        if depends_on_shares(
            plan.strategy, service.metadata.annotations, settings=self._settings.plan
        ):
            self._subscriptions.by_shares.add(service.key)
        else:
            self._subscriptions.by_shares.discard(service.key)
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
        for one in plan.plans.values():
            if not one.is_empty:
                await self._writer.write(owner, one, present=present, outcome=outcome)
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
            # Its next sync stands in the queue already.
            return
        wanted = plan.conditions
        rival = self._find_rival(service.key)
        stored = self._caches.slices_of(service.key, self._settings.plan.managed_by)
        dropped = self._guard.fields(stored)
        if rival or dropped or not outcome.is_good:
            failure = _join(outcome.errors) or "another client wrote the slices first"
            wanted = service_conditions(
                plan.strategy,
                SliceSet(unchanged=tuple(stored) if dropped else plan.slices),
                prefix=self._settings.plan.condition_prefix,
                write_failed="" if outcome.is_good else failure,
                dropped=dropped,
                heuristic_failed="" if plan.failure is None else plan.failure.message,
                rival=rival,
            )
        await self._write_status(current, wanted, outcome)

    async def _clear_conditions(self, service: Service) -> Result:
        """Remove conditions that are left from when the Service or the gates were others."""
        if self._conditions.is_clear(service):
            return Result.SUCCESS
        outcome = WriteOutcome()
        await self._write_status(service, (), outcome)
        self.setbacks.note(service.key, outcome)
        if outcome.errors:
            return Result.ERROR
        return Result.STALE if outcome.is_stale else Result.SUCCESS

    async def _write_status(
        self, service: Service, wanted: tuple[Condition, ...], outcome: WriteOutcome
    ) -> None:
        try:
            await self._conditions.write(service, wanted)
        except (Conflict, NotFound):
            outcome.is_stale = True
        except KubeError as error:
            message = f"failed to update the status of Service {service.key}: {error}"
            outcome.note_error(message, error)

    def _forget(self, key: NamespacedName) -> None:
        self._states.drop(key)
        self._answers.pop(key, None)
        self.setbacks.forget(key)
        self._tracker.delete_service(key)
        self._triggers.delete_service(key)
        self._subscriptions.by_shares.discard(key)
        self._subscriptions.awaiting.discard(key)
        self._announcer.forget(key)
        self._contention.forget(key)
        self._rivals.pop(key, None)
        self._latencies.forget(key)
        self._observer.forgotten(key)


def _join(errors: list[str]) -> str:
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]" if errors else ""
