"""Tests of how problems are shown."""

from __future__ import annotations

import pytest

from keepclose.cli.manifests.problems import (
    InputPlace,
    InputProblem,
    describe_field_error,
    render,
    suggest_fix,
)
from keepclose.model.field_errors import FieldError, duplicate, invalid, not_supported, required

DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
PROTOCOLS = ("SCTP", "TCP", "UDP")


def test_cause_is_shown_with_place_and_fix() -> None:
    """A problem says what is wrong with which object, where exactly, and what was meant."""
    cause = not_supported("spec.trafficDistribution", "PreferZone", DISTRIBUTIONS)
    place = InputPlace("cluster.yaml", document=3, line=41)
    want = (
        'error: shop/web: spec.trafficDistribution: Unsupported value: "PreferZone": '
        'supported values: "PreferClose", "PreferSameZone", "PreferSameNode"\n'
        "       in cluster.yaml, document 3, line 41\n"
        "       did you mean PreferSameZone?"
    )

    assert render(describe_field_error(cause, place=place, subject="shop/web")) == want


def test_problem_of_a_file_has_no_subject() -> None:
    """A problem without an object and without a fix takes two lines."""
    problem = InputProblem(InputPlace("a.yaml"), "cannot be read: Permission denied")

    assert render(problem) == "error: cannot be read: Permission denied\n       in a.yaml"


def test_control_characters_do_not_reach_the_terminal() -> None:
    """What cannot be printed is shown as a question mark."""
    problem = InputProblem(InputPlace("a\n.yaml"), "bad", subject="\x1b[2Jweb", fix="do\tit")

    assert render(problem) == "error: \\x1b[2Jweb: bad\n       in a\\n.yaml\n       do\\tit"


@pytest.mark.parametrize(
    ("place", "want_text"),
    [
        pytest.param(InputPlace("a.yaml"), "a.yaml", id="a file"),
        pytest.param(InputPlace("-"), "standard input", id="standard input"),
        pytest.param(InputPlace("a.yaml", 2), "a.yaml, document 2", id="a document"),
        pytest.param(
            InputPlace("a.yaml", 1, 0, 4, 7),
            "a.yaml, document 1, items[0], line 4, column 7",
            id="all that can be known",
        ),
    ],
)
def test_place_is_shown(place: InputPlace, want_text: str) -> None:
    """A place names the file and as much more as is known."""
    assert str(place) == want_text


@pytest.mark.parametrize(
    ("cause", "want_fix"),
    [
        pytest.param(
            not_supported("f", "prefersamenode", DISTRIBUTIONS),
            "did you mean PreferSameNode?",
            id="case does not matter",
        ),
        pytest.param(not_supported("f", "tpc", PROTOCOLS), "did you mean TCP?", id="swapped"),
        pytest.param(not_supported("f", "zzz", PROTOCOLS), "", id="nothing is close"),
        pytest.param(not_supported("f", 5, PROTOCOLS), "", id="a number is close to nothing"),
        pytest.param(not_supported("f", "x", ()), "", id="nothing is supported"),
        pytest.param(
            FieldError(not_supported("f", "x", ()).type, "f", "none of them", "x"),
            "",
            id="supported values in other words",
        ),
        pytest.param(
            invalid("f", 1.1, "expected a string, got a number"),
            "put it in quotes, otherwise it is a number",
            id="a bare number",
        ),
        pytest.param(
            invalid("f", True, "expected a string, got a boolean"),
            "put it in quotes, otherwise yes, no, on, off, true and false are booleans",
            id="a bare yes",
        ),
        pytest.param(
            invalid("f", "80", "expected a number, got a string"),
            "write it without quotes: 80",
            id="a quoted number",
        ),
        pytest.param(
            invalid("f", "http", "expected a number, got a string"), "", id="a word for a number"
        ),
        pytest.param(invalid("f", "x", "must be y"), "", id="another rule"),
        pytest.param(required("f"), "", id="a missing value"),
        pytest.param(duplicate("f", "x"), "", id="a repeated value"),
    ],
)
def test_fix_is_suggested(cause: FieldError, want_fix: str) -> None:
    """A fix is suggested where the cause tells what was meant, and none is invented."""
    assert suggest_fix(cause) == want_fix
