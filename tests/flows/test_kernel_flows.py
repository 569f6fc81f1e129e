"""What an agent counts of real connections through a real kernel."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import struct
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from keepclose.accounting.cost import CostGrouping, price_flows
from keepclose.accounting.flow_files import read_csv, write_csv
from keepclose.accounting.flow_table import Detail, FlowCounts, FlowKind
from keepclose.accounting.prices import PriceTable
from keepclose.flows.agent import FlowAgent
from keepclose.flows.checkpoint import (
    Checkpoint,
    LedgerState,
    boot_id,
    encode_checkpoint,
    own_namespace,
)
from keepclose.flows.process import flow_pages
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.requests import PODS
from keepclose.system.conntrack import walk_connections
from support.flowbeds import CLIENT, SERVER, SERVICE, SERVICE6, WEB, flow_bed, flows_of, pod

DNS = WEB._replace(port="dns", protocol="UDP")


@pytest.mark.parametrize(
    "address", [pytest.param(SERVICE, id="IPv4"), pytest.param(SERVICE6, id="IPv6")]
)
async def test_connections_to_a_service(address: str) -> None:
    """Each connection through a Service counts once, with the bytes of both directions."""
    with flow_bed() as bed, bed.listen() as listener:
        async with bed.agent() as agent:
            for _ in range(5):
                with bed.connect(address, 80) as client:
                    accepted, _ = listener.accept()
                    with accepted:
                        client.sendall(b"x" * 1000)
                        accepted.sendall(b"y" * 5000)
                        assert len(client.recv(5000, socket.MSG_WAITALL)) == 5000
            rows = await flows_of(agent, walks=True)
    assert set(rows) == {WEB}
    counts = rows[WEB]
    assert (counts.connections, counts.refused, counts.unanswered) == (5, 0, 0)
    assert 5_000 < counts.request_bytes < 10_000
    assert 25_000 < counts.response_bytes < 30_000


async def test_udp() -> None:
    """Datagrams of one client to one endpoint are one connection."""
    with flow_bed() as bed:
        server = bed.server.open_socket(kind=socket.SOCK_DGRAM)
        client = bed.client.open_socket(kind=socket.SOCK_DGRAM)
        with server, client:
            server.bind((SERVER, 5353))
            async with bed.agent() as agent:
                for _ in range(3):
                    client.sendto(b"q" * 100, (SERVICE, 53))
                    data, sender = server.recvfrom(1000)
                    server.sendto(data, sender)
                    assert client.recv(1000) == data
                rows = await flows_of(agent, walks=True)
    assert rows == {DNS: FlowCounts(1, 0, 0, 3 * 128, 3 * 128)}


async def test_a_refused_connection() -> None:
    """A connection that the endpoint resets at once is refused, and still counts."""
    with flow_bed() as bed:
        async with bed.agent() as agent:
            with pytest.raises(ConnectionRefusedError):
                bed.connect(SERVICE, 80)
            rows = await flows_of(agent)
    assert rows[WEB].connections == rows[WEB].refused == 1


async def test_an_unanswered_connection() -> None:
    """A connection whose endpoint sends nothing is not answered once the kernel gives it up."""
    with flow_bed() as bed:
        bed.node.set_values({"netfilter/nf_conntrack_tcp_timeout_syn_sent": 1})
        bed.server.run("ip", "link", "set", "eth0", "down")
        client = bed.client.open_socket()
        with client:
            client.setblocking(False)
            async with bed.agent() as agent:
                with pytest.raises(BlockingIOError):
                    client.connect((SERVICE, 80))
                rows = await flows_of(agent)
                client.close()
                async with asyncio.timeout(60):
                    while not rows or not rows[WEB].unanswered:
                        await asyncio.sleep(0.1)
                        # NB: a walk removes entries whose time is over.
                        rows = await flows_of(agent, walks=True)
    assert rows[WEB].connections == rows[WEB].unanswered == 1


async def test_without_accounting_only_connections_count() -> None:
    """Where the kernel counts no bytes, connections count and the table says what is missing."""
    with flow_bed(accounts=False) as bed, bed.listen():
        async with bed.agent() as agent:
            bed.connect(SERVICE, 80).close()
            rows = await flows_of(agent)
            notes = agent.table.notes
            has_bytes = agent.table.has_bytes
    assert (rows[WEB].connections, rows[WEB].total_bytes, has_bytes) == (1, 0, False)
    assert "nf_conntrack_acct is 0" in notes[0]


async def test_a_kernel_that_reports_no_events() -> None:
    """Where events are switched off, a warning, a note and a metric say what is missing."""
    with flow_bed() as bed:
        bed.node.set_values({"netfilter/nf_conntrack_events": 0})
        with capture_logs() as logs:
            async with bed.agent() as agent:
                await flows_of(agent, walks=True)
                off, off_page = agent.table.notes, agent.metrics.page().decode()
                bed.node.set_values({"netfilter/nf_conntrack_events": 1})
                await flows_of(agent, walks=True)
                on, on_page = agent.table.notes, agent.metrics.page().decode()
    fixes = [log["fix"] for log in logs if "reports no events" in log["event"]]
    assert fixes == ["sysctl -w net.netfilter.nf_conntrack_events=1"]
    assert ["nf_conntrack_events is 0" in note for note in off] == [True]
    assert on == []
    assert "\nkeepclose_flows_events 0\n" in off_page
    assert "\nkeepclose_flows_events 1\n" in on_page


async def test_accounting_is_turned_on_when_wanted() -> None:
    """With the option, the agent sets the kernel's switch and bytes count."""
    with flow_bed(accounts=False) as bed, bed.listen():
        async with bed.agent(enables_accounting=True) as agent:
            bed.connect(SERVICE, 80).close()
            rows = await flows_of(agent, walks=True)
    assert rows[WEB].request_bytes > 0


