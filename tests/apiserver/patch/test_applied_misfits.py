"""Whether an applied configuration fits its type."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.patch.typed_values import find_type_errors
from keepclose.apiserver.schema.types import ANY_TYPE, ListKind, Type, TypeForm

_TEXT = Type(TypeForm.STRING, omits_empty=True)
TYPE = Type(
    TypeForm.OBJECT,
    fields={
        "text": _TEXT,
        "on": Type(TypeForm.BOOLEAN),
        "number": Type(TypeForm.NUMBER),
        "amount": Type(TypeForm.QUANTITY),
        "any": ANY_TYPE,
        "map": Type(TypeForm.MAP, items=_TEXT),
        "list": Type(TypeForm.LIST, items=_TEXT),
        "set": Type(TypeForm.LIST, items=_TEXT, list_kind=ListKind.SET),
        "items": Type(
            TypeForm.LIST,
            items=Type(TypeForm.OBJECT, fields={"port": Type(TypeForm.INTEGER), "name": _TEXT}),
            list_kind=ListKind.MAP,
            list_keys=("port",),
        ),
    },
)


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(
            {"text": "a", "on": True, "number": 1.5, "amount": 1, "any": {}}, [], id="fits"
        ),
        pytest.param(dict.fromkeys(TYPE.fields), [], id="null fits everywhere"),
        pytest.param(
            {"items": [{"port": 1}, {"name": "x"}]}, [], id="a number left out of a key is zero"
        ),
        pytest.param(
            {"text": 1},
            [".text: expected string, got &value.valueUnstructured{Value:1}"],
            id="a number for a text",
        ),
        pytest.param({"on": "x"}, [".on: expected boolean, got &{x}"], id="a text for a switch"),
        pytest.param(
            {"number": True},
            [".number: expected numeric (int or float), got bool"],
            id="a switch for a number",
        ),
        pytest.param(
            {"amount": [1]}, [".amount: expected any scalar, got &{[1]}"], id="a list for a scalar"
        ),
        pytest.param({"map": "x"}, [".map: expected map, got &{x}"], id="a text for a map"),
        pytest.param({"list": "x"}, [".list: expected list, got &{x}"], id="a text for a list"),
        pytest.param(
            {"list": ["a", 1]},
            [".list[1]: expected string, got &value.valueUnstructured{Value:1}"],
            id="an item of an atomic list",
        ),
        pytest.param(
            {"set": ["a", "a"]}, ['.set: duplicate entries for key [="a"]'], id="a value twice"
        ),
        pytest.param(
            {"set": [{}]},
            [".set: element 0: associative list without keys has an element that's a map type"],
            id="an object in a set",
        ),
        pytest.param(
            {"set": [[]]},
            [".set: element 0: not supported: associative list with lists as elements"],
            id="a list in a set",
        ),
        pytest.param(
            {"set": [None]},
            [
                (
                    ".set: element 0: associative list without keys has an element that's an"
                    " explicit null"
                )
            ],
            id="null in a set",
        ),
        pytest.param(
            {"items": [None]},
            [".items: element 0: associative list with keys may not have a null element"],
            id="null among items",
        ),
        pytest.param(
            {"items": ["x"]},
            [".items: element 0: associative list with keys may not have non-map elements"],
            id="a text among items",
        ),
        pytest.param(
            {"items": [{"port": 1, "name": 2}]},
            [".items[port=1].name: expected string, got &value.valueUnstructured{Value:2}"],
            id="a field of an item",
        ),
        pytest.param({"x": 1, "y": 2}, [".x: field not declared in schema"], id="unknown fields"),
        pytest.param("x", ["expected map, got &{x}"], id="no object at all"),
    ],
)
def test_misfits_are_found(value: Any, want: list[str]) -> None:
    """Each misfit is told with its path, in the words of a real server."""
    assert find_type_errors(value, TYPE) == want
