"""What goes wrong around a proxy: its server, nft, and people who change its table."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.kube.client import Client
from keepclose.kube.errors import ConnectionRefused
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.workload import Node, NodeAddress, NodeStatus
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.health import HealthServer, format_time
from keepclose.proxy.nft.libnftables import LibnftablesWriter
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.proxy.settings import ProxySettings
from keepclose.testing.api_server import serving
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.recording_writer import RecordingWriter
from keepclose.testing.scripted_streams import FakeResponse
from support.builders import endpoint, endpoint_slice, node, service
from support.netns import Namespace, namespaces_or_skip
from support.proxies import (
    FakeCounters,
    FakeFlows,
    ProxyCluster,
    cluster_of,
    plain,
)

START = "2023-11-14T22:13:20Z"
WATCHED = ("services", "endpointslices.discovery.k8s.io", "nodes")
REFUSED = NftError("Operation not permitted", failure=NftFailure.FORBIDDEN)


class Wire:
    """The way to a server, which can be cut."""

    def __init__(self, server: FakeCluster) -> None:
        self.server = server
        self.is_cut = False

    def cut(self) -> None:
        """Break all connections and let none through."""
        self.is_cut = True
        for watch in self.server.watches:
            watch.cut()

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Pass a request on, if it gets through."""
        if self.is_cut:
            raise ConnectionRefused("fake", "connection refused")
        # The server knows no selectors; all that it has would be selected.
        query = tuple(one for one in request.query if not one[0].endswith("Selector"))
        return await self.server.send(replace(request, query=query))

    async def close(self) -> None:
        """Do nothing."""


class Writer(RecordingWriter):
    """A recorder whose writes can hang."""

    def __init__(self) -> None:
        super().__init__()
        self.works = asyncio.Event()
        self.works.set()

    async def apply(self, text: str) -> None:
        """Wait while told to hang."""
        await self.works.wait()
        await super().apply(text)


class Scene(NamedTuple):
    """A proxy on a clock that the test moves."""

    clock: FakeClock
    wire: Wire
    writer: Writer
    proxy: NodeProxy
    url: str

    async def ask(self, page: str) -> tuple[int, str]:
        """Return code and body of a page of health."""
        async with aiohttp.ClientSession() as session, session.get(self.url + page) as answer:
            return answer.status, await answer.text()

    def lead_to(self, *addresses: str) -> None:
        """Change the endpoints of the Service, on the server."""
        self.wire.server.put(ENDPOINT_SLICES, endpoint_slice(*map(endpoint, addresses)))

    def health(self, *, well: str) -> str:
        """Return the body of /healthz now, with rules that were written at the start."""
        now = format_time(self.clock.now())
        last = now if well == "true" else START
        return (
            f'{{"lastUpdated":"{last}","currentTime":"{now}","nodeEligible":true,'
            f'"healthy":{well},"status":{{"IPv4":{{"lastUpdated":"{START}","healthy":{well}}},'
            f'"IPv6":{{"lastUpdated":"{START}","healthy":true}}}}}}'
        )

    def used(self) -> list[str]:
        """Return where connections of the Service go."""
        [one] = self.proxy.families["IPv4"].states.services.values()
        [port] = one.ports.values()
        return [found.address for found in port.selection.internal.endpoints]


def own_node() -> Node:
    """Return the Node of the proxy, with an address."""
    made = node("n1", "zone-a")
    address = NodeAddress("InternalIP", "192.168.100.1")
    return replace(made, status=NodeStatus(addresses=(address,)))


@asynccontextmanager
async def scene(*, is_cut: bool = False, **settings: Any) -> AsyncIterator[Scene]:
    """Run a proxy for a node with one Service; it has come to rest when the block begins."""
    clock = FakeClock()
    server = FakeCluster(clock, history=2000)
    server.put(NODES, own_node())
    server.put(SERVICES, service())
    server.put(ENDPOINT_SLICES, endpoint_slice(endpoint("10.0.0.1")))
    wire, writer = Wire(server), Writer()
    wire.is_cut = is_cut
    wanted = replace(
        ProxySettings(node_name="n1", acknowledges=False, full_sync_s=1e6, later_s=0.5),
        **settings,
    )
    async with Client(wire, clock=clock, retries=Retries(max_elapsed=0.0)) as client:
        proxy = NodeProxy(
            client,
            wanted,
            writer=writer,
            clock=clock,
            counts=FakeCounters(),
            flows={family: FakeFlows() for family in wanted.families},
        )
        health = HealthServer(proxy.health, node=lambda: proxy.own_node, clock=clock)
        url = f"http://127.0.0.1:{await health.start('127.0.0.1', 0)}"
        task = asyncio.create_task(proxy.run())
        try:
            await clock.advance(5)
            yield Scene(clock, wire, writer, proxy, url)
        finally:
            task.cancel()
            await clock.run_until(task.done)
            await health.stop()
            if not task.cancelled():
                task.result()


