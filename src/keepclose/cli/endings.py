"""How a command ends when it cannot go on: words to the person, a code to the shell.

Light on purpose: every command loads it, also for --help.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup


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
    BROKEN_PIPE = 141
    """The reader of the output has gone; shells report this code for tools that SIGPIPE ended."""


def fail(text: str, fix: str = "", *, code: int = ExitCode.BAD_INPUT) -> NoReturn:
    """End the command with an error, and what to do about it on a line of its own."""
    typer.echo(f"error: {text}" + (f"\n       {fix}" if fix else ""), err=True)
    sys.exit(code)


class QuietGroup(TyperGroup):
    """Commands that end without a word when the reader of their output has gone (`| head`)."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Read the options; --help and --version print here already."""
        with _quiet():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _quiet():
            return super().invoke(ctx)


@contextmanager
def _quiet() -> Iterator[None]:
    """End the process without a word when the reader of the output has gone within the block."""
    try:
        try:
            yield
        finally:
            # What is still buffered would otherwise fail when the interpreter ends.
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.BROKEN_PIPE)
    except SystemExit as ending:
        # NB: rich, which prints the tables, ends a process of its own accord then.
        if isinstance(ending.__context__, BrokenPipeError):
            sys.exit(ExitCode.BROKEN_PIPE)
        raise
