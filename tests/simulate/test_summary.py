"""Summaries: parts added up, worst rows by printed figures, the range a print stands for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.simulate.summary import (
    BINS,
    SIDE,
    TALLIED,
    WORST_KEPT,
    BlockTally,
    FigureColumn,
    PartTally,
    Worst,
    find_printed_range,
    join_worst,
)

CELLS = 3 * BINS + SIDE * SIDE


def part(
    *,
    rows: int,
    valid: int,
    units: int = 0,
    high: float = 0.0,
    low: float = 0.0,
    worst: Worst | None = None,
) -> PartTally:
    """Return a part with the same figures in all columns."""
    return PartTally(
        rows=rows,
        valid=valid,
        undivided=1,
        sums=[units] * TALLIED,
        extremes=[high, low] * TALLIED,
        histograms=[valid] + [0] * (CELLS - 1),
        worst_deviation=worst,
        worst_total=worst,
    )


def test_parts_are_added_up() -> None:
    """Means are over valid rows of all parts, extremes those of all."""
    tally = BlockTally("some")
    tally.add(part(rows=5, valid=3, units=600_000, high=40.0, low=5.0))
    tally.add(part(rows=2, valid=0, high=-math.inf, low=math.inf))
    tally.add(part(rows=1, valid=1, units=100_000, high=10.0, low=2.5))
    got = tally.finish()

    assert (got.algorithm, got.rows, got.valid, got.invalid, got.undivided) == ("some", 8, 4, 4, 3)
    assert got.figures is not None
    assert got.figures.total == got.figures.true_spread == FigureColumn(17.5, 40.0, 2.5)
    assert got.histograms.total == (4, *[0] * (BINS - 1))
    assert len(got.histograms.in_zone) == len(got.histograms.max_deviation) == BINS
    assert [len(row) for row in got.histograms.plane] == [SIDE] * SIDE


def test_without_valid_rows_there_are_no_figures() -> None:
    """Nothing valid means no means, no extremes and no worst rows."""
    tally = BlockTally("some")
    tally.add(part(rows=2, valid=0))
    got = tally.finish()

    assert (got.rows, got.invalid, got.figures) == (2, 2, None)
    assert (got.worst_deviation, got.worst_total) == (None, None)
    assert BlockTally("none").finish().rows == 0


def test_worst_is_high_for_deviations_and_low_for_totals() -> None:
    """The same two parts have different worst rows in the two respects."""
    tally = BlockTally("some")
    tally.add(part(rows=1, valid=1, worst=Worst(10.0, 1, (0,))))
    tally.add(part(rows=1, valid=1, worst=Worst(20.0, 1, (1,))))
    got = tally.finish()

    assert got.worst_deviation == Worst(20.0, 1, (1,))
    assert got.worst_total == Worst(10.0, 1, (0,))


@pytest.mark.parametrize(
    ("one", "two", "want"),
    [
        pytest.param(None, None, None, id="none at all"),
        pytest.param(None, Worst(1.0, 1, (3,)), Worst(1.0, 1, (3,)), id="none before"),
        pytest.param(Worst(1.0, 1, (3,)), None, Worst(1.0, 1, (3,)), id="none after"),
        pytest.param(
            Worst(1.0, 2, (3, 4)), Worst(1.0, 1, (8,)), Worst(1.0, 3, (3, 4, 8)), id="both alike"
        ),
        pytest.param(
            Worst(1.0, 5000, tuple(range(WORST_KEPT))),
            Worst(1.0, 10, (7000,)),
            Worst(1.0, 5010, tuple(range(WORST_KEPT))),
            id="very many are counted, the first are kept",
        ),
    ],
)
def test_worst_rows_are_joined(one: Worst | None, two: Worst | None, want: Worst | None) -> None:
    """Rows with the same printed figure are listed together."""
    assert join_worst(one, two, sign=1) == join_worst(one, two, sign=-1) == want


@settings(deadline=None, max_examples=200)
@given(value=st.one_of(st.floats(-1000.0, 1000.0), st.integers(-9999, 9999).map(lambda n: n / 8)))
def test_range_of_a_print_is_exact(value: float) -> None:
    """The ends of the range print like the value, their neighbours outside do not."""
    low, high = find_printed_range(value)
    printed = float(f"{value:.4f}")

    assert low <= value <= high
    assert float(f"{low:.4f}") == float(f"{high:.4f}") == printed
    assert float(f"{math.nextafter(low, -math.inf):.4f}") < printed
    assert float(f"{math.nextafter(high, math.inf):.4f}") > printed
