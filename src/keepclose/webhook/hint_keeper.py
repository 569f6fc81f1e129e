"""Sets and removes hints where the built-in controller writes no slice and so no review comes.

A Service that opts in or out, a node that is added or removed, an allocation over several slices:
the built-in controller writes nothing then, so the leader of the webhook replicas does. It writes
hints alone, under the resource version that it has seen, and only those that `rehinting` computes,
with which the webhook agrees. Hints that were removed while the API server could not reach the
webhook are set again after a backoff, never in an endless exchange of writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from keepclose.heuristics.process import fetch_answers
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, KubeError, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.reconcile.conditions import ConditionWriter
from keepclose.reconcile.contention import ReapplyBackoff
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.reconcile.event_publisher import service_reference
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import service_conditions
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.runtime.workers import Result, Workers
from keepclose.slices.changes import has_same_spec, is_managed_by
from keepclose.slices.node_changes import node_change
from keepclose.slices.packing import SlicePlan
from keepclose.slices.service_planner import ServicePlan
from keepclose.webhook.hint_writes import HintWriter, try_hints
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.rehinting import Rehinting, rehint
from keepclose.webhook.scope import (
    HintScope,
    HintView,
    TrackedServices,
    decide_scope,
    without_our_annotations,
)

_log = structlog.get_logger(__name__)


class HintKeeper:
    """Reconciles the hints of stored slices while its replica is the leader."""

    def __init__(
        self,
        client: Client,
        view: HintView,
        *,
        settings: ControllerSettings,
        clock: Clock,
        recorder: EventRecorder,
        metrics: WebhookMetrics,
    ) -> None:
        self._client = client
        self._view = view
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._metrics = metrics
        self._backoff = ReapplyBackoff(clock)
        self._conditions = ConditionWriter(
            client, view.caches.services, clock=clock, prefix=settings.plan.condition_prefix
        )
        self.guard = SliceGuard(
            view.caches.slices,
            managed_by=settings.plan.managed_by,
            try_write=partial(try_hints, client),
            on_due=lambda key: self._add(key, 0.0),
        )
        self._writer = HintWriter(client, view.caches.slices, recorder, self.guard, metrics=metrics)
        self._tracked = TrackedServices()
        self._reported: dict[NamespacedName, str] = {}
        self._warned: dict[NamespacedName, str] = {}
        self._answers: dict[NamespacedName, list[tuple[ZoneDemand, HeuristicAnswer]]] = {}
        """The answers of a deferred heuristic in the last sync of a Service."""
        self._queue: WorkQueue[NamespacedName] | None = None
        view.caches.slices.subscribe(self.guard.on_slice)
        view.caches.services.subscribe(self.on_service)
        view.caches.slices.subscribe(self.on_slice)
        view.caches.nodes.subscribe(self.on_node)

    @property
    def is_idle(self) -> bool:
        """Whether no Service is queued, delayed or being synced."""
        queue = self._queue
        return queue is None or not (queue.depth or queue.delayed or queue.running)

    async def lead(self) -> None:
        """Sync Services until cancelled, then let running syncs finish."""
        self._queue = WorkQueue(self._clock, first_delay_s=self._settings.retry_delay_s)
        services = self._view.caches.services
        with_conditions = {
            service.key for service in services.all() if not self._conditions.is_clear(service)
        }
        for key in sorted(self._tracked.requesting | with_conditions):
            self._queue.add(key)
        workers = Workers(
            self._queue,
            self.sync,
            kind="Service",
            number=self._settings.workers,
            most_retries=self._settings.most_retries,
            clock=self._clock,
            on_synced=self._metrics.synced,
        )
        workers.start()
        try:
            await self._recheck_dropped_fields()
        finally:
            await workers.stop(self._settings.grace_s)
            self._queue = None

    async def _recheck_dropped_fields(self) -> None:
        """Check periodically which fields the API server stores now, until cancelled."""
        while True:
            await self._clock.sleep(sum(self._settings.recheck_s) / 2)
            await self.guard.recheck()

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service that requests hints, or requested them before."""
        service = old if new is None else new
        if service is None:
            return
        key = service.key
        if old is not None and new is not None and has_same_spec(old, new):
            is_unchanged = old.status.conditions == new.status.conditions
            is_requesting = self._settings.writes_conditions and key in self._tracked.requesting
            if not is_unchanged and (is_requesting or not self._conditions.is_clear(new)):
                self._add(key, 0.0)
            return
        scope = None if new is None else decide_scope(new, self._settings.plan)
        is_affected = self._tracked.update(key, scope, is_leading=self._queue is not None)
        if scope is not None and scope.is_ours:
            self._add(key, 0.0)
        elif is_affected:
            self._backoff.forget(key)
            # The built-in controller received the event too, and gets the time to sync first.
            self._add(key, self._settings.slice_delay_s)

    def on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Queue the Service of a slice that changed, after a backoff if its hints were removed."""
        endpoint_slice = old if new is None else new
        if endpoint_slice is None or not is_managed_by(
            endpoint_slice, self._settings.plan.managed_by
        ):
            return
        key = endpoint_slice.service_key
        if key not in self._tracked.ours:
            return
        delay_s = self._settings.slice_delay_s
        if old is not None and new is not None and self._is_lost(old, new):
            is_backing_off = self._backoff.left(key) > 0
            delay_s = max(delay_s, self._backoff.record_loss(key))
            self._metrics.lost()
            if not is_backing_off:
                _log.warning("hints removed without a review", service=str(key), wait_s=delay_s)
        self._add(key, delay_s)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Queue all Services in scope when the zones or CPU shares of nodes may differ."""
        if not node_change(old, new).is_nothing:
            for key in self._tracked.ours:
                self._add(key, 0.0)

    def on_demand(self, key: NamespacedName) -> None:
        """Queue a Service whose measured shares changed."""
        self._add(key, 0.0)

    async def sync(self, key: NamespacedName) -> Result:
        """Reconcile the hints and conditions of a Service."""
        service = self._view.service(key)
        if service is None:
            self._forget(key)
            return Result.SUCCESS
        wait_s = self._backoff.left(key)
        if wait_s > 0:
            self._add(key, wait_s)
            return Result.SUCCESS
        scope = decide_scope(service, self._settings.plan)
        self._answers.pop(key, None)
        if self._view.demand is not None and not scope.is_ours:
            self._view.demand.forget(key)
        hinted = self._rehint(service, scope)
        if hinted is not None and hinted.questions:
            heuristics = self._settings.plan.heuristics
            name = hinted.strategy.value
            self._answers[key] = await fetch_answers(heuristics, name, hinted.questions)
            hinted = self._rehint(service, scope)
            if hinted is not None and hinted.questions:
                # Slices or nodes changed meanwhile. Without an answer the hints would be removed.
                return Result.STALE
        result = (
            Result.SUCCESS if hinted is None else await self._writer.write(service, hinted.changed)
        )
        self._report_obstacle(service, scope)
        is_failed = hinted is not None and self._warn_of_failure(service, hinted)
        has_conditions = not self._conditions.is_clear(service)
        if (self._settings.writes_conditions or has_conditions) and result is Result.SUCCESS:
            result = await self._write_conditions(service, scope, hinted)
        if result is Result.SUCCESS:
            self._tracked.leaving.discard(key)
            # A failed heuristic is retried after a backoff.
            return Result.ERROR if is_failed else result
        return result

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return the plan of a Service; None for one that is not in the cache."""
        service = self._view.service(key)
        if service is None:
            return None
        scope = decide_scope(service, self._settings.plan)
        hinted = self._rehint(service, scope) if scope.is_ours else None
        if hinted is None:
            why = scope.obstacle or "the Service is left to the built-in EndpointSlice controller"
            return ServicePlan(strategy=scope.strategy, plans={}, errors=(why,))
        changed = {id(item) for item in hinted.changed}
        plans: dict[str, SlicePlan] = {}
        for address_type in dict.fromkeys(item.address_type for item in hinted.slices):
            slices = [item for item in hinted.slices if item.address_type == address_type]
            plans[address_type] = SlicePlan(
                update=tuple(item for item in slices if id(item) in changed),
                unchanged=tuple(item for item in slices if id(item) not in changed),
            )
        return ServicePlan(
            strategy=hinted.strategy,
            plans=plans,
            reasons=hinted.reasons,
            conditions=self._desired_conditions(service, scope, hinted),
        )

    def _rehint(self, service: Service, scope: HintScope) -> Rehinting | None:
        """Return the desired hints; None where the built-in controller decides them."""
        strategy = scope.strategy
        if not scope.is_ours:
            if service.key not in self._tracked.leaving:
                return None
            # The hints become those that the built-in controller would write by itself.
            service = without_our_annotations(service)
            strategy = decide_scope(service, self._settings.plan).strategy
            if strategy.name is StrategyName.AUTO:
                return None
        return self._hints(service, strategy, self._view.slices(service.key))

    def _hints(
        self, service: Service, strategy: Strategy, slices: Sequence[EndpointSlice]
    ) -> Rehinting:
        return rehint(
            service,
            strategy,
            slices,
            cluster=self._view.cluster,
            settings=self._settings.plan,
            owners=self._view.owners,
            facts=self._view.facts,
            answers=self._answers.get(service.key, ()),
            shares=self._view.shares(service, strategy),
        )

    def _is_lost(self, old: EndpointSlice, new: EndpointSlice) -> bool:
        """Return whether a slice lost its hints to a write that the webhook did not review."""
        service = self._view.service(new.service_key)
        if service is None or old.endpoints == new.endpoints:
            return False
        plain = without_our_annotations(service)
        strategy = decide_scope(plain, self._settings.plan).strategy

        def is_plain(endpoint_slice: EndpointSlice) -> bool:
            return not self._hints(plain, strategy, [endpoint_slice]).changed

        if is_plain(old) or not is_plain(new):
            return False
        hinted = self._rehint(service, decide_scope(service, self._settings.plan))
        name = new.metadata.name
        return hinted is not None and any(item.metadata.name == name for item in hinted.changed)

    def _report_obstacle(self, service: Service, scope: HintScope) -> None:
        """Report once why requested hints are not set."""
        if not scope.obstacle:
            self._reported.pop(service.key, None)
        elif self._reported.get(service.key) != scope.obstacle:
            self._reported[service.key] = scope.obstacle
            _log.warning("hints not set", service=str(service.key), reason=scope.obstacle)
            self._recorder.record(
                service_reference(service), "Warning", "HintsNotSet", scope.obstacle
            )

    def _warn_of_failure(self, service: Service, hinted: Rehinting) -> bool:
        """Return whether the heuristic of a Service failed; report each failure once."""
        failed = [reason for reason in hinted.reasons if reason.code is ReasonCode.HEURISTIC_FAILED]
        if hinted.failure is None or not failed:
            self._warned.pop(service.key, None)
            return False
        self._metrics.failed(hinted.strategy.label, hinted.failure.cause.value)
        message = failed[0].message
        if self._warned.get(service.key) != message:
            self._warned[service.key] = message
            _log.warning("hints not set", service=str(service.key), reason=message)
            self._recorder.record(service_reference(service), "Warning", "HeuristicFailed", message)
        return True

    async def _write_conditions(
        self, service: Service, scope: HintScope, hinted: Rehinting | None
    ) -> Result:
        current = self._view.service(service.key)
        if current is None or not has_same_spec(current, service):
            return Result.SUCCESS
        try:
            await self._conditions.write(current, self._desired_conditions(service, scope, hinted))
        except (Conflict, NotFound):
            return Result.STALE
        except KubeError as error:
            _log.warning("conditions not written", service=str(service.key), error=str(error))
            return Result.ERROR
        return Result.SUCCESS

    def _desired_conditions(
        self, service: Service, scope: HintScope, hinted: Rehinting | None
    ) -> tuple[Condition, ...]:
        if not (scope.is_requested and self._settings.writes_conditions):
            return ()
        strategy = hinted.strategy if hinted is not None and scope.is_ours else scope.strategy
        stored = self._view.slices(service.key)
        dropped = self.guard.fields(stored)
        slices = stored if hinted is None or dropped else hinted.slices
        return service_conditions(
            strategy,
            SliceSet(unchanged=tuple(slices)),
            prefix=self._settings.plan.condition_prefix,
            dropped=dropped,
            heuristic_failed=hinted.failure.message if hinted and hinted.failure else "",
            shares=None if hinted is None else hinted.shares,
            facts=self._view.facts,
        )

    def _add(self, key: NamespacedName, delay_s: float) -> None:
        if self._queue is not None:
            self._queue.add_after(key, delay_s)

    def _forget(self, key: NamespacedName) -> None:
        self._tracked.update(key, None, is_leading=False)
        if self._view.demand is not None:
            self._view.demand.forget(key)
        self._backoff.forget(key)
        self._reported.pop(key, None)
        self._warned.pop(key, None)
        self._answers.pop(key, None)
