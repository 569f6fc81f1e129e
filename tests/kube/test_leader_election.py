"""Leader election: one leads at a time, whatever clocks, networks and others do."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from keepclose.kube.client import Client
from keepclose.kube.errors import ConfigError
from keepclose.kube.leader_election import LeaderElector, LeadershipLost, format_microtime
from keepclose.kube.requests import LEASES
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.core_kinds import Lease, LeaseSpec
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import STALL, Answer, FakeResponse, failure, refusal

KEY = NamespacedName("kube-system", "keepclose")


class Wire:
    """A candidate's own way to the cluster, which can be cut."""

    def __init__(self, clock: FakeClock, cluster: FakeCluster) -> None:
        self.clock = clock
        self.cluster = cluster
        self.is_down = False
        self.hangs = False
        self.lag_s = 0.0
        self.error: Exception | None = None
        self.sent: list[str] = []

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Pass a request on, unless the wire is down."""
        self.sent.append(request.method)
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.is_down:
            error = refusal().error
            assert error is not None
            raise error
        response = await self.cluster.send(request)
        if self.lag_s:
            await self.clock.sleep(self.lag_s)
        return response

    async def close(self) -> None:
        """Do nothing."""


class Candidate:
    """One process that wants to lead, and what became of it."""

    def __init__(
        self, clock: FakeClock, cluster: FakeCluster, identity: str, seed: int = 0
    ) -> None:
        self.clock = clock
        self.wire = Wire(clock, cluster)
        client = Client(self.wire, clock=clock, retries=Retries(max_elapsed=0))
        self.elector = LeaderElector(
            client,
            namespace=KEY.namespace,
            name=KEY.name,
            identity=identity,
            clock=clock,
            random=Random(seed),
        )
        self.rivals = [self]
        self.most_at_once = 0
        self.is_working = False
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.stops_after_s = 0.0
        self.finish = asyncio.Event()
        self.task = asyncio.ensure_future(self.elector.run(self.lead))

    async def lead(self) -> None:
        """Work until told to finish."""
        self.is_working = True
        self.most_at_once = sum(rival.is_working for rival in self.rivals)
        self.started_at = self.clock.monotonic()
        try:
            await self.finish.wait()
        finally:
            if self.stops_after_s:
                await self.clock.sleep(self.stops_after_s)
            self.is_working = False
            self.ended_at = self.clock.monotonic()

    async def stop(self) -> None:
        """End it as a process is ended in good order."""
        self.task.cancel()
        await self.clock.run_until(self.task.done)


def spec_of(cluster: FakeCluster) -> LeaseSpec:
    """Return what the lease says now."""
    return cluster.objects(LEASES)[KEY].spec


async def test_the_first_one_creates_the_lease_and_leads() -> None:
    """A new lease names its holder, its times with six digits, and no change of holder yet."""
    clock = FakeClock(now=1_700_000_000.25)
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()

    assert one.is_working
    assert one.elector.is_leader
    assert spec_of(cluster) == LeaseSpec(
        holder_identity="one",
        lease_duration_seconds=15,
        acquire_time="2023-11-14T22:13:20.250000Z",
        renew_time="2023-11-14T22:13:20.250000Z",
        lease_transitions=0,
    )
    await one.stop()


async def test_the_leader_renews_about_every_two_seconds() -> None:
    """Renewals change only the time of renewal, and need no reading."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()
    first = spec_of(cluster)

    await clock.advance(60.0)

    assert 27 <= one.wire.sent.count("PUT") <= 34
    assert one.wire.sent.count("GET") == 1
    renewed = spec_of(cluster)
    assert renewed.acquire_time == first.acquire_time
    assert renewed.lease_transitions == 0
    assert renewed.renew_time is not None
    assert renewed.renew_time > (first.renew_time or "")
    await one.stop()


async def test_only_one_leads() -> None:
    """As long as the leader renews, others wait, and look every 2 to 4.4 s."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
    await clock.advance(300.0)

    assert (one.is_working, two.is_working) == (True, False)
    assert two.elector.holder == "one"
    assert 300 / 4.4 <= two.wire.sent.count("GET") <= 300 / 2 + 1
    assert two.wire.sent.count("PUT") == 0
    await two.stop()
    await one.stop()


async def test_a_clean_stop_hands_over_at_once() -> None:
    """The lease is given back after the work has ended, and the next look of another one wins."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
    await clock.advance(10.0)

    await one.stop()
    released = spec_of(cluster)
    assert (released.holder_identity, released.lease_duration_seconds) == ("", 1)
    assert not one.elector.is_leader
    await clock.run_until(lambda: two.is_working, within=4.4)

    taken = spec_of(cluster)
    assert (taken.holder_identity, taken.lease_duration_seconds) == ("two", 15)
    assert taken.lease_transitions == 1
    assert taken.acquire_time == taken.renew_time
    await two.stop()


