"""The controller beside a real API server: what is in the slices in the end, and on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import (
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.reconcile.instrumentation import Observer
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.runtime.workers import Result
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.controllers import World, world

GATES = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.ENDPOINT_SLICE_SUBSETTING,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
)
PLAN = PlannerSettings(gates=GATES, heuristics={"keepclose.dev/Balanced": BALANCED})
SETTINGS = ControllerSettings(plan=PLAN, slice_delay_s=0.01, retry_delay_s=0.01)
VALUES = {
    "zone": ({}, {"trafficDistribution": "PreferSameZone"}),
    "node": ({}, {"trafficDistribution": "PreferSameNode"}),
    "auto": ({TOPOLOGY_MODE_ANNOTATION: "Auto"}, {}),
    "subsets": ({SUBSETTING_ANNOTATION: "Require"}, {}),
    "balanced": ({TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"}, {}),
    "none": ({}, {}),
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones of two nodes each."""
    async with serving(tmp_path, gates=GATES) as api, world(api) as found:
        for number in range(6):
            await found.add_node(f"n{number}", f"zone-{'abc'[number % 3]}")
        yield found


def endpoints_of(slices: list[EndpointSlice]) -> list[tuple[object, ...]]:
    """Return what consumers see of the endpoints, sorted."""
    return sorted(
        (
            one.addresses,
            one.zone,
            one.node_name,
            one.conditions.ready,
            () if one.hints is None else tuple(zone.name for zone in one.hints.for_zones),
            () if one.hints is None else tuple(node.name for node in one.hints.for_nodes),
            piece.metadata.labels.get("endpointslice.kubernetes.io/for-zone", ""),
        )
        for piece in slices
        for one in piece.endpoints
    )


@pytest.mark.parametrize("value", sorted(VALUES))
async def test_slices_become_what_a_plan_from_nothing_says(cluster: World, value: str) -> None:
    """Whatever governs a Service, the slices in the API are those of a plan from nothing."""
    notes, spec = VALUES[value]
    for number in range(18):
        await cluster.add_pod(f"p{number:02}", f"n{number % 6}", ip=f"10.0.0.{number + 1}")
    service = await cluster.add_service(annotations=notes, **spec)
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        want = plan_service(
            service,
            pods=await cluster.selected(service),
            cluster=await cluster.cluster(),
            settings=PLAN,
        )
        assert endpoints_of(await cluster.slices()) == endpoints_of(list(want.slices))
        assert len(await cluster.slices()) == len(want.slices)
        assert (len(want.slices) > 1) == (value == "subsets")


def hints_by_address(slices: list[EndpointSlice]) -> dict[str, tuple[str, ...]]:
    """Return the zones that each address is hinted for."""
    return {
        one.addresses[0]: () if one.hints is None else tuple(z.name for z in one.hints.for_zones)
        for piece in slices
        for one in piece.endpoints
    }


def readiness(slices: list[EndpointSlice]) -> dict[str, bool | None]:
    """Return whether each address is ready."""
    return {one.addresses[0]: one.conditions.ready for piece in slices for one in piece.endpoints}


async def test_a_service_can_go_from_any_value_to_any_other(cluster: World) -> None:
    """After each change of its wish a Service has the slices that a fresh plan would give."""
    for number in range(9):
        await cluster.add_pod(f"p{number}", f"n{number % 6}", ip=f"10.0.0.{number + 1}")
    await cluster.add_service()
    keys = (TOPOLOGY_MODE_ANNOTATION, SUBSETTING_ANNOTATION, TRAFFIC_DISTRIBUTION_ANNOTATION)
    async with cluster.controlled(SETTINGS) as controller:
        for value in ("zone", "auto", "subsets", "node", "balanced", "none", "subsets", "zone"):
            notes, spec = VALUES[value]
            await cluster.change(
                SERVICES,
                "web",
                {
                    "metadata": {"annotations": {**dict.fromkeys(keys), **notes}},
                    "spec": {"trafficDistribution": None, **spec},
                },
            )
            await cluster.settle(controller)
            service = await cluster.client.get(SERVICES, "web", namespace="default")
            want = plan_service(
                service,
                pods=await cluster.selected(service),
                cluster=await cluster.cluster(),
                settings=PLAN,
            )
            assert endpoints_of(await cluster.slices()) == endpoints_of(list(want.slices)), value


