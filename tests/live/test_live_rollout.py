"""A rolling update of 500 pods, seen by every node at every change of a slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    FOR_ZONE_LABEL,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.allocation.balanced import OVERLOAD_BOUND
from keepclose.routing.balanced import BALANCED
from keepclose.routing.strategy import StrategyName
from keepclose.routing.subsets import overloads
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import PlannerSettings
from support.controllers import LONG_GRACE_S, World
from support.crowds import do_all
from support.live.traffic import followed

PODS_WANTED = 500
SURGE = PODS_WANTED // 4
NODE_COUNT = 12
TD = "trafficDistribution"
ZONES = ("zone-a", "zone-b", "zone-c")
# One zone asks for more than its pods can serve, so that Auto has to move some.
CPUS = {"zone-a": "4", "zone-b": "4", "zone-c": "6"}
SUBSETTING = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING
)
EMBEDDED = pytest.mark.embedded
HEURISTICS = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)


def address_of(number: int) -> str:
    """Return the address of a pod; none is ever used again."""
    return f"10.64.{number // 250}.{number % 250 + 1}"


class Rollout:
    """Replaces pods as a Deployment with a surge does, and nobody waits for the slices."""

    def __init__(self, cluster: World) -> None:
        self._cluster = cluster

    async def start(self, numbers: Iterable[int]) -> None:
        """Create pods that are not ready at first and then are."""
        await do_all(self._start(number) for number in numbers)

    async def mark(self, numbers: Iterable[int]) -> None:
        """Ask pods to end; they go on serving."""
        await do_all(self._delete(number, grace=LONG_GRACE_S) for number in numbers)

    async def remove(self, numbers: Iterable[int]) -> None:
        """Make pods go for good."""
        await do_all(self._delete(number, grace=0) for number in numbers)

    async def _start(self, number: int) -> None:
        name, address = f"p{number:04}", address_of(number)
        node = f"n{number % NODE_COUNT:02}"
        await self._cluster.add_pod(name, node, ip=address, ready=False)
        await self._cluster.set_pod(name, ip=address, ready=True)

    async def _delete(self, number: int, *, grace: int) -> None:
        await self._cluster.end_pod(f"p{number:04}", grace=grace)


def facts(slices: Iterable[EndpointSlice]) -> list[tuple[object, ...]]:
    """Return what every endpoint says of itself, whatever slice holds it."""
    return sorted(
        (one.addresses, one.zone, one.node_name, one.conditions.ready, one.conditions.terminating)
        for piece in slices
        for one in piece.endpoints
    )


Direction = tuple[str | None, tuple[str, ...], tuple[str, ...]]


def directions(slices: Iterable[EndpointSlice]) -> Counter[Direction]:
    """Return how many endpoints of each zone are meant for which zones and nodes."""
    found: Counter[Direction] = Counter()
    for piece in slices:
        group = piece.metadata.labels.get(FOR_ZONE_LABEL)
        for one in piece.endpoints:
            hinted = tuple(hint.name for hint in one.hints.for_zones) if one.hints else ()
            hosts = tuple(hint.name for hint in one.hints.for_nodes) if one.hints else ()
            found[one.zone, hinted if group is None else (group,), hosts] += 1
    return found


def busiest(found: Counter[Direction]) -> float:
    """Return what the endpoints of the busiest zone get beyond an even share."""
    sizes: Counter[str] = Counter()
    for (_, (zone,), _), count in found.items():
        sizes[zone] += count
    cpus = sum(map(int, CPUS.values()))
    shares = {zone: int(cpu) / cpus for zone, cpu in CPUS.items()}
    return max(overloads(shares, sizes).values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("annotations", "spec", "gates", "bound"),
    [
        pytest.param({}, {}, FeatureGates(), None, id="no strategy", marks=EMBEDDED),
        pytest.param(
            {}, {TD: "PreferSameZone"}, FeatureGates(), None, id="PreferSameZone", marks=EMBEDDED
        ),
        pytest.param({}, {TD: "PreferSameNode"}, FeatureGates(), None, id="PreferSameNode"),
        pytest.param(
            {TOPOLOGY_MODE_ANNOTATION: "Auto"}, {}, FeatureGates(), 0.2, id="Auto", marks=EMBEDDED
        ),
        pytest.param({SUBSETTING_ANNOTATION: "Prefer"}, {}, SUBSETTING, 0.5, id="subsetting"),
        pytest.param(
            {TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"},
            {},
            HEURISTICS,
            OVERLOAD_BOUND,
            id="keepclose.dev/Balanced",
            marks=EMBEDDED,
        ),
    ],
)
async def test_no_node_is_ever_without_endpoints_during_a_rollout(
    annotations: dict[str, str],
    spec: dict[str, Any],
    gates: FeatureGates,
    bound: float | None,
    cluster: World,
) -> None:
    """At every event each node can reach the Service; the end is what a fresh plan would be.

    Those strategies that balance zones leave what is good enough: there the end keeps their bound.
    """
    plan = PlannerSettings(gates=gates, heuristics={"keepclose.dev/Balanced": BALANCED})
    settings = ControllerSettings(plan=plan, slice_delay_s=0.01, retry_delay_s=0.01)
    order = list(range(PODS_WANTED))
    Random(3).shuffle(order)
    for number in range(NODE_COUNT):
        zone = ZONES[number % len(ZONES)]
        await cluster.add_node(f"n{number:02}", zone, cpu=CPUS[zone])
    service = await cluster.add_service(annotations=annotations, **spec)
    rollout = Rollout(cluster)
    await rollout.start(order)
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        async with followed(cluster, service, gates) as traffic:
            for first in range(0, PODS_WANTED, SURGE):
                leaving = order[first : first + SURGE]
                await rollout.start(range(PODS_WANTED + first, PODS_WANTED + first + SURGE))
                await rollout.mark(leaving)
                traffic.retired |= {address_of(number) for number in leaving}
                await rollout.remove(leaving)
            await cluster.settle(controller)
            slices = await cluster.slices()
            await traffic.catch_up(slices)
        pods = await cluster.selected(service)
        nodes = await cluster.cluster()
    assert traffic.flaws == []
    assert traffic.events > 20
    want_addresses = {address_of(PODS_WANTED + number) for number in range(PODS_WANTED)}
    held = Counter(
        address for piece in slices for one in piece.endpoints for address in one.addresses
    )
    assert held == dict.fromkeys(want_addresses, 1)
    fresh = plan_service(service, pods=pods, cluster=nodes, settings=plan)
    assert facts(slices) == facts(fresh.slices)
    again = plan_service(service, pods=pods, slices=slices, cluster=nodes, settings=plan)
    if again.strategy.name is StrategyName.AUTO:
        # NB: hints of the mode Auto may change once more when it looks at what it wrote.
        assert all(not (one.create or one.delete) for one in again.plans.values())
    else:
        assert again.is_empty
    if bound is None:
        assert directions(slices) == directions(fresh.slices)
    else:
        assert busiest(directions(slices)) <= bound
