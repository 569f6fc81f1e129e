"""Tests of reading objects and lists."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.kube.errors import BrokenStream, UnreadableObject
from keepclose.kube.requests import NODES, PODS, SERVICES, Kind
from keepclose.kube.watch.list_decoding import decode_object, decode_page, kind_and_name_of
from support.builders import node, pod, service

RAW_PODS = Kind("", "v1", "pods", "Pod", True, msgspec.Raw)
PLAIN_PODS: Kind[dict[str, Any]] = Kind("", "v1", "pods", "Pod", True, dict)


def listed(items: list[Any] | None, **metadata: Any) -> bytes:
    """Return the body of a list."""
    found = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
    return msgspec.json.encode(found)


def test_a_list_is_read_with_its_metadata() -> None:
    """Items are typed; version, token and the rest come along."""
    body = listed(
        [pod("a"), pod("b")], resourceVersion="7", **{"continue": "t"}, remainingItemCount=3
    )
    page = decode_page(PODS, body, where="GET /x")
    assert page.items == [pod("a"), pod("b")]
    assert (page.resource_version, page.continue_token, page.remaining) == ("7", "t", 3)
    assert page.rejected == []


def test_items_need_not_say_their_kind() -> None:
    """The items of a list have neither apiVersion nor kind, the objects have both."""
    (read,) = decode_page(NODES, listed([{"metadata": {"name": "n1"}}]), where="x").items
    assert (read.api_version, read.kind, read.name) == ("v1", "Node", "n1")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(listed([]), id="an empty list"),
        pytest.param(listed(None), id="null instead of a list"),
        pytest.param(b'{"items":[],"metadata":null}', id="without metadata"),
    ],
)
def test_an_empty_list_is_empty(body: bytes) -> None:
    """Go writes an empty list in two ways."""
    page = decode_page(PODS, body, where="x")
    assert (page.items, page.resource_version, page.remaining) == ([], "", None)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{}", id="an object that is no list"),
        pytest.param(b"<html>", id="no JSON"),
        pytest.param(b"", id="nothing"),
        pytest.param(b'{"items":{}}', id="items that are no list"),
        pytest.param(b'{"items":[{}', id="half an answer"),
        pytest.param(b'{"items":' + b"[" * 100_000, id="nested too deeply"),
    ],
)
def test_what_is_no_list_never_passes_for_an_empty_one(body: bytes) -> None:
    """An answer that is no list is an error: a cache would drop all it holds."""
    with pytest.raises(BrokenStream) as raised:
        decode_page(PODS, body, where="GET /api/v1/pods")
    assert str(raised.value).startswith("GET /api/v1/pods: the answer is not a list: ")


def test_nulls_count_as_absent() -> None:
    """Null members, which Go leaves behind, do not spoil an object."""
    odd = {"metadata": {"name": "a", "labels": None}, "spec": None, "status": {"phase": "Running"}}
    page = decode_page(PODS, listed([odd]), where="x")
    assert [(p.metadata.name, p.status.phase) for p in page.items] == [("a", "Running")]
    assert page.rejected == []


def test_one_bad_object_does_not_hide_the_others() -> None:
    """What cannot be read is set aside with its name and the cause."""
    bad = {"metadata": {"name": "bad", "namespace": "shop"}, "spec": {"ports": [{"port": "80"}]}}
    nodeless = {"metadata": {"name": 7}, "spec": 5}
    body = listed([service("a"), bad, "text", service("b"), nodeless], resourceVersion="9")
    page = decode_page(SERVICES, body, where="x")
    assert [s.metadata.name for s in page.items] == ["a", "b"]
    assert page.resource_version == "9"
    assert [(name, str(cause)) for name, cause in page.rejected] == [
        ("shop/bad", 'spec.ports[0].port: Invalid value: "80": expected a number, got a string'),
        ("?", "object: Invalid value: null: is not a map"),
        ("7", "metadata.name: Invalid value: 7: expected a string, got a number"),
    ]


def test_untyped_kinds_keep_everything() -> None:
    """Raw items keep their bytes, plain ones all their members."""
    body = listed([{"metadata": {"name": "a"}, "extra": 1}])
    (raw,) = decode_page(RAW_PODS, body, where="x").items
    assert bytes(raw) == b'{"metadata":{"name":"a"},"extra":1}'
    (plain,) = decode_page(PLAIN_PODS, body, where="x").items
    assert plain == {"metadata": {"name": "a"}, "extra": 1}


def test_one_object_is_read() -> None:
    """An answer with one object gives it."""
    assert decode_object(NODES, msgspec.json.encode(node()), where="x") == node()
    assert decode_object(PLAIN_PODS, b'{"a":null}', where="x") == {"a": None}


def test_a_bad_object_is_an_error_with_its_cause() -> None:
    """One object that breaks its types raises the cause and the object's name."""
    body = b'{"metadata":{"name":"web","namespace":"shop"},"spec":{"type":1}}'
    with pytest.raises(UnreadableObject) as raised:
        decode_object(SERVICES, body, where="x")
    assert (
        str(raised.value)
        == "shop/web: spec.type: Invalid value: 1: expected a string, got a number"
    )


@pytest.mark.parametrize("body", [b"", b"ok", b"[]", b"null", b"7"])
def test_what_is_no_object_is_not_the_api(body: bytes) -> None:
    """An answer without an object names the request and what to check."""
    with pytest.raises(BrokenStream) as raised:
        decode_object(PODS, body, where="GET /a")
    assert str(raised.value) == (
        "GET /a: the answer is not a JSON object; check that the server is a Kubernetes API server"
    )


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b'{"metadata":{"name":"a","namespace":"b"}}', "b/a"),
        (b'{"metadata":{"name":"a"}}', "a"),
        (b'{"metadata":{"namespace":"b"}}', "b/?"),
        (b'{"metadata":[]}', "?"),
        (b"{", "?"),
    ],
)
def test_names_of_objects(data: bytes, want: str) -> None:
    """An object is named as far as it can be."""
    assert kind_and_name_of(data) == want


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "name", "labels", "spec", "status", "ports", "phase"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(st.lists(JSON_VALUES, max_size=4))
def test_no_item_is_lost_or_fatal(items: list[Any]) -> None:
    """Whatever a list holds, each item is read or rejected, and good ones always are read."""
    body = listed([*items, pod("good")])
    page = decode_page(PODS, body, where="x")
    assert len(page.items) + len(page.rejected) == len(items) + 1
    assert page.items[-1] == pod("good")
