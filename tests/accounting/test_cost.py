"""Price tables, and what flows cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.accounting.cost import (
    MONTH_HOURS,
    YEAR_HOURS,
    CostError,
    CostGrouping,
    CostReport,
    price_flows,
    show_duration,
)
from keepclose.accounting.flow_table import (
    HOST,
    NO_ZONE,
    OUTSIDE,
    UNKNOWN,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
)
from keepclose.accounting.prices import PRESETS, PriceError, PriceTable, read_prices
from keepclose.kube.yaml_nodes import YamlLimits
from keepclose.kube.yaml_values import read_yaml

GB = 10**9
FREE = {"sent": 0, "received": 0}


def prices(*pairs: dict[str, Any], **fields: Any) -> PriceTable:
    """Return a table in which traffic within a zone is free."""
    table = {"currency": "EUR", "per": "GB", "sameZone": FREE, "betweenZones": list(pairs)}
    return read_prices({**table, **fields}, name="prices.yaml")


def table_of(*rows: tuple[FlowKey, FlowCounts], hours: float = 1.0) -> FlowTable:
    """Return the flows of some hours."""
    table = FlowTable(start=1_767_225_600.0, end=1_767_225_600.0 + hours * 3600)
    for key, counts in rows:
        table.add(key, counts)
    return table


def key(source: str, destination: str, **fields: Any) -> FlowKey:
    """Return the flow of a Service between two zones."""
    known = {"namespace": "shop", "service": "web", **fields}
    return FlowKey(client_zone=source, endpoint_zone=destination, **known)


def bytes_of(request: int, response: int) -> FlowCounts:
    """Return counts of bytes."""
    return FlowCounts(1, 0, 0, request, response)


def priced(table: FlowTable, rates: PriceTable, *, by: CostGrouping) -> CostReport:
    """Return the costs of one table."""
    return price_flows([table], rates, by=by)


def amounts(report: CostReport) -> dict[str, float]:
    """Return the costs of the period by name."""
    return {line.name: round(line.amount, 9) for line in report.lines}


def test_each_direction_has_its_own_price() -> None:
    """Requests pay the price to the endpoint's zone, responses the price back."""
    table = prices(
        {"from": "a", "to": "b", "sent": 1, "received": 2},
        {"from": "b", "to": "a", "sent": 10},
    )
    report = priced(table_of((key("a", "b"), bytes_of(GB, 5 * GB))), table, by=CostGrouping.ZONES)
    assert amounts(report) == {"b -> a": 50.0, "a -> b": 3.0}
    assert report.total.amount == 53.0


@pytest.mark.parametrize(
    ("by", "want"),
    [
        (CostGrouping.SERVICE, {"data/kafka": 4.0, "shop/web": 3.0, "(pod)": 1.0}),
        (CostGrouping.NAMESPACE, {"data": 4.0, "shop": 3.0, "(pod)": 1.0}),
        (CostGrouping.CLIENT, {"shop/cart": 5.0, HOST: 3.0}),
        (CostGrouping.ZONES, {"a -> b": 8.0, "a -> a": 0.0}),
    ],
)
def test_costs_are_summed_by(by: CostGrouping, want: dict[str, float]) -> None:
    """The same flows by Service, namespace, client workload and pair of zones; highest first."""
    flows = table_of(
        (key("a", "b", client=HOST), bytes_of(3 * GB, 0)),
        (key("a", "a", client=HOST), bytes_of(9 * GB, 0)),
        (key("a", "b", namespace="data", service="kafka", client="shop/cart"), bytes_of(4 * GB, 0)),
        (FlowKey(FlowKind.POD, "", "", "", "TCP", "a", "b", client="shop/cart"), bytes_of(GB, 0)),
    )
    report = priced(flows, prices({"from": "*", "to": "*", "sent": 1}), by=by)
    assert amounts(report) == want
    assert list(amounts(report)) == list(want)


def test_a_period_is_extrapolated() -> None:
    """A day of 24 gives an hour of 1, a month of 730 and a year of 8,760."""
    flows = table_of((key("a", "b"), bytes_of(24 * GB, 0)), hours=24)
    report = priced(flows, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.SERVICE)
    hours = [report.extrapolate(report.total, hours) for hours in (1, MONTH_HOURS, YEAR_HOURS)]
    assert hours == [1.0, 730.0, 8760.0]
    assert report.warnings == []


