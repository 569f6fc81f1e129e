"""The controller with measured demand: hints follow it, only where it moved, and say so."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.demand.settings import DemandOptions, DemandOrigin
from keepclose.kube.requests import SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import DEMAND_ANNOTATION, TRAFFIC_DISTRIBUTION_ANNOTATION
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.routing.demand import DemandBasis, DemandSettings
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.controllers import World, world

GATES = FeatureGates().with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS, Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS
)
PLAN = PlannerSettings(gates=GATES, heuristics={"keepclose.dev/Balanced": BALANCED})
SETTINGS = ControllerSettings(plan=PLAN, slice_delay_s=0.01, retry_delay_s=0.01)
ANNOTATIONS = {TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"}
STEP = {"zone-a": 70.0, "zone-b": 20.0, "zone-c": 10.0}
EVEN = {"zone-a": 30.0, "zone-b": 30.0, "zone-c": 30.0}
QUICK = DemandSettings(half_life_s=0.01, interval_s=0.0)


def demand_of(path: Path, use: DemandSettings = QUICK) -> DemandOptions:
    """Return options that read a file all the time."""
    return DemandOptions(DemandOrigin.FILE, use=use, period_s=0.05, file=str(path))


def measure(path: Path, **rates: dict[str, float]) -> None:
    """Write the rates of Services, all at once."""
    document = {f"default/{name}": zones for name, zones in rates.items()}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(document))
    new.rename(path)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones with equal CPU, and three endpoints of two Services in each."""
    async with serving(tmp_path, gates=GATES) as api, world(api) as found:
        for number in range(3):
            await found.add_node(f"n{number}", f"zone-{'abc'[number]}")
        for number in range(9):
            await found.add_pod(f"p{number}", f"n{number % 3}", ip=f"10.0.0.{number + 1}")
        await found.add_service("web", annotations=ANNOTATIONS)
        await found.add_service("other", annotations=ANNOTATIONS)
        yield found


async def hints(cluster: World, service: str = "web") -> Counter[str]:
    """Return how many endpoints are hinted for each zone."""
    return Counter(
        zone.name
        for endpoint_slice in await cluster.slices(service)
        for endpoint in endpoint_slice.endpoints
        if endpoint.hints is not None
        for zone in endpoint.hints.for_zones
    )


async def expect(cluster: World, want: dict[str, int], service: str = "web") -> None:
    """Return when endpoints are hinted like this."""
    async with asyncio.timeout(3 * PATIENCE):
        # NB: no event tells of what a test waits for here.
        while await hints(cluster, service) != want:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def zones(a: int, b: int, c: int) -> dict[str, int]:
    """Return the number of hinted endpoints by zone."""
    return {"zone-a": a, "zone-b": b, "zone-c": c}


async def test_hints_follow_a_step_of_demand_of_one_service(cluster: World, tmp_path: Path) -> None:
    """The first sync has measured shares; a step re-hints its Service, and no other is written."""
    path = tmp_path / "demand.json"
    measure(path, web=STEP, other=EVEN)
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await cluster.settle(controller)
        assert await hints(cluster) == zones(6, 2, 1)
        assert await hints(cluster, "other") == zones(3, 3, 3)
        versions = [item.metadata.resource_version for item in await cluster.slices("other")]
        measure(path, web={"zone-a": 10.0, "zone-b": 20.0, "zone-c": 70.0}, other=EVEN)
        await expect(cluster, zones(1, 2, 6))
        await cluster.settle(controller)
        after = [item.metadata.resource_version for item in await cluster.slices("other")]
        assert after == versions
        assert controller.demand is not None
        assert controller.demand.store.changes == 1
        for name in ("web", "other"):
            [_, programmed] = await cluster.conditions(name)
            assert programmed.message == (
                "all 9 ready endpoints are hinted; the shares of zones are measured by file"
            )