async def test_work_that_returns_gives_the_lease_back() -> None:
    """When the work is over, so is the run, without an error."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.advance(3.0)

    one.finish.set()
    await clock.run_until_idle()

    assert one.task.done()
    assert one.task.result() is None
    assert spec_of(cluster).holder_identity == ""
    assert one.elector.terms == 1


async def test_an_error_of_the_work_comes_out_and_gives_the_lease_back() -> None:
    """A failure of the work is the caller's; nobody has to wait for the lease to run out."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    elector = LeaderElector(
        Client(cluster, clock=clock),
        namespace=KEY.namespace,
        name=KEY.name,
        identity="one",
        clock=clock,
    )

    async def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await elector.run(fail)
    assert spec_of(cluster).holder_identity == ""


async def test_a_leader_that_dies_is_replaced_after_the_lease_ran_out() -> None:
    """Others wait for the whole duration since they last saw a renewal, and not much longer."""
    clock = FakeClock(monotonic=0.0)
    cluster = FakeCluster(clock)
    one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
    await clock.advance(20.0)

    one.wire.is_down = True
    await clock.run_until(lambda: two.is_working)

    assert one.ended_at is not None
    assert two.started_at is not None
    assert one.ended_at <= 30.0
    assert 20.0 - 2.2 + 15.0 <= two.started_at <= 20.0 + 15.0 + 4.4 + 4.4
    assert spec_of(cluster).lease_transitions == 1
    with pytest.raises(LeadershipLost, match="not renewed in 10"):
        one.task.result()
    await two.stop()


@pytest.mark.parametrize("hangs", [False, True], ids=["refused", "hanging"])
async def test_a_leader_that_cannot_renew_stops_ten_seconds_after_its_last_renewal(
    hangs: bool,
) -> None:
    """The work is cancelled in time, whether requests fail or never end; the lease is left."""
    clock = FakeClock(monotonic=0.0)
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()

    one.wire.is_down, one.wire.hangs = not hangs, hangs
    await clock.advance(9.9)
    assert one.is_working
    await clock.advance(0.1)

    assert one.ended_at == pytest.approx(10.0)
    assert one.task.done()
    with pytest.raises(LeadershipLost):
        one.task.result()
    assert spec_of(cluster).holder_identity == "one"


async def test_a_short_outage_is_survived() -> None:
    """Failures for less than the deadline cost nothing, of whatever sort they are."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.advance(5.0)

    cluster.answer_next(
        refusal(),
        failure(503, "ServiceUnavailable"),
        failure(429, "TooManyRequests", retry_after=1),
    )
    await clock.advance(30.0)
    cluster.answer_next(Answer(parts=(STALL,)))
    await clock.advance(30.0)

    assert one.is_working
    assert spec_of(cluster).lease_transitions == 0
    await one.stop()


async def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    """The conflict with our own write is recognised by who holds the lease."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()

    cluster.lost_answers = 2
    await clock.advance(20.0)

    assert cluster.lost_answers == 0
    assert one.is_working
    await one.stop()
    assert spec_of(cluster).holder_identity == ""


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """An answer that took four seconds leaves only six until the leader must stop."""
    clock = FakeClock(monotonic=0.0)
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()
    one.wire.lag_s = 4.0
    await clock.run_until(lambda: "PUT" in one.wire.sent)
    sent_at = clock.monotonic()
    await clock.advance(4.0)

    one.wire.is_down, one.wire.lag_s = True, 0.0
    await clock.run_until(one.task.done)

    assert one.ended_at == pytest.approx(sent_at + 10.0)
    with pytest.raises(LeadershipLost):
        one.task.result()


async def test_a_stop_during_a_renewal_gives_the_lease_back() -> None:
    """A renewal that was served but cut off does not stand in the way of the release."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.run_until_idle()
    one.wire.lag_s = 3.0
    await clock.run_until(lambda: "PUT" in one.wire.sent)

    one.wire.lag_s = 0.0
    one.task.cancel()
    await clock.run_until_idle()

    assert one.task.cancelled()
    assert spec_of(cluster).holder_identity == ""


async def test_a_lost_race_for_a_new_lease_is_no_failure() -> None:
    """Two that start together find no lease; the slower one waits without a complaint."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    with capture_logs() as logs:
        one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
        one.wire.lag_s = two.wire.lag_s = 0.5
        await clock.advance(1.0)

        assert (one.is_working, two.is_working) == (True, False)
        assert two.wire.sent == ["GET", "POST"]
        await two.stop()
        await one.stop()
    assert [log["event"] for log in logs] == ["leadership acquired"]


