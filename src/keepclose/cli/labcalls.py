"""How commands ask a running lab, and how they end when it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from keepclose.cli.endings import fail
from keepclose.cli.progress import tell_nobody

JsonObject = dict[str, Any]
# NB: keepclose.cluster.home has it too; loading that takes longer than --help may.
DEFAULT_DIR: Final = Path("~/.keepclose")
DataDir = Annotated[
    Path,
    typer.Option(
        metavar="DIR",
        envvar="KEEPCLOSE_DATA_DIR",
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
    from keepclose.cluster.calling import CallError, call

    try:
        return call(data_dir, do, params or {}, on_tell=on_tell)
    except CallError as error:
        fail(str(error), code=error.code)
