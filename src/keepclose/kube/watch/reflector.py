"""Keeps a cache equal to the objects of one kind on an API server, through failures of either side.

The reflector lists all objects, then watches for changes, and never trusts a connection: bookmarks
advance the resource version, a silent watch is ended, and an expired version leads to a new list,
whose difference from the cache goes to the handlers, deletions included. Where the server can
stream a list (KEP-3157), list and watch are one request. The reflector must never go back in time,
never hammer a server, and never give up except for settings that cannot work.

      listing --- all objects ---> watching --- end, error, silence ---> watching (same version)
         ^                             |
         +--- version expired or rejected, or several watches in a row without an event

Failures are logged once: a server that is down for an hour is one line, until the message changes
or a request succeeds. Of many unreadable objects the first hundred are named, then one a minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random
from typing import Final, Generic, NoReturn, TypeVar, cast

import structlog

from keepclose.kube.cache import Cache, Named, is_older
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import (
    ApiError,
    BrokenStream,
    ConfigError,
    ConnectionRefused,
    Expired,
    Forbidden,
    KubeError,
    ServerError,
    TimedOut,
    TooManyRequests,
    Unauthorized,
)
from keepclose.kube.requests import Kind
from keepclose.kube.transport.retries import Backoff, TokenBucket
from keepclose.kube.watch.stream import Watchdog, WatchEvent
from keepclose.model.field_errors import FieldError
from keepclose.model.meta import NamespacedName

PAGE_SIZE: Final = 500
WATCH_S: Final = (300, 600)
# Bookmarks come once a minute, so a connection that is silent for longer is dead.
IDLE_S: Final = 70.0
# Initial events come without a pause; a server that pauses does not send the final bookmark.
INITIAL_IDLE_S: Final = 10.0
SHORT_WATCH_S: Final = 1.0
MAX_EMPTY_WATCHES: Final = 3
MAX_NAMED_OBJECTS: Final = 100
"""How many unreadable objects are named in a row; after that one a minute."""
_NAMED_RATE: Final = 1 / 60
# The names of objects that come and go must not accumulate.
_MAX_REMEMBERED: Final = 1000
# After these the server has not tried to list, so there is no reason to list in another way.
_NOT_TRIED: Final = (ConnectionRefused, TooManyRequests, Unauthorized, Forbidden)
# After these the same watch may work later; any other rejection means a bad resource version.
_MAY_PASS: Final = (TooManyRequests, Unauthorized, Forbidden, ServerError)
# After so many failures a command that runs once concludes that this is no Kubernetes API server.
_MAX_FAILURES: Final = 2
# The answers of servers that cannot stream a list.
_NOT_STREAMED: Final = frozenset({400, 405, 406, 415, 422, 501})
# The answer of a server whose etcd is too old to stream; a plain list still works.
_NOT_STREAMED_NOW: Final = 500
_log = structlog.get_logger(__name__)
_T = TypeVar("_T", bound=Named)


def _do_nothing() -> None:
    """Do nothing."""


class FailureLog:
    """Logs the failures of one kind, each once."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._failure = ""
        self._unreadable: dict[str, str] = {}
        self._named = TokenBucket(clock, rate=_NAMED_RATE, burst=MAX_NAMED_OBJECTS)
        self._unnamed = 0
        self.on_recovery: Callable[[], None] = _do_nothing
        """Called when a request succeeds after a failure."""

    def record_failure(self, doing: str, error: KubeError) -> None:
        """Log a failed request unless the last one failed for the same reason."""
        if str(error) != self._failure:
            self._failure = str(error)
            _log.warning("request failed", kind=self._kind, doing=doing, error=str(error))

    def record_success(self) -> None:
        """Log the next failure again, and report a recovery."""
        if self._failure:
            self._failure = ""
            _log.info("request succeeded again", kind=self._kind)
            self.on_recovery()

    def record_unreadable(self, name: str, cause: FieldError) -> None:
        """Log an object that cannot be decoded, once for each cause, within the rate limit."""
        if self._unreadable.get(name) == str(cause):
            return
        if len(self._unreadable) >= _MAX_REMEMBERED:
            self._unreadable.clear()
        self._unreadable[name] = str(cause)
        if self._named.take():
            more = {"not_named_before": self._unnamed} if self._unnamed else {}
            self._unnamed = 0
            _log.warning("object skipped", kind=self._kind, object=name, cause=str(cause), **more)
            return
        if not self._unnamed:
            _log.warning("more objects are skipped than named", kind=self._kind)
        self._unnamed += 1


