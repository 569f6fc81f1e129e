"""The runner of pages, on small pages."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.commands.shellsessions import Session, run_page
from support.consoles import parse_page


def play(folder: Path, page: str) -> None:
    """Run a page in an empty folder."""
    with Session(folder, home=folder / "home") as session:
        run_page(session, parse_page(page), "page.md")


def test_a_session_is_kept(tmp_path: Path) -> None:
    """Variables, folders and functions last to the end of the page, over several blocks."""
    play(
        tmp_path,
        """
```console
$ export ZONE=zone-a; mkdir sub
$ cd sub
```
Text in between.
```console
$ echo "$ZONE in ${PWD##*/}"
zone-a in sub
$ for n in 1 2; do
>   echo "n$n"
> done
n1
n2
```
""",
    )


def test_output_comes_as_in_a_terminal(tmp_path: Path) -> None:
    """Errors stand among the output, input is empty, the home directory is one of its own."""
    play(
        tmp_path,
        """
```console
$ echo out; echo err >&2; echo out
out
err
out
$ cat
$ printf 'no line break'
no line break
$ echo ~/x
~/x
```
""",
    )


def test_our_own_program_is_the_one_that_runs(tmp_path: Path) -> None:
    """`keepclose` is that of the environment of the tests."""
    play(tmp_path, "```console\n$ keepclose --version\nkeepclose ...\n```\n")


@pytest.mark.parametrize(
    ("page", "want"),
    [
        pytest.param(
            "\n```console\n$ echo a; echo b\na\nc\n```\n",
            "page.md:3: $ echo a; echo b\n"
            "  this line did not come: c\n"
            "  expected:\n    a\n    c\n"
            "  got:\n    a\n    b",
            id="other output",
        ),
        pytest.param(
            "```console\n$ true\n$ false\n```\n",
            "page.md:3: $ false\n"
            "  exit code 1 instead of 0\n"
            "  expected:\n    (nothing)\n"
            "  got:\n    (nothing)",
            id="a command that fails",
        ),
        pytest.param(
            "```console\n$ exit 3\n```\n",
            "page.md:2: $ exit 3\n"
            "  exit code 3 instead of 0\n"
            "  expected:\n    (nothing)\n"
            "  got:\n    (the command ended the shell)",
            id="the end of the shell",
        ),
    ],
)
def test_a_page_that_is_wrong(tmp_path: Path, page: str, want: str) -> None:
    """The first difference ends the run, with page, line, what was expected and what came."""
    with pytest.raises(AssertionError) as caught:
        play(tmp_path, page)
    assert str(caught.value) == want


def test_later_commands_do_not_run_after_a_difference(tmp_path: Path) -> None:
    """What follows a mistake would only hide it."""
    with pytest.raises(AssertionError):
        play(tmp_path, "```console\n$ echo a\nb\n$ touch later\n```\n")
    assert not (tmp_path / "later").exists()


def test_retried_commands_wait_for_their_output(tmp_path: Path) -> None:
    """A command is tried again until it prints what is shown."""
    play(
        tmp_path,
        "<!-- console: retried -->\n```console\n$ echo x >> tries; grep -c x tries\n2\n```\n",
    )


def test_a_command_that_does_not_end(tmp_path: Path) -> None:
    """It is given up after a while, and nothing of it is left."""
    with Session(tmp_path, home=tmp_path / "home") as session:
        with pytest.raises(TimeoutError, match="begun"):
            session.run("echo begun; sleep 1000 & wait", seconds=3.0)
        group = session._bash.pid
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _group_lives(group):
        time.sleep(0.05)
    assert not _group_lives(group)


def _group_lives(group: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False
