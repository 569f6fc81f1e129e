"""Loops over rows: shares of a row, figures of a row, and the allocator that must be bound."""

from __future__ import annotations

import pytest

from keepclose.simulate.row_loops import COLUMNS, allocate_row, read_row, write_row

KEP_WEIGHTS = [0.45, 0.20, 0.20, 0.15]


def test_allocator_must_be_bound() -> None:
    """A loop run as it is, without an allocator, says so."""
    with pytest.raises(NotImplementedError):
        allocate_row(3)


@pytest.mark.parametrize(
    ("row", "want_shares", "want_counts"),
    [
        pytest.param(0, [0.25, 0.75], [5, 6], id="the first row"),
        pytest.param(1, [0.0, 0.0], [7, 8], id="no nodes, no shares"),
        pytest.param(2, [1.0, 0.0], [0, 9], id="all nodes in one zone"),
    ],
)
def test_row_is_read(row: int, want_shares: list[float], want_counts: list[int]) -> None:
    """Shares are parts of the nodes of the row, endpoints are copied."""
    shares, counts = [9.0, 9.0], [9, 9]

    read_row(row, 2, [1, 3, 0, 0, 4, 0], [5, 6, 7, 8, 0, 9], shares, counts)

    assert (shares, counts) == (want_shares, want_counts)


def test_figures_are_written_as_printed() -> None:
    """Fractions become scores and percentages, and the total is weighted."""
    figures, spreads = [9.0] * (2 * COLUMNS), [9.0, 9.0]

    write_row(1, 1, [0.75, 0.5, 0.25, 0.125, 0.0625, 4.0, 2.0], KEP_WEIGHTS, figures, spreads)

    assert figures == [9.0] * COLUMNS + [66.25, 75.0, 62.5, 50.0, 50.0, 25.0, 0.125]
    assert spreads == [9.0, 0.0625]


def test_row_that_is_not_valid_has_zeros() -> None:
    """Whatever the evaluation left behind is not written."""
    figures, spreads = [9.0] * COLUMNS, [9.0]

    write_row(0, 0, [1.0] * COLUMNS, KEP_WEIGHTS, figures, spreads)

    assert (figures, spreads) == ([0.0] * COLUMNS, [0.0])
