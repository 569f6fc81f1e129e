"""Scores with few endpoints: the table that `keepclose simulate few` prints."""

from __future__ import annotations

import json
import math

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.simulate.few_endpoints import NODE_PATTERNS, compare_few


def test_balanced_is_the_best_that_hints_can_do() -> None:
    """Balanced loses less than 0.05 points to its bound, and never scores below the others."""
    rows = list(compare_few(2, 8))
    assert [row.endpoints for row in rows] == list(range(2, 9))
    for row in rows:
        assert row.inputs == len(NODE_PATTERNS) * math.comb(row.endpoints + 2, 2)
        assert row.best - 0.05 <= row.balanced <= row.best <= row.limit
        assert max(row.no_hints, row.same_zone, row.auto) < row.balanced
        assert row.below == 0


def test_scores_are_those_of_the_formula() -> None:
    """Two endpoints on three equal zones: 70 points together, 85 in two zones of their own."""
    (row,) = compare_few(2, 2, [(1, 1, 1)], compiled=False)
    # Three of the six placements have both endpoints in one zone.
    assert row.same_zone == pytest.approx((3 * 70 + 3 * 85) / 6)
    assert row.no_hints == pytest.approx(70)
    assert row.limit == pytest.approx(77.5)


def test_the_command_prints_a_row_for_each_number() -> None:
    """The table has the numbers of the library, and JSON has all of them."""
    done = CliRunner().invoke(app, ["simulate", "few", "--endpoints", "3"], env={"COLUMNS": "120"})
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[2:4]] == ["2", "3"]
    document = CliRunner().invoke(app, ["simulate", "few", "--endpoints", "3", "-o", "json"])
    rows = json.loads(document.stdout)
    assert [row["endpoints"] for row in rows] == [2, 3]
    assert f"{rows[1]['balanced']:.2f}" in done.stdout


@pytest.mark.parametrize("number", ["1", "13", "-4"])
def test_other_numbers_are_refused(number: str) -> None:
    """Fewer than two endpoints, or more than are tried in every way, are bad input."""
    done = CliRunner().invoke(app, ["simulate", "few", "--endpoints", number])
    assert done.exit_code == 2
    assert f"{number} is not between 2 and 12" in done.stderr
