"""Speed of the decision core, each figure beside the limit that it must keep.

Run with `make bench`. Times are the best of several runs on one core; ratios are taken within this
run, so that a busy machine does not matter much to them.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.routing.allocation.balanced import HintedZones, Objective, balance
from keepclose.routing.heuristics import Refusal, ZoneDemand, apply_heuristic
from keepclose.routing.hint_facts import FactsCache
from keepclose.routing.hints import SliceSet, hint_own
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.routing.traffic_shares import count_zone_nodes
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlanner, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.builders import node, pod, service

GATES = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
ZONES = 3
NODES = 60
MODE = "service.kubernetes.io/topology-mode"
SUBSETTING = "endpointslice.kubernetes.io/subsetting"


def best(work: Callable[[], object], *, runs: int) -> float:
    """Return the shortest time of several runs, in seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def make_nodes() -> list[Node]:
    """Return nodes spread over the zones."""
    return [node(f"n{number:03}", f"zone-{number % ZONES}") for number in range(NODES)]


def make_pods(count: int) -> list[Pod]:
    """Return ready pods spread over the nodes."""
    return [
        pod(
            f"p{number:05}",
            f"n{number % NODES:03}",
            ip=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        )
        for number in range(1, count + 1)
    ]


def say(what: str, seconds: float, limit: float) -> bool:
    """Print one figure with its limit; return whether the limit was kept."""
    kept = seconds <= limit
    print(
        f"{what:<64} {seconds * 1e3:9.3f} ms   limit {limit * 1e3:7.2f} ms   "
        f"{limit / seconds:6.1f}x {'ok' if kept else 'MISSED'}"
    )
    return kept


def bench_selection() -> bool:
    """Measure what one node uses of 1,000 endpoints."""
    nodes = make_nodes()
    kept = True
    for value in ("PreferSameZone", "PreferSameNode", None):
        made = service(traffic_distribution=value)
        plan = plan_service(
            made,
            pods=make_pods(1000),
            cluster=ClusterNodes.of(nodes),
            settings=PlannerSettings(gates=GATES),
        )
        slices = apply_plan([], plan.plans["IPv4"])
        (port,) = routed_ports(made, "IPv4", gates=GATES)
        endpoints = collect_endpoints(slices, "IPv4", gates=GATES)[port.key]
        view = NodeView.of(nodes[0])
        seconds = best(lambda: select(port, endpoints, node=view, gates=GATES), runs=50)  # noqa: B023
        kept &= say(f"select for one node, 1,000 endpoints, {value or 'no hints'}", seconds, 1e-3)
    return kept


def bench_hints() -> bool:
    """Measure hints for 5,000 endpoints."""
    made = service()
    plan = plan_service(
        made,
        pods=make_pods(5000),
        cluster=ClusterNodes.of(make_nodes()),
        settings=PlannerSettings(),
    ).plans["IPv4"]
    slices = SliceSet(create=plan.create)
    seconds = best(lambda: hint_own(slices, zones=True, nodes=True), runs=10)
    return say("zone and node hints, 5,000 endpoints", seconds, 20e-3)


def bench_question() -> bool:
    """Measure what the question to a custom heuristic about 5,000 endpoints costs."""
    nodes = [node(f"n{number:04}", f"zone-{number % ZONES}") for number in range(5000)]
    pods = [
        pod(f"p{number:05}", f"n{number:04}", ip=f"10.1.{number >> 8}.{number & 255}")
        for number in range(5000)
    ]
    cluster, settings = ClusterNodes.of(nodes), PlannerSettings()
    plan = plan_service(service(), pods=pods, cluster=cluster, settings=settings)
    slices = SliceSet(unchanged=plan.plans["IPv4"].create)
    facts = FactsCache().of
    for endpoint_slice in slices.all:
        facts(endpoint_slice)
    seeing, blind = Asked(), Asked()
    seeing.sees_nodes = True

    def ask(heuristic: Asked) -> object:
        shares = cluster.shares.by_zone
        return apply_heuristic(
            slices, heuristic, shares=shares, nodes=cluster.zone_nodes, facts=facts
        )

    ask(seeing)
    with_nodes, without = (
        best(lambda heuristic=heuristic: ask(heuristic), runs=20)  # type: ignore[misc]
        for heuristic in (seeing, blind)
    )
    size = len(msgspec.json.encode(seeing.demand))
    kept = say("nodes and spread, 5,000 endpoints on 5,000 nodes", with_nodes - without, 0.005)
    counted = say("counting 5,000 nodes, once", best(lambda: count_zone_nodes(nodes), runs=5), 0.1)
    print(f"{'the question as JSON':<58} {size:9,} bytes limit   2,000 bytes")
    return kept and counted and size < 2000


