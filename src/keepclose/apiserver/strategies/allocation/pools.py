"""Numbers of which each is held once: drawn at random, or taken by name, in constant time.

A pool has a lower band for numbers that users name and an upper one for drawing, so that the two
rarely meet; drawing falls back to the lower band when the upper one is empty, as Kubernetes does
for cluster IPs (KEP-3070) and node ports (KEP-3668). A pool of 2**64 numbers costs no more than
what is held of it. Large writes of Services run in threads, so a pool does one thing at a time.
"""

from __future__ import annotations

from random import Random, SystemRandom
from threading import Lock
from typing import Final

_SYSTEM_RANDOM: Final = SystemRandom()


class Band:
    """The numbers from 0 up to a size, the free ones before the held ones in an imagined list.

    Only numbers that are not at their own place in that list are written down.
    """

    __slots__ = ("_at", "_place", "free", "size")

    def __init__(self, size: int) -> None:
        """Start with all numbers free."""
        self.size = size
        self.free = size
        self._at: dict[int, int] = {}
        self._place: dict[int, int] = {}

    def holds(self, number: int) -> bool:
        """Return whether somebody has the number."""
        return self._place.get(number, number) >= self.free

    def take(self, number: int) -> bool:
        """Hold the number; return False when somebody has it already."""
        if self.holds(number):
            return False
        self.free -= 1
        self._swap(self._place.get(number, number), self.free)
        return True

    def draw(self, random: Random) -> int | None:
        """Hold any free number and return it, or None when there is none."""
        if self.free == 0:
            return None
        place = random.randrange(self.free)
        number = self._at.get(place, place)
        self.take(number)
        return number

    def give(self, number: int) -> None:
        """Let the number go; nothing happens when nobody has it."""
        if not self.holds(number):
            return
        self._swap(self._place.get(number, number), self.free)
        self.free += 1
        # NB: free numbers go back to their own places, or in time the whole list is written down.
        last = self.free - 1
        while last != (found := self._at.get(last, last)) and found < self.free:
            self._swap(last, found)

    def _swap(self, one: int, other: int) -> None:
        first, second = self._at.get(one, one), self._at.get(other, other)
        self._set(one, second)
        self._set(other, first)

    def _set(self, place: int, number: int) -> None:
        if place == number:
            self._at.pop(place, None)
            self._place.pop(number, None)
        else:
            self._at[place] = number
            self._place[number] = place


class Pool:
    """Two bands: the lower one is drawn from only when nothing else is left."""

    def __init__(self, size: int, *, reserved: int, random: Random | None = None) -> None:
        """Start with all numbers free; the first `reserved` ones are the lower band."""
        self.size = size
        self._reserved = reserved
        self._lower = Band(reserved)
        self._upper = Band(size - reserved)
        self._random = random or _SYSTEM_RANDOM
        self._lock = Lock()

    @property
    def free(self) -> int:
        """How many numbers nobody has."""
        return self._lower.free + self._upper.free

    def holds(self, number: int) -> bool:
        """Return whether somebody has the number; it must be one of the pool's."""
        band, place = self._find(number)
        return band.holds(place)

    def take(self, number: int) -> bool:
        """Hold the number, which must be one of the pool's; return False when it is held."""
        band, place = self._find(number)
        with self._lock:
            return band.take(place)

    def draw(self) -> int | None:
        """Hold any free number and return it, or None when the pool is empty."""
        with self._lock:
            drawn = self._upper.draw(self._random)
            return self._lower.draw(self._random) if drawn is None else drawn + self._reserved

    def give(self, number: int) -> None:
        """Let the number go, which must be one of the pool's."""
        band, place = self._find(number)
        with self._lock:
            band.give(place)

    def _find(self, number: int) -> tuple[Band, int]:
        if number < self._reserved:
            return self._lower, number
        return self._upper, number - self._reserved


def reserved_for_names(size: int, *, share: int, most: int) -> int:
    """Return how many numbers of a range are kept for those who name theirs.

    One in `share`, at least 16 and at most `most`; none of a range of 16 or less.
    """
    return 0 if size <= 16 else min(max(16, size // share), most)
