"""Shares by measured demand: smoothing, dead band, interval, staleness, senseless samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.model.well_known import DEMAND_ANNOTATION
from keepclose.routing.demand import (
    MAX_RATE,
    DemandBasis,
    DemandDecision,
    DemandSample,
    DemandSettings,
    DemandState,
    decide_demand,
    read_demand_request,
)
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import Shares

THIRDS = Shares({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
SETTINGS = DemandSettings()


def feed(
    samples: Sequence[tuple[float, Mapping[str, float] | None]],
    *,
    state: DemandState | None = None,
    by_cpu: Shares = THIRDS,
    settings: DemandSettings = SETTINGS,
) -> list[DemandDecision]:
    """Return the decision after each pair of a time and rates, None for no sample."""
    state = state or DemandState()
    decisions = []
    for at, rates in samples:
        sample = None if rates is None else DemandSample(at, rates)
        decision = decide_demand(state, sample, now=at, by_cpu=by_cpu, settings=settings)
        state = decision.state
        decisions.append(decision)
    return decisions


def codes(decision: DemandDecision) -> list[ReasonCode]:
    """Return the codes of the reasons."""
    return [reason.code for reason in decision.shares.reasons]


def every(
    period: float, rates: Mapping[str, float], *, start: float, times: int
) -> list[tuple[float, Mapping[str, float]]]:
    """Return the same rates at regular times."""
    return [(start + number * period, rates) for number in range(times)]


STEP = {"a": 70.0, "b": 20.0, "c": 10.0}
EVEN = {"a": 10.0, "b": 10.0, "c": 10.0}


def test_cpu_counts_before_the_first_sample() -> None:
    """Without a sample the shares are those by CPU, with their reasons, and nothing changes."""
    by_cpu = Shares({"a": 0.5, "b": 0.5}, (Reason(ReasonCode.NODE_WITHOUT_ZONE, "n1"),))
    (decision,) = feed([(0.0, None)], by_cpu=by_cpu)
    assert decision.shares.by_zone == by_cpu.by_zone
    assert decision.basis is DemandBasis.CPU
    assert not decision.has_changed
    assert codes(decision) == [ReasonCode.SHARES_BY_CPU, ReasonCode.NODE_WITHOUT_ZONE]


def test_the_first_sample_counts_at_once() -> None:
    """The first sample with enough traffic gives the shares."""
    (decision,) = feed([(0.0, STEP)])
    assert decision.shares.by_zone == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1})
    assert decision.basis is DemandBasis.MEASURED
    assert decision.has_changed
    assert codes(decision) == [ReasonCode.SHARES_MEASURED]


def test_a_step_arrives_by_half_in_the_half_life() -> None:
    """The smoothed rate moves half the way in the half-life, however many samples come."""
    settings = DemandSettings(half_life_s=60.0, dead_band=0.0, interval_s=0.0)
    for period in (5.0, 20.0, 60.0):
        samples = [
            (0.0, {"a": 0.0, "b": 100.0}),
            *every(period, {"a": 100.0, "b": 0.0}, start=period, times=int(60 / period)),
        ]
        decision = feed(samples, settings=settings)[-1]
        assert decision.shares.by_zone["a"] == pytest.approx(0.5)


def test_shares_within_the_dead_band_stay() -> None:
    """A difference up to the dead band changes nothing, and one beyond it does."""
    settings = DemandSettings(half_life_s=1e-9, dead_band=0.05, interval_s=0.0)
    within, beyond = {"a": 74.0, "b": 16.0, "c": 10.0}, {"a": 76.0, "b": 14.0, "c": 10.0}
    decisions = feed([(0.0, STEP), (30.0, within), (60.0, beyond)], settings=settings)
    assert [decision.has_changed for decision in decisions] == [True, False, True]
    assert decisions[1].shares.by_zone == decisions[0].shares.by_zone


def test_changes_keep_the_least_interval() -> None:
    """However demand moves, shares change no more often than the interval allows."""
    settings = DemandSettings(half_life_s=1e-9, interval_s=120.0)
    flip = {"a": 10.0, "b": 20.0, "c": 70.0}
    samples = [(15.0 * number, flip if number % 3 else STEP) for number in range(80)]
    decisions = feed(samples, settings=settings)
    changed = zip(samples, decisions, strict=True)
    times = [sample[0] for sample, decision in changed if decision.has_changed]
    assert len(times) > 3
    assert min(later - at for at, later in pairwise(times)) >= 120.0


def test_old_samples_leave_the_shares_by_cpu() -> None:
    """Five minutes after the last sample CPU counts again, and the reason says so."""
    at_limit, beyond = feed([(0.0, STEP), (300.0, None), (300.1, None)])[1:]
    assert at_limit.basis is DemandBasis.MEASURED
    assert (beyond.basis, beyond.has_changed) == (DemandBasis.STALE, True)
    assert beyond.shares.by_zone == THIRDS.by_zone
    assert codes(beyond) == [ReasonCode.SHARES_STALE]


def test_too_little_that_becomes_stale_changes_the_basis_alone() -> None:
    """CPU counts before and after, so the shares do not change, and the reason does."""
    little, stale = feed([(0.0, {"a": 0.1}), (301.0, None)])
    assert (little.basis, stale.basis) == (DemandBasis.CPU, DemandBasis.STALE)
    assert not stale.has_changed
    assert codes(stale) == [ReasonCode.SHARES_STALE]


@pytest.mark.parametrize(
    ("annotations", "is_measured", "wanted"),
    [
        ({}, True, []),
        ({DEMAND_ANNOTATION: "Measured"}, True, []),
        ({DEMAND_ANNOTATION: "CPU"}, False, [ReasonCode.SHARES_BY_CPU]),
        ({DEMAND_ANNOTATION: "cpu" * 1000}, True, [ReasonCode.DEMAND_INVALID]),
    ],
)
def test_a_service_asks_for_cpu_by_an_annotation(
    annotations: dict[str, str], is_measured: bool, wanted: list[ReasonCode]
) -> None:
    """Only CPU takes a Service out; any other value is reported, in part, with what to set."""
    counts, reasons = read_demand_request(annotations)
    assert counts is is_measured
    assert [reason.code for reason in reasons] == wanted
    assert all(len(reason.message) < 200 for reason in reasons)


def test_a_source_that_comes_and_goes_changes_shares_no_faster_than_the_interval() -> None:
    """Measured shares return only an interval after CPU began to count."""
    stale, early, later = feed([(0.0, STEP), (301.0, None), (310.0, STEP), (430.0, STEP)])[1:]
    assert (stale.basis, early.basis) == (DemandBasis.STALE, DemandBasis.CPU)
    assert "120 s ago" in early.shares.reasons[0].message
    assert later.basis is DemandBasis.MEASURED


def test_rates_that_hold_are_smoothed_in_and_become_stale() -> None:
    """A file that does not change is smoothed in to the end, and stale as of its change."""
    state = feed([(0.0, STEP)])[-1].state
    bases = []
    for at in range(30, 361, 30):
        sample = DemandSample(float(at), EVEN, age_s=at - 30.0)
        decision = decide_demand(
            state, sample, now=float(at), by_cpu=THIRDS, settings=DemandSettings(interval_s=0.0)
        )
        state = decision.state
        bases.append(decision.basis)
    assert bases == [DemandBasis.MEASURED] * 11 + [DemandBasis.STALE]
    rates = [zone.rate for zone in state.rates.values()]
    assert max(rates) - min(rates) < 1.0


def test_too_little_traffic_leaves_the_shares_by_cpu() -> None:
    """Below the least rate CPU counts; shares in use stay down to half of it."""
    few, enough, fewer, none = feed(
        [(0.0, {"a": 0.9}), (900.0, {"a": 1.1}), (1800.0, {"a": 0.6}), (2700.0, {"a": 0.4})]
    )
    assert [item.basis for item in (few, enough, fewer, none)] == [
        DemandBasis.CPU,
        DemandBasis.MEASURED,
        DemandBasis.MEASURED,
        DemandBasis.CPU,
    ]
    assert "less than 1 a second" in few.shares.reasons[0].message


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf, -1.0, 1e308, MAX_RATE * 1.01])
def test_a_rate_without_sense_changes_nothing(rate: float) -> None:
    """Such a sample counts as none: the shares stay, and the reasons name zone and value."""
    settings = DemandSettings(half_life_s=1e-9, interval_s=0.0)
    before, after = feed([(0.0, STEP), (60.0, {"a": 1.0, "b": rate})], settings=settings)
    assert after.shares.by_zone == before.shares.by_zone
    assert not after.has_changed
    assert codes(after) == [ReasonCode.SHARES_MEASURED, ReasonCode.SAMPLE_REJECTED]
    assert "correct what is measured" in after.shares.reasons[-1].fix
    assert "zone b" in after.shares.reasons[1].message
    assert after.state.at == 0.0


def test_a_sample_at_no_time_changes_nothing() -> None:
    """A sample whose time is no number is not used."""
    decision = decide_demand(
        DemandState(), DemandSample(math.nan, STEP), now=0.0, by_cpu=THIRDS, settings=SETTINGS
    )
    assert decision.basis is DemandBasis.CPU
    assert ReasonCode.SAMPLE_REJECTED in codes(decision)


def test_unknown_zones_are_ignored_and_named() -> None:
    """Zones that the cluster does not have count nothing, and a few of them are named in plain."""
    rates = {
        **STEP,
        "(outside)": 1e9,
        "evil\n\x1b[2J": 5.0,
        **{f"z{n}": math.nan for n in range(99)},
    }
    (decision,) = feed([(0.0, rates)])
    assert decision.shares.by_zone == pytest.approx({"a": 0.7, "b": 0.2, "c": 0.1})
    message = decision.shares.reasons[-1].message
    assert codes(decision)[-1] is ReasonCode.DEMAND_ZONE_UNKNOWN
    assert "(outside)" in message
    assert message.isprintable()
    assert len(decision.state.unknown_zones) == 5


def test_a_zone_that_is_missing_counts_as_before_until_it_is_stale() -> None:
    """A zone without a series keeps its rate for five minutes, and then fades."""
    settings = DemandSettings(dead_band=0.0, interval_s=0.0)
    rest = {"a": 70.0, "b": 20.0}
    decisions = feed([(0.0, STEP), *every(60.0, rest, start=60.0, times=12)], settings=settings)
    assert decisions[5].shares.by_zone["c"] == pytest.approx(0.1)
    assert decisions[-1].shares.by_zone["c"] < 0.002


def test_a_zone_of_rate_zero_counts_as_zero() -> None:
    """A rate of 0 is measured: the zone fades at once, and stays among the shares."""
    settings = DemandSettings(half_life_s=1e-9, interval_s=0.0)
    decision = feed([(0.0, STEP), (60.0, {**STEP, "c": 0.0})], settings=settings)[-1]
    assert decision.shares.by_zone == pytest.approx({"a": 70 / 90, "b": 20 / 90, "c": 0.0})


def test_a_zone_that_left_the_cluster_is_dropped_at_once() -> None:
    """Shares of a zone without nodes go to the others, whatever interval and dead band say."""
    two = Shares({"a": 0.5, "b": 0.5})
    state = feed([(0.0, STEP)])[-1].state
    decision = feed([(1.0, None)], state=state, by_cpu=two)[-1]
    assert decision.shares.by_zone == pytest.approx({"a": 70 / 90, "b": 20 / 90})
    assert decision.has_changed
    assert feed([(2.0, None)], state=decision.state, by_cpu=two)[-1].has_changed is False


def test_the_traffic_of_a_zone_that_left_the_cluster_is_not_enough() -> None:
    """What the rest sends is too little by itself, before the next sample as after it."""
    two = Shares({"a": 0.5, "b": 0.5})
    rates = {"a": 0.1, "b": 0.1, "c": 100.0}
    state = feed([(0.0, rates)])[-1].state
    before = feed([(1.0, None)], state=state, by_cpu=two)[-1]
    after = feed([(30.0, rates)], state=before.state, by_cpu=two)[-1]
    assert before.basis is after.basis is DemandBasis.CPU
    assert "less than 1 a second" in before.shares.reasons[0].message
    assert "less than 1 a second" in after.shares.reasons[0].message


def test_a_zone_that_comes_back_counts_in_full() -> None:
    """Its first rate is not smoothed, as that of a first sample is not."""
    two = Shares({"a": 0.5, "b": 0.5})
    (here,) = feed([(0.0, EVEN)])
    (away,) = feed([(60.0, {"a": 10.0, "b": 10.0})], state=here.state, by_cpu=two)
    assert away.shares.by_zone == pytest.approx(two.by_zone)
    (back,) = feed([(400.0, EVEN)], state=away.state)
    assert back.shares.by_zone == pytest.approx(THIRDS.by_zone)


def test_without_any_measured_zone_cpu_counts() -> None:
    """A cluster that lost all zones with clients has the shares of its nodes."""
    state = feed([(0.0, {"a": 70.0})])[-1].state
    other = Shares({"d": 1.0})
    decision = feed([(1.0, None)], state=state, by_cpu=other)[-1]
    assert decision.shares.by_zone == {"d": 1.0}
    assert feed([(1.0, None)], state=state, by_cpu=Shares({}))[-1].shares.by_zone == {}


def test_a_clock_that_jumps_back_stops_nothing() -> None:
    """After a jump back samples count again within one interval, and staleness still comes."""
    settings = DemandSettings(half_life_s=1.0)
    state = feed([(1e9, STEP)], settings=settings)[-1].state
    decisions = feed(
        [(100.0, EVEN), (110.0, EVEN), (230.0, EVEN), (600.0, None)], state=state, settings=settings
    )
    assert decisions[0].basis is DemandBasis.MEASURED
    assert decisions[2].shares.by_zone == pytest.approx({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3})
    assert decisions[3].basis is DemandBasis.STALE


def test_a_late_sample_is_ignored() -> None:
    """A sample that is older than the last one changes no rate."""
    state = feed([(100.0, STEP)])[-1].state
    late = decide_demand(
        state, DemandSample(50.0, EVEN), now=101.0, by_cpu=THIRDS, settings=SETTINGS
    )
    assert late.state.rates == state.rates


def test_reasons_name_the_source() -> None:
    """Who measured is part of the reasons."""
    decision = decide_demand(
        DemandState(),
        DemandSample(0.0, STEP),
        now=0.0,
        by_cpu=THIRDS,
        settings=SETTINGS,
        source="flow agents",
    )
    assert decision.shares.reasons[0].message == "the shares of zones are measured by flow agents"


_RATES = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", ""]),
    st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.0, 1e6),
)
_STEPS = st.lists(
    st.tuples(st.floats(-1e9, 1e9) | st.floats(0.0, 1000.0), st.none() | _RATES), max_size=30
)
_CLUSTERS = st.lists(
    st.sampled_from([THIRDS, Shares({"a": 0.5, "b": 0.5}), Shares({"c": 1.0}), Shares({})]),
    min_size=30,
    max_size=30,
)
_SETTINGS = st.builds(
    DemandSettings,
    half_life_s=st.floats(0.0, 1e4),
    dead_band=st.floats(0.0, 1.0),
    interval_s=st.floats(0.0, 1e4),
    stale_after_s=st.floats(0.0, 1e4),
    least_rate=st.floats(0.0, 1e4),
)


@given(_STEPS, _CLUSTERS, _SETTINGS)
def test_any_samples_at_any_times_give_shares_of_the_zones_of_the_cluster(
    steps: list[tuple[float, Mapping[str, float] | None]],
    clusters: list[Shares],
    settings: DemandSettings,
) -> None:
    """Shares are between 0 and 1, sum to 1, and name exactly the zones that CPU shares name."""
    state = DemandState()
    for (now, rates), by_cpu in zip(steps, clusters, strict=False):
        sample = None if rates is None else DemandSample(now, rates)
        decision = decide_demand(state, sample, now=now, by_cpu=by_cpu, settings=settings)
        state = decision.state
        shares = decision.shares.by_zone
        assert list(shares) == list(by_cpu.by_zone)
        assert all(0.0 <= share <= 1.0 for share in shares.values())
        if shares:
            assert math.isclose(sum(shares.values()), 1.0, rel_tol=1e-9)
        assert decision.shares.reasons
        if decision.basis is not DemandBasis.MEASURED:
            assert shares == by_cpu.by_zone


@given(
    st.tuples(st.floats(0.1, 1.0), st.floats(0.1, 1.0), st.floats(0.1, 1.0)),
    st.lists(st.tuples(*[st.floats(-0.5, 0.5)] * 3), min_size=1, max_size=60),
)
def test_constant_demand_with_noise_inside_the_dead_band_never_oscillates(
    base: tuple[float, float, float], noise: list[tuple[float, float, float]]
) -> None:
    """The first shares stay for ever if each sample is within half of the dead band of the mean."""
    settings = DemandSettings(interval_s=0.0)
    total = sum(base)
    samples: list[tuple[float, Mapping[str, float]]] = []
    for number, parts in enumerate(noise):
        # Noise that sums to 0, so that the shares move by less than half of the dead band.
        mean = sum(parts) / 3
        rates = {
            zone: 1000.0 * max(0.0, share / total + 0.98 * settings.dead_band / 2 * (part - mean))
            for zone, share, part in zip("abc", base, parts, strict=True)
        }
        samples.append((30.0 * number, rates))
    decisions = feed(samples, settings=settings)
    assert [decision.has_changed for decision in decisions] == [True] + [False] * (len(noise) - 1)


@pytest.mark.parametrize("period", [0.0, 5.0, 30.0, 600.0, math.inf])
def test_samples_weigh_as_much_as_was_counted_for_them(period: float) -> None:
    """The smoothed rate is the mean of all that was counted, the latest by half in a half-life."""
    half_life = SETTINGS.half_life_s
    state = DemandState()
    for number, rate in enumerate((90.0, 10.0, 40.0)):
        at = 30.0 * number
        sample = DemandSample(at, {"a": rate}, period_s=period)
        state = decide_demand(state, sample, now=at, by_cpu=THIRDS, settings=SETTINGS).state
    parts = [(90.0, 60.0, 60.0 + period), (10.0, 30.0, 60.0), (40.0, 0.0, 30.0)]
    weights = [0.5 ** (end / half_life) - 0.5 ** (start / half_life) for _, end, start in parts]
    mean = sum(rate * weight for (rate, _, _), weight in zip(parts, weights, strict=True))
    assert state.rates["a"].rate == pytest.approx(mean / sum(weights))


@pytest.mark.parametrize("phase", range(0, 120, 10))
def test_the_defaults_follow_a_step_within_three_minutes(phase: int) -> None:
    """Four fifths of a step are planned 180 s after it, with at most three changes in all."""
    step = 600.0 + phase
    samples = [
        (30.0 * number, {"a": 70.0, "b": 30.0} if 30.0 * number < step else {"a": 30.0, "b": 70.0})
        for number in range(60)
    ]
    decisions = feed(samples)
    after = [
        (at - step, decision)
        for (at, _), decision in zip(samples, decisions, strict=True)
        if at >= step
    ]
    late = [decision.shares.by_zone["b"] for since, decision in after if since >= 180.0]
    assert min(late) >= 0.3 + 0.8 * 0.4
    assert sum(decision.has_changed for _, decision in after) <= 3
