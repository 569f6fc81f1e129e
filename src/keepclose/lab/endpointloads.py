"""How busy the busiest of many endpoints is by chance alone.

Proxies draw an endpoint for each connection, so even equal shares give unequal counts, and the
largest of many counts is well above their mean: with 3,000 connections to 130 endpoints about 1.6
times. A count is a sum of binomials, one for each share that some client gives the endpoint. Counts
are taken as independent: connections that one endpoint gets are missing elsewhere, which makes the
true maximum a little larger, by less than one percent from five endpoints on. No clock, no I/O, no
random numbers: the same shares give the same figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

BEYOND_CHANCE: Final = 1e-3
"""A busiest endpoint is called out when chance makes one as busy less often than this."""
# Ten sigmas to each side: what lies beyond is less than rounding.
_REACH: Final = 10.0
# From this variance on, the normal distribution is near enough, far out too.
_MOST_VARIANCE: Final = 2500.0
Draws = tuple[tuple[float, int], ...]
"""With which chance an endpoint is drawn, and how often; sorted, each chance once."""


class Load(NamedTuple):
    """The distribution of one endpoint's count: `below[i]` is the chance of at most `least + i`."""

    least: int
    below: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest count that can be told apart from impossible."""
        return self.least + len(self.below) - 1

    def at_most(self, count: int) -> float:
        """Return the chance of at most this many."""
        if count < self.least:
            return 0.0
        return self.below[min(count - self.least, len(self.below) - 1)]


def find_loads(sources: Iterable[tuple[int, Mapping[str, float]]]) -> Counter[Load]:
    """Return the distributions of all endpoints' counts, and how many endpoints have each.

    Each source is its number of connections and the share of each endpoint, by name.
    """
    draws: dict[str, Counter[float]] = {}
    for connections, shares in sources:
        for endpoint, share in shares.items():
            # NB: shares are sums of parts of 1, equal up to rounding.
            draws.setdefault(endpoint, Counter())[round(share, 12)] += connections
    kinds = Counter(tuple(sorted(one.items())) for one in draws.values())
    return Counter({_find_load(kind): count for kind, count in kinds.items()})


def expect_most(loads: Mapping[Load, int]) -> float:
    """Return the expected count of the busiest endpoint; 0 without endpoints."""
    if not loads:
        return 0.0
    least, most = max(one.least for one in loads), max(one.most for one in loads)
    expected = float(least)
    for count in range(least, most):
        chance = math.prod(one.at_most(count) ** times for one, times in loads.items())
        expected += 1.0 - chance
    return expected


def is_beyond_chance(count: int, loads: Mapping[Load, int]) -> bool:
    """Return whether an endpoint as busy as this is too rare to be chance.

    The chances of all endpoints are added up, which holds however counts depend on each other.
    """
    chance = sum(times * (1.0 - one.at_most(count - 1)) for one, times in loads.items())
    return chance < BEYOND_CHANCE


def _find_load(draws: Draws) -> Load:
    mean = sum(share * times for share, times in draws)
    variance = sum(share * (1 - share) * times for share, times in draws)
    if variance > _MOST_VARIANCE:
        return _normal(mean, math.sqrt(variance), sum(times for _, times in draws))
    least, chances = 0, [1.0]
    for share, times in draws:
        start, binomial = _binomial(times, share)
        least += start
        chances = _convolve(chances, binomial)
    total, below = 0.0, []
    for chance in chances:
        total += chance
        below.append(total)
    # What was cut off and rounded is spread over the rest.
    return Load(least, tuple(one / total for one in below))


def _normal(mean: float, sigma: float, most: int) -> Load:
    least = max(0, math.floor(mean - _REACH * sigma))
    end = min(most, math.ceil(mean + _REACH * sigma))
    return Load(
        least,
        tuple(
            math.erfc((mean - count - 0.5) / (sigma * math.sqrt(2.0))) / 2.0
            for count in range(least, end + 1)
        ),
    )


def _binomial(times: int, share: float) -> tuple[int, list[float]]:
    """Return the first count that is not negligible, and the chances from there on."""
    if share >= 1.0:
        return times, [1.0]
    if share <= 0.0 or not times:
        return 0, [1.0]
    mean, reach = times * share, _REACH * math.sqrt(times * share * (1 - share)) + _REACH
    least, most = max(0, math.floor(mean - reach)), min(times, math.ceil(mean + reach))
    return least, [
        math.exp(
            math.lgamma(times + 1)
            - math.lgamma(count + 1)
            - math.lgamma(times - count + 1)
            + count * math.log(share)
            + (times - count) * math.log1p(-share)
        )
        for count in range(least, most + 1)
    ]


def _convolve(one: Sequence[float], other: Sequence[float]) -> list[float]:
    chances = [0.0] * (len(one) + len(other) - 1)
    for place, left in enumerate(one):
        for offset, right in enumerate(other):
            chances[place + offset] += left * right
    return chances
