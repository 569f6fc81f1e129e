"""Values that are more than JSON: quantities, points in time, bytes.

kube-apiserver parses them and formats them again, so "1000m" is stored as "1" and a time in any
zone as one in UTC. Each function here returns the stored text, or, as an `Unparsable`, the message
with which kube-apiserver rejects the value. Nothing here raises.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from keepclose.model.quantities import MUST_BE_QUANTITY, QUANTITY_CHARACTERS_MAX

_LARGEST: Final = 2**63 - 1
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_POWER_OF_TEN: Final = _DECIMAL | {"E": 18}
_SUFFIXES: Final = ("", "k", "M", "G", "T", "P", "E")
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_quantity = re.compile(
    # Possessive, because the suffix may begin with digits too: backtracking would be quadratic.
    r"([+-]?)([0-9]*+)(?:\.([0-9]*+))?([eEinumkKMGTP]*+[-+]?[0-9]*+)",
    re.ASCII,
).fullmatch
_exponent = re.compile(r"[eE]([-+]?[0-9]+)", re.ASCII).fullmatch
# Longer numbers are rare and are stored as they are.
_EXPONENT_READ: Final = 60
_DIGITS_READ: Final = 60
_time = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,](\d+))?(?:Z|[+-]\d\d:\d\d)", re.ASCII
).fullmatch
_TIME_PARTS: Final = (
    ("2006", re.compile(r"\d{4}")),
    ("-", re.compile("-")),
    ("01", re.compile(r"\d\d")),
    ("-", re.compile("-")),
    ("02", re.compile(r"\d\d")),
    ("T", re.compile("T")),
    ("15", re.compile(r"\d\d?")),
    (":", re.compile(":")),
    ("04", re.compile(r"\d\d")),
    (":", re.compile(":")),
    ("05", re.compile(r"\d\d")),
    (".000000", re.compile(r"[.,]\d{6}")),
    ("Z07:00", re.compile(r"Z|[+-]\d\d:\d\d")),
)
_TIME_RANGES: Final = {
    "01": ("month", 1, 12),
    "15": ("hour", 0, 23),
    "04": ("minute", 0, 59),
    "05": ("second", 0, 59),
}
# Longer texts are not cached, so that the caches stay small.
_CHARACTERS_CACHED: Final = 64
_short_hour = re.compile(r"T(\d):", re.ASCII)
_fraction = re.compile(r"^[.,]\d+", re.ASCII)
_LAYOUT: Final = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT: Final = "2006-01-02T15:04:05.000000Z07:00"


class Unparsable(str):
    """The message with which kube-apiserver rejects a value."""

    __slots__ = ()


def store_quantity(text: str) -> str:
    """Return a quantity as it is stored, rounded up to thousandths, or an Unparsable."""
    if len(text) > QUANTITY_CHARACTERS_MAX:
        return Unparsable(MUST_BE_QUANTITY)
    if len(text) > _CHARACTERS_CACHED:
        return _store_quantity.__wrapped__(text)
    return _store_quantity(text)


def store_time(text: str, *, micro: bool) -> str:
    """Return a point in time as it is stored, in UTC, or an Unparsable.

    NB: times with microseconds must be written with exactly six digits, the others may have any.
    """
    if len(text) > _CHARACTERS_CACHED:
        return _store_time.__wrapped__(text, micro=micro)
    return _store_time(text, micro=micro)


def store_bytes(text: str) -> str:
    """Return base64 text as it is stored, without line breaks, or an Unparsable."""
    plain = text.replace("\n", "").replace("\r", "")
    try:
        if len(plain) % 4 == 0:
            return base64.b64encode(base64.b64decode(plain, validate=True)).decode()
    except (binascii.Error, ValueError):
        pass
    return Unparsable(f"illegal base64 data at input byte {_corrupt_byte(text)}")


@lru_cache(maxsize=8192)
def _store_quantity(text: str) -> str:
    match = _quantity(text.strip())
    if match is None or not text.strip():
        return Unparsable(MUST_BE_QUANTITY)
    sign, whole, fraction, suffix = match.groups(default="")
    digits = int((whole + fraction)[:_DIGITS_READ] or "0")
    ten, binary = 0, suffix in _BINARY_SUFFIXES[1:]
    exponent = _exponent(suffix)
    if exponent is not None:
        ten = int(exponent[1][:4])
    elif suffix in _POWER_OF_TEN:
        ten = _POWER_OF_TEN[suffix]
    elif not binary:
        return Unparsable("unable to parse quantity's suffix")
    if abs(ten) > _EXPONENT_READ or len(whole + fraction) > _DIGITS_READ:
        return text.strip()
    ten += 3 - len(fraction)
    if binary:
        digits <<= 10 * _BINARY_SUFFIXES.index(suffix)
    thousandths = digits * 10**ten if ten >= 0 else -(-digits // 10**-ten)
    if binary:
        thousandths = min(thousandths, _LARGEST * 1000)
    written = _write(thousandths, binary=binary, exponent=exponent is not None)
    return f"-{written}" if sign == "-" and thousandths else written


def _write(thousandths: int, *, binary: bool, exponent: bool) -> str:
    amount, rest = divmod(thousandths, 1000)
    if rest:
        return f"{thousandths}{'e-3' if exponent else 'm'}"
    binary = binary and amount >= 1024
    step = 1024 if binary else 1000
    power = 0
    while amount and amount % step == 0 and (exponent or power + 1 < len(_SUFFIXES)):
        amount, power = amount // step, power + 1
    if exponent:
        return f"{amount}e{3 * power}" if power else str(amount)
    return f"{amount}{(_BINARY_SUFFIXES if binary else _SUFFIXES)[power]}"


@lru_cache(maxsize=8192)
def _store_time(text: str, *, micro: bool) -> str:
    # Go accepts an hour of one digit.
    text = _short_hour.sub(r"T0\1:", text)
    match = _time(text)
    if match is None or (micro and len(match[1] or "") != 6):
        return Unparsable(_explain_time(text, micro=micro))
    # Python accepts three or six digits of a second, Go any number.
    fraction = f".{match[1][:6]:0<6}" if match[1] else ""
    zone = text[20 + len(match[1]) :] if match[1] else text[19:]
    try:
        when = datetime.fromisoformat(text[:19] + fraction + zone).astimezone(UTC)
    except (ValueError, OverflowError):
        why = _explain_time(text, micro=micro)
        return Unparsable(why or f'parsing time "{text}": day out of range')
    year = f"{when.year:04}"
    return year + when.strftime("-%m-%dT%H:%M:%S") + (f".{when.microsecond:06}Z" if micro else "Z")


def _explain_time(text: str, *, micro: bool) -> str:
    """Return Go's error: it parses part by part and stops at the first that does not match."""
    layout = _MICRO_LAYOUT if micro else _LAYOUT
    rest = text
    for part, pattern in _TIME_PARTS:
        if part == ".000000" and not micro:
            rest = _fraction.sub("", rest)
            continue
        match = pattern.match(rest)
        if match is None:
            return f'parsing time "{text}" as "{layout}": cannot parse "{rest}" as "{part}"'
        name, low, high = _TIME_RANGES.get(part, ("", 0, 0))
        if name and not low <= int(match[0]) <= high:
            return f'parsing time "{text}": {name} out of range'
        rest = rest[match.end() :]
    return f'parsing time "{text}": extra text: "{rest}"' if rest else ""


def _corrupt_byte(text: str) -> int:
    """Return the offset at which Go's decoder stops: a bad character, or an incomplete group."""
    offset, taken = 0, 0
    while offset < len(text):
        character = text[offset]
        if character == "=":
            break
        if character not in "\r\n":
            if not (character.isascii() and (character.isalnum() or character in "+/")):
                return offset
            taken = taken % 4 + 1
        offset += 1
    if offset == len(text):
        return offset - taken % 4
    if taken % 4 < 2:
        return offset
    # Two characters of a group are followed by two pads, three by one.
    after = _skip_breaks(text, offset + 1)
    if taken == 2:
        if after == len(text):
            return after
        if text[after] != "=":
            return after - 1
        after = _skip_breaks(text, after + 1)
    return after


def _skip_breaks(text: str, offset: int) -> int:
    while text[offset : offset + 1] in ("\r", "\n"):
        offset += 1
    return offset