class Asked:
    """A heuristic that keeps the question, and refuses."""

    sees_nodes = False

    def allocate(self, demand: ZoneDemand) -> Refusal:
        """Refuse, so that only the question costs time."""
        self.demand = demand
        return Refusal(Reason(ReasonCode.TOO_FEW_ENDPOINTS, "none"))


def bench_balanced() -> bool:
    """Measure the choice of hints for 5,000 endpoints, whatever was written before."""
    shares, endpoints = (0.5, 0.3, 0.2), (1000, 1000, 3000)
    changed = balance((0.2, 0.3, 0.5), endpoints).hints
    own: Sequence[Mapping[HintedZones, int]] = [{(0,): 1000}, {(1,): 1000}, {(2,): 3000}]
    rotated: Sequence[Mapping[HintedZones, int]] = [{(1,): 1000}, {(2,): 1000}, {(0,): 3000}]
    kept = True
    for objective in Objective:
        for title, previous in (
            ("nothing written", ()),
            ("PreferSameZone written", own),
            ("written for other zones", rotated),
            ("written for other shares", changed),
        ):
            seconds = best(
                lambda: balance(shares, endpoints, objective=objective, previous=previous),  # noqa: B023
                runs=5,
            )
            kept &= say(f"Balanced, {objective}, 5,000 endpoints, {title}", seconds, 20e-3)
    return kept


def bench_change(title: str, made: Service) -> bool:
    """Measure one pod change against planning the Service from nothing, 5,000 endpoints."""
    nodes, pods = make_nodes(), make_pods(5000)
    cluster, settings = ClusterNodes.of(nodes), PlannerSettings(gates=GATES)
    state = ServicePlanner(made, cluster=cluster, settings=settings)
    for one in pods:
        state.set_pod(one)
    slices = apply_plan([], state.plan().plans["IPv4"])
    for one_slice in slices:
        state.observe(one_slice)
    state.plan()

    def from_nothing() -> None:
        plan_service(made, pods=pods, slices=slices, cluster=cluster, settings=settings)

    unready = pod("p00077", "n017", ip="10.0.0.77", ready=False)
    ready = pods[76]
    versions = [unready, ready]

    def one_change() -> None:
        state.set_pod(versions[0])
        versions.reverse()
        plan = state.plan().plans["IPv4"]
        for written in plan.update:
            state.observe(written)

    gc.collect()
    gc.disable()
    whole = best(from_nothing, runs=5)
    change = best(one_change, runs=40)
    gc.enable()
    ratio = whole / change
    kept = ratio >= 50
    print(
        f"{'one pod of 5,000 changes, ' + title:<64} {change * 1e3:9.3f} ms   "
        f"from nothing {whole * 1e3:6.1f} ms   1/{ratio:.0f} (limit 1/50) "
        f"{'ok' if kept else 'MISSED'}"
    )
    return kept


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    results = [bench_selection(), bench_hints(), bench_question(), bench_balanced()]
    for title, made in (
        ("no hints", service()),
        ("PreferSameZone", service(traffic_distribution="PreferSameZone")),
        ("PreferSameNode", service(traffic_distribution="PreferSameNode")),
        ("Auto", service(annotations={MODE: "Auto"})),
        ("subsetting", service(annotations={SUBSETTING: "Auto"})),
    ):
        results.append(bench_change(title, made))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
