"""What mechanisms do with demand that changes: overload, in-zone share, re-hints and oscillation.

A run takes a trace step by step. The controller measures the rates of the step before, decides the
shares with `routing.demand`, and plans with `slices.service_planner` whenever shares, nodes or pods
have changed; the traffic of the step then meets the hints as proxies follow them. Pods stay where
they are, except that a lost zone has none. The first step is the start and costs no writes.

An endpoint oscillates when it serves zones again that it stopped serving at most a window earlier.
The proxies of all nodes follow the weights of "weights". Only "limit" is computed and not planned:
weights by the traffic of the moment, which no controller can know. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.workload import Node, Pod
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.routing.allocation.weighted import evaluate_weighted, weighted_matrix
from keepclose.routing.demand import DemandSample, DemandSettings, DemandState, decide_demand
from keepclose.routing.traffic_shares import Shares
from keepclose.simulate.algorithms import RunsWith
from keepclose.simulate.churn import (
    Serving,
    count_written,
    evaluate_slices,
    read_serving,
)
from keepclose.simulate.cluster_objects import cluster_node, cluster_pod
from keepclose.simulate.mechanisms import MECHANISMS, WEIGHTS_MECHANISM, Mechanism
from keepclose.simulate.traces import DemandStep, DemandTrace
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes

OSCILLATION_WINDOW_S: Final = 300.0
MAX_RUN_ENDPOINTS: Final = 1000
_HOUR_S: Final = 3600.0
_ROUNDING: Final = 1e-9


class SharesFrom(StrEnum):
    """What a mechanism knows of the traffic of the zones."""

    NOTHING = "-"
    CPU = "CPU"
    DEMAND = "demand"
    TRAFFIC = "traffic"
    """The traffic of the moment, as only a simulator knows it."""


class DemandMechanism(msgspec.Struct, frozen=True):
    """A way to route under changing demand; without `planned` the limit that none exceeds."""

    name: str
    about: str
    shares_from: SharesFrom
    runs_with: RunsWith
    planned: Mechanism | None = None


class RunStep(msgspec.Struct, frozen=True):
    """What one step of a run cost, and its result."""

    rate: float
    """The requests a second of all zones."""
    in_zone: float
    """The share of the traffic that stays in its zone."""
    overload: float
    """The load of the busiest endpoint beyond an even share; 0.25 is a quarter more."""
    rehinted: int = 0
    """Endpoints that existed before and now serve other zones."""
    written: int = 0
    """Slices created, updated or deleted."""
    oscillating: int = 0
    """Re-hinted endpoints that serve zones again which they stopped serving within the window."""


class DemandRun(msgspec.Struct, frozen=True):
    """The run of one mechanism over a trace."""

    mechanism: DemandMechanism
    step_s: float
    steps: tuple[RunStep, ...]
    slices: tuple[EndpointSlice, ...] = ()
    """The slices after the last step; none for the limit."""

    @property
    def overload_minutes(self) -> float:
        """The minutes in which the busiest endpoint carries more than the bound of Balanced."""
        steps = sum(step.overload > OVERLOAD_BOUND + _ROUNDING for step in self.steps)
        return steps * self.step_s / 60.0

    @property
    def in_zone(self) -> float:
        """The share of all requests that stay in their zone."""
        return self._mean_by_traffic([step.in_zone for step in self.steps])

    @property
    def mean_overload(self) -> float:
        """The mean load of the busiest endpoint beyond an even share, by traffic."""
        return self._mean_by_traffic([step.overload for step in self.steps])

    @property
    def worst_overload(self) -> float:
        """The highest load of any endpoint beyond an even share."""
        return max((step.overload for step in self.steps), default=0.0)

    @property
    def rehinted(self) -> int:
        """Endpoints re-hinted after the start."""
        return sum(step.rehinted for step in self.steps[1:])

    @property
    def written(self) -> int:
        """Slices written after the start."""
        return sum(step.written for step in self.steps[1:])

    @property
    def oscillating(self) -> int:
        """Endpoints that oscillated, each time counted."""
        return sum(step.oscillating for step in self.steps[1:])

    @property
    def hours(self) -> float:
        """The simulated time."""
        return len(self.steps) * self.step_s / _HOUR_S

    def per_hour(self, count: int) -> float:
        """Return a count of the whole run as one an hour; a run without steps gives 0."""
        return count / self.hours if self.steps else 0.0

    def _mean_by_traffic(self, values: Sequence[float]) -> float:
        total = sum(step.rate for step in self.steps)
        if not total > 0.0:
            return 0.0
        pairs = zip(self.steps, values, strict=True)
        return sum(step.rate * value for step, value in pairs) / total


class RunOptions(msgspec.Struct, frozen=True):
    """The Service and the controller of a run."""

    endpoints: int = 9
    demand: DemandSettings = DemandSettings(least_rate=0.0)
    """NB: any rate counts, as from a file to the controller: the unit of a trace is not known."""
    window_s: float = OSCILLATION_WINDOW_S


def compare_demand_runs(
    trace: DemandTrace,
    mechanisms: Sequence[DemandMechanism],
    options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    *,
    progress: Callable[[int], object] = lambda _: None,
) -> tuple[DemandRun, ...]:
    """Return the run of each mechanism over a trace; `progress` takes the steps done so far."""
    situations = list(_play(trace, options))
    done = 0
    runs = []
    for mechanism in mechanisms:
        if mechanism.planned is None:
            run_steps = _run_limit(trace, situations)
        else:
            run_steps = _run_planner(trace, situations, mechanism, mechanism.planned, options)
        steps = []
        slices: Sequence[EndpointSlice] = ()
        for step, after in run_steps:
            steps.append(step)
            slices = after
            done += 1
            progress(done)
        runs.append(DemandRun(mechanism, trace.step_s, tuple(steps), tuple(slices)))
    return tuple(runs)


class _Situation(msgspec.Struct, frozen=True):
    """What a controller sees in one step, and the traffic that it does not see."""

    rate: float
    traffic: dict[str, float]
    """The shares of the traffic of the step; empty without traffic."""
    cluster: ClusterNodes
    pods: tuple[Pod, ...]
    located: tuple[int, ...]
    """Endpoints by zone of the trace."""
    measured: Shares
    """The shares that the controller takes from measured demand."""

    def shares(self, source: SharesFrom) -> Mapping[str, float]:
        """Return the shares that a mechanism plans with."""
        match source:
            case SharesFrom.DEMAND:
                return self.measured.by_zone
            case _:
                return self.cluster.shares.by_zone


def _play(trace: DemandTrace, options: RunOptions) -> Iterator[_Situation]:
    """Yield what happens in each step; the same for all mechanisms."""
    nodes: dict[str, Node] = {zone: cluster_node(f"{zone}-n1", zone) for zone in trace.zones}
    pods: dict[str, list[Pod]] = {zone: [] for zone in trace.zones}
    for number in range(options.endpoints):
        zone = trace.zones[number % len(trace.zones)]
        ip = f"10.0.{number >> 8}.{number & 255}"
        pods[zone].append(cluster_pod(f"web-{number:04}", f"{zone}-n1", ip=ip))
    clusters: dict[frozenset[str], ClusterNodes] = {}
    state = DemandState()
    # NB: a controller knows the step before; at the start the first one.
    previous = trace.steps[:1]
    for number, step in enumerate(trace.steps):
        now = number * trace.step_s
        present = [zone for zone in trace.zones if zone not in step.lost]
        if step.lost not in clusters:
            clusters[step.lost] = ClusterNodes.of(
                (nodes[zone] for zone in present), weighted_zones=frozenset(present)
            )
        cluster = clusters[step.lost]
        decision = decide_demand(
            state,
            _measure(previous[0], now),
            now=now,
            by_cpu=cluster.shares,
            settings=options.demand,
        )
        state, previous = decision.state, (step,)
        yield _Situation(
            rate=step.total,
            traffic=step.shares,
            cluster=cluster,
            pods=tuple(pod for zone in present for pod in pods[zone]),
            located=tuple(
                0 if zone in step.lost else len(of_zone) for zone, of_zone in pods.items()
            ),
            measured=decision.shares,
        )


def _measure(step: DemandStep, now: float) -> DemandSample:
    """Return what a source reports after a step; it has no series for a zone without nodes."""
    rates = {zone: rate for zone, rate in step.rates.items() if zone not in step.lost}
    return DemandSample(now, rates)


def plan_situation(
    mechanism: Mechanism,
    shares: Mapping[str, float],
    *,
    cluster: ClusterNodes,
    pods: Sequence[Pod],
    slices: Sequence[EndpointSlice],
) -> list[EndpointSlice]:
    """Return the slices that the controller's planner leaves behind with these shares."""
    plan = plan_service(
        mechanism.service,
        pods=pods,
        slices=slices,
        cluster=cluster,
        settings=mechanism.settings,
        shares=Shares(dict(shares)),
    )
    after = list(slices)
    for writes in plan.plans.values():
        after = apply_plan(after, writes)
    return after


