"""Built-in demand traces: seeds, shares, and what each one is about."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.simulate.traces import (
    MAX_STEPS,
    MAX_TRACE_ZONES,
    MEAN_RATE,
    TRACES,
    DemandTrace,
    TraceOptions,
    make_trace,
)

KINDS = st.sampled_from(sorted(TRACES))
OPTIONS = st.builds(
    TraceOptions,
    zones=st.integers(2, MAX_TRACE_ZONES),
    duration_s=st.one_of(st.none(), st.floats(60, 7200)),
    step_s=st.floats(5, 30),
    seed=st.integers(0, 2**40),
    noise=st.sampled_from([0.0, 0.03, 0.5]),
)


def smooth(name: str, **options: float) -> DemandTrace:
    """Return a trace without noise."""
    return make_trace(TRACES[name], TraceOptions(noise=0.0, **options))  # type: ignore[arg-type]


@given(name=KINDS, options=OPTIONS)
@settings(max_examples=60, deadline=None)
def test_shares_add_up(name: str, options: TraceOptions) -> None:
    """In every step all zones have a rate, shares add up to 1, and a lost zone sends nothing."""
    kind = TRACES[name]
    trace = make_trace(kind, options)
    duration_s = kind.duration_s if options.duration_s is None else options.duration_s
    assert len(trace.steps) == int(duration_s / trace.step_s + 1e-9)
    assert len(trace.zones) == options.zones
    for step in trace.steps:
        assert tuple(step.rates) == trace.zones
        assert all(math.isfinite(rate) and rate >= 0 for rate in step.rates.values())
        assert math.fsum(step.shares.values()) == pytest.approx(1)
        assert all(step.rates[zone] == 0 for zone in step.lost)


@given(name=KINDS, options=OPTIONS)
@settings(max_examples=20, deadline=None)
def test_a_seed_gives_one_trace(name: str, options: TraceOptions) -> None:
    """The same options give the same trace, to the last digit."""
    assert make_trace(TRACES[name], options) == make_trace(TRACES[name], options)


@pytest.mark.parametrize("name", TRACES)
def test_another_seed_gives_another_trace(name: str) -> None:
    """Rates scatter by the seed."""
    first, second = (make_trace(TRACES[name], TraceOptions(seed=seed)) for seed in (1, 2))
    assert first != second
    assert len(first.steps) == len(second.steps)


def test_a_day_turns_the_zones() -> None:
    """Each zone has its highest demand once, a third of a day after the zone before."""
    trace = smooth("day")
    assert (trace.duration_s, trace.step_s) == (86_400, 60)
    peaks = [
        max(range(len(trace.steps)), key=lambda number: trace.steps[number].rates[zone])
        for zone in trace.zones
    ]
    assert [(peak - peaks[0]) * 60 for peak in peaks] == pytest.approx([0, 28_800, 57_600])
    assert max(step.rates["zone-a"] for step in trace.steps) == pytest.approx(1.6 * MEAN_RATE / 3)
    assert all(step.total == pytest.approx(MEAN_RATE) for step in trace.steps)


def test_a_crowd_comes_and_goes() -> None:
    """Five times the demand of one zone in the second third, and none of it at the end."""
    steps = smooth("flash-crowd").steps
    rates = [step.rates["zone-a"] / step.rates["zone-b"] for step in steps]
    assert rates[:40] == pytest.approx([1] * 40)
    assert rates[48:80] == pytest.approx([5] * 32)
    assert rates[80] == pytest.approx(5)
    assert 1 < rates[-1] < 1.2


def test_a_lost_zone_returns() -> None:
    """Its clients and nodes are away in the second third."""
    steps = smooth("zone-loss").steps
    assert [bool(step.lost) for step in steps] == [False] * 40 + [True] * 40 + [False] * 40
    assert steps[50].lost == {"zone-c"}
    assert steps[50].shares == pytest.approx({"zone-a": 0.5, "zone-b": 0.5, "zone-c": 0})


def test_a_walk_wanders_slowly() -> None:
    """Over half an hour the rates move by about a fifth, from step to step by far less."""
    ends, moves = [], []
    for seed in range(200):
        rates = [step.rates["zone-a"] for step in smooth("random-walk", seed=seed).steps]
        ends.append(math.log(rates[-1] / rates[0]))
        moves += [math.log(after / before) for before, after in pairwise(rates)]
    spread = math.sqrt(sum(end * end for end in ends) / len(ends))
    assert 0.14 < spread < 0.26
    assert math.sqrt(sum(move * move for move in moves) / len(moves)) < 0.03


def test_a_step_changes_once() -> None:
    """Equal shares, then 70, 20 and 10 %, at the same rate of all zones."""
    trace = smooth("step")
    assert trace.steps[39].shares == pytest.approx(dict.fromkeys(trace.zones, 1 / 3))
    after = dict(zip(trace.zones, (0.7, 0.2, 0.1), strict=True))
    assert all(step.shares == pytest.approx(after) for step in trace.steps[40:])
    assert all(step.total == pytest.approx(MEAN_RATE) for step in trace.steps)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(TraceOptions(zones=1), "1 zones are not between 2 and 12", id="a zone"),
        pytest.param(TraceOptions(zones=13), "13 zones are not", id="many zones"),
        pytest.param(TraceOptions(step_s=0.5), "a step of 0.5 s is shorter than 1 s", id="short"),
        pytest.param(TraceOptions(step_s=math.nan), "a step of nan s", id="no step"),
        pytest.param(TraceOptions(duration_s=20), "20 s hold less than two steps", id="no time"),
        pytest.param(TraceOptions(duration_s=math.inf), "inf s hold", id="for ever"),
        pytest.param(
            TraceOptions(duration_s=1e6), f"1e+06 s hold more than {MAX_STEPS:,}", id="long"
        ),
    ],
)
def test_sizes_out_of_range_are_refused(options: TraceOptions, want: str) -> None:
    """An error says which number is out of which range."""
    with pytest.raises(ValueError, match=want.replace("+", r"\+")):
        make_trace(TRACES["step"], options)
