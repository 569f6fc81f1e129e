"""A binary heap of zones inside a flat sequence, with the exact steps of the textbook algorithm.

The zones stand in `ints` from `heap` on, and the key of a zone z at `floats[keys + z]`; the least
key comes first. Keys are read when they are compared, and a zone whose key changes while it is in
the heap keeps its place: the heap may be out of order. The reference simulator of KEP-2004 has the
same trait, and it decides allocations, so no step may be left out or "repaired". The functions are
in the subset of Python that a compiler for numeric code accepts.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence


def order_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> None:
    """Make a heap of the first `length` zones; none or one needs no ordering."""
    for top in range(length // 2 - 1, -1, -1):
        _sift_down(ints, heap, length, top, floats, keys)


def pop_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> int:
    """Move the first zone of a heap behind its new end; return the new length."""
    length -= 1
    ints[heap], ints[heap + length] = ints[heap + length], ints[heap]
    _sift_down(ints, heap, length, 0, floats, keys)
    return length


def push_heap(
    ints: MutableSequence[int], heap: int, length: int, floats: Sequence[float], keys: int
) -> None:
    """Take the zone just behind the end of a heap into it."""
    child = length
    while child > 0:
        parent = (child - 1) // 2
        zone = ints[heap + child]
        above = ints[heap + parent]
        if not floats[keys + zone] < floats[keys + above]:
            break
        ints[heap + child] = above
        ints[heap + parent] = zone
        child = parent


def _sift_down(  # noqa: PLR0917 - called from compiled code, which takes positions only
    ints: MutableSequence[int],
    heap: int,
    length: int,
    top: int,
    floats: Sequence[float],
    keys: int,
) -> None:
    """Move a zone down a heap until no zone below it is before it; equals keep their places."""
    parent = top
    while 2 * parent + 1 < length:
        child = 2 * parent + 1
        zone = ints[heap + child]
        if child + 1 < length and floats[keys + ints[heap + child + 1]] < floats[keys + zone]:
            child += 1
            zone = ints[heap + child]
        above = ints[heap + parent]
        if not floats[keys + zone] < floats[keys + above]:
            break
        ints[heap + child] = above
        ints[heap + parent] = zone
        parent = child
