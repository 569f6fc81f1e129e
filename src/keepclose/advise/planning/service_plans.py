"""The plan of a cluster: totals, and for each Service what each mechanism would do and the advice.

Services are ranked by what the advised change gains: money where it is known, else bytes, else the
part of the traffic that stays in its zone. A Service that nothing helps is left as it is, with the
reason. The recommendation is that of `advise.advice`, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from keepclose.advise.advice import LEAST_GAIN, Advice, find_harm, helps, overload_bound, recommend
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import why_unadvisable
from keepclose.advise.planning.client_weights import ClientDistribution, ServiceVolumes
from keepclose.advise.planning.mechanism_trials import (
    AS_IS,
    MechanismFigures,
    ServiceTrials,
    Trial,
    zones_without,
)
from keepclose.advise.planning.traffic_costs import CostModel, MonthlyTraffic
from keepclose.advise.resolution import measure_slices, plan_slices
from keepclose.advise.routed_traffic import RoutedTraffic, in_percent
from keepclose.advise.service_objects import PodIndex, gather_objects
from keepclose.model.service.types import Service
from keepclose.model.well_known import KUBERNETES_SERVICE
from keepclose.routing.service_ports import TrafficPolicy, traffic_policies
from keepclose.routing.strategy import StrategyName
from keepclose.slices.settings import ClusterNodes, PlannerSettings

_FEW_ENDPOINTS = 2


class PlannedService(msgspec.Struct, frozen=True, rename="camel"):
    """What each mechanism would do to one Service, and which one is advised."""

    namespace: str
    name: str
    governs: str
    """The mechanism that governs now."""
    source: str
    """The field or annotation that asks for it, "" if nothing does."""
    ready: int
    bound: float
    """How many times its fair share an endpoint may get."""
    mechanisms: tuple[MechanismFigures, ...]
    """The first one is the Service as it is."""
    recommended: str = ""
    """The mechanism to switch to; "" to leave the Service as it is."""
    reason: str = ""
    command: str = ""
    effect: str = ""
    also: str = ""
    """What would keep more traffic in its zone, and what it takes."""
    bytes_a_month: float | None = None
    cost: float | None = None
    """Of a month, as it is."""
    possible_cost: float | None = None
    """Of a month, with the recommendation."""
    is_routed: bool = True
    """Whether it has ready endpoints, and nodes route it."""
    weight: float = 1.0
    """How much the Service counts in the totals."""
    zones: tuple[tuple[str, str, float], ...] = ()
    """The parts of its traffic by the zone of the client and that of the endpoint."""
    possible_zones: tuple[tuple[str, str, float], ...] = ()
    """The same with the recommendation."""

    @property
    def key(self) -> str:
        """The Service as namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def now(self) -> MechanismFigures:
        """The Service as it is."""
        return self.mechanisms[0]

    @property
    def then(self) -> MechanismFigures:
        """The Service with the recommendation; as it is without one."""
        for figures in self.mechanisms:
            if figures.mechanism == self.recommended:
                return figures
        return self.mechanisms[0]

    @property
    def gain(self) -> float:
        """The part of the traffic that the recommendation brings into its zone."""
        return self.then.in_zone - self.now.in_zone

    @property
    def saved(self) -> float:
        """The money that the recommendation saves in a month; 0 if unknown."""
        if self.cost is None or self.possible_cost is None:
            return 0.0
        return self.cost - self.possible_cost


class PlanTotals(msgspec.Struct, frozen=True, rename="camel"):
    """Sums over all Services that nodes route."""

    services: int
    routed: int
    """Services with endpoints that nodes route."""
    advised: int
    in_zone: float
    """The part of the traffic that stays in its zone now."""
    possible_in_zone: float
    """The same with all recommendations."""
    basis: str
    """How Services are weighed in these shares."""
    bytes_a_month: float | None = None
    cost: float | None = None
    possible_cost: float | None = None
    currency: str = ""
    unpriced: int = 0
    """Services whose traffic has no price."""


class ClusterPlan(msgspec.Struct, frozen=True, rename="camel"):
    """The plan of all Services, those that gain most first."""

    clients: str
    """Where the distribution of clients is taken from."""
    nodes: int
    zones: tuple[str, ...]
    totals: PlanTotals
    services: tuple[PlannedService, ...]
    notes: tuple[str, ...] = ()


def plan_cluster(
    inventory: Inventory,
    *,
    settings: PlannerSettings,
    clients: ClientDistribution,
    volumes: ServiceVolumes | None = None,
    costs: CostModel | None = None,
    tries: bool = True,
    on_progress: Callable[[int], object] = lambda _: None,
) -> ClusterPlan:
    """Return the plan of all Services of an inventory; they must have been admitted.

    Without `tries` there are only the figures of the Services as they are.
    """
    planning = _Planning(inventory, settings, clients, volumes, costs or CostModel())
    services: list[PlannedService] = []
    for number, service in enumerate(inventory.services, 1):
        services.append(planning.plan(service) if tries else planning.leave(service, ""))
        on_progress(number)
    ranked = sorted(services, key=_rank)
    return ClusterPlan(
        clients=clients.words,
        nodes=len(inventory.nodes),
        zones=tuple(sorted({node.zone for node in inventory.nodes if node.zone})),
        totals=_sum_up(ranked, costs or CostModel(), volumes),
        services=tuple(ranked),
    )


