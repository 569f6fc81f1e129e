"""The loop that reads demand, the Services that it tracks, and what it says of itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from keepclose.demand.opening import open_demand
from keepclose.demand.reader import DemandMetrics, DemandReader
from keepclose.demand.settings import DemandMeasure, DemandOptions, DemandOrigin, demand_errors
from keepclose.demand.sources import DemandReadError, DemandReading
from keepclose.demand.store import DemandStore
from keepclose.kube.client import Client
from keepclose.kube.errors import ConfigError
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import DEMAND_ANNOTATION
from keepclose.routing.demand import DemandBasis, DemandSettings
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.traffic_shares import Shares
from keepclose.slices.settings import ClusterNodes
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from support import builders

THIRDS = Shares({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
WEB = NamespacedName("default", "web")
STEP = {"a": 70.0, "b": 20.0, "c": 10.0}


class Source:
    """Answers with what the test sets, or raises it."""

    def __init__(self) -> None:
        self.answer: DemandReading | Exception | None = None
        self.asked = 0

    async def read(self) -> DemandReading:
        """Answer; without an answer, never."""
        self.asked += 1
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer

    def measure(self, **rates: float) -> None:
        """Answer with these rates of the Service from now on."""
        self.answer = DemandReading({WEB: rates})


class Bed:
    """A reader that runs on a clock of its own."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.source = Source()
        self.by_cpu = THIRDS
        self.changed: list[NamespacedName] = []
        self.store = DemandStore(
            DemandSettings(),
            source="test",
            by_cpu=lambda: self.by_cpu,
            now=self.clock.monotonic,
        )
        self.reader = DemandReader(self.source, self.store, clock=self.clock, period_s=30.0)

    def shares(self, service: Service | None = None) -> dict[str, float]:
        """Return the shares of the Service, rounded."""
        shares = self.store.shares_of(service or builders.service())
        return {zone: round(share, 3) for zone, share in shares.by_zone.items()}


@asynccontextmanager
async def running() -> AsyncIterator[Bed]:
    """Run a reader for the time of the block."""
    bed = Bed()
    task = asyncio.create_task(bed.reader.run(bed.changed.append))
    try:
        yield bed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_change_of_shares_queues_only_the_service_concerned() -> None:
    """A Service whose shares changed is named once; another one is not."""
    async with running() as bed:
        other = builders.service(name="other")
        bed.source.answer = DemandReading({WEB: {"a": 10.0, "b": 10.0, "c": 10.0}, other.key: STEP})
        await bed.clock.advance(0.0)
        assert bed.shares() == {"a": 0.333, "b": 0.333, "c": 0.333}
        assert bed.shares(other) == {"a": 0.7, "b": 0.2, "c": 0.1}
        bed.source.answer = DemandReading({WEB: STEP, other.key: STEP})
        await bed.clock.advance(600.0)
        assert bed.shares()["a"] > 0.65
    assert set(bed.changed) == {WEB}
    assert len(bed.changed) <= 4


async def test_a_source_that_fails_leaves_the_shares_until_they_are_stale() -> None:
    """Five minutes of errors change nothing; then CPU counts, and the Service is queued."""
    async with running() as bed:
        bed.source.measure(**STEP)
        await bed.clock.advance(0.0)
        assert bed.shares()["a"] == 0.7
        bed.source.answer = DemandReadError("http://p:9090 answers status 503")
        await bed.clock.advance(300.0)
        assert bed.changed == []
        assert bed.shares()["a"] == 0.7
        await bed.clock.advance(60.0)
        assert bed.changed == [WEB]
        assert bed.shares()["a"] == 0.333
        assert bed.store.count_by_basis() == {DemandBasis.STALE: 1}


async def test_a_service_is_queued_when_only_the_reason_of_its_shares_changes() -> None:
    """Its condition says why CPU counts, and must not say what was true before."""
    async with running() as bed:
        bed.source.answer = DemandReadError("gone")
        await bed.clock.advance(0.0)
        before = bed.store.shares_of(builders.service())
        assert before.reasons[0].message == "nothing was measured by test yet, so CPU counts"
        bed.source.measure(a=0.1, b=0.1)
        await bed.clock.advance(600.0)
        assert bed.changed == [WEB]
        after = bed.store.shares_of(builders.service())
        assert after.reasons[0].message.startswith("less than 1 a second was measured by test")
        assert bed.store.changes == 0


