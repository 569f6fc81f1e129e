"""The traffic that flow agents count, as rates by Service, if the cluster has agents.

Agents are read only while a browser follows. A cluster without agents is asked again at times,
because they may come; it has no flows, which is no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from keepclose.accounting.flow_table import FlowKind
from keepclose.cli.dashboard.feed import Feed
from keepclose.cli.flows_top import AgentTables, Readings, Tally
from keepclose.demand.agent_pages import PageReader
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError
from keepclose.model.plain_text import make_plain
from keepclose.system.threads import ask_in_thread

if TYPE_CHECKING:
    from pathlib import Path

    from keepclose.cli.render.flows_table import FlowReading
    from keepclose.kube.client import Client

FLOWS_TOPIC: Final = "flows"
_EVERY_S: Final = 5.0
_WITHOUT_AGENTS_S: Final = 30.0
ReadFlows = Callable[[], Awaitable[Readings | None]]
"""Returns the tables of all agents; None if there are none."""


class FlowRate(msgspec.Struct, frozen=True, rename="camel", array_like=True):
    """What a Service sends from one zone to another."""

    client_zone: str
    endpoint_zone: str
    connections: float
    """A second."""
    bytes: float
    """A second, in both directions."""


def read_lab_flows(data_dir: Path) -> ReadFlows:
    """Return a reader of the agents of a lab."""
    from keepclose.lab.cluster.control import CallError, call_lab

    def ask() -> Readings | None:
        try:
            answer = call_lab(data_dir, "flows", {})
        except CallError:
            return None
        tables = AgentTables()
        for name, page in answer["flows"].items():
            tables.take(name, page.encode())
        return Readings(tables.tables, {})

    return lambda: ask_in_thread(ask)


def read_cluster_flows(client: Client, namespace: str, clock: Clock) -> ReadFlows:
    """Return a reader of the agents of a cluster, through its API server."""

    async def ask() -> Readings | None:
        tables = AgentTables()
        reader = PageReader(client, tables.take, clock=clock, page_within_s=_EVERY_S)
        try:
            await reader.read(namespace=namespace)
        except (KubeError, ValueError):
            return None
        return Readings(tables.tables, reader.errors)

    return ask


async def follow_flows(read: ReadFlows, feed: Feed, *, clock: Clock) -> None:
    """Publish rates by Service until cancelled."""
    tally: Tally | None = None
    while True:
        readings = await read() if len(feed) else None
        if readings is None or not readings.tables:
            tally = None
        elif tally is None:
            tally = Tally(readings)
        else:
            tally.take(readings)
        rates = {} if tally is None else measure_rates(tally.reading)
        for name in feed.names(FLOWS_TOPIC) - rates.keys():
            feed.publish(FLOWS_TOPIC, name, None)
        for name, flows in rates.items():
            feed.publish(FLOWS_TOPIC, name, flows)
        is_waiting = len(feed) and tally is None
        await clock.sleep(_WITHOUT_AGENTS_S if is_waiting else _EVERY_S)
        await asyncio.sleep(0)


def measure_rates(reading: FlowReading) -> dict[str, list[FlowRate]]:
    """Return the rates of Services that had traffic since the last reading."""
    sums: dict[str, dict[tuple[str, str], list[float]]] = {}
    for table, seconds in reading.recent:
        if seconds <= 0:
            continue
        for key, counts in table:
            if key.kind is not FlowKind.SERVICE or not (counts.connections or counts.total_bytes):
                continue
            pairs = sums.setdefault(f"{key.namespace}/{key.service}", {})
            pair = pairs.setdefault((key.client_zone, key.endpoint_zone), [0.0, 0.0])
            pair[0] += counts.connections / seconds
            pair[1] += counts.total_bytes / seconds
    return {
        make_plain(name): [
            FlowRate(make_plain(client), make_plain(endpoint), *(round(rate, 1) for rate in rates))
            for (client, endpoint), rates in sorted(pairs.items())
        ]
        for name, pairs in sums.items()
    }
