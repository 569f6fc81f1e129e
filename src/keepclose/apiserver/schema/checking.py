"""One function a type, made once, that checks a value and brings it to its stored form.

Every write of every object passes here, so the common cases, a string or a boolean where one is
due, take no call at all. A checker gets the value, and the place that holds it for the rare case
that it is stored otherwise; it returns None when all is well.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.findings import (
    MAX_FINDINGS,
    Checker,
    Found,
    ValueProblem,
    find_too_deep,
    find_wrong,
    join_findings,
    word_of,
)
from keepclose.apiserver.schema.scalars import Unread, store_bytes, store_quantity, store_time
from keepclose.apiserver.schema.types import ANY_TYPE, Type, TypeForm
from keepclose.model.quantities import MUST_BE_QUANTITY

_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
}
# What null stands for inside a list or a map. Objects are made anew each time.
_EMPTIES: Final[dict[TypeForm, Any]] = {
    TypeForm.STRING: "",
    TypeForm.INTEGER: 0,
    TypeForm.NUMBER: 0,
    TypeForm.BOOLEAN: False,
    TypeForm.QUANTITY: "0",
    TypeForm.INT_OR_STRING: 0,
}


_checkers: dict[int, tuple[Type, Checker]] = {}


def _string_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Found:
        return None if type(value) is str else find_wrong(value, shape.go_type)

    return _check_bytes if shape.format == "byte" else check


def _check_bytes(value: Any, holder: Any, key: Any) -> Found:
    if type(value) is str:
        # NB: the decoder reads base64 itself and goes on after bad text.
        return _stored(store_bytes(value), holder, key, final=False)
    if type(value) is not list:
        return find_wrong(value, "[]uint8")
    # Go takes bytes as a list of numbers too.
    for one in value:
        wrong = None if one is None else _check_integer(one, "uint8")
        if wrong is not None:
            return wrong
    holder[key] = base64.b64encode(bytes(one or 0 for one in value)).decode()
    return None


def _integer_checker(shape: Type) -> Checker:
    low, high = _RANGES[shape.format]

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is int and low <= value <= high:
            return None
        return _check_integer(value, shape.format)

    return check


def _check_integer(value: Any, width: str) -> Found:
    low, high = _RANGES[width]
    if type(value) is int and low <= value <= high:
        return None
    number = type(value) in (int, float)
    return [ValueProblem(word=f"number {value!r}" if number else word_of(value), go_type=width)]


def _number_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Found:
        return None if type(value) in (int, float) else find_wrong(value, shape.go_type)

    return check


def _boolean_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Found:
        return None if type(value) is bool else find_wrong(value, shape.go_type)

    return check


def _time_checker(shape: Type) -> Checker:
    micro = shape.go_type == "v1.MicroTime"

    def check(value: Any, holder: Any, key: Any) -> Found:
        if type(value) is not str:
            return [ValueProblem(final=True, word=word_of(value), go_type="string")]
        return _stored(store_time(value, micro=micro), holder, key, final=True)

    return check


def _quantity_checker(_shape: Type) -> Checker:
    def check(value: Any, holder: Any, key: Any) -> Found:
        if type(value) not in (str, int, float):
            return [ValueProblem(final=True, text=MUST_BE_QUANTITY)]
        return _stored(store_quantity(str(value)), holder, key, final=True)

    return check


def _int_or_string_checker(_shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Found:
        found = None if type(value) is str else _check_integer(value, "int32")
        if found is not None:
            found[0].final = True
        return found

    return check


def _any_checker(_shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Found:
        return find_too_deep(value)

    return check


def _stored(stored: str, holder: Any, key: Any, *, final: bool) -> Found:
    if isinstance(stored, Unread):
        return [ValueProblem(final=final, text=str(stored))]
    holder[key] = stored
    return None


# The makers of checkers, by the form of the type.
SCALAR_CHECKERS: Final[dict[TypeForm, Callable[[Type], Checker]]] = {
    TypeForm.ANY: _any_checker,
    TypeForm.BOOLEAN: _boolean_checker,
    TypeForm.INTEGER: _integer_checker,
    TypeForm.INT_OR_STRING: _int_or_string_checker,
    TypeForm.NUMBER: _number_checker,
    TypeForm.QUANTITY: _quantity_checker,
    TypeForm.STRING: _string_checker,
    TypeForm.TIME: _time_checker,
}


class _NoType:
    """The type of no JSON value."""


def checker_of(shape: Type) -> Checker:
    """Return the checker of a type; the same one for the same type."""
    known = _checkers.get(id(shape))
    if known is None:
        # The type is kept beside its checker, so that its id is never given to another.
        known = _checkers[id(shape)] = (shape, _MAKERS[shape.form](shape))
    return known[1]


def _object_checker(shape: Type) -> Checker:
    exact = {TypeForm.STRING: str, TypeForm.BOOLEAN: bool}
    entries = {
        name: (
            _NoType if below.format else exact.get(below.form, _NoType),
            not below.omits_empty,
            checker_of(below),
            f"{below.embedded}.{name}" if below.embedded else name,
        )
        for name, below in shape.fields.items()
    }
    find = entries.get
    struct = shape.go_type[3:]

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not dict:
            return find_wrong(value, shape.go_type)
        found: Found = None
        dropped: list[str] | None = None
        for key, child in value.items():
            entry = find(key)
            if entry is None:
                inner = find_too_deep(child) or [ValueProblem(is_unknown=True, path=[f".{key}"])]
            else:
                kind, keeps_empty, checker, step = entry
                if type(child) is kind:
                    if child or keeps_empty:
                        continue
                    inner = None
                elif child is not None:
                    inner = checker(child, value, key)
                    if inner is None and (keeps_empty or child):
                        continue
                else:
                    inner = None
                if inner is not None:
                    for problem in inner:
                        problem.struct = problem.struct or struct
                        problem.stack.append(step)
                        problem.path.append(f".{key}")
            if inner is not None:
                found = join_findings(found, inner)
                if inner[-1].final:
                    return found
            if entry is None or inner is None:
                if dropped is None:
                    dropped = []
                dropped.append(key)
        if dropped is not None:
            for key in dropped:
                del value[key]
        return found

    return check


def _list_checker(shape: Type) -> Checker:
    items, below = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not list:
            return find_wrong(value, below)
        found: Found = None
        for index, item in enumerate(value):
            if plain and type(item) is str:
                continue
            if item is None:
                value[index] = _empty(items)
                continue
            inner = check_item(item, value, index)
            if inner is not None:
                found = _within(found, inner, f"[{index}]")
                if inner[-1].final:
                    break
        return found

    return check


def _map_checker(shape: Type) -> Checker:
    items, below = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Found:
        if type(value) is not dict:
            return find_wrong(value, below)
        found: Found = None
        for key, item in value.items():
            if plain and type(item) is str:
                continue
            if item is None:
                value[key] = _empty(items)
                continue
            inner = check_item(item, value, key)
            if inner is not None:
                found = _within(found, inner, f".{key}")
                if inner[-1].final:
                    break
        return found

    return check


_MAKERS: Final[dict[TypeForm, Callable[[Type], Checker]]] = SCALAR_CHECKERS | {
    TypeForm.LIST: _list_checker,
    TypeForm.MAP: _map_checker,
    TypeForm.OBJECT: _object_checker,
}


def _items(shape: Type) -> tuple[Type, str]:
    return shape.items or ANY_TYPE, shape.go_type


def _is_plain_string(shape: Type) -> bool:
    return shape.form is TypeForm.STRING and not shape.format


def _empty(shape: Type) -> Any:
    return {} if shape.form is TypeForm.OBJECT else _EMPTIES.get(shape.form)


def _within(found: Found, inner: list[ValueProblem], step: str) -> list[ValueProblem]:
    for problem in inner:
        problem.path.append(step)
    return join_findings(found, inner)


class Problems(msgspec.Struct):
    """What is wrong with the shape of an object."""

    # The message of Go's decoder about the first value of a wrong type; empty when all are right.
    wrong_type: str = ""
    # Paths of the fields that the type does not have, in the order of the document.
    unknown: list[str] = []


def check_object(shape: Type, value: Any) -> Problems:
    """Bring a value to the form in which it is stored, and return what was wrong with it.

    After a wrong type the value is only half changed and must not be stored.
    """
    problems = Problems()
    if type(value) is not dict:
        problems.wrong_type = (
            f"json: cannot unmarshal {word_of(value)} into Go value of type {shape.go_type}"
        )
        return problems
    found = checker_of(shape)(value, None, None)
    if found is None:
        return problems
    unknown: dict[str, None] = {}
    for problem in found:
        if problem.is_unknown:
            unknown["".join(reversed(problem.path))[1:]] = None
        elif problem.final or not problems.wrong_type:
            problems.wrong_type = _message(problem)
    problems.unknown = list(unknown)[:MAX_FINDINGS]
    return problems


def _message(problem: ValueProblem) -> str:
    if problem.text:
        return problem.text
    place = f"{problem.struct}.{'.'.join(reversed(problem.stack))}"
    return (
        f"json: cannot unmarshal {problem.word} into Go struct field {place}"
        f" of type {problem.go_type}"
    )
