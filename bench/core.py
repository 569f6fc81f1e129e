"""Speed of the decision core, each figure beside the limit that it must keep.

Run with `make bench`. Times are the best of several runs on one core; ratios are taken within this
run, so that a busy machine does not matter much to them.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.routing.hints import SliceSet, hint_own
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.simulate.churn import apply_plan
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
        f"{what:<58} {seconds * 1e3:9.3f} ms   limit {limit * 1e3:7.2f} ms   "
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
        f"{'one pod of 5,000 changes, ' + title:<58} {change * 1e3:9.3f} ms   "
        f"from nothing {whole * 1e3:6.1f} ms   1/{ratio:.0f} (limit 1/50) "
        f"{'ok' if kept else 'MISSED'}"
    )
    return kept


def main() -> int:
    """Print all figures; return 1 when a limit was missed."""
    results = [bench_selection(), bench_hints()]
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
