"""Rows against those of a real kube-apiserver 1.36.

`recorded.json` holds, for each kind, objects as they were stored and the columns and cells that
the real server answered with at the time `now`. Many objects lack fields, or hold what validation
would refuse, because what is stored may be older than any rule.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.printing.table import make_table
from keepclose.apiserver.resources import BY_KIND, RESOURCES

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())

ROWS = [
    pytest.param(table, row, id=f"{table['kind']} {row['object']['metadata']['name']}")
    for table in RECORDED
    for row in table["rows"]
]


@pytest.mark.parametrize(("table", "row"), ROWS)
def test_a_row_is_that_of_the_real_server(table: dict[str, Any], row: dict[str, Any]) -> None:
    """Cells have the same texts and JSON types, and finished pods the same conditions."""
    resource = BY_KIND[(table["apiVersion"], table["kind"])]
    made = make_table(resource, [row["object"]], now=table["now"])["rows"][0]
    assert made["cells"] == row["cells"]
    assert [type(cell) for cell in made["cells"]] == [type(cell) for cell in row["cells"]]
    assert made.get("conditions") == row.get("conditions")


@pytest.mark.parametrize("table", [pytest.param(one, id=one["kind"]) for one in RECORDED])
def test_columns_are_those_of_the_real_server(table: dict[str, Any]) -> None:
    """Names, types, formats and priorities agree; descriptions are our own, and never missing."""
    resource = BY_KIND[(table["apiVersion"], table["kind"])]
    columns = make_table(resource, [], now=0)["columnDefinitions"]
    assert all(column.pop("description") for column in columns)
    assert columns == table["columns"]


def test_every_kind_was_compared() -> None:
    """No kind that is served has a table that nobody compared."""
    compared = {(table["apiVersion"], table["kind"]) for table in RECORDED}
    assert compared == {(resource.api_version, resource.kind) for resource in RESOURCES}
