"""Server-side apply."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.patch.apply import LAST_APPLIED, apply_configuration
from keepclose.apiserver.patch.field_sets import FieldSet
from keepclose.apiserver.patch.managed_fields import record_update
from keepclose.apiserver.schema.types import ListKind, Type, TypeForm, load_types
from keepclose.apiserver.status_errors import StatusError
from keepclose.model.gates import FeatureGates

TYPES = load_types(FeatureGates())
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"

_TEXT = Type(TypeForm.STRING, omits_empty=True)
_LABELS = Type(TypeForm.MAP, items=_TEXT)
THING = Type(
    TypeForm.OBJECT,
    fields={
        "apiVersion": _TEXT,
        "kind": _TEXT,
        "metadata": Type(
            TypeForm.OBJECT,
            fields={
                "name": _TEXT,
                "namespace": _TEXT,
                "labels": _LABELS,
                "annotations": _LABELS,
                "managedFields": Type(TypeForm.ANY),
            },
        ),
        "spec": Type(
            TypeForm.OBJECT,
            fields={
                "text": _TEXT,
                "count": Type(TypeForm.INTEGER),
                "whole": Type(TypeForm.MAP, items=_TEXT, atomic=True),
                "list": Type(TypeForm.LIST, items=_TEXT),
                "set": Type(TypeForm.LIST, items=_TEXT, list_kind=ListKind.SET),
                "deep": Type(TypeForm.OBJECT, fields={"a": _TEXT, "labels": _LABELS}),
                "items": Type(
                    TypeForm.LIST,
                    items=Type(
                        TypeForm.OBJECT, fields={"name": _TEXT, "value": _TEXT, "labels": _LABELS}
                    ),
                    list_kind=ListKind.MAP,
                    list_keys=("name",),
                ),
            },
        ),
        "status": Type(TypeForm.OBJECT, fields={"text": _TEXT}),
    },
)


def _wish(spec: Any = None, **metadata: Any) -> dict[str, Any]:
    wish = {"apiVersion": "v1", "kind": "T", "metadata": {"name": "t", **metadata}}
    return wish if spec is None else {**wish, "spec": spec}


def _apply(
    live: dict[str, Any] | None, wish: dict[str, Any], manager: str = "one", **more: Any
) -> dict[str, Any]:
    before = copy.deepcopy((live, wish))
    options = {"type": THING, "api_version": "v1", "force": False, "now": EARLY, **more}
    result = apply_configuration(live, wish, manager=manager, **options)
    assert (live, wish) == before
    return result


def _update(live: dict[str, Any], spec: Any, manager: str = "updater") -> dict[str, Any]:
    new = copy.deepcopy({**live, "spec": {**live.get("spec", {}), **spec}})
    record_update(live, new, type=THING, api_version="v1", manager=manager, now=EARLY)
    return new


def _owners(document: dict[str, Any]) -> dict[str, Any]:
    return {
        f"{entry['manager']} {entry['operation']}": entry["fieldsV1"]
        for entry in document["metadata"].get("managedFields", [])
    }


def test_an_apply_creates() -> None:
    """The result is what was applied; named containers are not owned, keys and items are."""
    spec = {
        "text": "a",
        "deep": {"labels": {"x": "1"}},
        "items": [{"name": "n"}],
        "set": ["s"],
        "whole": {},
    }
    result = _apply(None, _wish(spec, labels={"l": "1"}))
    assert result["spec"] == spec
    assert result["metadata"]["managedFields"] == [
        {
            "manager": "one",
            "operation": "Apply",
            "apiVersion": "v1",
            "time": EARLY,
            "fieldsType": "FieldsV1",
            "fieldsV1": {
                "f:metadata": {"f:labels": {"f:l": {}}},
                "f:spec": {
                    "f:deep": {"f:labels": {"f:x": {}}},
                    "f:items": {'k:{"name":"n"}': {".": {}, "f:name": {}}},
                    "f:set": {'v:"s"': {}},
                    "f:text": {},
                    "f:whole": {},
                },
            },
        }
    ]


@pytest.mark.parametrize(
    ("first", "second", "want"),
    [
        pytest.param({"text": "a"}, {"text": "b"}, {"text": "b"}, id="a value changes"),
        pytest.param({"text": "a", "count": 1}, {"count": 1}, {"count": 1}, id="a value goes"),
        pytest.param(
            {"deep": {"a": "1", "labels": {"x": "1", "y": "2"}}},
            {"deep": {"a": "1", "labels": {"y": "3"}}},
            {"deep": {"a": "1", "labels": {"y": "3"}}},
            id="a key of a map goes",
        ),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}, {"name": "b"}]},
            {"items": [{"name": "b"}]},
            {"items": [{"name": "b"}]},
            id="an item goes",
        ),
        pytest.param(
            {"items": [{"name": "a", "value": "1"}]},
            {"items": [{"name": "a"}]},
            {"items": [{"name": "a"}]},
            id="a field of an item goes",
        ),
        pytest.param(
            {"items": [{"name": "a"}, {"name": "b"}]},
            {"items": [{"name": "c"}, {"name": "b"}, {"name": "a"}]},
            {"items": [{"name": "c"}, {"name": "b"}, {"name": "a"}]},
            id="items in a new order",
        ),
        pytest.param({"set": ["a", "b"]}, {"set": ["b", "c"]}, {"set": ["b", "c"]}, id="a set"),
        pytest.param({"list": ["a", "b"]}, {"list": ["c"]}, {"list": ["c"]}, id="an atomic list"),
        pytest.param(
            {"whole": {"a": "1"}}, {"whole": {"b": "2"}}, {"whole": {"b": "2"}}, id="an atomic map"
        ),
        pytest.param(
            {"text": "a", "count": 1}, {"text": None, "count": 1}, {"count": 1}, id="null"
        ),
        pytest.param(
            {"deep": {"a": "1"}},
            {"deep": {"labels": {"x": None}}},
            {"deep": {"labels": {"x": ""}}},
            id="null among strings is an empty one",
        ),
        pytest.param(
            {"deep": {"a": "1"}, "text": "t"}, {"text": "t"}, {"text": "t"}, id="a container goes"
        ),
    ],
)
def test_a_manager_changes_its_mind(first: Any, second: Any, want: Any) -> None:
    """What one manager applied and no longer applies is removed."""
    live = _apply(None, _wish(first))
    assert _apply(live, _wish(second), now=LATE)["spec"] == want


def test_what_others_own_is_not_removed() -> None:
    """A field stays while an applier or an updater owns it, and so does what was never applied."""
    live = _apply(None, _wish({"text": "a", "items": [{"name": "x", "value": "1"}]}))
    live = _apply(live, _wish({"text": "a"}), "two")
    live = _update(live, {"items": [{"name": "x", "value": "1"}, {"name": "y"}], "count": 3})
    result = _apply(live, _wish({"list": ["z"]}))
    assert result["spec"] == {"text": "a", "list": ["z"], "items": [{"name": "y"}], "count": 3}


def test_an_item_stays_when_another_owns_a_field_of_it() -> None:
    """Only the fields that nobody else owns go."""
    live = _apply(None, _wish({"items": [{"name": "x", "value": "1"}]}))
    live = _apply(live, _wish({"items": [{"name": "x", "labels": {"a": "b"}}]}), "two")
    result = _apply(live, _wish({"text": "t"}))
    assert result["spec"]["items"] == [{"name": "x", "labels": {"a": "b"}}]
    owned: FieldSet = {".": {}, "f:labels": {"f:a": {}}, "f:name": {}}
    assert _owners(result) == {
        "one Apply": {"f:spec": {"f:text": {}}},
        "two Apply": {"f:spec": {"f:items": {'k:{"name":"x"}': owned}}},
    }


@pytest.mark.parametrize(
    ("live", "applied", "want"),
    [
        pytest.param("abc", "xb", "axbc", id="around a shared item"),
        pytest.param("abc", "ca", "bca", id="shared items in the applied order"),
        pytest.param("ab", "cd", "abcd", id="new items behind"),
        pytest.param("", "ab", "ab", id="into nothing"),
        pytest.param("abcd", "dxa", "bcdxa", id="one moved before another"),
        pytest.param("abc", "", "abc", id="nothing applied"),
    ],
)
def test_items_keep_an_order(live: str, applied: str, want: str) -> None:
    """Applied items stand in their order, live ones where they were as far as possible."""
    there = _apply(None, _wish({"set": list(live)}))
    result = _apply(there, _wish({"set": list(applied)}), "two")
    assert "".join(result["spec"]["set"]) == want


def test_twins_become_one() -> None:
    """An applied item takes the place of all live items with its key."""
    live = _update(_apply(None, _wish({"text": "a"})), {"items": [{"name": "x"}, {"name": "x"}]})
    result = _apply(live, _wish({"items": [{"name": "x", "value": "1"}]}), force=True)
    assert result["spec"]["items"] == [{"name": "x", "value": "1"}]


def test_a_conflict_is_told() -> None:
    """A field of another manager with another value is refused, with the manager and the path."""
    live = _update(_apply(None, _wish({"text": "a"})), {"count": 1}, "kubectl-client-side-apply")
    with pytest.raises(StatusError) as caught:
        _apply(live, _wish({"count": 2}), "two")
    failure = caught.value
    assert (failure.code, failure.reason) == (409, "Conflict")
    assert failure.message == (
        'Apply failed with 1 conflict: conflict with "kubectl-client-side-apply" using v1:'
        " .spec.count"
    )
    assert failure.details == {
        "causes": [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "kubectl-client-side-apply" using v1',
                "field": ".spec.count",
            }
        ]
    }


def test_many_conflicts_are_told_by_manager() -> None:
    """Appliers are named alone, updaters with their version, and a subresource is named too."""
    live = _apply(None, _wish({"text": "a", "items": [{"name": "x", "value": "1"}]}))
    live = _update(live, {"count": 1})
    entry = live["metadata"]["managedFields"][1]
    live["metadata"]["managedFields"][1] = {**entry, "subresource": "status"}
    with pytest.raises(StatusError) as caught:
        _apply(
            live,
            _wish({"text": "b", "count": 2, "items": [{"name": "x", "value": "2"}]}),
            "two",
        )
    assert caught.value.message == (
        'Apply failed with 3 conflicts: conflicts with "one":\n- .spec.text\n'
        '- .spec.items[name="x"].value\n'
        'conflicts with "updater" with subresource "status" using v1:\n- .spec.count'
    )
    causes = (caught.value.details or {})["causes"]
    assert [cause["field"] for cause in causes] == [
        ".spec.text",
        '.spec.items[name="x"].value',
        ".spec.count",
    ]


def test_force_takes_the_field() -> None:
    """A forced apply owns the field alone."""
    live = _apply(None, _wish({"text": "a", "count": 1}))
    result = _apply(live, _wish({"text": "b"}), "two", force=True)
    assert result["spec"] == {"text": "b", "count": 1}
    assert _owners(result) == {
        "one Apply": {"f:spec": {"f:count": {}}},
        "two Apply": {"f:spec": {"f:text": {}}},
    }


def test_the_same_value_is_shared() -> None:
    """Two managers may own one field; the second, who changed nothing, has no time."""
    live = _apply(None, _wish({"text": "a"}))
    result = _apply(live, _wish({"text": "a"}), "two", now=LATE)
    owned: FieldSet = {"f:spec": {"f:text": {}}}
    assert _owners(result) == {"one Apply": owned, "two Apply": owned}
    times = {e["manager"]: e.get("time") for e in result["metadata"]["managedFields"]}
    assert times == {"one": EARLY, "two": None}


def test_a_null_over_a_value_of_another_is_a_conflict() -> None:
    """To want nothing where another wants something is a conflict too."""
    live = _apply(None, _wish({"count": 1}))
    with pytest.raises(StatusError) as caught:
        _apply(live, _wish({"count": None}), "two")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "one": .spec.count'


def test_applying_nothing_gives_all_up() -> None:
    """An empty configuration leaves no entry and removes what was applied."""
    live = _apply(None, _wish({"text": "a", "deep": {"a": "1"}}))
    result = _apply(live, _wish())
    assert result == {**_wish(), "status": {}}


def test_the_first_apply_meets_an_owner_of_all_before() -> None:
    """An object without owners belongs to before-first-apply, as if that had updated it."""
    live = _wish({"text": "a", "count": 1})
    with pytest.raises(StatusError) as caught:
        _apply(live, _wish({"text": "b"}))
    assert caught.value.message == (
        'Apply failed with 1 conflict: conflict with "before-first-apply" using v1: .spec.text'
    )
    result = _apply(live, _wish({"text": "b"}), force=True)
    assert _owners(result) == {
        "one Apply": {"f:spec": {"f:text": {}}},
        "before-first-apply Update": {"f:spec": {"f:count": {}}},
    }


def test_status_is_not_applied_to_the_object_itself() -> None:
    """What the endpoint resets is not owned; on the status it is, in an entry of its own."""
    wish = {**_wish({"text": "a"}), "status": {"text": "s"}}
    live = _apply(None, wish)
    assert _owners(live) == {"one Apply": {"f:spec": {"f:text": {}}}}
    result = _apply(live, {**_wish(), "status": {"text": "s"}}, subresource="status")
    assert [
        (entry.get("subresource"), entry["fieldsV1"])
        for entry in result["metadata"]["managedFields"]
    ] == [("status", {"f:status": {"f:text": {}}}), (None, {"f:spec": {"f:text": {}}})]


@pytest.mark.parametrize(
    ("wish", "want_code", "want"),
    [
        pytest.param(
            {**_wish(), "apiVersion": "v2"},
            400,
            "invalid object type: /v2, Kind=T",
            id="another version",
        ),
        pytest.param(
            _wish(managedFields=[]), 400, "metadata.managedFields must be nil", id="owners"
        ),
        pytest.param(
            _wish({"nope": 1}, namespace="ns"),
            500,
            "failed to create typed patch object (ns/t; /v1, Kind=T): .spec.nope: field not"
            " declared in schema",
            id="an unknown field",
        ),
        pytest.param(
            _wish({"items": [{"name": "a"}, {"name": "a"}], "count": "x"}),
            500,
            "failed to create typed patch object (/t; /v1, Kind=T): errors:\n"
            '  .spec.items: duplicate entries for key [name="a"]\n'
            "  .spec.count: expected numeric (int or float), got string",
            id="twins and a wrong number",
        ),
        pytest.param(
            _wish({"items": [{"value": "a"}]}),
            500,
            "failed to create typed patch object (/t; /v1, Kind=T): .spec.items: element 0:"
            ' associative list with keys has an element that omits all key fields ["name"] (and'
            " doesn't have default values for any key fields)",
            id="no key",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    wish: dict[str, Any], want_code: int, want: str
) -> None:
    """Code and text are those of a real server."""
    with pytest.raises(StatusError) as caught:
        _apply(None, wish)
    assert (caught.value.code, caught.value.message) == (want_code, want)


def test_an_object_that_cannot_be_owned_is_named() -> None:
    """A stored list without keys ends an apply with the text of a real server."""
    live = _wish({"items": [{"text": "a"}]})
    missing = (
        ".spec.items: element 0: associative list with keys has an element that omits all key"
        ' fields ["name"] (and doesn\'t have default values for any key fields)'
    )
    with pytest.raises(StatusError) as caught:
        _apply(live, _wish({"text": "b"}))
    assert caught.value.code == 500
    assert caught.value.message == (
        "failed to create manager for existing fields: failed to convert new object"
        f" (/t; /v1, Kind=T) to smd typed: {missing}"
    )


def test_an_empty_name_may_be_the_default() -> None:
    """The name of a LocalObjectReference is "" where it is absent, as Kubernetes declares it."""
    pod = load_types(FeatureGates())["io.k8s.api.core.v1.Pod"]
    live: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"imagePullSecrets": [{}]}}
    record_update(None, live, type=pod, api_version="v1", manager="m", now=EARLY)
    [entry] = live["metadata"]["managedFields"]
    owned = entry["fieldsV1"]["f:spec"]["f:imagePullSecrets"]
    assert owned == {".": {}, 'k:{"name":""}': {}}


def _client_side(spec: dict[str, Any], stated: Any) -> dict[str, Any]:
    """Return an object as kubectl's client-side apply leaves it."""
    text = stated if isinstance(stated, str) else json.dumps(stated)
    live = _wish(spec, annotations={LAST_APPLIED: text})
    record_update(
        None,
        live,
        type=THING,
        api_version="v1",
        manager="kubectl-client-side-apply",
        now=EARLY,
    )
    return live