def test_a_short_period_and_an_unknown_one_are_warned_about() -> None:
    """Ten minutes say little about a month, and no period says nothing."""
    rates = prices({"from": "*", "to": "*", "sent": 1})
    row = (key("a", "b"), bytes_of(GB, 0))
    short = priced(table_of(row, hours=1 / 6), rates, by=CostGrouping.SERVICE)
    assert short.warnings == [
        "the period is short, 10 minutes: traffic of other hours may differ much"
    ]
    unknown = priced(table_of(row, hours=0), rates, by=CostGrouping.SERVICE)
    assert unknown.extrapolate(unknown.total, MONTH_HOURS) is None
    assert unknown.warnings == [
        "the flows do not say their period, so nothing is extrapolated: name it with --period"
    ]


NOW = 1_767_225_600.0


def observed(
    *periods: tuple[float, float, int], client: str = ""
) -> tuple[list[FlowTable], list[float]]:
    """Return tables of an amount of GB between two hours before now, and the rates of an hour."""
    tables = []
    for start, end, amount in periods:
        table = FlowTable(start=NOW - start * 3600, end=NOW - end * 3600)
        table.add(key("a", "b", client=client), bytes_of(amount * GB, 0))
        tables.append(table)
    return tables, [amount / (start - end) for start, end, amount in periods]


def test_each_source_is_extrapolated_by_its_own_period() -> None:
    """An agent of a month with 1 GB an hour and one of an hour with 100 GB send 101 GB an hour."""
    tables, rates = observed((720, 0, 720), (1, 0, 100))
    report = price_flows(
        tables, prices({"from": "*", "to": "*", "sent": 0.02}), by=CostGrouping.ZONES
    )
    assert sum(rates) == 101
    assert report.extrapolate(report.total, MONTH_HOURS) == pytest.approx(1474.60)
    assert report.extrapolate(report.lines[0], 1) == pytest.approx(2.02)
    assert [(period.hours, period.sources) for period in report.periods] == [(720, 1), (1, 1)]
    assert report.total.amount == pytest.approx(820 * 0.02)


@pytest.mark.parametrize(
    ("periods", "want", "shown"),
    [
        pytest.param([(48, 24, 24), (24, 0, 48)], 1.5, [(48, 1)], id="two days in turn"),
        pytest.param([(24, 0, 24), (24, 0, 48)], 3.0, [(24, 2)], id="two nodes at once"),
        pytest.param([(24, 0, 24), (23.5, 0, 47)], 2.96, [(24, 2)], id="about the same time"),
        pytest.param(
            [(24, 0, 24), (48, 24.5, 47), (2, 0, 2)], 2.47, [(47.5, 1), (2, 1)], id="three"
        ),
        pytest.param([(72, 36, 36), (24, 0, 24)], 1.0, [(60, 1)], id="a gap"),
    ],
)
def test_periods_in_turn_are_of_one_source(
    periods: list[tuple[float, float, int]], want: float, shown: list[tuple[float, int]]
) -> None:
    """Rates of periods that overlap are added; those of periods in turn are averaged."""
    tables, _ = observed(*periods)
    report = price_flows(tables, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.ZONES)
    assert report.extrapolate(report.total, 1) == pytest.approx(want, rel=0.02)
    assert [(period.hours, period.sources) for period in report.periods] == shown


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_day_without_traffic_is_a_day(*, empty_first: bool) -> None:
    """A table without flows lengthens the period of the source that it follows or precedes."""
    busy = (key("a", "b"), bytes_of(100 * GB, 0))
    days = [table_of(hours=24), table_of(busy, hours=24)]
    if not empty_first:
        days.reverse()
    days[1].start, days[1].end = days[0].end, days[0].end + 86_400
    rates = prices({"from": "*", "to": "*", "sent": 0.01, "received": 0})
    report = price_flows(days, rates, by=CostGrouping.SERVICE)
    assert [(period.hours, period.sources) for period in report.periods] == [(48, 1)]
    assert report.extrapolate(report.total, 48) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("later", "hours", "want"),
    [
        pytest.param(2 * GB, 2.0, True, id="a later reading"),
        pytest.param(2 * GB, 1.0, False, id="another node of the same hour"),
        pytest.param(GB // 2, 2.0, False, id="less than before"),
    ],
)
def test_two_readings_of_an_agent_are_warned_about(later: int, hours: float, *, want: bool) -> None:
    """Tables that begin at the same moment, of which one has grown, may be of one agent."""
    first = table_of((key("a", "b"), bytes_of(GB, 0)))
    second = table_of((key("a", "b"), bytes_of(later, 0)), hours=hours)
    rates = prices({"from": "*", "to": "*", "sent": 0.01, "received": 0})
    for tables in ([first, second], [second, first]):
        report = price_flows(tables, rates, by=CostGrouping.SERVICE)
        assert any("readings of one agent" in warning for warning in report.warnings) is want


