"""trafficDistribution set, changed and removed on a running cluster (KEP-4444, KEP-3015).

Each step is one change by a user or a node; what is compared is every hint, and the writes that
brought it about.
"""

from __future__ import annotations

import itertools

import pytest

from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import TOPOLOGY_HINTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATION
from support.controllers import World
from support.live.sights import POST, PUT, hints, quick, states
from support.live.traffic import reached

PLACES = {1: "a0", 2: "b1", 3: "b1", 4: "b1", 5: "c2", 6: "c2"}
"""The zone and the node of each pod: one, three and two."""
NONE = {f"10.0.0.{number}": "none" for number in PLACES}
ZONE = {f"10.0.0.{number}": f"zone-{place[0]}" for number, place in PLACES.items()}
NODE = {f"10.0.0.{number}": f"zone-{place[0]} on n{place[1]}" for number, place in PLACES.items()}
AUTO = {**ZONE, "10.0.0.2": "zone-a"}
"""Two for each zone of equal weight: zone-b lends one to zone-a."""
WANTED = {None: NONE, "PreferClose": ZONE, "PreferSameZone": ZONE, "PreferSameNode": NODE}


@pytest.fixture
async def three_zones(cluster: World) -> World:
    """Three nodes in a zone each, with one, three and two pods."""
    for number in range(3):
        await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
    for number, place in PLACES.items():
        await cluster.add_pod(f"p{number}", f"n{place[1]}", ip=f"10.0.0.{number}")
    return cluster


async def wish(
    cluster: World, value: str | None, *, mode: str | None = None, key: str = ""
) -> None:
    """Set or remove the field and the topology annotation."""
    annotations = {key or TOPOLOGY_MODE_ANNOTATION: mode}
    patch = {"metadata": {"annotations": annotations}, "spec": {"trafficDistribution": value}}
    await cluster.change(SERVICES, "web", patch)


def all_transitions(values: list[str | None]) -> list[str | None]:
    """Return a walk from the first value that makes every change between two values once."""
    walk = [values[0]]
    left = {(old, new) for old in values for new in values if old != new}
    while left:
        # NB: towards the value with most left to do, so that the walk does not end early.
        new = max(
            (new for old, new in left if old == walk[-1]),
            key=lambda one: (sum(old == one for old, _ in left), str(one)),
        )
        left.remove((walk[-1], new))
        walk.append(new)
    return walk


async def test_each_value_follows_each_other(three_zones: World) -> None:
    """All twelve changes give exactly the hints of the new value, by one write or by none."""
    cluster = three_zones
    await cluster.add_service()
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST]
        walk = all_transitions(list(WANTED))
        assert len(walk) == 1 + 12
        for old, new in itertools.pairwise(walk):
            await wish(cluster, new)
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == WANTED[new], (old, new)
            # PreferClose is another name of PreferSameZone: what is written stays right.
            want_writes = [] if WANTED[old] == WANTED[new] else [PUT]
            assert cluster.wire.take() == want_writes, (old, new)


@pytest.mark.parametrize("key", [TOPOLOGY_MODE_ANNOTATION, TOPOLOGY_HINTS_ANNOTATION])
async def test_the_annotation_beats_the_field_while_it_is_there(
    three_zones: World, key: str
) -> None:
    """Auto governs whatever the field says, Disabled and other words leave it to the field."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST]
        for mode, value, want, want_writes in (
            ("Auto", "PreferClose", AUTO, [PUT]),
            ("auto", "PreferSameNode", AUTO, []),
            ("Auto", None, AUTO, []),
            ("Disabled", "PreferSameNode", NODE, [PUT]),
            ("Auto", "PreferSameNode", AUTO, [PUT]),
            (None, "PreferSameNode", NODE, [PUT]),
            ("AUTO", "PreferClose", ZONE, [PUT]),
            ("Disabled", None, NONE, [PUT]),
            (None, None, NONE, []),
            ("Auto", None, AUTO, [PUT]),
            (None, "PreferClose", ZONE, [PUT]),
        ):
            await wish(cluster, value, mode=mode, key=key)
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == want, (mode, value)
            assert cluster.wire.take() == want_writes, (mode, value)


async def test_an_annotation_that_cannot_be_followed_still_beats_the_field(
    cluster: World,
) -> None:
    """One endpoint cannot be divided: Auto leaves no hints, and the field waits for its turn."""
    await cluster.add_node("n0", "zone-a")
    await cluster.add_pod("p1", "n0", ip="10.0.0.1")
    await cluster.add_service()
    async with cluster.controlled() as controller:
        for value, mode, zone, want in (
            (None, None, "zone-a", "none"),
            ("PreferClose", None, "zone-a", "zone-a"),
            ("PreferClose", "Auto", "zone-a", "none"),
            ("PreferClose", None, "zone-a", "zone-a"),
            (None, None, "zone-a", "none"),
            ("PreferSameZone", None, "zone-a", "zone-a"),
            ("PreferSameNode", None, "zone-a", "zone-a on n0"),
            (None, None, "zone-a", "none"),
            ("PreferSameNode", None, None, "on n0"),
        ):
            await cluster.label_node("n0", zone)
            await wish(cluster, value, mode=mode)
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == {"10.0.0.1": want}, (value, mode, zone)


async def test_the_gate_of_the_field_can_be_closed_and_opened(three_zones: World) -> None:
    """Without the gate the field is kept and means nothing; each restart brings the change."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    closed = quick(FeatureGates().without(Gate.SERVICE_TRAFFIC_DISTRIBUTION))
    opened = quick(FeatureGates())
    for settings, want, want_writes in (
        (closed, NONE, [POST]),
        (opened, ZONE, [PUT]),
        (closed, NONE, [PUT]),
        (closed, NONE, []),
        (opened, ZONE, [PUT]),
    ):
        async with cluster.controlled(settings) as controller:
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == want
            assert cluster.wire.take() == want_writes
            service = await cluster.client.get(SERVICES, "web", namespace=cluster.namespace)
            assert service.spec.traffic_distribution == "PreferClose"


