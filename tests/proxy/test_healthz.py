"""The proxy's own health, to the byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest

from keepclose.model.meta import ObjectMeta
from keepclose.model.workload import Node, NodeSpec, Taint
from keepclose.proxy.health import HealthServer, HealthState, format_time, is_eligible, listen_here
from keepclose.testing.fake_clock import FakeClock
from support.ports import reserved_port

NODE = Node(metadata=ObjectMeta(name="n1"))
TAINTED = Node(spec=NodeSpec(taints=(Taint(key="ToBeDeletedByClusterAutoscaler"),)))
DELETED = Node(metadata=ObjectMeta(name="n1", deletion_timestamp="2026-01-01T00:00:00Z"))


class Served:
    """A running server, its state, and the node that it sees."""

    def __init__(self) -> None:
        self.clock = FakeClock(now=1_700_000_000.25)
        self.state = HealthState(clock=self.clock, patience=60)
        self.node: Node | None = NODE
        self.counted: list[tuple[str, int]] = []
        self.url = ""

    async def get(self, path: str, method: str = "GET") -> tuple[int, bytes]:
        """Return code and body of a page."""
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path) as answer,
        ):
            if answer.status != 404:
                assert answer.headers["Content-Type"] == "application/json"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
            return answer.status, await answer.read()


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    """Serve for the block."""
    one = Served()
    server = HealthServer(
        one.state,
        node=lambda: one.node,
        clock=one.clock,
        count=lambda page, code: one.counted.append((page, code)),
    )
    one.url = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    try:
        yield one
    finally:
        await server.stop()


async def test_a_proxy_that_starts_is_healthy() -> None:
    """Before the first update there is no family, and no status."""
    async with served() as one:
        now = "2023-11-14T22:13:20.25Z"
        assert await one.get("/healthz") == (
            200,
            f'{{"lastUpdated":"{now}","currentTime":"{now}","nodeEligible":true,"healthy":true}}'.encode(),
        )
        assert await one.get("/livez") == (
            200,
            f'{{"lastUpdated":"{now}","currentTime":"{now}","healthy":true}}'.encode(),
        )
        assert one.counted == [("healthz", 200), ("livez", 200)]


async def test_a_family_that_waits_too_long_is_ill() -> None:
    """Both pages fail, say which family it is, and when it was last well."""
    async with served() as one:
        one.state.record_update("IPv6")
        await one.clock.advance(1)
        one.state.record_update("IPv4")
        one.state.record_queued("IPv4")
        await one.clock.advance(59.5)
        one.state.record_queued("IPv4")
        assert (await one.get("/healthz"))[0] == 200
        await one.clock.advance(0.5)
        want_status = (
            '"status":{"IPv4":{"lastUpdated":"2023-11-14T22:13:21.25Z","healthy":false},'
            '"IPv6":{"lastUpdated":"2023-11-14T22:13:20.25Z","healthy":true}}'
        )
        times = '"lastUpdated":"2023-11-14T22:13:21.25Z","currentTime":"2023-11-14T22:14:21.25Z"'
        assert await one.get("/healthz") == (
            503,
            f'{{{times},"nodeEligible":true,"healthy":false,{want_status}}}'.encode(),
        )
        assert await one.get("/livez") == (
            503,
            f'{{{times},"healthy":false,{want_status}}}'.encode(),
        )
        one.state.record_update("IPv4")
        code, body = await one.get("/livez")
        assert code == 200
        assert msgspec.json.decode(body)["lastUpdated"] == "2023-11-14T22:14:21.25Z"


async def test_a_family_that_was_never_updated_does_not_count() -> None:
    """Waiting during the start is no illness."""
    async with served() as one:
        one.state.record_queued("IPv4")
        await one.clock.advance(1000)
        assert (await one.get("/livez"))[0] == 200


async def test_setting_the_clock_makes_nobody_ill() -> None:
    """Waiting is measured by the time that never jumps."""
    async with served() as one:
        one.state.record_update("IPv4")
        one.state.record_queued("IPv4")
        one.clock.jump(3600)
        assert (await one.get("/livez"))[0] == 200


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(None, id="unknown"),
        pytest.param(TAINTED, id="tainted by the autoscaler"),
        pytest.param(DELETED, id="being deleted"),
    ],
)
async def test_a_node_that_goes(node: Node | None) -> None:
    """Load balancers are sent away, the kubelet is not; the proxy itself is healthy."""
    async with served() as one:
        one.node = node
        one.state.record_update("IPv4")
        code, body = await one.get("/healthz")
        answer = msgspec.json.decode(body)
        assert (code, answer["nodeEligible"], answer["healthy"]) == (503, False, True)
        assert (await one.get("/livez"))[0] == 200
        assert one.counted == [("healthz", 503), ("livez", 200)]


async def test_methods_and_paths() -> None:
    """Any method is answered, other paths are not."""
    async with served() as one:
        assert (await one.get("/healthz", "POST"))[0] == 200
        assert await one.get("/healthz", "HEAD") == (200, b"")
        assert (await one.get("/other"))[0] == 404


async def test_a_port_that_is_taken_is_tried_again() -> None:
    """Every five seconds, until it is free."""
    clock = FakeClock()
    server = HealthServer(HealthState(clock=clock), node=lambda: NODE, clock=clock)
    with reserved_port() as port:
        with listen_here("127.0.0.1", port):
            with pytest.raises(OSError, match="in use"):
                await server.start("127.0.0.1", port)
            task = asyncio.create_task(server.start_eventually("127.0.0.1", port))
            await clock.run_until_idle()
            assert clock.next_due_in == 5.0
        await clock.advance(4.9)
        assert not task.done()
        await clock.advance(0.1)
        assert await task == port
        await server.stop()


def test_other_taints_do_not_matter() -> None:
    """Only the autoscaler's does."""
    assert is_eligible(Node(spec=NodeSpec(taints=(Taint(key="node.kubernetes.io/unreachable"),))))


@pytest.mark.parametrize(
    ("seconds", "want"),
    [
        (0.0, "1970-01-01T00:00:00Z"),
        (1_700_000_000.5, "2023-11-14T22:13:20.5Z"),
        (1_700_000_000.000001, "2023-11-14T22:13:20.000001Z"),
        (1_700_000_010.0, "2023-11-14T22:13:30Z"),
    ],
)
def test_times(seconds: float, want: str) -> None:
    """Trailing zeros are left out, as Go does."""
    assert format_time(seconds) == want
