"""Commands whose standard error is closed: logs go nowhere, and above all not into the output."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOGGING = """
import sys
from keepclose.cli.startup import log_to_standard_error
from keepclose.cli.render.output import adapt_streams
import structlog
adapt_streams()
log_to_standard_error()
structlog.get_logger("x").warning("hello")
if sys.stdout is not None:
    print("output")
"""


@pytest.mark.parametrize(
    ("closed", "want"),
    [
        pytest.param((2,), b"output\n", id="standard error"),
        pytest.param((1, 2), b"", id="both"),
        pytest.param((0, 1, 2), b"", id="all"),
    ],
)
def test_logs_of_a_closed_standard_error_go_nowhere(closed: tuple[int, ...], want: bytes) -> None:
    """Rules on standard output stay rules, and a program that logs does not fail."""

    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run(
        [sys.executable, "-c", LOGGING], stdout=subprocess.PIPE, check=False, preexec_fn=close
    )
    assert (done.returncode, done.stdout) == (0, want)
