"""plan, resolve and explain name a Service alike: as an argument, or with --service."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from keepclose.cli.main import app

EXAMPLE = str(Path(__file__).parent.parent.parent / "examples" / "three-zones.yaml")
COMMANDS = ("plan", "resolve", "explain")


def run(*arguments: str) -> Result:
    """Run a command on the example."""
    return CliRunner().invoke(app, [*arguments, "-f", EXAMPLE])


@pytest.mark.parametrize("command", COMMANDS)
def test_argument_and_option_give_the_same_answer(command: str) -> None:
    """Also both of them, if they agree."""
    by_argument = run(command, "shop/web")
    assert by_argument.exit_code == 0, by_argument.output
    assert "shop/web" in by_argument.stdout
    assert "shop/admin" not in by_argument.stdout
    for others in (
        ("--service", "shop/web"),
        ("shop/web", "--service", "shop/web"),
        ("web", "-n", "shop"),
    ):
        assert run(command, *others).stdout == by_argument.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_two_names_are_bad_input(command: str) -> None:
    """The error has both."""
    result = run(command, "shop/web", "--service", "shop/admin")
    assert result.exit_code == 2
    assert "--service shop/admin: the argument names another Service, shop/web" in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_without_its_option_is_named_with_it(command: str) -> None:
    """The command lint takes files as arguments, these do not."""
    result = run(command, "deploy/web.yaml")
    assert result.exit_code == 2
    assert "name a file with -f deploy/web.yaml" in result.stderr
