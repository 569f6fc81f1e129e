"""Exit codes and error messages of commands, and requests to a running lab.

A command that cannot go on prints one error for the user and returns a code to the shell. It shows
no traceback without --debug, also of an unexpected error, which has a code of its own. A command
exits silently when the reader of its output has gone. A refusal
of the lab ends the command with the lab's message and code.

Light on purpose: every command loads this module, also for --help.
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
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from keepclose.cli.render.output import say
from keepclose.cli.render.progress import ignore_progress
from keepclose.model.json_values import JsonObject
from keepclose.model.plain_text import make_plain

# NB: keepclose.lab.cluster.data_dir defines it too; loading that takes longer than --help may.
DEFAULT_DIR: Final = Path("~/.keepclose")
_DATA_DIR_VARIABLE: Final = "KEEPCLOSE_DATA_DIR"
_COMMAND: Final = re.compile(r"\bkeepclose ((?:up|down|traffic|lab(?: [a-z]+)?)\b)")
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

DataDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar=_DATA_DIR_VARIABLE,
        help="The directory that the cluster was started with.",
    ),
]


class ExitCode(IntEnum):
    """Exit codes of commands."""

    OK = 0
    FOUND = 1
    """A command that looks for faults found one."""
    BAD_INPUT = 2
    NOTHING = 3
    """Nothing was found: the named object does not exist, or the files hold none of its kind."""
    UNREACHABLE = 4
    PRIVILEGE = 5
    INTERNAL_ERROR = 70
    """An error that keepclose does not expect; the code of sysexits.h. Never that of a verdict."""
    UNWRITABLE = 74
    """The output could not be written, as on a full disk; the code of sysexits.h for that."""
    BROKEN_PIPE = 141
    """The reader of the output has gone; shells report this code for tools that SIGPIPE ended."""


def fail(text: str, *more: str, code: int = ExitCode.BAD_INPUT) -> NoReturn:
    """End the command with an error; each further line says where it is or how to fix it."""
    say(f"error: {text}", *(f"       {line}" for line in more if line), err=True)
    sys.exit(code)


class QuietGroup(TyperGroup):
    """A command group that exits silently when the reader of its output has gone (`| head`)."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the options; --help and --version print here already."""
        with _quiet():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _quiet():
            return super().invoke(ctx)


def fail_unexpected(error: Exception) -> NoReturn:
    """End the command with an error that no code expects.

    NB: Python itself would exit with 1, which is a verdict of some commands, and print text from
    outside unescaped.
    """
    _show_unexpected(error)
    sys.exit(ExitCode.INTERNAL_ERROR)


def _show_unexpected(error: BaseException) -> None:
    """Print an error in one line, and with --debug its traceback."""
    if getattr(sys, "tracebacklimit", None) != 0:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is not None:
            _show_unexpected(before)
            say("", "which caused:", "", err=True)
        frames = "".join(format_tb(error.__traceback__)).rstrip("\n").split("\n")
        say("Traceback (most recent call last):", *frames, err=True)
    say(f"{type(error).__name__}: {error}", err=True)


def ask_lab(
    data_dir: Path,
    do: str,
    params: JsonObject | None = None,
    *,
    on_progress: Callable[[JsonObject], None] = ignore_progress,
) -> JsonObject:
    """Return the lab's answer to a request; a refusal ends the command with the lab's message."""
    from keepclose.lab.cluster.control import CallError, call_lab

    try:
        return call_lab(data_dir, do, params or {}, on_tell=on_progress)
    except CallError as error:
        fail(complete_hints(str(error), data_dir), code=error.code)


def complete_hints(text: str, data_dir: Path) -> str:
    """Return a text whose keepclose commands can be copied, for the cluster of this directory.

    Commands get the program's name as the user called it, and --data-dir unless it is the default.
    """
    option = ""
    directory = data_dir.expanduser()
    if directory != DEFAULT_DIR.expanduser() and os.environ.get(_DATA_DIR_VARIABLE) != str(
        data_dir
    ):
        option = f" --data-dir {shell_quote(directory)}"
    program = name_program()
    return _COMMAND.sub(lambda match: f"{program} {match[1]}{option}", text)


def name_program() -> str:
    """Return the command that calls this program: its path where the shell does not find it."""
    from shutil import which

    path = sys.argv[0]
    if Path(path).name == "kubectl-keepclose":
        return "kubectl keepclose"
    return path if Path(path).name == "keepclose" and not which("keepclose") else "keepclose"


def shell_quote(path: Path) -> str:
    """Return a path quoted for a shell, with ~ for the home directory."""
    try:
        below = path.relative_to(Path.home())
    except ValueError:
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(below))}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Exit silently when the reader of the output has gone within the block."""
    try:
        try:
            yield
        finally:
            # Otherwise the interpreter would flush the buffer at its end, and fail there.
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        sys.exit(ExitCode.BROKEN_PIPE)
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            fail_unexpected(error)
        _drop_output()
        fail(
            f"standard output cannot be written: {error.strerror}",
            "make room, or write to another file",
            code=ExitCode.UNWRITABLE,
        )
    except SystemExit as exit_:
        # NB: rich, which prints the tables, catches BrokenPipeError and calls sys.exit itself.
        if isinstance(exit_.__context__, BrokenPipeError):
            sys.exit(ExitCode.BROKEN_PIPE)
        raise
    except Exception as error:
        # NB: here, because typer takes an EOFError for the end of a prompt, and exits with 1.
        if not hasattr(error, "exit_code"):
            fail_unexpected(error)
        _make_usage_plain(error)
        raise


def _drop_output() -> None:
    """Discard buffered output; the interpreter would fail to write it at its end."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _make_usage_plain(error: Any) -> None:
    """Make a usage error of click plain, because it repeats words of the command line.

    A script may pass words from outside. NB: typer has its own copy of click, so its errors are
    not instances of click's classes.
    """
    for name in ("message", "option_name", "param_hint"):
        if isinstance(text := getattr(error, name, None), str):
            setattr(error, name, make_plain(text))