def test_one_unknown_period_makes_all_unknown() -> None:
    """A sum without the rate of one source would be too low."""
    tables, _ = observed((24, 0, 24))
    tables.append(table_of((key("a", "b"), bytes_of(GB, 0)), hours=0))
    report = price_flows(tables, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.ZONES)
    assert report.extrapolate(report.total, 1) is None


def test_a_short_period_of_one_source_is_warned_about() -> None:
    """The note says of how many sources."""
    tables, _ = observed((24, 0, 24), (0.5, 0, 1))
    report = price_flows(tables, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.ZONES)
    assert report.warnings == [
        "the period of 1 of 2 sources is short, 30 minutes: traffic of other hours may differ much"
    ]


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (1, "1 second"),
        (23.76, "23.8 seconds"),
        (60, "1 minute"),
        (600, "10 minutes"),
        (3600, "1 hour"),
        (86_400, "24 hours"),
        (30 * 86_400, "30 days"),
    ],
)
def test_durations_are_in_the_unit_of_people(seconds: float, want: str) -> None:
    """No fractions of minutes, and one hour is no plural."""
    assert show_duration(seconds) == want


def test_what_has_no_price_is_never_free() -> None:
    """Bytes without a price are reported with the reason, and are in no sum."""
    flows = table_of(
        (key("a", OUTSIDE), bytes_of(1, 0)),
        (key("a", UNKNOWN), bytes_of(2, 0)),
        (key(NO_ZONE, "a"), bytes_of(4, 0)),
        (key("a", "c"), bytes_of(8, 0)),
        (key("a", "a"), bytes_of(16, 0)),
    )
    rates = prices({"from": "a", "to": "b", "sent": 1}, sameZone=None)
    report = priced(flows, rates, by=CostGrouping.SERVICE)
    assert sorted(report.unpriced.values()) == [1, 2, 4, 8, 16]
    assert (report.lines, report.total.bytes) == ([], 0)


def test_outside_has_one_side_that_pays() -> None:
    """What leaves the cluster is sent, what enters it is received."""
    flows = table_of((key("a", OUTSIDE), bytes_of(GB, 2 * GB)))
    report = priced(flows, prices(outside={"sent": 0.09, "received": 0.001}), by=CostGrouping.ZONES)
    assert amounts(report) == {f"a -> {OUTSIDE}": 0.09, f"{OUTSIDE} -> a": 0.002}
    assert report.total.crossing_bytes == 0


def test_tunnels_and_links_are_not_priced() -> None:
    """The content of an overlay's packets is counted already, and a link is no zone."""
    flows = table_of(
        (key("a", "b", kind=FlowKind.TUNNEL), bytes_of(GB, 0)),
        (key("a", "b", kind=FlowKind.LOCAL), bytes_of(GB, 0)),
    )
    report = priced(flows, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.ZONES)
    assert report.total.amount == 0
    assert report.warnings[0].startswith("packets of an overlay are not priced")


def test_connections_alone_have_no_cost() -> None:
    """A table without bytes is an error, not a bill of 0."""
    flows = table_of((key("a", "b"), FlowCounts(5)))
    flows.has_bytes = False
    with pytest.raises(CostError, match="connections only, no bytes"):
        priced(flows, prices(), by=CostGrouping.SERVICE)


