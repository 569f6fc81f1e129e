"""A script of answers does what it says."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from keepclose.kube.errors import ConnectionLost, ConnectionRefused, TimedOut
from keepclose.kube.transport.transport import ApiRequest
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.scripted_streams import (
    CUT,
    STALL,
    Answer,
    Jump,
    Pause,
    ScriptedTransport,
    added,
    answer,
    bookmark,
    deleted,
    error_event,
    failure,
    half,
    lost,
    modified,
    page,
    refusal,
    slowly,
    stream,
)

GET = ApiRequest("GET", "/api/v1/pods", timeout=60.0)
WATCH = ApiRequest("GET", "/api/v1/pods", streaming=True, timeout=60.0)


async def test_answers_come_in_order_and_requests_are_kept() -> None:
    """Each request gets the next answer, and can be looked at later."""
    clock = FakeClock()
    transport = ScriptedTransport(clock, answer({"a": 1}))
    transport.script(failure(429, "TooManyRequests", "later", retry_after=5))
    assert transport.left == 2

    first = await transport.send(GET)
    second = await transport.send(WATCH)

    assert (first.status, await first.read()) == (200, b'{"a":1}')
    assert second.status == 429
    assert second.headers["retry-after"] == second.headers["Retry-After"] == "5"
    status = msgspec.json.decode(await second.read())
    assert (status["code"], status["reason"]) == (429, "TooManyRequests")
    assert status["message"] == "later"
    assert transport.requests == [GET, WATCH]
    assert transport.queries() == [{}, {}]
    assert transport.left == 0
    await transport.close()
    assert transport.is_closed


async def test_connections_can_fail() -> None:
    """A refusal and a loss are raised instead of an answer."""
    transport = ScriptedTransport(FakeClock(), refusal(), lost())

    with pytest.raises(ConnectionRefused):
        await transport.send(GET)
    with pytest.raises(ConnectionLost):
        await transport.send(GET)


async def test_streams_pause_jump_and_break() -> None:
    """Parts come at their times, the clock jumps in between, and the cut comes last."""
    clock = FakeClock(now=0.0, monotonic=0.0)
    transport = ScriptedTransport(
        clock, stream(b"one", Pause(5), b"two", Jump(-100), b"three", CUT, delay_s=2.0)
    )
    seen: list[tuple[bytes, float, float]] = []

    async def read() -> None:
        async for chunk in (await transport.send(WATCH)).chunks():
            seen.append((chunk, clock.monotonic(), clock.now()))  # noqa: PERF401 - until the cut

    reading = asyncio.ensure_future(read())
    await clock.advance(7.0)

    assert seen == [(b"one", 2.0, 2.0), (b"two", 7.0, 7.0), (b"three", 7.0, -93.0)]
    with pytest.raises(ConnectionLost):
        reading.result()


async def test_a_stalled_answer_times_out_but_a_stalled_stream_does_not() -> None:
    """Limits are for whole answers; streams are for their readers to give up."""
    clock = FakeClock()
    transport = ScriptedTransport(clock, Answer(parts=(STALL,)), stream(STALL))
    reading = asyncio.ensure_future((await transport.send(GET)).read())
    watching = asyncio.ensure_future((await transport.send(WATCH)).read())

    await clock.advance(60.0)

    with pytest.raises(TimedOut, match="no whole answer in 60"):
        reading.result()
    assert not watching.done()
    watching.cancel()
    await asyncio.wait((watching,))


async def test_after_the_script_nothing_comes() -> None:
    """A request too many waits for ever."""
    clock = FakeClock()
    transport = ScriptedTransport(clock)
    reading = asyncio.ensure_future((await transport.send(WATCH)).read())

    await clock.advance(10_000.0)

    assert not reading.done()
    reading.cancel()
    await asyncio.wait((reading,))


def test_lines_are_those_of_the_api() -> None:
    """Each builder gives one line of a watch."""
    obj = {"metadata": {"name": "a"}}

    assert added(obj) == b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'
    assert modified(obj).startswith(b'{"type":"MODIFIED",')
    assert deleted(obj).startswith(b'{"type":"DELETED",')
    assert bookmark("7") == (b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"7"}}}\n')
    assert b'"k8s.io/initial-events-end":"true"' in bookmark("7", ends_initial=True)
    assert b'"code":410' in error_event(410, "Expired")
    assert half(b"12345678") == b"1234"


def test_slow_lines_are_whole_in_the_end() -> None:
    """The pieces of a slow line make the line, with a pause before each."""
    parts = slowly(added({"a": 1}), pause_s=3.0, chunks=4)

    assert b"".join(part for part in parts if isinstance(part, bytes)) == added({"a": 1})
    assert [part for part in parts if isinstance(part, Pause)] == [Pause(3.0)] * 4


def test_pages_name_their_version_and_the_next_page() -> None:
    """A page without a token is the last one."""
    bodies = [
        msgspec.json.decode(part)
        for made in (page([{"a": 1}], version="7"), page([], version="8", next_page="t"))
        for part in made.parts
        if isinstance(part, bytes)
    ]

    assert bodies[0]["metadata"] == {"resourceVersion": "7"}
    assert bodies[0]["items"] == [{"a": 1}]
    assert bodies[1]["metadata"] == {"resourceVersion": "8", "continue": "t"}
