"""Tests of watch streams: framing, decoding, and every way in which a stream can end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import (
    ApiError,
    BrokenStream,
    ConnectionLost,
    Expired,
    ServerError,
    TimedOut,
)
from keepclose.kube.requests import CONFIG_MAPS, PODS, SERVICES, Kind
from keepclose.kube.watch import stream
from keepclose.kube.watch.stream import EventDecoder, LineSplitter, WatchEvent, read_events
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.meta import ObjectMeta
from keepclose.testing.fake_clock import FakeClock
from support.builders import pod


def line(event_type: str, obj: Any) -> bytes:
    """Return one event as a server writes it."""
    return msgspec.json.encode({"type": event_type, "object": obj}) + b"\n"


def texts(name: str, version: str, **data: str) -> ConfigMap:
    """Return a ConfigMap of a version."""
    return ConfigMap(metadata=ObjectMeta(name=name, resource_version=version), data=data)


async def arriving(chunks: Iterable[bytes], then: Exception | None = None) -> AsyncIterator[bytes]:
    """Iterate over chunks, and then fail or end."""
    for chunk in chunks:
        yield chunk
    if then is not None:
        raise then


async def collect(
    chunks: Iterable[bytes], kind: Kind[Any] = CONFIG_MAPS, then: Exception | None = None
) -> tuple[list[WatchEvent[Any]], Exception | None]:
    """Return the events of a stream, and what ended it unless that was the server."""
    events = []
    decoder = EventDecoder(kind, where="watch")
    try:
        async for event in read_events(
            arriving(chunks, then), decoder, clock=SystemClock(), where="watch"
        ):
            events.append(event)  # noqa: PERF401 - events before an error count
    except Exception as error:  # noqa: BLE001 - every end is looked at
        return events, error
    return events, None


BOOKMARK = line("BOOKMARK", {"kind": "ConfigMap", "metadata": {"resourceVersion": "12"}})
STREAM = (
    line("ADDED", texts("a", "10", text="with \n and ü"))
    + line("MODIFIED", texts("a", "11"))
    + BOOKMARK
    + line("DELETED", texts("a", "13"))
)
WANT_EVENTS = [
    WatchEvent("ADDED", texts("a", "10", text="with \n and ü"), "10"),
    WatchEvent("MODIFIED", texts("a", "11"), "11"),
    WatchEvent("BOOKMARK", None, "12"),
    WatchEvent("DELETED", texts("a", "13"), "13"),
]


async def test_a_stream_becomes_events() -> None:
    """Each line is one event, in order, and a clean end ends the iteration."""
    assert await collect([STREAM]) == (WANT_EVENTS, None)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    """Where the bytes are cut, in the middle of a character too, makes no difference."""
    ends = [*sorted(cuts), len(STREAM)]
    starts = [0, *sorted(cuts)]
    chunks = [STREAM[start:end] for start, end in zip(starts, ends, strict=True)]
    assert asyncio.run(collect(chunks)) == (WANT_EVENTS, None)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.binary(max_size=6).map(lambda b: b.replace(b"x", b"\n")), max_size=12))
def test_lines_are_those_of_the_whole(chunks: list[bytes]) -> None:
    """Lines cut from chunks are the lines of all bytes together, and no byte is lost."""
    lines = LineSplitter()
    found = [one for chunk in chunks for one in lines.feed(chunk)]
    assert [*found, lines.rest()] == b"".join(chunks).split(b"\n")
    assert lines.size == len(lines.rest())


async def test_empty_lines_are_passed_over() -> None:
    """Blank lines between events mean nothing."""
    chunks = [b"\n\r\n", STREAM.replace(b"\n{", b"\n\n{"), b"\n \n ", b""]
    assert await collect(chunks) == (WANT_EVENTS, None)


async def test_a_last_line_may_lack_its_end() -> None:
    """A whole object at the end counts although no newline follows."""
    assert await collect([STREAM[:-1]]) == (WANT_EVENTS, None)


@pytest.mark.parametrize("cut", [1, 2, 30])
async def test_a_cut_in_the_middle_of_a_line_is_a_lost_connection(cut: int) -> None:
    """Half a line at the end is no event, and the reader is told."""
    events, error = await collect([STREAM[: -cut - 1]])
    assert events == WANT_EVENTS[:3]
    assert type(error) is ConnectionLost
    assert str(error) == "watch: the watch was cut in the middle of a line; watch again"


async def test_events_before_a_broken_connection_are_kept() -> None:
    """What came whole is given before the transport's error is raised."""
    lost = ConnectionLost("h", "gone")
    assert await collect([STREAM, b'{"type"'], then=lost) == (WANT_EVENTS, lost)


