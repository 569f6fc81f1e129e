"""Workers that take keys from a queue until they are told to stop.

A failed key comes back after a growing delay, a limited number of times; then it waits for the next
change. One that the server asked to come back later is never given up. One key that breaks the
program is one failed key, nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum

import structlog

from keepclose.kube.clock import Clock
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.meta import NamespacedName

_log = structlog.get_logger(__name__)


class Result(StrEnum):
    """How a sync ended; the words are those of the metric `syncs`."""

    SUCCESS = "success"
    STALE = "stale"
    """The cache lagged behind what was written, or somebody else wrote first; tried again."""
    ERROR = "error"


Sync = Callable[[NamespacedName], Awaitable[Result]]


def _no_wait(_key: NamespacedName) -> float:
    """Return 0: nobody was asked to wait."""
    return 0.0


class Workers:
    """A number of workers for one queue."""

    def __init__(
        self,
        queue: WorkQueue[NamespacedName],
        sync: Sync,
        *,
        number: int,
        most_retries: int,
        clock: Clock,
        on_synced: Callable[[NamespacedName, Result, float], None],
        take_wait: Callable[[NamespacedName], float] = _no_wait,
    ) -> None:
        """Take the work; `take_wait` says for how long the server asked a key to stay away."""
        self._queue = queue
        self._sync = sync
        self._number = number
        self._most_retries = most_retries
        self._clock = clock
        self._on_synced = on_synced
        self._take_wait = take_wait
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False

    def start(self) -> None:
        """Begin to work."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._number)]

    async def stop(self, grace_s: float) -> None:
        """Let syncs under way end, for so long, and begin no other."""
        self._is_stopping = True
        self._queue.shut_down()
        if self._tasks:
            try:
                await self._clock.wait_for(asyncio.gather(*self._tasks), grace_s)
            except TimeoutError:
                _log.warning("syncs were cut off", after_s=grace_s)
        self._tasks = []

    async def _work(self) -> None:
        while not self._is_stopping:
            key = await self._queue.get()
            if key is None:
                return
            try:
                if not self._is_stopping:
                    await self._visit(key)
            finally:
                self._queue.done(key)

    async def _visit(self, key: NamespacedName) -> None:
        started = self._clock.monotonic()
        try:
            result = await self._sync(key)
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the key comes back
            _log.exception("sync failed", key=str(key))
            result = Result.ERROR
        self._on_synced(key, result, self._clock.monotonic() - started)
        wait_s = self._take_wait(key)
        if result is Result.SUCCESS:
            self._queue.forget(key)
        elif wait_s > 0 or self._queue.failures(key) < self._most_retries:
            self._queue.retry(key, at_least_s=wait_s)
        else:
            _log.warning("given up until the next change", key=str(key))
            self._queue.forget(key)
