"""A restart changes nothing: what one controller left at rest, the next finds right."""

from __future__ import annotations

from typing import Any, Final

from keepclose.kube.requests import ENDPOINT_SLICES, ENDPOINTS, NODES, SERVICES, Kind
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.balanced import BALANCED
from keepclose.routing.node_level import NodeLevelMode
from support.controllers import World
from support.crowds import do_all
from support.live.sights import POST, PUT, quick

GATES: Final = FeatureGates().with_gates(
    Gate.NODE_LEVEL_TOPOLOGY,
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
)
SETTINGS: Final = quick(
    GATES,
    max_endpoints=8,
    node_level_mode=NodeLevelMode.AUTO,
    heuristics={"keepclose.dev/Balanced": BALANCED},
)
TD: Final = "trafficDistribution"
WISHES: Final[dict[str, tuple[dict[str, str], dict[str, Any]]]] = {
    "none": ({}, {}),
    "close": ({}, {TD: "PreferClose"}),
    "zone": ({}, {TD: "PreferSameZone"}),
    "node": ({}, {TD: "PreferSameNode"}),
    "auto": ({TOPOLOGY_MODE_ANNOTATION: "Auto"}, {}),
    "both": ({TOPOLOGY_MODE_ANNOTATION: "Auto"}, {TD: "PreferSameNode"}),
    "disabled": ({TOPOLOGY_MODE_ANNOTATION: "Disabled"}, {TD: "PreferSameZone"}),
    "prefer": ({SUBSETTING_ANNOTATION: "Prefer"}, {}),
    "require": ({SUBSETTING_ANNOTATION: "Require"}, {}),
    "balanced": ({TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"}, {}),
    "unknown": ({TRAFFIC_DISTRIBUTION_ANNOTATION: "example.dev/Unknown"}, {}),
    "level": ({TOPOLOGY_HINTS_ANNOTATION: "Node"}, {}),
    "overlay": ({NODE_TOPOLOGY_ANNOTATION: "Enabled"}, {TD: "PreferSameZone"}),
    "headless": ({}, {TD: "PreferSameZone", "clusterIP": "None"}),
    "early": ({}, {TD: "PreferSameNode", "publishNotReadyAddresses": True}),
    "local": ({SUBSETTING_ANNOTATION: "Prefer"}, {"internalTrafficPolicy": "Local"}),
    "dual": ({}, {TD: "PreferSameZone", "ipFamilyPolicy": "RequireDualStack"}),
    "empty": ({}, {TD: "PreferSameZone", "selector": {"app": "nobody"}}),
}


async def everything(cluster: World) -> dict[str, object]:
    """Return all slices and Services as they are stored, and the events."""
    found: dict[str, object] = {}
    kinds: tuple[Kind[Any], ...] = (ENDPOINT_SLICES, SERVICES)
    for kind in kinds:
        for one in (await cluster.client.list_all(kind, namespace=cluster.namespace)).items:
            found[f"{kind}/{one.metadata.name}"] = one
    found["events"] = await cluster.events()
    return found


async def test_a_restart_writes_nothing_whatever_governs(cluster: World) -> None:
    """After the first start, after changes and after an upheaval of nodes, all is left alone."""
    for number in range(7):
        # The last has no zone, and none of the pods until later.
        zone = None if number == 6 else f"zone-{'abc'[number % 3]}"
        await cluster.add_node(f"n{number}", zone, cpu="8" if number == 2 else "4")
    body = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    await cluster.client.patch(NODES, "n6", body, subresource="status")
    await do_all(
        cluster.add_pod(f"p{number:02}", f"n{number % 6}", ip=f"10.0.0.{number + 1}")
        for number in range(20)
    )
    await cluster.set_pod("p03", ip="10.0.0.4", ready=False)
    await cluster.end_pod("p04")
    for name, (notes, spec) in WISHES.items():
        await cluster.add_service(name, annotations=notes, **spec)
    await cluster.add_service("mirrored", selector=None, trafficDistribution="PreferSameZone")
    subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "http", "port": 8080}]}
    endpoints = {"metadata": {"name": "mirrored"}, "subsets": [subset]}
    await cluster.client.create(ENDPOINTS, endpoints, namespace=cluster.namespace)

    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        await controller._recorder.flush()
        # Two families, and of the others at least one each.
        assert cluster.wire.take().count(POST) > len(WISHES) + 1
    await check_restart(cluster)

    async with cluster.controlled(SETTINGS) as controller:
        await cluster.set_pod("p03", ip="10.0.0.4")
        await cluster.end_pod("p04", grace=0)
        await cluster.end_pod("p05", grace=0)
        await do_all(
            cluster.add_pod(f"p{number:02}", "n0", ip=f"10.0.0.{number + 1}")
            for number in range(20, 26)
        )
        await cluster.label_node("n1", "zone-c")
        await cluster.settle(controller)
        await controller._recorder.flush()
        assert PUT in cluster.wire.take()
    await check_restart(cluster)


async def check_restart(cluster: World) -> None:
    """Start a controller at rest and compare everything with what was there before."""
    before = await everything(cluster)
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        await controller._recorder.flush()
        assert cluster.wire.take() == []
    assert await everything(cluster) == before
