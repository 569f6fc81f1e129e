"""The plans of Services, by one ServicePlanner for each, which is updated when a sync needs a plan.

Between syncs only the names of changed pods and slices are marked; a sync reads them from the
caches, so that a planner never mixes states of different times, and one change costs the same
however large the Service is. A planner can be dropped at any time: it is built again from the
caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from keepclose.heuristics.process import fetch_answers
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod
from keepclose.reconcile.caches import Caches, NodeFacts
from keepclose.routing.heuristic_answers import HeuristicAnswer, ZoneDemand
from keepclose.routing.hint_facts import FactsOf, slice_facts
from keepclose.routing.strategy import StrategyName, choose_strategy
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.changes import TriggerTimeTracker, has_same_spec, is_managed_by
from keepclose.slices.node_changes import depends_on_shares
from keepclose.slices.service_planner import ServicePlan, ServicePlanner, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings

if TYPE_CHECKING:
    from keepclose.demand.store import DemandStore


class _Refreshed(NamedTuple):
    """A planner that is up to date, and the pods whose changes it received.

    `is_new` means that `changed` holds all pods, not only those marked since the last sync.
    """

    planner: ServicePlanner
    changed: list[Pod]
    gone: list[str]
    is_new: bool


class _Entry:
    """A planner, what it was built from, and the names of pods and slices to read again."""

    __slots__ = ("cluster", "planner", "pods", "service", "slices")

    def __init__(self, service: Service, planner: ServicePlanner, cluster: ClusterNodes) -> None:
        self.service = service
        self.planner = planner
        self.cluster = cluster
        self.pods: dict[NamespacedName, None] = {}
        self.slices: dict[str, None] = {}


class ServicePlanners:
    """The planners of all synced Services."""

    def __init__(self, caches: Caches, settings: PlannerSettings) -> None:
        self._caches = caches
        self.demand: DemandStore | None = None
        """The measured demand of Services; None if CPU counts for all."""
        self._settings = settings
        self._entries: dict[NamespacedName, _Entry] = {}
        self._triggers = TriggerTimeTracker()
        self._answers: dict[NamespacedName, list[tuple[ZoneDemand, HeuristicAnswer]]] = {}
        """The answers of a deferred heuristic for the last plan of a Service."""
        self.nodes = NodeFacts(caches.nodes)
        self.by_shares: set[NamespacedName] = set()
        """Services to sync when the CPU shares of zones change."""
        self.by_weights: set[NamespacedName] = set()
        """Services to sync when nodes begin or cease to follow weights."""

    def __len__(self) -> int:
        return len(self._entries)

    def mark_pod(self, key: NamespacedName, pod_key: NamespacedName) -> None:
        """Mark a pod to be read again for a Service; one without a planner reads all pods."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.pods[pod_key] = None

    def mark_slice(self, key: NamespacedName, name: str) -> None:
        """Mark a slice of a Service that was written or deleted."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.slices[name] = None

    def facts_of(self, key: NamespacedName) -> FactsOf:
        """Return the function from the slices of a Service to their facts."""
        entry = self._entries.get(key)
        return slice_facts if entry is None else entry.planner.facts.of

    def drop(self, key: NamespacedName) -> None:
        """Drop the planner of a Service; the next sync builds it again."""
        self._entries.pop(key, None)

    def release(self, key: NamespacedName) -> None:
        """Drop a Service that needs no plan."""
        self.drop(key)
        self.by_shares.discard(key)
        self.by_weights.discard(key)
        if self.demand is not None:
            self.demand.forget(key)

    def forget(self, key: NamespacedName) -> None:
        """Drop everything about a Service that was deleted."""
        self.release(key)
        self._answers.pop(key, None)
        self._triggers.delete_service(key)

    async def plan(self, service: Service) -> ServicePlan:
        """Return the writes that are due for a Service now."""
        key = service.key
        refreshed = self._refresh(service, self.nodes.cluster)
        trigger_time = self._trigger_time(service, refreshed)
        # NB: the same for both plans, because the answers of a heuristic are those to its shares.
        shares = self._shares_of(service)
        plan = refreshed.planner.plan(trigger_time=trigger_time, shares=shares)
        self._answers.pop(key, None)
        if plan.questions:
            # NB: changes that come meanwhile requeue the Service, and only its next sync passes
            # them to the planner; so the second plan has the questions of the first one.
            heuristics = self._settings.heuristics
            answers = await fetch_answers(heuristics, plan.strategy.value, plan.questions)
            self._answers[key] = answers
            plan = refreshed.planner.plan(trigger_time=trigger_time, answers=answers, shares=shares)
        if depends_on_shares(plan.strategy, service.metadata.annotations, settings=self._settings):
            self.by_shares.add(key)
        else:
            self.by_shares.discard(key)
        if plan.has_weights:
            self.by_weights.add(key)
        else:
            self.by_weights.discard(key)
        return plan

    def explain(self, service: Service) -> ServicePlan:
        """Return the plan that a sync of a Service would compute now."""
        # NB: planned from scratch, so that reading does not consume changes of the next sync.
        return plan_service(
            service,
            pods=self._caches.selected(service),
            slices=self._caches.slices_of(service.key, self._settings.managed_by),
            cluster=self.nodes.cluster,
            settings=self._settings,
            answers=self._answers.get(service.key, ()),
            shares=self._shares_of(service),
        )

    def _shares_of(self, service: Service) -> Shares | None:
        """Return the shares by measured demand; None where it is not measured or does not count."""
        if self.demand is None:
            return None
        strategy = choose_strategy(
            service,
            gates=self._settings.gates,
            default_subsetting=self._settings.subsets.default,
            heuristics=self._settings.heuristics,
        )
        if strategy.name is not StrategyName.CUSTOM:
            self.demand.forget(service.key)
            return None
        return self.demand.shares_of(service)

    def _trigger_time(self, service: Service, refreshed: _Refreshed) -> str:
        if refreshed.is_new:
            return self._triggers.compute(service, refreshed.changed)
        return self._triggers.compute_changed(
            service, changed=refreshed.changed, gone=refreshed.gone
        )

    def _refresh(self, service: Service, cluster: ClusterNodes) -> _Refreshed:
        """Return the planner of a Service, updated from the caches."""
        entry = self._entries.get(service.key)
        if entry is None or _has_other_selector(entry.service, service):
            return self._build(service, cluster)
        if entry.service is not service:
            if not has_same_spec(entry.service, service):
                entry.planner.set_service(service)
            entry.service = service
        if entry.cluster is not cluster:
            entry.planner.set_cluster(cluster)
            entry.cluster = cluster
        self._update_slices(entry)
        changed, gone = self._update_pods(entry)
        return _Refreshed(entry.planner, changed, gone, is_new=False)

    def _build(self, service: Service, cluster: ClusterNodes) -> _Refreshed:
        planner = ServicePlanner(service, cluster=cluster, settings=self._settings)
        slices = self._caches.slices_of(service.key, self._settings.managed_by)
        for endpoint_slice in sorted(slices, key=lambda item: item.metadata.name):
            planner.observe(endpoint_slice)
        # NB: sorted by name, so that two controllers that start from the same state pack alike.
        pods = sorted(self._caches.selected(service), key=lambda pod: pod.metadata.name)
        for pod in pods:
            planner.set_pod(pod)
        self._entries[service.key] = _Entry(service, planner, cluster)
        return _Refreshed(planner, pods, [], is_new=True)

    def _update_slices(self, entry: _Entry) -> None:
        names, entry.slices = entry.slices, {}
        namespace, managed_by = entry.service.metadata.namespace, self._settings.managed_by
        for name in names:
            endpoint_slice = self._caches.slices.get(NamespacedName(namespace, name))
            if (
                endpoint_slice is not None
                and endpoint_slice.service_key == entry.service.key
                and is_managed_by(endpoint_slice, managed_by)
            ):
                entry.planner.observe(endpoint_slice)
            else:
                entry.planner.forget(name)

    def _update_pods(self, entry: _Entry) -> tuple[list[Pod], list[str]]:
        pod_keys, entry.pods = entry.pods, {}
        selector = entry.service.spec.selector or {}
        changed: list[Pod] = []
        gone: list[str] = []
        for pod_key in pod_keys:
            pod = self._caches.pods.get(pod_key)
            if pod is not None and matches(selector, pod.metadata.labels):
                entry.planner.set_pod(pod)
                changed.append(pod)
            else:
                entry.planner.drop_pod(pod_key)
                gone.append(pod_key.name)
        return changed, gone


def _has_other_selector(old: Service, new: Service) -> bool:
    return old.metadata.uid != new.metadata.uid or old.spec.selector != new.spec.selector
