"""A watch as a stream of frames: what is there, then every change, with bookmarks in between.

Frames are made once for each change and shared by all watchers who want whole objects. Changes that
come in quick succession go out together, so that a hundred watchers cost a hundred writes and not
a hundred times as many. A watcher who falls behind is told 410 and let go.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from keepclose.apiserver.conversion import from_stored
from keepclose.apiserver.failures import Failure, expired, too_old
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.serving.forms import Form, Shape, check_include, encode, shape_object
from keepclose.apiserver.serving.listing import RENDERED_BYTES, portions
from keepclose.apiserver.serving.options import ListOptions, check_version
from keepclose.apiserver.serving.reading import too_large_version
from keepclose.apiserver.serving.selection import Selection
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.storage.entries import Change, Entry
from keepclose.apiserver.storage.store import Ahead, Compacted, Store
from keepclose.apiserver.storage.subscriptions import Closed, Overflow, Subscription

BOOKMARK_SECONDS: Final = 60.0
MIN_TIMEOUT_SECONDS: Final = 1800.0
# Changes within this time go to a watcher together. It grows with the number of watchers, because
# what must not grow with it is the work that each change makes.
GATHER_SECONDS: Final = 0.03
GATHER_SECONDS_EACH: Final = 0.0003
# So many bytes are put together at most, because a slow watcher has all of a frame wait for it.
LARGEST_FRAME: Final = 1 << 20
# A watcher for whom more changes wait is let go.
MOST_WAITING: Final = 10_000
# Work on more than so much runs beside the loop.
FEW_OBJECTS: Final = 64
FEW_BYTES: Final = 32 * 1024
_INITIAL_END: Final = "k8s.io/initial-events-end"


T = TypeVar("T")


class _Event(msgspec.Struct):
    object: dict[str, Any]


_decode_event: Final = msgspec.json.Decoder(_Event).decode


class Turn(Protocol):
    """Computes a piece in turn with others."""

    async def __call__(self, work: Callable[[], bytes]) -> bytes:
        """Return what the work returns."""
        ...


class Run(Protocol):
    """Computes beside the loop."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what the work returns."""
        ...


