"""Ascending tuples by number: those of itertools, in its order, with and without a table."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepclose.simulate.ascending_counts import AscendingCounts

numpy = pytest.importorskip("numpy")


@given(
    counts=st.sets(st.integers(0, 1000), max_size=7).map(sorted),
    width=st.integers(1, 5),
)
def test_numbers_give_the_tuples_of_itertools(counts: list[int], width: int) -> None:
    """Every number gives the tuple at that place, computed or from the table."""
    want = list(combinations_with_replacement(counts, width))
    ascending = AscendingCounts(numpy, counts, width)
    numbers = numpy.arange(ascending.total)

    assert ascending.total == len(want)
    assert [tuple(row) for row in ascending.pick(numbers).tolist()] == want
    assert [tuple(row) for row in ascending.compute(numbers).tolist()] == want


MANY = AscendingCounts(numpy, range(101), 5)


@given(number=st.integers(0, MANY.total - 1))
def test_tuples_too_many_for_a_table_stand_at_their_numbers(number: int) -> None:
    """Counting all smaller tuples, position by position, gives the number back."""
    (got,) = MANY.pick(numpy.array([number])).tolist()
    smaller = sum(
        math.comb(101 - first + 4 - place - 1, 4 - place)
        for place, (least, count) in enumerate(pairwise([0, *got]))
        for first in range(least, count)
    )

    assert MANY.total == 96_560_646
    assert got == sorted(got)
    assert smaller == number
