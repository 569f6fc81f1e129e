"""Which pod answered a connection, or why none did; and how busy the busiest endpoint is by chance.

Pods of the lab reply over HTTP and UDP with their name, node and zone. Any other reply is not of a
pod of the lab, and counts as no answer.

Proxies draw an endpoint for each connection, so even equal shares give unequal counts, and the
largest of many counts is well above their mean: with 3,000 connections to 130 endpoints about 1.6
times. A count is a sum of binomials, one for each share that a client gives the endpoint. Counts
are taken as independent: connections that one endpoint gets are missing elsewhere, which makes the
true maximum a little larger, by less than one percent from five endpoints on. No clock, no I/O, no
random numbers: the same shares give the same figures.
"""

from __future__ import annotations

import errno
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Final, NamedTuple

BEYOND_CHANCE: Final = 1e-3
"""A busiest endpoint is reported if chance makes one as busy less often than this."""
# Ten sigmas to each side: the rest is less than rounding.
_REACH: Final = 10.0
# From this variance on, the normal distribution is close enough, in its tails too.
_MAX_VARIANCE: Final = 2500.0
Draws = tuple[tuple[float, int], ...]
"""The chance that an endpoint is drawn, and how often; sorted, each chance once."""


class PodAnswer(NamedTuple):
    """The pod that answered, with the node and zone in its answer."""

    pod: str
    node: str = ""
    zone: str = ""


class ConnectionFailure(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    """An error came back: no socket listens, or a rule rejects."""
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    """There is no route."""
    BROKEN = "broken off"
    """The connection ended before the answer, or the answer is not of a pod."""
    NO_PORT = "no local port"
    """The client has no free local port."""


ConnectionResult = PodAnswer | ConnectionFailure

_FAILURES: Final = {
    errno.ECONNREFUSED: ConnectionFailure.REFUSED,
    errno.ETIMEDOUT: ConnectionFailure.TIMED_OUT,
    errno.ENETUNREACH: ConnectionFailure.UNREACHABLE,
    errno.EHOSTUNREACH: ConnectionFailure.UNREACHABLE,
    errno.ENETDOWN: ConnectionFailure.UNREACHABLE,
    errno.EACCES: ConnectionFailure.UNREACHABLE,
    errno.EPERM: ConnectionFailure.UNREACHABLE,
    errno.EADDRNOTAVAIL: ConnectionFailure.NO_PORT,
}


def failure_of(number: int | None) -> ConnectionFailure:
    """Return the failure for an error number of a socket."""
    return _FAILURES.get(number or 0, ConnectionFailure.BROKEN)


def read_http(data: bytes) -> ConnectionResult | None:
    """Return the pod of an HTTP answer; None if it is incomplete."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    result, length = _read_head(head)
    return result if len(body) >= length else None


def read_datagram(data: bytes) -> ConnectionResult:
    """Return the pod of a UDP answer."""
    # NB: a node without a zone leaves an empty word, so blanks must not be merged.
    words = data.decode(errors="replace").rstrip("\n").split(" ")
    if len(words) < 3 or not words[0]:
        return ConnectionFailure.BROKEN
    return PodAnswer(*words[:3])


class Load(NamedTuple):
    """The distribution of one endpoint's count: `below[i]` is the chance of at most `least + i`."""

    least: int
    below: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest count that is not negligible."""
        return self.least + len(self.below) - 1

    def at_most(self, count: int) -> float:
        """Return the chance of at most this count."""
        if count < self.least:
            return 0.0
        return self.below[min(count - self.least, len(self.below) - 1)]


def find_loads(sources: Iterable[tuple[int, Mapping[str, float]]]) -> Counter[Load]:
    """Return the distributions of all endpoints' counts, and how many endpoints have each.

    Each source is a number of connections and the share of each endpoint, by name.
    """
    draws: dict[str, Counter[float]] = {}
    for connections, shares in sources:
        for endpoint, share in shares.items():
            # NB: shares are sums of parts of 1, equal up to rounding.
            draws.setdefault(endpoint, Counter())[round(share, 12)] += connections
    kinds = Counter(tuple(sorted(draw.items())) for draw in draws.values())
    return Counter({_find_load(kind): count for kind, count in kinds.items()})


def expect_most(loads: Mapping[Load, int]) -> float:
    """Return the expected count of the busiest endpoint; 0 without endpoints."""
    if not loads:
        return 0.0
    least, most = max(load.least for load in loads), max(load.most for load in loads)
    expected = float(least)
    for count in range(least, most):
        chance = math.prod(load.at_most(count) ** times for load, times in loads.items())
        expected += 1.0 - chance
    return expected


def is_beyond_chance(count: int, loads: Mapping[Load, int]) -> bool:
    """Return whether an endpoint as busy as this is too rare to be chance.

    The chances of all endpoints are added up, which holds however counts depend on each other.
    """
    chance = sum(times * (1.0 - load.at_most(count - 1)) for load, times in loads.items())
    return chance < BEYOND_CHANCE


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> tuple[ConnectionResult, int]:
    """Return the pod, and the length of the body; cached, because a pod's heads hardly differ."""
    status, *lines = head.decode("latin-1").split("\r\n")
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    length = fields.get("content-length", "0")
    pod = fields.get("x-pod", "")
    if status.split(" ")[1:2] != ["200"] or not pod or not length.isdecimal():
        return ConnectionFailure.BROKEN, 0
    return PodAnswer(pod, fields.get("x-node", ""), fields.get("x-zone", "")), int(length)


def _find_load(draws: Draws) -> Load:
    mean = sum(share * times for share, times in draws)
    variance = sum(share * (1 - share) * times for share, times in draws)
    if variance > _MAX_VARIANCE:
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
    # Normalized, because negligible counts were left out.
    return Load(least, tuple(chance / total for chance in below))


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


def _convolve(left: Sequence[float], right: Sequence[float]) -> list[float]:
    chances = [0.0] * (len(left) + len(right) - 1)
    for place, left_chance in enumerate(left):
        for offset, right_chance in enumerate(right):
            chances[place + offset] += left_chance * right_chance
    return chances