class Watch:
    """One watcher's view of a kind."""

    def __init__(
        self,
        store: Store,
        target: Target,
        options: ListOptions,
        form: Form,
        *,
        include: str = "",
        bookmark_seconds: float = BOOKMARK_SECONDS,
        most_waiting: int = MOST_WAITING,
        take_turn: Turn | None = None,
        run: Run | None = None,
    ) -> None:
        """Subscribe at once, so that nothing is missed between here and the first frame.

        `take_turn` computes in turn with others and `run` beside the loop; without them everything
        is done where the frames are.
        """
        if form.shape is Shape.TABLE:
            check_include(include)
        self._store = store
        self._resource: Resource = target.resource
        self._selection = Selection(target.resource, target.namespace, options)
        self._options = options
        self._form = form
        self._include = include
        self._bookmark_seconds = bookmark_seconds
        self._take_turn = take_turn or _run_here
        self._run = run or _run_here
        self._plain = form == Form() and not target.resource.stored_as
        self._columns_sent = False
        self.content_type = b"application/json"
        self.endless = True
        self.on_close: Callable[[], None] = _nothing
        self._initial: list[Entry] = []
        self.failure: Failure | None = None
        self._version = store.version
        self._begins_after = 0
        since = self._start()
        self._subscription: Subscription | None = None
        if self.failure is None:
            try:
                self._subscription = store.subscribe(
                    target.resource.store,
                    since=since,
                    namespace=target.namespace,
                    limit=most_waiting,
                )
            except Compacted as error:
                self.failure = too_old(since, error.oldest)
            except Ahead:
                # NB: as in kube-apiserver a watch may begin at a version that is still to come; it
                # waits, and what has a lower version is not for it.
                self._version = self._begins_after = since
                self._subscription = store.subscribe(
                    target.resource.store,
                    since=None,
                    namespace=target.namespace,
                    limit=most_waiting,
                )

    def close(self) -> None:
        """Stop listening."""
        self.on_close()
        self.on_close = _nothing
        if self._subscription is not None:
            self._subscription.close()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what to send, until the time is up or the watcher fell behind."""
        if self.failure is not None or self._subscription is None:
            yield self._error(self.failure or expired())
            return
        initial, self._initial = self._initial, []
        if not self._selection.takes_all:
            initial = await self._run_if(initial, partial(self._select, initial))
        largest = LARGEST_FRAME if self._plain else RENDERED_BYTES
        for start, stop in portions(initial, largest):
            add = partial(self._added, initial[start:stop])
            if self._plain:
                yield await self._take_turn(add)
            else:
                yield await self._run_if(initial[start:stop], add)
        if self._options.initial_events:
            yield self._bookmark(initial=True)
        loop = asyncio.get_running_loop()
        timeout = self._options.timeout or MIN_TIMEOUT_SECONDS * (1 + random.random())  # noqa: S311
        end = loop.time() + timeout
        try:
            async for frame in self._changes(self._subscription, end):
                yield frame
        except Closed:
            return
        except Overflow:
            yield self._error(expired("the watcher fell behind and was dropped; list again"))

    async def _changes(self, subscription: Subscription, end: float) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        sent = loop.time()
        while True:
            now = loop.time()
            if now >= end:
                if self._options.bookmarks:
                    yield self._bookmark()
                return
            wait = min(end - now, self._bookmark_seconds)
            try:
                async with asyncio.timeout(wait):
                    changes = await subscription.next()
            except TimeoutError:
                if self._options.bookmarks and loop.time() < end:
                    yield self._bookmark()
                continue
            gathered = min(
                GATHER_SECONDS, GATHER_SECONDS_EACH * self._store.watchers(self._resource.store)
            )
            pause = sent + gathered - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
                changes += subscription.take()
            sent = loop.time()
            if self._begins_after:
                changes = [change for change in changes if change.version > self._begins_after]
                if not changes:
                    continue
            self._version = changes[-1].version
            largest = LARGEST_FRAME if self._plain else RENDERED_BYTES
            entries = [change.entry for change in changes]
            for start, stop in portions(entries, largest):
                some = changes[start:stop]
                if self._plain:
                    if start:
                        await asyncio.sleep(0)
                    data = self._frames_of(some)
                else:
                    data = await self._run_if(entries[start:stop], partial(self._frames_of, some))
                if data:
                    yield data

    def _start(self) -> int:
        """Return the version after which changes are to be sent; note what is sent before."""
        asked = self._options.resource_version
        if self._options.initial_events:
            if asked not in ("", "0") and check_version(asked) > self._store.version:
                self.failure = too_large_version(check_version(asked), self._store.version)
            self._initial = self._selected_now()
            return self._store.version
        if asked in ("", "0"):
            self._initial = self._selected_now()
            return self._store.version
        return check_version(asked)

    def _selected_now(self) -> list[Entry]:
        """Return the objects of this moment; selectors are looked at before they are sent."""
        return self._store.entries(self._resource.store, self._selection.namespace)

    def _select(self, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if self._selection.takes(entry)]

    async def _run_if(self, entries: Sequence[Entry], work: Callable[[], T]) -> T:
        """Return the outcome of work on the entries, which is done here where they are few."""
        few = len(entries) <= FEW_OBJECTS and sum(len(entry.data) for entry in entries) <= FEW_BYTES
        return work() if few else await self._run(work)

    def _frames_of(self, changes: Sequence[Change]) -> bytes:
        if self._plain and self._selection.takes_all:
            return b"".join([change.frame for change in changes])
        frames: list[bytes] = []
        for change in changes:
            is_in = change.type != "DELETED" and self._selection.takes(change.entry)
            was_in = self._selection.takes(change.previous)
            if is_in:
                frames.append(self._frame("MODIFIED" if was_in else "ADDED", change))
            elif was_in:
                frames.append(self._frame("DELETED", change))
        return b"".join(frames)

    def _frame(self, kind: str, change: Change) -> bytes:
        """Return a change as it concerns this watcher."""
        # NB: made once for all who see it so: an object of a mebibyte may concern a thousand.
        line = change.selected_frame(kind)
        return line if self._plain else self._encode(kind, _decode_event(line).object)

    def _added(self, entries: Sequence[Entry]) -> bytes:
        if self._plain:
            return b"".join([b'{"type":"ADDED","object":%b}\n' % entry.data for entry in entries])
        return b"".join(
            [self._encode("ADDED", msgspec.json.decode(entry.data)) for entry in entries]
        )

    def _encode(self, kind: str, stored: dict[str, Any]) -> bytes:
        found = from_stored(self._resource, stored)
        shaped = shape_object(self._resource, found, self._form, self._include)
        if self._form.shape is Shape.TABLE:
            if self._columns_sent:
                # As in Kubernetes the columns are described once.
                shaped["columnDefinitions"] = None
            self._columns_sent = True
        return encode({"type": kind, "object": shaped}) + b"\n"

    def _bookmark(self, *, initial: bool = False) -> bytes:
        self._version = max(self._version, self._caught_up())
        metadata: dict[str, Any] = {"resourceVersion": str(self._version)}
        if initial:
            metadata["annotations"] = {_INITIAL_END: "true"}
        marked = {
            "kind": self._resource.kind,
            "apiVersion": self._resource.api_version,
            "metadata": metadata,
        }
        if self._form.shape is Shape.TABLE:
            shaped = shape_object(self._resource, marked, self._form, self._include)
        elif self._form.shape is Shape.OBJECTS:
            shaped = marked
        else:
            shaped = shape_object(self._resource, marked, self._form)
        return encode({"type": "BOOKMARK", "object": shaped}) + b"\n"

    def _caught_up(self) -> int:
        """Return the newest version that this watcher has nothing more to hear about."""
        if self._subscription is not None and self._subscription.pending:
            return 0
        return self._store.version

    def _error(self, failure: Failure) -> bytes:
        return encode({"type": "ERROR", "object": failure.status()}) + b"\n"


async def _run_here(work: Callable[[], T]) -> T:
    return work()


def _nothing() -> None:
    pass
