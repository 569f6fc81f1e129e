"""Work off the event loop: large requests run in threads, shared fairly among identities.

A thread computes while the loop serves other clients; the interpreter switches between them, so no
work may sit in one long call of C code. The store belongs to the loop: work that has something to
store asks for it by `on_loop`, which runs a short step there and returns its result.

Each identity has a queue of its own and runs one piece of work at a time. Of those that wait, the
identity that has used the least CPU time goes first; one that comes back from a pause starts level
with the others, so that time cannot be saved up. Administrators are exempt and go before all. A
full queue answers 429, as kube-apiserver's priority and fairness does.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError as Abandoned
from concurrent.futures import Future
from typing import Any, Final, Generic, NoReturn, TypeVar

from keepclose.apiserver.status_errors import StatusError, too_many_requests

_T = TypeVar("_T")

_THREADS: Final = 3
"""So much work runs at once; more threads would make the loop wait longer for its turn."""
MOST_QUEUED: Final = 16
"""Requests of one identity that may wait; each may hold a body of 3 MiB."""
SWITCH_SECONDS: Final = 0.0005
"""After this time a thread lets the loop go on; Python's own 5 ms add up to a slow answer."""
# How often unreachable cycles are looked for among all objects, unless work is under way; after the
# longer time they are in any case.
_COLLECT_SECONDS: Final = 10.0
_COLLECT_AT_LAST_SECONDS: Final = 60.0
_MOST_REMEMBERED: Final = 1024

__all__ = ["MOST_QUEUED", "Abandoned", "RequestThreads", "collect_cycles"]
WINDOW_SECONDS: Final = 0.05
SHARE_SECONDS: Final = 0.02
"""An identity may hold the loop for so long in each window before its requests queue."""
TURN_SECONDS: Final = 0.005
"""Queued requests are answered for so long before the loop looks after connections again."""
_MOST_WAITING: Final = 512
"""Small requests of one identity that may queue; a connection has one at a time."""


class _Job:
    """A piece of work, its identity and the future that its caller awaits."""

    __slots__ = ("error", "exempt", "future", "identity", "result", "used", "work")

    def __init__(
        self,
        identity: str,
        work: Callable[[], Any],
        future: asyncio.Future[Any],
        *,
        exempt: bool,
    ) -> None:
        self.identity = identity
        self.work = work
        self.future = future
        self.exempt = exempt
        self.result: Any = None
        self.error: BaseException | None = None
        self.used = 0.0

    def run(self) -> None:
        """Do the work, in a thread."""
        started = time.thread_time()
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            self.error = error
        self.used = time.thread_time() - started


