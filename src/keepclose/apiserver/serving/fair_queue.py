"""Shares threads and the event loop fairly among users, as API priority and fairness does.

`RequestThreads` runs large requests in threads. A thread computes while the event loop serves other
clients; the interpreter switches between them, so no work may hold one long call of C code. The
store belongs to the event loop: work in a thread writes through `on_loop`, which runs a short step
there and returns its result. Each user has its own queue and one running job. The waiting user with
the least CPU time goes first; a user that returns from a pause starts level with the others, so
that time cannot be saved up. Administrators are exempt and go first. A full queue answers 429.

`Turns` shares the event loop among small requests. A small request is answered as soon as it is
complete, unless its user has used more than its share of the current window: then it is queued.
Queued requests are answered a few milliseconds at a time, one of each user in turn, and connections
are served in between. So a client with a hundred connections slows down only itself. The queue of a
user is not delayed while no other user has work, and administrators never wait.
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

__all__ = ["MAX_QUEUED", "Abandoned", "RequestThreads", "collect_cycles"]

MAX_QUEUED: Final = 16
"""The large requests of one user that may wait; each may hold a body of 3 MiB."""
SWITCH_SECONDS: Final = 0.0005
"""The switch interval of the interpreter; its default of 5 ms adds up to a slow response."""
WINDOW_SECONDS: Final = 0.05
SHARE_SECONDS: Final = 0.02
"""How long a user may hold the event loop in each window before its requests are queued."""
TURN_SECONDS: Final = 0.005
"""How long queued requests are answered before the event loop serves connections again."""
_THREADS: Final = 3
"""The number of threads; more of them would delay the event loop."""
_MAX_WAITING: Final = 512
"""The small requests of one user that may wait; a connection has one at a time."""
# The interval of full garbage collections of Python while no work runs, and the longest interval.
_COLLECT_SECONDS: Final = 10.0
_COLLECT_AT_LAST_SECONDS: Final = 60.0
_MAX_REMEMBERED: Final = 1024

_T = TypeVar("_T")


class _Job:
    """The work of one request, its user and the future that its caller awaits."""

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
        """Run the work, in a thread."""
        started = time.thread_time()
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            self.error = error
        self.used = time.thread_time() - started


class RequestThreads:
    """Threads that run the queued work of all users."""

    def __init__(self, *, threads: int = _THREADS, most_queued: int = MAX_QUEUED) -> None:
        """Begin without threads; the first large request starts them."""
        self._threads = threads
        self._most_queued = most_queued
        self._started = False
        self._closed = False
        self._inbox: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._queues: dict[str, collections.deque[_Job]] = {}
        self._running: set[str] = set()
        # CPU time by user; the level is that of the user served last.
        self._used: dict[str, float] = {}
        self._level = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps: set[Future[Any]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether work is running."""
        return bool(self._running)

    async def run(
        self, identity: str, work: Callable[[], _T], *, exempt: bool = False, begun: bool = False
    ) -> _T:
        """Run the work in a thread and return its result. Raises StatusError 429 when many wait.

        `begun` work, such as the next portion of a list, is never rejected. Work whose caller is
        cancelled is not started; the result of running work is dropped.
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
        self._start_jobs()
        result: _T = await job.future
        return result

    def on_loop(self, step: Callable[[], _T]) -> _T:
        """Run the step on the event loop and return its result; called by work, in its thread."""
        outcome: Future[_T] = Future()
        loop = self._loop
        # NB: before the check of `_closed`: a step that `close` has not seen must not run.
        self._steps.add(outcome)
        try:
            if self._closed or loop is None:
                raise Abandoned
            loop.call_soon_threadsafe(_run_step, step, outcome)
            return outcome.result()
        except RuntimeError:
            if loop is not None and loop.is_closed():
                raise Abandoned from None
            raise
        finally:
            self._steps.discard(outcome)

    def close(self) -> None:
        """Drop waiting work and end running work at its next step; threads end with the process.

        NB: running work is not awaited, because it must not delay the end of the server; its
        results are never stored.
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

    def _start_jobs(self) -> None:
        """Give jobs to free threads, at most one of each user."""
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
                # The event loop is closed: the server has stopped.
                return

    def _finish(self, job: _Job) -> None:
        self._running.discard(job.identity)
        self._used[job.identity] = self._used.get(job.identity, 0.0) + job.used
        if len(self._used) > _MAX_REMEMBERED:
            active = self._queues.keys() | self._running
            self._used = {name: used for name, used in self._used.items() if name in active}
        if not job.future.done():
            if job.error is None:
                job.future.set_result(job.result)
            elif isinstance(job.error, Abandoned):
                job.future.cancel()
            else:
                job.future.set_exception(job.error)
        if not self._closed:
            self._start_jobs()


def _run_step(step: Callable[[], Any], outcome: Future[Any]) -> None:
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
    """Run full garbage collections of Python at intervals, until cancelled.

    A collection stops all threads while it visits all objects, of which running work may have a
    million. So it waits for idle threads, but not for ever.
    """
    loop = asyncio.get_running_loop()
    collected = loop.time()
    while True:
        await asyncio.sleep(every)
        if not workers.is_busy or loop.time() - collected >= at_last:
            gc.collect()
            collected = loop.time()


class Turns(Generic[_T]):
    """The recent use of the event loop by user, and the queues of waiting requests."""

    def __init__(self, *, most_queued: int = _MAX_WAITING) -> None:
        """Begin without use and without queues."""
        self._most_queued = most_queued
        # By user: the start of its window, and the seconds spent since.
        self._spent: dict[str, tuple[float, float]] = {}
        self._queues: dict[str, collections.deque[tuple[Callable[[], _T], asyncio.Future[_T]]]] = {}

    def spend(self, identity: str, now: float, seconds: float) -> None:
        """Record how long a request of the user held the event loop."""
        start, spent = self._spent.get(identity, (now, 0.0))
        if now - start > WINDOW_SECONDS:
            start, spent = now, 0.0
            if len(self._spent) > _MAX_REMEMBERED:
                self._spent.clear()
        self._spent[identity] = (start, spent + seconds)

    def must_wait(self, identity: str, now: float) -> bool:
        """Return whether a request of the user must be queued now."""
        if identity in self._queues:
            return True
        start, spent = self._spent.get(identity, (now, 0.0))
        return spent > SHARE_SECONDS and now - start < WINDOW_SECONDS

    async def run(self, identity: str, work: Callable[[], _T], *, begun: bool = False) -> _T:
        """Run the work in its turn and return its result. Raises StatusError 429 when many wait.

        `begun` work, such as the next portion of a list, is never rejected.
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
                # The user goes behind all others.
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
