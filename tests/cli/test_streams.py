"""What commands print where the locale has no UTF-8."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from keepclose.cli.main import app
from keepclose.cli.render.output import escape_json
from support.commands.labservers import answering

SECONDS = 120
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "three-zones.yaml")
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
ENCODINGS = [
    pytest.param(ASCII_LOCALE, id="C locale"),
    pytest.param({"LC_ALL": "C"}, id="LC_ALL=C alone"),
    pytest.param({"LC_ALL": "POSIX"}, id="LC_ALL=POSIX alone"),
    pytest.param({"PYTHONIOENCODING": "ascii"}, id="ascii"),
    pytest.param({"PYTHONIOENCODING": "latin-1"}, id="latin-1"),
]
# One process for many commands: most of the time of a command goes into its start.
RUN_ALL = """
import json, sys
from keepclose.cli.main import run
for line in json.loads(sys.stdin.read()):
    sys.argv = ["keepclose", *line]
    try:
        run()
    except SystemExit as end:
        print("ended", end.code)
    sys.tracebacklimit = 1000
"""
REPORT: dict[str, Any] = {
    "service": "default/web",
    "port": "80/TCP",
    "address": "10.96.0.10:80",
    "via": "cluster-ip",
    "mechanism": "PreferSameZone",
    "seconds": 0.1,
    "connections": 2,
    "failed": 0,
    "failures": {},
    "asExpected": False,
    "zones": ["zone-a", "zone-b"],
    "nodes": ["n1", "n2"],
    "rows": [
        {
            "from": "zone-a",
            "connections": 2,
            "answered": {"zone-a": 2},
            "expected": {"zone-a": 1.0},
            "failures": {},
            "expectedFailures": {},
            "fault": "2 connections \N{RIGHTWARDS ARROW} elsewhere \N{SNOWMAN}",
            "reasons": [],
        }
    ],
    "sources": [],
    "inZone": 1.0,
    "onNode": 1.0,
    "endpoints": 1,
    "busiest": None,
    "notes": [],
}
CHANGED = {"changed": True, "nodes": ["n1"], "unready": [], "is_noticed": True}


def leaf_commands() -> list[list[str]]:
    """Return the words of every command and group."""

    # NB: typer brings a click of its own, whose types have no public name.
    def walk(command: Any, words: list[str]) -> list[list[str]]:
        found = [words]
        for name, child in getattr(command, "commands", {}).items():
            found += walk(child, [*words, name])
        return found

    return walk(typer.main.get_command(app), [])


def run_all(lines: list[list[str]], env: dict[str, str], directory: Path) -> tuple[bytes, bytes]:
    """Return what commands print, one after the other in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(lines).encode(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "KEEPCLOSE_DATA_DIR": str(directory), "COLUMNS": "100", **env},
    )
    assert done.stdout.count(b"ended ") == len(lines), done
    assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
    return done.stdout, done.stderr


@pytest.mark.parametrize("env", ENCODINGS)
def test_every_command_explains_itself_in_any_locale(env: dict[str, str], tmp_path: Path) -> None:
    """Help and errors of all commands can be written."""
    commands = leaf_commands()
    assert ["lab", "drain"] in commands
    helps = [[*words, "--help"] for words in commands]
    # NB: lab exec takes the options of the command that it runs.
    strict = [words for words in commands if words != ["lab", "exec"]]
    errors = [[*words, "--no-such-option-\N{SNOWMAN}"] for words in strict]
    out, err = run_all([*helps, *errors], env, tmp_path)
    assert out.count(b"Usage: ") == len(commands)
    assert err.count(b"No such option") == len(strict)
    if "latin-1" not in env.values():
        out.decode("ascii")
        err.decode("ascii")


