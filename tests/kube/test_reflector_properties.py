"""After any sequence of writes and faults the cache equals the server, and so do its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.requests import PODS
from keepclose.kube.transport.retries import Retries
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Pod
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.fake_cluster_state import FakeWatch
from keepclose.testing.scripted_streams import (
    STALL,
    Answer,
    bookmark,
    error_event,
    failure,
    half,
    lost,
    refusal,
    stream,
)
from support.builders import pod

NAMES = ("a", "b", "c", "d")
ANSWERS: dict[str, Callable[[], Answer]] = {
    "refused": refusal,
    "lost": lost,
    "garbage": lambda: Answer(parts=(b"<html>not the API</html>",)),
    "half a page": lambda: Answer(parts=(b'{"items": [', b'{"metadata"')),
    "no items": lambda: Answer(parts=(b'{"kind": "Status"}',)),
    "stalled": lambda: Answer(parts=(STALL,)),
    "401": lambda: failure(401, "Unauthorized"),
    "403": lambda: failure(403, "Forbidden"),
    "410": lambda: failure(410, "Expired"),
    "429": lambda: failure(429, "TooManyRequests", retry_after=7),
    "500": lambda: failure(500, "InternalError"),
    "503": lambda: failure(503, "ServiceUnavailable", retry_after=3),
    "quick close": stream,
    "bookmark and close": lambda: stream(bookmark("2")),
    "410 event": lambda: stream(error_event(410, "Expired")),
    "500 event": lambda: stream(error_event(500, "InternalError")),
    "half a line": lambda: stream(half(bookmark("3"))),
}
WATCH_FAULTS: dict[str, Callable[[FakeWatch], None]] = {
    "cut": lambda watch: watch.cut(),
    "cut midway": FakeWatch.cut_midway,
    "stall": FakeWatch.stall,
    "end": FakeWatch.end,
    "garble": FakeWatch.garble,
    "expire": FakeWatch.expire,
    "repeat": FakeWatch.repeat,
    "bookmark": lambda watch: watch.send_bookmark(),
}
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("put"), st.sampled_from(NAMES)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES)),
    st.tuples(st.just("watches"), st.sampled_from(sorted(WATCH_FAULTS))),
    st.tuples(st.just("answer"), st.sampled_from(sorted(ANSWERS))),
    st.tuples(st.just("advance"), st.sampled_from((0.0, 0.5, 2.0, 40.0, 75.0, 700.0))),
    st.tuples(st.just("server"), st.sampled_from(("compact", "touch", "status", "stale", "jump"))),
)


class View:
    """What a handler makes of the notifications alone; it fails when they do not fit together."""

    def __init__(self, cache: Cache[Pod]) -> None:
        self.pods: dict[NamespacedName, Pod] = {}
        cache.subscribe(self.note)

    def note(self, old: Pod | None, new: Pod | None) -> None:
        """Apply one notification."""
        known = new or old
        assert known is not None
        key = known.metadata.key
        assert self.pods.get(key) is old
        assert old != new
        if new is None:
            del self.pods[key]
        else:
            self.pods[key] = new


async def play(
    steps: list[tuple[str, object]], *, seed: int, streams: bool, history: int
) -> tuple[FakeCluster, Cache[Pod], View]:
    """Run a reflector through the steps, then leave it alone until it must have caught up."""
    clock = FakeClock()
    cluster = FakeCluster(clock, history=history, streams_lists=streams)
    cluster.put(PODS, pod("a"))
    cache: Cache[Pod] = Cache()
    view = View(cache)
    client = Client(cluster, clock=clock, retries=Retries(max_elapsed=0))
    reflector = Reflector(client, PODS, cache, clock=clock, random=Random(seed))
    running = asyncio.ensure_future(reflector.run())
    for number, (step, what) in enumerate(steps):
        await clock.run_until_idle()
        match step, what:
            case "put", str(name):
                cluster.put(PODS, pod(name, ip=f"10.0.0.{number}"))
            case "delete", str(name):
                with suppress(KeyError):
                    cluster.delete(PODS, name, namespace="default")
            case "watches", str(fault):
                for watch in cluster.watches:
                    WATCH_FAULTS[fault](watch)
            case "answer", str(fault):
                cluster.answer_next(ANSWERS[fault]())
            case "advance", float(seconds):
                await clock.advance(seconds)
            case "server", "compact":
                cluster.store.compact()
            case "server", "touch":
                cluster.store.touch()
            case "server", "status":
                cluster.expires_by_event = not cluster.expires_by_event
            case "server", "stale":
                cluster.stale_by = 3
            case "server", "jump":
                clock.jump(-3600)
    # Each answer of the script costs at most a stalled request, and then the longest delay.
    await clock.advance(200.0 + 110.0 * sum(step == "answer" for step, _ in steps))
    running.cancel()
    await asyncio.wait((running,))
    assert running.cancelled()
    return cluster, cache, view


@settings(deadline=None, max_examples=150)
@given(
    steps=st.lists(STEPS, max_size=25),
    seed=st.integers(0, 99),
    streams=st.booleans(),
    history=st.sampled_from((2, 5, 50)),
)
def test_the_cache_becomes_what_the_server_has(
    steps: list[tuple[str, object]], seed: int, streams: bool, history: int
) -> None:
    """Whatever happens, cache and handlers end with the server's objects, told without a gap."""
    cluster, cache, view = asyncio.run(play(steps, seed=seed, streams=streams, history=history))

    assert cache.snapshot() == cluster.objects(PODS)
    assert view.pods == cache.snapshot()
