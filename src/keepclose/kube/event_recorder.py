"""Tells people what happened to an object, as core/v1 Events, and never gets in anybody's way.

Recording costs no I/O and raises nothing: what the correlator lets through waits in a bounded line
that another task sends from, and what does not fit is dropped and counted. Of an occurrence that
still waits only the count goes up. A server that is down is asked again for a while; one that
refuses an Event is not.
"""

from __future__ import annotations

import hashlib
from asyncio import Queue
from datetime import UTC, datetime
from random import Random
from typing import Final, NoReturn

import structlog

from keepclose.kube.backoff import Backoff
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.correlation import Correlator, Tally
from keepclose.kube.errors import (
    AlreadyExists,
    ApiError,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    TransportError,
)
from keepclose.kube.kinds import EVENTS
from keepclose.model.core_kinds import Event, EventSource
from keepclose.model.meta import ObjectMeta, ObjectReference
from keepclose.model.metadata_validation import dns1123_subdomain

MOST_WAITING: Final = 1000
MOST_TRIES: Final = 12
_DEFAULT_NAMESPACE: Final = "default"
_log = structlog.get_logger(__name__)


class EventRecorder:
    """Records Events in the name of one component."""

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        clock: Clock,
        host: str = "",
        random: Random | None = None,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._client = client
        self._clock = clock
        self._source = EventSource(component=component, host=host)
        self._correlator = Correlator(clock)
        self._backoff = Backoff(clock, random=random or Random())  # noqa: S311 - no secret
        self._waiting: Queue[Tally] = Queue(most_waiting)
        self._last_stamp = 0
        self.sent = 0
        """Writes that the server took."""
        self.filtered = 0
        """Occurrences held back because their object causes too many."""
        self.dropped = 0
        """Occurrences for which there was no room in the line."""
        self.failed = 0
        """Events given up after the server refused them or stayed away."""

    @property
    def waiting(self) -> int:
        """How many Events are in the line."""
        return self._waiting.qsize()

    def record(
        self,
        reference: ObjectReference,
        type: str,  # noqa: A002 - the API's word
        reason: str,
        message: str,
    ) -> None:
        """Note an occurrence; type is "Normal" or "Warning", reason a word for machines."""
        tally = self._correlator.file(reference, type, reason, message)
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
        """Send what was recorded until cancelled; what still waits then is lost."""
        while True:
            tally = await self._waiting.get()
            tally.is_waiting = False
            try:
                await self._send(tally)
            finally:
                self._waiting.task_done()

    async def flush(self) -> None:
        """Return when nothing waits any more; without `run` that may be never."""
        await self._waiting.join()

    async def _send(self, tally: Tally) -> None:
        may_be_stored = False
        for _ in range(MOST_TRIES):
            try:
                await self._write(tally)
            except NotFound as error:
                if not tally.is_stored:
                    self._give_up(tally, error)
                    return
                # The server drops Events after an hour or so; this one starts anew.
                tally.is_stored = may_be_stored = False
                tally.name = ""
            except AlreadyExists:
                # Ours if an answer was lost before, else somebody had the same name by chance.
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

    def _give_up(self, tally: Tally, error: KubeError | None) -> None:
        self.failed += 1
        why = "the server stayed away" if error is None else str(error)
        _log.warning("event not sent", reason=tally.reason, object=tally.reference.name, error=why)

    async def _write(self, tally: Tally) -> None:
        namespace = tally.reference.namespace or _DEFAULT_NAMESPACE
        if tally.is_stored:
            change = {
                "count": tally.count,
                "lastTimestamp": format_time(tally.last_at),
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
            first_timestamp=format_time(tally.first_at),
            last_timestamp=format_time(tally.last_at),
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
            source=self._source,
        )
        await self._client.create(EVENTS, event, namespace=namespace)
        tally.is_stored = True

    def _new_name(self, about: str) -> str:
        """Return a name like that of the object, with the nanosecond in hexadecimal digits."""
        self._last_stamp = max(int(self._clock.now() * 1e9), self._last_stamp + 1)
        name = f"{about}.{self._last_stamp:x}"
        if dns1123_subdomain(name):
            # Names such as "system:node" or very long ones are none that an Event may have.
            digest = hashlib.sha256(about.encode(errors="replace")).hexdigest()
            name = f"{digest[:16]}.{self._last_stamp:x}"
        return name


def format_time(seconds: float) -> str:
    """Return a time as the API's Time: RFC 3339 in UTC, whole seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
