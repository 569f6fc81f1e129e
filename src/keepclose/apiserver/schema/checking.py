"""Whether a JSON value has the shape of its type, and in which form it is stored.

One walk does it all: it drops fields that the type does not have, treats null as absent, omits the
empty values that kube-apiserver would not write, brings quantities, times and bytes to their stored
form, and reports in the words of Go's decoder which value has the wrong type. The value is changed
in place. Rules, defaults and required fields belong to the strategies.

Each type has one checker, a function that is created once. Every write of every object passes here,
so the common cases, a string or a boolean where one is expected, need no call at all. A checker
gets the value, and its holder and key for the rare case that the stored form differs; it returns
None when it finds nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import msgspec

from keepclose.apiserver.schema.findings import (
    MAX_FINDINGS,
    Checker,
    Findings,
    ValueProblem,
    find_too_deep,
    find_wrong,
    join_findings,
    json_type_name,
)
from keepclose.apiserver.schema.scalars import Unparsable, store_bytes, store_quantity, store_time
from keepclose.apiserver.schema.types import ANY_TYPE, Type, TypeForm
from keepclose.model.quantities import MUST_BE_QUANTITY

_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
}
# The value that replaces null inside a list or a map. An object is a new one each time.
_NULL_VALUES: Final[dict[TypeForm, Any]] = {
    TypeForm.STRING: "",
    TypeForm.INTEGER: 0,
    TypeForm.NUMBER: 0,
    TypeForm.BOOLEAN: False,
    TypeForm.QUANTITY: "0",
    TypeForm.INT_OR_STRING: 0,
}
_checkers: dict[int, tuple[Type, Checker]] = {}


def _string_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        return None if type(value) is str else find_wrong(value, shape.go_type)

    return _check_bytes if shape.format == "byte" else check


def _integer_checker(shape: Type) -> Checker:
    low, high = _RANGES[shape.format]

    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        if type(value) is int and low <= value <= high:
            return None
        return _check_integer(value, shape.format)

    return check


def _number_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        return None if type(value) in (int, float) else find_wrong(value, shape.go_type)

    return check


def _boolean_checker(shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        return None if type(value) is bool else find_wrong(value, shape.go_type)

    return check


def _time_checker(shape: Type) -> Checker:
    micro = shape.go_type == "v1.MicroTime"

    def check(value: Any, holder: Any, key: Any) -> Findings:
        if type(value) is not str:
            return [ValueProblem(final=True, word=json_type_name(value), go_type="string")]
        return _stored(store_time(value, micro=micro), holder, key, final=True)

    return check


def _quantity_checker(_shape: Type) -> Checker:
    def check(value: Any, holder: Any, key: Any) -> Findings:
        if type(value) not in (str, int, float):
            return [ValueProblem(final=True, text=MUST_BE_QUANTITY)]
        return _stored(store_quantity(str(value)), holder, key, final=True)

    return check


def _int_or_string_checker(_shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        findings = None if type(value) is str else _check_integer(value, "int32")
        if findings is not None:
            findings[0].final = True
        return findings

    return check


def _any_checker(_shape: Type) -> Checker:
    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        return find_too_deep(value)

    return check


# Functions that create the checker of a type, by the form of the type.
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
    """A type that no JSON value has."""


def checker_of(shape: Type) -> Checker:
    """Return the checker of a type; the same one for the same type."""
    entry = _checkers.get(id(shape))
    if entry is None:
        # The type is kept beside its checker, so that its id is never reused.
        entry = _checkers[id(shape)] = (shape, _CHECKER_FACTORIES[shape.form](shape))
    return entry[1]


def _object_checker(shape: Type) -> Checker:
    exact = {TypeForm.STRING: str, TypeForm.BOOLEAN: bool}
    entries = {
        name: (
            _NoType if field_type.format else exact.get(field_type.form, _NoType),
            not field_type.omits_empty,
            checker_of(field_type),
            f"{field_type.embedded}.{name}" if field_type.embedded else name,
        )
        for name, field_type in shape.fields.items()
    }
    find = entries.get
    struct = shape.go_type[3:]

    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        if type(value) is not dict:
            return find_wrong(value, shape.go_type)
        findings: Findings = None
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
                findings = join_findings(findings, inner)
                if inner[-1].final:
                    return findings
            if entry is None or inner is None:
                if dropped is None:
                    dropped = []
                dropped.append(key)
        if dropped is not None:
            for key in dropped:
                del value[key]
        return findings

    return check


def _list_checker(shape: Type) -> Checker:
    items, go_type = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        if type(value) is not list:
            return find_wrong(value, go_type)
        findings: Findings = None
        for index, item in enumerate(value):
            if plain and type(item) is str:
                continue
            if item is None:
                value[index] = _empty(items)
                continue
            inner = check_item(item, value, index)
            if inner is not None:
                findings = _within(findings, inner, f"[{index}]")
                if inner[-1].final:
                    break
        return findings

    return check


def _map_checker(shape: Type) -> Checker:
    items, go_type = _items(shape)
    check_item = checker_of(items)
    plain = _is_plain_string(items)

    def check(value: Any, _holder: Any, _key: Any) -> Findings:
        if type(value) is not dict:
            return find_wrong(value, go_type)
        findings: Findings = None
        for key, item in value.items():
            if plain and type(item) is str:
                continue
            if item is None:
                value[key] = _empty(items)
                continue
            inner = check_item(item, value, key)
            if inner is not None:
                findings = _within(findings, inner, f".{key}")
                if inner[-1].final:
                    break
        return findings

    return check


_CHECKER_FACTORIES: Final[dict[TypeForm, Callable[[Type], Checker]]] = SCALAR_CHECKERS | {
    TypeForm.LIST: _list_checker,
    TypeForm.MAP: _map_checker,
    TypeForm.OBJECT: _object_checker,
}


class Problems(msgspec.Struct):
    """The findings of a check of an object's shape."""

    # The message of Go's decoder about the first value of a wrong type; empty when there is none.
    wrong_type: str = ""
    # Paths of the fields that the type does not have, in the order of the document.
    unknown: list[str] = []


