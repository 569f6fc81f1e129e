"""Which of many occurrences become Events: repeats are counted, similar ones combined, floods cut.

The same occurrence again, within the window, raises the count of the Event there is. When an object
shows more than ten different messages of one type and reason within the window, further ones become
one combined Event. Each object may cause 25 at once and then one every five minutes. These are the
rules of client-go's event correlator. Nothing here talks to a server; all memory is bounded, and
what was not seen for longest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from keepclose.kube.backoff import TokenBucket
from keepclose.kube.clock import Clock
from keepclose.model.meta import ObjectReference

V = TypeVar("V")

WINDOW_S: Final = 600.0
MOST_SIMILAR: Final = 10
SPAM_BURST: Final = 25
SPAM_RATE: Final = 1 / 300
COMBINED: Final = "(combined from similar events): "
_MOST_REMEMBERED: Final = 4096


@dataclass(slots=True, eq=False)
class Tally:
    """One Event in the making: how often its occurrence was seen, and what the server knows.

    `first_at` and `last_at` are of the wall clock, `seen_at` is of the one that never jumps.
    """

    reference: ObjectReference
    type: str
    reason: str
    message: str
    first_at: float
    last_at: float
    seen_at: float
    count: int = 0
    name: str = ""
    is_stored: bool = False
    is_waiting: bool = False


@dataclass(slots=True)
class _Similar:
    messages: set[str] = field(default_factory=set)
    seen_at: float = 0.0


class Recent(Generic[V]):
    """A map that forgets what was not asked for the longest time."""

    def __init__(self, size: int = _MOST_REMEMBERED) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return what is remembered, or make it."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        made = self._entries[key] = make()
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return made

    def forget(self, key: Hashable) -> None:
        """Drop the key if it is there."""
        self._entries.pop(key, None)


class Correlator:
    """Files the occurrences of one component."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._similar: Recent[_Similar] = Recent()
        self._tallies: Recent[Tally] = Recent()
        self._buckets: Recent[TokenBucket] = Recent()

    def file(
        self,
        reference: ObjectReference,
        type: str,  # noqa: A002 - the API's word
        reason: str,
        message: str,
    ) -> Tally | None:
        """Return the tally that an occurrence counts for, None when its object floods.

        It is counted either way.
        """
        now = self._clock.monotonic()
        group = (_identity(reference), type, reason)
        key: Hashable = (*group, message)
        if self._is_one_of_many(group, message, now):
            key, message = group, COMBINED + message
        tally = self._count(key, now, reference, (type, reason, message))
        bucket = self._buckets.get(
            _identity(reference)[:-1],
            lambda: TokenBucket(self._clock, rate=SPAM_RATE, burst=SPAM_BURST),
        )
        return tally if bucket.take() else None

    def _is_one_of_many(self, group: Hashable, message: str, now: float) -> bool:
        similar = self._similar.get(group, _Similar)
        if now - similar.seen_at > WINDOW_S:
            similar.messages.clear()
        similar.seen_at = now
        if message in similar.messages or len(similar.messages) < MOST_SIMILAR:
            similar.messages.add(message)
            return False
        return True

    def _count(
        self, key: Hashable, now: float, reference: ObjectReference, text: tuple[str, str, str]
    ) -> Tally:
        wall = self._clock.now()

        def begin() -> Tally:
            return Tally(reference, *text, first_at=wall, last_at=wall, seen_at=now)

        tally = self._tallies.get(key, begin)
        if now - tally.seen_at > WINDOW_S:
            self._tallies.forget(key)
            tally = self._tallies.get(key, begin)
        tally.seen_at, tally.last_at = now, wall
        tally.count += 1
        tally.message = text[2]
        return tally


def _identity(reference: ObjectReference) -> tuple[str, str, str, str, str, str]:
    """Return what tells objects apart; their version does not."""
    return (
        reference.api_version,
        reference.kind,
        reference.namespace,
        reference.name,
        reference.uid,
        reference.field_path,
    )
