"""Strategic merge patches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.patch.strategic_merge import apply_strategic_patch
from keepclose.apiserver.schema.types import Type, TypeForm, load_types
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.gates import FeatureGates

_TEXT = Type(TypeForm.STRING)
_ITEM = Type(
    TypeForm.OBJECT,
    fields={
        "name": _TEXT,
        "value": _TEXT,
        "args": Type(TypeForm.LIST, items=_TEXT),
        "env": Type(
            TypeForm.LIST,
            items=Type(TypeForm.OBJECT, fields={"name": _TEXT, "value": _TEXT}),
            patch_strategies=("merge",),
            merge_key="name",
        ),
    },
)
TYPE = Type(
    TypeForm.OBJECT,
    fields={
        "items": Type(TypeForm.LIST, items=_ITEM, patch_strategies=("merge",), merge_key="name"),
        "set": Type(TypeForm.LIST, items=_TEXT, patch_strategies=("merge",)),
        "plain": Type(TypeForm.LIST, items=_ITEM),
        "keyless": Type(TypeForm.LIST, items=_ITEM, patch_strategies=("merge",)),
        "labels": Type(TypeForm.MAP, items=_TEXT),
        "whole": Type(TypeForm.OBJECT, fields={"a": _TEXT}, patch_strategies=("replace",)),
        "either": Type(
            TypeForm.OBJECT,
            fields={"type": _TEXT, "rolling": Type(TypeForm.MAP, items=_TEXT)},
            patch_strategies=("retainKeys",),
        ),
        "text": _TEXT,
    },
)


def _items(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


@pytest.mark.parametrize(
    ("document", "patch", "want"),
    [
        pytest.param({"text": "a"}, {"text": "b"}, {"text": "b"}, id="a value replaces"),
        pytest.param({"text": "a"}, {"text": None}, {}, id="null deletes"),
        pytest.param({}, {"text": None}, {}, id="null for nothing is ignored"),
        pytest.param(
            {"labels": {"a": "1", "b": "2"}},
            {"labels": {"a": None, "c": "3"}},
            {"labels": {"b": "2", "c": "3"}},
            id="maps merge",
        ),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}, {"name": "b"}]},
            {"items": [{"name": "a", "args": ["x"]}]},
            {"items": [{"name": "a", "value": "1", "args": ["x"]}, {"name": "b"}]},
            id="items merge by key",
        ),
        pytest.param(
            {"items": [{"name": "a", "env": [{"name": "A", "value": "1"}]}]},
            {"items": [{"name": "a", "env": [{"name": "B", "value": "2"}]}]},
            {
                "items": [
                    {
                        "name": "a",
                        "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}],
                    }
                ]
            },
            id="items of items merge, new ones stand first",
        ),
        pytest.param(
            {"items": _items("a", "b")},
            {"items": _items("c", "a")},
            {"items": _items("c", "a", "b")},
            id="the order of the patch counts",
        ),
        pytest.param(
            {"items": _items("a", "b", "c")},
            {"items": _items("c")},
            {"items": _items("a", "b", "c")},
            id="live items before a patched one stay before it",
        ),
        pytest.param(
            {"items": _items("a", "b", "c")},
            {"items": [{"name": "b", "$patch": "delete"}]},
            {"items": _items("a", "c")},
            id="an item is deleted",
        ),
        pytest.param(
            {"items": _items("a", "b")},
            {"items": [{"$patch": "replace"}, {"name": "z"}]},
            {"items": _items("z")},
            id="a list of items is replaced",
        ),
        pytest.param(
            {"items": _items("a", "b")},
            {"items": [{"$patch": "replace"}]},
            {"items": []},
            id="a list is replaced by nothing",
        ),
        pytest.param(
            {"items": _items("a", "b", "c")},
            {
                "$setElementOrder/items": _items("c", "a", "n"),
                "items": [{"name": "n", "value": "1"}, {"name": "b", "$patch": "delete"}],
            },
            {"items": [*_items("c", "a"), {"name": "n", "value": "1"}]},
            id="an order is stated",
        ),
        pytest.param(
            {"items": _items("a", "b", "c", "d")},
            {"$setElementOrder/items": _items("d", "b")},
            {"items": _items("a", "c", "d", "b")},
            id="an order alone, the others keep their places before",
        ),
        pytest.param(
            {"items": _items("a", "c")},
            {"$setElementOrder/items": _items("n"), "items": _items("n")},
            {"items": _items("n", "a", "c")},
            id="a new item stands before the others",
        ),
        pytest.param(
            {"items": _items("a", "b", "c")},
            {
                "$setElementOrder/items": _items("n", "m"),
                "items": [*_items("n", "m"), {"name": "b", "$patch": "delete"}],
            },
            {"items": _items("a", "c", "n", "m")},
            id="a new item takes the place that a deletion left at the end",
        ),
        pytest.param(
            {"items": _items("a", "b")},
            {
                "$setElementOrder/items": _items("z"),
                "items": [{"$patch": "replace"}, {"name": "z"}],
            },
            {"items": _items("z")},
            id="an order of a list that is replaced",
        ),
        pytest.param(
            {"set": ["a", "b"]},
            {"$setElementOrder/set": ["b", "a"]},
            {"set": ["b", "a"]},
            id="an order of a set alone",
        ),
        pytest.param(
            {},
            {"$setElementOrder/items": _items("a"), "items": [{"name": "a", "value": None}]},
            {"items": [{"name": "a", "value": None}]},
            id="an order with a list that is new",
        ),
        pytest.param(
            {"text": "a"},
            {"$setElementOrder/items": _items("a")},
            {"text": "a"},
            id="an order of nothing",
        ),
        pytest.param(
            {"set": ["a", "b"]}, {"set": ["b", "c"]}, {"set": ["a", "b", "c"]}, id="sets unite"
        ),
        pytest.param(
            {"set": ["a", "b", "c"]},
            {"$deleteFromPrimitiveList/set": ["b", "z"]},
            {"set": ["a", "c"]},
            id="values are taken out",
        ),
        pytest.param(
            {"text": "a"},
            {"$deleteFromPrimitiveList/set": ["b"]},
            {"text": "a"},
            id="nothing to take out of",
        ),
        pytest.param(
            {"set": ["a"]}, {"$deleteFromPrimitiveList/set": None}, {}, id="null takes all out"
        ),
        pytest.param(
            {"set": ["a", "b", "c"]},
            {
                "$setElementOrder/set": ["d", "c", "a"],
                "set": ["d"],
                "$deleteFromPrimitiveList/set": ["b"],
            },
            {"set": ["d", "c", "a"]},
            id="a set is changed and ordered",
        ),
        pytest.param(
            {"plain": _items("a")}, {"plain": _items("b")}, {"plain": _items("b")}, id="plain lists"
        ),
        pytest.param(
            {"labels": {"a": "1"}},
            {"labels": {"$patch": "replace", "b": "2"}},
            {"labels": {"b": "2"}},
            id="a map is replaced",
        ),
        pytest.param(
            {"labels": {"a": "1"}}, {"labels": {"$patch": "delete"}}, {"labels": {}}, id="emptied"
        ),
        pytest.param(
            {}, {"labels": {"$patch": "replace", "b": "2"}}, {}, id="a directive for what is not"
        ),
        pytest.param({"text": "a"}, {"$patch": "delete"}, {}, id="the document is emptied"),
        pytest.param(
            {"whole": {"b": "1"}}, {"whole": {"a": "1"}}, {"whole": {"a": "1"}}, id="by strategy"
        ),
        pytest.param(
            {"either": {"type": "R", "rolling": {"x": "1"}}},
            {"either": {"$retainKeys": ["type"], "type": "S"}},
            {"either": {"type": "S"}},
            id="keys that are not retained go",
        ),
        pytest.param(
            {"either": {"type": "R", "rolling": {"x": "1"}}},
            {"either": {"$retainKeys": ["rolling"], "rolling": {"y": "2"}, "type": None}},
            {"either": {"rolling": {"x": "1", "y": "2"}}},
            id="keys that are retained merge",
        ),
        pytest.param(
            {"other": {"a": [1], "b": {"c": 1}}},
            {"other": {"a": [2], "b": {"d": 2}, "e": None}},
            {"other": {"a": [2], "b": {"c": 1, "d": 2}}},
            id="unknown fields merge as plain values",
        ),
        pytest.param(
            {"text": "a"},
            {"labels": {"a": None, "b": "1"}, "items": [{"name": "n", "value": None}]},
            {"text": "a", "labels": {"b": "1"}, "items": [{"name": "n"}]},
            id="nulls of new values are left out",
        ),
        pytest.param(
            {"labels": {"a": "1"}}, {"labels": ["x"]}, {"labels": ["x"]}, id="another form replaces"
        ),
        pytest.param({"items": []}, {"items": []}, {"items": []}, id="nothing into nothing"),
    ],
)
def test_a_patch_is_merged(
    document: dict[str, Any], patch: dict[str, Any], want: dict[str, Any]
) -> None:
    """Each directive and strategy does what the Go implementation does; inputs stay as they are."""
    before = copy.deepcopy((document, patch))
    assert apply_strategic_patch(document, patch, TYPE) == want
    assert (document, patch) == before


@pytest.mark.parametrize(
    ("patch", "want_code", "want"),
    [
        pytest.param(
            {"items": [{"value": "1"}]},
            500,
            "map: map[value:1] does not contain declared merge key: name",
            id="no merge key",
        ),
        pytest.param(
            {"items": [{"$patch": "delete"}]},
            500,
            "map: map[$patch:delete] does not contain declared merge key: name",
            id="a deletion without key",
        ),
        pytest.param(
            {"items": [{"name": "a", "$patch": "merge"}]},
            500,
            "merging lists cannot yet be specified in the patch",
            id="merge in a list",
        ),
        pytest.param(
            {"items": [{"name": "a", "$patch": "x"}]},
            500,
            "unknown patch type: x in map: map[$patch:x name:a]",
            id="unknown directive in a list",
        ),
        pytest.param(
            {"labels": {"$patch": "merge"}},
            500,
            "unknown patch type: merge in map: map[$patch:merge]",
            id="merge in a map",
        ),
        pytest.param(
            {"items": ["a"]},
            500,
            "list element types are not identical: [[map[name:a]] [a]]",
            id="a string among objects",
        ),
        pytest.param(
            {"keyless": [{"name": "b"}]},
            500,
            "cannot merge lists without merge key for slice",
            id="objects without merge key",
        ),
        pytest.param(
            {"set": [["a"]], "$setElementOrder/set": []},
            422,
            "the server rejected our request due to an error in our request",
            id="lists of lists",
        ),
        pytest.param(
            {"labels": {"$retainKeys": ["a"], "b": "1"}},
            400,
            "invalid patch format of retainKeys",
            id="a field that is not retained",
        ),
        pytest.param(
            {"labels": {"$retainKeys": "a"}},
            400,
            "invalid patch format of retainKeys",
            id="retained keys that are no list",
        ),
        pytest.param(
            {"$deleteFromPrimitiveList": ["a"]},
            400,
            "invalid patch format of primitive list",
            id="no name to take out of",
        ),
        pytest.param(
            {"$setElementOrder": ["a"]},
            400,
            "invalid patch format of setElementOrder list",
            id="no name to order",
        ),
        pytest.param(
            {"$setElementOrder/items": "a"},
            500,
            "expected a []interface {}, but received a string",
            id="an order that is no list",
        ),
        pytest.param(
            {"$setElementOrder/text": ["a"]},
            500,
            "expected a []interface {}, but received a string",
            id="an order for what is no list",
        ),
        pytest.param(
            {"$setElementOrder/items": [{"name": "z"}], "items": [{"name": "a"}]},
            500,
            "The order in patch list:\n[map[name:a]]\n doesn't match $setElementOrder list:\n"
            "[map[name:z]]\n",
            id="an order that lacks an item",
        ),
        pytest.param(
            {"$setElementOrder/items": [{"value": "z"}], "items": [{"name": "a"}]},
            500,
            "map: map[value:z] does not contain declared merge key: name",
            id="an order without keys",
        ),
        pytest.param(
            {"$setElementOrder/items": ["z"]},
            500,
            "value for key 0 is not a map",
            id="an order of strings for live objects",
        ),
        pytest.param(
            {"$setElementOrder/text": []},
            500,
            "expected a []interface {}, but received a string",
            id="an empty order for a text",
        ),
        pytest.param(
            {"$setElementOrder/items": ["z"], "items": [{"name": "a"}]},
            500,
            "expected a map[string]interface {}, but received a string",
            id="an order of strings for objects",
        ),
    ],
)
def test_a_patch_without_sense_is_refused(patch: dict[str, Any], want_code: int, want: str) -> None:
    """Code and text are those of a real server."""
    document = {
        "items": [{"name": "a"}],
        "keyless": [{"name": "a"}],
        "set": [["q"]],
        "labels": {"a": "1"},
        "text": "t",
    }
    with pytest.raises(StatusError) as caught:
        apply_strategic_patch(document, patch, TYPE)
    assert (caught.value.code, caught.value.message) == (want_code, want)


_NAMES = st.lists(st.sampled_from("abcdef"), unique=True)


@given(_NAMES, _NAMES)
@settings(deadline=None, max_examples=150)
def test_merged_lists_have_all_items_once_and_the_patch_in_order(
    live: list[str], patched: list[str]
) -> None:
    """Nothing is lost or doubled, and what the patch names stands in its order."""
    result = apply_strategic_patch({"items": _items(*live)}, {"items": _items(*patched)}, TYPE)
    names = [item["name"] for item in result["items"]]
    assert sorted(names) == sorted({*live, *patched})
    assert [name for name in names if name in patched] == patched
    others = [name for name in live if name not in patched]
    assert [name for name in names if name not in patched] == others


def test_ports_of_a_service_merge_by_port() -> None:
    """The published types carry the merge keys."""
    service = load_types(FeatureGates())["io.k8s.api.core.v1.Service"]
    document = {"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 443, "name": "b"}]}}
    patch = {"spec": {"ports": [{"port": 443, "name": "c"}]}}
    want = {"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 443, "name": "c"}]}}
    assert apply_strategic_patch(document, patch, service) == want
