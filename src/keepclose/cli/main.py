"""The command `keepclose`: one module a command group, heavy imports inside the commands."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from keepclose import __version__
from keepclose.cli.apiserver import apiserver
from keepclose.cli.controller import controller
from keepclose.cli.proxy import app as proxy
from keepclose.cli.resolve import resolve
from keepclose.cli.simulate import app as simulate

app = typer.Typer(
    name="keepclose",
    help="Keep the traffic of Kubernetes Services close to its clients, and see what that does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: drawing boxes costs half of the time that --help may take.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(resolve)
app.command()(apiserver)
app.command()(controller)
app.add_typer(proxy)
app.add_typer(simulate)


@app.callback(invoke_without_command=True)
def options(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Handle the options that stand before a command."""
    if version:
        typer.echo(f"keepclose {__version__}")
        raise typer.Exit
    if not debug:
        sys.tracebacklimit = 0


def run() -> None:
    """Run the command line; the entry point of the console script."""
    app(args=[plain_switch(one) for one in sys.argv[1:]])


def plain_switch(argument: str) -> str:
    """Return a switch as Kubernetes takes it, --leader-elect=false, in our way: --no-leader-elect.

    Anything else comes back as it is.
    """
    name, equals, value = argument.partition("=")
    if not equals or not name.startswith("--") or value not in ("true", "false"):
        return argument
    return name if value == "true" else f"--no-{name.removeprefix('--')}"