class Reflector(Generic[_T]):
    """Fills one cache from one collection, and counts what it does for metrics.

    The client must not retry requests by itself: the reflector does all backing off.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind[_T],
        cache: Cache[_T],
        *,
        clock: Clock,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        random: Random | None = None,
        streams_lists: bool = True,
        idle_s: float = IDLE_S,
    ) -> None:
        self._client, self.kind, self.cache = client, kind, cache
        self._clock = clock
        self._namespace = namespace
        self._label_selector, self._field_selector = label_selector, field_selector
        self._random = random or Random()  # noqa: S311 - spreads load, keeps no secret
        self._backoff = Backoff(clock, random=self._random)
        self._idle_s = idle_s
        self._watchdog = Watchdog(clock)
        self.failure_log = FailureLog(str(kind), clock)
        self._is_initial = False
        self._has_events = False
        self._empty_watches = 0
        self._reads_pages = False
        self.streams_lists = streams_lists
        """Whether lists are streamed; turned off permanently when the server cannot."""
        self.version: str | None = None
        """The resource version to watch from; None when a list is needed."""
        self.synced = asyncio.Event()
        """Set once the cache has been complete."""
        self.failed = asyncio.Event()
        """Set while the last request failed."""
        self.failure: KubeError | None = None
        """The error of the last request; None after a success."""
        self.last_sync: float | None = None
        """The wall-clock time of the last complete list."""
        self.lists = 0
        """Attempts to list, streamed or not."""
        self.relists = 0
        """Attempts to list after the cache had been complete."""
        self.watches = 0
        """Attempts to watch."""
        self.short_watches = 0
        """Watches that ended at once without an event."""
        self.stalls = 0
        """Watches that were ended because they were silent."""
        self.errors = 0
        """Requests that failed."""
        self.events = 0
        """Events received, bookmarks included."""
        self.rejected = 0
        """Objects that could not be decoded, counted each time they arrived."""

    async def run(self) -> NoReturn:
        """Keep the cache up to date until cancelled.

        Raise ConfigError, and what handlers of the cache raise; nothing else ends it.
        """
        while True:
            delay_s = await self._list_or_watch()
            if delay_s > 0:
                await self._clock.sleep(delay_s)

    async def wait_synced(self) -> None:
        """Wait until the cache has been complete; raise an error that waiting does not change.

        For commands that run once. Forbidden and Unauthorized are raised at once; a server that is
        no Kubernetes API server is reported at the second failure, after a plain list was tried
        too. Any other failure may be transient, and `run` retries it.
        """
        while not self.synced.is_set():
            if self.failure is not None and self._is_final(self.failure):
                raise self.failure
            self.failed.clear()
            waits = [asyncio.ensure_future(event.wait()) for event in (self.synced, self.failed)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def _is_final(self, failure: KubeError) -> bool:
        if isinstance(failure, Forbidden | Unauthorized):
            return True
        if self.errors < _MAX_FAILURES:
            return False
        is_refusal = isinstance(failure, ApiError) and not isinstance(failure, _MAY_PASS)
        return isinstance(failure, BrokenStream) or is_refusal

    async def _list_or_watch(self) -> float:
        """List or watch once; return how long to wait after that."""
        is_list = self.version is None
        try:
            if self.version is not None:
                return await self._watch(self.version)
            self.lists += 1
            self.relists += self.synced.is_set()
            if self.streams_lists and not self._reads_pages:
                return await self._stream_list()
            await self._list()
        except ConfigError:
            raise
        except KubeError as error:
            return self._record_failure(error, is_list=is_list and self.version is None)
        return 0.0

    async def _list(self) -> None:
        is_first = not self.synced.is_set() and not self._reads_pages
        # Any state of the server's cache suffices for a start. Later lists must be of the present,
        # or the cache could go back in time.
        page = await self._client.list_all(
            self.kind,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            resource_version="0" if is_first else "",
            page_size=0 if is_first else PAGE_SIZE,
        )
        if not page.resource_version:
            raise BrokenStream(str(self.kind), "a list without a resource version")
        kept = [self._reject(name, cause) for name, cause in page.rejected]
        self._backoff.note_life()
        self._replace(page.items, kept, page.resource_version)

    async def _stream_list(self) -> float:
        """List and watch by one stream; fall back to plain lists where that fails."""
        self._is_initial = True
        try:
            delay_s = await self._watch("")
        except ApiError as error:
            if self._is_initial and error.code == _NOT_STREAMED_NOW:
                self._is_initial, self._reads_pages = False, True
                return 0.0
            if not self._is_initial or error.code not in _NOT_STREAMED:
                raise
            delay_s = 0.0
        if self._is_initial:
            # The server rejected the request, or never sent the bookmark that ends the list.
            self.streams_lists = self._is_initial = False
            return 0.0
        return delay_s

    async def _watch(self, version: str) -> float:
        """Apply the events of one watch until it ends; return how long to wait after that."""
        self.watches += 1
        self._has_events = False
        started = self._clock.monotonic()
        if not await self._watchdog.guard(
            self._read_events(version), lambda: INITIAL_IDLE_S if self._is_initial else self._idle_s
        ):
            self.stalls += 1
            self._count_empty_watch()
            # The silence was delay enough.
            return 0.0
        self._backoff.note_life()
        if self._clock.monotonic() - started >= SHORT_WATCH_S:
            self._empty_watches = 0
            return 0.0
        self.short_watches += not self._has_events
        self._count_empty_watch()
        return self._backoff.next_delay()

    async def _read_events(self, version: str) -> None:
        initial: dict[NamespacedName, _T] = {}
        kept: list[NamespacedName] = []
        watch = self._client.watch(
            self.kind,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            resource_version=version,
            timeout_seconds=self._random.randint(*WATCH_S),
            send_initial_events=self._is_initial,
        )
        async with (
            watch as stream,
            aclosing(cast("AsyncGenerator[WatchEvent[_T]]", stream)) as events,
        ):
            self._record_life()
            if not self._is_initial:
                # The server has accepted a watch that continues, so the cache is current again.
                self.failure = None
                self.failed.clear()
            async for event in events:
                self._record_life()
                self.events += 1
                if not self._has_events:
                    self._has_events = True
                    self.failure_log.record_success()
                if not self._is_initial:
                    self._apply(event)
                elif event.initial_events_end:
                    self._is_initial = False
                    self._replace(list(initial.values()), kept, event.resource_version)
                elif event.type == "BOOKMARK":
                    return
                elif event.rejected is not None:
                    kept.append(self._reject(*event.rejected))
                elif event.object is not None and event.type == "DELETED":
                    initial.pop(event.object.metadata.key, None)
                elif event.object is not None:
                    initial[event.object.metadata.key] = event.object

    def _record_life(self) -> None:
        self._watchdog.reset()
        self._backoff.note_life()

    def _apply(self, event: WatchEvent[_T]) -> None:
        """Apply an event to the cache, which drops it if it has a newer version."""
        if event.rejected is not None:
            key = self._reject(*event.rejected)
            if event.type == "DELETED":
                self.cache.delete(key, event.resource_version)
        elif event.object is not None and event.type == "DELETED":
            self.cache.delete(event.object.metadata.key, event.resource_version)
        elif event.object is not None:
            self.cache.put(event.object)
        if event.resource_version and not is_older(event.resource_version, self.version or ""):
            self.version = event.resource_version

    def _replace(self, objects: list[_T], kept: list[NamespacedName], version: str) -> None:
        """Replace the content of the cache; unreadable objects keep their last good version."""
        self.cache.replace(objects, keep=kept)
        self.version = version
        self.last_sync = self._clock.now()
        self._reads_pages = False
        self._empty_watches = 0
        self.failure_log.record_success()
        self.failure = None
        self.failed.clear()
        self.synced.set()

    def _record_failure(self, error: KubeError, *, is_list: bool) -> float:
        self.errors += 1
        self._is_initial = False
        self.failure = error
        self.failed.set()
        self.failure_log.record_failure("list" if is_list else "watch", error)
        if is_list:
            self._reads_pages = self._reads_pages or not isinstance(error, _NOT_TRIED)
        elif isinstance(error, Expired):
            self.version = None
        elif isinstance(error, ApiError) and not isinstance(error, _MAY_PASS):
            self._forget_version()
        elif isinstance(error, ServerError | BrokenStream | TimedOut):
            self._count_empty_watch()
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        return self._backoff.next_delay(retry_after)

    def _count_empty_watch(self) -> None:
        """Count watches in a row without an event; the resource version may be the cause."""
        self._empty_watches = 0 if self._has_events else self._empty_watches + 1
        if self._empty_watches >= MAX_EMPTY_WATCHES:
            self._forget_version()

    def _forget_version(self) -> None:
        self.version = None
        self._empty_watches = 0
        # The cause may lie in the stream; a plain list is the most reliable.
        self._reads_pages = True

    def _reject(self, name: str, cause: FieldError) -> NamespacedName:
        """Log an object that cannot be decoded, and return its key."""
        self.rejected += 1
        self.failure_log.record_unreadable(name, cause)
        namespace, _, bare_name = name.rpartition("/")
        return NamespacedName(namespace, bare_name)
