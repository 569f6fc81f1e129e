"""Answers and errors of workers, which may be anything: each is one line, and none a traceback."""

from __future__ import annotations

import pytest

from keepclose.simulate.sweep import find_answer_error
from keepclose.simulate.sweep_cluster import in_words
from keepclose.simulate.sweep_task import OtherVersions


class Silent(Exception):  # noqa: N818 - a name of third parties
    """An error without a text."""

    def __str__(self) -> str:
        """Break."""
        raise ValueError


@pytest.mark.parametrize(
    ("error", "want"),
    [
        pytest.param(None, "None", id="none"),
        pytest.param(ValueError("a\n b"), "a b", id="several lines"),
        pytest.param(ValueError("\x1b[2J\u202e"), r"\x1b[2J\u202e", id="control characters"),
        pytest.param(ValueError(), "ValueError", id="no text"),
        pytest.param(Silent(), "Silent", id="a text that raises"),
    ],
)
def test_errors_of_workers_are_one_visible_line(error: Exception | None, want: str) -> None:
    """No error of a worker can move the cursor, and none ends the command."""
    assert in_words(error) == want
    assert len(in_words(ValueError("x" * 10_000))) < 350


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(None, "answered with NoneType", id="nothing"),
        pytest.param(b"", "answered with bytes", id="bytes"),
        pytest.param([1, 2], "answered with list, not with tallies", id="other objects"),
        pytest.param([], "answered with 0 tallies for 2", id="too few"),
    ],
)
def test_an_answer_that_is_no_tally_is_an_error(answer: object, want: str) -> None:
    """The range counts as failed, and runs again on another worker."""
    assert want in str(find_answer_error(answer, 2))


def test_a_worker_of_other_versions_answers_so() -> None:
    """That is no failed range; it has an error of its own."""
    assert find_answer_error(OtherVersions("numpy"), 2) is None
