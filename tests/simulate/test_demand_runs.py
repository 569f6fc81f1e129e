"""Runs over demand traces: what is counted, and that hints settle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.zone_weights import read_zone_weights
from keepclose.routing.demand import DemandSample, DemandSettings, DemandState, decide_demand
from keepclose.routing.hint_facts import zones_of
from keepclose.routing.traffic_shares import Shares
from keepclose.simulate.algorithms import ALGORITHMS, RunsWith
from keepclose.simulate.churn import count_written, evaluate_traffic, read_serving
from keepclose.simulate.cluster_objects import cluster_node, cluster_pod
from keepclose.simulate.demand_runs import (
    DEMAND_MECHANISMS,
    OSCILLATION_WINDOW_S,
    DemandMechanism,
    DemandRun,
    RunOptions,
    RunStep,
    SharesFrom,
    compare_demand_runs,
)
from keepclose.simulate.mechanisms import MECHANISMS
from keepclose.simulate.traces import TRACES, DemandStep, DemandTrace, TraceOptions, make_trace
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlanner, plan_service
from keepclose.slices.settings import ClusterNodes

HALF_HOUR = 1800.0
ZONES = ("zone-a", "zone-b", "zone-c")


def trace_of(*phases: tuple[int, tuple[float, ...]], step_s: float = 15.0) -> DemandTrace:
    """Return a trace of phases: a number of steps, and the rates of the zones in them."""
    steps = [
        DemandStep(dict(zip(ZONES, rates, strict=True)))
        for count, rates in phases
        for _ in range(count)
    ]
    return DemandTrace("test", "", ZONES, step_s, tuple(steps))


def run(name: str, trace: DemandTrace, **options: Any) -> DemandRun:
    """Return the run of a mechanism."""
    (result,) = compare_demand_runs(trace, [DEMAND_MECHANISMS[name]], RunOptions(**options))
    return result


@pytest.mark.parametrize("endpoints", [3, 6, 9, 12, 24])
@pytest.mark.parametrize("name", TRACES)
def test_hints_by_demand_do_not_oscillate(name: str, endpoints: int) -> None:
    """In half an hour no endpoint returns to zones that it left within five minutes."""
    assert OSCILLATION_WINDOW_S == 300
    for seed in range(4):
        options = TraceOptions(duration_s=HALF_HOUR, step_s=15.0, seed=seed)
        result = run("balanced-demand", make_trace(TRACES[name], options), endpoints=endpoints)
        assert len(result.steps) == 120
        assert result.oscillating == 0
        assert all(step.oscillating == 0 for step in result.steps)


def test_hints_by_demand_follow_a_step() -> None:
    """The half-hours above are no runs in which nothing happens, and following pays."""
    trace = make_trace(TRACES["step"], TraceOptions())
    by_demand, by_cpu = run("balanced-demand", trace), run("balanced-cpu", trace)
    assert by_demand.rehinted > 0
    assert by_cpu.rehinted == 0
    assert by_demand.overload_minutes < by_cpu.overload_minutes / 3
    assert by_demand.steps[-1].overload < 0.2 < by_cpu.steps[-1].overload


@given(
    weights=st.tuples(*[st.integers(1, 50)] * 3),
    endpoints=st.integers(1, 30),
    name=st.sampled_from(sorted(DEMAND_MECHANISMS)),
)
@settings(max_examples=60, deadline=None)
def test_constant_demand_changes_nothing(
    weights: tuple[int, int, int], endpoints: int, name: str
) -> None:
    """After the start nothing is re-hinted and no slice is written."""
    rates = tuple(100.0 * weight for weight in weights)
    result = run(name, trace_of((20, rates), step_s=30), endpoints=endpoints)
    assert (result.rehinted, result.written, result.oscillating) == (0, 0, 0)
    assert len({(step.in_zone, step.overload) for step in result.steps}) == 1


@pytest.mark.parametrize("unit", [1e-6, 0.01, 1e6])
def test_the_unit_of_a_trace_changes_nothing(unit: float) -> None:
    """Rates may be in any unit, such as parts of the whole."""
    phases = ((20, (30.0, 30.0, 40.0)), (40, (70.0, 20.0, 10.0)))
    want = run("balanced-demand", trace_of(*phases))
    assert want.rehinted > 0
    other = run(
        "balanced-demand",
        trace_of(*((count, tuple(unit * rate for rate in rates)) for count, rates in phases)),
    )
    assert [(step.written, step.rehinted) for step in other.steps] == [
        (step.written, step.rehinted) for step in want.steps
    ]
    assert other.in_zone == pytest.approx(want.in_zone)


def _names(slices: Sequence[EndpointSlice]) -> set[str]:
    return {endpoint_slice.metadata.name for endpoint_slice in slices}


def follow_weights(
    shares: dict[str, float], slices: Sequence[EndpointSlice]
) -> tuple[float, float]:
    """Return the share in zone and the highest overload, from the weights as they are written."""
    serving = read_serving(slices)
    written = read_zone_weights(slices)
    if written is None:
        return evaluate_traffic(shares, serving)
    assert (written.problem, written.hints) == ("", 0)
    loads = dict.fromkeys(serving, 0.0)
    in_zone = 0.0
    for client, share in shares.items():
        parts = {
            pod: written.weights.get(client, {}).get(location, 0)
            for pod, (location, _) in serving.items()
        }
        if not any(parts.values()):
            users = [pod for pod, (_, group) in serving.items() if client in zones_of(group)]
            parts = dict.fromkeys(users or serving, 1)
        for pod, part in parts.items():
            load = share * part / sum(parts.values())
            loads[pod] += load
            in_zone += load if serving[pod][0] == client else 0.0
    return in_zone, len(loads) * max(loads.values(), default=0.0) - 1.0 if loads else 0.0


PHASES = st.lists(st.tuples(*[st.floats(0, 1000)] * 3), min_size=1, max_size=5)


@given(
    phases=PHASES,
    lost=st.integers(0, 4),
    endpoints=st.integers(1, 20),
    name=st.sampled_from([name for name in DEMAND_MECHANISMS if name != "limit"]),
)
@settings(max_examples=60, deadline=None)
@example(phases=[(1.0, 1.0, 1e-38)], lost=1, endpoints=1, name="weights")
@example(phases=[(0.0, 0.0, 0.5)], lost=0, endpoints=1, name="balanced-demand")
def test_a_controller_writes_the_same(
    phases: list[tuple[float, float, float]], lost: int, endpoints: int, name: str
) -> None:
    """A planner that stays, and plans at each step, leaves the same slices and traffic behind."""
    steps = [
        DemandStep(
            dict(zip(ZONES, rates, strict=True)), frozenset({"zone-b"} if number == lost else ())
        )
        for number, rates in enumerate(phases)
        for _ in range(12)
    ]
    trace = DemandTrace("test", "", ZONES, 30.0, tuple(steps))
    result = run(name, trace, endpoints=endpoints)
    mechanism = DEMAND_MECHANISMS[name].planned
    assert mechanism is not None
    nodes = {zone: cluster_node(f"{zone}-n1", zone) for zone in ZONES}
    pods = {
        zone: [
            cluster_pod(f"web-{number:04}", f"{zone}-n1", ip=f"10.0.0.{number}")
            for number in range(endpoints)
            if ZONES[number % 3] == zone
        ]
        for zone in ZONES
    }
    planner = ServicePlanner(
        mechanism.service, cluster=ClusterNodes.of([]), settings=mechanism.settings
    )
    slices: list[EndpointSlice] = []
    state, before_step = DemandState(), steps[0]
    for number, step in enumerate(steps):
        present = [zone for zone in ZONES if zone not in step.lost]
        cluster = ClusterNodes.of(
            (nodes[zone] for zone in present), weighted_zones=frozenset(ZONES)
        )
        decision = decide_demand(
            state,
            DemandSample(
                30.0 * number,
                {
                    zone: rate
                    for zone, rate in before_step.rates.items()
                    if zone not in before_step.lost
                },
            ),
            now=30.0 * number,
            by_cpu=cluster.shares,
            settings=RunOptions().demand,
        )
        state, before_step = decision.state, step
        if DEMAND_MECHANISMS[name].shares_from is SharesFrom.DEMAND:
            cluster = replace(cluster, shares=decision.shares)
        planner.set_cluster(cluster)
        for zone in ZONES:
            for pod in pods[zone]:
                if zone in present:
                    planner.set_pod(pod)
                else:
                    planner.drop_pod(pod.key)
        before = slices
        for writes in planner.plan().plans.values():
            slices = apply_plan(slices, writes)
        for endpoint_slice in slices:
            planner.observe(endpoint_slice)
        for gone in _names(before) - _names(slices):
            planner.forget(gone)
        in_zone, overload = follow_weights(step.shares, slices)
        assert result.steps[number].written == count_written(before, slices)
        assert result.steps[number].in_zone == pytest.approx(in_zone)
        assert result.steps[number].overload == pytest.approx(overload if step.shares else 0.0)
    assert read_serving(result.slices) == read_serving(slices)


def test_hints_by_demand_are_those_of_the_planner() -> None:
    """The hints after a long constant phase are planned with exactly its shares."""
    trace = trace_of((40, (10.0, 10.0, 10.0)), (200, (70.0, 20.0, 10.0)))
    settings_ = DemandSettings(dead_band=0.0, interval_s=0.0, half_life_s=1.0)
    result = run("balanced-demand", trace, endpoints=12, demand=settings_)
    cluster = ClusterNodes.of(cluster_node(f"{zone}-n1", zone) for zone in ZONES)
    shares = Shares(trace.steps[-1].shares)
    plan = plan_service(
        MECHANISMS["balanced"].service,
        pods=[
            cluster_pod(f"web-{number:04}", f"{ZONES[number % 3]}-n1", ip=f"10.0.0.{number}")
            for number in range(12)
        ],
        slices=result.slices,
        cluster=ClusterNodes(cluster.nodes, cluster.ratios, shares, cluster.regions),
        settings=MECHANISMS["balanced"].settings,
    )
    assert plan.is_empty


def test_weights_reach_the_limit_where_demand_is_known() -> None:
    """Without overload no mechanism keeps more traffic in its zone than weights."""
    trace = trace_of((10, (70.0, 20.0, 10.0)))
    limit, weights = run("limit", trace), run("weights", trace)
    assert limit.in_zone == pytest.approx(1 / 3 + 0.2 + 0.1)
    assert weights.in_zone == pytest.approx(limit.in_zone, abs=1e-3)
    assert limit.worst_overload == pytest.approx(0, abs=1e-9)
    for seed in range(3):
        walk = make_trace(TRACES["random-walk"], TraceOptions(seed=seed))
        assert run("limit", walk).worst_overload == pytest.approx(0, abs=1e-9)


def test_endpoints_of_a_lost_zone_are_away() -> None:
    """Losing a zone and its return are writes for every mechanism; its endpoints carry nothing."""
    trace = make_trace(TRACES["zone-loss"], TraceOptions(noise=0.0))
    result = run("same-zone", trace)
    assert [number for number, step in enumerate(result.steps) if step.written] == [0, 40, 80]
    assert result.in_zone == pytest.approx(1)
    everywhere = run("none", trace)
    assert everywhere.steps[0].in_zone == pytest.approx(1 / 3)
    assert everywhere.steps[50].in_zone == pytest.approx(1 / 2)


def test_a_zone_that_returns_is_served_at_once() -> None:
    """Measured demand does not take a zone for idle that has just come back."""
    trace = make_trace(TRACES["zone-loss"], TraceOptions())
    by_demand = run("balanced-demand", trace)
    assert by_demand.overload_minutes <= 0.5
    assert by_demand.in_zone > 0.99


def made_run(*steps: RunStep, step_s: float = 60.0) -> DemandRun:
    """Return a run of these steps."""
    mechanism = DemandMechanism("m", "", SharesFrom.CPU, RunsWith.ANY_PROXY)
    return DemandRun(mechanism, step_s, steps)


def test_the_start_costs_nothing_and_means_weigh_traffic() -> None:
    """Figures of a run: minutes above the bound, means by traffic, counts after the start."""
    result = made_run(
        RunStep(30.0, 1.0, 0.2, rehinted=9, written=9, oscillating=9),
        RunStep(10.0, 0.5, 0.25, rehinted=2, written=1, oscillating=1),
        RunStep(0.0, 0.0, 0.0),
    )
    assert result.overload_minutes == 1
    assert result.in_zone == pytest.approx(0.875)
    assert result.mean_overload == pytest.approx(0.2125)
    assert result.worst_overload == 0.25
    assert (result.rehinted, result.written, result.oscillating) == (2, 1, 1)
    assert result.per_hour(result.rehinted) == pytest.approx(40)
    empty = made_run()
    assert (empty.in_zone, empty.worst_overload, empty.per_hour(3)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("window_s", "want"),
    [pytest.param(600.0, True, id="within the window"), pytest.param(59.0, False, id="beyond")],
)
def test_a_hint_that_returns_is_an_oscillation(*, window_s: float, want: bool) -> None:
    """Demand that jumps there and back, followed at once, takes hints there and back."""
    trace = trace_of((8, (50.0, 25.0, 25.0)), (8, (10.0, 45.0, 45.0)), (8, (50.0, 25.0, 25.0)))
    at_once = DemandSettings(dead_band=0.0, interval_s=0.0, half_life_s=0.0)
    result = run("balanced-demand", trace, endpoints=12, demand=at_once, window_s=window_s)
    assert result.rehinted > 0
    assert (result.oscillating > 0) is want


def test_progress_counts_the_steps_of_all_mechanisms() -> None:
    """The last report is the number of steps times mechanisms."""
    seen: list[int] = []
    compare_demand_runs(
        trace_of((5, (1.0, 1.0, 1.0))), list(DEMAND_MECHANISMS.values())[:3], progress=seen.append
    )
    assert seen == list(range(1, 16))


def test_traces_without_traffic_load_no_endpoint() -> None:
    """A pause counts neither for shares nor as overload."""
    trace = trace_of((4, (3.0, 2.0, 1.0)), (4, (0.0, 0.0, 0.0)))
    for name in DEMAND_MECHANISMS:
        result = run(name, trace)
        assert [step.overload for step in result.steps[4:]] == [0.0] * 4
        assert result.in_zone == pytest.approx(result.steps[0].in_zone)


def test_what_runs_where_has_one_source() -> None:
    """Mechanisms of a run have the mark of the algorithm that a cluster runs for them."""
    assert {name: mechanism.runs_with for name, mechanism in DEMAND_MECHANISMS.items()} == {
        "none": RunsWith.ANY_PROXY,
        "same-zone": RunsWith.ANY_PROXY,
        "auto": RunsWith.ANY_PROXY,
        "balanced-cpu": RunsWith.ANY_PROXY,
        "balanced-demand": RunsWith.ANY_PROXY,
        "weights": ALGORITHMS["balanced-weights"].runs_with,
        "limit": RunsWith.SIMULATOR,
    }
