"""Summary of an algorithm over a data set: means, extremes, worst rows, histograms.

Means are those of the figures as printed, with four decimals, and worst rows those that share the
worst printed figure; the published results of KEP-2004 were computed so. Sums are kept in units of
the last decimal, in which addition is exact, so that the result does not depend on the order of
rows, the size of blocks or the number of threads. Of very many worst rows only the first are kept,
and all are counted. The functions over rows are plain, over flat sequences, in the subset of Python
that numba compiles.
"""

from __future__ import annotations

import math
from collections.abc import MutableSequence, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from keepclose.simulate.row_loops import COLUMNS, IN_ZONE_COLUMN, MAX_DEVIATION_COLUMN, TOTAL

TALLIED: Final = COLUMNS + 1
"""The seven figures of a row and its true spread."""
UNITS: Final = 10_000
"""Sums are kept in units of the last printed decimal."""
BINS: Final = 100
"""Bins of one point (total, in-zone score) or 2 % (largest deviation); the last bin is open."""
DEVIATION_BIN: Final = 2.0
SIDE: Final = 50
"""Side of the plane of in-zone score (2 points) against the largest deviation (2 %)."""
WORST_KEPT: Final = 1000
# A score of 100 may be computed as 99.99999999999999, and must not change its bin by that.
_NUDGE: Final = 1e-9


def tally_rows(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    figures: Sequence[float],
    spreads: Sequence[float],
    valid: Sequence[int],
    sums: MutableSequence[int],
    extremes: MutableSequence[float],
    histograms: MutableSequence[int],
) -> int:
    """Add up the valid rows of a block and return their number.

    `sums` has one integer a column, `extremes` the highest and the lowest value, `histograms` the
    three rows of bins and then the plane. They are added to, so blocks can share them: before the
    first block sums and histograms are zeros, extremes are minus and plus infinity.
    """
    for column in range(COLUMNS):
        tally_column(rows, figures, COLUMNS, column, valid, column, sums, extremes)
    tally_column(rows, spreads, 1, 0, valid, COLUMNS, sums, extremes)
    count = 0
    plane = 3 * BINS
    for row in range(rows):
        if valid[row] != 0:
            count += 1
            in_zone = figures[row * COLUMNS + IN_ZONE_COLUMN]
            deviation = figures[row * COLUMNS + MAX_DEVIATION_COLUMN] / DEVIATION_BIN
            histograms[find_bin(figures[row * COLUMNS + TOTAL], BINS)] += 1
            histograms[BINS + find_bin(in_zone, BINS)] += 1
            histograms[2 * BINS + find_bin(deviation, BINS)] += 1
            place = find_bin(in_zone * SIDE / BINS, SIDE) * SIDE + find_bin(deviation, SIDE)
            histograms[plane + place] += 1
    return count


def tally_column(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    values: Sequence[float],
    width: int,
    first: int,
    valid: Sequence[int],
    column: int,
    sums: MutableSequence[int],
    extremes: MutableSequence[float],
) -> None:
    """Add up one column of values that are `width` apart."""
    total = 0
    highest = extremes[2 * column]
    lowest = extremes[2 * column + 1]
    for row in range(rows):
        if valid[row] != 0:
            value = values[row * width + first]
            total += round(value * UNITS)
            highest = max(highest, value)
            lowest = min(lowest, value)
    sums[column] += total
    extremes[2 * column] = highest
    extremes[2 * column + 1] = lowest


def find_bin(value: float, bins: int) -> int:
    """Return the number of the bin of width 1 a value falls into, the last one for all above."""
    return int(min(max(value + _NUDGE, 0.0), bins - 1.0))


def collect_rows(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    figures: Sequence[float],
    valid: Sequence[int],
    column: int,
    lowest: float,
    highest: float,
    kept: MutableSequence[int],
) -> int:
    """Count valid rows with a figure in a range, and write the first of their numbers to `kept`."""
    count = 0
    for row in range(rows):
        if valid[row] != 0 and lowest <= figures[row * COLUMNS + column] <= highest:
            if count < len(kept):
                kept[count] = row
            count += 1
    return count


class Weights(msgspec.Struct, frozen=True):
    """The weight of each part in the total score; by default those of the KEP."""

    in_zone: float = 0.45
    max_deviation: float = 0.20
    mean_deviation: float = 0.20
    slices: float = 0.15


class FigureColumn(msgspec.Struct, frozen=True):
    """One figure over all valid rows."""

    mean: float
    highest: float
    lowest: float


class SummaryFigures(msgspec.Struct, frozen=True):
    """All figures: scores up to 100, deviations in percent, spreads as fractions."""

    total: FigureColumn
    in_zone: FigureColumn
    deviation: FigureColumn
    slices: FigureColumn
    max_deviation: FigureColumn
    mean_deviation: FigureColumn
    spread: FigureColumn
    """Around the mean of the absolute deviations, as the reference simulator computes it."""
    true_spread: FigureColumn
    """Around the mean of the signed deviations: a standard deviation."""