def lines_of(logs: list[Any], event: str, **facts: str) -> int:
    """Return how many lines say something, about such things."""
    return sum(one["event"] == event and facts.items() <= one.items() for one in logs)


async def test_a_server_that_is_gone_for_an_hour() -> None:
    """Rules and health stay as they are, each kind is complained of once, and all heals."""
    with capture_logs() as logs:
        async with scene() as one:
            one.writer.applied.clear()
            one.wire.cut()
            one.lead_to("10.0.0.2")
            logs.clear()
            await one.clock.advance(3600)
            assert one.used() == ["10.0.0.1"]
            assert one.writer.applied == []
            assert await one.ask("/healthz") == (200, one.health(well="true"))
            # Once that the connection broke, and once that there is no other to be had.
            failed = Counter(
                (line["kind"], line["error"]) for line in logs if line["event"] == "request failed"
            )
            assert set(failed.values()) == {1}
            assert [sum(kind == one for one, _ in failed) for kind in WATCHED] == [2, 2, 2]
            logs.clear()
            one.wire.is_cut = False
            await one.clock.advance(60)
            for watch in one.wire.server.watches:
                # A real server does so by itself, about once a minute.
                watch.send_bookmark()
            await one.clock.advance(1)
            assert one.used() == ["10.0.0.2"]
            assert any("10.0.0.2" in text for text in one.writer.applied)
    again = Counter(line["kind"] for line in logs if line["event"] == "request succeeded again")
    assert again == Counter(WATCHED)


async def test_a_start_without_a_server() -> None:
    """Nothing is written, load balancers stay away, the kubelet does not; then all comes."""
    async with scene(is_cut=True) as one:
        await one.clock.advance(3600)
        assert one.writer.applied == []
        now = format_time(one.clock.now())
        want = (
            f'{{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"{now}","nodeEligible":false,'
            '"healthy":true}'
        )
        assert await one.ask("/healthz") == (503, want)
        want = f'{{"lastUpdated":"{now}","currentTime":"{now}","healthy":true}}'
        assert await one.ask("/livez") == (200, want)
        one.wire.is_cut = False
        await one.clock.advance(60)
        assert one.used() == ["10.0.0.1"]
        assert (await one.ask("/healthz"))[0] == 200


async def test_nft_that_fails_for_an_hour() -> None:
    """One line tells it, another that it is over; health is bad after a minute and says whose."""
    with capture_logs() as logs:
        async with scene() as one:
            await one.clock.advance(60)
            logs.clear()
            one.writer.applied.clear()
            one.writer.fail_next(*[REFUSED] * 10_000)
            one.lead_to("10.0.0.2")
            await one.clock.advance(59)
            assert (await one.ask("/healthz"))[0] == 200
            await one.clock.advance(3600)
            assert one.writer.applied == []
            want = one.health(well="false")
            assert await one.ask("/healthz") == (503, want)
            assert await one.ask("/livez") == (503, want.replace('"nodeEligible":true,', ""))
            assert lines_of(logs, "rules cannot be written; the existing rules stay") == 1
            assert lines_of(logs, "sync succeeded after failures") == 0
            one.writer._failures.clear()
            await one.clock.advance(30)
            assert lines_of(logs, "sync succeeded after failures", family="IPv4") == 1
            assert (await one.ask("/healthz"))[0] == 200
            assert any("10.0.0.2" in text for text in one.writer.applied)


async def test_nft_that_hangs() -> None:
    """Rules that stand stay, health is bad after a minute, and all is written once it works."""
    async with scene() as one:
        await one.clock.advance(60)
        one.writer.applied.clear()
        one.writer.works.clear()
        one.lead_to("10.0.0.2")
        await one.clock.advance(59)
        assert (await one.ask("/livez"))[0] == 200
        await one.clock.advance(2)
        assert await one.ask("/healthz") == (503, one.health(well="false"))
        assert one.writer.applied == []
        one.writer.works.set()
        await one.clock.advance(2)
        assert (await one.ask("/healthz"))[0] == 200
        assert any("10.0.0.2" in text for text in one.writer.applied)


