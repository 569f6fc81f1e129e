"""Quantities, times and bytes: stored texts are stable, and amounts agree with exact fractions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from math import ceil

from fuzzbounds import require

from keepclose.apiserver.printing.cells import age_of
from keepclose.apiserver.schema.scalars import Unparsable, store_bytes, store_quantity, store_time
from keepclose.model.quantities import millis

_LARGEST = (2**63 - 1) * 1000
_POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_plain = re.compile(r"([+-]?)([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([numkMGTPE]?|[KMGTPE]i)").fullmatch


def seeds() -> Iterator[bytes]:
    """Yield good and bad texts of each type."""
    for text in (
        "0", "1", "1.5Gi", "3500m", "12e-1", "1E", "1E3", "-0.1n", "+.5", "9" * 40, "1e999999999",
        "0.0000000000000000001", "1Ki", "100Ei", "1e-99999999999999999999", "", ".", "1.5.5", "0x1",
        "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.123456789+23:59", "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-23:59", "2026-02-30T00:00:00Z", "AAEC", "AA==", "A", "A\nAEC",
        "\u0661", "9" * 5000, "1." + "0" * 5000 + "1", "1e" + "9" * 5000, "A" * 5001,
        "2026-01-02T03:04:05." + "9" * 5000 + "Z",
    ):  # fmt: skip
        yield text.encode()


def check(data: bytes) -> None:
    """Read the text as each type."""
    text = data.decode(errors="replace")
    amount = millis(text)
    match = _plain(text) if text.isascii() and len(text) < 100 else None
    if match is not None:
        require(amount == _reference(*match.groups()), "a quantity differs from its fraction")
    stored = store_quantity(text)
    if not isinstance(stored, Unparsable):
        require(store_quantity(stored) == stored, "a stored quantity is not stable")
    for micro in (False, True):
        moment = store_time(text, micro=micro)
        if not isinstance(moment, Unparsable):
            require(store_time(moment, micro=micro) == moment, "a stored time is not stable")
            age_of(moment, 1.8e9)
    age_of(text, 1.8e9)
    raw = store_bytes(text)
    if not isinstance(raw, Unparsable):
        require(store_bytes(raw) == raw, "stored bytes are not stable")


def _reference(sign: str, digits: str, suffix: str) -> int:
    factor = (
        Fraction(10) ** _POWERS[suffix] if suffix in _POWERS else Fraction(2) ** _binary(suffix)
    )
    amount = min(ceil(Fraction(digits.rstrip(".")) * factor * 1000), _LARGEST)
    return -amount if sign == "-" else amount


def _binary(suffix: str) -> int:
    return 10 * ("KMGTPE".index(suffix[0]) + 1)