def test_flows_without_clients_say_it() -> None:
    """A sum by client of flows that name none would look like one client."""
    flows = table_of((key("a", "b"), bytes_of(GB, 0)))
    report = priced(flows, prices({"from": "*", "to": "*", "sent": 1}), by=CostGrouping.CLIENT)
    assert amounts(report) == {"(not recorded)": 1.0}
    assert report.warnings == [
        "the flows do not name clients: run the agents with --detail workloads"
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.sampled_from("abc"),
            st.integers(0, 10**15),
            st.integers(0, 10**15),
        ),
        max_size=10,
    )
)
def test_every_grouping_has_the_same_total(rows: list[tuple[str, str, int, int]]) -> None:
    """How costs are grouped changes no sum, and no byte is lost."""
    flows = table_of(*((key(a, b), bytes_of(sent, back)) for a, b, sent, back in rows))
    rates = prices({"from": "a", "to": "*", "sent": 3}, {"from": "*", "to": "a", "received": 5})
    reports = [priced(flows, rates, by=by) for by in CostGrouping]
    for report in reports:
        lines = sum(line.bytes for line in report.lines)
        assert lines == report.total.bytes
        assert lines + sum(report.unpriced.values()) == flows.total().total_bytes
        assert sum(line.amount for line in report.lines) == pytest.approx(report.total.amount)


@pytest.mark.parametrize(
    ("pattern", "zone", "want"),
    [
        ("*", "us-east-1a", True),
        ("us-east-1a", "us-east-1a", True),
        ("us-east-1a", "us-east-1b", False),
        ("us-east-1*", "us-east-1b", True),
        ("us-east-1*", "us-east-2b", False),
        ("*-1b", "us-east-1b", True),
        ("us-*-1*", "us-east-1b", True),
        ("us-*-1*b", "us-east-1b", True),
        ("aa*aa", "aaa", False),
        ("a**c", "abc", True),
        ("u.*", "us", False),
    ],
)
def test_stars_stand_for_any_text(pattern: str, zone: str, want: bool) -> None:
    """Regions are written as the beginning of their zones; nothing else is special."""
    rates = prices({"from": pattern, "to": "other", "sent": 1})
    assert (rates.price_function()(zone, "other") is not None) is want


def test_the_first_entry_that_matches_counts() -> None:
    """An exception stands before the rule."""
    rates = prices(
        {"from": "a", "to": "b", "sent": 7}, {"from": "*", "to": "*", "sent": 1}, per="GiB"
    )
    find = rates.price_function()
    assert [find("a", "b"), find("b", "a")] == [7 / 2**30, 1 / 2**30]


@pytest.mark.parametrize(
    ("name", "sent", "want"), [("aws", GB, 0.02), ("gcp", 2**30, 0.01), ("azure", GB, 0.0)]
)
def test_presets_are_read_and_dated(name: str, sent: int, want: float) -> None:
    """Each preset is a file that a user can edit; AWS charges a byte twice, Google once."""
    value, _ = read_yaml(PRESETS[name], YamlLimits())
    rates = read_prices(value, name=name)
    assert rates.date
    assert rates.source
    report = priced(table_of((key("a", "b"), bytes_of(sent, 0))), rates, by=CostGrouping.ZONES)
    assert report.total.amount == pytest.approx(want)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(None, "prices.yaml: Expected `object`, got `null`", id="empty"),
        pytest.param([], "Expected `object`, got `array`", id="list"),
        pytest.param({"per": "GB"}, "missing required field `currency`", id="currency"),
        pytest.param({"currency": "E", "per": "MB"}, "per: 'MB' is neither GB nor GiB", id="unit"),
        pytest.param({"currency": "E", "per": "GB", "x": 1}, "unknown field `x`", id="unknown"),
        pytest.param(
            {"currency": "E", "per": "GB", "betweenZones": [{"from": "a", "to": "b", "sent": "1"}]},
            "$.betweenZones[0].sent",
            id="text",
        ),
        pytest.param(
            {"currency": "E", "per": "GB", "betweenZones": [{"from": "a", "to": "b", "sent": -1}]},
            "betweenZones[0].sent: -1.0 is no price",
            id="negative",
        ),
        pytest.param(
            {"currency": "E", "per": "GB", "outside": {"received": float("nan")}},
            "outside.received: nan is no price",
            id="NaN",
        ),
        pytest.param(
            {"currency": "E", "per": "GB", "sameZone": {"sent": float("inf")}},
            "sameZone.sent: inf is no price",
            id="infinite",
        ),
    ],
)
def test_a_bad_price_table_is_named(value: object, want: str) -> None:
    """The message has the file and the field."""
    with pytest.raises(PriceError) as raised:
        read_prices(value, name="prices.yaml")
    assert want in str(raised.value)
