"""A watch as a stream of frames: initial objects, then every change, with bookmarks in between.

The frame of a change is encoded once and shared by all watchers of whole objects. Changes in quick
succession are sent together, so that a hundred watchers cost a hundred writes and not a hundred
times as many. A watcher that falls behind gets the error 410 and is dropped.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from keepclose.apiserver.registry.events import from_stored
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.serving.negotiation import (
    ResponseForm,
    ResponseShape,
    check_include,
    encode,
    shape_object,
)
from keepclose.apiserver.serving.options import ListOptions, RequestTarget, check_version
from keepclose.apiserver.serving.reading import ListSelection, too_large_version
from keepclose.apiserver.serving.responses import RENDERED_BYTES, portions
from keepclose.apiserver.status_errors import StatusError, expired, too_old
from keepclose.apiserver.storage.entries import Entry, StoredChange
from keepclose.apiserver.storage.history import Closed, Overflow, Subscription
from keepclose.apiserver.storage.store import Ahead, RevisionCompacted, Store

BOOKMARK_SECONDS: Final = 60.0
MIN_TIMEOUT_SECONDS: Final = 1800.0
# Changes within this time are sent to a watcher together. It grows with the number of watchers, so
# that the work of a change does not.
GATHER_SECONDS: Final = 0.03
GATHER_SECONDS_EACH: Final = 0.0003
# The limit of a frame, because a slow watcher holds a whole frame in memory.
MAX_FRAME: Final = 1 << 20
# Work on more objects, or on more bytes, runs in a thread.
FEW_OBJECTS: Final = 64
_FEW_BYTES: Final = 32 * 1024
# A watcher with more pending changes is dropped.
_MAX_WAITING: Final = 10_000
_INITIAL_END: Final = "k8s.io/initial-events-end"

_T = TypeVar("_T")


class _Event(msgspec.Struct):
    object: dict[str, Any]


_decode_event: Final = msgspec.json.Decoder(_Event).decode


class Turn(Protocol):
    """Runs work on the event loop, in turn with that of other users."""

    async def __call__(self, work: Callable[[], bytes]) -> bytes:
        """Return the result of the work."""
        ...


class _Run(Protocol):
    """Runs work in a thread."""

    async def __call__(self, work: Callable[[], _T]) -> _T:
        """Return the result of the work."""
        ...


class Watch:
    """One watch of a kind, as a stream."""

    def __init__(
        self,
        store: Store,
        target: RequestTarget,
        options: ListOptions,
        form: ResponseForm,
        *,
        include: str = "",
        bookmark_seconds: float = BOOKMARK_SECONDS,
        most_waiting: int = _MAX_WAITING,
        take_turn: Turn | None = None,
        run: _Run | None = None,
    ) -> None:
        """Subscribe at once, so that no change is missed before the first frame.

        `take_turn` runs work in turn with other users and `run` in a thread; without them the work
        runs at once.
        """
        if form.shape is ResponseShape.TABLE:
            check_include(include)
        self._store = store
        self._resource: Resource = target.resource
        self._selection = ListSelection(target.resource, target.namespace, options)
        self._options = options
        self._form = form
        self._include = include
        self._bookmark_seconds = bookmark_seconds
        self._take_turn = take_turn or _run_here
        self._run = run or _run_here
        self._plain = form == ResponseForm() and not target.resource.stored_as
        self._columns_sent = False
        self.content_type = b"application/json"
        self.endless = True
        self.on_close: Callable[[], None] = _nothing
        self._initial: list[Entry] = []
        self.failure: StatusError | None = None
        self._version = store.version
        self._begins_after = 0
        since = self._find_start()
        self._subscription: Subscription | None = None
        if self.failure is None:
            try:
                self._subscription = store.subscribe(
                    target.resource.store,
                    since=since,
                    namespace=target.namespace,
                    limit=most_waiting,
                )
            except RevisionCompacted as error:
                self.failure = too_old(since, error.oldest)
            except Ahead:
                # NB: as in kube-apiserver, a watch may begin at a future version; changes up to
                # that version are not sent.
                self._version = self._begins_after = since
                self._subscription = store.subscribe(
                    target.resource.store,
                    since=None,
                    namespace=target.namespace,
                    limit=most_waiting,
                )

    def close(self) -> None:
        """End the subscription."""
        self.on_close()
        self.on_close = _nothing
        if self._subscription is not None:
            self._subscription.close()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield the frames until the timeout, or until the watcher has fallen behind."""
        if self.failure is not None or self._subscription is None:
            yield self._error(self.failure or expired())
            return
        initial, self._initial = self._initial, []
        if not self._selection.matches_all:
            initial = await self._run_maybe_in_thread(initial, partial(self._select, initial))
        largest = MAX_FRAME if self._plain else RENDERED_BYTES
        for start, stop in portions(initial, largest):
            add = partial(self._added, initial[start:stop])
            if self._plain:
                yield await self._take_turn(add)
            else:
                yield await self._run_maybe_in_thread(initial[start:stop], add)
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
            gather_seconds = min(
                GATHER_SECONDS, GATHER_SECONDS_EACH * self._store.watchers(self._resource.store)
            )
            pause = sent + gather_seconds - loop.time()
            if pause > 0:
                await asyncio.sleep(pause)
                changes += subscription.take()
            sent = loop.time()
            if self._begins_after:
                changes = [change for change in changes if change.version > self._begins_after]
                if not changes:
                    continue
            self._version = changes[-1].version
            largest = MAX_FRAME if self._plain else RENDERED_BYTES
            entries = [change.entry for change in changes]
            for start, stop in portions(entries, largest):
                portion = changes[start:stop]
                if self._plain:
                    if start:
                        await asyncio.sleep(0)
                    data = self._frames_of(portion)
                else:
                    data = await self._run_maybe_in_thread(
                        entries[start:stop], partial(self._frames_of, portion)
                    )
                if data:
                    yield data

    def _find_start(self) -> int:
        """Return the version after which changes are sent, and hold the initial objects."""
        asked = self._options.resource_version
        if self._options.initial_events:
            if asked not in ("", "0") and check_version(asked) > self._store.version:
                self.failure = too_large_version(check_version(asked), self._store.version)
            self._initial = self._current_entries()
            return self._store.version
        if asked in ("", "0"):
            self._initial = self._current_entries()
            return self._store.version
        return check_version(asked)

    def _current_entries(self) -> list[Entry]:
        """Return the current objects; `frames` applies the selectors."""
        return self._store.entries(self._resource.store, self._selection.namespace)

    def _select(self, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if self._selection.matches(entry)]

    async def _run_maybe_in_thread(self, entries: Sequence[Entry], work: Callable[[], _T]) -> _T:
        """Return the result of work on the entries, which runs in a thread if they are many."""
        few = (
            len(entries) <= FEW_OBJECTS and sum(len(entry.data) for entry in entries) <= _FEW_BYTES
        )
        return work() if few else await self._run(work)

    def _frames_of(self, changes: Sequence[StoredChange]) -> bytes:
        if self._plain and self._selection.matches_all:
            return b"".join([change.frame for change in changes])
        frames: list[bytes] = []
        for change in changes:
            is_selected = change.type != "DELETED" and self._selection.matches(change.entry)
            was_selected = self._selection.matches(change.previous)
            if is_selected:
                frames.append(self._frame("MODIFIED" if was_selected else "ADDED", change))
            elif was_selected:
                frames.append(self._frame("DELETED", change))
        return b"".join(frames)

    def _frame(self, kind: str, change: StoredChange) -> bytes:
        """Return a change with the event type that the selectors give it."""
        # NB: watchers share the line: a thousand of them may select an object of a mebibyte.
        line = change.selected_frame(kind)
        return line if self._plain else self._encode(kind, _decode_event(line).object)

    def _added(self, entries: Sequence[Entry]) -> bytes:
        if self._plain:
            return b"".join([b'{"type":"ADDED","object":%b}\n' % entry.data for entry in entries])
        return b"".join(
            [self._encode("ADDED", msgspec.json.decode(entry.data)) for entry in entries]
        )

    def _encode(self, kind: str, stored: dict[str, Any]) -> bytes:
        obj = from_stored(self._resource, stored)
        shaped = shape_object(self._resource, obj, self._form, self._include)
        if self._form.shape is ResponseShape.TABLE:
            if self._columns_sent:
                # As in Kubernetes, only the first Table has the column definitions.
                shaped["columnDefinitions"] = None
            self._columns_sent = True
        return encode({"type": kind, "object": shaped}) + b"\n"

    def _bookmark(self, *, initial: bool = False) -> bytes:
        self._version = max(self._version, self._caught_up())
        metadata: dict[str, Any] = {"resourceVersion": str(self._version)}
        if initial:
            metadata["annotations"] = {_INITIAL_END: "true"}
        bookmark = {
            "kind": self._resource.kind,
            "apiVersion": self._resource.api_version,
            "metadata": metadata,
        }
        if self._form.shape is ResponseShape.TABLE:
            shaped = shape_object(self._resource, bookmark, self._form, self._include)
        elif self._form.shape is ResponseShape.OBJECTS:
            shaped = bookmark
        else:
            shaped = shape_object(self._resource, bookmark, self._form)
        return encode({"type": "BOOKMARK", "object": shaped}) + b"\n"

    def _caught_up(self) -> int:
        """Return the newest version up to which this watcher has received all changes."""
        if self._subscription is not None and self._subscription.pending:
            return 0
        return self._store.version

    def _error(self, failure: StatusError) -> bytes:
        return encode({"type": "ERROR", "object": failure.status()}) + b"\n"


async def _run_here(work: Callable[[], _T]) -> _T:
    return work()


def _nothing() -> None:
    pass