def _run_planner(
    trace: DemandTrace,
    situations: Sequence[_Situation],
    mechanism: DemandMechanism,
    planned: Mechanism,
    options: RunOptions,
) -> Iterator[tuple[RunStep, Sequence[EndpointSlice]]]:
    slices: list[EndpointSlice] = []
    serving: Serving = {}
    history = _HintHistory(options.window_s)
    last: tuple[ClusterNodes, Mapping[str, float]] | None = None
    for number, situation in enumerate(situations):
        shares = situation.shares(mechanism.shares_from)
        rehinted = written = oscillating = 0
        # NB: the pods follow from the cluster, which is one object as long as no zone is lost.
        if last is None or last[0] is not situation.cluster or last[1] != shares:
            last = situation.cluster, shares
            after = plan_situation(
                planned, shares, cluster=situation.cluster, pods=situation.pods, slices=slices
            )
            written = count_written(slices, after)
            now = read_serving(after)
            changed = [pod for pod in now if pod in serving and serving[pod][1] != now[pod][1]]
            rehinted = len(changed)
            oscillating = history.record(
                {pod: (serving[pod][1], now[pod][1]) for pod in changed}, number * trace.step_s
            )
            slices, serving = after, now
        in_zone, overload = evaluate_slices(situation.traffic, slices, serving)
        if not situation.traffic:
            overload = 0.0
        yield (
            RunStep(situation.rate, in_zone, overload, rehinted, written, oscillating),
            slices,
        )


