"""The plan for one Service, kept up to date: what changed is worked on, what exists is not.

A state is told of pods, nodes, slices and the Service itself, and answers at any time with the
writes that bring the slices to where they should be. It remembers nothing that could not be read
from the API again: a fresh state that is told everything gives the same plan, and that is how a
plan from nothing is made.
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
from keepclose.routing.hint_facts import SliceFacts, slice_facts
from keepclose.routing.hints import SliceSet
from keepclose.routing.node_level import NodeLevelDecision
from keepclose.routing.reasons import Reason, TopologyEvent
from keepclose.routing.strategy import Strategy, StrategyName, choose_strategy
from keepclose.routing.subsets import Level, group_name, read_limits
from keepclose.slices.endpoints import EndpointBuilder
from keepclose.slices.hinting import Division, Hinting, Hosts, decide_overlay, hint_slices, lay_over
from keepclose.slices.packing import SlicePlan, add_placeholder, finish_plan
from keepclose.slices.placement import Placement, locate_by_zone
from keepclose.slices.settings import Cluster, Settings
from keepclose.slices.slice_metadata import address_types, slices_of_other_types

_SPARE_FACTS = 4


class ServicePlan(msgspec.Struct, frozen=True):
    """All writes for one Service, and everything there is to say about them.

    `errors` tell of pods that were left out; the other endpoints are planned all the same.
    """

    strategy: Strategy
    plans: dict[str, SlicePlan]
    stray: tuple[EndpointSlice, ...] = ()
    """Slices of address types that the Service does not have any more, to delete."""
    events: tuple[TopologyEvent, ...] = ()
    reasons: tuple[Reason, ...] = ()
    conditions: tuple[Condition, ...] = ()
    totals: dict[str, dict[str, int]] = {}
    """What the mode Auto allocated to each zone, by address type."""
    errors: tuple[str, ...] = ()
    failure: HeuristicFailure | None = None
    """How the custom heuristic failed that governs the Service."""
    questions: tuple[ZoneDemand, ...] = ()
    """What a custom heuristic has to be asked elsewhere before this plan may be carried out."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.stray and all(plan.is_empty for plan in self.plans.values())

    @property
    def slices(self) -> tuple[EndpointSlice, ...]:
        """The slices that will exist once everything is written."""
        return tuple(
            one
            for plan in self.plans.values()
            for one in (*plan.update, *plan.unchanged, *plan.create)
        )


class _Family:
    """The slices of one address type."""

    def __init__(self, service: Service, address_type: str, settings: Settings) -> None:
        self.address_type = address_type
        self.builder = EndpointBuilder(service, address_type)
        self.placement = Placement(service, address_type, managed_by=settings.managed_by)
        self.division: Division | None = None
        self._facts: dict[int, tuple[EndpointSlice, SliceFacts]] = {}

    def facts(self, one: EndpointSlice) -> SliceFacts:
        """Return the facts of a slice, worked out once per object."""
        known = self._facts.get(id(one))
        if known is None:
            known = self._facts[id(one)] = (one, slice_facts(one))
        return known[1]

    def keep_facts(self, slices: Sequence[EndpointSlice]) -> None:
        """Forget the facts of slices that are gone, once there are some of them."""
        if len(self._facts) > len(slices) + len(slices) // 4 + _SPARE_FACTS:
            known = self._facts
            self._facts = {id(one): known[id(one)] for one in slices if id(one) in known}


