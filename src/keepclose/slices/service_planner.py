"""The plan of slice writes for one Service, kept up to date with its pods, slices and nodes.

A `ServicePlanner` receives pods, nodes, slices and versions of the Service, and returns at any time
the writes that bring the slices to the desired state. The cost of a plan follows what changed, not
what exists. The planner must hold nothing that could not be read from the API again: a new planner
with the same objects gives the same plan, and `plan_service` works that way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import Gate
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.routing.conditions import service_conditions
from keepclose.routing.heuristic_answers import HeuristicAnswer, HeuristicFailure, ZoneDemand
from keepclose.routing.hint_facts import FactsCache
from keepclose.routing.hints import SliceSet
from keepclose.routing.node_level import NodeLevelDecision
from keepclose.routing.reasons import Reason, TopologyEvent
from keepclose.routing.strategy import Strategy, StrategyName, choose_strategy
from keepclose.routing.subsets import Level, group_name, read_limits
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.endpoints import EndpointBuilder
from keepclose.slices.hinting import (
    EndpointOwners,
    Hinting,
    SubsetGroups,
    apply_overlay,
    decide_overlay,
    hint_slices,
)
from keepclose.slices.packing import SlicePlan, add_placeholder, finish_plan
from keepclose.slices.placement import Placement, locate_by_zone
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import address_types, slices_of_other_types
from keepclose.slices.weight_annotations import annotate_weights


class ServicePlan(msgspec.Struct, frozen=True):
    """All writes for one Service, with their reasons, events and conditions.

    `errors` name pods that were skipped; the other endpoints are planned nevertheless.
    """

    strategy: Strategy
    plans: dict[str, SlicePlan]
    stray: tuple[EndpointSlice, ...] = ()
    """Slices to delete because the Service no longer has their address type."""
    events: tuple[TopologyEvent, ...] = ()
    reasons: tuple[Reason, ...] = ()
    conditions: tuple[Condition, ...] = ()
    shares: Shares | None = None
    """The shares by measured demand that the plan was made with."""
    totals: dict[str, dict[str, int]] = {}
    """What the mode Auto allocated to each zone, by address type."""
    errors: tuple[str, ...] = ()
    failure: HeuristicFailure | None = None
    """The failure of the custom heuristic that governs the Service."""
    questions: tuple[ZoneDemand, ...] = ()
    """Questions that a custom heuristic must answer before this plan may be applied."""
    has_weights: bool = False
    """Whether the plan depends on which nodes follow weights."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.stray and all(plan.is_empty for plan in self.plans.values())

    @property
    def writes(self) -> int:
        """How many slices are created, updated and deleted."""
        return len(self.stray) + sum(
            len(plan.create) + len(plan.update) + len(plan.delete) for plan in self.plans.values()
        )

    @property
    def slices(self) -> tuple[EndpointSlice, ...]:
        """The slices that exist after all writes."""
        return tuple(
            endpoint_slice
            for plan in self.plans.values()
            for endpoint_slice in (*plan.update, *plan.unchanged, *plan.create)
        )


class _Family:
    """The placement and groups of one address type."""

    def __init__(self, service: Service, address_type: str, settings: PlannerSettings) -> None:
        self.address_type = address_type
        self.builder = EndpointBuilder(service, address_type)
        self.placement = Placement(service, address_type, managed_by=settings.managed_by)
        self.subset_groups: SubsetGroups | None = None


