"""Completion of words in shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.completion import Candidate, Directive, WordCompletion, complete
from keepclose.cli.main import app

SCRIPTS = Path(sys.executable).parent


def words(*given: str) -> list[str]:
    """Return the candidates for the last of these words."""
    return [one.word for one in complete(app, given).candidates]


@pytest.mark.parametrize(
    ("given", "want", "directive"),
    [
        pytest.param(("reso",), ["resolve"], Directive.NO_FILES, id="a command"),
        pytest.param(
            ("simulate", "c"), ["compare", "churn"], Directive.NO_FILES, id="a command in a group"
        ),
        pytest.param(
            ("simulate", "--sample", "churn", "c"),
            ["compare", "churn"],
            Directive.NO_FILES,
            id="the value of an option is no command",
        ),
        pytest.param(
            ("proxy", "--de"), ["--detect-local-mode"], Directive.NO_FILES, id="an option"
        ),
        pytest.param(
            ("controller", "--no-l"), ["--no-leader-elect"], Directive.NO_FILES, id="a switch off"
        ),
        pytest.param(("proxy", "--hel"), ["--help"], Directive.NO_FILES, id="help"),
        pytest.param(
            ("proxy", "--writer", ""),
            ["auto", "libnftables", "nft"],
            Directive.NO_FILES,
            id="a choice",
        ),
        pytest.param(
            ("proxy", "--once", "status", "-o", "j"),
            ["json"],
            Directive.NO_FILES,
            id="a switch takes no value",
        ),
        pytest.param(
            ("proxy", "--writer=n"),
            ["--writer=nft"],
            Directive.NO_FILES,
            id="behind an equals sign",
        ),
        pytest.param(("resolve", "-f", "x"), [], Directive.FILES, id="files"),
        pytest.param(("proxy", "--kubeconfig=x"), [], Directive.FILES, id="files likewise"),
        pytest.param(("lint", "x"), [], Directive.FILES, id="files as an argument"),
        pytest.param(("replay", "x"), [], Directive.FILES, id="a scenario"),
        pytest.param(("plan", "--flows", "x"), [], Directive.FILES, id="files of flows"),
        pytest.param(("plan", "x"), [], Directive.NO_FILES, id="a Service is no file"),
        pytest.param(
            ("completion", ""), ["bash", "zsh", "fish"], Directive.NO_FILES, id="an argument"
        ),
        pytest.param(
            ("resolve", "--feature-gates", "A=true,TopologyAware"),
            ["A=true,TopologyAwareHints=false", "A=true,TopologyAwareSubsetting=true"],
            Directive.NO_FILES | Directive.NO_SPACE,
            id="gates, with what is not their default",
        ),
        pytest.param(("what", "--ever", "reso"), ["resolve"], Directive.NO_FILES, id="a mistake"),
        pytest.param(("proxy", "nothing"), [], Directive.NO_FILES, id="nothing fits"),
    ],
)
def test_candidates(given: tuple[str, ...], want: list[str], directive: Directive) -> None:
    """Commands, options, choices and gates are completed where they may stand."""
    answer = complete(app, given)
    assert ([one.word for one in answer.candidates], answer.directive) == (want, directive)


def test_everything_at_the_start() -> None:
    """All commands are offered, with what they do."""
    answer = complete(app, [])
    assert set(words("")) == set(words()) >= {"resolve", "controller", "proxy", "simulate"}
    assert all(one.help for one in answer.candidates)


def test_an_answer_as_kubectl_reads_it() -> None:
    """Words with their help, and a number at the end."""
    answer = WordCompletion((Candidate("a", "A help."), Candidate("b")), Directive.NO_FILES)
    assert str(answer) == "a\tA help.\nb\n:4"


@pytest.mark.parametrize("name", ["keepclose __complete", "kubectl_complete-keepclose"])
def test_shells_and_kubectl_get_the_same(name: str) -> None:
    """Words that are no command line yet are not parsed as one."""
    program, *first = name.split()
    done = subprocess.run(
        [SCRIPTS / program, *first, "proxy", "--writer", "lib"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "libnftables\n:4\n"


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("keepclose reso", ["resolve"]),
        ("keepclose proxy --writer ", ["auto", "libnftables", "nft"]),
        # bash has cut the word at the equals sign, and replaces only what is behind it.
        ("keepclose proxy --writer=n", ["nft"]),
        ("keepclose resolve --feature-gates ServiceTop", ["ServiceTopology=true"]),
    ],
)
def test_bash_completes(line: str, want: list[str]) -> None:
    """The script for bash fills in what bash asks for."""
    script = (
        "source <(keepclose completion bash) && complete -p keepclose >/dev/null\n"
        'COMP_LINE=$1 COMP_POINT=${#1}; _keepclose && printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", line],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{SCRIPTS}:/usr/bin:/bin"},
    )
    assert (done.stdout.splitlines(), done.stderr) == (want, "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_well_formed(shell: str) -> None:
    """Each shell that is installed can read its script."""
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert "__complete" in result.stdout
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=result.stdout, text=True, check=True)
