"""Events on Services: the exact words, once for each piece of news, and none at rest."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.kube.requests import NODES, PODS, SERVICES
from keepclose.model.gates import FeatureGates
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from support.controllers import World
from support.live.sights import hints, quick

ENABLED = ("Normal", "TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled")
OFF = ("Warning", "TopologyAwareHintsDisabled", "Topology Aware Hints has been disabled")
AUTO = {TOPOLOGY_MODE_ANNOTATION: "Auto"}
UNINFORMED = (
    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes"
)
TOUCHES = count(1)
Told = tuple[str, str, str, int]


def told(event: tuple[str, str, str], family: str = "IPv4") -> Told:
    """Return an event that was seen once, as the API has it."""
    kind, reason, message = event
    return (kind, reason, f"{message}, addressType: {family}", 1)


def failed(message: str) -> Told:
    """Return the event of an allocation that could not be."""
    return told(("Warning", "TopologyAwareHintsDisabled", message))


@pytest.fixture
async def two_each(cluster: World) -> World:
    """Three zones of one node each, and two pods on each."""
    for number in range(3):
        await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
    for number in range(6):
        await cluster.add_pod(f"p{number}", f"n{number % 3}", ip=f"10.0.0.{number + 1}")
    return cluster


async def events(cluster: World, controller: Controller) -> list[Told]:
    """Return all events, after two more syncs of the Service, which must not repeat any."""
    await cluster.settle(controller)
    for _ in range(2):
        patch = {"metadata": {"labels": {"touched": str(next(TOUCHES))}}}
        await cluster.change(SERVICES, "web", patch)
        await cluster.settle(controller)
    await controller._recorder.flush()
    return await cluster.events()


async def annotate(cluster: World, mode: str | None) -> None:
    """Set or remove the topology mode."""
    patch = {"metadata": {"annotations": {TOPOLOGY_MODE_ANNOTATION: mode}}}
    await cluster.change(SERVICES, "web", patch)


async def report_node(cluster: World, **status: object) -> None:
    """Report something about the first node."""
    await cluster.client.patch(NODES, "n0", {"status": status}, subresource="status")


async def test_the_mode_comes_and_goes_with_one_event_each(two_each: World) -> None:
    """Enabled when Auto begins, whatever hints were there before; disabled when it ends."""
    cluster = two_each
    await cluster.add_service()
    want: list[Told] = []
    async with cluster.controlled() as controller:
        assert await events(cluster, controller) == want
        for mode, event in (("Auto", ENABLED), ("Disabled", OFF)):
            await annotate(cluster, mode)
            want.append(told(event))
            assert await events(cluster, controller) == want
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": "PreferSameNode"}})
        assert await events(cluster, controller) == want
        # NB: the same news some time later is the same Event, counted.
        await annotate(cluster, "Auto")
        want[0] = (*want[0][:3], 2)
        assert await events(cluster, controller) == want
        await annotate(cluster, None)
        want[1] = (*want[1][:3], 2)
        assert await events(cluster, controller) == want
    assert set(hints(await cluster.slices()).values()) == {
        f"zone-{zone} on n{number}" for number, zone in enumerate("abc")
    }


async def test_each_reason_for_no_hints_is_told_in_its_words(two_each: World) -> None:
    """Endpoints, nodes and zones can be lacking; each is told, and so is the recovery."""
    cluster = two_each
    await cluster.add_service(annotations=AUTO)
    async with cluster.controlled() as controller:
        want = [told(ENABLED)]
        assert await events(cluster, controller) == want

        async def see(*news: Told) -> None:
            for one in news:
                same = [number for number, old in enumerate(want) if old[:3] == one[:3]]
                if same:
                    old = want[same[0]]
                    want[same[0]] = (*old[:3], old[3] + 1)
                else:
                    want.append(one)
            assert await events(cluster, controller) == want

        await cluster.set_pod("p0", ip="10.0.0.1", ready=False)
        await see(
            failed(
                "Unable to allocate minimum required endpoints to each zone without exceeding"
                " overload threshold (5 endpoints, 3 zones)"
            )
        )
        assert set(hints(await cluster.slices()).values()) == {"none"}
        await cluster.set_pod("p0", ip="10.0.0.1")
        await see(told(ENABLED))
        await report_node(cluster, allocatable={"cpu": None})
        await see(failed(UNINFORMED))
        await report_node(cluster, allocatable={"cpu": "4"})
        await see(told(ENABLED))
        await cluster.label_node("n0", None)
        await see(failed(UNINFORMED))
        # A node that is not ready has no say in the shares, but its pods lack a zone all the same.
        await report_node(cluster, conditions=[{"type": "Ready", "status": "False"}])
        await see(failed("One or more endpoints do not have a zone specified"))
        for number in range(6):
            if number % 3:
                await cluster.set_pod(f"p{number}", ip=f"10.0.0.{number + 1}", ready=False)
        await cluster.settle(controller)
        await report_node(cluster, conditions=[{"type": "Ready", "status": "True"}])
        await cluster.label_node("n0", "zone-a")
        await events(cluster, controller)
        last = (await cluster.events())[-1]
        assert last == failed("Insufficient number of endpoints (2 endpoints, 3 zones)")


async def test_both_families_are_told_apart(two_each: World) -> None:
    """A dual-stack Service has an event for each family, also when only one can be allocated."""
    cluster = two_each
    for number in range(3):
        ips = [{"ip": f"10.0.0.{number + 1}"}, {"ip": f"fd00::{number + 1}"}]
        await cluster.client.patch(
            PODS,
            f"p{number}",
            {"status": {"podIPs": ips}},
            namespace=cluster.namespace,
            subresource="status",
        )
    await cluster.add_service(annotations=AUTO, ipFamilyPolicy="RequireDualStack")
    async with cluster.controlled() as controller:
        both = [told(ENABLED, "IPv4"), told(ENABLED, "IPv6")]
        assert sorted(await events(cluster, controller)) == both
        await cluster.remove(PODS, "p0")
        found = await events(cluster, controller)
        few = "Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv6"
        assert ("Warning", "TopologyAwareHintsDisabled", few, 1) in found
        assert len(found) == 4
        # Five endpoints of the other family cannot be divided by three either.
        least = "Unable to allocate minimum required endpoints to each zone without exceeding"
        assert sum(least in message for _, _, message, _ in found) == 1


async def test_a_pod_without_a_node_is_told_with_each_failure_and_then_no_more(
    two_each: World,
) -> None:
    """A sync that fails is repeated and told; a value of trafficDistribution tells nothing."""
    cluster = two_each
    await cluster.add_service(trafficDistribution="PreferSameZone")
    await cluster.add_pod("p9", "n9", ip="10.0.0.9")
    settings = replace(quick(FeatureGates()), most_retries=2)
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        await controller._recorder.flush()
        where = f"{cluster.namespace}/web"
        message = (
            f"Error updating Endpoint Slices for Service {where}: "
            f"skipping Pod p9 for Service {where}: Node n9 Not Found"
        )
        want = ("Warning", "FailedToUpdateEndpointSlices", message, 3)
        assert await cluster.events() == [want]
        assert len(hints(await cluster.slices())) == 6
        await cluster.add_node("n9", "zone-a")
        await cluster.settle(controller)
        assert hints(await cluster.slices())["10.0.0.9"] == "zone-a"
        assert await events(cluster, controller) == [want]