async def test_an_outage_that_ends_in_time_changes_nothing() -> None:
    """The source is asked in each period, so that its return is seen before shares are stale."""
    async with running() as bed:
        bed.source.measure(**STEP)
        await bed.clock.advance(0.0)
        assert bed.shares()["a"] == 0.7
        bed.source.answer = DemandReadError("http://p:9090 answers status 503")
        await bed.clock.advance(260.0)
        assert bed.reader.errors == 8
        bed.source.measure(**STEP)
        await bed.clock.advance(600.0)
        assert bed.changed == []
        assert bed.store.count_by_basis() == {DemandBasis.MEASURED: 1}


@pytest.mark.parametrize(
    "error", [DemandReadError("gone"), RuntimeError("a bug"), RecursionError(), None]
)
async def test_any_failure_is_logged_once_and_asked_more_rarely(error: Exception | None) -> None:
    """Errors, defects and silence are all one log line, with growing waits, and then a recovery."""
    with capture_logs() as logs:
        async with running() as bed:
            bed.source.answer = error
            await bed.clock.advance(3600.0)
            asked = bed.source.asked
            assert 10 <= asked <= 20
            bed.source.measure(**STEP)
            await bed.clock.advance(600.0)
            assert bed.shares()["a"] == 0.7
            assert bed.reader.errors >= asked - 1
    assert [line["event"] for line in logs] == [
        "demand not read completely",
        "demand is read again",
    ]


async def test_notes_are_logged_once() -> None:
    """What a reading could not read is logged when it is new."""
    with capture_logs() as logs:
        async with running() as bed:
            bed.source.answer = DemandReading({}, notes=("n2: refused",))
            await bed.clock.advance(300.0)
    assert [line["error"] for line in logs] == ["n2: refused"]


async def test_the_first_reading_is_awaited_for_some_seconds() -> None:
    """A program waits for the first reading, but no longer than ten seconds."""
    async with running() as bed:
        waiting = asyncio.create_task(bed.reader.wait_for_first())
        await bed.clock.advance(9.0)
        assert not waiting.done()
        await bed.clock.advance(1.0)
        assert waiting.done()
    async with running() as bed:
        bed.source.measure(**STEP)
        waiting = asyncio.create_task(bed.reader.wait_for_first())
        await bed.clock.advance(0.0)
        assert waiting.done()


async def test_a_service_may_leave_measured_demand() -> None:
    """With the annotation CPU counts, and the Service is not tracked; a bad value is reported."""
    async with running() as bed:
        bed.source.measure(**STEP)
        await bed.clock.advance(0.0)
        opted_out = builders.service(annotations={DEMAND_ANNOTATION: "CPU"})
        assert bed.shares()["a"] == 0.7
        shares = bed.store.shares_of(opted_out)
        assert shares.by_zone == THIRDS.by_zone
        assert [reason.code for reason in shares.reasons] == [ReasonCode.SHARES_BY_CPU]
        assert len(bed.store) == 0
        wrong = builders.service(annotations={DEMAND_ANNOTATION: "cpu"})
        assert bed.shares(wrong)["a"] == 0.7
        assert bed.store.shares_of(wrong).reasons[-1].code is ReasonCode.DEMAND_INVALID


async def test_a_changed_cluster_counts_at_once() -> None:
    """Shares that are asked for after a zone left the cluster do not have it."""
    async with running() as bed:
        bed.source.measure(**STEP)
        await bed.clock.advance(0.0)
        assert bed.shares()["a"] == 0.7
        bed.by_cpu = Shares({"a": 0.5, "b": 0.5})
        assert bed.shares() == {"a": 0.778, "b": 0.222}


