"""What a strict reader has to say about a JSON text: fields given twice, fields that are not known.

A decoded value no longer tells that a field was given twice, so the text is read once more, and
only when the answer matters. Texts, order and limits are those of the decoder in a kube-apiserver:
in the order of the document, each finding once, at most a hundred.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.types import ANY_TYPE, Type, TypeForm
from keepclose.model.json_values import JsonDepthError, check_depth

# So many unknown or doubled fields are named, as by a kube-apiserver.
MAX_FINDINGS: Final = 100
_WORDS: Final = {str: "string", bool: "bool", list: "array", dict: "object"}


class ValueProblem(msgspec.Struct):
    """One finding; the paths grow from the inside to the outside."""

    # Whether the decoder stops here. Otherwise it reads on, and the first finding counts.
    final: bool = False
    is_unknown: bool = False
    # The JSON value that was met, and Go's name of the type that was due.
    word: str = ""
    go_type: str = ""
    # A message that names no place.
    text: str = ""
    struct: str = ""
    stack: list[str] = []
    path: list[str] = []


Found = list[ValueProblem] | None
Checker = Callable[[Any, Any, Any], Found]


def word_of(value: Any) -> str:
    """Return what Go's decoder calls a JSON value."""
    return _WORDS.get(type(value), "number")


def find_wrong(value: Any, go_type: str) -> list[ValueProblem]:
    """Return the finding that a value is of another type than is due."""
    return [ValueProblem(word=word_of(value), go_type=go_type)]


def join_findings(found: Found, inner: list[ValueProblem]) -> list[ValueProblem]:
    """Return all findings; of unknown fields no more than can be named."""
    if found is None:
        return inner
    if len(found) < MAX_FINDINGS:
        found += inner
    else:
        found += [problem for problem in inner if not problem.is_unknown]
    return found


def find_too_deep(value: Any) -> Found:
    """Find whether a value that no type bounds is nested beyond the limit."""
    try:
        check_depth(value)
    except JsonDepthError as error:
        return [ValueProblem(final=True, text=str(error))]
    return None


class _Pairs(list[tuple[str, Any]]):
    """The fields of an object as the text gives them."""

    __slots__ = ()


def strict_texts(shape: Type, body: bytes, *, unknown: list[str]) -> list[str]:
    """Return the findings about a body that was already checked: `unknown field "spec.foo"`.

    `unknown` are the paths that the check found; they are the answer unless fields are doubled.
    """
    if not has_duplicates(body):
        return [f"unknown field {_quoted(path)}" for path in unknown]
    found: dict[str, None] = {}
    _collect(shape, _read(body), [], found)
    return list(found)


def duplicate_fields(body: bytes) -> list[str]:
    """Return the paths of all fields that a text of no certain type, such as a patch, doubles."""
    if not has_duplicates(body):
        return []
    found: dict[str, None] = {}
    _collect(ANY_TYPE, _read(body), [], found)
    start, end = len('duplicate field "'), -1
    return [text[start:end] for text in found]


def has_duplicates(body: bytes) -> bool:
    """Return whether some object names a field twice; no for a text that is not JSON."""
    objects: list[list[tuple[str, Any]]] = []
    try:
        # Nothing here runs in Python for an object: the text of every write comes by.
        json.loads(body.decode(), object_pairs_hook=objects.append)
    except (ValueError, RecursionError):
        return False
    return sum(map(len, objects)) != sum(map(len, map(dict, objects)))


def _read(body: bytes) -> Any:
    return json.loads(body, object_pairs_hook=_Pairs)


def _collect(shape: Type, value: Any, path: list[str], found: dict[str, None]) -> None:
    """Note findings until there are enough; the path is put together only for those."""
    form = shape.form
    if isinstance(value, _Pairs) and form in (TypeForm.OBJECT, TypeForm.MAP, TypeForm.ANY):
        # Raw values of a known type are kept as they are, and their fields are not looked at.
        if form is TypeForm.ANY and shape.name:
            return
        seen = set()
        for key, child in value:
            if len(found) >= MAX_FINDINGS:
                return
            below = ANY_TYPE if form is TypeForm.ANY else shape.items
            if form is TypeForm.OBJECT:
                below = shape.fields.get(key)
            path.append(f".{key}")
            if below is None:
                found[f"unknown field {_spell(path)}"] = None
            else:
                if key in seen:
                    found[f"duplicate field {_spell(path)}"] = None
                seen.add(key)
                _collect(below, child, path, found)
            path.pop()
    elif type(value) is list and (form is TypeForm.ANY or shape.items is not None):
        for index, child in enumerate(value):
            if len(found) >= MAX_FINDINGS:
                return
            path.append(f"[{index}]")
            _collect(shape.items or shape, child, path, found)
            path.pop()


def _spell(path: list[str]) -> str:
    return _quoted("".join(path).removeprefix("."))


def _quoted(path: str) -> str:
    return json.dumps(path, ensure_ascii=False)
