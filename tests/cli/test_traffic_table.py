"""The table of `keepclose traffic`, to the letter."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from keepclose.cli.render.screen import Screen
from keepclose.cli.render.traffic_table import print_traffic
from keepclose.lab.traffic.report import Busiest, ReportedReason, TrafficReport
from support.commands.traffic_reports import REPORT, row


def shown(report: TrafficReport, *, width: int = 100, by_node: bool = False) -> str:
    """Return what is printed without colours."""
    file = io.StringIO()
    print_traffic(Screen(file=file, width=width), report, by_node=by_node)
    text = file.getvalue()
    assert not [line for line in text.splitlines() if line != line.rstrip()]
    return text


@pytest.mark.parametrize(
    ("busiest", "want"),
    [
        pytest.param(
            Busiest("p1", "n1", "zone-a", 1.6, 1.57),
            "busiest endpoint 1.60x its fair share, 1.57x expected (p1, zone-a)",
            id="chance",
        ),
        pytest.param(
            Busiest("p1", "n1", "zone-a", 2.5, 1.57, is_beyond_chance=True),
            "busiest endpoint 2.50x its fair share, 1.57x expected, beyond chance (p1, zone-a)",
            id="beyond chance",
        ),
    ],
)
def test_the_busiest_endpoint_stands_beside_what_chance_makes(busiest: Busiest, want: str) -> None:
    """Only more than chance is called out."""
    assert want in shown(replace(REPORT, busiest=busiest))


def test_zones() -> None:
    """The answer first, the reason next, then the fix, and the sums last."""
    assert shown(REPORT) == (
        "3,000 connections, 0 failed                   PreferSameZone\n"
        "         to  zone-a       zone-b       zone-c  expected\n"
        "from zone-a  1,000 100 %  ·            ·       100/0/0   ✓\n"
        "     zone-b  ·            1,000 100 %  ·       0/100/0   ✓\n"
        "     zone-c    498  50 %    502  50 %  ·       50/50/0   ✓\n"
        "why   no ready endpoint is hinted for zone zone-c of node n5 (the same on 1 more node)\n"
        "fix   run an endpoint in zone zone-c\n"
        "in zone 66.7 %   on node 50.0 %   "
        "busiest endpoint 1.50x its fair share (demo-7f9-x2k, zone-a)\n"
    )


def test_nodes() -> None:
    """Node by node the expected share stands beside each observed one."""
    lines = shown(REPORT, by_node=True).splitlines()
    assert lines[5:12] == [
        "",
        "node by node, in % (expected)",
        "     to  n1         n2        n3",
        "from n1  100 (100)  ·         ·   ✓",
        "     n2   46 (50)    54 (50)  ·   ✓",
        "     n3    0 (10)     7 (0)   ·   ✓",
        "",
    ]


def test_failures_and_faults() -> None:
    """Failures have a column of their own, and each fault its line."""
    report = replace(
        REPORT,
        failed=1532,
        failures={"timed out": 1020, "refused": 512},
        as_expected=False,
        zones=("", "zone-a"),
        rows=(
            row(
                "zone-a",
                {"zone-a": 968},
                {"zone-a": 1.0},
                failures={"timed out": 20, "refused": 12},
                fault="n1: 12 refused",
            ),
            row("", {}, {}, failures={"timed out": 1000}, expected_failures={"timed out": 1.0}),
            row(
                "zone-b",
                {"zone-a": 500},
                {"zone-a": 0.5},
                failures={"refused": 500},
                expected_failures={"refused": 0.5},
            ),
        ),
        in_zone=None,
        busiest=None,
        notes=("endpoints changed",),
    )
    assert shown(report) == (
        "3,000 connections, 1,532 failed (512 refused, 1,020 timed out)   PreferSameZone\n"
        "          to  no zone  zone-a     expected          failed\n"
        "from zone-a   ·        968  97 %  0/100             12 refused, 20 timed out  ✗\n"
        "     no zone  ·        ·          timed out         1,000 timed out           ✓\n"
        "     zone-b   ·        500  50 %  0/50, 50 refused  500 refused               ✓\n"
        "✗     n1: 12 refused\n"
        "note  endpoints changed\n"
    )


def test_the_same_reason_on_many_rows_is_told_once() -> None:
    """What is about one node says on how many others it holds; and long lists end."""
    empty = ReportedReason("NoEndpoints", "there are no endpoints", "Service default/web", "", 2)
    rows = tuple(replace(one, reasons=(empty,)) for one in REPORT.rows)
    lines = shown(replace(REPORT, rows=rows)).splitlines()
    assert lines[5:-1] == ["why   there are no endpoints"]
    many = tuple(
        ReportedReason(
            "NodeNotHinted", f"none for node n{number}", f"Node n{number}", f"fix {number}", 1
        )
        for number in range(10)
    )
    rows = (replace(REPORT.rows[0], reasons=many),)
    lines = shown(replace(REPORT, rows=rows)).splitlines()
    assert [line for line in lines if line.startswith("why")] == [
        f"why   none for node n{number}" for number in range(8)
    ]
    assert "      and 2 more, see -o json" in lines
    assert sum(line.startswith("fix") for line in lines) == 8


def test_a_reason_that_holds_in_several_zones_is_told_once() -> None:
    """Where only the names of zone and node differ, one line lists the zones."""

    def reason(zone: str, node: str) -> ReportedReason:
        message = f"no ready endpoint is hinted for zone {zone} of node {node}"
        return ReportedReason("ZoneNotHinted", message, f"Node {node}", "", 2)

    reasons = [reason("zone-a", "n1"), reason("zone-b", "n3"), reason("zone-c", "n5")]
    rows = tuple(
        replace(one, reasons=(told,)) for one, told in zip(REPORT.rows, reasons, strict=True)
    )
    text = " ".join(shown(replace(REPORT, rows=rows)).split())
    assert text.count("why ") == 1
    want = (
        "why no ready endpoint is hinted for zone zone-a of node n1 "
        "(the same on 5 more nodes, also in zone-b, zone-c)"
    )
    assert want in text


def test_from_outside() -> None:
    """Rows are the zones through which connections come in."""
    report = replace(REPORT, via="node-port", rows=REPORT.rows[:1], connections=1)
    lines = shown(report).splitlines()
    assert lines[0].startswith("1 connection from outside, 0 failed  ")
    lines_udp = shown(replace(report, port="dns 53/UDP", connections=2)).splitlines()
    assert lines_udp[0].startswith("2 datagrams from outside, 0 failed  ")
    assert lines[2] == "via zone-a  1,000 100 %  ·       ·       100/0/0   ✓"


def test_more_zones_than_counts_fit() -> None:
    """Percents alone then."""
    zones = tuple(f"zone-{letter}" for letter in "abcdef")
    rows = tuple(row(zone, {zone: 1000}, {zone: 1.0}) for zone in zones)
    lines = shown(replace(REPORT, zones=zones, rows=rows)).splitlines()
    assert lines[1:3] == [
        "         to  zone-a  zone-b  zone-c  zone-d  zone-e  zone-f  expected",
        "from zone-a  100 %   ·       ·       ·       ·       ·       100/0/0/0/0/0  ✓",
    ]


def test_more_zones_than_columns_fit() -> None:
    """A list of what is not empty then, within the width."""
    zones = tuple(f"zone-{number}" for number in range(12))
    rows = tuple(
        row(zone, dict.fromkeys(zones, 83), dict.fromkeys(zones, 1 / 12)) for zone in zones
    )
    rows = (*rows, row("zone-z", {}, {}, failures={"refused": 9}, fault="all wrong"))
    lines = shown(replace(REPORT, zones=zones, rows=rows), width=80).splitlines()
    assert lines[1:5] == [
        "in % (expected)",
        "from zone-0   ✓  zone-0 8 (8), zone-1 8 (8), zone-2 8 (8), zone-3 8 (8),",
        "                 zone-4 8 (8), zone-5 8 (8), zone-6 8 (8), zone-7 8 (8),",
        "                 zone-8 8 (8), zone-9 8 (8), zone-10 8 (8), zone-11 8 (8)",
    ]
    assert "     zone-z   ✗  failed 9 refused" in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("width", [80, 100, 200])
def test_long_names_stay_within_the_width(width: int) -> None:
    """Sums go on to a second line; only commands are never folded."""
    pod = "a-deployment-with-a-long-name-6b7c9d5f48-x2k9q"
    report = replace(REPORT, busiest=Busiest(pod, "n1", "europe-west1-b", 1.0))
    lines = shown(report, width=width).splitlines()
    assert lines[-2:] == [
        "in zone 66.7 %   on node 50.0 %",
        f"busiest endpoint 1.00x its fair share ({pod}, europe-west1-b)",
    ]
