"""Numbers as text with four decimals, exactly as printf rounds them, written into a byte buffer.

The text is that of the exact binary value rounded to the nearest, ties to the even digit. Scaling
in doubles alone would round twice; therefore the error of the product is computed too and decides
beside a tie. The functions are plain and in the subset of Python that numba compiles.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Final

NUMBER_COLUMNS: Final = 7
WIDEST_NUMBER: Final = 27
"""The most bytes of a number, with its comma and its percent sign."""

_COMMA: Final = 44
_DOT: Final = 46
_MINUS: Final = 45
_NEWLINE: Final = 10
_PERCENT: Final = 37
_ZERO: Final = 48
_SPLITTER: Final = 134217729.0
_BEYOND_INTEGERS: Final = 9.0e18
_BY_100: Final = 5243  # over 2**19, exact up to four digits
_BY_10: Final = 205  # over 2**11, exact up to two digits
_FIRST_PERCENT: Final = 4
_LAST_PERCENT: Final = 5


def put_decimal(value: float, out: MutableSequence[int], at: int) -> int:
    """Write a number with four decimals at an offset of the buffer; return the offset after it.

    A number that is not finite, or too large for 64 bits, is written as `inf` or `nan`.
    """
    if value < 0.0:
        out[at] = _MINUS
        at += 1
        value = -value
    if not value < _BEYOND_INTEGERS:
        is_number = value >= _BEYOND_INTEGERS
        out[at] = 105 if is_number else 110
        out[at + 1] = 110 if is_number else 97
        out[at + 2] = 102 if is_number else 110
        return at + 3
    whole = int(value)
    part = value - whole
    units = 0
    if part > 0.0:
        scaled = part * 10000.0
        # The error of the product by Dekker's splitting; 10000 itself needs no split. It is exact
        # as long as the compiler does not fuse multiplications with additions.
        high = part * _SPLITTER
        high -= high - part
        error = (high * 10000.0 - scaled) + (part - high) * 10000.0
        units = int(scaled)
        # NB: near a tie this difference is exact and a multiple of the last bit of `scaled`, so
        # that the error, at most half of that bit, counts only where the difference is zero.
        rest = (scaled - units) - 0.5
        if rest > 0.0 or (rest == 0.0 and (error > 0.0 or (error == 0.0 and units % 2 == 1))):
            units += 1
            if units == 10000:
                units = 0
                whole += 1
    if whole >= 10000:
        # Rare: only the last four digits take the fast path.
        rest_of_whole = whole // 10000
        at = _put_leading(rest_of_whole, out, at)
        whole -= 10000 * rest_of_whole
        _put_four(whole, out, at)
        at += 4
    else:
        # Multiplication and shift divide a number of few digits by 100 or 10, without a division.
        hundreds = (whole * _BY_100) >> 19
        if hundreds >= 10:
            out[at] = _ZERO + ((hundreds * _BY_10) >> 11)
            at += 1
        if hundreds > 0:
            out[at] = _ZERO + hundreds - 10 * ((hundreds * _BY_10) >> 11)
            at += 1
        ones = whole - 100 * hundreds
        tens = (ones * _BY_10) >> 11
        if whole >= 10:
            out[at] = _ZERO + tens
            at += 1
        out[at] = _ZERO + ones - 10 * tens
        at += 1
    out[at] = _DOT
    _put_four(units, out, at + 1)
    return at + 5


def put_results(  # noqa: PLR0917 - compiled code takes positions only
    rows: int,
    valid: Sequence[int],
    figures: Sequence[float],
    data: Sequence[int],
    labels: Sequence[int],
    out: MutableSequence[int],
) -> int:
    """Write one line of results for each row; return how many bytes were written.

    `figures[row*7+column]` are the printed numbers; columns 4 and 5 get a percent sign. A row that
    is not valid has the word `invalid` in every column. Labels are copied from `data`, byte for
    byte, from `labels[2*row]` up to `labels[2*row+1]`.
    """
    at = 0
    for row in range(rows):
        for place in range(labels[2 * row], labels[2 * row + 1]):
            out[at] = data[place]
            at += 1
        for column in range(NUMBER_COLUMNS):
            out[at] = _COMMA
            at += 1
            if valid[row] == 0:
                at = _put_invalid(out, at)
                continue
            at = put_decimal(figures[row * NUMBER_COLUMNS + column], out, at)
            if _FIRST_PERCENT <= column <= _LAST_PERCENT:
                out[at] = _PERCENT
                at += 1
        out[at] = _NEWLINE
        at += 1
    return at


def _put_leading(number: int, out: MutableSequence[int], at: int) -> int:
    digits = 1
    bound = 10
    while number >= bound:
        digits += 1
        bound *= 10
    for place in range(at + digits - 1, at - 1, -1):
        out[place] = _ZERO + number % 10
        number //= 10
    return at + digits


def _put_four(number: int, out: MutableSequence[int], at: int) -> None:
    hundreds = (number * _BY_100) >> 19
    tens = (hundreds * _BY_10) >> 11
    out[at] = _ZERO + tens
    out[at + 1] = _ZERO + hundreds - 10 * tens
    ones = number - 100 * hundreds
    tens = (ones * _BY_10) >> 11
    out[at + 2] = _ZERO + tens
    out[at + 3] = _ZERO + ones - 10 * tens


def _put_invalid(out: MutableSequence[int], at: int) -> int:
    out[at] = 105
    out[at + 1] = 110
    out[at + 2] = 118
    out[at + 3] = 97
    out[at + 4] = 108
    out[at + 5] = 105
    out[at + 6] = 100
    return at + 7
