"""Heuristics of third parties beside a running controller: what one does wrong stays its own.

Whatever a heuristic does, the slices of its Service hold the endpoints that there are, and other
Services have their hints. The failure is announced once, by an Event, a condition and a metric.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.controller.metrics import ControllerMetrics
from keepclose.heuristics.process import HeuristicLimits, IsolatedHeuristic
from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import TRAFFIC_DISTRIBUTION_ANNOTATION
from keepclose.testing.api_server import PATIENCE
from support.controllers import World
from support.live.faulty_heuristics import HOLD_VARIABLE
from support.live.sights import conditions, hints, quick

GATES = FeatureGates().with_gates(
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS, Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
)
PROGRAMMED = "TrafficDistributionProgrammed"
NAME = "example.dev/Tried"
PLAIN = "no hints are set, so every node uses all endpoints"
CASES = [
    pytest.param(
        "support.live.faulty_heuristics:raises",
        "Raised",
        "allocate raised ValueError: cannot divide 3 zones",
        id="raises",
    ),
    pytest.param(
        "support.live.faulty_heuristics:spins",
        "TimedOut",
        "it did not answer within 0.5 s",
        id="hangs",
    ),
    pytest.param(
        "support.live.faulty_heuristics:exits",
        "Crashed",
        "its process ended with exit code 3",
        id="exits",
    ),
    pytest.param(
        "support.live.faulty_heuristics:abuses",
        "InvalidAnswer",
        "the answer lets nan endpoints of zone zone-a serve zone zone-a, expected a whole number "
        "of at least 0",
        id="nonsense",
    ),
    pytest.param(
        "support.live.faulty_heuristics:weighs_badly",
        "InvalidAnswer",
        "the weights name endpoints in 'zone-x', where none is ready",
        id="nonsense in weights",
    ),
    pytest.param(
        "support.live.faulty_heuristics:serves_unknown",
        "InvalidAnswer",
        "the answer serves 'zone-a,zone-x', which is not a zone of the question",
        id="nonsense in groups of zones",
    ),
    pytest.param(
        "no_such_module:heuristic",
        "NotLoaded",
        "cannot load no_such_module:heuristic: No module named 'no_such_module'",
        id="cannot be imported",
    ),
]


def asking(value: str = NAME) -> dict[str, str]:
    """Return the annotation that asks for a value on any API server."""
    return {TRAFFIC_DISTRIBUTION_ANNOTATION: value}


@pytest.fixture
async def five_pods(cluster: World) -> World:
    """Three zones of one node each, and five pods of the Service web."""
    for number in range(3):
        await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
    await add_pods(cluster, "old", 1)
    return cluster


async def add_pods(cluster: World, name: str, first: int) -> None:
    """Add five pods with addresses from a number on."""
    for number in range(5):
        await cluster.add_pod(f"{name}-{number}", f"n{number % 3}", ip=f"10.0.0.{first + number}")


@pytest.mark.parametrize(("value", "cause", "message"), CASES)
async def test_a_failing_heuristic_leaves_the_endpoints_right(
    five_pods: World, value: str, cause: str, message: str
) -> None:
    """A rollout reaches the slices without hints, and the failure is announced once."""
    cluster = five_pods
    # NB: only the heuristic that hangs has to reach its limit, however busy the machine is.
    limits = HeuristicLimits(allocate_s=0.5 if cause == "TimedOut" else 60.0, first_pause_s=3600.0)
    heuristic = IsolatedHeuristic(NAME, value, limits=limits)
    settings = replace(quick(GATES, heuristics={NAME: heuristic}), most_retries=2)
    metrics = ControllerMetrics(max_endpoints=100)
    await cluster.add_service(annotations=asking())
    await cluster.add_service("other", annotations=asking("PreferSameZone"))
    async with cluster.controlled(settings, observer=metrics) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {f"10.0.0.{n}": "none" for n in range(1, 6)}

        await add_pods(cluster, "new", 11)
        for number in range(5):
            await cluster.remove(PODS, f"old-{number}")
        await cluster.settle(controller)
        await controller._recorder.flush()

        assert hints(await cluster.slices()) == {f"10.0.0.{n}": "none" for n in range(11, 16)}
        zones = ["zone-a", "zone-b", "zone-c", "zone-a", "zone-b"]
        want_hints = {f"10.0.0.{11 + number}": zone for number, zone in enumerate(zones)}
        assert hints(await cluster.slices("other")) == want_hints
        want_event = ("Warning", "HeuristicFailed", f"{NAME}: {message}; {PLAIN}", 1)
        assert await cluster.events() == [want_event]
        said = await conditions(cluster)
        assert said[PROGRAMMED] == ("False", "HeuristicFailed", f"{NAME}: {message}")
        labels = {"heuristic": NAME, "cause": cause}
        counted = metrics.registry.get_sample_value("keepclose_heuristic_failures_total", labels)
        assert counted
        plan = controller.explain(NamespacedName(cluster.namespace, "web"))
        assert plan is not None
        assert plan.failure is not None
        assert plan.failure.cause == cause


async def test_a_sound_heuristic_in_a_process_governs(five_pods: World) -> None:
    """Its hints are written, kept through a rollout, and gone with the wish; no Event is left."""
    cluster = five_pods
    heuristic = IsolatedHeuristic(
        NAME, "support.live.faulty_heuristics:stay", limits=HeuristicLimits(allocate_s=60.0)
    )
    await cluster.add_service(annotations=asking())
    async with cluster.controlled(quick(GATES, heuristics={NAME: heuristic})) as controller:
        await cluster.settle(controller)
        zones = ["zone-a", "zone-b", "zone-c", "zone-a", "zone-b"]
        want = {f"10.0.0.{1 + number}": zone for number, zone in enumerate(zones)}
        assert hints(await cluster.slices()) == want
        said = await conditions(cluster)
        assert said[PROGRAMMED] == ("True", "HintsPopulated", "all 5 ready endpoints are hinted")
        await cluster.remove(PODS, "old-0")
        await cluster.settle(controller)
        del want["10.0.0.1"]
        assert hints(await cluster.slices()) == want
        await cluster.change(SERVICES, "web", {"metadata": {"annotations": None}})
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == dict.fromkeys(want, "none")
        assert await cluster.events() == []


async def test_a_heuristic_sees_nodes_and_hints_for_several_zones(cluster: World) -> None:
    """A running controller asks with nodes and spread, and writes hints for all zones."""
    for number in range(3):
        await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
        await cluster.add_pod(f"web-{number}", f"n{number}", ip=f"10.0.0.{number}")
    heuristic = IsolatedHeuristic(
        NAME, "support.live.faulty_heuristics:shares_all", limits=HeuristicLimits(allocate_s=60.0)
    )
    await cluster.add_service(annotations=asking())
    async with cluster.controlled(quick(GATES, heuristics={NAME: heuristic})) as controller:
        await cluster.settle(controller)
        (endpoint_slice,) = await cluster.slices()

    zones = ["zone-a", "zone-b", "zone-c"]
    got = [
        [hint.name for hint in endpoint.hints.for_zones] if endpoint.hints else []
        for endpoint in endpoint_slice.endpoints
    ]
    assert got == [zones] * 3


async def test_a_hung_heuristic_does_not_stop_the_controller(five_pods: World) -> None:
    """While a heuristic hangs other Services are synced; its own has right endpoints in the end."""
    cluster = five_pods
    limits = HeuristicLimits(allocate_s=3 * PATIENCE, first_pause_s=3600.0)
    heuristic = IsolatedHeuristic(NAME, "support.live.faulty_heuristics:spins", limits=limits)
    settings = replace(quick(GATES, heuristics={NAME: heuristic}), workers=2, grace_s=0.1)
    await cluster.add_service(annotations=asking())
    async with cluster.controlled(settings) as controller:
        async with asyncio.timeout(PATIENCE):
            while not controller.services.queue.running:  # noqa: ASYNC110 - no event tells that
                await asyncio.sleep(0.005)
        await cluster.add_service("other", annotations=asking("PreferSameZone"))
        async with asyncio.timeout(PATIENCE):
            while "zone-a" not in hints(await cluster.slices("other")).values():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert controller.services.queue.running
        assert await cluster.slices() == []


async def test_a_controller_that_stops_keeps_the_hints_of_a_heuristic(
    five_pods: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last sync waits for its answer: a heuristic that is asked has not failed."""
    cluster = five_pods
    hold = tmp_path / "hold"
    monkeypatch.setenv(HOLD_VARIABLE, str(hold))
    heuristic = IsolatedHeuristic(
        NAME, "support.live.faulty_heuristics:waits", limits=HeuristicLimits(allocate_s=600.0)
    )
    settings = replace(quick(GATES, heuristics={NAME: heuristic}), grace_s=3 * PATIENCE)
    await cluster.add_service(annotations=asking())

    async def release_when_stopping(controller: Controller) -> None:
        # No event tells that the workers are to stop.
        while not controller.services.queue._is_shut_down:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        hold.unlink()

    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        hold.touch()
        await cluster.set_pod("old-0", ip="10.0.0.1", ready=False)
        async with asyncio.timeout(3 * PATIENCE):
            while not hold.with_suffix(".asked").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        releasing = asyncio.create_task(release_when_stopping(controller))
    await releasing
    zones = ["none", "zone-b", "zone-c", "zone-a", "zone-b"]
    want = {f"10.0.0.{1 + number}": zone for number, zone in enumerate(zones)}
    assert hints(await cluster.slices()) == want
