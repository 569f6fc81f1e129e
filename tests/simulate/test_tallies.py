"""Tallies: exact sums, extremes, histograms, rows in a range."""

from __future__ import annotations

import math

import pytest

from keepclose.simulate.row_loops import COLUMNS, MAX_DEVIATION_COLUMN, TOTAL
from keepclose.simulate.summary import (
    BINS,
    SIDE,
    TALLIED,
    collect_rows,
    find_bin,
    tally_rows,
)

ROWS = [
    # total, in-zone, deviation, slices, max %, mean %, spread; true spread; valid
    ([90.0, 100.0, 80.0, 50.0, 40.0, 0.0, 0.25], 0.5, 1),
    ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 9.0, 0),
    ([70.00004, 99.99999999999999, 100.0, 33.33333, 0.0, 0.0, 0.0], 0.0, 1),
    ([-12.5, 0.0, -30.0, 100.0, 250.0, 10.0, 1.5], 1.25, 1),
]


def tally(rows: list[tuple[list[float], float, int]]) -> tuple[int, list[int], list[float]]:
    """Return the number of valid rows, the sums and the extremes."""
    sums, extremes = [0] * TALLIED, [-math.inf, math.inf] * TALLIED
    histograms = [0] * (3 * BINS + SIDE * SIDE)
    count = tally_rows(
        len(rows),
        [number for figures, _, _ in rows for number in figures],
        [spread for _, spread, _ in rows],
        [valid for _, _, valid in rows],
        sums,
        extremes,
        histograms,
    )
    return count, sums, extremes


def test_printed_figures_are_added_up() -> None:
    """Sums count units of the fourth decimal, each row rounded first, invalid rows left out."""
    count, sums, _ = tally(ROWS)

    assert count == 3
    assert sums == [1_475_000, 2_000_000, 1_500_000, 1_833_333, 2_900_000, 100_000, 17_500, 17_500]


def test_highest_and_lowest_are_kept() -> None:
    """Extremes are those of valid rows, as computed."""
    _, _, extremes = tally(ROWS)

    assert extremes[2 * TOTAL : 2 * TOTAL + 2] == [90.0, -12.5]
    assert extremes[2 * MAX_DEVIATION_COLUMN : 2 * MAX_DEVIATION_COLUMN + 2] == [250.0, 0.0]
    assert extremes[2 * COLUMNS :] == [1.25, 0.0]


def test_without_valid_rows_nothing_is_tallied() -> None:
    """Invalid rows leave everything as it was."""
    assert tally([ROWS[1]]) == (0, [0] * TALLIED, [-math.inf, math.inf] * TALLIED)


def test_histograms_have_open_ends() -> None:
    """Figures are counted in bins of one point or 2 %, what lies beyond in the outermost."""
    histograms = [0] * (3 * BINS + SIDE * SIDE)
    tally_rows(
        len(ROWS),
        [number for figures, _, _ in ROWS for number in figures],
        [0.0] * len(ROWS),
        [valid for _, _, valid in ROWS],
        [0] * TALLIED,
        [0.0] * (2 * TALLIED),
        histograms,
    )
    filled = {place: number for place, number in enumerate(histograms) if number}

    total, in_zone, deviation, plane = 0, BINS, 2 * BINS, 3 * BINS
    assert filled == {
        total + 0: 1,
        total + 70: 1,
        total + 90: 1,
        in_zone + 0: 1,
        in_zone + 99: 2,
        deviation + 0: 1,
        deviation + 20: 1,
        deviation + 99: 1,
        plane + 0 * SIDE + 49: 1,
        plane + 49 * SIDE + 0: 1,
        plane + 49 * SIDE + 20: 1,
    }


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(-3.0, 0, id="below all"),
        pytest.param(6.999999999999999, 7, id="what rounding took away is given back"),
        pytest.param(6.9999, 6, id="but no more"),
        pytest.param(1e300, 9, id="above all"),
    ],
)
def test_value_falls_into_a_bin(value: float, want: int) -> None:
    """Bins are one wide and the last one has no end."""
    assert find_bin(value, 10) == want


def test_rows_in_a_range_are_noted_and_counted() -> None:
    """All are counted, but no more noted than there is room for; invalid rows are neither."""
    figures = [number for row, _, _ in ROWS for number in row]
    valid = [valid for _, _, valid in ROWS]
    found = [9, 9]

    assert collect_rows(4, figures, valid, TOTAL, 1.0, 90.0, found) == 2
    assert found == [0, 2]
    assert collect_rows(4, figures, valid, TOTAL, -math.inf, math.inf, found) == 3
    assert found == [0, 2]
    assert collect_rows(4, figures, valid, TOTAL, 91.0, 92.0, found) == 0