class RequestThreads:
    """Threads that work off the queues of all identities."""

    def __init__(self, *, threads: int = _THREADS, most_queued: int = MOST_QUEUED) -> None:
        """Begin without a thread; the first large request starts them."""
        self._threads = threads
        self._most_queued = most_queued
        self._started = False
        self._closed = False
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._queues: dict[str, collections.deque[_Job]] = {}
        self._running: set[str] = set()
        # CPU time by identity; the level is that of the identity served last.
        self._used: dict[str, float] = {}
        self._level = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: set[Future[Any]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether work is under way."""
        return bool(self._running)

    async def run(
        self, identity: str, work: Callable[[], _T], *, exempt: bool = False, begun: bool = False
    ) -> _T:
        """Return what the work returns in a thread; raises Failure 429 when too much waits.

        `begun` work, such as the next piece of a list, is never refused. Work whose caller is
        cancelled is not begun; if it runs already, its result is dropped.
        """
        waiting = self._queues.get(identity)
        is_full = waiting is not None and len(waiting) >= self._most_queued
        if is_full and not exempt and not begun:
            raise too_many_requests()
        if self._closed:
            raise StatusError(503, "ServiceUnavailable", "the server is stopping", retry_after=1)
        loop = self._loop = asyncio.get_running_loop()
        job = _Job(identity, work, loop.create_future(), exempt=exempt)
        if waiting is None:
            waiting = self._queues[identity] = collections.deque()
            self._used[identity] = max(self._used.get(identity, 0.0), self._level)
        waiting.append(job)
        self._begin()
        result: _T = await job.future
        return result

    def on_loop(self, step: Callable[[], _T]) -> _T:
        """Return what the step returns on the loop; called by work, in its thread."""
        outcome: Future[_T] = Future()
        loop = self._loop
        # NB: before the look at `_closed`: a step that `close` did not find here must not be taken.
        self._steps.add(outcome)
        try:
            if self._closed or loop is None:
                raise Abandoned
            loop.call_soon_threadsafe(_take_step, step, outcome)
            return outcome.result()
        except RuntimeError:
            if loop is not None and loop.is_closed():
                raise Abandoned from None
            raise
        finally:
            self._steps.discard(outcome)

    def close(self) -> None:
        """Drop what waits and have work end at its next step; threads do not outlive the process.

        NB: a thread in the midst of its work is left to itself, because it must not hold up the end
        of the server; nothing that it computes is stored any more.
        """
        self._closed = True
        for waiting in self._queues.values():
            for job in waiting:
                job.future.cancel()
        self._queues.clear()
        for outcome in tuple(self._steps):
            outcome.cancel()
        if self._started:
            for _ in range(self._threads):
                self._inbox.put(None)

    def _begin(self) -> None:
        """Hand work to free threads, at most one piece of each identity."""
        while len(self._running) < self._threads:
            ready = [name for name in self._queues if name not in self._running]
            if not ready:
                return
            identity = min(ready, key=self._precedence)
            waiting = self._queues[identity]
            job = waiting.popleft()
            if not waiting:
                del self._queues[identity]
            if job.future.cancelled():
                continue
            self._level = max(self._level, self._used.get(identity, 0.0))
            self._running.add(identity)
            self._start_threads()
            self._inbox.put(job)

    def _precedence(self, identity: str) -> tuple[bool, float]:
        return (not self._queues[identity][0].exempt, self._used.get(identity, 0.0))

    def _start_threads(self) -> None:
        if self._started:
            return
        self._started = True
        sys.setswitchinterval(SWITCH_SECONDS)
        for number in range(self._threads):
            name = f"apiserver-worker-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            job.run()
            loop = job.future.get_loop()
            try:
                loop.call_soon_threadsafe(self._finish, job)
            except RuntimeError:
                # The loop is closed: the server has ended.
                return

    def _finish(self, job: _Job) -> None:
        self._running.discard(job.identity)
        self._used[job.identity] = self._used.get(job.identity, 0.0) + job.used
        if len(self._used) > _MOST_REMEMBERED:
            known = self._queues.keys() | self._running
            self._used = {name: used for name, used in self._used.items() if name in known}
        if not job.future.done():
            if job.error is None:
                job.future.set_result(job.result)
            elif isinstance(job.error, Abandoned):
                job.future.cancel()
            else:
                job.future.set_exception(job.error)
        if not self._closed:
            self._begin()


def _take_step(step: Callable[[], Any], outcome: Future[Any]) -> None:
    if not outcome.set_running_or_notify_cancel():
        return
    try:
        outcome.set_result(step())
    except BaseException as error:  # noqa: BLE001 - it is raised where the work waits
        outcome.set_exception(error)


async def collect_cycles(
    workers: RequestThreads,
    *,
    every: float = _COLLECT_SECONDS,
    at_last: float = _COLLECT_AT_LAST_SECONDS,
) -> NoReturn:
    """Look for unreachable cycles among all objects now and then, until cancelled.

    That stops all threads for as long as there are objects to look at, of which work that is under
    way may have a million.
    """
    loop = asyncio.get_running_loop()
    collected = loop.time()
    while True:
        await asyncio.sleep(every)
        if not workers.is_busy or loop.time() - collected >= at_last:
            gc.collect()
            collected = loop.time()


class Turns(Generic[_T]):
    """Who has used the loop lately, and whose requests wait for their turn."""

    def __init__(self, *, most_queued: int = _MOST_WAITING) -> None:
        """Begin with nothing spent."""
        self._most_queued = most_queued
        # By identity: when its window began, and what was spent since.
        self._spent: dict[str, tuple[float, float]] = {}
        self._queues: dict[str, collections.deque[tuple[Callable[[], _T], asyncio.Future[_T]]]] = {}

    def spend(self, identity: str, now: float, seconds: float) -> None:
        """Take note of time for which a request of the identity held the loop."""
        start, spent = self._spent.get(identity, (now, 0.0))
        if now - start > WINDOW_SECONDS:
            start, spent = now, 0.0
            if len(self._spent) > _MOST_REMEMBERED:
                self._spent.clear()
        self._spent[identity] = (start, spent + seconds)

    def must_wait(self, identity: str, now: float) -> bool:
        """Return whether a request of the identity must queue now."""
        if identity in self._queues:
            return True
        start, spent = self._spent.get(identity, (now, 0.0))
        return spent > SHARE_SECONDS and now - start < WINDOW_SECONDS

    async def run(self, identity: str, work: Callable[[], _T], *, begun: bool = False) -> _T:
        """Return what the work returns when its turn has come; raises Failure 429 if many wait.

        `begun` work, such as the next piece of a list, is never refused.
        """
        waiting = self._queues.get(identity)
        loop = asyncio.get_running_loop()
        if waiting is None:
            if not self._queues:
                loop.call_soon(self._take_turn)
            waiting = self._queues[identity] = collections.deque()
        elif len(waiting) >= self._most_queued and not begun:
            raise too_many_requests()
        outcome: asyncio.Future[_T] = loop.create_future()
        waiting.append((work, outcome))
        return await outcome

    def _take_turn(self) -> None:
        end = time.perf_counter() + TURN_SECONDS
        while self._queues:
            identity = next(iter(self._queues))
            waiting = self._queues.pop(identity)
            work, outcome = waiting.popleft()
            if waiting:
                # Behind all others.
                self._queues[identity] = waiting
            if not outcome.done():
                try:
                    outcome.set_result(work())
                except Exception as error:  # noqa: BLE001 - it is raised where it is awaited
                    outcome.set_exception(error)
            if time.perf_counter() > end:
                break
        if self._queues:
            asyncio.get_running_loop().call_soon(self._take_turn)