async def test_lost_events_are_counted_and_repaired_by_a_walk() -> None:
    """With a buffer for a few events only, a walk finds the connections whose events are lost."""
    number = 200
    with flow_bed() as bed, bed.listen() as listener:
        async with bed.agent(buffer_bytes=2048) as agent:
            for _ in range(number):
                bed.connect(SERVICE, 80).close()
                listener.accept()[0].close()
            await agent.collector.drain()
            lost = agent.collector.lost
            rows = await flows_of(agent, walks=True)
    assert lost > 0
    assert rows[WEB].connections == number


async def test_a_killed_agent_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The next agent continues from the checkpoint, and reports the time between the two."""
    path = tmp_path / "flows"
    with flow_bed() as bed, bed.listen() as listener:
        async with bed.agent(checkpoint=path) as agent:
            client = bed.connect(SERVICE, 80)
            accepted, _ = listener.accept()
            client.sendall(b"x" * 1000)
            before = await flows_of(agent, walks=True)
            kept = path.read_bytes()
        # As if the agent had been killed after its last checkpoint: what it wrote later is gone.
        path.write_bytes(kept)
        client.sendall(b"x" * 1000)
        assert len(accepted.recv(2000, socket.MSG_WAITALL)) == 2000
        bed.connect(SERVICE, 80).close()
        async with bed.agent(checkpoint=path) as agent:
            shown = agent.table.rows
            after = await flows_of(agent, walks=True)
            metrics = agent.metrics.page().decode()
        client.close()
        accepted.close()
    assert before[WEB].connections == 1
    assert shown[WEB].request_bytes >= before[WEB].request_bytes
    assert after[WEB].connections == 2
    assert 2000 < after[WEB].request_bytes - before[WEB].request_bytes + 1000 < 3000
    (gap_s,) = re.findall(r"^keepclose_flows_gap_seconds_total (\S+)$", metrics, re.MULTILINE)
    assert float(gap_s) > 0


async def test_open_connections_have_no_period() -> None:
    """What is open now counts since it began, so a file of it has bytes, and no cost an hour."""
    with flow_bed() as bed, bed.listen() as listener, bed.connect(SERVICE, 80) as client:
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x" * 50_000)
            assert len(client.recv(50_000, socket.MSG_WAITALL)) == 50_000
            async with Client(bed.cluster, clock=SystemClock()) as api:
                agent = FlowAgent(
                    bed.settings(), client=api, clock=SystemClock(), inside=bed.node.do
                )
                agent.open()
                try:
                    table = await agent.count_once(within_s=60)
                finally:
                    agent.close()
    read = read_csv(write_csv(table), name="once.csv")
    report = price_flows([read], PriceTable("USD", "GB"), by=CostGrouping.SERVICE)
    assert read.rows[WEB].response_bytes > 50_000
    assert (table.seconds, read.seconds, report.periods) == (0, 0, [])
    assert any("they have no period" in note for note in table.notes)


async def test_an_agent_that_ends_before_its_first_walk_leaves_no_checkpoint(
    tmp_path: Path,
) -> None:
    """The next agent begins as the first one did: it counts nothing of what was open before it."""
    path = tmp_path / "flows"
    with flow_bed() as bed, bed.listen() as listener, bed.connect(SERVICE, 80) as client:
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x" * 50_000)
            assert len(client.recv(50_000, socket.MSG_WAITALL)) == 50_000
            async with Client(bed.cluster, clock=SystemClock()) as api:
                agent = FlowAgent(
                    bed.settings(checkpoint=path),
                    client=api,
                    clock=SystemClock(),
                    inside=bed.node.do,
                )
                agent.open()
                try:
                    await agent.refresh()
                finally:
                    agent.close()
            is_written = path.exists()
            async with bed.agent(checkpoint=path) as agent:
                rows = dict(await flows_of(agent, walks=True))
    assert not is_written
    assert sum(counts.connections for counts in rows.values()) == 0
    assert sum(counts.total_bytes for counts in rows.values()) == 0


async def test_a_checkpoint_that_cannot_be_written_keeps_the_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages show what was saved last, a metric counts failures, and the agent is not ready."""

    def fail(path: Path, data: bytes) -> None:
        del path, data
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with flow_bed() as bed, bed.listen():
        async with bed.agent(checkpoint=tmp_path / "flows") as agent:
            bed.connect(SERVICE, 80).close()
            before = dict(await flows_of(agent))
            with monkeypatch.context() as patch:
                patch.setattr("keepclose.flows.checkpoint.write_checkpoint", fail)
                bed.connect(SERVICE, 80).close()
                during = await flows_of(agent)
                problem, metrics = agent.find_problem(), agent.metrics.page().decode()
            after = await flows_of(agent)
            assert agent.find_problem() == ""
    assert before[WEB].connections == during[WEB].connections == 1
    assert after[WEB].connections == 2
    assert "cannot be written: No space left on device" in problem
    assert "\nkeepclose_flows_checkpoint_failures_total 1\n" in metrics