async def test_a_lost_race_for_a_free_lease_is_no_failure() -> None:
    """Of two that see a released lease at the same moment one gets it, the other waits."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    metadata = ObjectMeta(name=KEY.name, namespace=KEY.namespace)
    cluster.put(LEASES, Lease(metadata=metadata, spec=LeaseSpec(holder_identity="")))
    with capture_logs() as logs:
        one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
        one.wire.lag_s = two.wire.lag_s = 0.5
        await clock.advance(1.0)

        assert (one.is_working, two.is_working) == (True, False)
        assert two.wire.sent == ["GET", "PUT"]
        await two.stop()
        await one.stop()
    assert [log["event"] for log in logs] == ["leadership acquired"]


async def test_settings_that_cannot_work_end_the_seeking() -> None:
    """A ConfigError is the one failure that no patience mends."""
    clock = FakeClock()
    one = Candidate(clock, FakeCluster(clock), "one")
    one.wire.error = ConfigError("no credentials")

    await clock.run_until_idle()

    with pytest.raises(ConfigError, match="no credentials"):
        one.task.result()


async def test_a_creation_whose_answer_was_lost_is_found() -> None:
    """A lease that we hold without knowing it is taken up, not waited for."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.lost_answers = 1
    one = Candidate(clock, cluster, "one")

    await clock.advance(4.4)

    assert one.is_working
    assert spec_of(cluster).lease_transitions == 0
    await one.stop()


@pytest.mark.parametrize("jump", [-86400.0, 86400.0], ids=["backwards", "forwards"])
async def test_clocks_that_jump_do_not_matter(jump: float) -> None:
    """The leader keeps the lease and the others keep waiting when the time of day is set."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
    await clock.advance(10.0)

    clock.jump(jump)
    await clock.advance(60.0)

    assert (one.is_working, two.is_working) == (True, False)
    assert spec_of(cluster).lease_transitions == 0
    await two.stop()
    await one.stop()


@pytest.mark.parametrize(
    "renew_time",
    [
        pytest.param("2001-01-01T00:00:00.000000Z", id="long ago"),
        pytest.param("2099-01-01T00:00:00.000000Z", id="far in the future"),
        pytest.param(None, id="never"),
    ],
)
async def test_times_written_by_others_are_not_believed(renew_time: str | None) -> None:
    """A strange holder has the whole duration from when we first saw its record."""
    clock = FakeClock(monotonic=0.0)
    cluster = FakeCluster(clock)
    cluster.put(
        LEASES,
        Lease(
            metadata=ObjectMeta(name=KEY.name, namespace=KEY.namespace),
            spec=LeaseSpec(
                holder_identity="stranger",
                lease_duration_seconds=40,
                renew_time=renew_time,
                lease_transitions=4,
            ),
        ),
    )
    one = Candidate(clock, cluster, "one")
    await clock.advance(39.9)
    assert not one.is_working
    await clock.advance(4.5)

    assert one.is_working
    assert spec_of(cluster).lease_transitions == 5
    await one.stop()


async def test_a_leader_whose_lease_was_taken_stops_at_its_next_renewal() -> None:
    """Somebody else in the record is believed at once."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.advance(5.0)
    lease = cluster.objects(LEASES)[KEY]
    cluster.put(LEASES, Lease(metadata=lease.metadata, spec=LeaseSpec(holder_identity="thief")))

    await clock.advance(2.2)

    assert not one.is_working
    with pytest.raises(LeadershipLost, match="kube-system/keepclose: held by 'thief'"):
        one.task.result()
    assert spec_of(cluster).holder_identity == "thief"


