"""A thread of its own for calls that block, perhaps inside another network namespace.

The event loop must live on while a library or the kernel hangs, so such calls are made here, one
after the other. A call that takes too long is reported and never abandoned in secret: as long as it
runs, further calls are refused, so that an old transaction cannot land after a newer one.
The thread is a daemon: a hanging call does not keep the process from ending.
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
    """A call takes too long, or an earlier one that took too long still runs."""


class WorkThread:
    """One thread that does blocking work in the order in which it is asked for."""

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
        self._refusal: OSError | None = None

    async def run(self, work: Callable[[], _T], *, limit: float, what: str) -> _T:
        """Return what the work returns, or raise what it raises.

        Raises StuckError when it takes longer than the limit in seconds: its outcome is then
        unknown. Raises OSError when the namespace cannot be entered.
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
                self._note_late(future, what)
                raise StuckError(f"{what} did not come back within {limit:g} s") from None
            except asyncio.CancelledError:
                self._note_late(future, what)
                raise

    def stop(self, last: Callable[[], None] | None = None) -> None:
        """Let the thread end after the work that it has, and after something to do at its end."""
        if last is not None:
            self._jobs.put(last)
        self._jobs.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the thread's end and return whether it has ended."""
        if self._thread is not None:
            self._thread.join(seconds)
            return not self._thread.is_alive()
        return True

    def _note_late(self, future: asyncio.Future[_T], what: str) -> None:
        if future.done():
            return
        self._late = what

        def forgive(done: asyncio.Future[_T]) -> None:
            self._late = ""
            # Nobody waits for it any more, which asyncio would otherwise complain about.
            if not done.cancelled():
                done.exception()

        future.add_done_callback(forgive)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        if self._namespace is not None:
            try:
                enter_network(self._namespace)
            except OSError as error:
                # NB: working on would write into the namespace that the process happens to be in.
                self._refusal = error
        while (job := self._jobs.get()) is not None:
            job()

    def _do(self, work: Callable[[], _T], future: asyncio.Future[_T]) -> None:
        result: _T | None = None
        failure: BaseException | None = self._refusal
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

        # The loop may have been closed while the work went on.
        with suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(finish)
