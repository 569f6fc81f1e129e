"""The nodes of a cluster by zone, in the order in which a map shows them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from keepclose.model.plain_text import make_plain
from keepclose.model.workload import Node
from keepclose.routing.port_endpoints import NodeView


class MapNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node on the map."""

    name: str
    region: str
    is_ready: bool


class ZoneColumn(msgspec.Struct, frozen=True, rename="camel"):
    """A zone and its nodes; the zone is "" for nodes without a zone label."""

    zone: str
    nodes: tuple[MapNode, ...]


def arrange_zones(nodes: Iterable[Node]) -> tuple[ZoneColumn, ...]:
    """Return the zones by name, each with its nodes by name; nodes without a zone come last."""
    columns: dict[str, list[MapNode]] = {}
    for node in nodes:
        view = NodeView.of(node)
        shown = MapNode(make_plain(view.name), make_plain(view.region), node.is_ready)
        columns.setdefault(make_plain(view.zone), []).append(shown)
    return tuple(
        ZoneColumn(zone, tuple(sorted(columns[zone], key=lambda each: each.name)))
        for zone in sorted(columns, key=lambda zone: (not zone, zone))
    )


def is_same_for_traffic(old: Node, new: Node) -> bool:
    """Return whether a change of a Node leaves zones, readiness and CPU as they are."""
    return (
        old.metadata.labels == new.metadata.labels
        and old.is_ready == new.is_ready
        and old.is_excluded == new.is_excluded
        and old.status.allocatable == new.status.allocatable
    )
