"""The table of `keepclose flows top`, to the letter."""

from __future__ import annotations

import io

import pytest

from keepclose.accounting.flow_table import OUTSIDE, FlowCounts, FlowKey, FlowKind, FlowTable
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.flow_reports import show_bytes, show_seconds
from keepclose.cli.render.flows_table import (
    FlowReading,
    render_flows,
    summarise,
)
from keepclose.cli.render.screen import Screen, cell_len

A, B, C = "zone-a", "zone-b", "zone-c"


def flow(
    service: str, start: str, end: str, kind: FlowKind = FlowKind.SERVICE, *, client: str = ""
) -> FlowKey:
    """Return the key of a flow of the namespace shop."""
    namespace = "shop" if service else ""
    return FlowKey(kind, namespace, service, "http", "TCP", start, end, client=client)


def small_table() -> FlowTable:
    """Return a table with two Services, pods, and traffic to outside and of overlays."""
    table = FlowTable(start=1_700_000_000.0, end=1_700_003_700.0)
    table.add(flow("web", A, A), FlowCounts(300, 0, 0, 100_000, 900_000))
    table.add(flow("web", A, B), FlowCounts(100, 1, 2, 100_000, 2_900_000))
    table.add(flow("web", C, B), FlowCounts(10, 0, 0, 10_000, 90_000))
    table.add(flow("db", B, B), FlowCounts(5, 0, 0, 1_000, 500))
    table.add(flow("db", B, C, FlowKind.POD), FlowCounts(7, 0, 0, 1_000, 9_000))
    table.add(flow("", A, OUTSIDE, FlowKind.EGRESS), FlowCounts(3, 0, 0, 50_000, 0))
    table.add(flow("", A, B, FlowKind.TUNNEL), FlowCounts(1, 0, 0, 7_000_000, 0))
    table.add(flow("", A, A, FlowKind.LOCAL), FlowCounts(50, 0, 0, 800, 0))
    return table


def shown(
    table: FlowTable,
    *,
    later: FlowTable | None = None,
    by: FlowGrouping = FlowGrouping.SERVICE,
    sort: FlowOrder = FlowOrder.CROSS_ZONE,
    width: int = 100,
    most_lines: int = 0,
) -> list[str]:
    """Return what is printed, without colours."""
    summary = summarise(FlowReading(table, later, 2.0, 3), by, sort)
    file = io.StringIO()
    screen = Screen(file=file, width=width)
    screen.print(render_flows(summary, width=width, most_lines=most_lines), soft_wrap=True)
    lines = file.getvalue().splitlines()
    assert not [line for line in lines if line != line.rstrip() or cell_len(line) > width]
    return lines


def test_totals_come_first_and_each_service_has_a_line() -> None:
    """A first reading shows what was counted, by what crosses zones, and all kinds of traffic."""
    assert shown(small_table(), width=90) == [
        "total  3.1 MB of 4.2 MB cross zones (76 %), 425 connections, 3 failed, in 1 h 1 min,",
        "       3 sources",
        "kinds  tunnel 7.0 MB, service 4.1 MB, egress 50.0 kB, pod 10.0 kB, local 800 B",
        "",
        "service           in zone  cross zone  same zone  conn  failed    other  most from → to",
        "shop/web             24 %      3.1 MB     1.0 MB   410       3        ·  zone-a → zone-b",
        "shop/db (pods)        0 %     10.0 kB          ·     7       ·        ·  zone-b → zone-c",
        "(egress)                ·           ·          ·     3       ·  50.0 kB  ·",
        "shop/db             100 %           ·     1.5 kB     5       ·        ·  ·",
    ]


def test_rates_since_the_last_reading_stand_beside_what_crossed_in_all() -> None:
    """With two readings columns are rates, and lines are sorted by the present."""
    later = FlowTable()
    later.add(flow("db", B, B), FlowCounts(3, 0, 0, 2_000, 2_000))
    later.add(flow("db", B, C, FlowKind.POD), FlowCounts(1, 0, 1, 4_000, 0))
    assert shown(small_table(), later=later, width=90) == [
        "now    2.0 kB/s of 4.0 kB/s cross zones (50 %), 2.0 connections/s, 0.5 failed/s",
        "total  3.1 MB of 4.2 MB cross zones (76 %), 425 connections, 3 failed, in 1 h 1 min,",
        "       3 sources",
        "kinds  tunnel 7.0 MB, service 4.1 MB, egress 50.0 kB, pod 10.0 kB, local 800 B",
        "",
        "service           in zone  cross zone/s  same zone/s  conn/s  failed/s  crossed",
        "shop/db (pods)        0 %        2.0 kB            ·     0.5       0.5  10.0 kB",
        "shop/db             100 %             ·       2.0 kB     1.5         ·        ·",
        "shop/web                ·             ·            ·       0         ·   3.1 MB",
        "(egress)                ·             ·            ·       0         ·        ·",
    ]


