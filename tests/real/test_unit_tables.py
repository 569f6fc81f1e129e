"""The list of kept differences is held to: neither more nor less differs."""

from __future__ import annotations

import pytest

from support.real.kept_differences import KEPT, Kept
from support.real.unit_tables import check_differences

LISTED = (Kept("group", "function", "TestA/*", 2, "for a reason"),)


@pytest.mark.parametrize(
    ("differences", "want"),
    [
        pytest.param({"TestA/1": "x", "TestA/2": "x", "TestB": ""}, [], id="exactly those listed"),
        pytest.param(
            {"TestA/1": "x", "TestA/2": "x", "TestB": "  - 1\n  + 2"},
            ["function: 0 of 3 agree, 1 are unlisted", "TestB\n  - 1\n  + 2"],
            id="one more",
        ),
        pytest.param(
            {"TestA/1": "x", "TestA/2": "", "TestB": ""},
            [
                "function: 2 of 3 agree, 0 are unlisted",
                "TestA/*: 2 differences are listed, 1 are there",
            ],
            id="one that is listed is gone",
        ),
    ],
)
def test_only_listed_differences_pass(differences: dict[str, str], want: list[str]) -> None:
    """A difference that is not listed is a problem, and so is a listed one that is gone."""
    assert check_differences("group", "function", differences, LISTED) == want


def test_other_functions_have_lists_of_their_own() -> None:
    """An entry excuses its own function alone."""
    assert check_differences("group", "other", {"TestA/1": "x"}, LISTED) != []


def test_every_kept_difference_has_cases_and_a_reason() -> None:
    """An entry for nothing, or without a reason, is no entry."""
    assert all(kept.number > 0 and len(kept.reason) > 20 for kept in KEPT)