@pytest.mark.parametrize("env", ENCODINGS)
def test_commands_that_acted_report_in_any_locale(env: dict[str, str], tmp_path: Path) -> None:
    """Marks become signs of ASCII, and what has none a question mark."""
    lines = [
        ["lab", "drain", "n1"],
        ["lab", "cordon", "n1"],
        ["lab", "uncordon", "n1"],
        ["lab", "fail", "n1"],
        ["lab", "partition", "n1"],
        ["traffic", "web"],
        ["traffic", "web", "--nodes"],
        ["resolve", "-f", EXAMPLE],
        ["resolve", "-f", str(tmp_path / "no-\N{SNOWMAN}.yaml")],
        ["simulate", "--dataset", "kep2004-small", "--algorithm", "original"],
        ["down"],
    ]
    with answering(
        tmp_path,
        drain={"evicted": ["default/web"], "kept": []},
        cordon=CHANGED,
        uncordon=CHANGED,
        fail=CHANGED,
        partition=CHANGED,
        traffic=REPORT,
    ):
        out, err = run_all(lines, env, tmp_path)
    assert b"\n+ n1 is cordoned\n" in out
    assert b"from zone-a  2 100 %" in out
    assert b"x     2 connections > elsewhere ?\n" in out
    assert b"no-?.yaml" in err
    if "latin-1" not in env.values():
        out.decode("ascii")
        err.decode("ascii")


@pytest.mark.parametrize("env", ENCODINGS)
def test_json_keeps_its_meaning_in_any_locale(env: dict[str, str], tmp_path: Path) -> None:
    """What cannot be written is escaped, not replaced."""
    with answering(tmp_path, traffic=REPORT):
        out, _ = run_all([["traffic", "web", "-o", "json"]], env, tmp_path)
    document = json.loads(out.rpartition(b"ended ")[0])
    assert document["rows"][0]["fault"] == REPORT["rows"][0]["fault"]


def test_nothing_changes_for_utf_8(tmp_path: Path) -> None:
    """A terminal that shows every sign gets them all."""
    with answering(tmp_path, traffic=REPORT):
        out, _ = run_all([["traffic", "web"]], {"PYTHONIOENCODING": "utf-8"}, tmp_path)
    assert "✗     2 connections → elsewhere \N{SNOWMAN}\n" in out.decode()
    assert "·" in out.decode()


def test_a_bar_of_progress_can_be_drawn(tmp_path: Path) -> None:
    """On a terminal without UTF-8 the bar is of ASCII."""
    leader, follower = pty.openpty()
    news = tuple({"done": done, "of": 2} for done in range(3))
    try:
        with answering(tmp_path, news, traffic=REPORT):
            done = subprocess.run(
                [sys.executable, "-m", "keepclose", "traffic", "web"],
                stdout=subprocess.PIPE,
                stderr=follower,
                timeout=SECONDS,
                check=False,
                env={
                    **os.environ,
                    **ASCII_LOCALE,
                    "KEEPCLOSE_DATA_DIR": str(tmp_path),
                    "TERM": "xterm",
                },
            )
        os.close(follower)
        drawn = os.read(leader, 1 << 16)
    finally:
        os.close(leader)
    assert done.returncode == 1
    assert b"connections" in drawn
    drawn.decode("ascii")


def test_every_sign_has_an_escape_in_json() -> None:
    """Also one beyond the first 65,536, which JSON writes as a pair."""
    text = '"\N{SNOWMAN}é\N{GRINNING FACE}a"'
    escaped = escape_json(text)
    assert escaped.isascii()
    assert json.loads(escaped) == json.loads(text)


def test_a_terminal_is_told_when_algorithms_are_compiled(tmp_path: Path) -> None:
    """One note where machine code is generated, none where a file has it, and none in a pipe."""
    pytest.importorskip("numba")
    notes = []
    for is_terminal, folder in ((True, "one"), (True, "one"), (False, "two")):
        leader, follower = pty.openpty()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "keepclose", "simulate", "--algorithm", "same-zone"],
                stdout=subprocess.DEVNULL,
                stderr=follower if is_terminal else subprocess.PIPE,
                timeout=SECONDS,
                check=True,
                # NB: a bar that moves for minutes would fill the terminal, which is read later.
                env={**os.environ, "TERM": "dumb", "NUMBA_CACHE_DIR": str(tmp_path / folder)},
            )
            shown = os.read(leader, 1 << 20) if is_terminal else done.stderr
        finally:
            os.close(leader)
            os.close(follower)
        notes.append(shown.count(b"note: compiling the algorithms"))
    assert notes == [1, 0, 0]
