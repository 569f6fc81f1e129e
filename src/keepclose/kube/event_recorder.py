"""Records core/v1 Events about objects, and never blocks its caller.

Recording does no I/O and raises nothing: the Events that the correlator passes wait in a bounded
queue that another task sends from; those that do not fit are dropped and counted. A repeat of an
Event that still waits only raises its count. Sending is retried for a while when the server is
unavailable, and not at all when it rejects an Event.

The correlator follows the rules of client-go. The same occurrence within the window raises the
count of its Event. When an object has more than ten different messages of one type and reason
within the window, further ones become one combined Event. Each object may cause 25 Events at once
and then one every five minutes. All memory is bounded; the least recently used entry goes first.
"""

from __future__ import annotations

import hashlib
from asyncio import Queue
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, NoReturn, TypeVar

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import (
    AlreadyExists,
    ApiError,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
)
from keepclose.kube.requests import EVENTS
from keepclose.kube.transport.retries import Backoff, TokenBucket
from keepclose.model.core_kinds import Event, EventSource
from keepclose.model.meta import ObjectMeta, ObjectReference
from keepclose.model.metadata_validation import dns1123_subdomain
from keepclose.model.timestamps import format_event_time

V = TypeVar("V")
_WINDOW_S: Final = 600.0
MAX_SIMILAR: Final = 10
SPAM_BURST: Final = 25
SPAM_RATE: Final = 1 / 300
COMBINED: Final = "(combined from similar events): "
_MAX_REMEMBERED: Final = 4096
_MAX_WAITING: Final = 1000
MAX_TRIES: Final = 12
_DEFAULT_NAMESPACE: Final = "default"
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class EventTally:
    """One Event: how often it occurred, and whether the server has stored it.

    `first_at` and `last_at` are wall-clock times, `seen_at` is monotonic.
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


class LruMap(Generic[V]):
    """A map that evicts the least recently used entry."""

    def __init__(self, size: int = _MAX_REMEMBERED) -> None:
        self._size = size
        self._entries: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the entry of a key, which is created if it is missing."""
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        created = self._entries[key] = make()
        if len(self._entries) > self._size:
            self._entries.popitem(last=False)
        return created

    def forget(self, key: Hashable) -> None:
        """Remove the key if it is there."""
        self._entries.pop(key, None)


