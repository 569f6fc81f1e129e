"""Sets of fields."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.apiserver.patch.field_sets import (
    FieldSet,
    FieldSetError,
    contains,
    decode_fields,
    difference,
    encode_fields,
    intersection,
    paths,
    set_of,
    show_path,
    union,
    without_subtrees,
)

_STEPS = st.sampled_from(["f:a", "f:b", 'k:{"n":1}', 'v:"x"'])
_PATHS = st.sets(st.lists(_STEPS, min_size=1, max_size=3).map(tuple), max_size=6)


def _build(members: set[tuple[str, ...]]) -> FieldSet:
    built: FieldSet = {}
    for member in members:
        one: FieldSet = {}
        for step in reversed(member):
            one = {step: one}
        built = union(built, one)
    return built


@given(_PATHS, _PATHS)
@settings(deadline=None, max_examples=100)
def test_sets_of_fields_are_sets_of_paths(
    left: set[tuple[str, ...]], right: set[tuple[str, ...]]
) -> None:
    """Union, intersection and difference do with trees what they do with plain sets."""
    one, two = _build(left), _build(right)
    assert set(paths(one)) == left
    assert set(paths(union(one, two))) == left | right
    assert set(paths(intersection(one, two))) == left & right
    assert set(paths(difference(one, two))) == left - right
    assert all(contains(one, path) == (path in left) for path in left | right)


@given(_PATHS, _PATHS)
@settings(deadline=None, max_examples=80)
def test_subtrees_go_with_their_roots(
    left: set[tuple[str, ...]], right: set[tuple[str, ...]]
) -> None:
    """Whatever is at or below a path of the second set goes."""
    want = {path for path in left if not any(path[: len(root)] == root for root in right)}
    assert set(paths(without_subtrees(_build(left), _build(right)))) == want


@given(_PATHS)
@settings(deadline=None, max_examples=80)
def test_sets_survive_the_wire(members: set[tuple[str, ...]]) -> None:
    """What is written as JSON is read back as the same set."""
    fields = encode_fields(_build(members))
    assert decode_fields(json.loads(json.dumps(fields))) == fields
    assert set(paths(decode_fields(fields))) == members


@given(_PATHS, _PATHS)
@settings(deadline=None, max_examples=100)
def test_sets_stay_in_order(left: set[tuple[str, ...]], right: set[tuple[str, ...]]) -> None:
    """Sets that are made of ordered sets are ordered."""
    one, two = encode_fields(_build(left)), encode_fields(_build(right))
    for made in (union(one, two), difference(one, two), intersection(one, two)):
        assert json.dumps(made) == json.dumps(encode_fields(made))


def test_a_difference_that_takes_nothing_is_the_same_set() -> None:
    """No copy is made where nothing goes, so that callers can tell by identity."""
    fields = set_of("a.b", "c")
    assert difference(fields, set_of("a", "c.d", "e")) is fields
    assert difference(fields, {}) is fields


@pytest.mark.parametrize(
    ("sent", "want"),
    [
        pytest.param({"f:a": {}}, {"f:a": {}}, id="a leaf"),
        pytest.param({"f:a": {".": {}}}, {"f:a": {}}, id="a leaf with a dot"),
        pytest.param({".": {}, "f:a": {}}, {"f:a": {}}, id="the whole object is never owned"),
        pytest.param(
            {"f:a": {".": {}, "f:b": {}}}, {"f:a": {".": {}, "f:b": {}}}, id="container and field"
        ),
        pytest.param(
            {'k:{"b": 2, "a":"<"}': {}}, {'k:{"a":"\\u003c","b":2}': {}}, id="keys are respelled"
        ),
        pytest.param({"v: 1": {}}, {"v:1": {}}, id="values are respelled"),
        pytest.param({"i:3": {}}, {"i:3": {}}, id="an index"),
        pytest.param({"x:what": {"f:a": {}}, "f:b": {}}, {"f:b": {}}, id="unknown steps go"),
    ],
)
def test_fields_are_read_in_their_one_spelling(sent: FieldSet, want: FieldSet) -> None:
    """However a client spells a set, it is stored in one way."""
    assert decode_fields(sent) == want


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({"a": {}}, id="no colon"),
        pytest.param({"k:[1]": {}}, id="a key that is a list"),
        pytest.param({"k:{": {}}, id="a broken key"),
        pytest.param({"v:": {}}, id="no value"),
        pytest.param({"i:x": {}}, id="no index"),
        pytest.param({"f:a": 1}, id="no tree"),
        pytest.param([], id="a list"),
    ],
)
def test_broken_fields_are_told(sent: Any) -> None:
    """A set that cannot be read is an error of its own kind."""
    with pytest.raises(FieldSetError):
        decode_fields(sent)


def test_steps_are_ordered_as_a_server_orders_them() -> None:
    """Fields before keys before values, numbers by size, a container before what it holds."""
    fields: FieldSet = {
        "v:true": {},
        'v:"b"': {},
        "v:10": {},
        "v:9": {},
        "v:null": {},
        "i:1": {},
        'k:{"p":443}': {},
        'k:{"p":80}': {"f:z": {}, ".": {}, "f:a": {}},
        "f:b": {},
        "f:a": {},
    }
    want = ["f:a", "f:b", 'k:{"p":80}', 'k:{"p":443}']
    want += ["v:9", "v:10", 'v:"b"', "v:true", "v:null", "i:1"]
    encoded = encode_fields(fields)
    assert list(encoded) == want
    assert list(encoded['k:{"p":80}']) == [".", "f:a", "f:z"]


@pytest.mark.parametrize(
    ("path", "want"),
    [
        pytest.param(["f:spec", "f:replicas"], ".spec.replicas", id="fields"),
        pytest.param(
            ["f:ports", 'k:{"protocol":"TCP","port":80}', "f:name"],
            '.ports[port=80,protocol="TCP"].name',
            id="keys",
        ),
        pytest.param(["f:finalizers", 'v:"a"'], '.finalizers[="a"]', id="a value"),
        pytest.param(["f:a", "i:2"], ".a[2]", id="an index"),
    ],
)
def test_paths_are_shown_as_in_messages(path: list[str], want: str) -> None:
    """People see paths with dots and brackets."""
    assert show_path(path) == want


def test_nobody_owns_the_whole_object() -> None:
    """The empty path is in no set."""
    assert not contains(set_of("a"), [])
