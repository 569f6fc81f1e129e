"""A reflector against scripted servers: what it asks, when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.errors import ConfigError
from keepclose.kube.requests import PODS
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.workload import Pod
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import (
    CUT,
    STALL,
    Answer,
    FakeResponse,
    Jump,
    Part,
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
from support.builders import pod


def at(name: str, version: str, *, ip: str = "10.0.0.1") -> Pod:
    """Return a pod at a resource version."""
    made = pod(name, ip=ip)
    return replace(made, metadata=replace(made.metadata, resource_version=version))


class Bench:
    """A reflector with its clock, its script and what its handlers were told."""

    def __init__(self, *answers: Answer, streams: bool = False, seed: int = 0) -> None:
        self.clock = FakeClock(monotonic=0.0)
        self.transport = ScriptedTransport(self.clock, *answers)
        self.cache: Cache[Pod] = Cache()
        self.told: list[tuple[str, str, str]] = []
        self.cache.subscribe(self._note)
        self.times: list[float] = []
        client = Client(self, clock=self.clock, retries=Retries(max_elapsed=0))
        self.reflector = Reflector(
            client,
            PODS,
            self.cache,
            clock=self.clock,
            random=Random(seed),
            streams_lists=streams,
        )

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Note when a request was made, and pass it on."""
        self.times.append(self.clock.monotonic())
        return await self.transport.send(request)

    async def close(self) -> None:
        """Pass the end on."""
        await self.transport.close()

    def _note(self, old: Pod | None, new: Pod | None) -> None:
        known = new or old
        assert known is not None
        before = old.metadata.resource_version if old else "-"
        after = new.metadata.resource_version if new else "-"
        self.told.append((known.metadata.name, before, after))

    @property
    def held(self) -> dict[str, str]:
        """The versions in the cache by name."""
        return {one.metadata.name: one.metadata.resource_version for one in self.cache.all()}

    def asked(self) -> list[str]:
        """Return each request in short: what it wants and from which version."""
        shown = []
        for query in self.transport.queries():
            version = query.get("resourceVersion", "")
            if query.get("sendInitialEvents"):
                shown.append(f"stream@{version}")
            elif query.get("watch"):
                shown.append(f"watch@{version}")
            elif query.get("continue"):
                shown.append(f"page+{query['continue']}")
            else:
                shown.append(f"list@{version}/{query.get('limit', '')}")
        return shown


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    """Run the reflector until the end of the context, and let it do what it can at once."""
    task = asyncio.ensure_future(bench.reflector.run())
    try:
        await bench.clock.run_until_idle()
        yield bench
    finally:
        task.cancel()
        await asyncio.wait((task,))
    assert task.cancelled()
    assert all(response.is_closed for response in bench.transport.responses)
    assert bench.clock.sleepers == 0


async def test_the_first_list_may_be_of_any_version_and_comes_whole() -> None:
    """The first list asks for version 0 without a limit, and the watch goes on from its version."""
    async with running(Bench(page([at("a", "3")], version="7"))) as bench:
        assert bench.asked() == ["list@0/", "watch@7"]
        assert bench.held == {"a": "3"}
        assert bench.told == [("a", "-", "3")]
        assert bench.reflector.synced.is_set()
        assert bench.reflector.last_sync == bench.clock.now()
        watch = bench.transport.queries()[1]
        assert watch["allowWatchBookmarks"] == "true"
        assert 300 <= int(watch["timeoutSeconds"]) <= 600


async def test_not_synced_before_the_first_list() -> None:
    """As long as nothing was read, the cache does not pass for complete."""
    async with running(Bench(Answer(parts=(STALL,)))) as bench:
        assert not bench.reflector.synced.is_set()
        assert bench.reflector.last_sync is None


def test_the_time_of_watches_is_spread() -> None:
    """Watches ask for times all over five to ten minutes."""

    async def asked(seed: int) -> int:
        async with running(Bench(page([], version="7"), seed=seed)) as bench:
            return int(bench.transport.queries()[1]["timeoutSeconds"])

    times = [asyncio.run(asked(seed)) for seed in range(40)]

    assert all(300 <= time <= 600 for time in times)
    assert min(times) < 340
    assert max(times) > 560