async def test_a_forged_checkpoint_is_put_aside(tmp_path: Path) -> None:
    """An agent starts at 0 with one warning if the content of its checkpoint is impossible."""
    path = tmp_path / "flows"
    with flow_bed() as bed, bed.listen():
        state = LedgerState([WEB], [FlowCounts(-5)], [], b"", b"", b"", b"", [])
        namespace = bed.node.do(own_namespace)
        forged = Checkpoint(boot_id(), namespace, 1.0, 1.0, 2.0, state, gap_s=float("inf"))
        path.write_bytes(encode_checkpoint(forged))
        with capture_logs() as logs:
            async with bed.agent(checkpoint=path) as agent:
                bed.connect(SERVICE, 80).close()
                rows = await flows_of(agent)
    assert rows[WEB].connections == 1
    assert (tmp_path / "flows.broken").exists()
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["counts begin at 0"]


async def test_a_page_before_the_first_walk_counts_no_past() -> None:
    """A request that comes before the agent runs counts nothing of connections that end then."""
    with flow_bed() as bed, bed.listen() as listener:
        # NB: with events = 2 kernels report no end of a connection that is older than the listener.
        bed.node.set_values(
            {"netfilter/nf_conntrack_events": 1, "netfilter/nf_conntrack_tcp_timeout_close": 1}
        )
        client = bed.connect(SERVICE, 80)
        accepted, _ = listener.accept()
        with accepted:
            accepted.sendall(b"x" * 5000)
            assert len(client.recv(5000, socket.MSG_WAITALL)) == 5000
            async with Client(bed.cluster, clock=SystemClock()) as api:
                agent = FlowAgent(
                    bed.settings(), client=api, clock=SystemClock(), inside=bed.node.do
                )
                agent.open()
                try:
                    # A reset, so that the kernel forgets the connection soon.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.close()
                    async with asyncio.timeout(60):
                        while not agent.collector.events:
                            bed.node.do(lambda: list(walk_connections()))
                            await asyncio.sleep(0.1)
                            await agent.collector.drain()
                    rows = await flows_of(agent, walks=True)
                finally:
                    agent.close()
    assert (agent.ledger.waiting, [*rows]) == (0, [])


async def test_an_agent_with_a_wrong_name_is_not_ready() -> None:
    """The page of readiness says that no Node has the name, and which one is near."""
    with flow_bed() as bed:
        async with bed.agent(node_name="n3") as agent:
            server = flow_pages(agent)
            port = await server.start("127.0.0.1", 0)
            try:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"http://127.0.0.1:{port}/readyz") as answer,
                ):
                    status, text = answer.status, await answer.text()
            finally:
                await server.stop()
        async with bed.agent() as agent:
            assert agent.find_problem() == ""
    assert status == 503
    assert "no Node has the name n3" in text
    assert "pass --node-name n" in text


async def test_traffic_to_a_pod_without_a_service() -> None:
    """A connection to an endpoint's own address is a flow to a pod, with its Service."""
    with flow_bed() as bed, bed.listen():
        async with bed.agent() as agent:
            bed.connect(SERVER, 8080).close()
            rows = await flows_of(agent)
    assert set(rows) == {WEB._replace(kind=FlowKind.POD)}


async def test_an_address_that_another_pod_takes_over() -> None:
    """Connections belong to the pod that had the address when they began."""
    with flow_bed() as bed, bed.listen():
        async with bed.agent(detail=Detail(workloads=True)) as agent:
            bed.connect(SERVICE, 80).close()
            await flows_of(agent)
            changes = agent.book.changes
            bed.cluster.delete(PODS, "client", namespace="default")
            bed.cluster.put(PODS, pod("other", "n1", CLIENT))
            async with asyncio.timeout(60):
                while agent.book.changes < changes + 2:  # noqa: ASYNC110 - the book has no event
                    await asyncio.sleep(0)
            bed.connect(SERVICE, 80).close()
            rows = await flows_of(agent)
    assert {key.client: counts.connections for key, counts in rows.items()} == {
        "default/client": 1,
        "default/other": 1,
    }