@pytest.mark.parametrize(
    ("by", "want"),
    [
        pytest.param(
            FlowGrouping.ZONES,
            [
                "zone-a → zone-b",
                "zone-c → zone-b",
                "zone-b → zone-c",
                "zone-a → zone-a",
                "zone-a → (outside)",
                "zone-b → zone-b",
            ],
            id="zones",
        ),
        pytest.param(FlowGrouping.NAMESPACE, ["shop", "(egress)"], id="namespace"),
        pytest.param(FlowGrouping.CLIENT, ["(not recorded)"], id="client"),
    ],
)
def test_lines_are_about_what_was_asked_for(by: FlowGrouping, want: list[str]) -> None:
    """Zones, namespaces and clients are summed over their Services."""
    lines = shown(small_table(), by=by)
    first = next(number for number, line in enumerate(lines) if line.startswith(by.value))
    names = [line.split("  ")[0] for line in lines[first + 1 :]]
    assert names[: len(want)] == want


def test_without_the_detail_of_clients_a_note_says_so() -> None:
    """The table says which option of the agents tells clients apart."""
    assert "--detail workloads" in " ".join(shown(small_table(), by=FlowGrouping.CLIENT)[-2:])
    named = FlowTable()
    named.add(flow("web", A, B, client="shop/cart"), FlowCounts(1, 0, 0, 10, 10))
    assert shown(named, by=FlowGrouping.CLIENT)[-1].startswith("shop/cart ")


@pytest.mark.parametrize(
    ("sort", "want"),
    [
        pytest.param(FlowOrder.BYTES, ["shop/web", "(egress)"], id="bytes"),
        pytest.param(FlowOrder.CONNECTIONS, ["shop/web", "shop/db (pods)"], id="connections"),
        pytest.param(FlowOrder.FAILED, ["shop/web", "shop/db (pods)"], id="failed"),
        pytest.param(FlowOrder.NAME, ["(egress)", "shop/db"], id="name"),
    ],
)
def test_lines_are_sorted_as_asked_and_cut(sort: FlowOrder, want: list[str]) -> None:
    """The first lines are shown, and the number of the others."""
    *_, first, second, rest = shown(small_table(), sort=sort, most_lines=2)
    assert [line.split("  ")[0] for line in (first, second)] == want
    assert rest == "and 2 more: -n 0 shows all"


def test_connections_alone_are_shared_out_where_no_bytes_are_known() -> None:
    """A source without bytes still tells what crosses zones, in connections."""
    table = small_table()
    table.has_bytes = False
    table.rows = {
        key: FlowCounts(counts.connections, counts.refused, counts.unanswered)
        for key, counts in table
    }
    lines = shown(table)
    assert lines[0].startswith("total  117 of 425 connections cross zones (28 %), 3 failed")
    assert lines[3:5] == [
        "service           in zone  cross zone  same zone  conn  failed  most from → to",
        "shop/web             73 %         110        300   410       3  zone-a → zone-b",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120, 200])
def test_every_width_is_kept(width: int) -> None:
    """Narrow terminals lose columns and parts of names; no line is longer than they are wide."""
    table = small_table()
    table.add(flow("a-name-of-sixty-three-characters-" + "x" * 30, A, B), FlowCounts(1, 0, 0, 9, 9))
    table.notes.append("agent n7 does not answer: connection refused, so its last counts stay")
    lines = shown(table, later=small_table(), width=width)
    assert any(line.startswith("shop/web") for line in lines)
    (head,) = [line for line in lines if line.startswith("service")]
    assert ("cross zone/s" in head) == (width >= 30)


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    """Names of pods are cut in the middle, and get more of the width if they look the same."""
    table = FlowTable()
    for suffix in ("7d4b9-x2x4z", "7d4b9-q8w5k", "66c77-x2x4z"):
        client = f"a-namespace/the-frontend-of-the-shop-for-customers-{suffix}"
        table.add(flow("web", A, B, client=client), FlowCounts(1, 0, 0, 10, 10))
    lines = shown(table, by=FlowGrouping.CLIENT, width=60)[-3:]
    names = {line.split("  ")[0] for line in lines}
    assert len(names) == 3
    assert all(name.startswith("a-names") and "…" in name for name in names)


def test_hostile_names_cannot_write_to_the_terminal() -> None:
    """Escape sequences, line ends and wide signs of names become visible text in their column."""
    table = FlowTable()
    table.add(flow("\x1b[2Jgone\nservice  0 %", A, B), FlowCounts(1, 0, 0, 10, 10))
    table.add(flow("漢字漢字漢字漢字漢字漢字", A, "\x1b]0;t\x07"), FlowCounts(1, 0, 0, 10, 10))
    table.notes.append("\x1b[31mred")
    for width in (30, 100):
        text = "\n".join(shown(table, width=width))
        assert "\x1b" not in text
        assert "\x07" not in text
        assert text.count("service") in (2, 3)


def test_an_empty_table_says_that_nothing_was_counted() -> None:
    """No traffic is a total of 0, and no line."""
    assert shown(FlowTable()) == [
        "total  0 B of 0 B cross zones, 0 connections, 0 failed, 3 sources",
        "",
        "service           in zone  cross zone  same zone  conn  failed",
    ]


@pytest.mark.parametrize(
    ("number", "want"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_949, "99.9 kB"), (5e20, "500 EB")],
)
def test_bytes_are_short(number: float, want: str) -> None:
    """A number of bytes has at most three digits and its unit."""
    assert show_bytes(number) == want


@pytest.mark.parametrize(
    ("seconds", "want"),
    [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_000, "1 d 1 h")],
)
def test_periods_are_short(seconds: float, want: str) -> None:
    """A period has its two largest units."""
    assert show_seconds(seconds) == want