def test_kubectl_takes_over_what_it_applied_from_the_client() -> None:
    """Fields of the annotation that still have their value are no conflicts for kubectl."""
    live = _client_side({"text": "a"}, _wish({"text": "a"}))
    wish = _wish({"text": "b"}, annotations={LAST_APPLIED: "x"})
    result = _apply(live, _wish({"text": "b"}), "kubectl")
    assert result["spec"] == {"text": "b"}
    want = '{"apiVersion":"v1","kind":"T","metadata":{"name":"t"},"spec":{"text":"b"}}\n'
    assert result["metadata"]["annotations"][LAST_APPLIED] == want
    forced = _apply(live, wish, "kubectl", force=True)
    assert forced["metadata"]["annotations"][LAST_APPLIED] == want
    with pytest.raises(StatusError):
        _apply(live, _wish({"text": "b"}), "other")


@pytest.mark.parametrize(
    "stated",
    [
        pytest.param(_wish({"text": "other"}), id="another value"),
        pytest.param({**_wish({"text": "a"}), "apiVersion": "v2"}, id="another version"),
        pytest.param(_wish({"text": "a", "nope": 1}), id="an unknown field"),
        pytest.param("{", id="no JSON"),
        pytest.param([], id="no object"),
    ],
)
def test_kubectl_takes_over_nothing_else(stated: Any) -> None:
    """An annotation that does not fit the object hands nothing over."""
    live = _client_side({"text": "a"}, stated)
    with pytest.raises(StatusError) as caught:
        _apply(live, _wish({"text": "b"}), "kubectl")
    assert caught.value.code == 409


