"""Who answered a connection, read from what came back, or why nobody did.

Pods of the lab say over HTTP and over UDP who and where they are. Whoever answers otherwise is no
pod of the lab, and that counts as no answer.
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
"""A busiest endpoint is called out when chance makes one as busy less often than this."""
# Ten sigmas to each side: what lies beyond is less than rounding.
_REACH: Final = 10.0
# From this variance on, the normal distribution is near enough, far out too.
_MOST_VARIANCE: Final = 2500.0
Draws = tuple[tuple[float, int], ...]
"""With which chance an endpoint is drawn, and how often; sorted, each chance once."""


class PodAnswer(NamedTuple):
    """The pod that answered, with the place that it names."""

    pod: str
    node: str = ""
    zone: str = ""


class ConnectionFailure(StrEnum):
    """Why there is no answer."""

    REFUSED = "refused"
    """An error came back: nobody listens, or a rule rejects."""
    TIMED_OUT = "timed out"
    UNREACHABLE = "unreachable"
    """There is no way there."""
    BROKEN = "broken off"
    """The connection ended before the answer, or what came is not an answer of a pod."""
    NO_PORT = "no local port"
    """The client has used up its ports."""


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
    """Return what an error number of a socket means for a connection."""
    return _FAILURES.get(number or 0, ConnectionFailure.BROKEN)


def read_http(data: bytes) -> ConnectionResult | None:
    """Return who answered over HTTP; None when more must come."""
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    result, length = _read_head(head)
    return result if len(body) >= length else None


def read_datagram(data: bytes) -> ConnectionResult:
    """Return who answered over UDP."""
    # NB: a node without a zone leaves an empty word, so blanks are not to be taken together.
    words = data.decode(errors="replace").rstrip("\n").split(" ")
    if len(words) < 3 or not words[0]:
        return ConnectionFailure.BROKEN
    return PodAnswer(*words[:3])


@lru_cache(maxsize=4096)
def _read_head(head: bytes) -> tuple[ConnectionResult, int]:
    """Return who answered, and how long the body is; one pod's heads hardly differ."""
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
