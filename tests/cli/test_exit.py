"""Tests of how commands end."""

from __future__ import annotations

import pytest

from keepclose.cli.exit import ExitCode, fail


@pytest.mark.parametrize(
    ("fix", "code", "want_text"),
    [
        pytest.param("", 2, "error: no such thing\n", id="a bare error"),
        pytest.param("make one", 3, "error: no such thing\n       make one\n", id="with a fix"),
    ],
)
def test_errors_go_to_standard_error(
    fix: str, code: int, want_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words go to standard error, the fix below them, and the code to the shell."""
    with pytest.raises(SystemExit) as ended:
        fail("no such thing", fix, code=code)

    assert ended.value.code == code
    assert capsys.readouterr() == ("", want_text)


def test_errors_are_bad_input_unless_told() -> None:
    """Without a code it is 2."""
    with pytest.raises(SystemExit) as ended:
        fail("no such thing")

    assert ended.value.code == 2


def test_exit_codes_are_fixed() -> None:
    """Scripts rely on the numbers."""
    want = {
        "OK": 0,
        "FOUND": 1,
        "BAD_INPUT": 2,
        "NOTHING": 3,
        "UNREACHABLE": 4,
        "PRIVILEGE": 5,
        "INTERNAL_ERROR": 70,
        "BROKEN_PIPE": 141,
        "UNWRITABLE": 74,
    }

    assert {code.name: code.value for code in ExitCode} == want