async def test_events_change_the_cache_and_move_the_version_on() -> None:
    """After the server ends a watch the next one starts at the last event or bookmark, at once."""
    bench = Bench(
        page([at("a", "3")], version="7"),
        stream(added(at("b", "8")), modified(at("a", "9")), deleted(at("b", "10")), Pause(60)),
        stream(bookmark("25"), Pause(60)),
    )
    async with running(bench):
        await bench.clock.advance(120)

        assert bench.asked() == ["list@0/", "watch@7", "watch@10", "watch@25"]
        assert bench.held == {"a": "9"}
        assert bench.told == [
            ("a", "-", "3"),
            ("b", "-", "8"),
            ("a", "3", "9"),
            ("b", "8", "-"),
        ]
        assert bench.times == [0.0, 0.0, 60.0, 120.0]
        assert bench.reflector.events == 4
        assert bench.reflector.errors == 0


@pytest.mark.parametrize(
    "expiry",
    [
        pytest.param(failure(410, "Expired"), id="as the status of the answer"),
        pytest.param(failure(410, "Gone"), id="with the older reason"),
        pytest.param(stream(error_event(410, "Expired")), id="as an event"),
        pytest.param(
            stream(modified(at("c", "8")), error_event(410, "Expired")), id="as an event later on"
        ),
    ],
)
async def test_an_expired_version_leads_to_a_list_and_its_difference(expiry: Answer) -> None:
    """Objects that vanished are told as deleted once, changed ones as such, others not at all."""
    bench = Bench(
        page([at("a", "3"), at("b", "4"), at("c", "5")], version="7"),
        expiry,
        page([at("b", "4"), at("c", "20"), at("d", "21")], version="22"),
    )
    async with running(bench):
        bench.told.clear()
        want_old_c = bench.held["c"]
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "watch@7", "list@/500", "watch@22"]
        assert bench.told == [("a", "3", "-"), ("c", want_old_c, "20"), ("d", "-", "21")]
        assert bench.held == {"b": "4", "c": "20", "d": "21"}
        assert (bench.reflector.lists, bench.reflector.relists) == (2, 1)
        assert (bench.reflector.watches, bench.reflector.errors) == (2, 1)


async def test_an_error_in_the_first_list_leads_to_pages() -> None:
    """A list that broke is read in pages of 500 from the present."""
    bench = Bench(
        Answer(parts=(b'{"items": [', CUT)),
        page([at("a", "3")], version="9", next_page="t1"),
        page([at("b", "4")], version="9"),
    )
    async with running(bench):
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "list@/500", "page+t1", "watch@9"]
        assert bench.held == {"a": "3", "b": "4"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(refusal(), id="no connection"),
        pytest.param(failure(429, "TooManyRequests"), id="too many requests"),
        pytest.param(failure(401, "Unauthorized"), id="no credentials"),
        pytest.param(failure(403, "Forbidden"), id="no permission"),
    ],
)
async def test_a_list_that_was_never_tried_is_asked_for_again_as_it_was(fault: Answer) -> None:
    """When the server did not even begin, the cheap list of any version is still the first."""
    bench = Bench(fault, page([], version="9"))
    async with running(bench):
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "list@0/", "watch@9"]


async def test_a_page_that_expired_starts_the_list_over() -> None:
    """A list whose pages would not belong together is read whole."""
    bench = Bench(
        lost(),
        page([at("a", "3")], version="9", next_page="t1"),
        failure(410, "Expired"),
        page([at("b", "4")], version="12"),
    )
    async with running(bench):
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "list@/500", "page+t1", "list@/", "watch@12"]
        assert bench.held == {"b": "4"}


async def test_a_silent_watch_is_given_up_after_70_seconds() -> None:
    """70 s after the last event, not before, the watch starts again from where it was."""
    bench = Bench(page([], version="7"), stream(Pause(30), added(at("a", "8")), STALL))
    async with running(bench):
        await bench.clock.advance(99.9)
        assert len(bench.times) == 2
        await bench.clock.advance(0.1)

        assert bench.asked() == ["list@0/", "watch@7", "watch@8"]
        assert bench.times == [0.0, 0.0, 100.0]
        assert (bench.reflector.stalls, bench.reflector.errors) == (1, 0)
        assert bench.held == {"a": "8"}