async def test_a_lease_that_was_deleted_is_made_anew() -> None:
    """The leader goes on leading over a new lease if it is the first to make one."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.advance(5.0)

    cluster.delete(LEASES, KEY.name, namespace=KEY.namespace)
    await clock.advance(5.0)

    assert one.is_working
    assert spec_of(cluster).holder_identity == "one"
    await one.stop()


async def test_work_that_stops_slowly_is_covered_by_the_lease() -> None:
    """The lease is renewed until the work has ended, and only then given back."""
    clock = FakeClock(monotonic=0.0)
    cluster = FakeCluster(clock)
    one, two = Candidate(clock, cluster, "one"), Candidate(clock, cluster, "two", 1)
    one.stops_after_s = 40.0
    await clock.advance(10.0)

    one.task.cancel()
    await clock.advance(39.9)
    assert (one.is_working, two.is_working) == (True, False)
    assert spec_of(cluster).holder_identity == "one"
    one.task.cancel()
    await clock.advance(4.5)

    assert one.task.cancelled()
    assert (one.is_working, two.is_working) == (False, True)
    await two.stop()


async def test_a_lease_that_cannot_be_given_back_runs_out() -> None:
    """A stop without a server ends all the same, after a while."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    one = Candidate(clock, cluster, "one")
    await clock.advance(5.0)

    one.wire.hangs = True
    one.task.cancel()
    await clock.advance(5.0)

    assert one.task.cancelled()
    assert spec_of(cluster).holder_identity == "one"


async def test_seeking_outlives_every_failure_but_bad_settings() -> None:
    """Whatever the server answers, the candidate asks again."""
    clock = FakeClock()
    cluster = FakeCluster(clock)
    cluster.answer_next(
        failure(403, "Forbidden"),
        failure(500, "InternalError"),
        refusal(),
        Answer(parts=(b"<html>",)),
        Answer(parts=(STALL,)),
    )
    one = Candidate(clock, cluster, "one")

    await clock.advance(5 * 4.4 + 5.0)

    assert one.is_working
    await one.stop()


@pytest.mark.parametrize(
    ("settings_", "want"),
    [
        pytest.param({"identity": ""}, "identity", id="no identity"),
        pytest.param({"lease_duration_s": 10}, "must hold", id="a duration within the deadline"),
        pytest.param({"renew_deadline_s": 2.0}, "must hold", id="a deadline within the period"),
        pytest.param({"retry_period_s": 0.0}, "must hold", id="no period"),
    ],
)
def test_settings_that_could_have_two_leaders_are_refused(
    settings_: dict[str, str | int | float], want: str
) -> None:
    """The three times must leave room for one another."""
    clock = FakeClock()
    given_ = {"identity": "one", **settings_}

    with pytest.raises(ConfigError, match=want):
        LeaderElector(
            Client(FakeCluster(clock), clock=clock),
            namespace="x",
            name="y",
            clock=clock,
            **given_,  # type: ignore[arg-type]
        )


def test_microtimes_have_six_digits() -> None:
    """Whole seconds and fractions are written alike."""
    assert format_microtime(0.0) == "1970-01-01T00:00:00.000000Z"
    assert format_microtime(1_700_000_000.5) == "2023-11-14T22:13:20.500000Z"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["down", "up", "hang", "lose", "jump", "stop", "wait"]),
        st.integers(0, 2),
        st.sampled_from([0.5, 2.0, 6.0, 20.0]),
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=50)
@given(steps=STEPS, seed=st.integers(0, 99))
def test_two_never_lead_at_once(steps: list[tuple[str, int, float]], seed: int) -> None:
    """Through outages, lost answers, jumps and stops there is at most one leader, and then one."""

    async def play() -> None:
        clock = FakeClock()
        cluster = FakeCluster(clock)
        everyone = [Candidate(clock, cluster, f"c{n}", seed + n) for n in range(3)]
        past = list(everyone)
        for one in everyone:
            one.rivals = past
        for step, number, seconds in steps:
            chosen = everyone[number]
            if step == "stop" or chosen.task.done():
                await chosen.stop()
                everyone[number] = Candidate(clock, cluster, f"c{len(past)}", seed)
                past.append(everyone[number])
                everyone[number].rivals = past
            elif step == "jump":
                clock.jump(seconds * 1000)
            elif step == "lose":
                cluster.lost_answers = 2
            else:
                chosen.wire.is_down = step == "down"
                chosen.wire.hangs = step == "hang"
            await clock.advance(seconds)
        for one in everyone:
            one.wire.is_down = one.wire.hangs = False
        fresh = Candidate(clock, cluster, "fresh", seed)
        await clock.advance(60.0)
        assert sum(one.is_working for one in (*everyone, fresh)) == 1
        assert {one.most_at_once for one in past} <= {0, 1}
        for one in (*everyone, fresh):
            one.task.cancel()
        await asyncio.wait([one.task for one in (*everyone, fresh)])
        for one in everyone:
            if not one.task.cancelled():
                one.task.exception()

    asyncio.run(play())