class ServicePlanner:
    """Planner of one Service: its pods and slices, and the plan that follows from them."""

    def __init__(
        self, service: Service, *, cluster: ClusterNodes, settings: PlannerSettings
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pods: dict[NamespacedName, Pod] = {}
        self._by_node: dict[str, set[NamespacedName]] = {}
        self._endpoint_owners = EndpointOwners()
        self._observed: dict[str, EndpointSlice] = {}
        self.facts = FactsCache()
        self._service = service
        self._families = self._new_families()

    def set_service(self, service: Service) -> None:
        """Set a new version of the Service; everything is computed again."""
        self._service = service
        self._families = self._new_families()
        for pod in list(self._pods.values()):
            self.set_pod(pod)
        for endpoint_slice in self._observed.values():
            self._pass_slice_on(endpoint_slice)

    def set_cluster(self, cluster: ClusterNodes) -> None:
        """Set the current nodes; only pods on nodes whose zone or region changed are updated."""
        old = self._cluster.nodes
        self._cluster = cluster
        for name, pod_keys in list(self._by_node.items()):
            before, after = old.get(name), cluster.nodes.get(name)
            if _zone_and_region(before) != _zone_and_region(after):
                for pod_key in list(pod_keys):
                    self.set_pod(self._pods[pod_key])

    def set_pod(self, pod: Pod) -> None:
        """Add or update a pod that the Service selects."""
        pod_key = pod.key
        self._forget_node(pod_key)
        self._pods[pod_key] = pod
        self._by_node.setdefault(pod.spec.node_name, set()).add(pod_key)
        node = self._cluster.nodes.get(pod.spec.node_name)
        for family in self._families:
            desired = family.builder.desired(pod, node)
            if desired is None:
                family.placement.remove_pod(pod_key)
            else:
                family.placement.add_pod(pod_key, desired)
            if family.subset_groups is not None:
                family.subset_groups.update((pod_key,))
        endpoints = [family.placement.endpoint(pod_key) for family in self._families]
        if any(endpoint is not None and endpoint.is_ready for endpoint in endpoints):
            self._endpoint_owners.put(pod)
        else:
            self._endpoint_owners.remove(pod_key)

    def drop_pod(self, pod_key: NamespacedName) -> None:
        """Drop a pod that was deleted or is no longer selected; an unknown pod is ignored."""
        self._forget_node(pod_key)
        self._pods.pop(pod_key, None)
        for family in self._families:
            family.placement.remove_pod(pod_key)
            if family.subset_groups is not None:
                family.subset_groups.update((pod_key,))
        self._endpoint_owners.remove(pod_key)

    def observe(self, endpoint_slice: EndpointSlice) -> None:
        """Record a new or changed slice that this controller manages."""
        name = endpoint_slice.metadata.name
        previous = self._observed.pop(name, None)
        if endpoint_slice.metadata.deletion_timestamp is None:
            self._observed[name] = endpoint_slice
        self._pass_slice_on(endpoint_slice, previous)

    def forget(self, name: str) -> None:
        """Drop a deleted slice; an unknown name is ignored."""
        gone = self._observed.pop(name, None)
        for family in self._families:
            family.placement.forget(name)
            if gone is not None and family.subset_groups is not None:
                family.subset_groups.update(_pods_in(gone))

    def plan(
        self,
        *,
        trigger_time: str = "",
        populated: bool | None = None,
        answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
        shares: Shares | None = None,
    ) -> ServicePlan:
        """Return the writes that are due now.

        `populated` says whether the Service had hints of the mode Auto before; their first
        appearance is an event. None judges by the observed slices. `answers` answer the questions
        of an earlier plan. `shares` are those of the Service by measured demand, for a custom
        heuristic; without them the shares of the nodes count.
        """
        settings = self._settings
        strategy = choose_strategy(
            self._service,
            gates=settings.gates,
            default_subsetting=settings.subsets.default,
            heuristics=settings.heuristics,
        )
        overlay = self._overlay(strategy)
        strategy = apply_overlay(strategy, overlay)
        reasons: dict[Reason, None] = dict.fromkeys(() if overlay is None else overlay.reasons)
        plans: dict[str, SlicePlan] = {}
        events: list[TopologyEvent] = []
        totals: dict[str, dict[str, int]] = {}
        errors: dict[str, None] = {}
        hinted = SliceSet()
        has_weights = False
        failures: list[HeuristicFailure] = []
        questions: list[ZoneDemand] = []
        for family in self._families:
            reasons.update(dict.fromkeys(self._divide(family, strategy)))
            plan = add_placeholder(
                family.placement.plan(
                    max_endpoints=settings.max_endpoints, locate=self._locator(strategy.level)
                ),
                self._service,
                address_type=family.address_type,
                managed_by=settings.managed_by,
            )
            hinting = self._hint(family, plan, strategy, overlay, populated, answers, shares)
            annotated = annotate_weights(hinting.slices, hinting.weights)
            hinted = SliceSet(unchanged=hinted.all + annotated.all)
            has_weights = has_weights or hinting.has_weights
            reasons.update(dict.fromkeys(hinting.reasons))
            events.extend(hinting.events)
            errors.update(dict.fromkeys(family.placement.errors))
            if hinting.totals is not None:
                totals[family.address_type] = hinting.totals
            if hinting.failure is not None:
                failures.append(hinting.failure)
            if hinting.question is not None:
                questions.append(hinting.question)
            plans[family.address_type] = finish_plan(
                replace(
                    plan,
                    create=annotated.create,
                    update=annotated.update,
                    unchanged=annotated.unchanged,
                    rehinted=family.placement.count_rehinted(hinting.slices),
                ),
                self._service,
                trigger_time=trigger_time,
            )
        conditions: tuple[Condition, ...] = ()
        if settings.gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS):
            conditions = service_conditions(
                strategy,
                hinted,
                prefix=settings.condition_prefix,
                heuristic_failed=failures[0].message if failures else "",
                shares=shares,
                facts=self.facts.of,
            )
        self.facts.prune(self._observed.values())
        return ServicePlan(
            strategy=strategy,
            plans=plans,
            stray=slices_of_other_types(self._observed.values(), tuple(plans)),
            events=tuple(events),
            reasons=tuple(reasons),
            conditions=conditions,
            totals=totals,
            errors=tuple(errors),
            failure=failures[0] if failures else None,
            questions=tuple(questions),
            shares=shares,
            has_weights=has_weights,
        )

    def plan_as(
        self, service: Service, *, settings: PlannerSettings, shares: Shares | None = None
    ) -> ServicePlan:
        """Return the writes that would be due if the Service asked for another mechanism.

        `service` differs in annotations and spec.trafficDistribution alone, `settings` in gates and
        heuristics. The planner stays as it is, so that many mechanisms cost one look at the pods.
        """
        own = self._service, self._settings
        self._service, self._settings = service, settings
        self._leave_groups()
        try:
            return self.plan(shares=shares)
        finally:
            self._service, self._settings = own
            self._leave_groups()

    def _leave_groups(self) -> None:
        """Drop the groups of subsetting; the next plan forms them again from the slices."""
        for family in self._families:
            if family.subset_groups is not None:
                family.subset_groups.ungroup_all()
                family.subset_groups = None

    def _new_families(self) -> tuple[_Family, ...]:
        return tuple(
            _Family(self._service, address_type, self._settings)
            for address_type in address_types(self._service)
        )

    def _pass_slice_on(
        self, endpoint_slice: EndpointSlice, previous: EndpointSlice | None = None
    ) -> None:
        for family in self._families:
            if family.address_type == endpoint_slice.address_type:
                family.placement.observe(endpoint_slice)
                if family.subset_groups is not None:
                    family.subset_groups.update(_pods_in(endpoint_slice))
                    if previous is not None:
                        family.subset_groups.update(_pods_in(previous))

    def _divide(self, family: _Family, strategy: Strategy) -> tuple[Reason, ...]:
        # NB: a new version of the Service creates new families, so groups never outlive the
        # annotation that asks for subsetting.
        if strategy.name is not StrategyName.SUBSETTING:
            return ()
        if family.subset_groups is None:
            family.subset_groups = SubsetGroups(family.placement, self._locator(strategy.level))
        shares = self._cluster.shares
        by_group = shares.by_zone
        if strategy.level is Level.REGION:
            shares = self._cluster.regions
            by_group = {
                group_name(Level.REGION, region): share for region, share in shares.by_zone.items()
            }
        options, invalid_limits = read_limits(
            self._service.metadata.annotations, self._settings.subsets
        )
        decision = family.subset_groups.divide(
            approach=strategy.approach, shares=by_group, options=options, level=strategy.level
        )
        return (*shares.reasons, *invalid_limits, *decision.reasons)

    def _locator(self, level: Level) -> Callable[[Endpoint], str]:
        """Return the function that maps an endpoint to its home group."""
        if level is Level.ZONE:
            return locate_by_zone

        def locate(endpoint: Endpoint) -> str:
            node = self._cluster.nodes.get(endpoint.node_name or "")
            return "" if node is None else group_name(Level.REGION, node.region)

        return locate

    def _hint(  # noqa: PLR0917 - one caller, which passes on what it has
        self,
        family: _Family,
        plan: SlicePlan,
        strategy: Strategy,
        overlay: NodeLevelDecision | None,
        populated: bool | None,
        answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]],
        shares: Shares | None,
    ) -> Hinting:
        if populated is None:
            # Only the mode Auto uses it.
            populated = strategy.name is StrategyName.AUTO and any(
                self.facts.of(endpoint_slice).zone_hinted > 0
                for endpoint_slice in family.placement.slices
            )
        return hint_slices(
            strategy,
            SliceSet(plan.create, plan.update, plan.unchanged),
            annotations=self._service.metadata.annotations,
            cluster=self._cluster,
            settings=self._settings,
            address_type=family.address_type,
            node_hints=overlay is not None and overlay.on,
            populated=populated,
            facts=self.facts.of,
            answers=answers,
            shares=shares,
        )

    def _overlay(self, strategy: Strategy) -> NodeLevelDecision | None:
        return decide_overlay(
            self._service,
            strategy,
            cluster=self._cluster,
            settings=self._settings,
            endpoints=self._endpoint_owners.pairs,
            previously_on=lambda: any(
                self.facts.of(endpoint_slice).node_hinted > 0
                for family in self._families
                for endpoint_slice in family.placement.slices
            ),
        )

    def _forget_node(self, pod_key: NamespacedName) -> None:
        pod = self._pods.get(pod_key)
        if pod is not None:
            self._by_node[pod.spec.node_name].discard(pod_key)


def plan_service(
    service: Service,
    *,
    pods: Iterable[Pod],
    slices: Iterable[EndpointSlice] = (),
    cluster: ClusterNodes,
    settings: PlannerSettings,
    trigger_time: str = "",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    shares: Shares | None = None,
) -> ServicePlan:
    """Return the plan for a Service, computed only from its selected pods and present slices."""
    planner = ServicePlanner(service, cluster=cluster, settings=settings)
    for endpoint_slice in sorted(slices, key=_slice_name):
        planner.observe(endpoint_slice)
    for pod in pods:
        planner.set_pod(pod)
    return planner.plan(trigger_time=trigger_time, answers=answers, shares=shares)


def _slice_name(endpoint_slice: EndpointSlice) -> str:
    return endpoint_slice.metadata.name


def _zone_and_region(node: Node | None) -> tuple[str, str] | None:
    return None if node is None else (node.zone, node.region)


def _pods_in(endpoint_slice: EndpointSlice) -> list[NamespacedName]:
    return [
        NamespacedName(endpoint.target_ref.namespace, endpoint.target_ref.name)
        for endpoint in endpoint_slice.endpoints
        if endpoint.target_ref is not None
    ]
