"""A report of a run of traffic."""

from __future__ import annotations

from typing import Any

from keepclose.lab.traffic.report import (
    Busiest,
    ReportedReason,
    SourceRow,
    TrafficReport,
    TrafficRow,
)

FALLBACK = ReportedReason(
    "ZoneNotHinted",
    "no ready endpoint is hinted for zone zone-c of node n5",
    "Node n5",
    "run an endpoint in zone zone-c",
    2,
)


def row(
    source: str, answered: dict[str, int], expected: dict[str, float], **more: Any
) -> TrafficRow:
    """Return a row of 1,000 connections."""
    defaults = {"failures": {}, "expected_failures": {}, "fault": "", "reasons": ()}
    return TrafficRow(
        source=source, connections=1000, answered=answered, expected=expected, **defaults | more
    )


def source_row(name: str, answered: dict[str, int], expected: dict[str, float]) -> SourceRow:
    """Return a row of the client of a node, with 100 connections."""
    return SourceRow(
        source=name,
        node=name,
        zone="",
        connections=100,
        answered=answered,
        expected=expected,
        failures={},
        expected_failures={},
        pods={},
        expected_pods={},
        fault="",
        reasons=(),
    )


REPORT = TrafficReport(
    service="default/demo-svc",
    port="80/TCP",
    address="10.96.0.1:80",
    via="cluster-ip",
    mechanism="PreferSameZone",
    seconds=0.9,
    connections=3000,
    failed=0,
    failures={},
    as_expected=True,
    zones=("zone-a", "zone-b", "zone-c"),
    nodes=("n1", "n2", "n3"),
    rows=(
        row("zone-a", {"zone-a": 1000}, {"zone-a": 1.0}),
        row("zone-b", {"zone-b": 1000}, {"zone-b": 1.0}),
        row(
            "zone-c",
            {"zone-a": 498, "zone-b": 502},
            {"zone-a": 0.5, "zone-b": 0.5},
            reasons=(FALLBACK,),
        ),
    ),
    sources=(
        source_row("n1", {"n1": 100}, {"n1": 1.0}),
        source_row("n2", {"n1": 46, "n2": 54}, {"n1": 0.5, "n2": 0.5}),
        source_row("n3", {"n2": 7}, {"n1": 0.1}),
    ),
    in_zone=2 / 3,
    on_node=0.5,
    endpoints=5,
    busiest=Busiest("demo-7f9-x2k", "n1", "zone-a", 1.5),
    notes=(),
)