@asynccontextmanager
async def kernel(tmp_path: Path, inside: Namespace) -> AsyncIterator[tuple[ProxyCluster, str]]:
    """Run a proxy that looks at its table often, and writes it inside; return its Service's IP."""
    writer = LibnftablesWriter(namespace=inside.path)
    try:
        async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
            await cluster.add_node("n1", "zone-a", pod_cidrs=("10.244.1.0/24",))
            web = await cluster.add_service()
            await cluster.set_endpoints(plain("10.0.0.1"), plain("10.0.0.2"))
            settings: dict[str, Any] = {"families": ("IPv4",), "sync_s": 0.2, "full_sync_s": 3600.0}
            async with cluster.proxied("n1", writer=writer, **settings) as proxy:
                await cluster.settle(proxy)
                yield cluster, web.spec.cluster_ip
    finally:
        await writer.close()


async def until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    """Return when something holds, looked at from a thread; fail when it does not in time."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(is_so):  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.05)


def table_of(inside: Namespace) -> str:
    """Return the table as nft lists it, without what changes by itself; "" for none."""
    ruleset = inside.run("nft", "list", "ruleset")
    uncounted = re.sub(r" counter packets \d+ bytes \d+", "", ruleset)
    return "\n".join(sorted(uncounted.splitlines()))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("delete table ip kube-proxy", id="the table is deleted"),
        pytest.param("flush ruleset", id="everything is deleted"),
        pytest.param("flush table ip kube-proxy", id="all chains are emptied"),
        pytest.param("flush chain ip kube-proxy services", id="the dispatch is emptied"),
        pytest.param("flush chain ip kube-proxy nat-postrouting", id="a base chain is emptied"),
        pytest.param("flush chain ip kube-proxy service-endpoints-check", id="a check is emptied"),
    ],
)
async def test_people_who_change_the_table(tmp_path: Path, command: str) -> None:
    """The next look finds it, says so once, and makes the table what it was."""
    with namespaces_or_skip("node") as [inside], capture_logs() as logs:
        async with kernel(tmp_path, inside):
            want = await asyncio.to_thread(table_of, inside)
            assert "goto pool/" in want
            # NB: it may be whole again before one could look; that it was not is told below.
            await asyncio.to_thread(inside.run, "nft", command)
            await until(lambda: table_of(inside) == want)
            # Several more looks find nothing wrong.
            await asyncio.sleep(0.6)
    assert lines_of(logs, "table removed or changed by another program", family="IPv4") == 1
    assert lines_of(logs, "rules cannot be written; the existing rules stay") == 0


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("flush map ip kube-proxy service-ips", id="elements are deleted"),
        pytest.param("flush set ip kube-proxy cluster-ips", id="cluster IPs are deleted"),
        pytest.param("flush chain ip kube-proxy {chain}", id="a chain of Services is emptied"),
    ],
)
async def test_what_only_a_whole_comparison_finds(tmp_path: Path, what: str) -> None:
    """A change that is refused has everything compared, which finds what else is missing."""
    with namespaces_or_skip("node") as [inside]:
        async with kernel(tmp_path, inside) as (cluster, address):
            before = await asyncio.to_thread(table_of, inside)
            chain = next(line.split()[1] for line in before.splitlines() if "chain pool/" in line)
            command = what.format(chain=chain)
            await asyncio.to_thread(inside.run, "nft", command)
            assert await asyncio.to_thread(table_of, inside) != before
            # The dispatch is missing too, so the next change of the Service cannot be written.
            await asyncio.to_thread(inside.run, "nft", "flush map ip kube-proxy service-ips")
            await cluster.set_endpoints(plain("10.0.0.3"))
            want = f"elements = {{ {address} . tcp . 80 : goto pool/tcp/1."
            await until(lambda: want in table_of(inside))
            shown = await asyncio.to_thread(table_of, inside)
            assert f"{address} . tcp . 80 . 0 : 10.0.0.3 . 8080" in shown
            assert f"elements = {{ {address} }}" in shown
