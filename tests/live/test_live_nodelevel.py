"""Same-node routing on a running cluster: KEP-3015 as it was decided, and as it was drafted.

PreferSameNode writes node and zone hints and can be rolled back by its gate. Node-level topology,
an earlier draft, is asked for by annotation or found out by the controller, with hysteresis.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from keepclose.controller.controller import Controller
from keepclose.kube.requests import NODES, SERVICES, Kind
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import OwnerReference
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)
from keepclose.routing.node_level import NodeLevelMode
from support.controllers import World
from support.live.sights import POST, PUT, hints, quick
from support.live.traffic import reached

ON = FeatureGates()
OFF = FeatureGates().without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
NODE_LEVEL = FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY)
DAEMON_SETS: Kind[dict[str, Any]] = Kind("apps", "v1", "daemonsets", "DaemonSet", True, dict)
COUNT = 6
"""Of six nodes one may lack an endpoint, and two once node-level topology is on."""


def zone_of(number: int) -> str:
    """Return the zone of a node: they alternate."""
    return f"zone-{'abc'[number % 3]}"


def told(text: str, numbers: Iterable[int] = range(COUNT)) -> dict[str, str]:
    """Return hints by address, with the zone and the number of the node put into the text."""
    return {f"10.0.0.{n + 1}": text.format(zone=zone_of(n), node=f"n{n}") for n in numbers}


class Daemons:
    """A DaemonSet, by a hand that starts its pods."""

    def __init__(self, cluster: World, owner: OwnerReference) -> None:
        self.cluster = cluster
        self._owner = owner

    async def start(self, number: int) -> None:
        """Start the pod of a node."""
        await self.cluster.add_pod(
            f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}", owner=self._owner
        )


@pytest.fixture
async def daemons(cluster: World) -> Daemons:
    """Six nodes in three zones, with a pod of one DaemonSet on each."""
    labels = {"app": "web"}
    spec = {"containers": [{"name": "main", "image": "example.dev/web"}]}
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    # NB: it must be there, or the garbage collector takes its pods.
    made = await cluster.client.create(DAEMON_SETS, body, namespace=cluster.namespace)
    owner = OwnerReference(
        api_version="apps/v1",
        kind="DaemonSet",
        name="web",
        uid=made["metadata"]["uid"],
        controller=True,
    )
    found = Daemons(cluster, owner)
    for number in range(COUNT):
        await cluster.add_node(f"n{number}", zone_of(number))
        await found.start(number)
    return found


async def annotate(cluster: World, **spec: str | None) -> None:
    """Set or remove the annotation of node-level topology, and the field."""
    mode = spec.pop("mode", None)
    patch = {
        "metadata": {"annotations": {NODE_TOPOLOGY_ANNOTATION: mode}},
        "spec": {"trafficDistribution": spec.get("distribution")},
    }
    await cluster.change(SERVICES, "web", patch)


async def look(cluster: World, controller: Controller) -> tuple[dict[str, str], list[str]]:
    """Return hints and kinds of writes when the controller rests.

    How many they are is left open: a pod that goes may be seen as one that ends first.
    """
    await cluster.settle(controller)
    return hints(await cluster.slices()), sorted(set(cluster.wire.take()))


@pytest.mark.parametrize("value", ["PreferSameNode", "PreferSameZone"])
async def test_the_gate_is_rolled_back_and_forth(daemons: Daemons, value: str) -> None:
    """Hints go with the gate and return with it, each time at the start of the controller.

    KEP-3015 saw them go with the first change of an endpoint after the start; here, as a controller
    looks at every Service when it starts, they are gone before that change.
    """
    cluster = daemons.cluster
    text = "{zone} on {node}" if value == "PreferSameNode" else "{zone}"
    service = await cluster.add_service(trafficDistribution=value)
    async with cluster.controlled(quick(ON)) as controller:
        assert await look(cluster, controller) == (told(text), [POST])
    # Until another controller runs, what is stored is used on.
    assert hints(await cluster.slices()) == told(text)
    async with cluster.controlled(quick(OFF)) as controller:
        assert await look(cluster, controller) == (told("none"), [PUT])
        assert set(map(len, (await reached(cluster, service)).values())) == {COUNT}
        await cluster.add_pod("late", "n0", ip="10.0.0.9")
        found, _ = await look(cluster, controller)
        assert found == {**told("none"), "10.0.0.9": "none"}
    kept = await cluster.client.get(SERVICES, "web", namespace=cluster.namespace)
    assert kept.spec.traffic_distribution == value
    async with cluster.controlled(quick(ON)) as controller:
        late = text.format(zone="zone-a", node="n0")
        assert await look(cluster, controller) == ({**told(text), "10.0.0.9": late}, [PUT])
        await cluster.end_pod("late", grace=0)
        assert await look(cluster, controller) == (told(text), [PUT])


async def test_manual_mode_follows_annotations_alone(daemons: Daemons) -> None:
    """Node asks for node hints only; Enabled lays them over whatever else governs."""
    cluster = daemons.cluster
    service = await cluster.add_service()
    async with cluster.controlled(quick(NODE_LEVEL)) as controller:
        assert await look(cluster, controller) == (told("none"), [POST])
        for mode, distribution, want, want_writes in (
            ("Enabled", None, "on {node}", [PUT]),
            ("Enabled", "PreferSameZone", "{zone} on {node}", [PUT]),
            (None, "PreferSameZone", "{zone}", [PUT]),
            ("Auto", "PreferSameZone", "{zone}", []),
            ("Disabled", "PreferSameNode", "{zone} on {node}", [PUT]),
            ("Auto", None, "none", [PUT]),
            ("Enabled", "PreferSameNode", "{zone} on {node}", [PUT]),
            (None, None, "none", [PUT]),
        ):
            await annotate(cluster, mode=mode, distribution=distribution)
            found = await look(cluster, controller)
            assert found == (told(want), want_writes), (mode, distribution)
        for key in (TOPOLOGY_HINTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATION):
            await cluster.change(SERVICES, "web", {"metadata": {"annotations": {key: "Node"}}})
            assert await look(cluster, controller) == (told("on {node}"), [PUT])
            own = {f"n{n}": {f"10.0.0.{n + 1}"} for n in range(COUNT)}
            assert await reached(cluster, service) == own
            await cluster.change(SERVICES, "web", {"metadata": {"annotations": {key: None}}})
            assert await look(cluster, controller) == (told("none"), [PUT])


async def test_semi_automatic_mode_looks_only_where_it_is_asked_to(daemons: Daemons) -> None:
    """Detection begins with the annotation Auto and ends with it, also beside another wish."""
    cluster = daemons.cluster
    await cluster.add_service()
    settings = quick(NODE_LEVEL, node_level_mode=NodeLevelMode.SEMI_AUTO)
    async with cluster.controlled(settings) as controller:
        assert await look(cluster, controller) == (told("none"), [POST])
        for mode, distribution, want, want_writes in (
            ("Auto", None, "on {node}", [PUT]),
            ("Auto", "PreferSameZone", "{zone} on {node}", [PUT]),
            (None, "PreferSameZone", "{zone}", [PUT]),
            ("Disabled", None, "none", [PUT]),
            ("Auto", None, "on {node}", [PUT]),
            (None, None, "none", [PUT]),
        ):
            await annotate(cluster, mode=mode, distribution=distribution)
            found = await look(cluster, controller)
            assert found == (told(want), want_writes), (mode, distribution)


async def test_automatic_mode_has_hysteresis(daemons: Daemons) -> None:
    """On with at most one node missing, off with more than two, and as it was in between.

    Pods that are not ready are missing too; a restart in between changes nothing.
    """
    cluster = daemons.cluster
    await cluster.add_service()
    settings = quick(NODE_LEVEL, node_level_mode=NodeLevelMode.AUTO)
    async with cluster.controlled(settings) as controller:
        assert await look(cluster, controller) == (told("on {node}"), [POST])
        await cluster.end_pod("p0", grace=0)
        assert await look(cluster, controller) == (told("on {node}", range(1, 6)), [PUT])
        await cluster.end_pod("p1", grace=0)
        assert await look(cluster, controller) == (told("on {node}", range(2, 6)), [PUT])
    async with cluster.controlled(settings) as controller:
        assert await look(cluster, controller) == (told("on {node}", range(2, 6)), [])
        await cluster.set_pod("p2", ip="10.0.0.3", ready=False)
        assert await look(cluster, controller) == (told("none", range(2, 6)), [PUT])
        await cluster.set_pod("p2", ip="10.0.0.3")
        found, _ = await look(cluster, controller)
        assert found == told("none", range(2, 6))
        await daemons.start(1)
        found, _ = await look(cluster, controller)
        assert found == told("on {node}", range(1, 6))
        await daemons.start(0)
        found, _ = await look(cluster, controller)
        assert found == told("on {node}")


async def test_automatic_mode_ends_with_strangers_and_follows_nodes(daemons: Daemons) -> None:
    """Pods of nobody, another wish and many new nodes end it; their going brings it back."""
    cluster = daemons.cluster
    await cluster.add_service()
    settings = quick(NODE_LEVEL, node_level_mode=NodeLevelMode.AUTO)
    async with cluster.controlled(settings) as controller:
        assert await look(cluster, controller) == (told("on {node}"), [POST])
        await cluster.add_pod("other", "n0", ip="10.0.0.9")
        assert (await look(cluster, controller))[0] == {**told("none"), "10.0.0.9": "none"}
        await cluster.end_pod("other", grace=0)
        assert (await look(cluster, controller))[0] == told("on {node}")
        for distribution, want in (("PreferSameZone", "{zone}"), (None, "on {node}")):
            await annotate(cluster, distribution=distribution)
            assert await look(cluster, controller) == (told(want), [PUT])
        for number in (6, 7):
            await cluster.add_node(f"n{number}", zone_of(number))
            assert await look(cluster, controller) == (told("on {node}"), [])
        await cluster.add_node("n8", zone_of(8))
        assert await look(cluster, controller) == (told("none"), [PUT])
        await cluster.remove(NODES, "n8")
        assert await look(cluster, controller) == (told("none"), [])
        await cluster.remove(NODES, "n7")
        assert await look(cluster, controller) == (told("on {node}"), [PUT])