@pytest.mark.parametrize(
    ("bad", "want_text"),
    [
        pytest.param(b"<html>", "a line of the watch is not an event", id="no JSON"),
        pytest.param(b'{"object":{}}', "a line of the watch is not an event", id="no type"),
        pytest.param(b'{"type":"ADDED"}', "a line of the watch is not an event", id="no object"),
        pytest.param(
            b'{"type":1,"object":{}}', "a line of the watch is not an event", id="odd type"
        ),
        pytest.param(b'\xff{"type":"A"', "a line of the watch is not an event", id="no UTF-8"),
        pytest.param(
            b'{"type":"MOVED","object":{}}', "an event of the unknown type 'MOVED'", id="new type"
        ),
        pytest.param(b'{"type":"ADDED","object":7}', "an event without an object", id="a number"),
        pytest.param(
            b'{"type":"ADDED","object":{"metadata":"\xff"}}',
            "an event without an object",
            id="odd text",
        ),
        pytest.param(
            b'{"type":"BOOKMARK","object":7}', "a bookmark without metadata", id="odd bookmark"
        ),
    ],
)
async def test_a_line_that_is_no_event_is_a_broken_stream(bad: bytes, want_text: str) -> None:
    """Events before it are kept; the error shows the line and is a transport error."""
    events, error = await collect([STREAM + bad + b"\n" + STREAM])
    assert events == WANT_EVENTS
    assert type(error) is BrokenStream
    assert str(error).startswith(f"watch: {want_text}")


@pytest.mark.parametrize(
    ("status", "want_class", "want_text"),
    [
        pytest.param(
            {"code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"},
            Expired,
            "too old resource version: 1 (9)",
            id="expired",
        ),
        pytest.param({"code": 410, "reason": "Gone", "message": "m"}, Expired, "m", id="gone"),
        pytest.param(
            {"code": 500, "reason": "InternalError", "message": "m"}, ServerError, "m", id="500"
        ),
        pytest.param({"code": 400}, ApiError, "HTTP status 400", id="without a message"),
        pytest.param(7, ServerError, "the watch ended with an error", id="no Status at all"),
    ],
)
async def test_an_error_event_raises_its_status(
    status: Any, want_class: type[ApiError], want_text: str
) -> None:
    """An ERROR event ends the watch with the error of the tree."""
    events, error = await collect([STREAM + line("ERROR", status)])
    assert events == WANT_EVENTS
    assert isinstance(error, want_class)
    assert (str(error), error.request) == (want_text, "watch")


async def test_an_error_event_that_cannot_be_read_is_one() -> None:
    """Bytes that are no text inside an ERROR event do not hide that the watch has failed."""
    events, error = await collect([STREAM + b'{"type":"ERROR","object":{"message":"\xff"}}\n'])
    assert events == WANT_EVENTS
    assert str(error) == "the watch ended with an error"


async def test_bookmarks_say_where_the_initial_events_end() -> None:
    """The annotation of a bookmark is read, and only "true" counts."""

    def bookmark(**annotations: str | None) -> bytes:
        found = {"resourceVersion": "5", "annotations": annotations}
        return line("BOOKMARK", {"metadata": found})

    end = bookmark(**{"k8s.io/initial-events-end": "true"})
    other = bookmark(**{"k8s.io/initial-events-end": "false", "x": None})
    bare = line("BOOKMARK", {"metadata": None})
    events, _ = await collect([end, other, bare])
    assert [(e.resource_version, e.initial_events_end) for e in events] == [
        ("5", True),
        ("5", False),
        ("", False),
    ]


async def test_nulls_do_not_spoil_an_event() -> None:
    """Null members count as absent, as in lists."""
    odd = {"metadata": {"name": "a", "resourceVersion": "3", "labels": None}, "spec": None}
    ((event,), error) = await collect([line("ADDED", odd)], PODS)
    assert error is None
    assert event.object is not None
    assert (event.type, event.object.metadata.name, event.resource_version) == ("ADDED", "a", "3")
    assert event.rejected is None


