"""Whether what was observed agrees with what was expected."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.advise.expectations import Expectation, is_unlikely
from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.lab.traffic.expected_shares import find_fault
from keepclose.routing.selection import PacketVerdict

HALVES = Expectation({"a": 0.5, "b": 0.5}, PacketVerdict.NONE, ())
ONLY_C = Expectation({"c": 1.0}, PacketVerdict.NONE, ())
DROPS = Expectation({}, PacketVerdict.DROP, ())
REJECTS = Expectation({}, PacketVerdict.REJECT, ())
A, B, C = PodAnswer("a"), PodAnswer("b"), PodAnswer("c")


@pytest.mark.parametrize(
    ("results", "expected", "want"),
    [
        pytest.param({A: 510, B: 490}, [HALVES], "", id="halves"),
        pytest.param({A: 1000}, [HALVES], "a got 100.0 %, expected 50.0 %", id="all to one"),
        pytest.param(
            {A: 620, B: 380}, [HALVES], "a got 62.0 %, expected 50.0 %", id="too many to one"
        ),
        pytest.param({A: 4}, [HALVES], "", id="four heads in a row are chance"),
        pytest.param(
            {A: 500, B: 499, C: 1},
            [HALVES],
            "1 answered by c, which should get none",
            id="one astray",
        ),
        pytest.param(
            {A: 3, B: 4, C: 2},
            [ONLY_C],
            "7 answered by b and 1 more, which should get none",
            id="several astray",
        ),
        pytest.param(
            {A: 500, B: 480, ConnectionFailure.REFUSED: 20}, [HALVES], "20 refused", id="some fail"
        ),
        pytest.param({C: 5}, [ONLY_C], "", id="a single endpoint gets everything"),
        pytest.param(
            {ConnectionFailure.TIMED_OUT: 1000}, [DROPS], "", id="silence where rules drop"
        ),
        pytest.param(
            {ConnectionFailure.REFUSED: 1000}, [REJECTS], "", id="refusals where rules reject"
        ),
        pytest.param(
            {ConnectionFailure.REFUSED: 9},
            [DROPS],
            "9 refused, expected timed out",
            id="the wrong failure",
        ),
        pytest.param(
            {A: 9}, [REJECTS], "9 answered by a, expected refused", id="an answer out of nothing"
        ),
        pytest.param(
            {A: 900, C: 100}, [HALVES, ONLY_C], "", id="shares of before and after are not compared"
        ),
        pytest.param(
            {ConnectionFailure.REFUSED: 100, A: 3},
            [REJECTS, HALVES],
            "",
            id="endpoints came during the run",
        ),
        pytest.param(
            {ConnectionFailure.TIMED_OUT: 1, A: 3},
            [REJECTS, HALVES],
            "1 timed out",
            id="but nothing drops",
        ),
        pytest.param({}, [HALVES], "", id="no connections"),
    ],
)
def test_faults(
    results: dict[ConnectionResult, int], expected: list[Expectation], want: str
) -> None:
    """The first thing that is not as expected is named, with numbers."""
    assert find_fault(results, expected) == want


def test_a_sticky_service_is_judged_by_the_set_alone() -> None:
    """One endpoint may get everything, another none, but nobody else may get any."""
    assert find_fault({A: 1000}, [HALVES], compares_shares=False) == ""
    assert find_fault({C: 1}, [HALVES], compares_shares=False) != ""


def test_many_counts_are_each_judged_more_mildly() -> None:
    """What is a fault alone may be chance among a million counts."""
    results: dict[ConnectionResult, int] = {A: 580, B: 420}
    assert find_fault(results, [HALVES], judged=2) == "a got 58.0 %, expected 50.0 %"
    assert find_fault(results, [HALVES], judged=1_000_000) == ""


def exact_tails(count: int, whole: int, share: float) -> float:
    """Return twice the tail on the side of the count, summed term by term."""
    above = count > whole * share
    numbers = range(count, whole + 1) if above else range(count + 1)
    return 2 * math.fsum(
        math.comb(whole, k) * share**k * (1 - share) ** (whole - k) for k in numbers
    )


@settings(deadline=None, max_examples=200)
@given(
    whole=st.integers(1, 300),
    share=st.floats(0.01, 0.99),
    part=st.floats(0, 1),
    limit=st.sampled_from([1e-3, 1e-6, 1e-9]),
)
def test_tails_are_exact(whole: int, share: float, part: float, limit: float) -> None:
    """What is called unlikely is so by the plain sum, and the other way round beyond 3 sigmas."""
    count = round(part * whole)
    want = exact_tails(count, whole, share)
    if abs(want - limit) < limit * 1e-6:
        return
    is_far = abs(count - whole * share) > 3 * math.sqrt(whole * share * (1 - share))
    assert is_unlikely(count, whole, share, limit=limit) is (is_far and want < limit)


def test_chance_alone_raises_no_alarm() -> None:
    """A thousand honest runs over twelve endpoints, some with few connections, are all fine."""
    dice = random.Random(7)
    names = [f"p{number}" for number in range(12)]
    expected = Expectation(dict.fromkeys(names, 1 / 12), PacketVerdict.NONE, ())
    for _ in range(1000):
        picked = Counter(dice.choices(names, k=dice.choice([1, 10, 100, 400])))
        results: dict[ConnectionResult, int] = {
            PodAnswer(name): count for name, count in picked.items()
        }
        assert find_fault(results, [expected], judged=12) == ""
