"""Tests of how texts are split into documents and objects."""

from __future__ import annotations

import json

import pytest

from keepclose.cli.manifests import documents
from keepclose.cli.manifests.documents import DocumentError, RawObject, line_of, read_documents

TEMPLATE_FIX = "this looks like a template: render it first, for example with helm template"
LONG_JSON = json.dumps({"kind": "List", "items": [{"a": 1}], "pad": " " * documents.JSON_LINES_MAX})


def outline(text: str, *, is_json: bool = False) -> list[object]:
    """Return (document, item, line, value) of each raw_object, and flaws as they are."""
    return [
        (one.document, one.item, one.line, one.value) if isinstance(one, RawObject) else one
        for one in read_documents(text, is_json=is_json)
    ]


def raw_object(text: str, *, is_json: bool = False, index: int = 0) -> RawObject:
    """Return one raw_object of a text."""
    one = read_documents(text, is_json=is_json)[index]
    assert isinstance(one, RawObject), one
    return one


@pytest.mark.parametrize(
    ("text", "want_outline"),
    [
        pytest.param("", [], id="nothing"),
        pytest.param("# only a comment\n---\n", [], id="nothing but a comment"),
        pytest.param("a: 1", [(1, None, 1, {"a": 1})], id="one document"),
        pytest.param("---\na: 1", [(1, None, 2, {"a": 1})], id="a line before the first document"),
        pytest.param(
            "%YAML 1.1\n# c\n---\na: 1", [(1, None, 4, {"a": 1})], id="a directive before it"
        ),
        pytest.param(
            "a: 1\n---\n# empty\n---\r\n\r\nb: 2\r\n",
            [(1, None, 1, {"a": 1}), (3, None, 6, {"b": 2})],
            id="an empty document is counted and skipped",
        ),
        pytest.param(
            "a: |\n  ---\n  text\nb: --- x",
            [(1, None, 1, {"a": "---\ntext\n", "b": "--- x"})],
            id="dashes inside of a text",
        ),
        pytest.param("--- {a: 1}", [(1, None, 1, {"a": 1})], id="a value beside the dashes"),
        pytest.param("- a", [(1, None, 1, ["a"])], id="a list is no List"),
        pytest.param(
            "kind: List\nitems:\n- a: 1\n\n- b: 2\n-",
            [(1, 0, 3, {"a": 1}), (1, 1, 5, {"b": 2}), (1, 2, 6, None)],
            id="the items of a List",
        ),
        pytest.param("kind: List\nitems:", [], id="a List of nothing"),
        pytest.param(
            "apiVersion: v1\nkind: PodList\nitems:\n- kind: X\n- {}",
            [
                (1, 0, 4, {"apiVersion": "v1", "kind": "X"}),
                (1, 1, 5, {"apiVersion": "v1", "kind": "Pod"}),
            ],
            id="the items of a PodList need no kind",
        ),
        pytest.param(
            "kind: AllowList\nspec: 1",
            [(1, None, 1, {"kind": "AllowList", "spec": 1})],
            id="a kind that only sounds like a List",
        ),
        pytest.param(
            "kind: [List]", [(1, None, 1, {"kind": ["List"]})], id="a kind that is no text"
        ),
        pytest.param(
            "a: 1\n---\nb: [\n---\nc: {d: 1, d: 2}\n---\ne: 3",
            [
                (1, None, 1, {"a": 1}),
                DocumentError(
                    2, "not valid YAML: expected a value", None, 4, 1, "close the bracket or brace"
                ),
                DocumentError(
                    3,
                    'the key "d" is repeated in one map, first on line 5',
                    None,
                    5,
                    11,
                    "remove one of the two",
                ),
                (4, None, 7, {"e": 3}),
            ],
            id="a broken document does not hide the next",
        ),
        pytest.param(
            "kind: List\nitems:\n- {a: 1, a: 2}\n- b: 3",
            [
                DocumentError(
                    1,
                    'the key "a" is repeated in one map, first on line 3',
                    0,
                    3,
                    10,
                    "remove one of the two",
                ),
                (1, 1, 4, {"b": 3}),
            ],
            id="a broken item does not hide the next",
        ),
        pytest.param(
            "kind: List\nitems: []\nitems: []",
            [
                DocumentError(
                    1,
                    'the key "items" is repeated in one map, first on line 2',
                    None,
                    3,
                    1,
                    "remove one of the two",
                )
            ],
            id="a broken List",
        ),
        pytest.param(
            "{{- if .Values.on }}\na: 1\n---\nb: {{ .Values.b }}\n",
            [
                DocumentError(1, "not valid YAML: expected a value", None, 1, 3, TEMPLATE_FIX),
                DocumentError(
                    2, "a key must be a text, not a list or a map", None, 4, 5, TEMPLATE_FIX
                ),
            ],
            id="a template",
        ),
        pytest.param("{a: 1}", [(1, None, 1, {"a": 1})], id="YAML with braces"),
        pytest.param(
            '{"a": 1}\n---\n{"b": 2}',
            [(1, None, 1, {"a": 1}), (2, None, 3, {"b": 2})],
            id="JSON in YAML documents",
        ),
        pytest.param(
            '{"a": 1}\n{"b": 2}',
            [(1, None, 1, {"a": 1}), (2, None, 2, {"b": 2})],
            id="JSON in a row, not said to be JSON",
        ),
        pytest.param(
            '{"a": 1}\n{"b" 2}',
            [
                (1, None, 1, {"a": 1}),
                DocumentError(2, "not valid JSON: expected ':' delimiter", None, 2, 6),
            ],
            id="broken JSON in a row, not said to be JSON",
        ),
    ],
)
def test_documents_are_read(text: str, want_outline: list[object]) -> None:
    """Documents and items come in their order, with their numbers and lines."""
    assert outline(text) == want_outline