async def test_bookmarks_keep_a_quiet_watch_alive() -> None:
    """A watch that hears a bookmark each minute is never given up."""
    parts = [part for n in range(9) for part in (Pause(60), bookmark(str(10 + n)))]
    bench = Bench(page([], version="7"), stream(*parts, STALL))
    async with running(bench):
        await bench.clock.advance(9 * 60 + 69)
        assert len(bench.times) == 2
        await bench.clock.advance(1)

        assert bench.asked()[-1] == "watch@18"


async def test_bytes_without_a_whole_line_are_silence() -> None:
    """A line that trickles in is waited for as long as silence is, and no longer."""
    bench = Bench(
        page([], version="7"),
        stream(*slowly(added(at("a", "8")), pause_s=8.0), STALL),
        stream(*slowly(added(at("b", "9")), pause_s=10.0), STALL),
    )
    async with running(bench):
        await bench.clock.advance(64.0)
        assert bench.held == {"a": "8"}
        await bench.clock.advance(70.0)
        assert bench.asked()[-1] == "watch@8"
        await bench.clock.advance(70.0)

        assert bench.held == {"a": "8"}
        assert bench.asked()[-1] == "watch@8"
        assert bench.reflector.stalls == 2


async def test_a_watch_that_does_not_even_open_is_given_up() -> None:
    """Waiting for the headers of a watch is silence too."""
    bench = Bench(page([], version="7"), stream(delay_s=1000.0))
    async with running(bench):
        await bench.clock.advance(70.0)

        assert bench.asked() == ["list@0/", "watch@7", "watch@7"]


async def test_a_watch_that_opens_late_has_its_whole_time() -> None:
    """Silence is counted from when the watch was opened."""
    parts = (Pause(69), bookmark("8"), STALL)
    bench = Bench(page([], version="7"), stream(*parts, delay_s=50.0))
    async with running(bench):
        await bench.clock.advance(50 + 69 + 69.9)
        assert len(bench.times) == 2
        await bench.clock.advance(0.1)

        assert bench.asked()[-1] == "watch@8"


async def test_a_list_that_hangs_is_given_up() -> None:
    """A list without an answer fails after the client's limit and is read in pages."""
    bench = Bench(Answer(parts=(STALL,)), page([at("a", "3")], version="9"))
    async with running(bench):
        await bench.clock.advance(61.6)

        assert bench.asked()[:2] == ["list@0/", "list@/500"]
        assert bench.held == {"a": "3"}


async def test_three_silent_watches_lead_to_a_list() -> None:
    """A version from the future, as after a restored backup, gives silence; a list ends that."""
    bench = Bench(
        page([at("a", "90")], version="100"),
        *(stream(STALL) for _ in range(3)),
        page([at("a", "50")], version="60"),
    )
    async with running(bench):
        await bench.clock.advance(210.0)

        assert bench.asked() == ["list@0/", *["watch@100"] * 3, "list@/500", "watch@60"]
        assert bench.held == {"a": "50"}


async def test_three_quick_closes_lead_to_a_list() -> None:
    """Watches that end at once without an event or error do not go on for ever."""
    bench = Bench(
        page([at("a", "3")], version="7"),
        *(stream() for _ in range(3)),
        page([], version="9"),
    )
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 6)

        assert bench.asked() == ["list@0/", *["watch@7"] * 3, "list@/500", "watch@9"]
        assert bench.told == [("a", "-", "3"), ("a", "3", "-")]
        assert (bench.reflector.short_watches, bench.reflector.errors) == (3, 0)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((bookmark("7"),), id="one that gave a bookmark"),
        pytest.param((Pause(1.0),), id="one that lasted a second"),
    ],
)
async def test_a_good_watch_between_quick_closes_counts_anew(parts: tuple[Part, ...]) -> None:
    """Only quick closes in a row are a reason to read everything."""
    short = (stream(), stream())
    bench = Bench(page([], version="7"), *short, stream(*parts), *short, stream(Pause(50)))
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 7)

        assert bench.asked() == ["list@0/", *["watch@7"] * 6]
        assert bench.reflector.short_watches == 4


