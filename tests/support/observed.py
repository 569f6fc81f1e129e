"""A cluster of three zones and the flows of its Service, healthy unless a test seeds a fault."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowKind, FlowTable
from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import plan_slices
from keepclose.advise.verification import VerifiedPort, verify_services
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service

ZONES = ("zone-a", "zone-b", "zone-c")
NODES = tuple(node(f"n{number + 1}", ZONES[number // 2]) for number in range(6))
PODS = tuple(
    pod(f"web-{number}", f"n{number + 1}", ip=f"10.0.0.{number + 1}") for number in range(6)
)
WEB = service(traffic_distribution="PreferSameZone")
SETTINGS = PlannerSettings()


def planned_slices(
    web: Service = WEB,
    *,
    nodes: Iterable[Node] = NODES,
    pods: Iterable[Pod] = PODS,
    settings: PlannerSettings = SETTINGS,
) -> tuple[EndpointSlice, ...]:
    """Return the slices that a controller would write."""
    listed = tuple(nodes)
    inventory = Inventory.of((*listed, *pods, web))
    return plan_slices(web, inventory, ClusterNodes.of(listed), settings).slices


def without_hints(
    slices: Iterable[EndpointSlice], *, first: int = 1000
) -> tuple[EndpointSlice, ...]:
    """Return the slices with the first endpoints of each unhinted."""
    return tuple(
        replace(
            each,
            endpoints=tuple(
                replace(endpoint, hints=None) if number < first else endpoint
                for number, endpoint in enumerate(each.endpoints)
            ),
        )
        for each in slices
    )


def flows_of(
    rows: Mapping[tuple[str, str], int], *, table: FlowTable | None = None, **fields: Any
) -> FlowTable:
    """Return flows by client zone and endpoint zone, each with 1,000 bytes a connection.

    Other fields are those of the key or of the counts.
    """
    flows = FlowTable(end=600.0) if table is None else table
    counted = {name: fields.pop(name) for name in FlowCounts.__struct_fields__ if name in fields}
    for (source, target), connections in rows.items():
        key = FlowKey(
            FlowKind.SERVICE, "default", "web", "http", client_zone=source, endpoint_zone=target
        )._replace(**fields)
        counts = FlowCounts(connections, request_bytes=1000 * connections)
        for name, number in counted.items():
            setattr(counts, name, number)
        flows.add(key, counts)
    return flows


def in_zone(connections: int = 600, zones: Iterable[str] = ZONES, **fields: Any) -> FlowTable:
    """Return flows that stay in their zones."""
    return flows_of({(zone, zone): connections for zone in zones}, **fields)


def spread(connections: int = 600, zones: Iterable[str] = ZONES, **fields: Any) -> FlowTable:
    """Return flows that are spread over all zones."""
    return flows_of(
        {(zone, other): connections // 3 for zone in zones for other in ZONES}, **fields
    )


def verify(
    flows: FlowTable,
    *,
    web: Service = WEB,
    nodes: Iterable[Node] = NODES,
    pods: Iterable[Pod] = PODS,
    slices: Iterable[EndpointSlice] | None = None,
    settings: PlannerSettings = SETTINGS,
    **options: Any,
) -> VerifiedPort:
    """Return the verdict on the only port; slices are as planned unless given."""
    listed, running = tuple(nodes), tuple(pods)
    written = planned_slices(web, nodes=listed, pods=running, settings=settings)
    present = written if slices is None else tuple(slices)
    inventory = Inventory.of((*listed, *running, web, *present))
    (verified,) = verify_services(inventory, flows, settings=settings, **options)
    # What a script reads must be writable, whatever the verdict.
    msgspec.json.encode(verified)
    return verified
