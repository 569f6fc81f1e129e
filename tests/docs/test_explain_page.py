"""The page about `keepclose explain` names every cause."""

from __future__ import annotations

import re
from pathlib import Path

from keepclose.advise.explaining.causes import TrafficCauseCode

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "explain.md"


def test_every_cause_is_documented_once() -> None:
    """Each code is in one row of the table, and no row names another one."""
    table = PAGE.read_text().partition("## Causes\n")[2].partition("\n\n`-o json`")[0]
    first = [row.split("|")[1] for row in table.splitlines() if row.startswith("| ")][1:]
    codes = [code for cell in first for code in re.findall(r"\w+", cell)]
    assert sorted(codes) == sorted(code.value for code in TrafficCauseCode)
