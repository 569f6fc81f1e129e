"""The Table around the rows: versions, what rows carry, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.printing.table import Include, make_table
from keepclose.apiserver.resources import BY_KIND, Resource

CONFIG_MAPS = BY_KIND[("v1", "ConfigMap")]
NOW = 1_800_000_000.0
METADATA = {
    "name": "settings",
    "namespace": "shop",
    "resourceVersion": "7",
    "creationTimestamp": "2027-01-15T07:59:00Z",
}
SETTINGS = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": METADATA, "data": {"a": "b"}}


def columns(table: dict[str, Any]) -> list[str]:
    """Return the names of the columns."""
    return [column["name"] for column in table["columnDefinitions"]]


def test_a_list_becomes_a_table_with_the_metadata_of_the_list() -> None:
    """Version, continuation and what remains are the list's; rows hold the objects' metadata."""
    listed = {"resourceVersion": "42", "continue": "next", "remainingItemCount": 3}
    table = make_table(CONFIG_MAPS, [SETTINGS], now=NOW, list_metadata=listed)
    assert columns(table) == ["Name", "Data", "Age"]
    del table["columnDefinitions"]
    assert table == {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": listed,
        "rows": [
            {
                "cells": ["settings", 1, "60s"],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": METADATA,
                },
            }
        ],
    }


@pytest.mark.parametrize(
    ("include", "want_object"),
    [
        pytest.param("Object", SETTINGS, id="the whole object"),
        pytest.param("None", None, id="nothing, as null"),
    ],
)
def test_rows_carry_what_was_asked_for(include: Include, want_object: object) -> None:
    """`includeObject` chooses what a row carries beside its cells."""
    table = make_table(CONFIG_MAPS, [SETTINGS], now=NOW, include=include)
    assert table["rows"] == [{"cells": ["settings", 1, "60s"], "object": want_object}]


@pytest.mark.parametrize(
    ("objects", "listed", "want_metadata"),
    [
        pytest.param([SETTINGS], None, {"resourceVersion": "7"}, id="a single object has its own"),
        pytest.param([{}], None, {}, id="an object without version leaves none"),
        pytest.param([], None, {}, id="no object and no list leave none"),
        pytest.param(
            [],
            {"resourceVersion": "9", "continue": "", "remainingItemCount": None},
            {"resourceVersion": "9"},
            id="an empty continuation is left out",
        ),
        pytest.param([SETTINGS], {}, {}, id="a list without metadata has none"),
    ],
)
def test_the_table_has_the_version_of_what_it_shows(
    objects: list[dict[str, Any]], listed: dict[str, Any] | None, want_metadata: dict[str, Any]
) -> None:
    """The version is that of the list, or of the object when there is no list."""
    table = make_table(CONFIG_MAPS, objects, now=NOW, list_metadata=listed)
    assert table["metadata"] == want_metadata


def test_a_watch_can_leave_columns_out() -> None:
    """After the first event the columns are null and the rows still there."""
    table = make_table(CONFIG_MAPS, [SETTINGS], now=NOW, headers=False)
    assert table["columnDefinitions"] is None
    assert len(table["rows"]) == 1


def test_columns_can_come_alone() -> None:
    """Columns only means no rows, however many objects there are."""
    table = make_table(CONFIG_MAPS, [SETTINGS, SETTINGS], now=NOW, columns_only=True)
    assert (columns(table), table["rows"]) == (["Name", "Data", "Age"], [])


def test_an_older_table_names_its_own_version_throughout() -> None:
    """v1beta1 is the same shape under another name, in rows too."""
    older = "meta.k8s.io/v1beta1"
    table = make_table(CONFIG_MAPS, [SETTINGS], now=NOW, api_version=older)
    assert (table["apiVersion"], table["rows"][0]["object"]["apiVersion"]) == (older, older)


UNHEARD_OF = Resource(
    group="example.com",
    version="v1",
    kind="Widget",
    plural="widgets",
    singular="widget",
    definition="com.example.Widget",
)


@pytest.mark.parametrize(
    ("created", "want_cell"),
    [
        pytest.param("2027-01-15T07:59:00Z", "2027-01-15T07:59:00Z", id="a time in UTC"),
        pytest.param("2027-01-15T09:59:00+02:00", "2027-01-15T07:59:00Z", id="a time elsewhere"),
        pytest.param("0900-01-01T00:00:00.5Z", "0900-01-01T00:00:00Z", id="a time long ago"),
        pytest.param(None, "0001-01-01T00:00:00Z", id="no time at all"),
    ],
)
def test_unknown_kinds_show_name_and_creation(created: str | None, want_cell: str) -> None:
    """A kind without a printer has two columns, the second a date."""
    widget = {"metadata": {"name": "w", "creationTimestamp": created}}
    table = make_table(UNHEARD_OF, [widget], now=NOW)
    assert [(column["name"], column["type"]) for column in table["columnDefinitions"]] == [
        ("Name", "string"),
        ("Created At", "date"),
    ]
    assert table["rows"][0]["cells"] == ["w", want_cell]


RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
WRONG = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(), SCALARS, max_size=2)


def places(value: object) -> list[tuple[Any, Any]]:
    """Return every container in the value with each of its keys."""
    keys: Iterable[Any] = ()
    if isinstance(value, dict):
        keys = value
    elif isinstance(value, list):
        keys = range(len(value))
    container: Any = value
    return [place for key in keys for place in ((container, key), *places(container[key]))]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(RECORDED), st.data())
def test_no_object_breaks_a_table(table: dict[str, Any], data: st.DataObject) -> None:
    """Whatever stands where something else belongs, each column has a text or a whole number."""
    resource = BY_KIND[(table["apiVersion"], table["kind"])]
    item = deepcopy(data.draw(st.sampled_from(table["rows"])))["object"]
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(item) or [(item, "spec")]))
        container[key] = data.draw(WRONG)
    made = make_table(resource, [item], now=NOW)
    cells = made["rows"][0]["cells"]
    assert len(cells) == len(made["columnDefinitions"])
    assert all(type(cell) in (str, int) for cell in cells)


def test_a_value_that_is_no_object_prints_as_an_empty_one() -> None:
    """Even a row that is no object at all does not stop the others."""
    odd: Any = "odd"
    table = make_table(CONFIG_MAPS, [odd, SETTINGS], now=NOW, list_metadata={})
    assert [row["cells"] for row in table["rows"]] == [["", 0, "<unknown>"], ["settings", 1, "60s"]]
