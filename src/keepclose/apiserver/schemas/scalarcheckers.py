"""Checkers of values that hold no others: strings, numbers, times, quantities, bytes.

Quantities, times and bytes are stored as a kube-apiserver would write them, so their checkers write
back to the place that holds the value.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

from keepclose.apiserver.schema.scalars import Unread, store_bytes, store_quantity, store_time
from keepclose.apiserver.schema.types import Form, Type
from keepclose.apiserver.schemas.findings import (
    Checker,
    Found,
    Problem,
    find_too_deep,
    find_wrong,
    word_of,
)
from keepclose.model.quantities import MUST_BE_QUANTITY

_RANGES: Final = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint8": (0, 255),
}


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
    return [Problem(word=f"number {value!r}" if number else word_of(value), go_type=width)]


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
            return [Problem(final=True, word=word_of(value), go_type="string")]
        return _stored(store_time(value, micro=micro), holder, key, final=True)

    return check


def _quantity_checker(_shape: Type) -> Checker:
    def check(value: Any, holder: Any, key: Any) -> Found:
        if type(value) not in (str, int, float):
            return [Problem(final=True, text=MUST_BE_QUANTITY)]
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
        return [Problem(final=final, text=str(stored))]
    holder[key] = stored
    return None


# The makers of checkers, by the form of the type.
SCALAR_CHECKERS: Final[dict[Form, Callable[[Type], Checker]]] = {
    Form.ANY: _any_checker,
    Form.BOOLEAN: _boolean_checker,
    Form.INTEGER: _integer_checker,
    Form.INT_OR_STRING: _int_or_string_checker,
    Form.NUMBER: _number_checker,
    Form.QUANTITY: _quantity_checker,
    Form.STRING: _string_checker,
    Form.TIME: _time_checker,
}