class _HintHistory:
    """When each endpoint stopped serving which zones."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._left: dict[str, dict[str, float]] = {}

    def record(self, changes: Mapping[str, tuple[str, str]], now: float) -> int:
        """Record changes of zones by pod; return how many take an earlier change back."""
        returned = 0
        for pod, (before, after) in changes.items():
            left = self._left.setdefault(pod, {})
            left[before] = now
            returned += after in left and now - left[after] <= self._window_s
        return returned


def _run_limit(
    trace: DemandTrace, situations: Sequence[_Situation]
) -> Iterator[tuple[RunStep, Sequence[EndpointSlice]]]:
    zones = len(trace.zones)
    flows = [0.0] * (zones * zones)
    figures = [0.0] * 7
    for situation in situations:
        traffic = [situation.traffic.get(zone, 0.0) for zone in trace.zones]
        weighted_matrix(zones, traffic, situation.located, flows)
        is_served = evaluate_weighted(zones, traffic, situation.located, flows, figures)
        is_busy = bool(is_served and situation.traffic)
        yield (
            RunStep(
                situation.rate,
                figures[0] if is_busy else 0.0,
                figures[1] if is_busy else 0.0,
            ),
            (),
        )


def _list_demand_mechanisms() -> Iterator[DemandMechanism]:
    for name, shares_from, mechanism, about in (
        ("none", SharesFrom.NOTHING, "none", "every client uses every endpoint"),
        ("same-zone", SharesFrom.NOTHING, "same-zone", "trafficDistribution: PreferSameZone"),
        ("auto", SharesFrom.CPU, "auto", "topology mode Auto"),
        ("balanced-cpu", SharesFrom.CPU, "balanced", "keepclose.dev/Balanced by CPU"),
        ("balanced-demand", SharesFrom.DEMAND, "balanced", "keepclose.dev/Balanced by demand"),
    ):
        planned = MECHANISMS[mechanism]
        yield DemandMechanism(name, about, shares_from, planned.runs_with, planned)
    yield DemandMechanism(
        "weights",
        "keepclose.dev/Balanced by demand, with weights",
        SharesFrom.DEMAND,
        WEIGHTS_MECHANISM.runs_with,
        WEIGHTS_MECHANISM,
    )
    yield DemandMechanism(
        "limit", "weights by the traffic of the moment", SharesFrom.TRAFFIC, RunsWith.SIMULATOR
    )


DEMAND_MECHANISMS: Final = MappingProxyType(
    {mechanism.name: mechanism for mechanism in _list_demand_mechanisms()}
)
"""The mechanisms that a run over a trace can compare, by name."""