def test_an_annotation_that_grows_too_large_goes() -> None:
    """Annotations have a limit; the last applied configuration is what gives way."""
    live = _client_side({"text": "a"}, _wish({"text": "a"}))
    result = _apply(live, _wish({"text": "b" * (256 * 1024)}), "kubectl")
    assert result["metadata"]["annotations"] == {}


_NAMES = st.sampled_from(["a", "b", "c"])
_ITEMS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": _NAMES}, optional={"value": _NAMES}
)


def _name_of(item: dict[str, Any]) -> str:
    return str(item["name"])


_LISTS: st.SearchStrategy[Any] = st.lists(_ITEMS, max_size=3, unique_by=_name_of)
_SPECS = st.fixed_dictionaries(
    {},
    optional={
        "text": _NAMES,
        "list": st.lists(_NAMES, max_size=2),
        "whole": st.dictionaries(_NAMES, _NAMES),
        "set": st.lists(_NAMES, unique=True),
        "deep": st.fixed_dictionaries(
            {}, optional={"a": _NAMES, "labels": st.dictionaries(_NAMES, _NAMES)}
        ),
        "items": _LISTS,
    },
)
_STORIES = st.lists(st.tuples(st.sampled_from(["x", "y"]), _SPECS), max_size=3)


def _tell(story: list[tuple[str, Any]]) -> dict[str, Any]:
    live = _apply(None, _wish({"count": 1}), "base")
    for manager, spec in story:
        live = _apply(live, _wish(spec), manager, force=True)
    return live


