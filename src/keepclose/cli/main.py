"""The entry points `keepclose`, `kubectl keepclose` and kubectl's completion of it.

Registers the commands of the other modules. A call builds only the command that it names, because
typer takes long to build all of them. Switches may have the form of Kubernetes' own components,
--leader-elect=false.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from typer.models import CommandInfo, TyperInfo

from keepclose import __version__
from keepclose.cli.apiserver import apiserver
from keepclose.cli.completion import ASK, complete, completion
from keepclose.cli.controller.command import controller
from keepclose.cli.cost import cost
from keepclose.cli.dashboard.command import dashboard
from keepclose.cli.exit import QuietGroup, fail_unexpected
from keepclose.cli.explain.command import explain
from keepclose.cli.flows import app as flows
from keepclose.cli.lab import app as lab
from keepclose.cli.lint.command import lint
from keepclose.cli.plan.command import plan
from keepclose.cli.proxy import app as proxy
from keepclose.cli.render.output import adapt_streams, echo_document, say
from keepclose.cli.replay.command import replay
from keepclose.cli.resolve import resolve
from keepclose.cli.simulate import app as simulate
from keepclose.cli.snapshot.command import snapshot
from keepclose.cli.traffic import traffic
from keepclose.cli.up import demo, down, up
from keepclose.cli.verify.command import verify

_HELP: Final = (
    "Keep the traffic of Kubernetes Services close to its clients, and see what that does."
)


def _make_app() -> typer.Typer:
    return typer.Typer(
        name="keepclose",
        cls=QuietGroup,
        help=_HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain help: drawing boxes costs half of the time that --help may take.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = _make_app()
app.command(short_help="Run a multi-zone Kubernetes cluster on this machine.")(up)
app.command(short_help="Stop the cluster that keepclose up started.")(down)
app.command(short_help="Show in two minutes what keeps traffic close.")(demo)
app.command()(traffic)
app.add_typer(lab)
app.command()(resolve)
app.command()(snapshot)
app.command(short_help="Show which mechanism would help which Service.")(plan)
app.command()(explain)
app.command()(replay)
app.command()(verify)
app.command()(lint)
app.command(short_help="Serve a live web page of a cluster.")(dashboard)
app.command()(apiserver)
app.command()(controller)
app.add_typer(proxy)
app.add_typer(flows)
app.command()(cost)
app.add_typer(simulate)
app.command()(completion)


@app.callback(invoke_without_command=True)
def options(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
) -> None:
    """Handle the options that stand before a command."""
    if version:
        say(f"keepclose {__version__}")
        raise typer.Exit
    if not debug:
        sys.tracebacklimit = 0


def run() -> None:
    """Run the command line; the entry point of the console script."""
    _run("keepclose")


def run_as_plugin() -> None:
    """Run the command line as `kubectl keepclose`; kubectl finds the script by its name."""
    _run("kubectl keepclose")


def complete_for_kubectl() -> None:
    """Print the candidates for the last word of `kubectl keepclose ...`; kubectl asks for them."""
    adapt_streams()
    echo_document(f"{complete(app, sys.argv[1:])}\n")


def _run(name: str) -> None:
    adapt_streams()
    # NB: a shell sends an unfinished command line here, so typer must not parse it.
    if sys.argv[1:2] == [ASK]:
        echo_document(f"{complete(app, sys.argv[2:])}\n")
        return
    try:
        command_line(sys.argv[1:])(args=plain_switches(sys.argv[1:]), prog_name=name)
    except Exception as error:  # noqa: BLE001 - shown, and the code says that it was not expected
        fail_unexpected(error)


def command_line(arguments: list[str]) -> typer.Typer:
    """Return an app with only the command that the arguments name, or else the whole app.

    Building all commands takes as long as the work of many commands.
    """
    name = next((argument for argument in arguments if not argument.startswith("-")), "")
    commands = [command for command in app.registered_commands if _name_of(command) == name]
    groups = [group for group in app.registered_groups if _name_of_group(group) == name]
    if not commands and not groups:
        return app
    lean = _make_app()
    # NB: without a callback typer would take the name of a single command for an argument.
    lean.registered_callback = app.registered_callback
    lean.registered_commands, lean.registered_groups = commands, groups
    return lean


def _name_of(command: CommandInfo) -> str:
    return command.name or (command.callback.__name__ if command.callback is not None else "")


def _name_of_group(group: TyperInfo) -> str:
    group_app = group.typer_instance
    return str(group_app.info.name) if group_app is not None else ""


def plain_switches(arguments: list[str]) -> list[str]:
    """Return the arguments with switches in our form; those after -- belong to another program."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [plain_switch(argument) for argument in arguments[:end]] + arguments[end:]


def plain_switch(argument: str) -> str:
    """Return a switch of Kubernetes' form, --leader-elect=false, in our form: --no-leader-elect.

    Any other argument is returned unchanged.
    """
    name, equals, value = argument.partition("=")
    if not equals or not name.startswith("--") or value not in ("true", "false"):
        return argument
    return name if value == "true" else f"--no-{name.removeprefix('--')}"