async def test_quick_closes_of_streams_lead_to_pages() -> None:
    """When watches give nothing the stream may be at fault, so the list comes in pages."""
    bench = Bench(
        stream(bookmark("7", ends_initial=True), Pause(5)),
        *(stream() for _ in range(3)),
        page([], version="9"),
        streams=True,
    )
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 6)

        assert bench.asked() == ["stream@", *["watch@7"] * 3, "list@/500", "watch@9"]
        assert bench.reflector.streams_lists


async def test_no_server_is_hammered() -> None:
    """Watches that end at once are opened less and less often, even if each gives an event."""
    lines = [stream(bookmark(str(n))) for n in range(10, 30)]
    bench = Bench(page([], version="7"), *lines)
    async with running(bench):
        await bench.clock.advance(60.0)

        assert len(bench.times) < 12
        gaps = [b - a for a, b in zip(bench.times[1:], bench.times[2:], strict=False)]
        assert all(gap >= 0.8 for gap in gaps)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(refusal, id="refused connections"),
        pytest.param(lost, id="lost connections"),
        pytest.param(lambda: failure(500, "InternalError"), id="failures of the server"),
        pytest.param(lambda: failure(401, "Unauthorized"), id="missing credentials"),
        pytest.param(lambda: failure(403, "Forbidden"), id="missing permissions"),
        pytest.param(lambda: Answer(parts=(b"<html>",)), id="garbage"),
        pytest.param(lambda: failure(404, "NotFound"), id="a missing kind"),
        pytest.param(lambda: stream(half(bookmark("9"))), id="half a line"),
    ],
)
async def test_failures_are_retried_for_ever_at_growing_delays(fault: Callable[[], Answer]) -> None:
    """No failure ends the reflector; the delays stay between 0.8 and 30 s and grow."""
    bench = Bench(*(fault() for _ in range(60)), seed=3)
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 41)

        gaps = [b - a for a, b in zip(bench.times, bench.times[1:], strict=False)]
        ends = [min(30.0, 0.8 * 2 ** (n + 1)) for n in range(len(gaps))]
        assert all(0.8 <= gap <= end for gap, end in zip(gaps, ends, strict=True))
        assert max(gaps[-20:]) > 20.0
        assert bench.reflector.errors == 41


async def test_delays_start_anew_after_a_healthy_minute() -> None:
    """A watch that lived for a minute wipes out the failures before it; a shorter one does not."""
    minute = [part for n in range(2) for part in (Pause(60), bookmark(str(20 + n)))]
    bench = Bench(
        page([], version="7"),
        *(lost() for _ in range(8)),
        stream(Pause(30), bookmark("10"), CUT),
        stream(*minute, CUT),
    )
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 12)
        assert bench.reflector._backoff.failures == 1
        assert bench.times[11] - bench.times[10] - 120.0 <= 1.6
        assert bench.times[10] - bench.times[9] - 30.0 > 1.6


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(failure(429, "TooManyRequests", retry_after=45), id="too many requests"),
        pytest.param(failure(503, "ServiceUnavailable", retry_after=45), id="unavailable"),
        pytest.param(failure(500, "InternalError", retry_after=45), id="a failure"),
    ],
)
async def test_a_time_to_come_back_is_honoured(fault: Answer) -> None:
    """Neither a list nor a watch is asked for before the time that the server named."""
    bench = Bench(fault, page([], version="7"), fault)
    async with running(bench):
        await bench.clock.advance(44.9)
        assert len(bench.times) == 1
        await bench.clock.advance(0.1)
        assert len(bench.times) == 3
        await bench.clock.advance(44.9)
        assert len(bench.times) == 3
        await bench.clock.advance(0.1)

        assert bench.asked()[-1] == "watch@7"
        assert bench.times == [0.0, 45.0, 45.0, 90.0]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param((CUT,), id="a cut"),
        pytest.param((half(added(at("b", "9"))),), id="half a line and an orderly end"),
        pytest.param((half(added(at("b", "9"))), CUT), id="half a line and a cut"),
        pytest.param((b"<html>502</html>\n",), id="garbage"),
        pytest.param((error_event(500, "InternalError"),), id="an error event"),
    ],
)
async def test_a_broken_watch_goes_on_from_its_last_event(fault: tuple[Part, ...]) -> None:
    """Nothing that came whole is lost, nothing that came in half is taken, nothing is read anew."""
    bench = Bench(page([], version="7"), stream(added(at("a", "8")), *fault), stream(STALL))
    async with running(bench):
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "watch@7", "watch@8"]
        assert bench.held == {"a": "8"}
        assert bench.reflector.errors == 1


