"""Many connections from real network namespaces; skipped where none can be made."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from keepclose.lab.network.underlay import NetworkPlace, Underlay
from keepclose.lab.traffic.answers import ConnectionFailure, PodAnswer
from keepclose.lab.traffic.connections import (
    BATCH,
    CONNECTIONS_AT_ONCE,
    ConnectionSource,
    connect_all,
)
from keepclose.system.namespaces import NetworkError, NetworkNamespace, create_network_namespace
from keepclose.testing.api_server import PATIENCE
from support.lab.trafficbeds import PORT, Listeners, http_answer
from support.underlays import underlay_or_skip

T = TypeVar("T")
A, B = PodAnswer("a", "n1", "zone-a"), PodAnswer("b", "n2", "zone-b")
NOWHERE = "198.51.100.1"
"""Nobody has this address, and nodes drop what is sent there."""


@pytest.fixture(scope="module")
def underlay() -> Iterator[Underlay]:
    """Make a network with a pod on each of two nodes, where packets to nowhere are dropped."""
    with underlay_or_skip("n1", "n2") as made:
        for place in made.add_pods([("n1", "a"), ("n2", "b")]):
            # Pods refuse datagrams as often as asked.
            place.namespace.set_values({"ipv4/icmp_ratemask": 0})
        for node in made.nodes.values():
            node.namespace.run("ip", "route", "add", "blackhole", NOWHERE)
        yield made


@pytest.fixture
async def listeners() -> AsyncIterator[Listeners]:
    """Listen for a test."""
    made = Listeners()
    yield made
    await made.close()


def pod(underlay: Underlay, name: str) -> NetworkPlace:
    """Return where a pod is."""
    place = underlay.pod(name)
    assert place is not None
    return place


def client(underlay: Underlay, node: str) -> NetworkNamespace:
    """Return where the client of a node is."""
    return underlay.nodes[node].client.namespace


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; nothing tells when files are opened and closed."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - as said
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("udp", [False, True], ids=["TCP", "UDP"])
async def test_answers_are_counted_by_caller(
    underlay: Underlay, listeners: Listeners, family: int, *, udp: bool
) -> None:
    """Each caller hears from the pod that it calls, as often as it asks, and nothing stays open."""
    for name, node, zone in (A, B):
        inside = pod(underlay, name).namespace
        await listeners.serve(inside, http_answer(name, node, zone))
        await listeners.serve_udp(inside, f"{name} {node} {zone}")
    before = open_files()
    callers = [
        ConnectionSource(
            client(underlay, "n1"), pod(underlay, "a").addresses[family], PORT, 3 * BATCH + 1
        ),
        ConnectionSource(client(underlay, "n2"), pod(underlay, "a").addresses[family], PORT, 7),
        ConnectionSource(client(underlay, "n1"), pod(underlay, "b").addresses[family], PORT, BATCH),
        ConnectionSource(client(underlay, "n1"), pod(underlay, "b").addresses[family], PORT, 0),
    ]
    told: list[int] = []
    results = await connect_all(callers, udp=udp, timeout_s=PATIENCE, on_progress=told.append)
    assert results == [Counter({A: 3 * BATCH + 1}), Counter({A: 7}), Counter({B: BATCH}), Counter()]
    assert told[-1] == 4 * BATCH + 8
    assert told == sorted(told)
    await until(lambda: open_files() <= before)


async def test_each_datagram_comes_from_a_port_of_its_own(
    underlay: Underlay, listeners: Listeners
) -> None:
    """Also from run to run, since the kernel remembers where a port's flow went."""
    await listeners.serve_udp(pod(underlay, "a").namespace, "a n1 zone-a")
    caller = ConnectionSource(client(underlay, "n1"), pod(underlay, "a").addresses[0], PORT, 200)
    for _ in range(3):
        found = await connect_all([caller], udp=True, timeout_s=PATIENCE)
        assert found == [Counter({A: 200})]
    assert len(set(listeners.udp_ports)) == len(listeners.udp_ports) == 600


@pytest.mark.parametrize("udp", [False, True], ids=["TCP", "UDP"])
async def test_refusals(underlay: Underlay, *, udp: bool) -> None:
    """Where nobody listens every connection is refused at once."""
    caller = ConnectionSource(client(underlay, "n1"), pod(underlay, "b").addresses[0], 9, 300)
    found = await connect_all([caller], udp=udp, timeout_s=PATIENCE)
    assert found == [Counter({ConnectionFailure.REFUSED: 300})]