async def test_an_unreadable_object_does_not_end_the_watch() -> None:
    """It is told with its name, version and cause, and the watch goes on."""
    bad = {
        "metadata": {"name": "web", "namespace": "shop", "resourceVersion": "8"},
        "spec": {"type": 1},
    }
    (first, second), error = await collect([line("MODIFIED", bad), BOOKMARK], SERVICES)
    assert error is None
    assert (first.type, first.object, first.resource_version) == ("MODIFIED", None, "8")
    assert first.rejected is not None
    name, cause = first.rejected
    assert (name, str(cause)) == (
        "shop/web",
        "spec.type: Invalid value: 1: expected a string, got a number",
    )
    assert second.type == "BOOKMARK"


@pytest.mark.parametrize(
    ("metadata", "want_version"),
    [
        pytest.param({"resourceVersion": "8", "annotations": {"a": 1}}, "8", id="odd annotations"),
        pytest.param({"resourceVersion": 8}, "", id="an odd version"),
        pytest.param({"resourceVersion": None, "name": 1}, "", id="no version"),
    ],
)
async def test_the_version_is_read_from_unreadable_objects(
    metadata: dict[str, Any], want_version: str
) -> None:
    """A watch can go on after an object that breaks its types anywhere else."""
    ((event,), _) = await collect([line("ADDED", {"metadata": metadata})], SERVICES)
    assert event.rejected is not None
    assert event.resource_version == want_version


async def test_a_deleted_object_is_known_by_its_metadata() -> None:
    """That something is gone is told even when the rest of it cannot be read."""
    gone = {"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "8"}, "spec": 1}
    worse = {"metadata": {"name": 7}, "spec": 1}
    (first, second), _ = await collect([line("DELETED", gone), line("DELETED", worse)], SERVICES)
    assert first.object is not None
    assert first.object.key == ("shop", "web")
    assert (first.resource_version, first.rejected) == ("8", None)
    assert second.object is None
    assert second.rejected is not None
    name, cause = second.rejected
    assert name == "7"
    assert str(cause) == "metadata.name: Invalid value: 7: expected a string, got a number"


async def test_untyped_kinds_have_versions_too() -> None:
    """Plain and raw objects come with their resource version."""
    body = line("ADDED", {"metadata": {"resourceVersion": "4"}, "x": 1})
    plain: Kind[dict[str, Any]] = Kind("", "v1", "xs", "X", True, dict)
    ((event,), _) = await collect([body], plain)
    assert event == WatchEvent("ADDED", {"metadata": {"resourceVersion": "4"}, "x": 1}, "4")
    raw = Kind("", "v1", "xs", "X", True, msgspec.Raw)
    ((event,), _) = await collect([body], raw)
    assert event.object is not None
    assert (bytes(event.object), event.resource_version) == (
        b'{"metadata":{"resourceVersion":"4"},"x":1}',
        "4",
    )


async def test_an_endless_line_is_refused() -> None:
    """A line far longer than any object ends the watch before it fills the memory."""
    chunk = b"x" * (1 << 20)
    chunks = (chunk for _ in range((stream.MAX_LINE >> 20) + 5))
    events, error = await collect(chunks)
    assert (events, type(error)) == ([], BrokenStream)
    assert str(error) == "watch: a line of the watch has more than 64 MB"


async def test_a_silent_watch_times_out_by_the_clock() -> None:
    """Silence beyond the limit raises TimedOut; every byte starts the time anew."""
    clock = FakeClock()
    feed: asyncio.Queue[bytes] = asyncio.Queue()

    async def slowly() -> AsyncIterator[bytes]:
        while True:
            yield await feed.get()

    found: list[Any] = []

    async def read() -> None:
        decoder = EventDecoder(PODS)
        async for event in read_events(
            slowly(), decoder, clock=clock, idle_timeout=70, where="watch of /pods"
        ):
            found.append(event.object)  # noqa: PERF401 - the end is an error

    task = asyncio.create_task(read())
    await clock.advance(69)
    feed.put_nowait(line("ADDED", pod("a"))[:10])
    await clock.advance(69)
    feed.put_nowait(line("ADDED", pod("a"))[10:])
    await clock.advance(69)
    assert (found, task.done()) == ([pod("a")], False)
    await clock.advance(1)
    with pytest.raises(TimedOut) as raised:
        await task
    assert str(raised.value) == "watch of /pods: the watch was silent for 70 s; watch again"
