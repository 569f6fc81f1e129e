"""Whole numbers in texts that clients send: annotations, percentages, resource versions.

`int` alone takes signs, blanks, underscores and digits of other scripts, takes quadratic time, and
raises for more than 4,300 digits. Kubernetes reads such numbers into 64 bits.
"""

from __future__ import annotations

from typing import Final

INT64_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 19


def parse_natural(text: str) -> int | None:
    """Return a number of ASCII digits that fits into 63 bits, None for anything else."""
    if not text.isascii() or not text.isdecimal():
        return None
    digits = text.lstrip("0")
    if len(digits) > _DIGITS_MAX:
        return None
    number = int(digits or "0")
    return number if number <= INT64_MAX else None


def parse_int64(text: str) -> int | None:
    """Return a decimal number of 64 bits with or without a sign, None for anything else."""
    sign = -1 if text[:1] == "-" else 1
    number = parse_natural(text[1:] if text[:1] in ("-", "+") else text)
    return None if number is None else sign * number