async def test_three_watches_of_garbage_lead_to_a_list() -> None:
    """A server that cannot serve one event is asked for everything instead."""
    garbage = [stream(b"garbage\n") for _ in range(3)]
    bench = Bench(page([], version="7"), *garbage, page([at("a", "9")], version="9"))
    async with running(bench):
        await bench.clock.run_until(lambda: len(bench.times) == 6)

        assert bench.asked() == ["list@0/", *["watch@7"] * 3, "list@/500", "watch@9"]


async def test_a_version_that_the_server_does_not_understand_is_dropped() -> None:
    """A refusal that will not pass, such as of another server's version, leads to a list."""
    bench = Bench(page([], version="7"), failure(400, "BadRequest"), page([], version="b8"))
    async with running(bench):
        await bench.clock.advance(1.6)

        assert bench.asked() == ["list@0/", "watch@7", "list@/500", "watch@b8"]


async def test_repeats_are_ignored() -> None:
    """Events that come twice, or late, are told once and change nothing."""
    bench = Bench(
        page([at("a", "3")], version="7"),
        stream(
            added(at("b", "8")),
            added(at("b", "8")),
            modified(at("b", "9")),
            modified(at("b", "8")),
            deleted(at("b", "8")),
            deleted(at("a", "10")),
            deleted(at("a", "10")),
            added(at("a", "3")),
            STALL,
        ),
    )
    async with running(bench):
        assert bench.told == [("a", "-", "3"), ("b", "-", "8"), ("b", "8", "9"), ("a", "3", "-")]
        assert bench.held == {"b": "9"}
        assert bench.reflector.version == "10"


async def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    """Without numbers the last event counts, and repeats are known by being equal."""
    bench = Bench(
        page([at("a", "x3")], version="x7"),
        stream(modified(at("a", "x2")), modified(at("a", "x2")), deleted(at("a", "x1")), STALL),
    )
    async with running(bench):
        assert bench.told == [("a", "-", "x3"), ("a", "x3", "x2"), ("a", "x2", "-")]
        assert bench.reflector.version == "x1"


async def test_objects_that_cannot_be_read_are_skipped() -> None:
    """One broken object is told of once; it hides no other, and its last good state stays."""
    broken = {"metadata": {"name": "b", "namespace": "default", "resourceVersion": "9"}, "spec": 5}
    bench = Bench(
        page([at("a", "3"), at("b", "4"), at("c", "5")], version="7"),
        stream(modified(broken), added(at("d", "10")), error_event(410)),
        page([at("a", "3"), broken], version="20"),
        stream(STALL),
    )
    with capture_logs() as logs:
        async with running(bench):
            await bench.clock.advance(1.6)

            assert bench.held == {"a": "3", "b": "4"}
            assert bench.asked()[1:3] == ["watch@7", "list@/500"]
            assert bench.reflector.rejected == 2
    skipped = [log for log in logs if log["event"] == "object skipped"]
    assert [log["object"] for log in skipped] == ["default/b"]


async def test_a_broken_object_can_be_deleted() -> None:
    """The deletion of an object that cannot be read is a deletion all the same."""
    metadata = {"name": "a", "namespace": "default", "resourceVersion": "9"}
    bench = Bench(
        page([at("a", "3")], version="7"), stream(deleted({"metadata": metadata, "spec": 5}), STALL)
    )
    async with running(bench):
        assert bench.told == [("a", "-", "3"), ("a", "3", "-")]


async def test_a_clock_that_is_set_back_changes_nothing() -> None:
    """The wall clock plays no part in when a watch is given up."""
    bench = Bench(
        page([], version="7"), stream(Pause(10), Jump(-86400), added(at("a", "8")), STALL)
    )
    async with running(bench):
        await bench.clock.advance(79.9)
        assert len(bench.times) == 2
        await bench.clock.advance(0.1)

        assert bench.asked()[-1] == "watch@8"