class Correlator:
    """Decides which occurrences of one component become Events."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._similar: LruMap[_Similar] = LruMap()
        self._tallies: LruMap[EventTally] = LruMap()
        self._buckets: LruMap[TokenBucket] = LruMap()

    def correlate(
        self,
        reference: ObjectReference,
        type: str,  # noqa: A002 - the API's word
        reason: str,
        message: str,
    ) -> EventTally | None:
        """Count an occurrence; return its tally, None when its object exceeds the rate limit."""
        now = self._clock.monotonic()
        group = (_identity(reference), type, reason)
        key: Hashable = (*group, message)
        if self._has_too_many_messages(group, message, now):
            key, message = group, COMBINED + message
        tally = self._count(key, now, reference, (type, reason, message))
        bucket = self._buckets.get(
            _identity(reference)[:-1],
            lambda: TokenBucket(self._clock, rate=SPAM_RATE, burst=SPAM_BURST),
        )
        return tally if bucket.take() else None

    def _has_too_many_messages(self, group: Hashable, message: str, now: float) -> bool:
        similar = self._similar.get(group, _Similar)
        if now - similar.seen_at > _WINDOW_S:
            similar.messages.clear()
        similar.seen_at = now
        if message in similar.messages or len(similar.messages) < MAX_SIMILAR:
            similar.messages.add(message)
            return False
        return True

    def _count(
        self, key: Hashable, now: float, reference: ObjectReference, text: tuple[str, str, str]
    ) -> EventTally:
        wall = self._clock.now()

        def begin() -> EventTally:
            return EventTally(reference, *text, first_at=wall, last_at=wall, seen_at=now)

        tally = self._tallies.get(key, begin)
        if now - tally.seen_at > _WINDOW_S:
            self._tallies.forget(key)
            tally = self._tallies.get(key, begin)
        tally.seen_at, tally.last_at = now, wall
        tally.count += 1
        tally.message = text[2]
        return tally


def _identity(reference: ObjectReference) -> tuple[str, str, str, str, str, str]:
    """Return what identifies an object, which its version does not."""
    return (
        reference.api_version,
        reference.kind,
        reference.namespace,
        reference.name,
        reference.uid,
        reference.field_path,
    )


class EventRecorder:
    """Records the Events of one component."""

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        clock: Clock,
        host: str = "",
        random: Random | None = None,
        most_waiting: int = _MAX_WAITING,
    ) -> None:
        self._client = client
        self._clock = clock
        self._source = EventSource(component=component, host=host)
        self._correlator = Correlator(clock)
        self._backoff = Backoff(clock, random=random or Random())  # noqa: S311 - no secret
        self._waiting: Queue[EventTally] = Queue(most_waiting)
        self._last_stamp = 0
        self.sent = 0
        """Writes that the server accepted."""
        self.filtered = 0
        """Occurrences over the rate limit of their object."""
        self.dropped = 0
        """Occurrences for which the queue had no room."""
        self.failed = 0
        """Events dropped because the server rejected them or stayed unavailable."""

    @property
    def waiting(self) -> int:
        """The number of Events in the queue."""
        return self._waiting.qsize()

    def record(
        self,
        reference: ObjectReference,
        type: str,  # noqa: A002 - the API's word
        reason: str,
        message: str,
    ) -> None:
        """Record an occurrence; type is "Normal" or "Warning", reason a CamelCase word."""
        tally = self._correlator.correlate(reference, type, reason, message)
        if tally is None:
            self.filtered += 1
        elif tally.is_waiting:
            return
        elif self._waiting.full():
            self.dropped += 1
        else:
            tally.is_waiting = True
            self._waiting.put_nowait(tally)

    async def run(self) -> NoReturn:
        """Send recorded Events until cancelled; those that still wait then are lost."""
        while True:
            tally = await self._waiting.get()
            tally.is_waiting = False
            try:
                await self._send(tally)
            finally:
                self._waiting.task_done()

    async def flush(self) -> None:
        """Wait until the queue is empty, which needs a running `run`."""
        await self._waiting.join()

    async def _send(self, tally: EventTally) -> None:
        may_be_stored = False
        for _ in range(MAX_TRIES):
            try:
                await self._write(tally)
            except NotFound as error:
                if not tally.is_stored:
                    self._give_up(tally, error)
                    return
                # The server expires Events after about an hour; this one is created again.
                tally.is_stored = may_be_stored = False
                tally.name = ""
            except AlreadyExists:
                # Stored by an attempt whose answer was lost, or another Event has the same name.
                tally.is_stored = may_be_stored
                tally.name = tally.name if may_be_stored else ""
            except (TransportError, TooManyRequests, ServerError) as error:
                may_be_stored = True
                after = error.retry_after if isinstance(error, ApiError) else None
                await self._clock.sleep(self._backoff.next_delay(after))
            except KubeError as error:
                self._give_up(tally, error)
                return
            else:
                self.sent += 1
                self._backoff.note_life()
                return
        self._give_up(tally, None)

    def _give_up(self, tally: EventTally, error: KubeError | None) -> None:
        self.failed += 1
        why = "the server stayed unavailable" if error is None else str(error)
        _log.warning("Event not sent", reason=tally.reason, object=tally.reference.name, error=why)

    async def _write(self, tally: EventTally) -> None:
        namespace = tally.reference.namespace or _DEFAULT_NAMESPACE
        if tally.is_stored:
            change = {
                "count": tally.count,
                "lastTimestamp": format_event_time(tally.last_at),
                "message": tally.message,
            }
            await self._client.patch(EVENTS, tally.name, change, namespace=namespace)
            return
        tally.name = tally.name or self._new_name(tally.reference.name)
        event = Event(
            metadata=ObjectMeta(name=tally.name, namespace=namespace),
            involved_object=tally.reference,
            type=tally.type,
            reason=tally.reason,
            message=tally.message,
            count=tally.count,
            first_timestamp=format_event_time(tally.first_at),
            last_timestamp=format_event_time(tally.last_at),
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
            source=self._source,
        )
        await self._client.create(EVENTS, event, namespace=namespace)
        tally.is_stored = True

    def _new_name(self, about: str) -> str:
        """Return the name of the object with the time in nanoseconds, in hexadecimal digits."""
        self._last_stamp = max(int(self._clock.now() * 1e9), self._last_stamp + 1)
        name = f"{about}.{self._last_stamp:x}"
        if dns1123_subdomain(name):
            # An Event cannot have a name such as "system:node", or a very long one.
            digest = hashlib.sha256(about.encode(errors="replace")).hexdigest()
            name = f"{digest[:16]}.{self._last_stamp:x}"
        return name