class Worst(msgspec.Struct, frozen=True):
    """The rows that share the worst printed figure; `rows` are their numbers, at most 1000."""

    value: float
    count: int
    rows: tuple[int, ...]


class Histograms(msgspec.Struct, frozen=True):
    """Numbers of valid rows: bins of one point (scores) or 2 % (deviation), the last one open."""

    total: tuple[int, ...]
    in_zone: tuple[int, ...]
    max_deviation: tuple[int, ...]
    plane: tuple[tuple[int, ...], ...]
    """By in-zone score (2 points), then by the largest deviation (2 %)."""


class Summary(msgspec.Struct, frozen=True):
    """What an algorithm does over a data set; without valid rows there are no figures."""

    algorithm: str
    rows: int
    valid: int
    invalid: int
    undivided: int
    """Rows for which the algorithm left all endpoints to all clients."""
    figures: SummaryFigures | None
    worst_deviation: Worst | None
    worst_total: Worst | None
    histograms: Histograms


class PartTally(msgspec.Struct, frozen=True):
    """The tally of consecutive rows by `tally_rows`, and the worst of them."""

    rows: int
    valid: int
    undivided: int
    sums: Sequence[int]
    extremes: Sequence[float]
    histograms: Sequence[int]
    worst_deviation: Worst | None
    worst_total: Worst | None


class BlockTally:
    """Adds up the tallies of parts; parts must be added in the order of their rows."""

    def __init__(self, algorithm: str) -> None:
        self.algorithm = algorithm
        self.rows = 0
        self.valid = 0
        self.undivided = 0
        self._sums = [0] * TALLIED
        self._extremes = [-math.inf, math.inf] * TALLIED
        self._histograms = [0] * (3 * BINS + SIDE * SIDE)
        self._deviation: Worst | None = None
        self._total: Worst | None = None

    def add(self, part: PartTally) -> None:
        """Add the next part."""
        self.rows += part.rows
        self.undivided += part.undivided
        if part.valid == 0:
            return
        self.valid += part.valid
        for column in range(TALLIED):
            self._sums[column] += part.sums[column]
            high, low = 2 * column, 2 * column + 1
            self._extremes[high] = max(self._extremes[high], part.extremes[high])
            self._extremes[low] = min(self._extremes[low], part.extremes[low])
        self._histograms = [
            total + added for total, added in zip(self._histograms, part.histograms, strict=True)
        ]
        self._deviation = join_worst(self._deviation, part.worst_deviation, sign=1)
        self._total = join_worst(self._total, part.worst_total, sign=-1)

    def join(self) -> PartTally:
        """Return all parts so far as one, which another tally can add."""
        return PartTally(
            rows=self.rows,
            valid=self.valid,
            undivided=self.undivided,
            sums=tuple(self._sums),
            extremes=tuple(self._extremes),
            histograms=tuple(self._histograms),
            worst_deviation=self._deviation,
            worst_total=self._total,
        )

    def finish(self) -> Summary:
        """Return the summary of all parts so far."""
        counts = self._histograms
        figures = None
        if self.valid > 0:
            columns = [
                FigureColumn(
                    mean=self._sums[column] / (UNITS * self.valid),
                    highest=self._extremes[2 * column],
                    lowest=self._extremes[2 * column + 1],
                )
                for column in range(TALLIED)
            ]
            figures = SummaryFigures(*columns)
        return Summary(
            algorithm=self.algorithm,
            rows=self.rows,
            valid=self.valid,
            invalid=self.rows - self.valid,
            undivided=self.undivided,
            figures=figures,
            worst_deviation=self._deviation,
            worst_total=self._total,
            histograms=Histograms(
                total=tuple(counts[:BINS]),
                in_zone=tuple(counts[BINS : 2 * BINS]),
                max_deviation=tuple(counts[2 * BINS : 3 * BINS]),
                plane=tuple(
                    tuple(counts[start : start + SIDE])
                    for start in range(3 * BINS, len(counts), SIDE)
                ),
            ),
        )


def join_worst(first: Worst | None, second: Worst | None, *, sign: int) -> Worst | None:
    """Return the worse of two, or both joined when they are equal; high is bad for sign 1."""
    if first is None or second is None:
        return first or second
    if first.value != second.value:
        return first if sign * first.value > sign * second.value else second
    rows = (first.rows + second.rows)[:WORST_KEPT]
    return Worst(first.value, first.count + second.count, rows)


@lru_cache(maxsize=4096)
def find_printed_range(value: float) -> tuple[float, float]:
    """Return the lowest and the highest number with the same four printed decimals."""
    printed = float(f"{value:.4f}")
    return _find_edge(printed, -math.inf), _find_edge(printed, math.inf)


def _find_edge(printed: float, toward: float) -> float:
    # The sum is off by less than one step between doubles, in either direction.
    edge = printed + math.copysign(0.00005, toward)
    while float(f"{edge:.4f}") != printed:
        edge = math.nextafter(edge, -toward)
    return edge
