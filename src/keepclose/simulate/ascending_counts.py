"""All ascending tuples of counts, by their numbers: (0, 0, 1) comes before (0, 1, 1).

Large data sets enumerate such tuples. Any of them is computed from its number alone, so that no
machine ever holds all: of 5 counts from 0 to 100 there are 96,560,646. The order is that of
`itertools.combinations_with_replacement`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, Final

MOST_IN_A_TABLE: Final = 500_000
"""So many tuples are kept in a table, which is quicker than computing them."""


class AscendingCounts:
    """The ascending tuples of `width` of the given counts, which ascend themselves."""

    def __init__(self, numpy: Any, counts: Sequence[int], width: int) -> None:
        self._numpy = numpy
        self._width = width
        self._counts = numpy.array(counts, dtype=numpy.int64)
        self.total = math.comb(len(counts) + width - 1, width)
        self._table: Any = None
        # For each length of a rest, how many begin below the i-th count.
        self._before = [
            numpy.array(
                [
                    _count_tuples(len(counts), length) - _count_tuples(len(counts) - first, length)
                    for first in range(len(counts) + 1)
                ],
                dtype=numpy.int64,
            )
            for length in range(width, 0, -1)
        ]
        if self.total <= MOST_IN_A_TABLE:
            tuples = list(combinations_with_replacement(counts, width))
            self._table = numpy.array(tuples, dtype=numpy.int64).reshape(-1, width)

    def pick(self, numbers: Any) -> Any:
        """Return the tuples of these numbers, an array with one row each."""
        if self._table is not None:
            return self._table[numbers]
        return self.compute(numbers)

    def compute(self, numbers: Any) -> Any:
        """Return what `pick` returns, without the table."""
        numpy = self._numpy
        places = numpy.empty((len(numbers), self._width), dtype=numpy.int64)
        # The number of the rest of a tuple among all rests, also those that begin lower.
        rest = numpy.asarray(numbers, dtype=numpy.int64)
        for position, before in enumerate(self._before):
            if position > 0:
                rest = rest + before[places[:, position - 1]]
            places[:, position] = numpy.searchsorted(before, rest, side="right") - 1
            rest = rest - before[places[:, position]]
        return self._counts[places]


def _count_tuples(counts: int, width: int) -> int:
    return math.comb(counts + width - 1, width) if counts > 0 else 0
