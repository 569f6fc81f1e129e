"""Kubernetes quantities: "2", "3500m", "1.5Gi", "12e-1".

Parsed as in Kubernetes: an optional sign, digits with at most one point, then a decimal suffix
(n u m k M G T P E), a binary suffix (Ki Mi Gi Ti Pi Ei) or a decimal exponent. "1E" is an exa,
"1E3" is a thousand. Amounts beyond 64 bits count as the largest one. Rounding goes away from zero,
so that a small amount never becomes zero. Nothing here raises.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from keepclose.model.field_errors import FieldError, invalid

MUST_BE_QUANTITY: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)

# No real amount is longer. kube-apiserver accepts any length and needs 10 s for 1 MB.
QUANTITY_CHARACTERS_MAX: Final = 10_240
_CHARACTERS_CACHED: Final = 64
_LARGEST: Final = 2**63 - 1
_POWER_OF_TEN: Final = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_POWER_OF_TWO: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_match = re.compile(r"([+-]?)([0-9]*+)(?:\.([0-9]*+))?(?:[eE]([+-]?[0-9]+)|([A-Za-z]*+))").fullmatch
# Digits beyond these only decide whether there is a remainder to round up.
_DIGITS_KEPT: Final = 60
# More digits do not fit into the 64 bits in which Kubernetes parses an exponent.
_EXPONENT_DIGITS: Final = 18


def millis(value: str | float) -> int | None:
    """Return a quantity times 1000, rounded away from zero; None if it is invalid."""
    if isinstance(value, int):
        return _limited(value * 1000)
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= _CHARACTERS_CACHED:
        return _read_millis(text)
    return _read_millis.__wrapped__(text) if len(text) <= QUANTITY_CHARACTERS_MAX else None


def quantity_errors(field: str, value: str | float) -> list[FieldError]:
    """Return the error if the value is not a quantity."""
    return [] if millis(value) is not None else [invalid(field, value, MUST_BE_QUANTITY)]


@lru_cache(maxsize=8192)
def _read_millis(text: str) -> int | None:
    # Almost every CPU amount in a cluster is "4" or "3920m".
    if text.isascii() and len(text) <= _EXPONENT_DIGITS:
        if text.isdigit():
            return _limited(int(text) * 1000)
        if text[-1:] == "m" and text[:-1].isdigit():
            return int(text[:-1])
    match = _match(text)
    if match is None:
        return None
    sign, whole, fraction, exponent, suffix = match.groups(default="")
    if not whole and not fraction:
        return None
    two = 0
    if exponent:
        power = exponent.lstrip("+-").lstrip("0") or "0"
        if len(power) > _EXPONENT_DIGITS:
            return None
        ten = -int(power) if exponent[0] == "-" else int(power)
    elif suffix in _POWER_OF_TWO:
        ten, two = 0, _POWER_OF_TWO[suffix]
    elif suffix in _POWER_OF_TEN:
        ten = _POWER_OF_TEN[suffix]
    else:
        return None
    amount = _scaled_up((whole + fraction).lstrip("0"), ten=ten - len(fraction) + 3, two=two)
    return _limited(-amount if sign == "-" else amount)


def _scaled_up(digits: str, *, ten: int, two: int) -> int:
    """Return digits x 10^ten x 2^two, rounded up; the digits have no leading zero.

    NB: the size of a power is checked before it is computed: "1e999999999" is a valid quantity.
    """
    if not digits:
        return 0
    order = len(digits) + ten
    if order > 25:
        return _LARGEST * 1000
    if order < -25:
        return 1
    head, rest = digits[:_DIGITS_KEPT], digits[_DIGITS_KEPT:]
    ten += len(rest)
    amount = (int(head) + (1 if rest.strip("0") else 0)) << two
    return amount * int(10**ten) if ten >= 0 else -(-amount // int(10**-ten))


def _limited(amount: int) -> int:
    return max(-_LARGEST * 1000, min(_LARGEST * 1000, amount))
