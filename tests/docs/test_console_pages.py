"""Every command in a console block of a page runs, and prints what the page shows.

Pages that need kubectl or a cluster of their own run beside the real programs (`make test-real`),
the others with every test run. What the former ask of the examples alone runs every time too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.commands.shellsessions import Session, run_page
from support.consoles import Command, parse_page
from support.real.programs import program

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CLUSTER = re.compile(r"\bkeepclose up\b")
KUBECTL = re.compile(r"\bkubectl\b")
# NB: reads files that are always there and leaves nothing behind, so it may run by itself.
EXAMPLES = re.compile(
    r"^keepclose (?:plan|explain|lint|resolve) (?:[\w./-]+ )*?examples/[\w./ -]+$"
)


def uses(commands: list[Command], what: re.Pattern[str]) -> bool:
    """Return whether some command has to do with it."""
    return any(what.search(command.text) for command in commands)


def name(page: Path) -> str:
    """Return the path of a page as it is known to readers."""
    return str(page.relative_to(ROOT))


def needs_programs(commands: list[Command]) -> bool:
    """Return whether some command needs kubectl or a cluster."""
    return uses(commands, KUBECTL) or uses(commands, CLUSTER)


def to_run() -> list[object]:
    """Return the pages with commands, marked by what they need."""
    found: list[object] = []
    for page in PAGES:
        commands = parse_page(page.read_text())
        if not commands:
            continue
        marks = [pytest.mark.real] if needs_programs(commands) else []
        found.append(pytest.param(page, id=name(page), marks=marks))
    return found


def to_ask() -> list[object]:
    """Return the pages that need programs and have commands that need none."""
    found: list[object] = []
    for page in PAGES:
        commands = parse_page(page.read_text())
        if needs_programs(commands) and uses(commands, EXAMPLES):
            found.append(pytest.param(page, id=name(page)))
    return found


@pytest.mark.parametrize("page", to_run())
def test_the_commands_of_a_page(page: Path, tmp_path: Path) -> None:
    """From first to last in one shell, in a copy of the files that pages name."""
    commands = parse_page(page.read_text())
    folder, programs = tmp_path / "keepclose", tmp_path / "programs"
    programs.mkdir()
    if uses(commands, KUBECTL):
        (programs / "kubectl").symlink_to(program("kubectl"))
    for part in ("examples", "docs"):
        shutil.copytree(ROOT / part, folder / part)
    with Session(folder, home=tmp_path / "home", programs=[programs]) as session:
        try:
            run_page(session, commands, name(page))
        finally:
            if uses(commands, CLUSTER):
                session.run("keepclose down")


@pytest.mark.parametrize("page", to_ask())
def test_what_a_page_asks_of_the_examples(page: Path, tmp_path: Path) -> None:
    """Also where nothing but keepclose is installed."""
    commands = [one for one in parse_page(page.read_text()) if EXAMPLES.match(one.text)]
    with Session(ROOT, home=tmp_path / "home") as session:
        run_page(session, commands, name(page))


def test_the_readme_asks_the_examples() -> None:
    """The command that people see first is among those that always run."""
    assert uses(parse_page((ROOT / "README.md").read_text()), EXAMPLES)
