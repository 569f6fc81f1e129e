"""What a webhook cannot do: set hints where nobody writes slices, and take them back.

A Service that opts in or out, a node that comes or goes, an allocation over several slices: the
built-in controller writes nothing then, so the leader of the webhooks does. It writes hints alone,
under the version it has seen, and only what `rehinting` wants, which the webhook agrees with.
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
from keepclose.reconcile.node_changes import node_change
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.conditions import service_conditions
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hints import SliceSet
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.strategy import Strategy, StrategyName
from keepclose.runtime.workers import Result, Workers
from keepclose.slices.changes import has_same_spec, is_managed_by
from keepclose.slices.packing import SlicePlan
from keepclose.slices.service_planner import ServicePlan
from keepclose.webhook.hint_writes import HintWriter, try_hints
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.rehinting import Rehinting, rehint
from keepclose.webhook.scope import Claim, Clientele, HintView, claim_service, without_wishes

_log = structlog.get_logger(__name__)


class HintKeeper:
    """Sets hints on slices that exist, while it leads."""

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
        self._brake = ReapplyBackoff(clock)
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
        self._clientele = Clientele()
        self._told: dict[NamespacedName, str] = {}
        self._warned: dict[NamespacedName, str] = {}
        self._answers: dict[NamespacedName, list[tuple[ZoneDemand, HeuristicAnswer]]] = {}
        """What a deferred heuristic answered in the last sync of a Service."""
        self._queue: WorkQueue[NamespacedName] | None = None
        view.caches.slices.subscribe(self.guard.hear_slice)
        view.caches.services.subscribe(self.hear_service)
        view.caches.slices.subscribe(self.hear_slice)
        view.caches.nodes.subscribe(self.hear_node)

    @property
    def is_idle(self) -> bool:
        """Whether no Service waits, is delayed or is worked on."""
        queue = self._queue
        return queue is None or not (queue.depth or queue.delayed or queue.running)

    async def lead(self) -> None:
        """Work until cancelled; syncs under way then end first."""
        self._queue = WorkQueue(self._clock, first_delay_s=self._settings.retry_delay_s)
        services = self._view.caches.services
        marked = {one.key for one in services.all() if not self._conditions.is_clear(one)}
        for key in sorted(self._clientele.asking | marked):
            self._queue.add(key)
        workers = Workers(
            self._queue,
            self.sync,
            number=self._settings.workers,
            most_retries=self._settings.most_retries,
            clock=self._clock,
            on_synced=self._metrics.synced,
        )
        workers.start()
        try:
            await self._ask_again()
        finally:
            await workers.stop(self._settings.grace_s)
            self._queue = None

    async def _ask_again(self) -> None:
        """Find out now and then what the server keeps by now, until cancelled."""
        while True:
            await self._clock.sleep(sum(self._settings.ask_again_s) / 2)
            await self.guard.ask_again()

    def hear_service(self, old: Service | None, new: Service | None) -> None:
        """Queue a Service that asks for something, or asked before and no longer does."""
        one = old if new is None else new
        if one is None:
            return
        key = one.key
        if old is not None and new is not None and has_same_spec(old, new):
            is_told = old.status.conditions == new.status.conditions
            is_asking = self._settings.writes_conditions and key in self._clientele.asking
            if not is_told and (is_asking or not self._conditions.is_clear(new)):
                self._add(key, 0.0)
            return
        claim = None if new is None else claim_service(new, self._settings.plan)
        is_concerned = self._clientele.file(key, claim, is_leading=self._queue is not None)
        if claim is not None and claim.is_ours:
            self._add(key, 0.0)
        elif is_concerned:
            self._brake.forget(key)
            # The built-in controller heard of it too, and is given the time to do its own work.
            self._add(key, self._settings.slice_delay_s)

    def hear_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Queue the Service of a slice that changed, later if its hints were removed."""
        one = old if new is None else new
        if one is None or not is_managed_by(one, self._settings.plan.managed_by):
            return
        key = one.service_key
        if key not in self._clientele.ours:
            return
        delay_s = self._settings.slice_delay_s
        if old is not None and new is not None and self._is_lost(old, new):
            is_known = self._brake.left(key) > 0
            delay_s = max(delay_s, self._brake.note_loss(key))
            self._metrics.lost()
            if not is_known:
                _log.warning(
                    "hints were removed past the webhook", service=str(key), wait_s=delay_s
                )
        self._add(key, delay_s)

    def hear_node(self, old: Node | None, new: Node | None) -> None:
        """Queue everything when the shares of the traffic may differ."""
        if not node_change(old, new).is_nothing:
            for key in self._clientele.ours:
                self._add(key, 0.0)

    async def sync(self, key: NamespacedName) -> Result:
        """Bring the hints and conditions of a Service to where they should be."""
        service = self._view.service(key)
        if service is None:
            self._forget(key)
            return Result.SUCCESS
        wait_s = self._brake.left(key)
        if wait_s > 0:
            self._add(key, wait_s)
            return Result.SUCCESS
        claim = claim_service(service, self._settings.plan)
        self._answers.pop(key, None)
        hinted = self._rehint(service, claim)
        if hinted is not None and hinted.questions:
            heuristics = self._settings.plan.heuristics
            name = hinted.strategy.value
            self._answers[key] = await fetch_answers(heuristics, name, hinted.questions)
            hinted = self._rehint(service, claim)
            if hinted is not None and hinted.questions:
                # Slices or nodes changed meanwhile; without an answer the hints would be removed.
                return Result.STALE
        result = (
            Result.SUCCESS if hinted is None else await self._writer.write(service, hinted.changed)
        )
        self._tell(service, claim)
        is_failed = hinted is not None and self._warn_of_failure(service, hinted)
        has_conditions = not self._conditions.is_clear(service)
        if (self._settings.writes_conditions or has_conditions) and result is Result.SUCCESS:
            result = await self._write_conditions(service, claim, hinted)
        if result is Result.SUCCESS:
            self._clientele.leaving.discard(key)
            # A heuristic that failed is asked again after a while.
            return Result.ERROR if is_failed else result
        return result

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Return what is made of a Service now; None for one that is not known."""
        service = self._view.service(key)
        if service is None:
            return None
        claim = claim_service(service, self._settings.plan)
        hinted = self._rehint(service, claim) if claim.is_ours else None
        if hinted is None:
            why = claim.obstacle or "the Service is left to the built-in EndpointSlice controller"
            return ServicePlan(strategy=claim.strategy, plans={}, errors=(why,))
        changed = {id(one) for one in hinted.changed}
        plans: dict[str, SlicePlan] = {}
        for address_type in dict.fromkeys(one.address_type for one in hinted.slices):
            family = [one for one in hinted.slices if one.address_type == address_type]
            plans[address_type] = SlicePlan(
                update=tuple(one for one in family if id(one) in changed),
                unchanged=tuple(one for one in family if id(one) not in changed),
            )
        return ServicePlan(
            strategy=hinted.strategy,
            plans=plans,
            reasons=hinted.reasons,
            conditions=self._wanted_conditions(service, claim, hinted),
        )

    def _rehint(self, service: Service, claim: Claim) -> Rehinting | None:
        """Return the hints that are wanted; None where they are the built-in controller's."""
        strategy = claim.strategy
        if not claim.is_ours:
            if service.key not in self._clientele.leaving:
                return None
            # What it would write by itself is what our hints have to give way to.
            service = without_wishes(service)
            strategy = claim_service(service, self._settings.plan).strategy
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
        )

    def _is_lost(self, old: EndpointSlice, new: EndpointSlice) -> bool:
        """Return whether a slice has become what the built-in controller makes without us."""
        service = self._view.service(new.service_key)
        if service is None or old.endpoints == new.endpoints:
            return False
        plain = without_wishes(service)
        strategy = claim_service(plain, self._settings.plan).strategy

        def is_plain(one: EndpointSlice) -> bool:
            return not self._hints(plain, strategy, [one]).changed

        if is_plain(old) or not is_plain(new):
            return False
        hinted = self._rehint(service, claim_service(service, self._settings.plan))
        name = new.metadata.name
        return hinted is not None and any(one.metadata.name == name for one in hinted.changed)

    def _tell(self, service: Service, claim: Claim) -> None:
        """Say once why a wish is not followed."""
        if not claim.obstacle:
            self._told.pop(service.key, None)
        elif self._told.get(service.key) != claim.obstacle:
            self._told[service.key] = claim.obstacle
            _log.warning("no hints", service=str(service.key), reason=claim.obstacle)
            self._recorder.record(
                service_reference(service), "Warning", "HintsNotSet", claim.obstacle
            )

    def _warn_of_failure(self, service: Service, hinted: Rehinting) -> bool:
        """Return whether the heuristic of a Service failed; each failure is announced once."""
        failed = [one for one in hinted.reasons if one.code is ReasonCode.HEURISTIC_FAILED]
        if hinted.failure is None or not failed:
            self._warned.pop(service.key, None)
            return False
        self._metrics.failed(hinted.strategy.label, hinted.failure.cause.value)
        message = failed[0].message
        if self._warned.get(service.key) != message:
            self._warned[service.key] = message
            _log.warning("no hints", service=str(service.key), reason=message)
            self._recorder.record(service_reference(service), "Warning", "HeuristicFailed", message)
        return True

    async def _write_conditions(
        self, service: Service, claim: Claim, hinted: Rehinting | None
    ) -> Result:
        current = self._view.service(service.key)
        if current is None or not has_same_spec(current, service):
            return Result.SUCCESS
        try:
            await self._conditions.write(current, self._wanted_conditions(service, claim, hinted))
        except (Conflict, NotFound):
            return Result.STALE
        except KubeError as error:
            _log.warning("cannot write conditions", service=str(service.key), error=str(error))
            return Result.ERROR
        return Result.SUCCESS

    def _wanted_conditions(
        self, service: Service, claim: Claim, hinted: Rehinting | None
    ) -> tuple[Condition, ...]:
        if not (claim.asks and self._settings.writes_conditions):
            return ()
        strategy = hinted.strategy if hinted is not None and claim.is_ours else claim.strategy
        stored = self._view.slices(service.key)
        dropped = self.guard.fields(stored)
        slices = stored if hinted is None or dropped else hinted.slices
        return service_conditions(
            strategy,
            SliceSet(unchanged=tuple(slices)),
            prefix=self._settings.plan.condition_prefix,
            dropped=dropped,
            heuristic_failed=hinted.failure.message if hinted and hinted.failure else "",
        )

    def _add(self, key: NamespacedName, delay_s: float) -> None:
        if self._queue is not None:
            self._queue.add_after(key, delay_s)

    def _forget(self, key: NamespacedName) -> None:
        self._clientele.file(key, None, is_leading=False)
        self._brake.forget(key)
        self._told.pop(key, None)
        self._warned.pop(key, None)
        self._answers.pop(key, None)