class ServicePlanner:
    """One Service with its pods and slices, and the plan that follows from them."""

    def __init__(self, service: Service, *, cluster: Cluster, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._pods: dict[NamespacedName, Pod] = {}
        self._by_node: dict[str, set[NamespacedName]] = {}
        self._hosts = Hosts()
        self._observed: dict[str, EndpointSlice] = {}
        self._service = service
        self._families = self._make_families()

    def set_service(self, service: Service) -> None:
        """Take a new version of the Service; everything is worked out anew."""
        self._service = service
        self._families = self._make_families()
        for pod in list(self._pods.values()):
            self.set_pod(pod)
        for one in self._observed.values():
            self._show(one)

    def set_cluster(self, cluster: Cluster) -> None:
        """Take the nodes as they are now; only pods on nodes that differ are looked at again."""
        old = self._cluster.nodes
        self._cluster = cluster
        for name, sources in list(self._by_node.items()):
            before, after = old.get(name), cluster.nodes.get(name)
            if _place(before) != _place(after):
                for source in list(sources):
                    self.set_pod(self._pods[source])

    def set_pod(self, pod: Pod) -> None:
        """Take a pod that the Service selects, new or changed."""
        source = pod.key
        self._forget_node(source)
        self._pods[source] = pod
        self._by_node.setdefault(pod.spec.node_name, set()).add(source)
        node = self._cluster.nodes.get(pod.spec.node_name)
        for family in self._families:
            desired = family.builder.desired(pod, node)
            if desired is None:
                family.placement.unwant(source)
            else:
                family.placement.want(source, desired)
            if family.division is not None:
                family.division.refile((source,))
        endpoints = [family.placement.endpoint(source) for family in self._families]
        if any(one is not None and one.is_ready for one in endpoints):
            self._hosts.put(pod)
        else:
            self._hosts.remove(source)

    def drop_pod(self, source: NamespacedName) -> None:
        """Drop a pod that is gone or not selected any more; an unknown one does no harm."""
        self._forget_node(source)
        self._pods.pop(source, None)
        for family in self._families:
            family.placement.unwant(source)
            if family.division is not None:
                family.division.refile((source,))
        self._hosts.remove(source)

    def observe(self, one: EndpointSlice) -> None:
        """Take a slice of ours as the API has it now, new or changed."""
        name = one.metadata.name
        gone = self._observed.pop(name, None)
        if one.metadata.deletion_timestamp is None:
            self._observed[name] = one
        self._show(one, gone)

    def forget(self, name: str) -> None:
        """Drop a slice that is gone; an unknown one does no harm."""
        gone = self._observed.pop(name, None)
        for family in self._families:
            family.placement.forget(name)
            if gone is not None and family.division is not None:
                family.division.refile(_pods_in(gone))

    def plan(
        self,
        *,
        trigger_time: str = "",
        populated: bool | None = None,
        answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
    ) -> ServicePlan:
        """Return the writes that are due now.

        `populated` says whether the Service had hints of the mode Auto before, for the event that
        tells of their first appearance; None judges by the slices as observed. `answers` are those
        to the questions of an earlier plan.
        """
        settings = self._settings
        strategy = choose_strategy(
            self._service,
            gates=settings.gates,
            default_subsetting=settings.subsets.default,
            heuristics=settings.heuristics,
        )
        overlay = self._overlay(strategy)
        strategy = lay_over(strategy, overlay)
        reasons: dict[Reason, None] = dict.fromkeys(() if overlay is None else overlay.reasons)
        plans: dict[str, SlicePlan] = {}
        events: list[TopologyEvent] = []
        totals: dict[str, dict[str, int]] = {}
        errors: dict[str, None] = {}
        hinted = SliceSet()
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
            hinting = self._hint(family, plan, strategy, overlay, populated, answers)
            family.keep_facts(family.placement.slices)
            hinted = SliceSet(unchanged=hinted.all + hinting.slices.all)
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
                    create=hinting.slices.create,
                    update=hinting.slices.update,
                    unchanged=hinting.slices.unchanged,
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
            )
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
        )

    def _make_families(self) -> tuple[_Family, ...]:
        return tuple(
            _Family(self._service, address_type, self._settings)
            for address_type in address_types(self._service)
        )

    def _show(self, one: EndpointSlice, gone: EndpointSlice | None = None) -> None:
        for family in self._families:
            if family.address_type == one.address_type:
                family.placement.observe(one)
                if family.division is not None:
                    family.division.refile(_pods_in(one))
                    if gone is not None:
                        family.division.refile(_pods_in(gone))

    def _divide(self, family: _Family, strategy: Strategy) -> tuple[Reason, ...]:
        # NB: another version of the Service comes with families of its own, so a division never
        # outlives the wish for one.
        if strategy.name is not StrategyName.SUBSETTING:
            return ()
        if family.division is None:
            family.division = Division(family.placement, self._locator(strategy.level))
        shares = self._cluster.shares
        by_group = shares.by_zone
        if strategy.level is Level.REGION:
            shares = self._cluster.regions
            by_group = {group_name(Level.REGION, one): r for one, r in shares.by_zone.items()}
        options, flaws = read_limits(self._service.metadata.annotations, self._settings.subsets)
        decision = family.division.divide(
            approach=strategy.approach, shares=by_group, options=options, level=strategy.level
        )
        return (*shares.reasons, *flaws, *decision.reasons)

    def _locator(self, level: Level) -> Callable[[Endpoint], str]:
        """Return how the group is found that an endpoint is at home in."""
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
    ) -> Hinting:
        if populated is None:
            # Nobody else asks.
            populated = strategy.name is StrategyName.AUTO and any(
                family.facts(one).zone_hinted > 0 for one in family.placement.slices
            )
        return hint_slices(
            strategy,
            SliceSet(plan.create, plan.update, plan.unchanged),
            cluster=self._cluster,
            settings=self._settings,
            address_type=family.address_type,
            node_hints=overlay is not None and overlay.on,
            populated=populated,
            facts=family.facts,
            answers=answers,
        )

    def _overlay(self, strategy: Strategy) -> NodeLevelDecision | None:
        return decide_overlay(
            self._service,
            strategy,
            cluster=self._cluster,
            settings=self._settings,
            endpoints=self._hosts.pairs,
            previously_on=lambda: any(
                family.facts(one).node_hinted > 0
                for family in self._families
                for one in family.placement.slices
            ),
        )

    def _forget_node(self, source: NamespacedName) -> None:
        pod = self._pods.get(source)
        if pod is not None:
            self._by_node[pod.spec.node_name].discard(source)


def plan_service(
    service: Service,
    *,
    pods: Iterable[Pod],
    slices: Iterable[EndpointSlice] = (),
    cluster: Cluster,
    settings: Settings,
    trigger_time: str = "",
    answers: Sequence[tuple[ZoneDemand, HeuristicAnswer]] = (),
) -> ServicePlan:
    """Return the plan for a Service from nothing but its selected pods and its present slices."""
    state = ServicePlanner(service, cluster=cluster, settings=settings)
    for one in sorted(slices, key=lambda one: one.metadata.name):
        state.observe(one)
    for pod in pods:
        state.set_pod(pod)
    return state.plan(trigger_time=trigger_time, answers=answers)


def _place(node: Node | None) -> tuple[str, str] | None:
    return None if node is None else (node.zone, node.region)


def _pods_in(one: EndpointSlice) -> list[NamespacedName]:
    return [
        NamespacedName(endpoint.target_ref.namespace, endpoint.target_ref.name)
        for endpoint in one.endpoints
        if endpoint.target_ref is not None
    ]
