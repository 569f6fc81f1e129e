"""Subsetting by region on a running cluster (KEP-2004, KEP-2030): labels, and which node uses what.

Two regions of two zones each. Slices are labelled for a region, and a node uses those of its own.
"""

from __future__ import annotations

from collections import Counter

import pytest

from keepclose.controller.controller import Controller
from keepclose.kube.requests import NODES, SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import (
    FOR_REGION_LABEL,
    FOR_ZONE_LABEL,
    REGION_LABEL,
    SUBSETTING_ANNOTATION,
)
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from support.controllers import World
from support.live.sights import quick

GATES = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING)
PLACES = {"n1": ("z1", "east"), "n2": ("z2", "east"), "n3": ("z3", "west"), "n4": ("z4", "west")}
Groups = dict[str, int]


@pytest.fixture
async def regions(cluster: World) -> World:
    """Two regions of two nodes each, and ten pods: five on n1, three on n2, two on n3."""
    for name, (zone, region) in PLACES.items():
        await cluster.add_node(name, zone)
        await move(cluster, name, region)
    for number in range(10):
        node = ("n1", "n2", "n3")[(number > 4) + (number > 7)]
        await cluster.add_pod(f"p{number}", node, ip=f"10.0.0.{number + 1}")
    return cluster


async def move(cluster: World, node: str, region: str | None) -> None:
    """Label a node with another region, or with none."""
    await cluster.change(NODES, node, {"metadata": {"labels": {REGION_LABEL: region}}})


async def ask(cluster: World, value: str | None) -> None:
    """Set the subsetting annotation."""
    patch = {"metadata": {"annotations": {SUBSETTING_ANNOTATION: value}}}
    await cluster.change(SERVICES, "web", patch)


async def groups(cluster: World, controller: Controller) -> Groups:
    """Return how many endpoints are in slices for each region, zone as "for z1", or all as ""."""
    await cluster.settle(controller)
    counted: Counter[str] = Counter()
    for endpoint_slice in await cluster.slices():
        labels = endpoint_slice.metadata.labels
        assert not (FOR_ZONE_LABEL in labels and FOR_REGION_LABEL in labels)
        zone = labels.get(FOR_ZONE_LABEL)
        group = labels.get(FOR_REGION_LABEL, "") if zone is None else f"for {zone}"
        counted[group] += len(endpoint_slice.endpoints)
    return dict(sorted(counted.items()))


async def used(cluster: World) -> dict[str, int]:
    """Return how many endpoints each node uses, as its proxy selects them."""
    service = await cluster.client.get(SERVICES, "web", namespace=cluster.namespace)
    known = collect_endpoints(await cluster.slices(), "IPv4", gates=GATES)
    (port,) = routed_ports(service, "IPv4", gates=GATES)
    found = {}
    for node in (await cluster.cluster()).nodes.values():
        selection = select(port, known[port.key], node=NodeView.of(node), gates=GATES)
        assert selection.cluster is not None
        found[node.name] = len(selection.cluster)
    return dict(sorted(found.items()))


async def test_values_of_the_annotation_divide_by_region(regions: World) -> None:
    """Require keeps endpoints at home, Prefer balances; zones and regions replace each other."""
    cluster = regions
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "RequireRegion"})
    async with cluster.controlled(quick(GATES)) as controller:
        assert await groups(cluster, controller) == {"east": 8, "west": 2}
        assert await used(cluster) == {"n1": 8, "n2": 8, "n3": 2, "n4": 2}
        # Two of ten endpoints for half of the traffic are 150 % too much; five serve each region.
        await ask(cluster, "PreferRegion")
        assert await groups(cluster, controller) == {"east": 5, "west": 5}
        assert await used(cluster) == dict.fromkeys(PLACES, 5)
        plan = controller.explain(NamespacedName(cluster.namespace, "web"))
        assert plan is not None
        assert "every region is below 50% overload" in plan.reasons[-1].message
        await ask(cluster, "Require")
        want = {"for z1": 5, "for z2": 3, "for z3": 2}
        assert await groups(cluster, controller) == want
        await ask(cluster, "RequireRegion")
        assert await groups(cluster, controller) == {"east": 8, "west": 2}
        await ask(cluster, None)
        assert await groups(cluster, controller) == {"": 10}
        assert await used(cluster) == dict.fromkeys(PLACES, 10)


async def test_a_node_that_moves_takes_its_endpoints_along(regions: World) -> None:
    """The region of an endpoint is that of its node; one region, or none, divides nothing."""
    cluster = regions
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "RequireRegion"})
    async with cluster.controlled(quick(GATES)) as controller:
        assert await groups(cluster, controller) == {"east": 8, "west": 2}
        await move(cluster, "n2", "west")
        assert await groups(cluster, controller) == {"east": 5, "west": 5}
        assert await used(cluster) == dict.fromkeys(PLACES, 5)
        await move(cluster, "n1", "west")
        assert await groups(cluster, controller) == {"": 10}
        for name in PLACES:
            await move(cluster, name, None)
        assert await groups(cluster, controller) == {"": 10}
        plan = controller.explain(NamespacedName(cluster.namespace, "web"))
        assert plan is not None
        assert plan.reasons[-1].fix == f"kubectl label node <node> {REGION_LABEL}=<region>"


async def test_a_zone_and_a_region_may_have_the_same_name(regions: World) -> None:
    """Slices for a zone are never taken for those of a region called likewise."""
    cluster = regions
    for name, (zone, _) in PLACES.items():
        await move(cluster, name, {"z1": "z1", "z2": "z1"}.get(zone, "z3"))
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Require"})
    async with cluster.controlled(quick(GATES)) as controller:
        want = {"for z1": 5, "for z2": 3, "for z3": 2}
        assert await groups(cluster, controller) == want
        await ask(cluster, "RequireRegion")
        assert await groups(cluster, controller) == {"z1": 8, "z3": 2}
        assert await used(cluster) == {"n1": 8, "n2": 8, "n3": 2, "n4": 2}
