"""Pages of the documentation, for statements about what they must say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
DISTRIBUTION_PAGE: Final = "howto/traffic-distribution.md"


def read_page(name: str) -> str:
    """Return a page of docs with all white space as single blanks, so that lines may be broken."""
    return " ".join((ROOT / "docs" / name).read_text().split())


def read_section(name: str, heading: str) -> str:
    """Return one section of a page, with all white space as single blanks."""
    return " ".join(_section(name, heading).split())


def rows_of(name: str, heading: str) -> list[list[str]]:
    """Return the cells of the rows of all tables of a section, without headings and rules."""
    lines = [line for line in _section(name, heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rules = [number for number, row in enumerate(cells) if set("".join(row)) <= set("-:")]
    headings = {number - 1 for number in rules} | set(rules)
    return [row for number, row in enumerate(cells) if number not in headings]


def _section(name: str, heading: str) -> str:
    text = (ROOT / "docs" / name).read_text()
    pattern = rf"^##+ {re.escape(heading)}$(.*?)(?=^##? |\Z)"
    match = re.search(pattern, text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{name} has no section {heading!r}"
    return match.group(1)
