"""The statements of the proposals, read from the tests: one function of a proposal's folder each.

A statement is expected to hold unless its test is marked as one that fails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).parents[2] / "proposals"
TITLES: Final = {
    "kep_2004": "KEP-2004",
    "kep_3015": "KEP-3015",
    "kep_3015_draft1": "KEP-3015, first draft",
    "kep_3015_draft2": "KEP-3015, second draft",
    "kep_4444": "KEP-4444",
}
"""The proposals by the folders of their tests."""


class Statement(NamedTuple):
    """One statement: where its test is, what it says, and whether it is expected to hold."""

    proposal: str
    """The folder."""
    path: Path
    name: str
    text: str
    """The docstring, "" where there is none."""
    holds: bool


def list_statements(folder: Path = FOLDER) -> list[Statement]:
    """Return the statements of all proposals, by proposal and place."""
    return [
        statement
        for proposal in TITLES
        for path in sorted((folder / proposal).glob("test_*.py"))
        for statement in _read_module(proposal, path)
    ]


def proposal_of(path: Path) -> str | None:
    """Return the folder of the proposal that a test file belongs to; None for other files."""
    folder = path.parent
    return folder.name if folder.parent == FOLDER and folder.name in TITLES else None


def _read_module(proposal: str, path: Path) -> Iterator[Statement]:
    for part in ast.parse(path.read_text()).body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith(
            "test_"
        ):
            fails = any("xfail" in ast.unparse(decorator) for decorator in part.decorator_list)
            text = ast.get_docstring(part) or ""
            yield Statement(proposal, path, part.name, text, not fails)
