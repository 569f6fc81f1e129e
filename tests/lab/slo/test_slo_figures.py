"""Sums over connections, and guesses held against them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.lab.slo.figures import (
    Guess,
    SloFigures,
    SloSample,
    SloSums,
    compare_with_guesses,
    percentile,
    show_percent,
    sum_up_slo,
)
from keepclose.lab.traffic.answers import ConnectionFailure, PodAnswer

ZONES = {"n1": "zone-a", "n2": "zone-a", "n3": "zone-b"}


def test_sums() -> None:
    """Hops and crossings are by answered connection, availability by all."""
    samples = [
        SloSample("internal", "n1", PodAnswer("p1", "n1", "zone-a"), 0.001),
        SloSample("internal", "n1", PodAnswer("p2", "n2", "zone-a"), 0.002),
        SloSample("internal", "n1", PodAnswer("p3", "n3", "zone-b"), 0.003),
        SloSample("internal", "n3", PodAnswer("p3", "n3", "zone-b"), 0.004),
        SloSample("internal", "n3", ConnectionFailure.TIMED_OUT, 2.0),
    ]
    sums = sum_up_slo(samples, ZONES)
    assert sums == SloSums(5, {"timed out": 1}, 0.5, 0.25, 2.0, 4.0)
    assert (sums.failed, sums.availability) == (1, 80.0)


def test_nothing_answered() -> None:
    """Without an answer there are no hops and no latency; without a connection nothing is lost."""
    sums = sum_up_slo([SloSample("internal", "n1", ConnectionFailure.REFUSED, 0.1)], ZONES)
    assert sums == SloSums(1, {"refused": 1}, None, None, None, None)
    assert sums.availability == 0.0
    assert sum_up_slo([], ZONES).availability == 100.0


@pytest.mark.parametrize(
    ("percent", "want"),
    [
        pytest.param(0, 1.0, id="the least"),
        pytest.param(50, 2.0, id="half of them"),
        pytest.param(51, 3.0, id="a little more than half"),
        pytest.param(100, 4.0, id="all of them"),
    ],
)
def test_percentiles(percent: float, want: float) -> None:
    """A percentile is a value that was seen."""
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == want


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(0, 10), min_size=1), st.floats(0, 100))
def test_what_a_percentile_is(values: list[float], percent: float) -> None:
    """At least so many percent do not exceed it, and fewer do not exceed any lesser value."""
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found is not None
    needed = len(ordered) * percent / 100
    assert sum(one <= found for one in ordered) >= needed
    assert sum(one < found for one in ordered) < max(needed, 1)


def test_percentile_of_nothing() -> None:
    """There is none."""
    assert percentile([], 50) is None


@pytest.mark.parametrize(
    ("share", "want"),
    [
        pytest.param(100.0, "100.00 %", id="all"),
        pytest.param(99.9999, "99.99 %", id="one is missing"),
        pytest.param(98.07, "98.07 %", id="a share that floats miss by a little"),
        pytest.param(0.0, "0.00 %", id="none"),
    ],
)
def test_percentages_round_down(share: float, want: str) -> None:
    """100 % is said only when nothing was missing."""
    assert show_percent(share) == want


def a_row(
    policy: str, availability: Guess, speed: Guess, *, role: str = "", failed: int, hops: float
) -> SloFigures:
    """Return the figures of a thousand connections."""
    return SloFigures(
        policy=policy,
        role=role,
        traffic="internal",
        connections=1000,
        failed=failed,
        failures={"timed out": failed} if failed else {},
        availability=100.0 - failed / 10,
        node_hops=hops,
        zone_crossings=hops / 2,
        p50_ms=1.0,
        p99_ms=2.0,
        guessed_availability=availability,
        guessed_speed=speed,
    )


CLUSTER = a_row("Cluster", Guess.NEARLY_ALL, Guess.SLOW, failed=1, hops=0.8)
LOCAL = a_row("Local", Guess.NOT_ALL, Guess.FAST, failed=20, hops=0.0)


@pytest.mark.parametrize(
    ("row", "want"),
    [
        pytest.param(CLUSTER, (True, True), id="Cluster as guessed"),
        pytest.param(LOCAL, (True, True), id="Local as guessed"),
        pytest.param(
            a_row("P", Guess.NEARLY_ALL, Guess.MOSTLY_FAST, role="r", failed=6, hops=0.39),
            (False, True),
            id="too many lost, and fast",
        ),
        pytest.param(
            a_row("P", Guess.NEARLY_ALL, Guess.MOSTLY_FAST, role="r", failed=5, hops=0.4),
            (True, False),
            id="just enough answered, and half of the hops of Cluster",
        ),
        pytest.param(
            a_row("P", Guess.NOT_ALL, Guess.BETWEEN, role="r", failed=0, hops=0.4),
            (False, True),
            id="nothing lost where some should be, and between the two",
        ),
        pytest.param(
            a_row("P", Guess.NEARLY_ALL, Guess.BETWEEN, role="r", failed=0, hops=0.0),
            (True, False),
            id="as Local, not between",
        ),
        pytest.param(
            a_row("P", Guess.NEARLY_ALL, Guess.FAST, role="r", failed=0, hops=0.8),
            (True, False),
            id="as Cluster, not fast",
        ),
    ],
)
def test_guesses(row: SloFigures, want: tuple[bool, bool]) -> None:
    """Availability is judged by itself, speed by hops beside those of Cluster and Local."""
    judged = compare_with_guesses([CLUSTER, LOCAL, row])[-1]
    assert (judged.availability_as_guessed, judged.speed_as_guessed) == want


def test_a_guess_without_answers() -> None:
    """Nothing is fast that never came."""
    row = msgspec.structs.replace(LOCAL, node_hops=None)
    assert compare_with_guesses([CLUSTER, row])[1].speed_as_guessed is False
