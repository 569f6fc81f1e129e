"""A proxy as a process has it: a connection, pages, health, and an end that leaves the rules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.proxy import process
from keepclose.proxy.assembly import NodeProxy
from keepclose.proxy.conntrack import ConntrackSettings
from keepclose.proxy.health import listen_here
from keepclose.proxy.nft.select_writer import DryRunWriter
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.proxy.process import (
    ProxyHostSettings,
    find_families,
    serve_proxy,
    tune_conntrack,
)
from keepclose.proxy.settings import ProxySettings
from keepclose.runtime.pages import ListenAddress
from keepclose.runtime.program import ReadyMessage
from keepclose.testing.api_server import PATIENCE, Served, serving
from keepclose.testing.recording_writer import RecordingWriter
from support.netns import namespaces_or_skip
from support.ports import reserved_port
from support.proxies import CLOCK, ProxyCluster, cluster_of, plain

SETTINGS = ProxySettings("n1", min_sync_s=0.0, node_wait_s=0.0, families=("IPv4",))


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[tuple[Served, ProxyCluster]]:
    """Serve a cluster with a node and a Service."""
    async with serving(tmp_path, nodes=("n1",)) as api, cluster_of(api) as cluster:
        await cluster.add_node("n1", "zone-a")
        await cluster.add_service()
        yield api, cluster


@asynccontextmanager
async def served(
    api: Served, writer: RecordingWriter, host_settings: ProxyHostSettings
) -> AsyncIterator[list[str]]:
    """Run a proxy for the block; what it says when it is ready comes first."""
    connection = load_connection_settings(
        api.server.settings.data_dir / "node-n1.kubeconfig", env={}
    )
    said: asyncio.Queue[ReadyMessage] = asyncio.Queue()
    task = asyncio.create_task(
        serve_proxy(
            SETTINGS,
            connection,
            host_settings=host_settings,
            clock=SystemClock(),
            on_ready=said.put_nowait,
            writer=writer,
        )
    )
    try:
        async with asyncio.timeout(PATIENCE):
            yield (await said.get()).text.split(", ")
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert task.cancelled()


async def fetch(url: str) -> tuple[int, bytes]:
    """Return the status and body of a page."""
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.read()


async def wait_for(url: str, status: int) -> None:
    """Return when a page answers with the status."""
    async with asyncio.timeout(PATIENCE):
        while (await fetch(url))[0] != status:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


async def test_pages_and_health(tmp_path: Path) -> None:
    """The pages are where it says, health follows the node, and rules stay at the end."""
    async with world(tmp_path) as (api, _):
        writer = RecordingWriter()
        anywhere = ListenAddress("127.0.0.1", 0)
        async with served(api, writer, ProxyHostSettings("auto", anywhere, anywhere)) as said:
            assert said[0] == "keepclose proxy runs for node n1"
            pages, health = said[1].split()[-1], said[2].split()[-1]
            await wait_for(health, 200)
            status, body = await fetch(f"{pages}/metrics")
            assert status == 200
            assert b'kubeproxy_proxy_healthz_total{code="200"} 1.0' in body
            assert await fetch(f"{pages}/proxyMode") == (200, b"nftables")
            taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
            patch = {"spec": {"taints": [taint]}}
            await api.call("PATCH", "/api/v1/nodes/n1", patch, type="application/merge-patch+json")
            await wait_for(health, 503)
            status, body = await fetch(health.replace("healthz", "livez"))
            assert (status, msgspec.json.decode(body)["healthy"]) == (200, True)
        assert writer.closed
        assert not any("delete table" in text for text in writer.applied)


async def test_a_health_port_that_is_taken(tmp_path: Path) -> None:
    """Another proxy that still ends does not keep this one from starting."""
    async with world(tmp_path) as (api, _):
        with listen_here("127.0.0.1", 0) as taken:
            address = ListenAddress("127.0.0.1", taken.getsockname()[1])
            writer = RecordingWriter()
            async with served(api, writer, ProxyHostSettings("auto", None, address)) as said:
                assert said[1].startswith("health not served yet (cannot listen at 127.0.0.1:")
                assert said[1].endswith(": Address already in use)")
                while not writer.applied:  # noqa: ASYNC110 - a recorder tells nobody
                    await asyncio.sleep(0.01)


async def test_health_checks_of_load_balancers(tmp_path: Path) -> None:
    """A Service with externalTrafficPolicy Local has its health-check port answered."""
    # NB: it listens on this very machine, where another test may want a port of the range too.
    with reserved_port(30000, 32767) as port:
        async with world(tmp_path) as (_, cluster):
            await cluster.add_service(
                "lb", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=port
            )
            await cluster.set_endpoints(plain("10.0.0.1", node="n1"), service="lb")
            url = f"http://127.0.0.1:{port}/"
            writer = RecordingWriter()
            async with cluster.proxied(
                "n1", writer=writer, families=("IPv4",), node_port_addresses=("all",)
            ) as proxy:
                await cluster.settle(proxy)
                status, body = await fetch(url)
                assert (status, msgspec.json.decode(body)["localEndpoints"]) == (200, 1)
                await cluster.set_endpoints(plain("10.0.0.1", node="n2"), service="lb")
                await wait_for(url, 503)
            with pytest.raises(aiohttp.ClientConnectionError):
                await fetch(url)


async def test_a_dry_run_shows_and_writes_nothing(tmp_path: Path) -> None:
    """What would be written is shown, also where nobody may read the table."""
    async with world(tmp_path) as (api, cluster):
        await cluster.set_endpoints(plain("10.0.0.1"))
        connection = load_connection_settings(api.server.settings.data_dir / "kubeconfig", env={})
        shown: list[str] = []
        writer = DryRunWriter(shown.append)
        await process._sync_once(SETTINGS, connection, writer, SystemClock())
        text = "".join(shown)
        assert text.startswith("add table ip kube-proxy ")
        assert "10.0.0.1" in text
        with pytest.raises(NftError) as caught:
            await writer.list_table("ip", "kube-proxy")
        assert caught.value.failure is NftFailure.NOT_FOUND
        reader = RecordingWriter()
        reader.hold("ip", "kube-proxy")
        reading = DryRunWriter(shown.append, reader=reader)
        assert await reading.list_table("ip", "kube-proxy") != b""
        await reading.check("nonsense")
        await reading.close()
        assert reader.closed


async def test_one_sync_of_a_writer_that_fails(tmp_path: Path) -> None:
    """A single sync raises what went wrong, and does not try again."""
    async with world(tmp_path) as (api, _):
        connection = load_connection_settings(api.server.settings.data_dir / "kubeconfig", env={})
        writer = RecordingWriter()
        writer.fail_next(NftError("no", failure=NftFailure.FORBIDDEN))
        with pytest.raises(NftError, match="no"):
            await process._sync_once(SETTINGS, connection, writer, SystemClock())


async def test_one_sync_without_a_server(tmp_path: Path) -> None:
    """A command that runs once gives up on a server that does not answer."""
    async with world(tmp_path) as (api, _):
        connection = load_connection_settings(api.server.settings.data_dir / "kubeconfig", env={})
    async with connect(connection, clock=CLOCK) as client:
        proxy = NodeProxy(client, SETTINGS, writer=RecordingWriter(), clock=CLOCK)
        with pytest.raises(TimeoutError):
            await proxy.run_once(within_s=0.1)


def test_families_of_this_machine() -> None:
    """IPv4 is always there, and IPv6 where the kernel has it."""
    assert find_families()[0] == "IPv4"
    assert ("IPv6" in find_families()) is Path("/proc/net/if_inet6").exists()


def test_settings_of_0_leave_connection_tracking_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the kernel is read or written; another value than 0 is both."""
    touched: list[tuple[str, str]] = []
    read, write = Path.read_text, Path.write_text

    def record_read(path: Path, **options: Any) -> str:
        touched.append(("read", path.name))
        return read(path, **options)

    def record_write(path: Path, text: str, **options: Any) -> int:
        touched.append(("write", path.name))
        return write(path, text, **options)

    monkeypatch.setattr(Path, "read_text", record_read)
    monkeypatch.setattr(Path, "write_text", record_write)
    tune_conntrack(ConntrackSettings(0, 0, 0, 0))
    assert touched == []
    with namespaces_or_skip("node") as [inside]:
        inside.do(lambda: tune_conntrack(ConntrackSettings(0, 0, 0, 0, udp_timeout=17)))
    name = "nf_conntrack_udp_timeout"
    assert touched == [("read", name), ("write", name)]
