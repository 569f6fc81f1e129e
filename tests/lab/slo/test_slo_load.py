"""Connections without a pause to servers of this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from keepclose.lab.slo.figures import SloSample
from keepclose.lab.slo.measurement import ConnectionPath, keep_connecting, probe, until_steady
from keepclose.lab.traffic.answers import ConnectionFailure, PodAnswer
from keepclose.lab.traffic.connections import ConnectionSource
from keepclose.system.namespaces import NetworkError

T = TypeVar("T")


class Here:
    """A namespace that is the one of this process."""

    def do(self, work: Callable[[], T]) -> T:
        """Do it here."""
        return work()


class Gone:
    """A namespace that was closed."""

    def do(self, work: Callable[[], T]) -> T:  # noqa: ARG002 - as namespaces have it
        """Refuse."""
        raise NetworkError("the network namespace of n1 is gone")


@asynccontextmanager
async def a_pod(name: str, node: str) -> AsyncIterator[int]:
    """Answer as a pod for the block, at the port given."""
    body = f"{name} {node} zone-a\n"
    head = f"HTTP/1.1 200 OK\r\nX-Pod: {name}\r\nX-Node: {node}\r\nX-Zone: zone-a\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(whole)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def a_path(node: str, port: int) -> ConnectionPath:
    """Return a way to a local port."""
    return ConnectionPath("internal", node, ConnectionSource(Here(), "127.0.0.1", port, 1))


async def closed_port() -> int:
    """Return a port at which nobody listens."""
    async with a_pod("p", "n") as port:
        pass
    return port


async def test_all_ways_have_their_turn() -> None:
    """Connections go on by turns until the event, failed ones as well."""
    samples: list[SloSample] = []
    over = asyncio.Event()

    def record(sample: SloSample) -> None:
        samples.append(sample)
        if len(samples) == 20:
            over.set()

    async with a_pod("p1", "n1") as port:
        ways = [a_path("n1", port), a_path("n2", await closed_port())]
        await keep_connecting(ways, over, record=record, per_second=500)
    counts = Counter((one.node, one.result) for one in samples)
    answered = counts["n1", PodAnswer("p1", "n1", "zone-a")]
    refused = counts["n2", ConnectionFailure.REFUSED]
    assert answered + refused == len(samples) >= 20
    assert abs(answered - refused) <= 2
    assert all(0 < one.seconds < 5 for one in samples)


async def test_the_pace() -> None:
    """No more connections come than the pace allows."""
    samples: list[SloSample] = []
    over = asyncio.Event()
    async with a_pod("p1", "n1") as port:
        load = keep_connecting([a_path("n1", port)], over, record=samples.append, per_second=50)
        asyncio.get_running_loop().call_later(0.3, over.set)
        await load
    assert 1 <= len(samples) <= 16


async def test_places_that_are_gone() -> None:
    """A connection that cannot even be tried counts as one without an answer."""
    samples: list[SloSample] = []
    over = asyncio.Event()

    def record(sample: SloSample) -> None:
        samples.append(sample)
        over.set()

    gone = ConnectionPath("internal", "n1", ConnectionSource(Gone(), "127.0.0.1", 1, 1))
    await keep_connecting([gone], over, record=record)
    assert {one.result for one in samples} == {ConnectionFailure.BROKEN}


async def test_probing() -> None:
    """Each way is asked once."""
    async with a_pod("p1", "n1") as port:
        found = await probe([a_path("n1", await closed_port()), a_path("n1", port)])
    assert found == [ConnectionFailure.REFUSED, PodAnswer("p1", "n1", "zone-a")]


async def test_steady() -> None:
    """It is steady after some time without a wrong answer, and not before."""
    wrong_first = [False, False, True]

    def is_right(_path: ConnectionPath, _result: object) -> bool:
        return wrong_first.pop(0) if len(wrong_first) > 1 else wrong_first[0]

    async with a_pod("p1", "n1") as port:
        assert await until_steady([a_path("n1", port)], is_right, steady_s=0.1)
        assert wrong_first == [True]
        assert not await until_steady(
            [a_path("n1", port)], lambda *_: False, steady_s=0.1, timeout_s=0.3
        )