@pytest.mark.parametrize(
    ("value", "lost"),
    [
        pytest.param("PreferSameZone", "none", id="no zone, no hint"),
        pytest.param("PreferSameNode", "on n1", id="the node is known all the same"),
    ],
)
async def test_a_node_without_zone_takes_the_zone_hints_of_its_endpoints(
    three_zones: World, value: str, lost: str
) -> None:
    """Only what is unknown is missing, and everybody falls back to what all endpoints have."""
    cluster = three_zones
    service = await cluster.add_service(trafficDistribution=value)
    want = dict(WANTED[value])
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        await cluster.label_node("n1", None)
        await cluster.settle(controller)
        unknown = {f"10.0.0.{number}": lost for number in (2, 3, 4)}
        assert hints(await cluster.slices()) == {**want, **unknown}
        assert cluster.wire.take() == [PUT]
        own = {
            f"n{node}": {f"10.0.0.{n}" for n, place in PLACES.items() if place[1] == str(node)}
            for node in range(3)
        }
        want_reached = {node: set(want) for node in own} if lost == "none" else own
        assert await reached(cluster, service) == want_reached
        await cluster.label_node("n1", "zone-b")
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == want
        assert cluster.wire.take() == [PUT]


async def test_traffic_stays_in_zones_with_pods_and_is_never_lost(three_zones: World) -> None:
    """A zone with pods keeps its traffic, one without uses all pods, also after the last went."""
    cluster = three_zones
    await cluster.add_node("n3", "zone-d")
    await cluster.add_node("n4", "zone-b")
    service = await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        in_b = {"10.0.0.2", "10.0.0.3", "10.0.0.4"}
        in_c = {"10.0.0.5", "10.0.0.6"}
        want = {"n0": {"10.0.0.1"}, "n1": in_b, "n2": in_c, "n3": set(ZONE), "n4": in_b}
        assert await reached(cluster, service) == want
        await cluster.remove(PODS, "p1")
        await cluster.settle(controller)
        want = {**want, "n0": in_b | in_c, "n3": in_b | in_c}
        assert await reached(cluster, service) == want
        service = await cluster.client.get(SERVICES, "web", namespace=cluster.namespace)
        await wish(cluster, "PreferSameNode")
        await cluster.settle(controller)
        assert await reached(cluster, service) == want


async def test_endpoints_that_are_not_ready_have_no_hints(three_zones: World) -> None:
    """Hints go when a pod is not ready or ends, and come back with its readiness."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameNode")
    good = dict.fromkeys(NODE, "ready serving")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert states(await cluster.slices()) == good
        assert cluster.wire.take() == [POST]

        await cluster.set_pod("p2", ip="10.0.0.2", ready=False)
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {**NODE, "10.0.0.2": "none"}
        assert states(await cluster.slices()) == {**good, "10.0.0.2": ""}

        await cluster.end_pod("p5")
        await cluster.settle(controller)
        want_states = {**good, "10.0.0.2": "", "10.0.0.5": "serving terminating"}
        assert states(await cluster.slices()) == want_states
        assert hints(await cluster.slices()) == {**NODE, "10.0.0.2": "none", "10.0.0.5": "none"}

        await cluster.set_pod("p2", ip="10.0.0.2")
        await cluster.set_pod("p5", ip="10.0.0.5", ready=False)
        await cluster.settle(controller)
        assert states(await cluster.slices()) == {**good, "10.0.0.5": "terminating"}
        assert hints(await cluster.slices()) == {**NODE, "10.0.0.5": "none"}

        await cluster.end_pod("p5", grace=0)
        await cluster.settle(controller)
        left = {address: hint for address, hint in NODE.items() if address != "10.0.0.5"}
        assert hints(await cluster.slices()) == left
        assert set(cluster.wire.take()) == {PUT}


async def test_pods_that_are_published_before_they_are_ready_are_hinted(
    three_zones: World,
) -> None:
    """With publishNotReadyAddresses every endpoint counts as ready, also one that ends."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone", publishNotReadyAddresses=True)
    await cluster.set_pod("p2", ip="10.0.0.2", ready=False)
    await cluster.end_pod("p3")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == ZONE
        assert states(await cluster.slices()) == {
            **dict.fromkeys(ZONE, "ready serving"),
            "10.0.0.2": "ready",
            "10.0.0.3": "ready serving terminating",
        }


async def test_both_families_are_hinted_alike(three_zones: World) -> None:
    """A dual-stack Service has a slice for each family, and changes write both."""
    cluster = three_zones
    for number in PLACES:
        ips = [{"ip": f"10.0.0.{number}"}, {"ip": f"fd00::{number}"}]
        status = {
            "phase": "Running",
            "podIP": f"10.0.0.{number}",
            "podIPs": ips,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await cluster.client.patch(
            PODS,
            f"p{number}",
            {"status": status},
            namespace=cluster.namespace,
            subresource="status",
        )
    await cluster.add_service(
        trafficDistribution="PreferSameZone", ipFamilyPolicy="RequireDualStack"
    )
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        six = {address.replace("10.0.0.", "fd00::"): zone for address, zone in ZONE.items()}
        assert {one.address_type for one in await cluster.slices()} == {"IPv4", "IPv6"}
        assert hints(await cluster.slices()) == {**ZONE, **six}
        assert cluster.wire.take() == [POST, POST]
        await wish(cluster, None)
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == dict.fromkeys([*ZONE, *six], "none")
        assert cluster.wire.take() == [PUT, PUT]
