"""What flow agents count becomes rates by Service."""

from __future__ import annotations

import asyncio

import msgspec

from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowKind, FlowTable
from keepclose.cli.dashboard.feed import Feed
from keepclose.cli.dashboard.live_flows import FLOWS_TOPIC, follow_flows, measure_rates
from keepclose.cli.flows_top import Readings
from keepclose.cli.render.flows_table import FlowReading
from keepclose.runtime.program import Parts
from keepclose.testing.api_server import PATIENCE
from keepclose.testing.fake_clock import FakeClock


def table_of(rows: dict[tuple[str, str, str], int], kind: FlowKind = FlowKind.SERVICE) -> FlowTable:
    """Return a table of connections with 100 bytes each, by Service and zones."""
    table = FlowTable()
    for (name, client, endpoint), connections in rows.items():
        key = FlowKey(
            kind=kind,
            namespace="shop",
            service=name,
            client_zone=client,
            endpoint_zone=endpoint,
        )
        table.add(key, FlowCounts(connections=connections, response_bytes=100 * connections))
    return table


def test_rates_are_sums_of_a_second_by_zones() -> None:
    """Direct connections of pods are none of a Service; names are made visible."""
    later = table_of({("web", "zone-a", "zone-b"): 20, ("web", "z\x1b", "zone-b"): 10})
    later.merge(table_of({("db", "zone-a", "zone-a"): 5}, FlowKind.POD))
    rates = measure_rates(FlowReading(FlowTable(), later, 10.0, 1))
    assert msgspec.to_builtins(rates) == {
        "shop/web": [[r"z\x1b", "zone-b", 1.0, 100.0], ["zone-a", "zone-b", 2.0, 200.0]]
    }


def test_one_reading_has_no_rate() -> None:
    """What was counted before the dashboard started says nothing about now."""
    table = table_of({("web", "zone-a", "zone-b"): 20})
    assert measure_rates(FlowReading(table, None, 0.0, 1, (table,))) == {}


async def test_agents_are_read_only_while_a_browser_follows() -> None:
    """Rates come with the second reading, and go with the agents."""
    feed, clock = Feed(), FakeClock()
    counts = [10]
    asked = asyncio.Event()
    has_agents = True

    async def read() -> Readings | None:
        asked.set()
        counts[0] += 50
        rows = {("web", "zone-a", "zone-b"): counts[0]}
        return Readings({"n1": table_of(rows)}, {}) if has_agents else None

    parts = Parts((follow_flows(read, feed, clock=clock),))
    try:
        await clock.advance(20.0)
        assert not asked.is_set()
        stream = feed.open_stream()
        async with asyncio.timeout(PATIENCE):
            while feed.find(FLOWS_TOPIC, "shop/web") is None:
                await clock.advance(5.0)
        ((client, endpoint, connections, size),) = msgspec.json.decode(
            feed.find(FLOWS_TOPIC, "shop/web") or b""
        )
        assert (client, endpoint) == ("zone-a", "zone-b")
        assert size >= connections > 0
        has_agents = False
        async with asyncio.timeout(PATIENCE):
            while feed.find(FLOWS_TOPIC, "shop/web") is not None:
                await clock.advance(5.0)
        stream.close()
    finally:
        await parts.stop()