def test_a_change_that_was_read_before_is_still_reported() -> None:
    """Shares that an explanation decided after an event of a node still queue the Service, once."""
    now, cpu = [1000.0], [THIRDS]
    store = DemandStore(DemandSettings(), source="test", by_cpu=lambda: cpu[0], now=lambda: now[0])
    store.receive(DemandReading({WEB: STEP}))
    assert store.shares_of(builders.service()).by_zone["a"] == pytest.approx(0.7)
    assert store.advance([WEB]) == []
    now[0] += 301.0
    cpu[0] = Shares(dict(THIRDS.by_zone))
    assert store.shares_of(builders.service()).by_zone == THIRDS.by_zone
    assert store.advance([WEB]) == [WEB]
    assert store.advance([WEB]) == []


def test_a_first_reading_of_a_moment_counts_and_is_soon_outweighed() -> None:
    """After a restart the few connections of five seconds are better than CPU, but not for long."""
    now = [1000.0]
    store = DemandStore(
        DemandSettings(interval_s=0.0), source="test", by_cpu=lambda: THIRDS, now=lambda: now[0]
    )
    store.receive(DemandReading({WEB: {"a": 1.0, "b": 0.0, "c": 1.0}}, period_s=5.0))
    assert store.shares_of(builders.service()).by_zone == {"a": 0.5, "b": 0.0, "c": 0.5}
    now[0] += 30.0
    store.receive(DemandReading({WEB: {"a": 1.4, "b": 0.4, "c": 0.2}}, period_s=30.0))
    assert store.advance([WEB]) == [WEB]
    after = store.shares_of(builders.service()).by_zone
    assert after == pytest.approx({"a": 0.676, "b": 0.176, "c": 0.148}, abs=1e-3)


async def test_metrics_say_what_the_shares_come_from() -> None:
    """Services by source, the age of the last reading, and errors are on the page."""
    async with running() as bed:
        registry = CollectorRegistry()
        DemandMetrics(registry, bed.reader)
        assert "keepclose_demand_age_seconds +Inf" in generate_latest(registry).decode()
        bed.source.measure(**STEP)
        await bed.clock.advance(0.0)
        bed.shares()
        bed.source.answer = DemandReadError("gone")
        await bed.clock.advance(30.0)
        page = generate_latest(registry).decode()
    assert 'keepclose_demand_services{source="measured"} 1.0' in page
    assert 'keepclose_demand_services{source="stale"} 0.0' in page
    assert "keepclose_demand_age_seconds 30.0" in page
    assert "keepclose_demand_readings_total 1.0" in page
    assert "keepclose_demand_read_errors_total 1.0" in page


def test_options_that_cannot_work_are_named() -> None:
    """Each value out of range is named by its option."""
    assert demand_errors(DemandOptions(DemandOrigin.FLOWS)) == []
    options = DemandOptions(
        DemandOrigin.PROMETHEUS,
        use=DemandSettings(half_life_s=-1.0, dead_band=math.nan, stale_after_s=2.0),
        period_s=math.inf,
        labels={"pod": "x"},
    )
    text = "; ".join(demand_errors(options))
    for option in (
        "--demand-period",
        "--demand-half-life",
        "--demand-dead-band",
        "--demand-stale-after",
        "--demand-prometheus-url",
        "--demand-labels",
    ):
        assert option in text
    assert "--demand-file" in demand_errors(DemandOptions(DemandOrigin.FILE))[0]


@pytest.mark.parametrize(
    "options",
    [
        DemandOptions(DemandOrigin.FLOWS),
        DemandOptions(DemandOrigin.FLOWS, agents=("http://127.0.0.1:1",)),
        DemandOptions(DemandOrigin.PROMETHEUS, prometheus_url="http://127.0.0.1:1"),
        DemandOptions(DemandOrigin.FILE, file="rates.csv"),
    ],
)
async def test_every_source_can_be_opened_and_fails_without_harm(
    options: DemandOptions, tmp_path: Path
) -> None:
    """A source that does not answer is an error of the reading, and CPU counts."""
    file = tmp_path / "rates.csv"
    file.write_text("namespace,service,zone,rate\n")
    if options.file:
        options = replace(options, file=str(file))
    clock = FakeClock()
    cluster = ClusterNodes.of([builders.node("n1", "zone-a")])
    async with Client(FakeCluster(clock), clock=clock) as client:
        reader = open_demand(options, client, clock=clock, cluster=lambda: cluster)
        file.unlink()
        with pytest.raises(DemandReadError):
            await asyncio.wait_for(_advancing(reader, clock), 60)
    assert reader.store.shares_of(builders.service()).by_zone == {"zone-a": 1.0}


