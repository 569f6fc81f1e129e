"""Workers that sync the keys of a queue until they are stopped.

A failed key is requeued after a growing delay, without end unless `most_retries` limits it; a key
that is given up waits for its next change. A key that the server delayed (Retry-After) is never
given up. A sync that raises an unexpected error counts as one failed key and must never stop a
worker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from enum import StrEnum
from typing import Generic, TypeVar

import structlog

from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, Conflict, KubeError
from keepclose.kube.work_queue import WorkQueue

_K = TypeVar("_K", bound=Hashable)
_log = structlog.get_logger(__name__)


class Result(StrEnum):
    """The result of a sync; the values are labels of the metric `syncs`."""

    SUCCESS = "success"
    STALE = "stale"
    """The cache lagged behind own writes, or another client wrote first; the key is requeued."""
    ERROR = "error"


# The result, or after a success the seconds until the key is due again without a change.
SyncResult = Result | float | None


def _ignore_sync(_key: object, _result: Result, _seconds: float) -> None:
    """Do nothing: the syncs are not counted."""


def _no_wait(_key: object) -> float:
    """Return 0: the server delayed no key."""
    return 0.0


class Workers(Generic[_K]):
    """A pool of workers for one queue."""

    def __init__(
        self,
        queue: WorkQueue[_K],
        sync: Callable[[_K], Awaitable[SyncResult]],
        *,
        kind: str = "",
        number: float = math.inf,
        most_retries: float = math.inf,
        clock: Clock,
        on_synced: Callable[[_K, Result, float], None] = _ignore_sync,
        take_wait: Callable[[_K], float] = _no_wait,
    ) -> None:
        """Take the work; `take_wait` returns the seconds that the server delays a key.

        Log lines have the kind of the object beside its key, where the key does not say it.
        An infinite number of workers syncs each key at once, for syncs that mostly wait.
        """
        self._queue = queue
        self._sync = sync
        # NB: not bound to the logger, which would keep the output stream of this moment.
        self._labels = {"kind": kind} if kind else {}
        self._number = number
        self._most_retries = most_retries
        self._clock = clock
        self._on_synced = on_synced
        self._take_wait = take_wait
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def start(self) -> None:
        """Start the workers."""
        if self._number == math.inf:
            self._tasks = {asyncio.create_task(self._work_at_once())}
        else:
            self._tasks = {asyncio.create_task(self._work()) for _ in range(int(self._number))}

    async def run(self) -> None:
        """Work until cancelled; running syncs are cancelled too."""
        self.start()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self, grace_s: float) -> None:
        """Start no further sync, wait up to `grace_s` for running ones, then cancel them."""
        self._is_stopping = True
        self._queue.shut_down()
        if self._tasks:
            try:
                await self._clock.wait_for(asyncio.gather(*self._tasks), grace_s)
            except TimeoutError:
                _log.warning("running syncs cancelled", after_s=grace_s)
        self._tasks = set()

    async def _work(self) -> None:
        while not self._is_stopping:
            key = await self._queue.get()
            if key is None:
                return
            await self._process(key)

    async def _work_at_once(self) -> None:
        async with asyncio.TaskGroup() as group:
            while (key := await self._queue.get()) is not None:
                group.create_task(self._process(key))

    async def _process(self, key: _K) -> None:
        try:
            if not self._is_stopping:
                await self._sync_and_requeue(key)
        finally:
            self._queue.done(key)

    async def _sync_and_requeue(self, key: _K) -> None:
        started = self._clock.monotonic()
        again_s: float | None = None
        wait_s = 0.0
        try:
            outcome = await self._sync(key)
            if isinstance(outcome, Result):
                result = outcome
            else:
                result, again_s = Result.SUCCESS, outcome
        except Conflict:
            # Another client wrote first; the cache will show its write.
            result = Result.STALE
        except KubeError as error:
            wait_s = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
            _log.warning("sync failed", **self._labels, key=str(key), error=str(error))
            result = Result.ERROR
        except Exception:  # noqa: BLE001 - logged, and the key is requeued
            _log.exception("sync failed", **self._labels, key=str(key))
            result = Result.ERROR
        self._on_synced(key, result, self._clock.monotonic() - started)
        wait_s = max(wait_s, self._take_wait(key))
        if result is Result.SUCCESS:
            self._queue.forget(key)
            if again_s is not None:
                self._queue.add_after(key, again_s)
        elif wait_s > 0 or self._queue.failures(key) < self._most_retries:
            self._queue.retry(key, at_least_s=wait_s)
        else:
            _log.warning("key given up until its next change", **self._labels, key=str(key))
            self._queue.forget(key)
