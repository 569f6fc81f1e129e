"""How mechanisms score with few endpoints, on every placement of them in three zones.

Most Services have few endpoints, and there one endpoint more or less in a zone decides. The best
that hints can do is what "balanced" chooses without a bound on overload; the limit is what weights
reach.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.simulate.algorithms import Algorithm, find_algorithm
from keepclose.simulate.datasets import InMemoryRows
from keepclose.simulate.engine import list_plainly, simulate_rows
from keepclose.simulate.row_loops import COLUMNS, TOTAL

ZONES: Final = ("zone-a", "zone-b", "zone-c")
NODE_PATTERNS: Final = ((1, 1, 1), (2, 1, 1), (3, 1, 1), (3, 2, 1), (4, 3, 2), (5, 3, 1))
"""Nodes by zone, and so the shares of traffic."""
MOST_ENDPOINTS: Final = 12
"""With more endpoints not all hints are tried."""
_ROUNDING: Final = 1e-9


class FewEndpoints(msgspec.Struct, frozen=True):
    """The mean scores of all inputs with a number of endpoints."""

    endpoints: int
    inputs: int
    no_hints: float
    same_zone: float
    auto: float
    balanced: float
    best: float
    """The best that hints can do, if overload has no bound."""
    limit: float
    """What weights reach: no allocation scores more."""
    below: int
    """Inputs where "balanced" scores less than no hints, PreferSameZone or Auto."""


def compare_few(
    least: int,
    most: int,
    patterns: Sequence[Sequence[int]] = NODE_PATTERNS,
    *,
    compiled: bool | None = None,
) -> Iterator[FewEndpoints]:
    """Return the scores for each number of endpoints, from `least` to `most`."""
    balanced = find_algorithm("balanced")
    algorithms = [
        find_algorithm("original"),
        find_algorithm("same-zone"),
        find_algorithm("kube-auto"),
        balanced,
        replace(balanced, threshold=math.inf),
        find_algorithm("balanced-weights"),
    ]
    for number in range(least, most + 1):
        rows = _place(number, patterns)
        scores = [_score(rows, algorithm, compiled=compiled) for algorithm in algorithms]
        no_hints, same_zone, auto, reached, best, limit = (sum(part) / rows.rows for part in scores)
        yield FewEndpoints(
            endpoints=number,
            inputs=rows.rows,
            no_hints=no_hints,
            same_zone=same_zone,
            auto=auto,
            balanced=reached,
            best=best,
            limit=limit,
            below=sum(
                score < max(others) - _ROUNDING for *others, score in zip(*scores[:4], strict=True)
            ),
        )


def _place(number: int, patterns: Sequence[Sequence[int]]) -> InMemoryRows:
    nodes: list[int] = []
    endpoints: list[int] = []
    for pattern in patterns:
        for first in range(number + 1):
            for second in range(number + 1 - first):
                nodes += pattern
                endpoints += [first, second, number - first - second]
    return InMemoryRows(ZONES, nodes, endpoints, name=f"{number} endpoints")


def _score(rows: InMemoryRows, algorithm: Algorithm, *, compiled: bool | None) -> list[float]:
    return [
        score
        for results in simulate_rows(rows, algorithm, compiled=compiled)
        for score in list_plainly(results.figures)[TOTAL::COLUMNS]
    ]
