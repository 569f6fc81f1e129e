"""How commands ask a running lab, and how they end when it refuses."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from keepclose.cli.exit import fail
from keepclose.cli.render.progress import tell_nobody
from keepclose.model.json_values import JsonObject

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


def ask(
    data_dir: Path,
    do: str,
    params: JsonObject | None = None,
    *,
    on_tell: Callable[[JsonObject], None] = tell_nobody,
) -> JsonObject:
    """Return what the lab answers; ends the command with the lab's words when it refuses."""
    from keepclose.lab.cluster.control import CallError, call

    try:
        return call(data_dir, do, params or {}, on_tell=on_tell)
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
        option = f" --data-dir {quote(directory)}"
    program = name_program()
    return _COMMAND.sub(lambda match: f"{program} {match[1]}{option}", text)


def name_program() -> str:
    """Return how to call this program: by its path where the shell does not find its name."""
    from shutil import which

    path = sys.argv[0]
    if Path(path).name == "kubectl-keepclose":
        return "kubectl keepclose"
    return path if Path(path).name == "keepclose" and not which("keepclose") else "keepclose"


def quote(path: Path) -> str:
    """Return a path as a shell takes it, with ~ for the home directory."""
    try:
        below = path.relative_to(Path.home())
    except ValueError:
        return shlex.quote(str(path))
    return f"~/{shlex.quote(str(below))}"