@pytest.mark.parametrize(
    ("text", "want_outline"),
    [
        pytest.param(
            '{"kind": "List",\n "items": [\n{"a": 1e1},\n {"b": 2}]}',
            [(1, 0, 3, {"a": 10.0}), (1, 1, 4, {"b": 2})],
            id="the items of a List",
        ),
        pytest.param('{"kind": "List"}', [], id="a List of nothing"),
        pytest.param(
            '{"kind": "PodList", "apiVersion": "v1", "items": [{}, 5]}',
            [(1, 0, 1, {"apiVersion": "v1", "kind": "Pod"}), (1, 1, 1, 5)],
            id="the items of a PodList",
        ),
        pytest.param(
            '\n{"kind": "AllowList"}', [(1, None, 2, {"kind": "AllowList"})], id="an AllowList"
        ),
        pytest.param(
            "a: 1", [DocumentError(1, "not valid JSON: expected value", None, 1, 1)], id="YAML"
        ),
        pytest.param(
            '{"kind": "List", "items": [\n{"a": 1, "a": 2}, {}]}',
            [
                DocumentError(
                    1,
                    'the key "a" is repeated in one map, first on line 2',
                    0,
                    2,
                    10,
                    "remove one of the two",
                ),
                (1, 1, 2, {}),
            ],
            id="a key that stands twice",
        ),
        pytest.param(
            r'{"a": "\ud83d\ude00"}',
            [(1, None, 1, {"a": "\U0001f600"})],
            id="an escape that YAML does not have",
        ),
        pytest.param(
            r'{"a": "\ud83d\ude00", "a": 1}',
            [
                DocumentError(
                    1, 'the key "a" is repeated in one map', None, 1, fix="remove one of the two"
                ),
                (1, None, 1, {"a": 1}),
            ],
            id="a key that stands twice where there are no lines",
        ),
    ],
)
def test_json_is_read(text: str, want_outline: list[object]) -> None:
    """JSON gives the same as YAML, with the values of JSON."""
    assert outline(text, is_json=True) == want_outline


def test_long_json_has_no_lines() -> None:
    """Items of JSON that only a program writes have no lines, and are still read."""
    assert outline(LONG_JSON, is_json=True) == [(1, 0, None, {"a": 1})]


SERVICE = """\
# the shop
apiVersion: v1
kind: Service
metadata:
  name: web
  labels:
    a: b
    bad key: c
    d: bad value
spec:
  ports:
  - name: http
    port: 80

  - name: https
    port: 443
"""
LIST = "kind: List\nitems:\n" + "".join(
    ("- " if number == 0 else "  ") + line
    for number, line in enumerate(SERVICE.splitlines(True)[1:])
)


@pytest.mark.parametrize(
    ("field", "value", "want_line"),
    [
        pytest.param("spec.ports[1].port", None, 16, id="a member of an item"),
        pytest.param("spec.ports[1]", None, 15, id="an item"),
        pytest.param("spec.ports[2].port", None, 11, id="an item that is not there"),
        pytest.param("spec.type", None, 10, id="a member that is not there"),
        pytest.param("status.loadBalancer", None, 2, id="nothing of it is there"),
        pytest.param("metadata.name.first", None, 5, id="a member of a text"),
        pytest.param("metadata.labels[a]", None, 7, id="a key of a map"),
        pytest.param("metadata.labels", None, 6, id="a map"),
        pytest.param("metadata.labels", "bad key", 8, id="the bad key of a map"),
        pytest.param("metadata.labels", "bad value", 9, id="the bad value of a map"),
        pytest.param("metadata.labels", "other", 6, id="a value that the map does not have"),
        pytest.param("metadata.labels", ["x"], 6, id="a value that is no text"),
    ],
)
def test_line_of_field(field: str, value: object, want_line: int) -> None:
    """The line of a field is found, or that of the nearest thing around it."""
    for text, shift in ((SERVICE, 0), (f"a: 1\n---\n{SERVICE}", 2), (LIST, 1)):
        source = raw_object(text, index=1 if shift == 2 else 0).source
        assert source is not None
        assert line_of(source, field, value) == want_line + shift


def test_line_of_field_in_json() -> None:
    """Lines are found in JSON as well."""
    text = '\n{"kind": "List", "items": [{}, {\n"spec": {\n  "type": 1}}]}'
    source = raw_object(text, is_json=True, index=1).source

    assert source is not None
    assert line_of(source, "spec.type") == 4


def test_line_of_object_whose_alias_points_elsewhere() -> None:
    """An item that cannot be read without its List has the line at which it starts."""
    text = "x: &x {a: 1}\nkind: List\nitems:\n- b: 1\n  spec: *x\n"
    one = raw_object(text)

    assert one.value == {"b": 1, "spec": {"a": 1}}
    assert one.source is not None
    assert line_of(one.source, "spec") == 4
