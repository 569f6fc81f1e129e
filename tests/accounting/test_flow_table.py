"""Tables of flows: sums, less detail, differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.accounting.flow_table import (
    ALL_DETAIL,
    NO_ZONE,
    OUTSIDE,
    REST,
    UNKNOWN,
    ZONES_ONLY,
    Detail,
    FlowCounts,
    FlowKey,
    FlowKind,
    FlowTable,
    count_between,
)

_ZONES = st.sampled_from(("zone-a", "zone-b", OUTSIDE, UNKNOWN, NO_ZONE))
_NAMES = st.sampled_from(("", "a", "b", "c"))
_KEYS = st.builds(
    FlowKey,
    kind=st.sampled_from(FlowKind),
    namespace=_NAMES,
    service=_NAMES,
    port=_NAMES,
    client_zone=_ZONES,
    endpoint_zone=_ZONES,
    client_node=_NAMES,
    endpoint_node=_NAMES,
    client=_NAMES,
    endpoint=_NAMES,
)
_COUNTS = st.builds(
    FlowCounts, *(st.integers(0, 10) for _ in range(3)), *(st.integers(0, 10**12),) * 2
)
_ROWS = st.lists(st.tuples(_KEYS, _COUNTS), max_size=20)


def _table(rows: list[tuple[FlowKey, FlowCounts]]) -> FlowTable:
    table = FlowTable(start=1.0, end=2.0)
    for key, counts in rows:
        table.add(key, counts)
    return table


@given(rows=_ROWS, detail=st.builds(Detail, st.booleans(), st.booleans(), st.booleans()))
def test_less_detail_loses_no_count(rows: list[tuple[FlowKey, FlowCounts]], detail: Detail) -> None:
    """Totals stay the same with less detail, and the dropped fields are empty."""
    table = _table(rows)
    reduced = table.reduced(detail)
    assert reduced.total() == table.total()
    assert detail.nodes or all(not key.client_node and not key.endpoint_node for key, _ in reduced)
    assert detail.workloads or all(not key.client for key, _ in reduced)
    assert detail.pods or all(not key.endpoint for key, _ in reduced)
    assert table.reduced(ALL_DETAIL).rows == table.rows


@given(rows=_ROWS, most=st.integers(0, 5))
def test_the_rest_is_summed(rows: list[tuple[FlowKey, FlowCounts]], most: int) -> None:
    """A limited table has at most so many Services, and the same totals by zones."""
    table = _table(rows)
    limited = table.limited(most)
    services = {(key.namespace, key.service) for key, _ in limited if key.service}
    assert len(services - {("", REST)}) <= most
    assert limited.total() == table.total()
    for zone in ("zone-a", "zone-b"):
        from_zone = table.selected(lambda key, zone=zone: key.client_zone == zone)  # type: ignore[misc]
        assert limited.selected(lambda key, zone=zone: key.client_zone == zone).total() == (  # type: ignore[misc]
            from_zone.total()
        )


def test_the_services_with_most_bytes_between_zones_are_kept() -> None:
    """Bytes between zones count before all bytes, and all bytes before connections."""
    rows = [
        (FlowKey(service="idle", client_zone="a", endpoint_zone="b"), FlowCounts(9)),
        (FlowKey(service="home", client_zone="a", endpoint_zone="a"), FlowCounts(1, 0, 0, 500)),
        (FlowKey(service="away", client_zone="a", endpoint_zone="b"), FlowCounts(1, 0, 0, 5)),
    ]
    assert {key.service for key, _ in _table(rows).limited(1)} == {"away", REST}
    assert {key.service for key, _ in _table(rows).limited(2)} == {"away", "home", REST}


@given(first=_ROWS, later=_ROWS)
def test_a_difference_is_what_was_added(
    first: list[tuple[FlowKey, FlowCounts]], later: list[tuple[FlowKey, FlowCounts]]
) -> None:
    """What was counted since an earlier table is what was added to it, without empty rows."""
    earlier, now = _table(first), _table(first)
    now.merge(_table(later))
    added = {key: counts for key, counts in _table(later) if not counts.is_empty}
    assert now.since(earlier).rows == added


def test_a_source_that_began_again() -> None:
    """A count that fell began again from 0: all of it was counted since."""
    key = FlowKey(service="web")
    before, now = _table([(key, FlowCounts(10, 0, 0, 100))]), _table([(key, FlowCounts(3))])
    assert now.since(before).rows == {key: FlowCounts(3)}


def test_sources_are_subtracted_one_by_one() -> None:
    """A source that restarted counts again, and one that is read for the first time does not."""
    key = FlowKey(service="web")

    def counted(connections: int, *, start: float = 1.0, end: float = 2.0) -> FlowTable:
        table = FlowTable(start=start, end=end)
        table.add(key, FlowCounts(connections))
        return table

    before = {"n1": counted(10), "n2": counted(900), "n3": counted(5), "gone": counted(7)}
    now = {
        "n1": counted(12, end=10.0),
        "n2": counted(3, start=8.0, end=10.0),
        "n3": counted(6, start=8.0, end=10.0),
        "new": counted(5000),
    }
    between = count_between(before, now)
    assert between.rows == {key: FlowCounts(2 + 3 + 6)}
    assert between.notes == [
        "new did not answer at the start, so its flows are missing",
        "gone did not answer at the end, so its flows are missing",
    ]


def test_tunnels_are_not_in_totals() -> None:
    """Packets of an overlay carry connections that are counted already."""
    rows = [
        (FlowKey(FlowKind.TUNNEL), FlowCounts(1, 0, 0, 1000)),
        (FlowKey(FlowKind.POD), FlowCounts(2, 0, 0, 10)),
    ]
    assert _table(rows).total() == FlowCounts(2, 0, 0, 10)


@pytest.mark.parametrize(
    ("client", "endpoint", "crosses", "within"),
    [
        ("a", "b", True, False),
        ("a", "a", False, True),
        ("a", OUTSIDE, False, False),
        (UNKNOWN, UNKNOWN, False, False),
        (NO_ZONE, "a", False, False),
        ("", "", False, False),
    ],
)
def test_only_known_zones_are_crossed(
    client: str, endpoint: str, *, crosses: bool, within: bool
) -> None:
    """Names in brackets are no zones: nothing crosses to them or stays within them."""
    key = ZONES_ONLY.reduce(FlowKey(client_zone=client, endpoint_zone=endpoint))
    assert (key.crosses_zones, key.is_within_zone) == (crosses, within)


def test_merged_tables_span_both_periods() -> None:
    """The period of merged tables begins with the first and ends with the last; notes are kept."""
    first = FlowTable(start=10.0, end=20.0, notes=["a"])
    first.merge(FlowTable(start=5.0, end=15.0, has_bytes=False, notes=["a", "b"]))
    assert (first.start, first.end, first.seconds) == (5.0, 20.0, 15.0)
    assert (first.has_bytes, first.notes) == (False, ["a", "b"])
