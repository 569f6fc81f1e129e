"""The metrics of an agent: bounded in number, never falling, and safe from names."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from keepclose.accounting.flow_table import REST, ZONES_ONLY, Detail, FlowCounts, FlowKey, FlowTable
from keepclose.flows.metrics import AgentCounts, FlowMetrics, ShownFlows
from keepclose.flows.process import join_lines


def table_of(amounts: dict[str, int]) -> FlowTable:
    """Return a table with a flow for each Service."""
    table = FlowTable()
    for name, amount in amounts.items():
        key = FlowKey(namespace="default", service=name, client_zone="a", endpoint_zone="b")
        table.add(key, FlowCounts(1, request_bytes=amount))
    return table


@given(st.lists(st.lists(st.integers(0, 50), min_size=6, max_size=6), max_size=8))
def test_shown_counts_never_fall_and_add_up(growth: list[list[int]]) -> None:
    """Whichever Services have names, each series only grows and the sum is that of all flows."""
    shown = ShownFlows(2)
    amounts = [0] * 6
    before = FlowTable()
    for step in growth:
        amounts = [amount + more for amount, more in zip(amounts, step, strict=True)]
        table = table_of({f"s{index}": amount for index, amount in enumerate(amounts)})
        now = shown.update(table)
        assert now.total() == table.total()
        assert len({key.service for key in now.rows} - {REST}) <= 4
        for key, counts in now:
            earlier = before.rows.get(key, FlowCounts())
            assert counts.request_bytes >= earlier.request_bytes
            before.rows[key] = FlowCounts(request_bytes=counts.request_bytes)


def test_a_restart_shows_what_was_shown_before() -> None:
    """Names and the rest continue from a checkpoint as they were."""
    shown = ShownFlows(1)
    table = table_of({"a": 100, "b": 50, "c": 10})
    shown.update(table)
    table = table_of({"a": 100, "b": 500, "c": 10})
    want = shown.update(table)
    later = ShownFlows(1)
    later.load(table, shown.state())
    assert later.update(table).rows == want.rows


def test_hostile_names_stay_inside_their_labels() -> None:
    """Quotes, backslashes and line ends of a name cannot end a label or begin a line."""
    table = table_of({'x"} 1\nevil{a="\\': 7})
    metrics = FlowMetrics(ZONES_ONLY, table=lambda: table, counts=AgentCounts)
    lines = metrics.page().decode().splitlines()
    assert [line for line in lines if line.startswith("evil")] == []
    assert any(r'service="x\"} 1\nevil{a=\"\\"' in line for line in lines)


def test_detail_adds_labels() -> None:
    """Nodes, workloads and pods are labels only if they are told apart."""
    table = table_of({"web": 7})
    everything = Detail(nodes=True, workloads=True, pods=True)
    names = {
        label
        for detail in (ZONES_ONLY, everything)
        for _, _, labels, _ in FlowMetrics(
            detail, table=lambda: table, counts=AgentCounts
        ).families()
        for label in labels
    }
    assert {"client_node", "endpoint_node", "client", "endpoint"} <= names


async def test_others_run_while_a_large_page_is_written() -> None:
    """A page of many flows is whole and of one moment, and probes need not wait for its end."""
    flows = {f"s{number}": number for number in range(2000)}
    tables = [table_of(flows)]
    metrics = FlowMetrics(ZONES_ONLY, table=lambda: tables[0], counts=AgentCounts)
    want = metrics.page()
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            tables[0] = FlowTable()
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    body = await join_lines(metrics.lines())
    counting.cancel()
    await asyncio.gather(counting, return_exceptions=True)
    assert body == want
    assert turns >= 10