async def test_pods_come_change_and_go(cluster: World) -> None:
    """Readiness, addresses, labels and the end of pods show in the slices."""
    await cluster.add_service(trafficDistribution="PreferSameZone")
    for number in range(4):
        await cluster.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert set(readiness(await cluster.slices())) == {f"10.0.0.{n}" for n in (1, 2, 3, 4)}
        await cluster.set_pod("p0", ip="10.0.0.1", ready=False)
        await cluster.set_pod("p1", ip="10.0.0.22")
        await cluster.change(PODS, "p2", {"metadata": {"labels": {"app": "other"}}})
        await cluster.remove(PODS, "p3")
        await cluster.settle(controller)
        assert readiness(await cluster.slices()) == {"10.0.0.1": False, "10.0.0.22": True}
        await cluster.change(PODS, "p2", {"metadata": {"labels": {"app": "web"}}})
        await cluster.set_pod("p0", ip="10.0.0.1")
        await cluster.settle(controller)
        assert hints_by_address(await cluster.slices()) == {
            "10.0.0.1": ("zone-a",),
            "10.0.0.22": ("zone-b",),
            "10.0.0.3": ("zone-c",),
        }


async def test_a_node_that_moves_takes_its_hints_along(cluster: World) -> None:
    """A changed zone label reaches the hints without any change of a pod or a Service."""
    await cluster.add_service(trafficDistribution="PreferSameZone")
    await cluster.add_pod("p0", "n0", ip="10.0.0.1")
    await cluster.add_pod("p1", "n1", ip="10.0.0.2")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        await cluster.label_node("n0", "zone-c")
        await cluster.settle(controller)
        assert hints_by_address(await cluster.slices()) == {
            "10.0.0.1": ("zone-c",),
            "10.0.0.2": ("zone-b",),
        }


async def test_allocatable_cpu_reaches_services_that_depend_on_shares(cluster: World) -> None:
    """More CPU in one zone changes what Auto allocates; a Service without shares is left alone."""
    for number in range(12):
        await cluster.add_pod(f"p{number}", f"n{number % 3}", ip=f"10.0.0.{number + 1}")
    await cluster.add_service("auto", annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})
    await cluster.add_service("near", trafficDistribution="PreferSameZone")
    synced = SyncedKeys()
    async with cluster.controlled(observer=synced) as controller:
        await cluster.settle(controller)
        before = hints_by_address(await cluster.slices("auto"))
        synced.names.clear()
        await cluster.client.patch(
            NODES, "n0", {"status": {"allocatable": {"cpu": "28"}}}, subresource="status"
        )
        await cluster.settle(controller)
        after = hints_by_address(await cluster.slices("auto"))
        assert set(synced.names) == {"auto"}
        want_before = {"zone-a": 4, "zone-b": 4, "zone-c": 4}
        want_after = {"zone-a": 8, "zone-b": 2, "zone-c": 2}
        assert Counter(zones[0] for zones in before.values()) == want_before
        assert Counter(zones[0] for zones in after.values()) == want_after