def check_object(shape: Type, value: Any) -> Problems:
    """Bring a value to its stored form, and return the findings.

    After a wrong type the value is only half changed and must not be stored.
    """
    problems = Problems()
    if type(value) is not dict:
        problems.wrong_type = (
            f"json: cannot unmarshal {json_type_name(value)} into Go value of type {shape.go_type}"
        )
        return problems
    findings = checker_of(shape)(value, None, None)
    if findings is None:
        return problems
    unknown: dict[str, None] = {}
    for problem in findings:
        if problem.is_unknown:
            unknown["".join(reversed(problem.path))[1:]] = None
        elif problem.final or not problems.wrong_type:
            problems.wrong_type = _message(problem)
    problems.unknown = list(unknown)[:MAX_FINDINGS]
    return problems


def _check_bytes(value: Any, holder: Any, key: Any) -> Findings:
    if type(value) is str:
        # NB: Go's decoder decodes base64 itself and goes on after bad text.
        return _stored(store_bytes(value), holder, key, final=False)
    if type(value) is not list:
        return find_wrong(value, "[]uint8")
    # Go accepts bytes as a list of numbers too.
    for number in value:
        wrong = None if number is None else _check_integer(number, "uint8")
        if wrong is not None:
            return wrong
    holder[key] = base64.b64encode(bytes(number or 0 for number in value)).decode()
    return None


def _check_integer(value: Any, width: str) -> Findings:
    low, high = _RANGES[width]
    if type(value) is int and low <= value <= high:
        return None
    number = type(value) in (int, float)
    return [
        ValueProblem(word=f"number {value!r}" if number else json_type_name(value), go_type=width)
    ]


def _stored(stored: str, holder: Any, key: Any, *, final: bool) -> Findings:
    if isinstance(stored, Unparsable):
        return [ValueProblem(final=final, text=str(stored))]
    holder[key] = stored
    return None


def _items(shape: Type) -> tuple[Type, str]:
    return shape.items or ANY_TYPE, shape.go_type


def _is_plain_string(shape: Type) -> bool:
    return shape.form is TypeForm.STRING and not shape.format


def _empty(shape: Type) -> Any:
    return {} if shape.form is TypeForm.OBJECT else _NULL_VALUES.get(shape.form)


def _within(findings: Findings, inner: list[ValueProblem], step: str) -> list[ValueProblem]:
    for problem in inner:
        problem.path.append(step)
    return join_findings(findings, inner)


def _message(problem: ValueProblem) -> str:
    if problem.text:
        return problem.text
    place = f"{problem.struct}.{'.'.join(reversed(problem.stack))}"
    return (
        f"json: cannot unmarshal {problem.word} into Go struct field {place}"
        f" of type {problem.go_type}"
    )