class _Planning:
    """What all Services of a cluster share."""

    def __init__(
        self,
        inventory: Inventory,
        settings: PlannerSettings,
        clients: ClientDistribution,
        volumes: ServiceVolumes | None,
        costs: CostModel,
    ) -> None:
        self._inventory = inventory
        self._settings = settings
        self._clients = clients
        self._volumes = volumes
        self._costs = costs
        self._cluster = ClusterNodes.of(inventory.nodes)
        self._pods = PodIndex(inventory)

    def plan(self, service: Service) -> PlannedService:
        unadvisable = why_unadvisable(service)
        if unadvisable:
            return self.leave(service, unadvisable)
        clients = self._clients.of(service.key)
        objects = gather_objects(
            service, self._inventory, self._settings.managed_by, self._pods.pods_of(service)
        )
        trials = ServiceTrials(service, objects, self._cluster, self._settings, clients)
        demand = None if self._volumes is None else self._volumes.shares_of(service.key)
        tried = trials.try_all(demand)
        advice = recommend(service, self._settings, now=trials.traffic, measure=trials.measure)
        bound = trials.bound
        month = self._costs.month_of(service.key, clients.by_zone())
        possible = trials.traffic if advice is None else advice.then
        label = "" if advice is None else advice.change.mechanism
        return PlannedService(
            namespace=service.metadata.namespace,
            name=service.metadata.name,
            governs=trials.strategy.label,
            source=trials.strategy.source,
            ready=trials.traffic.ready,
            bound=1.0 + bound,
            mechanisms=(trials.now.figures, *(trial.figures for trial in tried)),
            recommended=label,
            reason=_why(advice, tried)
            if advice is not None
            else self._why_leave(service, trials, tried),
            command="" if advice is None else advice.command,
            effect="" if advice is None else advice.effect,
            also=_describe_better(tried, trials, possible.in_zone),
            bytes_a_month=month.total if month.by_zone else None,
            cost=self._costs.price(month, trials.traffic),
            possible_cost=self._costs.price(month, possible),
            is_routed=_is_routed(trials.traffic),
            weight=self._weight(service, trials.traffic),
            zones=trials.traffic.zones,
            possible_zones=possible.zones,
        )

    def leave(self, service: Service, reason: str) -> PlannedService:
        """Return the figures of a Service that stays as it is."""
        clients = self._clients.of(service.key)
        pods = self._pods.pods_of(service) if service.spec.selector else None
        planned = plan_slices(service, self._inventory, self._cluster, self._settings, pods=pods)
        bound = overload_bound(service)
        traffic = measure_slices(
            service, planned.slices, clients, gates=self._settings.gates, bound=bound
        )
        month = MonthlyTraffic({})
        if traffic.zones:
            month = self._costs.month_of(service.key, clients.by_zone())
        cost = self._costs.price(month, traffic)
        figures = MechanismFigures(
            mechanism=AS_IS,
            in_zone=traffic.in_zone,
            on_node=traffic.on_node,
            failed=traffic.failed,
            busiest=traffic.busiest,
            overloaded=traffic.overloaded,
            zones_without=zones_without(traffic, clients.by_zone()) if traffic.ready else (),
            nodes_without=0,
            slices=len(planned.slices),
            writes=0,
            hints_changed=0,
        )
        return PlannedService(
            namespace=service.metadata.namespace,
            name=service.metadata.name,
            governs=planned.strategy.label,
            source=planned.strategy.source,
            ready=traffic.ready,
            bound=1.0 + bound,
            mechanisms=(figures,),
            reason=reason,
            bytes_a_month=month.total if month.by_zone else None,
            cost=cost,
            possible_cost=cost,
            is_routed=_is_routed(traffic),
            weight=self._weight(service, traffic),
            zones=traffic.zones,
            possible_zones=traffic.zones,
        )

    def _weight(self, service: Service, traffic: RoutedTraffic) -> float:
        """Return how much the Service counts: its traffic, or 1 where that is not known.

        One without endpoints, or that nodes do not route, does not count, nor does the Service of
        the API server while its traffic is not known: no cluster can place its endpoints.
        """
        if not _is_routed(traffic):
            return 0.0
        if self._volumes is None and service.key == KUBERNETES_SERVICE:
            return 0.0
        return 1.0 if self._volumes is None else self._volumes.amount_of(service.key)

    def _why_leave(self, service: Service, trials: ServiceTrials, tried: list[Trial]) -> str:
        now, bound = trials.traffic, trials.bound
        if not now.ready:
            return "no ready endpoint serves it: see keepclose explain"
        if traffic_policies(service, self._settings.gates)[0] is TrafficPolicy.LOCAL:
            return "internalTrafficPolicy Local decides, and is not for a preference to change"
        if trials.strategy.name is StrategyName.TOPOLOGY_KEYS:
            return "spec.topologyKeys is a requirement, and is not for a preference to change"
        if now.in_zone > 1.0 - LEAST_GAIN:
            if now.overloaded:
                return _over_the_bound(trials, tried)
            return "all traffic stays in its zone already"
        if now.ready < _FEW_ENDPOINTS:
            return "it has one ready endpoint, which must serve all zones"
        if now.overloaded:
            return _over_the_bound(trials, tried)
        closest = max(
            (trial for trial in tried if not trial.figures.needs),
            key=lambda trial: round(trial.traffic.in_zone, 6),
            default=None,
        )
        if closest is None or closest.traffic.in_zone < now.in_zone + LEAST_GAIN:
            return "no mechanism keeps more traffic in its zone"
        harm = find_harm(closest.traffic, now, bound=bound)
        share = in_percent(closest.traffic.in_zone)
        return f"{closest.figures.mechanism} would keep {share} in its zone, but {harm}"


