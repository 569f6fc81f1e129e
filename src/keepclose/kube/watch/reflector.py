"""Keeps a cache equal to what an API server has of one kind, through every failure of either side.

Reads all objects, then follows the changes, and never trusts a connection: bookmarks move the
version on, silence ends a watch, an expired version leads to a new list whose difference from the
cache is told, deletions included. Where the server can stream its objects (KEP-3157) list and watch
are one request. It must never go back in time, never hammer a server, and never give up except
over settings that cannot work.

      reading --- all objects ---> following --- end, error, silence ---> following (same version)
         ^                             |
         +--- version expired or refused, or several watches in a row that gave nothing
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

# Names of objects that come and go must not pile up.
_MOST_REMEMBERED: Final = 1000
MOST_NAMED_OBJECTS: Final = 100
"""How many unreadable objects are named in a row; after that one a minute."""
_NAMED_RATE: Final = 1 / 60
_log = structlog.get_logger(__name__)
_T = TypeVar("_T", bound=Named)

PAGE_SIZE: Final = 500
WATCH_S: Final = (300, 600)
# Bookmarks come once a minute, so after more than that a silent connection is dead.
IDLE_S: Final = 70.0
# Initial objects come without a pause; a server that pauses does not know how to end them.
INITIAL_IDLE_S: Final = 10.0
SHORT_WATCH_S: Final = 1.0
MOST_FRUITLESS: Final = 3

# With these the list itself was never tried, so there is no reason to read it in another way.
_NOT_ASKED: Final = (ConnectionRefused, TooManyRequests, Unauthorized, Forbidden)
# With these the same watch may work later; any other refusal means that the version is no good.
_MAY_PASS: Final = (TooManyRequests, Unauthorized, Forbidden, ServerError)
# So many failures of a server that is none of Kubernetes are enough for a command that runs once.
_FAILURES_OF_OTHERS: Final = 2
# How servers that do not know how to stream a list say so.
_NOT_STREAMED: Final = frozenset({400, 405, 406, 415, 422, 501})
# So does a server whose etcd is too old, which a plain list need not wait for.
_NOT_THIS_TIME: Final = 500


def _tell_nobody() -> None:
    """Do nothing."""


class Complaints:
    """The complaints about one kind."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._failure = ""
        self._unreadable: dict[str, str] = {}
        self._named = TokenBucket(clock, rate=_NAMED_RATE, burst=MOST_NAMED_OBJECTS)
        self._unnamed = 0
        self.on_recovery: Callable[[], None] = _tell_nobody
        """Called when the server answers again after it had not."""

    def note_failure(self, doing: str, error: KubeError) -> None:
        """Log a failed request unless the last one failed for the same reason."""
        if str(error) != self._failure:
            self._failure = str(error)
            _log.warning("request failed", kind=self._kind, doing=doing, error=str(error))

    def note_success(self) -> None:
        """Make the next failure worth a line again."""
        if self._failure:
            self._failure = ""
            _log.info("request succeeded again", kind=self._kind)
            self.on_recovery()

    def note_unreadable(self, name: str, cause: FieldError) -> None:
        """Log an object that cannot be read, unless that was said before or there are too many."""
        if self._unreadable.get(name) == str(cause):
            return
        if len(self._unreadable) >= _MOST_REMEMBERED:
            self._unreadable.clear()
        self._unreadable[name] = str(cause)
        if self._named.take():
            more = {"not_named_before": self._unnamed} if self._unnamed else {}
            self._unnamed = 0
            _log.warning("object skipped", kind=self._kind, object=name, cause=str(cause), **more)
            return
        if not self._unnamed:
            _log.warning("more objects are skipped than are named", kind=self._kind)
        self._unnamed += 1