async def test_missing_permissions_are_told_once() -> None:
    """A refusal that repeats is one line in the log, and the reflector works once it is lifted."""
    no = "pods is forbidden: no list for you"
    bench = Bench(*(failure(403, "Forbidden", no) for _ in range(5)), page([], version="7"))
    with capture_logs() as logs:
        async with running(bench):
            await bench.clock.run_until(bench.reflector.synced.is_set)
    told = [(log["log_level"], log["event"], log.get("error")) for log in logs]
    assert told == [
        ("warning", "request failed", no),
        ("info", "request succeeded again", None),
    ]


async def test_settings_that_cannot_work_end_it() -> None:
    """A ConfigError is the one failure that no patience mends."""

    class Misconfigured(ScriptedTransport):
        async def send(self, request: ApiRequest) -> FakeResponse:
            raise ConfigError(f"no credentials for {request.path}")

    clock = FakeClock()
    client = Client(Misconfigured(clock), clock=clock)
    cache: Cache[Pod] = Cache()

    with pytest.raises(ConfigError, match="no credentials for /api/v1/pods"):
        await Reflector(client, PODS, cache, clock=clock).run()


async def test_what_a_handler_raises_comes_out() -> None:
    """A mistake in a handler is not taken for one of the server."""
    clock = FakeClock()
    transport = ScriptedTransport(clock, page([], version="7"), stream(added(at("a", "8"))))
    cache: Cache[Pod] = Cache()

    def fail(_old: Pod | None, _new: Pod | None) -> None:
        raise ZeroDivisionError

    cache.subscribe(fail)
    client = Client(transport, clock=clock)

    with pytest.raises(ZeroDivisionError):
        await Reflector(client, PODS, cache, clock=clock, streams_lists=False).run()


async def test_namespace_and_selectors_are_asked_for_every_time() -> None:
    """Lists and watches of a part of the objects ask for the same part."""
    clock = FakeClock()
    transport = ScriptedTransport(clock, page([], version="7"))
    cache: Cache[Pod] = Cache()
    reflector = Reflector(
        Client(transport, clock=clock),
        PODS,
        cache,
        clock=clock,
        namespace="shop",
        label_selector="app=web",
        field_selector="spec.nodeName=n1",
        streams_lists=False,
    )
    task = asyncio.ensure_future(reflector.run())
    await clock.run_until_idle()
    task.cancel()
    await asyncio.wait((task,))

    assert [request.path for request in transport.requests] == ["/api/v1/namespaces/shop/pods"] * 2
    assert [(q["labelSelector"], q["fieldSelector"]) for q in transport.queries()] == [
        ("app=web", "spec.nodeName=n1")
    ] * 2


async def test_a_streamed_list_becomes_the_cache_at_its_end() -> None:
    """Objects are taken in together when the marked bookmark comes, and the watch goes on."""
    bench = Bench(
        stream(
            added(at("a", "3")),
            added(at("b", "5")),
            Pause(5),
            deleted(at("b", "6")),
            bookmark("7", ends_initial=True),
            added(at("c", "8")),
            CUT,
        ),
        streams=True,
    )
    async with running(bench):
        assert bench.told == []
        assert not bench.reflector.synced.is_set()
        await bench.clock.advance(5.0)
        assert bench.reflector.synced.is_set()
        await bench.clock.advance(1.6)

        assert bench.told == [("a", "-", "3"), ("c", "-", "8")]
        assert bench.asked() == ["stream@", "watch@8"]
        assert (bench.reflector.lists, bench.reflector.watches) == (1, 2)


@pytest.mark.parametrize(
    ("refusing", "want_after_s"),
    [
        pytest.param(failure(400, "BadRequest"), 0.0, id="a bad request"),
        pytest.param(failure(422, "Invalid"), 0.0, id="an invalid one"),
        pytest.param(failure(405, "MethodNotAllowed"), 0.0, id="not allowed"),
        pytest.param(stream(added(at("x", "1")), bookmark("2"), STALL), 0.0, id="a plain bookmark"),
        pytest.param(stream(added(at("x", "1")), STALL), 10.0, id="objects and then silence"),
        pytest.param(stream(STALL), 10.0, id="silence"),
        pytest.param(stream(added(at("x", "1")), Pause(2)), 2.0, id="an end without the bookmark"),
    ],
)
async def test_servers_that_cannot_stream_lists_are_asked_for_plain_ones(
    refusing: Answer, want_after_s: float
) -> None:
    """The plain list follows without delay, nothing half is taken in, and it is remembered."""
    bench = Bench(
        refusing,
        page([at("a", "3")], version="7"),
        failure(410, "Expired"),
        page([at("a", "3")], version="8"),
        streams=True,
    )
    async with running(bench):
        await bench.clock.advance(want_after_s)
        assert bench.asked() == ["stream@", "list@0/", "watch@7"]
        await bench.clock.advance(3.2)

        assert bench.asked()[3:] == ["list@/500", "watch@8"]
        assert bench.told == [("a", "-", "3")]
        assert not bench.reflector.streams_lists