@given(_STORIES, _SPECS)
@settings(deadline=None, max_examples=80)
def test_apply_is_idempotent(story: list[tuple[str, Any]], spec: Any) -> None:
    """The same configuration a second time changes nothing and meets no conflict."""
    once = _apply(_tell(story), _wish(spec), force=True)
    assert _apply(once, _wish(spec), now=LATE) == once


@given(_STORIES, _SPECS)
@settings(deadline=None, max_examples=80)
def test_what_is_applied_is_there(story: list[tuple[str, Any]], spec: Any) -> None:
    """After a forced apply every value of the configuration is in the object."""
    found = _apply(_tell(story), _wish(spec), force=True).get("spec", {})
    for name in ("text", "list", "whole"):
        if name in spec:
            assert found[name] == spec[name]
    named = {item["name"]: item for item in found.get("items") or []}
    for item in spec.get("items", []):
        assert item.items() <= named[item["name"]].items()
    for name, value in spec.get("deep", {}).get("labels", {}).items():
        assert found["deep"]["labels"][name] == value


@given(_SPECS, st.sets(st.sampled_from(["text", "list", "whole", "set", "deep", "items"])))
@settings(deadline=None, max_examples=100)
def test_disjoint_applies_do_not_conflict_and_commute(spec: Any, chosen: set[str]) -> None:
    """Two managers that want different fields get along in any order."""
    first = {name: value for name, value in spec.items() if name in chosen}
    second = {name: value for name, value in spec.items() if name not in chosen}
    base = _apply(None, _wish({"count": 1}), "base")
    one = _apply(_apply(base, _wish(first), "x"), _wish(second), "y")
    other = _apply(_apply(base, _wish(second), "y"), _wish(first), "x")
    assert one == other


@given(_SPECS)
@settings(deadline=None, max_examples=100)
def test_an_apply_over_ones_own_update_is_no_change(spec: Any) -> None:
    """What a manager created with an update it may apply as it is: both entries own it then."""
    live = _wish({"count": 1, **copy.deepcopy(spec)})
    record_update(None, live, type=THING, api_version="v1", manager="m", now=EARLY)
    result = _apply(live, _wish({"count": 1, **spec}), "m")
    assert result["spec"] == live["spec"]
    assert _owners(result).keys() == {"m Apply", "m Update"}
    assert _owners(result)["m Update"] == _owners(live)["m Update"]


def test_ports_without_protocol_are_told_apart_by_its_default() -> None:
    """The published types say that a port without protocol is TCP."""
    service = TYPES["io.k8s.api.core.v1.Service"]
    wish = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "s"},
        "spec": {"ports": [{"port": 53}, {"port": 53, "protocol": "UDP"}]},
    }
    result = _apply(None, wish, type=service)
    assert list(result["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:ports"]) == [
        'k:{"port":53,"protocol":"TCP"}',
        'k:{"port":53,"protocol":"UDP"}',
    ]