class Reflector(Generic[_T]):
    """Fills one cache from one collection; the figures are for whoever shows them.

    Give it a client that does not repeat requests by itself, so that the delays here are the only
    ones.
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
        self.complaints = Complaints(str(kind), clock)
        self._is_initial = False
        self._has_news = False
        self._fruitless = 0
        self._reads_pages = False
        self.streams_lists = streams_lists
        """Whether lists are streamed; turned off for good when the server cannot."""
        self.version: str | None = None
        """The resource version to go on from; None when everything must be read."""
        self.synced = asyncio.Event()
        """Set once the cache has been complete."""
        self.failed = asyncio.Event()
        """Set while the last request failed."""
        self.failure: KubeError | None = None
        """Why the last request failed; None after one that did not."""
        self.last_sync: float | None = None
        """The wall clock's time when everything was read last."""
        self.lists = 0
        """Attempts to read everything, streamed or not."""
        self.relists = 0
        """Those of them after the cache had been complete."""
        self.watches = 0
        """Attempts to follow changes."""
        self.short_watches = 0
        """Watches that ended at once and gave nothing."""
        self.stalls = 0
        """Watches given up because they were silent."""
        self.errors = 0
        """Requests that failed."""
        self.events = 0
        """Events received, bookmarks included."""
        self.rejected = 0
        """Objects that could not be read, each time they came."""

    async def run(self) -> NoReturn:
        """Keep the cache up to date until cancelled.

        Only a ConfigError ends this by itself, and what handlers of the cache raise.
        """
        while True:
            delay_s = await self._take_turn()
            if delay_s > 0:
                await self._clock.sleep(delay_s)

    async def wait_synced(self) -> None:
        """Wait until the cache has been complete; raise what waiting does not change.

        For commands that run once: what a caller may do is said at once, and a server that is none
        of Kubernetes at the second failure, when a plain list was tried too. Whatever else fails
        may pass, and is tried again as long as `run` goes on.
        """
        while not self.synced.is_set():
            if self.failure is not None and self._is_final(self.failure):
                raise self.failure
            self.failed.clear()
            waits = [asyncio.ensure_future(one.wait()) for one in (self.synced, self.failed)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waits:
                    one.cancel()

    def _is_final(self, failure: KubeError) -> bool:
        if isinstance(failure, Forbidden | Unauthorized):
            return True
        if self.errors < _FAILURES_OF_OTHERS:
            return False
        is_refusal = isinstance(failure, ApiError) and not isinstance(failure, _MAY_PASS)
        return isinstance(failure, BrokenStream) or is_refusal

    async def _take_turn(self) -> float:
        """Read everything or follow changes, once; return how long to wait after that."""
        is_list = self.version is None
        try:
            if self.version is not None:
                return await self._follow(self.version)
            self.lists += 1
            self.relists += self.synced.is_set()
            if self.streams_lists and not self._reads_pages:
                return await self._stream_list()
            await self._list()
        except ConfigError:
            raise
        except KubeError as error:
            return self._note_failure(error, is_list=is_list and self.version is None)
        return 0.0

    async def _list(self) -> None:
        is_first = not self.synced.is_set() and not self._reads_pages
        # Any state of a cache will do for a start. Later only the present will, or the cache might
        # go back in time.
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
        self._become(page.items, kept, page.resource_version)

    async def _stream_list(self) -> float:
        """Read everything from one stream and follow it on; fall back to lists where that fails."""
        self._is_initial = True
        try:
            delay_s = await self._follow("")
        except ApiError as error:
            if self._is_initial and error.code == _NOT_THIS_TIME:
                self._is_initial, self._reads_pages = False, True
                return 0.0
            if not self._is_initial or error.code not in _NOT_STREAMED:
                raise
            delay_s = 0.0
        if self._is_initial:
            # Refused, or the bookmark that ends the objects never came.
            self.streams_lists = self._is_initial = False
            return 0.0
        return delay_s

    async def _follow(self, version: str) -> float:
        """Apply the events of one watch until it ends; return how long to wait after that."""
        self.watches += 1
        self._has_news = False
        started = self._clock.monotonic()
        if not await self._watchdog.guard(
            self._read(version), lambda: INITIAL_IDLE_S if self._is_initial else self._idle_s
        ):
            self.stalls += 1
            self._note_fruits()
            # The silence was wait enough.
            return 0.0
        self._backoff.note_life()
        if self._clock.monotonic() - started >= SHORT_WATCH_S:
            self._fruitless = 0
            return 0.0
        self.short_watches += not self._has_news
        self._note_fruits()
        return self._backoff.next_delay()

    async def _read(self, version: str) -> None:
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
            self._note_life()
            async for event in events:
                self._note_life()
                self.events += 1
                if not self._has_news:
                    self._has_news = True
                    self.complaints.note_success()
                if not self._is_initial:
                    self._apply(event)
                elif event.initial_events_end:
                    self._is_initial = False
                    self._become(list(initial.values()), kept, event.resource_version)
                elif event.type == "BOOKMARK":
                    return
                elif event.rejected is not None:
                    kept.append(self._reject(*event.rejected))
                elif event.object is not None and event.type == "DELETED":
                    initial.pop(event.object.metadata.key, None)
                elif event.object is not None:
                    initial[event.object.metadata.key] = event.object

    def _note_life(self) -> None:
        self._watchdog.hear()
        self._backoff.note_life()

    def _apply(self, event: WatchEvent[_T]) -> None:
        """Do to the cache what an event says, unless the cache knows better."""
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

    def _become(self, objects: list[_T], kept: list[NamespacedName], version: str) -> None:
        """Make the cache what the server has; the last good state of unreadable ones stays."""
        self.cache.replace(objects, keep=kept)
        self.version = version
        self.last_sync = self._clock.now()
        self._reads_pages = False
        self._fruitless = 0
        self.complaints.note_success()
        self.failure = None
        self.failed.clear()
        self.synced.set()

    def _note_failure(self, error: KubeError, *, is_list: bool) -> float:
        self.errors += 1
        self._is_initial = False
        self.failure = error
        self.failed.set()
        self.complaints.note_failure("list" if is_list else "watch", error)
        if is_list:
            self._reads_pages = self._reads_pages or not isinstance(error, _NOT_ASKED)
        elif isinstance(error, Expired):
            self.version = None
        elif isinstance(error, ApiError) and not isinstance(error, _MAY_PASS):
            self._forget_version()
        elif isinstance(error, ServerError | BrokenStream | TimedOut):
            self._note_fruits()
        retry_after = error.retry_after if isinstance(error, ApiError) else None
        return self._backoff.next_delay(retry_after)

    def _note_fruits(self) -> None:
        """Count watches in a row that gave nothing; the version may be what is wrong with them."""
        self._fruitless = 0 if self._has_news else self._fruitless + 1
        if self._fruitless >= MOST_FRUITLESS:
            self._forget_version()

    def _forget_version(self) -> None:
        self.version = None
        self._fruitless = 0
        # What went wrong may lie in the stream; a list is the surest way.
        self._reads_pages = True

    def _reject(self, name: str, cause: FieldError) -> NamespacedName:
        """Say once what cannot be read, and return its key."""
        self.rejected += 1
        self.complaints.note_unreadable(name, cause)
        namespace, _, bare_name = name.rpartition("/")
        return NamespacedName(namespace, bare_name)
