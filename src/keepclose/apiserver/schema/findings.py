"""What a check of a body finds, and its text: wrong types, unknown fields, duplicate fields.

A finding starts at the value and travels outwards; paths are built only on the way. A decoded value
no longer shows that a field was given twice, so the text is parsed again, and only when the result
matters. Texts, order and limits are those of the decoder in kube-apiserver: in the order of the
document, each finding once, at most a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.types import ANY_TYPE, Type, TypeForm
from keepclose.model.json_values import JsonDepthError, check_depth

# At most so many unknown or duplicate fields are reported, as in kube-apiserver.
MAX_FINDINGS: Final = 100
_JSON_TYPES: Final = {str: "string", bool: "bool", list: "array", dict: "object"}


class ValueProblem(msgspec.Struct):
    """One finding; its paths grow from the inside to the outside."""

    # Whether the decoder stops here. Otherwise it goes on, and the first finding counts.
    final: bool = False
    is_unknown: bool = False
    # The JSON type of the value, and Go's name of the expected type.
    word: str = ""
    go_type: str = ""
    # A message without a path.
    text: str = ""
    struct: str = ""
    stack: list[str] = []
    path: list[str] = []


Findings = list[ValueProblem] | None
Checker = Callable[[Any, Any, Any], Findings]


def json_type_name(value: Any) -> str:
    """Return Go's name of a JSON value's type."""
    return _JSON_TYPES.get(type(value), "number")


def find_wrong(value: Any, go_type: str) -> list[ValueProblem]:
    """Return the finding that a value does not have the expected type."""
    return [ValueProblem(word=json_type_name(value), go_type=go_type)]


def join_findings(findings: Findings, inner: list[ValueProblem]) -> list[ValueProblem]:
    """Return all findings, with no more unknown fields than are reported."""
    if findings is None:
        return inner
    if len(findings) < MAX_FINDINGS:
        findings += inner
    else:
        findings += [problem for problem in inner if not problem.is_unknown]
    return findings


def find_too_deep(value: Any) -> Findings:
    """Return a finding when a value of any type is nested beyond the limit."""
    try:
        check_depth(value)
    except JsonDepthError as error:
        return [ValueProblem(final=True, text=str(error))]
    return None


class _Pairs(list[tuple[str, Any]]):
    """The fields of an object in the order of the text, duplicates included."""

    __slots__ = ()


def strict_texts(shape: Type, body: bytes, *, unknown: list[str]) -> list[str]:
    """Return the findings of a body that was checked already: `unknown field "spec.foo"`.

    `unknown` are the paths that the check found; they are the result unless fields are duplicate.
    """
    if not has_duplicates(body):
        return [f"unknown field {_quoted(path)}" for path in unknown]
    texts: dict[str, None] = {}
    _collect(shape, _read(body), [], texts)
    return list(texts)


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of all duplicate fields in a text without a type, such as a patch."""
    if not has_duplicates(body):
        return []
    texts: dict[str, None] = {}
    _collect(ANY_TYPE, _read(body), [], texts)
    start, end = len('duplicate field "'), -1
    return [text[start:end] for text in texts]


def has_duplicates(body: bytes) -> bool:
    """Return whether an object has a field twice; False for a text that is not JSON."""
    objects: list[list[tuple[str, Any]]] = []
    try:
        # No Python code runs for each object: the text of every write passes here.
        json.loads(body.decode(), object_pairs_hook=objects.append)
    except (ValueError, RecursionError):
        return False
    return sum(map(len, objects)) != sum(map(len, map(dict, objects)))


def _read(body: bytes) -> Any:
    return json.loads(body, object_pairs_hook=_Pairs)


def _collect(shape: Type, value: Any, path: list[str], texts: dict[str, None]) -> None:
    """Record findings up to the limit; paths are built only for those."""
    form = shape.form
    if isinstance(value, _Pairs) and form in (TypeForm.OBJECT, TypeForm.MAP, TypeForm.ANY):
        # A named type without structure, such as RawExtension, is kept as it is and not checked.
        if form is TypeForm.ANY and shape.name:
            return
        seen = set()
        for key, child in value:
            if len(texts) >= MAX_FINDINGS:
                return
            child_type = ANY_TYPE if form is TypeForm.ANY else shape.items
            if form is TypeForm.OBJECT:
                child_type = shape.fields.get(key)
            path.append(f".{key}")
            if child_type is None:
                texts[f"unknown field {_spell(path)}"] = None
            else:
                if key in seen:
                    texts[f"duplicate field {_spell(path)}"] = None
                seen.add(key)
                _collect(child_type, child, path, texts)
            path.pop()
    elif type(value) is list and (form is TypeForm.ANY or shape.items is not None):
        for index, child in enumerate(value):
            if len(texts) >= MAX_FINDINGS:
                return
            path.append(f"[{index}]")
            _collect(shape.items or shape, child, path, texts)
            path.pop()


def _spell(path: list[str]) -> str:
    return _quoted("".join(path).removeprefix("."))


def _quoted(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)
