"""Random changes, failing writes and stops at any moment: the end is right, and so is the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keepclose.kube.cache import Cache
from keepclose.kube.requests import ENDPOINT_SLICES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.controllers import CLOCK, World, world

GATES = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.ENDPOINT_SLICE_SUBSETTING,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
)
PLAN = PlannerSettings(
    gates=GATES, max_endpoints=5, heuristics={"keepclose.dev/Balanced": BALANCED}
)
SETTINGS = ControllerSettings(plan=PLAN, slice_delay_s=0.01, retry_delay_s=0.01)
APPS = ("web", "api")
WISHES: tuple[tuple[dict[str, str], str | None], ...] = (
    ({}, None),
    ({}, "PreferSameZone"),
    ({}, "PreferSameNode"),
    ({TOPOLOGY_MODE_ANNOTATION: "Auto"}, None),
    ({SUBSETTING_ANNOTATION: "Require"}, None),
    ({TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"}, None),
)
NOTES = (TOPOLOGY_MODE_ANNOTATION, SUBSETTING_ANNOTATION, TRAFFIC_DISTRIBUTION_ANNOTATION)


class Chance:
    """Changes a cluster at random, and remembers which addresses have had their time."""

    def __init__(self, cluster: World, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._made = 0
        self.pods: dict[str, str] = {}
        self.retired: set[str] = set()

    async def change(self) -> None:
        """Make one change."""
        dice = self._random.random()
        if dice < 0.35 or len(self.pods) < 10:
            await self._add()
        elif dice < 0.7:
            name = self._random.choice(sorted(self.pods))
            ready = self._random.random() < 0.6
            await self._cluster.set_pod(name, ip=self.pods[name], ready=ready)
        elif dice < 0.75:
            name = self._random.choice(sorted(self.pods))
            self.retired.add(self.pods[name])
            self.pods[name] = self._new_address()
            await self._cluster.set_pod(name, ip=self.pods[name])
        elif dice < 0.8:
            name = self._take()
            await self._cluster.change(PODS, name, {"metadata": {"labels": {"app": "gone"}}})
        elif dice < 0.88:
            await self._cluster.remove(PODS, self._take())
        elif dice < 0.94:
            zone = self._random.choice(("zone-a", "zone-b", "zone-c"))
            await self._cluster.label_node(f"n{self._random.randrange(6)}", zone)
        else:
            notes, distribution = self._random.choice(WISHES)
            patch: dict[str, Any] = {
                "metadata": {"annotations": {**dict.fromkeys(NOTES), **notes}},
                "spec": {"trafficDistribution": distribution},
            }
            await self._cluster.change(SERVICES, self._random.choice(APPS), patch)

    async def _add(self) -> None:
        address = self._new_address()
        name = f"p{self._made}"
        self.pods[name] = address
        node = f"n{self._random.randrange(6)}"
        app = self._random.choice(APPS)
        await self._cluster.add_pod(
            name, node, ip=address, app=app, ready=self._random.random() < 0.8
        )

    def _new_address(self) -> str:
        self._made += 1
        return f"10.0.{self._made // 250}.{self._made % 250 + 1}"

    def _take(self) -> str:
        name = self._random.choice(sorted(self.pods))
        self.retired.add(self.pods.pop(name))
        return name


class Witness:
    """Watches slices as a proxy does; an address may vanish only when its time is over."""

    def __init__(self, chance: Chance) -> None:
        self.cache: Cache[EndpointSlice] = Cache()
        self.lost: set[str] = set()
        self.events = 0
        self._chance = chance
        self._served: dict[str, set[str]] = {}
        self.cache.subscribe(self._see)

    def _see(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self.events += 1
        name = (old if new is None else new).service_key.name  # type: ignore[union-attr]
        now = {
            address
            for one in self.cache.all()
            if one.service_key.name == name
            for endpoint in one.endpoints
            for address in endpoint.addresses
        }
        self.lost |= self._served.get(name, set()) - now - self._chance.retired
        self._served[name] = now


@asynccontextmanager
async def witnessed(cluster: World, chance: Chance) -> AsyncIterator[Witness]:
    """Watch for the time of the block."""
    witness = Witness(chance)
    reflector = Reflector(cluster.client, ENDPOINT_SLICES, witness.cache, clock=CLOCK)
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield witness
    finally:
        task.cancel()
        await asyncio.wait((task,))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones of two nodes each, and two Services."""
    async with serving(tmp_path, gates=GATES) as api, world(api) as found:
        for number in range(6):
            await found.add_node(f"n{number}", f"zone-{'abc'[number % 3]}")
        for app in APPS:
            await found.add_service(app, selector={"app": app})
        yield found


