"""An agent beside a kernel and a clock that do not do what it needs."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.flow_table import Detail, FlowTable
from keepclose.flows.collector import Collector, ConntrackUnavailableError
from keepclose.flows.flow_rows import FlowRows
from keepclose.flows.ledger import Ledger
from keepclose.kube.clock import SystemClock
from keepclose.kube.requests import PODS
from keepclose.system.conntrack import (
    ConntrackEvents,
    TrackedConnection,
    read_conntrack_state,
)
from keepclose.system.netlink import NETFILTER, NetlinkSocket, netfilter_head
from support.conntrack_table import add_connections
from support.flowbeds import CLIENT, SERVER, SERVICE, WEB, FlowBed, flow_bed, flows_of, pod

YEAR_S = 365 * 86_400.0


class AdjustableClock(SystemClock):
    """The clock of the machine, whose wall-clock time a test sets."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now(self) -> float:
        """Return the wall-clock time."""
        return super().now() + self.ahead_s


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
async def test_a_wall_clock_that_jumps(jump_s: float) -> None:
    """The period stays as long as counting took, and an address belongs to its owner in time."""
    clock = AdjustableClock()
    with flow_bed() as bed, bed.listen():
        async with bed.agent(clock=clock, detail=Detail(workloads=True)) as agent:
            began = clock.monotonic()
            bed.connect(SERVICE, 80).close()
            await flows_of(agent)
            clock.ahead_s = jump_s
            await replace_client(bed, agent.book)
            bed.connect(SERVICE, 80).close()
            rows = dict(await flows_of(agent))
            table = agent.table
            most_s = clock.monotonic() - began + 60
    assert {key.client: counts.connections for key, counts in rows.items()} == {
        "default/client": 1,
        "default/other": 1,
    }
    assert 0 < table.end - table.start < most_s


@pytest.mark.parametrize("jump_s", [YEAR_S, -YEAR_S])
async def test_a_wall_clock_that_is_set_between_two_agents(tmp_path: Path, jump_s: float) -> None:
    """The next agent continues with the period of the last one, and ends it at the new time."""
    clock = AdjustableClock()
    began = clock.monotonic()

    async def count(bed: FlowBed) -> FlowTable:
        async with bed.agent(clock=clock, checkpoint=tmp_path / "flows") as agent:
            bed.connect(SERVICE, 80).close()
            rows = dict(await flows_of(agent))
            assert list(rows) == [WEB]
            return agent.table

    with flow_bed() as bed, bed.listen():
        first = await count(bed)
        clock.ahead_s = jump_s
        second = await count(bed)
    assert second.rows[WEB].connections == 2
    assert first.end - first.start < second.end - second.start
    assert second.end - second.start < clock.monotonic() - began + 60
    assert abs(second.end - clock.now()) < clock.monotonic() - began + 60


async def replace_client(bed: FlowBed, book: AddressBook) -> None:
    """Give the address of the client to another pod, and wait until the agent knows."""
    changes = book.changes
    bed.cluster.delete(PODS, "client", namespace="default")
    bed.cluster.put(PODS, pod("other", "n1", CLIENT))
    async with asyncio.timeout(60):
        while book.changes < changes + 2:  # noqa: ASYNC110 - the book has no event
            await asyncio.sleep(0)


async def test_a_full_table() -> None:
    """Connections that find no room in the kernel's table are counted, logged and exported."""
    most = read_conntrack_state().most
    if not 0 < most <= 1 << 19:
        pytest.skip(f"a table of {most} connections is too large to be filled")
    with flow_bed() as bed, bed.listen():
        # NB: entries from before the first start, of which the agent counts later bytes only.
        add_connections(bed.node, most + 1, source="10.244.1.64", destination=SERVER)
        with capture_logs() as logs:
            async with bed.agent() as agent:
                before = agent.collector.table_full
                with pytest.raises(TimeoutError):
                    bed.client.do(partial(socket.create_connection, (SERVICE, 80), 0.5))
                rows = await flows_of(agent, walks=True)
                metrics = agent.metrics.page().decode()
                state, full = agent.collector.state, agent.collector.table_full
    assert state is not None
    assert state.number >= most
    assert full > before
    assert f"\nkeepclose_flows_table_full_total {full}\n" in metrics
    assert sum(counts.connections for counts in rows.values()) == 0
    warnings = [log for log in logs if "nearly full" in log["event"]]
    assert [(log["most"], log["fix"]) for log in warnings] == [
        (most, "raise net.netfilter.nf_conntrack_max")
    ]


def new_collector(**seams: Any) -> Collector:
    """Return a collector that feeds an empty ledger."""
    clock = SystemClock()
    rows = FlowRows(AddressBook(), node="n1", detail=Detail(), now=clock.monotonic)
    return Collector(Ledger(rows), clock=clock, walk_s=60.0, buffer_bytes=1 << 16, **seams)


def test_a_kernel_that_lists_no_connections() -> None:
    """If the kernel has netfilter but no listing of connections, the fix is the module."""

    def list_what_is_missing() -> Iterator[list[TrackedConnection]]:
        # A subsystem of netfilter that no kernel has.
        netlink = NetlinkSocket(NETFILTER, seconds=60)
        try:
            for _ in netlink.dump_parts(0x7F01, netfilter_head(socket.AF_INET), what="x"):
                yield []
        finally:
            netlink.close()

    collector = new_collector(open_walk=list_what_is_missing)
    with pytest.raises(ConntrackUnavailableError, match="tracks no connections") as caught:
        collector.open()
    assert "modprobe nf_conntrack_netlink" in caught.value.fix
    assert not caught.value.needs_privilege


@pytest.mark.parametrize("code", [errno.EPROTONOSUPPORT, errno.ENOENT, errno.EINVAL])
def test_a_kernel_without_events(code: int) -> None:
    """A socket that the kernel does not give is the same error, and nothing stays open."""

    def fail(_size: int) -> ConntrackEvents:
        raise OSError(code, "no such thing")

    collector = new_collector(open_events=fail)
    with pytest.raises(ConntrackUnavailableError, match="tracks no connections: no such thing"):
        collector.open()
    collector.close()
