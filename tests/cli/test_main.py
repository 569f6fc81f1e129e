"""The command line as a whole."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from keepclose.cli.main import app, command_line, plain_switch, plain_switches


@pytest.mark.parametrize(
    ("argument", "want"),
    [
        ("--leader-elect=false", "--no-leader-elect"),
        ("--leader-elect=true", "--leader-elect"),
        ("--leader-elect", "--leader-elect"),
        ("--feature-gates=NodeLevelTopology=true", "--feature-gates=NodeLevelTopology=true"),
        ("--node-name=false1", "--node-name=false1"),
        ("name=false", "name=false"),
        ("-o=true", "-o=true"),
    ],
)
def test_switches_as_kubernetes_takes_them(argument: str, want: str) -> None:
    """A switch may say true or false behind an equals sign; nothing else is touched."""
    assert plain_switch(argument) == want


def test_what_others_are_to_read_stays_as_it_is() -> None:
    """Behind -- stands the command of somebody else."""
    given = ["lab", "exec", "--x=true", "n1", "--", "tool", "--y=true"]
    assert plain_switches(given) == ["lab", "exec", "--x", "n1", "--", "tool", "--y=true"]


@pytest.mark.parametrize("group", ["", "lab", "proxy", "simulate"])
def test_descriptions_in_lists_of_commands_are_whole(group: str) -> None:
    """No first line of a command is too long for a terminal of 80 columns."""
    result = CliRunner().invoke(app, [*group.split(), "--help"], terminal_width=80)
    _, heading, commands = result.stdout.partition("\nCommands:\n")

    assert (result.exit_code, heading) == (0, "\nCommands:\n")
    assert [line for line in commands.splitlines() if line.endswith("...")] == []
    assert all(line.endswith(".") for line in commands.splitlines())


@pytest.mark.parametrize(
    "words", [["proxy"], ["--debug", "proxy", "status"], ["resolve", "-f", "x"]]
)
def test_only_the_command_that_is_called_is_made(words: list[str]) -> None:
    """It alone is made, with the options before it; everything else gets the whole command line."""
    [name] = [one for one in words if one in ("proxy", "resolve")]
    lean = command_line(words)
    assert list(typer.main.get_group(lean).commands) == [name]
    assert lean.registered_callback is app.registered_callback
    for whole in ([], ["--help"], ["--version"], ["nonsense"]):
        assert command_line(whole) is app


def test_every_command_can_be_made_alone() -> None:
    """Each has the name under which the whole command line knows it."""
    for name in typer.main.get_group(app).commands:
        assert list(typer.main.get_group(command_line([name])).commands) == [name]
