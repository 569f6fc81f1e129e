"""How a command ends when it cannot go on: words to the person, a code to the shell.

Light on purpose: every command loads it, also for --help.
"""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NoReturn

import typer


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    FOUND = 1
    """Something was found, by a command whose work is to find things."""
    BAD_INPUT = 2
    NOTHING = 3
    """What was asked about is not there."""
    UNREACHABLE = 4
    PRIVILEGE = 5


def fail(text: str, fix: str = "", *, code: int = ExitCode.BAD_INPUT) -> NoReturn:
    """End the command with an error, and what to do about it on a line of its own."""
    typer.echo(f"error: {text}" + (f"\n       {fix}" if fix else ""), err=True)
    sys.exit(code)
