"""Connections to a Service without a pause, one after the other from all nodes in turn.

They come at a steady pace whatever becomes of them: one that waits for its answer holds up no
other. What comes too late because the machine was busy is left out, not made up for in a crowd.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from keepclose.lab.slo.figures import Sample
from keepclose.lab.traffic.answers import Failure, Result
from keepclose.lab.traffic.connections import Caller, connect_all
from keepclose.system.namespaces import NetworkError

PER_SECOND: Final = 240.0
MOST_OPEN: Final = 1000
_REST_S: Final = 0.2


class Way(NamedTuple):
    """From where, by which node, to which address."""

    traffic: str
    node: str
    caller: Caller


async def keep_connecting(
    ways: Sequence[Way],
    until: asyncio.Event,
    *,
    record: Callable[[Sample], object],
    per_second: float = PER_SECOND,
) -> None:
    """Connect by all ways in turn until the event, and wait for the last answers.

    `record` gets each connection when it is over.
    """
    clock = asyncio.get_running_loop().time
    open_now: set[asyncio.Task[None]] = set()
    due = clock()
    try:
        for way in itertools.cycle(ways):
            await _sleep_until(due, clock(), until)
            if until.is_set():
                break
            due = max(due + 1.0 / per_second, clock())
            if len(open_now) < MOST_OPEN:
                task = asyncio.create_task(_connect(way, clock, record))
                open_now.add(task)
                task.add_done_callback(open_now.discard)
        if open_now:
            await asyncio.wait(open_now)
    finally:
        for task in open_now:
            task.cancel()


async def probe(ways: Sequence[Way]) -> list[Result]:
    """Return who answers by each way, asked once."""
    results = await connect_all([way.caller for way in ways])
    return [next(iter(counts), Failure.BROKEN) for counts in results]


async def until_steady(
    ways: Sequence[Way],
    is_right: Callable[[Way, Result], bool],
    *,
    steady_s: float = 1.0,
    patience_s: float = 30.0,
) -> bool:
    """Return whether all ways were right for some time without a break before patience ended."""
    clock = asyncio.get_running_loop().time
    began = right_since = clock()
    while clock() - began < patience_s:
        results = await probe(ways)
        if not all(is_right(way, one) for way, one in zip(ways, results, strict=True)):
            right_since = clock()
        elif clock() - right_since >= steady_s:
            return True
        await asyncio.sleep(_REST_S)
    return False


async def _connect(
    way: Way, clock: Callable[[], float], record: Callable[[Sample], object]
) -> None:
    began = clock()
    try:
        (result,) = await probe([way])
    except (OSError, NetworkError):
        # No socket could be made, or the place is gone: nobody got an answer.
        result = Failure.BROKEN
    record(Sample(way.traffic, way.node, result, clock() - began))


async def _sleep_until(due: float, now: float, until: asyncio.Event) -> None:
    """Sleep until it is time, or the event comes; always let others run."""
    if due <= now:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(due - now):
            await until.wait()
    except TimeoutError:
        pass
