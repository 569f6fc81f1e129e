"""Workers that sync the keys of a queue until they are stopped.

A failed key is requeued after a growing delay, a limited number of times; then it waits for the
next change. A key that the server delayed (Retry-After) is never given up. A sync that raises an
unexpected error counts as one failed key and must never stop a worker.
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
    """The result of a sync; the values are labels of the metric `syncs`."""

    SUCCESS = "success"
    STALE = "stale"
    """The cache lagged behind own writes, or another client wrote first; the key is requeued."""
    ERROR = "error"


Sync = Callable[[NamespacedName], Awaitable[Result]]


def _no_wait(_key: NamespacedName) -> float:
    """Return 0: the server delayed no key."""
    return 0.0


class Workers:
    """A pool of workers for one queue."""

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
        """Take the work; `take_wait` returns the seconds that the server delays a key."""
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
        """Start the workers."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._number)]

    async def stop(self, grace_s: float) -> None:
        """Start no further sync, and wait up to `grace_s` for running ones."""
        self._is_stopping = True
        self._queue.shut_down()
        if self._tasks:
            try:
                await self._clock.wait_for(asyncio.gather(*self._tasks), grace_s)
            except TimeoutError:
                _log.warning("running syncs cancelled", after_s=grace_s)
        self._tasks = []

    async def _work(self) -> None:
        while not self._is_stopping:
            key = await self._queue.get()
            if key is None:
                return
            try:
                if not self._is_stopping:
                    await self._process(key)
            finally:
                self._queue.done(key)

    async def _process(self, key: NamespacedName) -> None:
        started = self._clock.monotonic()
        try:
            result = await self._sync(key)
        except Exception:  # noqa: BLE001 - logged, and the key is requeued
            _log.exception("sync failed", key=str(key))
            result = Result.ERROR
        self._on_synced(key, result, self._clock.monotonic() - started)
        wait_s = self._take_wait(key)
        if result is Result.SUCCESS:
            self._queue.forget(key)
        elif wait_s > 0 or self._queue.failures(key) < self._most_retries:
            self._queue.retry(key, at_least_s=wait_s)
        else:
            _log.warning("key given up until its next change", key=str(key))
            self._queue.forget(key)
