"""Rows as two algorithms have them, side by side: counts and sums over a block.

A plain function over flat sequences, in the subset of Python that a compiler for numeric code
takes. Rows are classed by their size, since that is where algorithms differ most.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

from keepclose.simulate.row_loops import COLUMNS, TOTAL

EQUAL: Final = 0.00005
"""Totals that differ by less are alike in four decimals."""
SIZES: Final = (3, 10, 33)
"""Rows are classed by their endpoints for each zone, below and from these numbers on."""

# Columns of the counts of one class of rows.
ROWS: Final = 0
BETTER: Final = 1
WORSE: Final = 2
ONLY_FIRST: Final = 3
ONLY_SECOND: Final = 4
COUNTS: Final = 5


def compare_rows(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    zones: int,
    endpoints: Sequence[int],
    first: Sequence[float],
    first_valid: Sequence[int],
    second: Sequence[float],
    second_valid: Sequence[int],
    counts: MutableSequence[int],
    sums: MutableSequence[float],
    totals: MutableSequence[float],
    differences: MutableSequence[float],
) -> int:
    """Add the rows of a block to counts and sums; return how many are valid for neither.

    `counts` has five numbers for each class of sizes, `totals` a sum of differences of the totals
    for each, and `sums` one for each figure. `differences` becomes that of the totals of each row,
    0 where not both are valid.
    """
    neither = 0
    for row in range(rows):
        differences[row] = 0.0
        size = 0
        for zone in range(zones):
            size += endpoints[row * zones + zone]
        place = 0
        if size >= SIZES[2] * zones:
            place = 3
        elif size >= SIZES[1] * zones:
            place = 2
        elif size >= SIZES[0] * zones:
            place = 1
        count = place * COUNTS
        if first_valid[row] == 0 or second_valid[row] == 0:
            if first_valid[row] != 0:
                counts[count + ONLY_FIRST] += 1
            elif second_valid[row] != 0:
                counts[count + ONLY_SECOND] += 1
            else:
                neither += 1
            continue
        counts[count + ROWS] += 1
        for column in range(COLUMNS):
            sums[column] += first[row * COLUMNS + column] - second[row * COLUMNS + column]
        difference = first[row * COLUMNS + TOTAL] - second[row * COLUMNS + TOTAL]
        totals[place] += difference
        differences[row] = difference
        if difference >= EQUAL:
            counts[count + BETTER] += 1
        elif difference <= -EQUAL:
            counts[count + WORSE] += 1
    return neither