async def test_demand_that_changes_without_gain_writes_nothing(
    cluster: World, tmp_path: Path
) -> None:
    """Shares beyond the dead band whose hints would gain little leave every slice as it is."""
    path = tmp_path / "demand.json"
    measure(path, web=STEP, other=EVEN)
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        measure(path, web={"zone-a": 64.0, "zone-b": 24.0, "zone-c": 12.0}, other=EVEN)
        assert controller.demand is not None
        async with asyncio.timeout(PATIENCE):
            while not controller.demand.store.changes:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await cluster.settle(controller)
        assert cluster.wire.take() == []


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>", id="HTML"),
        pytest.param(b'{"default/web": {"zone-a": NaN}}', id="no JSON"),
        pytest.param(b'{"default/web": {"zone-a": 1e308, "zone-b": 1e308}}', id="1e308"),
        pytest.param(b'{"default/web": {"zone-a": -5, "zone-b": 9}}', id="negative"),
        pytest.param(b"namespace,service,zone,rate\ndefault,web,zone-a,nan\n", id="NaN"),
        pytest.param(b"namespace,service,zone,rate\ndefault,web,zone-a,inf\n", id="infinite"),
        pytest.param(
            b'{"default/web": {%s}}' % b",".join(b'"z%d": 1' % number for number in range(100_000)),
            id="100,000 zones",
        ),
        pytest.param(None, id="gone"),
    ],
)
async def test_hostile_demand_leaves_hints_as_they_are(
    cluster: World, tmp_path: Path, content: bytes | None
) -> None:
    """Whatever the source answers, hints stay, other Services sync, and nothing is written."""
    path = tmp_path / "demand.json"
    measure(path, web=STEP, other=EVEN)
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        demand = controller.demand
        assert demand is not None
        new = path.with_suffix(".bad")
        if content is None:
            path.unlink()
        else:
            new.write_bytes(content)
            new.rename(path)
        errors, readings = demand.errors, demand.readings
        async with asyncio.timeout(PATIENCE):
            while demand.errors == errors and demand.readings < readings + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await cluster.settle(controller)
        assert cluster.wire.take() == []
        assert await hints(cluster) == zones(6, 2, 1)
        await cluster.add_pod("late", "n0", ip="10.0.0.99")
        await cluster.settle(controller)
        assert sum((await hints(cluster)).values()) == 10


async def test_stale_demand_and_the_annotation_leave_cpu(cluster: World, tmp_path: Path) -> None:
    """An old file counts as stale, and a Service with the annotation never uses it."""
    path = tmp_path / "demand.json"
    measure(path, web=STEP, other=STEP)
    patch = {"metadata": {"annotations": {DEMAND_ANNOTATION: "CPU"}}}
    await cluster.change(SERVICES, "other", patch)
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await cluster.settle(controller)
        assert await hints(cluster) == zones(6, 2, 1)
        assert await hints(cluster, "other") == zones(3, 3, 3)
        measure(path, web=STEP)
        os.utime(path, (1e9, 1e9))
        await cluster.settle(controller)
    # A program that starts with a stale file has nothing that was measured in time.
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await expect(cluster, zones(3, 3, 3))
        await cluster.settle(controller)
        plan = controller.explain((await cluster.slices())[0].service_key)
        assert plan is not None
        assert "SharesStale" in {reason.code.value for reason in plan.reasons}


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param({"spec": {"selector": None}}, id="no selector"),
        pytest.param({"metadata": {"annotations": {DEMAND_ANNOTATION: "CPU"}}}, id="CPU"),
        pytest.param(
            {"metadata": {"annotations": {TRAFFIC_DISTRIBUTION_ANNOTATION: None}}},
            id="no heuristic",
        ),
        pytest.param(None, id="deleted"),
    ],
)
async def test_demand_is_counted_for_no_service_that_uses_none(
    cluster: World, tmp_path: Path, patch: dict[str, Any] | None
) -> None:
    """A Service that no heuristic plans any more is in no metric, and is not decided again."""
    path = tmp_path / "demand.json"
    measure(path, web=STEP, other=STEP)
    async with cluster.controlled(SETTINGS, demand=demand_of(path)) as controller:
        await cluster.settle(controller)
        assert controller.demand is not None
        store = controller.demand.store
        assert len(store) == 2
        if patch is None:
            await cluster.remove(SERVICES, "other")
        else:
            await cluster.change(SERVICES, "other", patch)
        await cluster.settle(controller)
        assert store.keys == [NamespacedName("default", "web")]
        assert store.count_by_basis() == {DemandBasis.MEASURED: 1}


async def test_without_the_option_nothing_is_said_of_demand(cluster: World) -> None:
    """Shares are those by CPU, without reasons about them."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert controller.demand is None
        assert await hints(cluster) == zones(3, 3, 3)
        [_, programmed] = await cluster.conditions()
        assert programmed.message == "all 9 ready endpoints are hinted"