async def test_slices_changed_by_hand_are_repaired(cluster: World) -> None:
    """What somebody does to our slices is undone; slices of others are none of our business."""
    await cluster.add_service()
    for number in range(3):
        await cluster.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
    foreign = {
        "metadata": {
            "name": "foreign",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.9.9.9"]}],
        "ports": [{"name": "http", "port": 1}],
    }
    written = await cluster.client.create(ENDPOINT_SLICES, foreign, namespace="default")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        want = {f"10.0.0.{n}" for n in (1, 2, 3)}
        [ours] = [one for one in await cluster.slices() if one.metadata.name != "foreign"]
        await cluster.change(ENDPOINT_SLICES, ours.metadata.name, {"endpoints": []})
        await cluster.settle(controller)
        assert set(readiness(await cluster.slices())) == {*want, "10.9.9.9"}
        await cluster.remove(ENDPOINT_SLICES, ours.metadata.name)
        await cluster.settle(controller)
        assert set(readiness(await cluster.slices())) == {*want, "10.9.9.9"}
        [ours] = [one for one in await cluster.slices() if one.metadata.name != "foreign"]
        lent = {"metadata": {"labels": {"kubernetes.io/service-name": "nobody"}}}
        await cluster.change(ENDPOINT_SLICES, ours.metadata.name, lent)
        await cluster.settle(controller)
        assert set(readiness(await cluster.slices())) == {*want, "10.9.9.9"}
    kept = await cluster.client.get(ENDPOINT_SLICES, "foreign", namespace="default")
    assert kept == written


async def test_finalizers_of_others_survive_our_writes(cluster: World) -> None:
    """A field that no decision reads is still there after a slice was rewritten."""
    await cluster.add_service()
    await cluster.add_pod("p0", "n0", ip="10.0.0.1")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        [ours] = await cluster.slices()
        held = {"metadata": {"finalizers": ["example.dev/hold"]}}
        await cluster.change(ENDPOINT_SLICES, ours.metadata.name, held)
        await cluster.settle(controller)
        await cluster.add_pod("p1", "n1", ip="10.0.0.2")
        await cluster.settle(controller)
        [ours] = await cluster.slices()
        assert ours.metadata.finalizers == ("example.dev/hold",)
        assert len(ours.endpoints) == 2
        # One that is being deleted does not count, and nobody waits for it.
        await cluster.remove(ENDPOINT_SLICES, ours.metadata.name)
        await cluster.settle(controller)
        alive = [one for one in await cluster.slices() if one.metadata.deletion_timestamp is None]
        assert set(readiness(alive)) == {"10.0.0.1", "10.0.0.2"}


async def test_a_second_controller_finds_nothing_to_write(cluster: World) -> None:
    """After a restart everything is read and nothing is written."""
    for value, (notes, spec) in VALUES.items():
        await cluster.add_service(value, annotations=notes, **spec)
    for number in range(20):
        await cluster.add_pod(f"p{number}", f"n{number % 6}", ip=f"10.0.0.{number + 1}")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
    assert len(cluster.wire.writes) >= len(VALUES)
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
    assert cluster.wire.writes == []


async def test_one_change_costs_one_sync(cluster: World) -> None:
    """What a controller wrote itself comes back from the API and is no reason to look again."""
    await cluster.add_service()
    synced = SyncedKeys()
    async with cluster.controlled(observer=synced) as controller:
        await cluster.settle(controller)
        for number in range(10):
            synced.names.clear()
            await cluster.add_pod(f"p{number}", "n0", ip=f"10.0.0.{number + 1}", ready=False)
            await cluster.settle(controller)
            assert len(synced.names) <= 2
            synced.names.clear()
            await cluster.set_pod(f"p{number}", ip=f"10.0.0.{number + 1}")
            await cluster.settle(controller)
            assert synced.names == ["web"]


async def test_a_deleted_service_is_forgotten(cluster: World) -> None:
    """Nothing is kept of a Service that is gone, and one of its name gets slices of its own."""
    await cluster.add_pod("p0", "n0", ip="10.0.0.1")
    await cluster.add_service()
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert len(controller.services.planners) == 1
        await cluster.remove(SERVICES, "web")
        await cluster.settle(controller)
        assert len(controller.services.planners) == 0
        again = await cluster.add_service()
        await cluster.settle(controller)
        mine = [
            one
            for one in await cluster.slices()
            if any(owner.uid == again.metadata.uid for owner in one.metadata.owner_references)
        ]
        assert set(readiness(mine)) == {"10.0.0.1"}


async def test_services_without_selector_or_with_an_external_name_get_no_slices(
    cluster: World,
) -> None:
    """Only a Service that selects pods is served; an empty selector takes all pods there are."""
    await cluster.add_pod("p0", "n0", ip="10.0.0.1", app="any")
    await cluster.add_service("bare", selector=None)
    await cluster.add_service("far", type="ExternalName", externalName="example.dev", ports=[])
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert await cluster.slices("bare") == await cluster.slices("far") == []


class SyncedKeys(Observer):
    """Remembers which Services were synced."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def synced(self, key: NamespacedName, result: Result, seconds: float) -> None:
        """Note the name."""
        assert (result, seconds >= 0) == (Result.SUCCESS, True)
        self.names.append(key.name)
