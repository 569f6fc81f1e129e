"""Nodes, ready pods and Services of a small cluster, and what its slices should say."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import resolve_services
from keepclose.kube.client import Client
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.slices.settings import PlannerSettings
from support.real.apis import pod

ZONES = ("zone-a", "zone-b", "zone-c")
# Of an endpoint: its node, its zone, the zones and the nodes that it is hinted for.
Place = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def node_of(zone: str) -> str:
    """Return the name of the node in a zone."""
    return zone.replace("zone", "node")


async def create_nodes(client: Client) -> None:
    """Create one ready node in each zone."""
    for zone in ZONES:
        status = {
            "allocatable": {"cpu": "4"},
            "capacity": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        labels = {"topology.kubernetes.io/zone": zone, "kubernetes.io/hostname": node_of(zone)}
        new = {"metadata": {"name": node_of(zone), "labels": labels}, "status": status}
        await client.create(NODES, new)


async def create_pods(client: Client, namespace: str, app: str, numbers: range) -> None:
    """Create ready pods, the first in the first zone, the second in the second and so on."""

    async def create(number: int) -> None:
        zone = ZONES[number % len(ZONES)]
        new = pod(f"{app}-{number}", node_of(zone), app=app)
        await client.create(PODS, new, namespace=namespace)
        await make_ready(client, namespace, f"{app}-{number}", address_of(number))

    for start in range(numbers.start, numbers.stop, 10):
        some = range(start, min(start + 10, numbers.stop))
        await asyncio.gather(*(create(number) for number in some))


async def make_ready(client: Client, namespace: str, name: str, address: str) -> None:
    """Say of a pod that it runs at the address, as its kubelet would."""
    status: dict[str, Any] = {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    patch = {"status": status}
    await client.patch(PODS, name, patch, namespace=namespace, subresource="status")


def address_of(number: int) -> str:
    """Return the address of a pod."""
    return f"10.244.{number // 200}.{number % 200 + 1}"


async def read_slices(client: Client, namespace: str, service: str) -> list[EndpointSlice]:
    """Return the slices of a Service."""
    selector = f"kubernetes.io/service-name={service}"
    page = await client.list_all(ENDPOINT_SLICES, namespace=namespace, label_selector=selector)
    return page.items


def places(slices: list[EndpointSlice]) -> dict[str, Place]:
    """Return where each ready address is, and whom it is for."""
    return {
        endpoint.addresses[0]: (
            endpoint.node_name or "",
            endpoint.zone or "",
            tuple(one.name for one in endpoint.hints.for_zones) if endpoint.hints else (),
            tuple(one.name for one in endpoint.hints.for_nodes) if endpoint.hints else (),
        )
        for piece in slices
        for endpoint in piece.endpoints
        if endpoint.conditions.ready
    }


async def expected_places(client: Client, namespace: str, service: str) -> dict[str, Place]:
    """Return what our own planning makes of the same nodes, pods and Service."""
    nodes = await client.list_all(NODES)
    pods = await client.list_all(PODS, namespace=namespace)
    one = await client.get(SERVICES, service, namespace=namespace)
    inventory = Inventory.of([*nodes.items, *pods.items, one])
    (resolved,) = resolve_services(inventory, settings=PlannerSettings())
    return places(list(resolved.slices))


async def wait_for_places(
    client: Client, namespace: str, service: str, want: Mapping[str, Place]
) -> list[EndpointSlice]:
    """Return the slices as soon as they say what is wanted; fail with the difference."""
    found: dict[str, Place] = {}
    for _ in range(900):
        slices = await read_slices(client, namespace, service)
        found = places(slices)
        if found == want:
            return slices
        await asyncio.sleep(0.1)
    assert found == want
    return []
