"""Tallies: sums, extremes and histograms over the rows of a block, in whole numbers.

What is added up are figures as printed, with four decimals: that is how the published means of
KEP-2004 were made, and in units of the last decimal adding is exact, so that the result does not
depend on the order of rows, the size of blocks or the number of threads. Plain functions over flat
sequences, in the subset of Python that a compiler for numeric code takes.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.simulate.row_loops import COLUMNS, IN_ZONE, MAX_DEVIATION, TOTAL

TALLIED: Final = COLUMNS + 1
"""The seven figures of a row and its true spread."""
UNITS: Final = 10_000
"""Sums are kept in units of the last printed decimal."""

BINS: Final = 100
"""Total and in-zone score by one point, the largest deviation by 2 %; the last bin has no end."""
DEVIATION_BIN: Final = 2.0
SIDE: Final = 50
"""In-zone score (2 points) against the largest deviation (2 %), in-zone score by in-zone score."""

# A score of 100 may come out of floats as 99.99999999999999, and must not change its bin by that.
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
    first block sums and histograms are zeros, extremes as low and as high as can be.
    """
    for column in range(COLUMNS):
        tally_column(rows, figures, COLUMNS, column, valid, column, sums, extremes)
    tally_column(rows, spreads, 1, 0, valid, COLUMNS, sums, extremes)
    count = 0
    plane = 3 * BINS
    for row in range(rows):
        if valid[row] != 0:
            count += 1
            in_zone = figures[row * COLUMNS + IN_ZONE]
            deviation = figures[row * COLUMNS + MAX_DEVIATION] / DEVIATION_BIN
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
    """Add up one column of values that stand `width` apart."""
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
    found: MutableSequence[int],
) -> int:
    """Count valid rows with a figure in a range, and note the first of them while there is room."""
    count = 0
    for row in range(rows):
        if valid[row] != 0 and lowest <= figures[row * COLUMNS + column] <= highest:
            if count < len(found):
                found[count] = row
            count += 1
    return count
