"""A thread for blocking calls, if needed in another network namespace.

The event loop must keep running while a library or the kernel hangs, so blocking calls run here,
one after the other. A call that exceeds its limit is reported; while it still runs, further calls
are rejected, so that an old transaction can never be applied after a newer one. The thread is a
daemon: a hanging call does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from keepclose.kube.clock import Clock, SystemClock
from keepclose.system.namespaces import enter_network

_T = TypeVar("_T")


class StuckError(Exception):
    """A call exceeds its limit, or an earlier call that did still runs."""


class WorkThread:
    """One thread that runs blocking calls in order."""

    def __init__(
        self, name: str, *, namespace: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._clock = clock or SystemClock()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._turn = asyncio.Lock()
        self._late = ""
        """The call that exceeded its limit and still runs."""
        self._namespace_error: OSError | None = None

    async def run(self, work: Callable[[], _T], *, limit: float, what: str) -> _T:
        """Return what the work returns, or raise what it raises.

        Raises StuckError if it takes longer than the limit in seconds: its outcome is then
        unknown. Raises OSError if the thread cannot enter the namespace.
        """
        async with self._turn:
            if self._late:
                raise StuckError(f"{self._late} has not come back yet; {what} was not tried")
            future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
            self._start()
            self._jobs.put(lambda: self._do(work, future))
            try:
                return await self._clock.wait_for(asyncio.shield(future), limit)
            except TimeoutError:
                if future.done():
                    return future.result()
                self._record_late(future, what)
                raise StuckError(f"{what} did not come back within {limit:g} s") from None
            except asyncio.CancelledError:
                self._record_late(future, what)
                raise

    def stop(self, last: Callable[[], None] | None = None) -> None:
        """End the thread after the queued work and after `last`."""
        if last is not None:
            self._jobs.put(last)
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; return whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _record_late(self, future: asyncio.Future[_T], what: str) -> None:
        if future.done():
            return
        self._late = what

        def clear_late(done: asyncio.Future[_T]) -> None:
            self._late = ""
            # No task awaits the future any more; asyncio logs exceptions that are not retrieved.
            if not done.cancelled():
                done.exception()

        future.add_done_callback(clear_late)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        if self._namespace is not None:
            try:
                enter_network(self._namespace)
            except OSError as error:
                # NB: without the namespace, work would change the namespace of the process.
                self._namespace_error = error
        while (job := self._jobs.get()) is not None:
            job()

    def _do(self, work: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        result: _T | None = None
        failure: BaseException | None = self._namespace_error
        if failure is None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                failure = error

        def finish() -> None:
            if future.done():
                return
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        # The event loop may have been closed meanwhile.
        with suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(finish)