async def check(cluster: World) -> None:
    """Fail unless the slices are such that a fresh plan would write nothing."""
    nodes = await cluster.cluster()
    for app in APPS:
        service = await cluster.client.get(SERVICES, app, namespace="default")
        pods = await cluster.selected(service)
        slices = await cluster.slices(app)
        plan = plan_service(service, pods=pods, slices=slices, cluster=nodes, settings=PLAN)
        assert plan.is_empty, app
        fresh = plan_service(service, pods=pods, cluster=nodes, settings=PLAN)
        assert facts(slices) == facts(fresh.slices), app


def facts(slices: Any) -> list[tuple[object, ...]]:
    """Return what does not depend on how slices came to be."""
    return sorted(
        (one.addresses, one.zone, one.node_name, one.conditions.ready)
        for piece in slices
        for one in piece.endpoints
    )


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_any_changes_the_slices_are_those_of_a_fresh_plan(
    cluster: World, seed: int
) -> None:
    """200 changes in a row; no endpoint that should be served is missing at any moment."""
    chance = Chance(cluster, Random(seed))
    async with (
        witnessed(cluster, chance) as witness,
        cluster.controlled(SETTINGS) as controller,
    ):
        for number in range(200):
            await chance.change()
            if number % 40 == 0:
                await cluster.settle(controller)
        await cluster.settle(controller)
        await check(cluster)
    assert witness.lost == set()
    assert witness.events > 50


async def test_writes_that_fail_or_whose_answers_are_lost_come_out_right(cluster: World) -> None:
    """With a third of all writes failing nothing is lost on the way, and the end is right."""
    chance = Chance(cluster, Random(5))
    async with (
        witnessed(cluster, chance) as witness,
        cluster.controlled(SETTINGS) as controller,
    ):
        cluster.wire.failing = 0.3
        for _ in range(80):
            await chance.change()
        await cluster.settle(controller)
        cluster.wire.failing = 0.0
        await chance.change()
        await cluster.settle(controller)
        await check(cluster)
    assert witness.lost == set()


async def test_a_controller_that_stops_at_any_moment_is_followed_by_the_next(
    cluster: World,
) -> None:
    """Controllers that live for a few changes each leave a state that the next one mends."""
    chance = Chance(cluster, Random(9))
    async with witnessed(cluster, chance) as witness:
        for _ in range(8):
            async with cluster.controlled(SETTINGS):
                for _ in range(6):
                    await chance.change()
        async with cluster.controlled(SETTINGS) as controller:
            await cluster.settle(controller)
            await check(cluster)
    assert witness.lost == set()


async def test_two_controllers_at_once_still_come_to_an_end(cluster: World) -> None:
    """Even without a leader conflicts only cost time: both agree in the end, and then rest."""
    chance = Chance(cluster, Random(4))
    async with (
        cluster.controlled(SETTINGS) as one,
        cluster.controlled(SETTINGS) as other,
    ):
        for _ in range(40):
            await chance.change()
        await cluster.settle(one)
        await cluster.settle(other)
        await cluster.settle(one)
        await check(cluster)


async def test_when_nothing_can_be_created_nothing_is_taken_away(cluster: World) -> None:
    """A Service whose new slices are refused keeps serving from those that it has."""
    for number in range(12):
        await cluster.add_pod(f"p{number:02}", f"n{number % 6}", ip=f"10.0.0.{number + 1}")
    settings = ControllerSettings(plan=PLAN, slice_delay_s=0.01, retry_delay_s=0.01, most_retries=3)
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        before = facts(await cluster.slices())
        cluster.wire.refused = "POST"
        note = {"metadata": {"annotations": {SUBSETTING_ANNOTATION: "Require"}}}
        await cluster.change(SERVICES, "web", note)
        await cluster.settle(controller)
        assert facts(await cluster.slices()) == before
        cluster.wire.refused = ""
        await cluster.change(SERVICES, "web", {"metadata": {"labels": {"touched": "yes"}}})
        await cluster.settle(controller)
        await check(cluster)
