"""JSON patches, as kube-apiserver carries them out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from keepclose.apiserver.patch.json_patch import MAX_OPERATIONS, apply_json_patch
from keepclose.apiserver.status_errors import StatusError

DOCUMENT: dict[str, Any] = {
    "spec": {"ports": [{"port": 80}, {"port": 443}], "type": "ClusterIP", "on": True},
    "metadata": {"labels": {"a/b": "1", "c~d": "2"}},
}


def _patch(*operations: Any) -> dict[str, Any]:
    return apply_json_patch(DOCUMENT, json.dumps(operations).encode())


@pytest.mark.parametrize(
    ("operation", "path", "want"),
    [
        pytest.param(
            {"op": "add", "path": "/spec/name", "value": "x"}, ("spec", "name"), "x", id="a field"
        ),
        pytest.param(
            {"op": "add", "path": "/spec/ports/1", "value": 7},
            ("spec", "ports"),
            [{"port": 80}, 7, {"port": 443}],
            id="before an item",
        ),
        pytest.param(
            {"op": "add", "path": "/spec/ports/2", "value": 7},
            ("spec", "ports"),
            [{"port": 80}, {"port": 443}, 7],
            id="right behind the last item",
        ),
        pytest.param(
            {"op": "add", "path": "/spec/ports/-", "value": 7},
            ("spec", "ports"),
            [{"port": 80}, {"port": 443}, 7],
            id="at the end",
        ),
        pytest.param(
            {"op": "add", "path": "/spec/ports/-1", "value": 7},
            ("spec", "ports"),
            [{"port": 80}, {"port": 443}, 7],
            id="counted from behind, the end is minus one",
        ),
        pytest.param(
            {"op": "add", "path": "/spec/none"}, ("spec", "none"), None, id="no value is null"
        ),
        pytest.param(
            {"op": "remove", "path": "/spec/ports/-1"},
            ("spec", "ports"),
            [{"port": 80}],
            id="removal counted from behind",
        ),
        pytest.param(
            {"op": "remove", "path": "/metadata/labels/a~1b"},
            ("metadata", "labels"),
            {"c~d": "2"},
            id="a slash in a name",
        ),
        pytest.param(
            {"op": "replace", "path": "/metadata/labels/c~0d", "value": "3"},
            ("metadata", "labels"),
            {"a/b": "1", "c~d": "3"},
            id="a tilde in a name",
        ),
        pytest.param(
            {"op": "replace", "path": "/spec/missing", "value": 1},
            ("spec", "missing"),
            1,
            id="a missing field may be replaced",
        ),
        pytest.param(
            {"op": "move", "from": "/spec/type", "path": "/spec/kind"},
            ("spec",),
            {"ports": [{"port": 80}, {"port": 443}], "on": True, "kind": "ClusterIP"},
            id="move",
        ),
        pytest.param(
            {"op": "copy", "from": "/spec/ports/-1", "path": "/spec/last"},
            ("spec", "last"),
            {"port": 443},
            id="copy",
        ),
        pytest.param(
            {"op": "copy", "from": "/spec/missing", "path": "/spec/last"},
            ("spec", "last"),
            None,
            id="a copy of what is missing is null",
        ),
        pytest.param(
            {"op": "replace", "path": "", "value": {"new": 1}}, ("new",), 1, id="the whole document"
        ),
        pytest.param(
            {"op": "test", "path": "/spec/ports/0/port", "value": 80},
            ("spec", "type"),
            "ClusterIP",
            id="a test that passes",
        ),
        pytest.param(
            {"op": "test", "path": "/spec/missing", "value": None},
            ("spec", "type"),
            "ClusterIP",
            id="what is missing is null",
        ),
        pytest.param(
            {"op": "test", "path": "", "value": DOCUMENT},
            ("spec", "type"),
            "ClusterIP",
            id="a test of the whole document",
        ),
    ],
)
def test_an_operation_changes_its_target(
    operation: dict[str, Any], path: tuple[str, ...], want: Any
) -> None:
    """Each operation does what the RFC and kube-apiserver say."""
    found: Any = _patch(operation)
    for part in path:
        found = found[part]
    assert found == want


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param({"op": "test", "path": "/spec/type", "value": "NodePort"}, id="another value"),
        pytest.param({"op": "test", "path": "/spec/on", "value": 1}, id="true is not one"),
        pytest.param({"op": "test", "path": "/spec/ports", "value": [1]}, id="another list"),
        pytest.param({"op": "test", "path": "/spec/ports/9", "value": 1}, id="no such item"),
        pytest.param({"op": "add", "path": "/spec/no/x", "value": 1}, id="below what is missing"),
        pytest.param({"op": "add", "path": "/spec/type/x", "value": 1}, id="below a string"),
        pytest.param({"op": "add", "path": "/spec/ports/3", "value": 1}, id="behind the end"),
        pytest.param({"op": "add", "path": "/spec/ports/-4", "value": 1}, id="before the start"),
        pytest.param({"op": "add", "path": "/spec/ports/x", "value": 1}, id="no index"),
        pytest.param({"op": "add", "path": "", "value": {}}, id="an addition needs a name"),
        pytest.param({"op": "add", "value": {}}, id="no path"),
        pytest.param({"op": "remove", "path": "/spec/no"}, id="nothing to remove"),
        pytest.param({"op": "remove", "path": "/spec/ports/-"}, id="nothing at the end"),
        pytest.param({"op": "replace", "path": "/spec/ports/2", "value": 1}, id="no such place"),
        pytest.param({"op": "move", "from": "/spec/no", "path": "/spec/x"}, id="nothing to move"),
        pytest.param({"op": "move", "path": "/spec/x"}, id="move from nowhere"),
        pytest.param({"op": "frob", "path": "/spec"}, id="unknown operation"),
        pytest.param({"path": "/spec"}, id="no operation"),
    ],
)
def test_what_does_not_fit_is_refused(operation: dict[str, Any]) -> None:
    """The answer is 422 with the text that a real server gives for all of these."""
    with pytest.raises(StatusError) as caught:
        _patch({"op": "add", "path": "/spec/first", "value": 1}, operation)
    want = "the server rejected our request due to an error in our request"
    assert (caught.value.code, caught.value.reason) == (422, "Invalid")
    assert caught.value.message == want


@pytest.mark.parametrize(
    ("body", "want"),
    [
        pytest.param(
            b'{"op":"x"}',
            "error decoding patch: json: cannot unmarshal object into Go value of type"
            " []handlers.jsonPatchOp",
            id="an object",
        ),
        pytest.param(
            b'["x"]',
            "error decoding patch: json: cannot unmarshal string into Go value of type"
            " handlers.jsonPatchOp",
            id="a string among the operations",
        ),
        pytest.param(
            b"[1]",
            "error decoding patch: json: cannot unmarshal number into Go value of type"
            " handlers.jsonPatchOp",
            id="a number among the operations",
        ),
    ],
)
def test_a_body_that_is_no_patch_is_a_bad_request(body: bytes, want: str) -> None:
    """The answer says what was found in place of a list of operations."""
    with pytest.raises(StatusError) as caught:
        apply_json_patch(DOCUMENT, body)
    assert (caught.value.code, caught.value.message) == (400, want)


def test_a_broken_body_is_a_bad_request() -> None:
    """What is no JSON cannot be a patch."""
    with pytest.raises(StatusError) as caught:
        apply_json_patch(DOCUMENT, b"[{]")
    assert caught.value.code == 400
    assert caught.value.message.startswith("error decoding patch: ")


def test_a_document_cannot_become_a_list() -> None:
    """An object stays an object."""
    with pytest.raises(StatusError) as caught:
        _patch({"op": "replace", "path": "", "value": [1]})
    assert caught.value.code == 422


def test_there_is_a_limit_of_operations() -> None:
    """One operation too many is refused before anything is done."""
    one = {"op": "test", "path": "/spec/type", "value": "ClusterIP"}
    assert _patch(*[one] * MAX_OPERATIONS) == DOCUMENT
    with pytest.raises(StatusError) as caught:
        _patch(*[one] * (MAX_OPERATIONS + 1))
    assert caught.value.code == 413
    assert caught.value.message == (
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000,"
        " got 10001"
    )


def test_the_document_is_not_changed() -> None:
    """Operations work on a copy, also when a later one fails."""
    before = json.dumps(DOCUMENT)
    patched = _patch({"op": "add", "path": "/spec/ports/0/name", "value": "x"})
    with pytest.raises(StatusError):
        _patch({"op": "remove", "path": "/spec"}, {"op": "remove", "path": "/spec"})
    assert patched["spec"]["ports"][0] == {"port": 80, "name": "x"}
    assert json.dumps(DOCUMENT) == before
