"""What a number of connections says about a policy: availability, hops, crossings, latency.

A hop is a connection that is answered on another node than the one that routed it, a crossing one
that is answered in another zone. Connections without an answer count for availability alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from keepclose.lab.traffic.answers import Answer, Result

INTERNAL: Final = "internal"
EXTERNAL: Final = "external"
NEARLY_ALL: Final = 99.5
"""Percent that pass for "100 %-ish"."""
_NORMALLY: Final = 0.5
"""The part of Cluster's hops below which connections stay near as a rule."""


class Guess(StrEnum):
    """What the draft says of a policy, in short."""

    NEARLY_ALL = "100 %-ish"
    NOT_ALL = "less than 100 %"
    SLOW = "not as fast"
    FAST = "fast"
    MOSTLY_FAST = "normally fast"
    BETWEEN = "between the two"


class Sample(NamedTuple):
    """One connection."""

    traffic: str
    node: str
    """The node that routed it."""
    result: Result
    seconds: float


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    """What one policy did with one kind of traffic."""

    policy: str
    role: str
    traffic: str
    connections: int
    failed: int
    failures: dict[str, int]
    availability: float
    """Percent of the connections that were answered."""
    node_hops: float | None
    """By connection that was answered; None when none was."""
    zone_crossings: float | None
    p50_ms: float | None
    p99_ms: float | None
    guessed_availability: str
    """What the draft guesses, "" where it says nothing of the policy."""
    guessed_speed: str
    availability_as_guessed: bool | None = False
    """None where nothing was guessed."""
    speed_as_guessed: bool | None = False


class Sums(NamedTuple):
    """The sums of some samples."""

    connections: int
    failures: dict[str, int]
    node_hops: float | None
    zone_crossings: float | None
    p50_ms: float | None
    p99_ms: float | None

    @property
    def failed(self) -> int:
        """How many got no answer."""
        return sum(self.failures.values())

    @property
    def availability(self) -> float:
        """Percent that were answered; without connections nothing was missing."""
        if not self.connections:
            return 100.0
        return 100.0 * (self.connections - self.failed) / self.connections


def sum_up(samples: Iterable[Sample], zones: Mapping[str, str]) -> Sums:
    """Return the sums of samples; `zones` holds the zone of each node."""
    failures: Counter[str] = Counter()
    seconds: list[float] = []
    hops = crossings = connections = 0
    for one in samples:
        connections += 1
        if not isinstance(one.result, Answer):
            failures[one.result.value] += 1
            continue
        seconds.append(one.seconds)
        hops += one.result.node != one.node
        crossings += zones.get(one.result.node, "") != zones.get(one.node, "")
    seconds.sort()
    answered = len(seconds)
    return Sums(
        connections,
        dict(sorted(failures.items())),
        hops / answered if answered else None,
        crossings / answered if answered else None,
        _milliseconds(percentile(seconds, 50)),
        _milliseconds(percentile(seconds, 99)),
    )


def judge(rows: Sequence[Figures]) -> list[Figures]:
    """Return the figures with a word on each guess, by Cluster and Local of the same traffic.

    How fast is told by hops: what they cost hangs on the distance of nodes, which a lab makes up.
    """
    hops = {(row.policy, row.traffic): row.node_hops or 0.0 for row in rows if not row.role}
    return [
        msgspec.structs.replace(
            row,
            availability_as_guessed=_is_available(row) if row.guessed_availability else None,
            speed_as_guessed=_is_fast(
                row,
                cluster=hops.get(("Cluster", row.traffic), 0.0),
                local=hops.get(("Local", row.traffic), 0.0),
            )
            if row.guessed_speed
            else None,
        )
        for row in rows
    ]


def _is_available(row: Figures) -> bool:
    if row.guessed_availability == Guess.NOT_ALL:
        return row.failed > 0
    return row.availability >= NEARLY_ALL


def _is_fast(row: Figures, *, cluster: float, local: float) -> bool:
    if row.node_hops is None:
        return False
    match row.guessed_speed:
        case Guess.SLOW:
            return row.node_hops > local
        case Guess.FAST:
            return row.node_hops < cluster
        case Guess.MOSTLY_FAST:
            return row.node_hops < _NORMALLY * cluster
        case _:
            return local < row.node_hops < cluster


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Return the least value that so many percent do not exceed; None of nothing."""
    if not ordered:
        return None
    place = math.ceil(len(ordered) * percent / 100)
    return ordered[min(max(place, 1), len(ordered)) - 1]


def show_percent(share: float) -> str:
    """Return a percentage with two decimals, rounded down: 100 means that nothing was missing."""
    return f"{math.floor(share * 100 + 1e-9) / 100:.2f} %"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