async def test_a_streamed_list_that_breaks_is_followed_by_pages() -> None:
    """An accident is no inability: this list is read in pages, the next one is streamed again."""
    bench = Bench(
        stream(added(at("x", "1")), CUT),
        page([at("a", "3")], version="7"),
        failure(410, "Expired"),
        stream(added(at("b", "9")), bookmark("9", ends_initial=True), STALL),
        streams=True,
    )
    async with running(bench):
        await bench.clock.advance(5.0)

        assert bench.asked() == ["stream@", "list@/500", "watch@7", "stream@"]
        assert bench.told == [("a", "-", "3"), ("a", "3", "-"), ("b", "-", "9")]


@pytest.mark.parametrize(
    "refusing",
    [
        pytest.param(failure(500, "InternalError"), id="as an answer"),
        pytest.param(stream(error_event(500, "InternalError")), id="as an event"),
    ],
)
async def test_a_server_with_an_old_etcd_is_asked_for_pages_at_once(refusing: Answer) -> None:
    """It finds out only when it is asked that it cannot stream; nobody has to wait for that."""
    bench = Bench(refusing, page([at("a", "3")], version="7"), streams=True)
    async with running(bench):
        assert bench.asked() == ["stream@", "list@/500", "watch@7"]
        assert bench.told == [("a", "-", "3")]


async def test_unreadable_objects_of_a_streamed_list_are_skipped() -> None:
    """A broken object among the initial ones hides no other."""
    broken = {"metadata": {"name": "b", "namespace": "default", "resourceVersion": "4"}, "spec": 5}
    bench = Bench(
        stream(added(broken), added(at("a", "3")), bookmark("7", ends_initial=True), STALL),
        streams=True,
    )
    async with running(bench):
        assert bench.held == {"a": "3"}
        assert bench.reflector.rejected == 1


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"kind": "Status"}, id="no items"),
        pytest.param({"items": [], "metadata": {}}, id="no version"),
    ],
)
async def test_any_answer_that_is_no_list_changes_nothing(odd: dict[str, object]) -> None:
    """A proxy's empty answer does not pass for an empty list."""
    bench = Bench(
        page([at("a", "3")], version="7"),
        failure(410, "Expired"),
        answer(odd),
        page([at("a", "3")], version="9"),
    )
    async with running(bench):
        await bench.clock.advance(5.0)

        assert bench.told == [("a", "-", "3")]
        assert bench.asked()[-1] == "watch@9"


async def test_many_pages_and_a_stale_start_end_at_the_present() -> None:
    """From a server that lags behind, the watch brings the rest; later lists are of the present."""
    clock = FakeClock()
    cluster = FakeCluster(clock, history=5000, streams_lists=False)
    for number in range(1200):
        cluster.put(PODS, pod(f"p{number:04}"))
    cluster.stale_by = 100
    cache: Cache[Pod] = Cache()
    client = Client(cluster, clock=clock, retries=Retries(max_elapsed=0))
    task = asyncio.ensure_future(Reflector(client, PODS, cache, clock=clock).run())
    await clock.run_until_idle()
    assert cache.snapshot() == cluster.objects(PODS)

    cluster.watches[0].expire()
    cluster.delete(PODS, "p0000", namespace="default")
    await clock.advance(2.0)

    assert cache.snapshot() == cluster.objects(PODS)
    lists = [dict(r.query) for r in cluster.requests if "watch" not in dict(r.query)]
    assert [query.get("resourceVersion") for query in lists] == ["0", None, None, None]
    assert [query.get("limit") for query in lists] == [None, "500", "500", "500"]
    task.cancel()
    await asyncio.wait((task,))
