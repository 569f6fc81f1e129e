"""How busy the busiest endpoint is by chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from keepclose.lab.traffic.answers import expect_most, find_loads, is_beyond_chance

Sources = Sequence[tuple[int, dict[str, float]]]


def even(connections: int, pods: int) -> Sources:
    """Return one source that gives all pods an equal share."""
    return [(connections, {f"p{number}": 1 / pods for number in range(pods)})]


def simulate(sources: Sources, runs: int, random: Random) -> list[int]:
    """Return the count of the busiest pod in each of many runs, drawn connection by connection."""
    found = []
    for _ in range(runs):
        counts: Counter[str] = Counter()
        for connections, shares in sources:
            counts.update(random.choices([*shares], [*shares.values()], k=connections))
        found.append(max(counts.values()))
    return found


UNEVEN: Sources = [
    (200, {"a": 0.5, "b": 0.5}),
    (200, {"c": 1.0}),
    (300, {"a": 0.2, "b": 0.2, "c": 0.6}),
]


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param(even(3000, 130), id="130 pods with equal shares"),
        pytest.param(even(600, 5), id="five pods"),
        pytest.param(even(90, 300), id="fewer connections than pods"),
        pytest.param(UNEVEN, id="shares that differ by source"),
        pytest.param([*even(500, 40), *even(700, 20)], id="pods of two zones"),
    ],
)
def test_the_expected_maximum_is_that_of_draws(sources: Sources) -> None:
    """It agrees with connections that are drawn one by one, within two percent."""
    drawn = simulate(sources, 300, Random(7))
    mean = sum(drawn) / len(drawn)
    assert expect_most(find_loads(sources)) == pytest.approx(mean, rel=0.02)


def test_one_endpoint_that_gets_all_is_certain() -> None:
    """There is no chance in a share of one, and none without endpoints."""
    assert expect_most(find_loads([(1000, {"a": 1.0})])) == 1000
    assert expect_most(find_loads([])) == 0
    assert expect_most(find_loads([(0, {"a": 0.5, "b": 0.5})])) == 0


def test_many_connections_are_normal() -> None:
    """Beyond the exact distribution the maximum of two is known in closed form."""
    loads = find_loads(even(1_000_000, 2))
    assert expect_most(loads) == pytest.approx(500_000 + 500 / math.sqrt(math.pi), abs=1)


def test_rounding_does_not_part_equal_shares() -> None:
    """A share that is a sum of parts is the same as its whole."""
    third = 0.1 + 0.2
    assert len(find_loads([(10, {"a": third, "b": 0.3, "c": 0.4})])) == 2


def test_the_busiest_of_many_equal_pods_is_no_finding() -> None:
    """1.6 times the fair share is chance for 130 pods, and far beyond it for five."""
    loads = find_loads(even(3000, 130))
    fair = 3000 / 130
    assert expect_most(loads) / fair == pytest.approx(1.57, abs=0.02)
    assert not is_beyond_chance(round(1.6 * fair), loads)
    assert is_beyond_chance(round(2.5 * fair), loads)
    few = find_loads(even(3000, 5))
    assert is_beyond_chance(round(1.6 * 600), few)
    assert not is_beyond_chance(630, few)


def test_chance_is_rarely_called_beyond_chance() -> None:
    """Of 300 runs in which all is well at most a few are called out."""
    sources = even(1000, 50)
    loads = find_loads(sources)
    called = sum(is_beyond_chance(one, loads) for one in simulate(sources, 300, Random(11)))
    assert called <= 3
