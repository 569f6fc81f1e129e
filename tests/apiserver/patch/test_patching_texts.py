"""Values as Go prints them."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.patch.go_format import encode_sorted, name_type, show


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(None, "<nil>", id="null"),
        pytest.param(True, "true", id="true"),
        pytest.param({"b": [1, "x"], "a": None}, "map[a:<nil> b:[1 x]]", id="a map with a list"),
        pytest.param(2.0, "2", id="a whole float"),
        pytest.param(2.5, "2.5", id="a float"),
        pytest.param(False, "false", id="false"),
    ],
)
def test_values_are_shown(value: Any, want: str) -> None:
    """The default format of Go."""
    assert show(value) == want


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(None, "%!s(<nil>)", id="null"),
        pytest.param(1, "int64", id="an integer"),
        pytest.param(1.5, "float64", id="a float"),
        pytest.param(True, "bool", id="a switch"),
        pytest.param("x", "string", id="a text"),
        pytest.param([], "[]interface {}", id="a list"),
        pytest.param({}, "map[string]interface {}", id="a map"),
    ],
)
def test_types_are_named(value: Any, want: str) -> None:
    """The names that Go gives decoded JSON."""
    assert name_type(value) == want


def test_json_is_escaped_as_go_does() -> None:
    """Signs of HTML and line separators are escaped, other letters are not."""
    assert encode_sorted({"b": "<&>", "a": "ä\u2028"}) == (
        '{"a":"ä\\u2028","b":"\\u003c\\u0026\\u003e"}'
    )
