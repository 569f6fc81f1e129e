"""How a command ends when it cannot go on: words to the person, a code to the shell.

Light on purpose: every command loads it, also for --help.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from traceback import format_tb
from types import TracebackType
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from keepclose.cli.render.output import say
from keepclose.cli.render.progress import tell_nobody
from keepclose.model.json_values import JsonObject
from keepclose.model.plain_text import make_plain

# NB: keepclose.lab.cluster.data_dir has it too; loading that takes longer than --help may.
DEFAULT_DIR: Final = Path("~/.keepclose")
_VARIABLE: Final = "KEEPCLOSE_DATA_DIR"
_COMMAND: Final = re.compile(r"\bkeepclose ((?:up|down|traffic|lab(?: [a-z]+)?)\b)")
DataDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar=_VARIABLE,
        help="The directory that the cluster was started with.",
    ),
]


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
    UNWRITABLE = 74
    """The output could not be written, as on a full disk; the code of sysexits.h for that."""
    BROKEN_PIPE = 141
    """The reader of the output has gone; shells report this code for tools that SIGPIPE ended."""


_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def fail(text: str, *more: str, code: int = ExitCode.BAD_INPUT) -> NoReturn:
    """End the command with an error, and where it is or what to do, each on a line of its own."""
    say(f"error: {text}", *(f"       {line}" for line in more if line), err=True)
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


def show_unexpected(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show an error that nothing expected: its one line, and with --debug where it came from.

    In place of Python's own hook, which prints the words of others as they are.
    """
    del kind
    if getattr(sys, "tracebacklimit", None) != 0:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is not None:
            show_unexpected(type(before), before, before.__traceback__)
            say("", "which led to:", "", err=True)
        frames = "".join(format_tb(trace)).rstrip("\n").split("\n")
        say("Traceback (most recent call last):", *frames, err=True)
    say(f"{type(error).__name__}: {error}", err=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """End the process without a word when the reader of the output has gone within the block."""
    try:
        try:
            yield
        finally:
            # What is still buffered would otherwise fail when the interpreter ends.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(ExitCode.BROKEN_PIPE)
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _drop_output()
        fail(
            f"standard output cannot be written: {error.strerror}",
            "make room, or write to another file",
            code=ExitCode.UNWRITABLE,
        )
    except SystemExit as ending:
        # NB: rich, which prints the tables, ends a process of its own accord then.
        if isinstance(ending.__context__, BrokenPipeError):
            sys.exit(ExitCode.BROKEN_PIPE)
        raise
    except Exception as error:
        _make_usage_plain(error)
        raise


def _drop_output() -> None:
    """Have what is still buffered go nowhere, or the interpreter would fail on it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_usage_plain(error: Any) -> None:
    """Make an error of click plain, which repeats words of the command line.

    A script may have those from others. NB: typer has its own copy of click, so that no class of
    click's is an ancestor.
    """
    if not hasattr(error, "exit_code"):
        return
    for name in ("message", "option_name", "param_hint"):
        if isinstance(text := getattr(error, name, None), str):
            setattr(error, name, make_plain(text))


def ask_lab(
    data_dir: Path,
    do: str,
    params: JsonObject | None = None,
    *,
    on_tell: Callable[[JsonObject], None] = tell_nobody,
) -> JsonObject:
    """Return what the lab answers; ends the command with the lab's words when it refuses."""
    from keepclose.lab.cluster.control import CallError, call_lab

    try:
        return call_lab(data_dir, do, params or {}, on_tell=on_tell)
    except CallError as error:
        fail(complete_hints(str(error), data_dir), code=error.code)


def complete_hints(text: str, data_dir: Path) -> str:
    """Return text whose commands can be typed as they are, for the cluster of this directory.

    They get the program's name as it was called, and the directory unless commands find it without
    being told.
    """
    option = ""
    directory = data_dir.expanduser()
    if directory != DEFAULT_DIR.expanduser() and os.environ.get(_VARIABLE) != str(data_dir):
        option = f" --data-dir {shell_quote(directory)}"
    program = name_program()
    return _COMMAND.sub(lambda match: f"{program} {match[1]}{option}", text)


def name_program() -> str:
    """Return how to call this program: by its path where the shell does not find its name."""
    from shutil import which

    path = sys.argv[0]
    if Path(path).name == "kubectl-keepclose":
        return "kubectl keepclose"
    return path if Path(path).name == "keepclose" and not which("keepclose") else "keepclose"


def shell_quote(path: Path) -> str:
    """Return a path as a shell takes it, with ~ for the home directory."""
    try:
        below = path.relative_to(Path.home())
    except ValueError:
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(below))}"