def _is_routed(traffic: RoutedTraffic) -> bool:
    return bool(traffic.ready and (traffic.zones or traffic.failed))


def _why(advice: Advice, tried: list[Trial]) -> str:
    """Return why a mechanism is advised, beside others that are not."""
    then, change = advice.then, advice.change
    words = f"keeps {in_percent(then.in_zone)} of the traffic in its zone"
    words += f", the busiest endpoint gets {then.busiest:.2f}x"
    closer = [
        trial
        for trial in tried
        if not trial.figures.needs
        and trial.figures.mechanism != change.mechanism
        and trial.traffic.in_zone > then.in_zone + LEAST_GAIN
    ]
    if closer:
        most = max(closer, key=lambda trial: round(trial.traffic.in_zone, 6))
        words += f"; {most.figures.mechanism} keeps more but gives it {most.traffic.busiest:.2f}x"
    return words


def _over_the_bound(trials: ServiceTrials, tried: list[Trial]) -> str:
    """Return what an overloaded Service can be traded for; never a recommendation."""
    now, limit = trials.traffic, 1.0 + trials.bound
    words = f"the busiest endpoint gets {now.busiest:.2f}x, beyond {limit:g}x"
    within = [
        trial
        for trial in tried
        if not trial.traffic.overloaded and trial.traffic.failed <= now.failed
    ]
    if within:
        best = max(
            within,
            key=lambda trial: (not trial.figures.needs, round(trial.traffic.in_zone, 6)),
        )
        words += (
            f"; {best.figures.mechanism} would give it {best.traffic.busiest:.2f}x, "
            f"with {in_percent(best.traffic.in_zone)} in its zone"
        )
    return f"{words}; or run more pods where its clients are"


def _describe_better(tried: list[Trial], trials: ServiceTrials, in_zone: float) -> str:
    """Return the mechanism that would be better if what it needs were there; "" without one."""
    able = [
        trial
        for trial in tried
        if trial.figures.needs
        and trial.traffic.in_zone >= in_zone + LEAST_GAIN
        and helps(trial.traffic, trials.traffic, bound=trials.bound)
    ]
    if not able:
        return ""
    best = max(able, key=lambda trial: round(trial.traffic.in_zone, 6))
    effect = best.traffic.describe_change(trials.traffic)
    return f"{best.figures.mechanism}: {effect}; needs {', '.join(best.figures.needs)}"


def _rank(planned: PlannedService) -> tuple[float, float, float, int, str]:
    volume = planned.bytes_a_month or planned.weight
    return (-planned.saved, -planned.gain * volume, -planned.gain, -planned.ready, planned.key)


def _sum_up(
    services: list[PlannedService], costs: CostModel, volumes: ServiceVolumes | None
) -> PlanTotals:
    whole = sum(each.weight for each in services) or 1.0
    basis = "each Service counts the same"
    if volumes is not None:
        basis = "Services count by their " + ("bytes" if volumes.has_bytes else "connections")
    known = [each.bytes_a_month for each in services if each.bytes_a_month is not None]
    has_costs = bool(costs.currency) and costs.has_bytes
    return PlanTotals(
        services=len(services),
        routed=sum(each.is_routed for each in services),
        advised=sum(bool(each.recommended) for each in services),
        in_zone=sum(each.weight * each.now.in_zone for each in services) / whole,
        possible_in_zone=sum(each.weight * each.then.in_zone for each in services) / whole,
        basis=basis,
        bytes_a_month=sum(known) if known else None,
        cost=sum(each.cost or 0.0 for each in services) if has_costs else None,
        possible_cost=sum(each.possible_cost or 0.0 for each in services) if has_costs else None,
        currency=costs.currency,
        unpriced=sum(each.cost is None and bool(each.bytes_a_month) for each in services)
        if has_costs
        else 0,
    )