async def _advancing(reader: DemandReader, clock: FakeClock) -> None:
    reading = asyncio.create_task(reader._source.read())
    while not reading.done():
        await asyncio.sleep(0.01)
        await clock.advance(5.0)
    reading.result()


@pytest.mark.parametrize("url", ["http://", "http://h:99999", "nothing"])
@pytest.mark.parametrize("origin", [DemandOrigin.PROMETHEUS, DemandOrigin.FLOWS])
async def test_an_address_that_cannot_work_is_refused(url: str, origin: DemandOrigin) -> None:
    """The program does not start with a Prometheus or an agent at it."""
    clock = FakeClock()
    cluster = ClusterNodes.of([])
    options = DemandOptions(origin, prometheus_url=url, agents=("http://127.0.0.1:1", url))
    async with Client(FakeCluster(clock), clock=clock) as client:
        option = "flows" if origin is DemandOrigin.FLOWS else "prometheus-url"
        with pytest.raises(ConfigError, match=f"^--demand-{option}: .*http://HOST:PORT"):
            open_demand(options, client, clock=clock, cluster=lambda: cluster)


HTTPS = DemandOptions(DemandOrigin.PROMETHEUS, prometheus_url="https://p:9090")
WITH_TOKEN = replace(HTTPS, token_file="token")  # noqa: S106 - a path


@pytest.mark.parametrize(
    ("options", "content", "message"),
    [
        pytest.param(
            DemandOptions(DemandOrigin.FILE, file="rates"),
            None,
            "^--demand-file .*/rates cannot be read: No such file or directory; name a file with",
            id="no file",
        ),
        pytest.param(
            DemandOptions(DemandOrigin.FILE, file="rates"),
            b"service,rate\n",
            '^--demand-file .*/rates, line 1: the columns must be .* but are "service,rate"',
            id="columns",
        ),
        pytest.param(
            DemandOptions(DemandOrigin.FILE, file="rates"),
            b"\xff\xfe",
            "^--demand-file .*/rates, line 1: it is no text in UTF-8",
            id="no text",
        ),
        pytest.param(
            WITH_TOKEN,
            None,
            "^--demand-token-file .*/token cannot be read: No such file .*; name a file",
            id="no token file",
        ),
        pytest.param(
            WITH_TOKEN,
            b"two words",
            "^--demand-token-file .*/token has no token; write one line",
            id="no token",
        ),
        pytest.param(
            replace(HTTPS, ca_file="ca"),
            None,
            "^--demand-ca-file .*/ca cannot be used: No such file .*; name a file",
            id="no authority file",
        ),
        pytest.param(
            replace(HTTPS, ca_file="ca"),
            b"nothing",
            "^--demand-ca-file .*/ca cannot be used: .*; name a file of certificates in PEM",
            id="no authority",
        ),
    ],
)
async def test_a_file_that_cannot_work_is_refused(
    options: DemandOptions, content: bytes | None, message: str, tmp_path: Path
) -> None:
    """The program does not start with it, and says which option, which file and what to do."""
    for field in ("file", "token_file", "ca_file"):
        name = getattr(options, field)
        if name:
            options = replace(options, **{field: str(tmp_path / name)})
            if content is not None:
                (tmp_path / name).write_bytes(content)
    clock = FakeClock()
    cluster = ClusterNodes.of([])
    async with Client(FakeCluster(clock), clock=clock) as client:
        with pytest.raises(ConfigError, match=message):
            open_demand(options, client, clock=clock, cluster=lambda: cluster)


def test_sources_are_named_in_reasons() -> None:
    """A reason says what measured."""
    assert DemandOptions(DemandOrigin.FLOWS, measure=DemandMeasure.BYTES).source == "flow agents"
    assert DemandOptions(DemandOrigin.PROMETHEUS).source == "Prometheus (flows)"
    assert DemandOptions(DemandOrigin.PROMETHEUS, query="x()").source == "Prometheus (own query)"
    assert DemandOptions(DemandOrigin.FILE).source == "file"
