"""Another controller that undoes what is written is noticed, told, and given way to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.contention import ROUNDS, Contention, find_writer
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.fake_clock import FakeClock
from support.controllers import QUICK, World, world

WEB = NamespacedName("default", "web")
GATES = FeatureGates().with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
SETTINGS = replace(QUICK, plan=PlannerSettings(gates=GATES))


async def test_changes_by_hand_are_corrected_at_once() -> None:
    """Two in a row are no war, nor are many that are far apart."""
    clock = FakeClock()
    contention = Contention(clock)
    contention.record_foreign_write(WEB)
    assert contention.required_wait(WEB) == 0
    for _ in range(10):
        contention.record_own_write(WEB)
        contention.record_foreign_write(WEB)
        assert contention.required_wait(WEB) == 0
        await clock.advance(20.0)
    assert contention.services == 0


async def test_a_war_is_noticed_and_each_round_takes_longer() -> None:
    """The third undone write in a row waits, every further one twice as long, up to a minute."""
    clock = FakeClock()
    contention = Contention(clock)
    waits = []
    for _ in range(ROUNDS + 8):
        contention.record_own_write(WEB)
        contention.record_foreign_write(WEB)
        wait_s = contention.required_wait(WEB)
        waits.append(wait_s)
        assert contention.required_wait(WEB) == wait_s
        await clock.advance(max(wait_s, 1.0))
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert contention.services == 1
    await clock.advance(300.0)
    assert contention.services == 0
    contention.record_own_write(WEB)
    assert contention.required_wait(WEB) == 0


def test_what_is_written_without_a_rival_never_waits() -> None:
    """Many writes of ours are no war, and a Service that is gone is forgotten."""
    contention = Contention(FakeClock())
    for _ in range(100):
        contention.record_own_write(WEB)
        assert contention.required_wait(WEB) == 0
    for _ in range(ROUNDS):
        contention.record_own_write(WEB)
        contention.record_foreign_write(WEB)
        contention.required_wait(WEB)
    contention.forget(WEB)
    assert (contention.required_wait(WEB), contention.services) == (0, 0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Two zones with a pod in each, and a Service with hints."""
    async with serving(tmp_path) as api, world(api) as prepared:
        for number, zone in enumerate(("zone-a", "zone-b")):
            await prepared.add_node(f"n{number}", zone)
            await prepared.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
        await prepared.add_service(trafficDistribution="PreferSameZone")
        yield prepared


async def undo(cluster: World) -> None:
    """Remove hints whenever they are there, as a controller without our wishes does."""
    while True:
        for endpoint_slice in await cluster.slices():
            if any(endpoint.hints is not None for endpoint in endpoint_slice.endpoints):
                bare = tuple(replace(endpoint, hints=None) for endpoint in endpoint_slice.endpoints)
                try:
                    await cluster.client.update(
                        ENDPOINT_SLICES,
                        replace(endpoint_slice, endpoints=bare),
                        field_manager="rival-controller",
                    )
                except (Conflict, NotFound):
                    continue
        await asyncio.sleep(0.01)


def _is_one(metrics: ControllerMetrics, name: str) -> bool:
    lines = metrics.page().decode().splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith(f"{name} ")] == [1.0]


async def test_a_rival_is_told_and_given_way_to(cluster: World) -> None:
    """Within seconds: an Event with the name and the fix, a metric, a condition, few writes."""
    metrics = ControllerMetrics(max_endpoints=100)
    async with cluster.controlled(SETTINGS, observer=metrics) as controller:
        await cluster.settle(controller)
        rival = asyncio.create_task(undo(cluster))
        try:
            async with asyncio.timeout(PATIENCE):
                while not _is_one(metrics, "keepclose_contended_services"):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

                async def is_told() -> bool:
                    conditions = {
                        condition.type: condition for condition in await cluster.conditions()
                    }
                    programmed = conditions["TrafficDistributionProgrammed"]
                    events = [event for event in await cluster.events() if "Contended" in event[1]]
                    return programmed.reason == "Contended" and len(events) == 1

                while not await is_told():  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.02)
        finally:
            rival.cancel()
            await asyncio.wait((rival,))
        [event] = [event for event in await cluster.events() if "Contended" in event[1]]
        assert event[2].startswith("rival-controller keeps undoing what is written")
        assert "--controllers=*,-endpointslice-controller" in event[2]
        puts = cluster.wire.take().count("PUT endpointslices")
        assert puts <= ROUNDS + 3
        # Peace: the slices come right by themselves.
        async with asyncio.timeout(2 * PATIENCE):
            while (await cluster.conditions())[1].status != "True":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert all(
            endpoint.hints
            for endpoint_slice in await cluster.slices()
            for endpoint in endpoint_slice.endpoints
        )


@pytest.mark.parametrize(
    ("manager", "want"),
    [
        ("rival-controller", "rival-controller"),
        ("a\nlevel=error \x1b[2J", "a level=error [2J"),
        ("m" * 100_000, "m" * 128),
    ],
)
async def test_the_name_of_a_rival_is_one_short_line(
    cluster: World, monkeypatch: pytest.MonkeyPatch, manager: str, want: str
) -> None:
    """Whatever an older API server let in as a field manager, logs and Events stay readable."""

    async def get(*_args: object, **_options: object) -> dict[str, object]:
        return {"metadata": {"managedFields": [{"manager": manager}, {"manager": "keepclose"}]}}

    monkeypatch.setattr(cluster.client, "get", get)
    assert await find_writer(cluster.client, WEB) == want
