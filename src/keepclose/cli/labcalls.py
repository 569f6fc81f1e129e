"""How commands ask a running lab, and how they end when it refuses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

JsonObject = dict[str, Any]
DEFAULT_DIR: Final = Path("~/.keepclose")
DataDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="KEEPCLOSE_DATA_DIR",
        help="The directory that the cluster was started with.",
    ),
]


def _ignore(_news: JsonObject) -> None:
    """Tell nobody."""


def ask(
    data_dir: Path,
    do: str,
    params: JsonObject | None = None,
    *,
    on_tell: Callable[[JsonObject], None] = _ignore,
) -> JsonObject:
    """Return what the lab answers; ends the command with the lab's words when it refuses."""
    from keepclose.cluster.calling import CallError, call

    try:
        return call(data_dir, do, params or {}, on_tell=on_tell)
    except CallError as error:
        fail(str(error), code=error.code)


def fail(text: str, *, code: int = 2) -> NoReturn:
    """End the command with an error."""
    typer.echo(f"error: {text}", err=True)
    sys.exit(code)
