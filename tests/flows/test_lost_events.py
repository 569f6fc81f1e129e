"""What a collector counts and repairs when the kernel drops events, and when it reads which."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from structlog.testing import capture_logs

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.flow_table import ZONES_ONLY
from keepclose.flows.collector import Collector
from keepclose.flows.flow_rows import FlowRows
from keepclose.flows.ledger import Ledger
from keepclose.kube.clock import Clock, SystemClock
from keepclose.system.conntrack import (
    SEEN_REPLY,
    ConntrackEvent,
    ConntrackEvents,
    TrackedConnection,
)
from support.conntrack_table import add_connections
from support.netns import namespaces_or_skip


class ScriptedEvents(ConntrackEvents):
    """Answers each read with the next entry of a list, then with nothing."""

    def __init__(self, *answers: tuple[list[ConntrackEvent], bool, int]) -> None:
        self.answers = list(answers)

    def read(self, most: int) -> tuple[list[ConntrackEvent], bool, int]:
        """Return the next answer."""
        del most
        return self.answers.pop(0) if self.answers else ([], False, 0)

    def close(self) -> None:
        """Do nothing."""


def new_collector(
    events: ConntrackEvents,
    list_connections: Callable[[], Iterator[list[TrackedConnection]]],
    *,
    clock: Clock | None = None,
) -> Collector:
    """Return an open collector of node n1, which has the address 10.0.0.1."""
    clock = clock or SystemClock()
    book = AddressBook()
    book.set_own_addresses("n1", [bytes((10, 0, 0, 1))], at=0.0)
    rows = FlowRows(book, node="n1", detail=ZONES_ONLY, now=clock.monotonic)
    collector = Collector(
        Ledger(rows),
        clock=clock,
        walk_s=3600.0,
        buffer_bytes=1 << 20,
        open_events=lambda _size: events,
        open_walk=list_connections,
    )
    collector.open()
    return collector


def test_every_event_that_the_kernel_drops_is_counted() -> None:
    """Events that follow while the full buffer is read are lost too, and counted."""
    with namespaces_or_skip("node") as (node,):
        truth = node.do(ConntrackEvents)
        small = node.do(lambda: ConntrackEvents(buffer_bytes=64 << 10))
        read = lost = 0

        def read_all(events: ConntrackEvents) -> tuple[int, int]:
            arrived = dropped = 0
            has_more = True
            while has_more:
                batch, has_more, number = events.read(50)
                arrived += len(batch)
                dropped += number
            return arrived, dropped

        try:
            add_connections(node, 400, source="10.1.0.1", destination="10.2.0.1")
            events, has_more, lost = small.read(50)
            read = len(events)
            add_connections(node, 3000, source="10.1.0.2", destination="10.2.0.1")
            want, none_lost = read_all(truth)
            for _ in range(2):
                arrived, dropped = read_all(small)
                read, lost = read + arrived, lost + dropped
        finally:
            truth.close()
            small.close()
    assert (has_more, none_lost, want) == (True, 0, 3400)
    assert 0 < read < want
    assert read + lost == want


async def test_a_repair_begins_when_the_kernel_drops_no_more() -> None:
    """The walk after lost events waits until the socket was empty once; one warning has the sum."""
    events = ScriptedEvents(([], True, 5), ([], True, 0), ([], False, 3))
    unread: list[int] = []
    has_walked = asyncio.Event()

    def list_nothing() -> Iterator[list[TrackedConnection]]:
        unread.append(len(events.answers))
        has_walked.set()
        return iter(())

    collector = new_collector(events, list_nothing)
    unread.clear()
    has_walked.clear()
    with capture_logs() as logs:
        tasks = [
            asyncio.ensure_future(collector.read_events()),
            asyncio.ensure_future(collector.walk_at_intervals(lambda: None)),
        ]
        try:
            async with asyncio.timeout(60):
                await has_walked.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert unread[0] == 0
    assert collector.lost == 8
    assert [log["lost"] for log in logs if "events of connections were lost" in log["event"]] == [8]


def tracked(number: int, amount: int = 0) -> TrackedConnection:
    """Return a connection of this node to an address outside, with bytes each way."""
    source, outside = bytes((10, 0, 0, 1)), bytes((8, 8, 8, 8))
    key = source + outside + number.to_bytes(2, "big")
    status = SEEN_REPLY
    return TrackedConnection(
        key, 6, source, number, outside, 443, outside, 443, status, 1, amount, 1, amount, True
    )


def counts_of(collector: Collector) -> tuple[int, int]:
    """Return the connections and bytes of all flows."""
    counts = collector._ledger.rows.table(start=0, end=0, has_bytes=True).total()
    return counts.connections, counts.total_bytes


async def test_a_backlog_at_the_first_walk_is_of_the_past() -> None:
    """What ended before the first walk did is not counted, however many events wait."""
    ends = [ConntrackEvent(True, tracked(number, 1000)) for number in range(2000)]
    events = ScriptedEvents(*((ends[at : at + 500], True, 0) for at in range(0, 2000, 500)))
    collector = new_collector(events, lambda: iter([[]]))
    collector._ledger.ignores_past = True
    assert await collector.walk()
    await collector.drain()
    assert counts_of(collector) == (0, 0)


async def test_a_key_that_is_used_again_before_a_walk() -> None:
    """Events that wait are read before a part of the table, which may show the next connection."""
    events = ScriptedEvents()
    table = [tracked(1, 10_000)]
    collector = new_collector(events, lambda: iter([table]))
    events.answers = [([ConntrackEvent(False, tracked(1))], False, 0)]
    await collector.walk()
    table[:] = [tracked(1, 100)]
    events.answers = [
        ([ConntrackEvent(True, tracked(1, 10_000)), ConntrackEvent(False, tracked(1))], False, 0)
    ]
    await collector.walk()
    events.answers = [([ConntrackEvent(True, tracked(1, 100))], False, 0)]
    await collector.drain()
    assert counts_of(collector) == (2, 20_200)


class EndlessEvents(ScriptedEvents):
    """Always has more, as if connections began faster than any reader reads."""

    reads = 0

    def read(self, most: int) -> tuple[list[ConntrackEvent], bool, int]:
        """Return that there may be more."""
        del most
        self.reads += 1
        return [], True, 0


async def test_a_flood_of_events_does_not_hold_up_the_pages() -> None:
    """Between two reads others run, and what waits for all events does not wait for ever."""
    events = EndlessEvents()
    collector = new_collector(events, lambda: iter(()))
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(events.reads)
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    await asyncio.wait_for(collector.drain(), 60)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert events.reads > 5
    assert set(range(1, events.reads)) <= set(seen)


class _Ticking(SystemClock):
    """A clock on which a second passes with each look at it."""

    ticks = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        self.ticks += 1.0
        return self.ticks


async def test_a_request_waits_for_events_for_a_bounded_time() -> None:
    """However many events are left, reading them ends in time."""
    events = EndlessEvents()
    collector = new_collector(events, lambda: iter(()), clock=_Ticking())
    await collector.drain(most_s=3.0)
    assert 0 < events.reads <= 3