class CountedTurns:
    """A namespace, and a count of the turns of the loop and of the batches made in each."""

    def __init__(self, namespace: NetworkNamespace) -> None:
        self._namespace = namespace
        self._loop = asyncio.get_running_loop()
        self.turn = 0
        self.batches: Counter[int] = Counter()
        self._next = self._loop.call_soon(self._count)

    def do(self, work: Callable[[], T]) -> T:
        """Do the work inside."""
        self.batches[self.turn] += 1
        return self._namespace.do(work)

    def close(self) -> None:
        """Count no more."""
        self._next.cancel()

    def _count(self) -> None:
        self.turn += 1
        self._next = self._loop.call_soon(self._count)


async def test_refusals_leave_the_loop_to_others(underlay: Underlay) -> None:
    """However quick refusals are, only a few connections begin in one turn of the loop."""
    inside = CountedTurns(client(underlay, "n1"))
    try:
        caller = ConnectionSource(inside, pod(underlay, "a").addresses[0], 9, 10_000)
        found = await connect_all([caller], timeout_s=PATIENCE)
    finally:
        inside.close()
    assert found == [Counter({ConnectionFailure.REFUSED: 10_000})]
    assert max(inside.batches.values()) <= 2
    assert inside.turn >= 10_000 // CONNECTIONS_AT_ONCE


async def test_silence_does_not_hold_up_others(underlay: Underlay, listeners: Listeners) -> None:
    """Connections that nobody answers time out beside those that are answered."""
    await listeners.serve(pod(underlay, "a").namespace, http_answer(*A))
    done: list[int] = []
    callers = [
        ConnectionSource(client(underlay, "n1"), NOWHERE, PORT, 150),
        ConnectionSource(client(underlay, "n2"), pod(underlay, "a").addresses[0], PORT, 150),
    ]
    # NB: within this time all others must be answered, on a busy machine too.
    results = await connect_all(callers, timeout_s=5.0, on_progress=done.append)
    assert results == [Counter({ConnectionFailure.TIMED_OUT: 150}), Counter({A: 150})]
    # All answers were there while all silent ones still waited.
    assert 150 in done


async def test_no_way_there() -> None:
    """A namespace without routes reaches nobody, and says so at once."""
    try:
        lonely = create_network_namespace("lonely")
    except NetworkError as error:
        pytest.skip(str(error))
    try:
        results = await connect_all([ConnectionSource(lonely, NOWHERE, PORT, 5)])
    finally:
        lonely.close()
    assert results == [Counter({ConnectionFailure.UNREACHABLE: 5})]


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        pytest.param([http_answer(*A)[:30], http_answer(*A)[30:]], A, id="an answer in pieces"),
        pytest.param([b""], ConnectionFailure.BROKEN, id="closed without a word"),
        pytest.param([http_answer(*A)[:-3]], ConnectionFailure.BROKEN, id="closed too early"),
        pytest.param([b"SSH-2.0-x\r\n\r\n"], ConnectionFailure.BROKEN, id="somebody else"),
        pytest.param([b"x" * 70_000], ConnectionFailure.BROKEN, id="somebody who says too much"),
    ],
)
async def test_what_counts_as_an_answer(
    underlay: Underlay,
    listeners: Listeners,
    pieces: list[bytes],
    want: PodAnswer | ConnectionFailure,
) -> None:
    """Only a whole answer of a pod does."""
    await listeners.serve(pod(underlay, "a").namespace, *pieces)
    caller = ConnectionSource(client(underlay, "n2"), pod(underlay, "a").addresses[0], PORT, 3)
    assert await connect_all([caller], timeout_s=PATIENCE) == [Counter({want: 3})]


async def test_a_run_that_is_given_up_leaves_nothing_open(underlay: Underlay) -> None:
    """Sockets under way and those made ahead are closed."""
    before = open_files()
    caller = ConnectionSource(client(underlay, "n1"), NOWHERE, PORT, 1000)
    task = asyncio.create_task(connect_all([caller], timeout_s=60.0))
    await until(lambda: open_files() > before + 32)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert open_files() <= before


class Exhausted:
    """A namespace in which no more sockets can be made after some."""

    def __init__(self) -> None:
        self._left = 1

    def do(self, work: Callable[[], T]) -> T:
        """Do the work once."""
        self._left -= 1
        if self._left < 0:
            raise OSError(24, os.strerror(24))
        return work()


async def test_too_few_sockets_end_the_run() -> None:
    """Whoever asked is told, and nothing stays open."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        before = open_files()
        with pytest.raises(OSError, match="Too many open files"):
            await connect_all([ConnectionSource(Exhausted(), "127.0.0.1", port, 2 * BATCH)])
        assert open_files() <= before


async def test_nobody_to_call() -> None:
    """No callers give no results."""
    assert await connect_all([]) == []
