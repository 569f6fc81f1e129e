"""A program from its start to its end: event loop, signals, parts, ready message.

A program is a coroutine that runs until it is cancelled, or work that ends with a result and that a
signal interrupts (`run_interruptible`). It has parts, which run together: the
first one that fails stops all of them. Parts stop in the reverse order of their start, each before
the next, because later parts use earlier ones.

uvloop is faster and has 14 MB, so only the extra `server` installs it; without it asyncio's own
loop is used. Nothing may depend on which of the two runs.

Caches and planners are large, live long and hold no cycles. A garbage collector that walks them
again and again takes more time than all other work and pauses every task. It is disabled until the
caches are full and the first syncs are done; then all present objects are frozen, and it visits
only later ones, less often. Reference counting frees memory all the time.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

import msgspec
import structlog

from keepclose.kube.clock import Clock

# How many new containers start a collection.
GC_THRESHOLD: Final = 20_000
IDLE_POLL_S: Final = 1.0
# A queue that never empties must not disable the collector forever.
_MAX_IDLE_POLLS: Final = 600
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_INTERRUPTING_SIGNALS: Final = (*_STOP_SIGNALS, signal.SIGHUP)
_LoopFactory = Callable[[], asyncio.AbstractEventLoop]
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class ReadyMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program reports once it serves: a line for people, and fields for other programs."""

    text: str
    url: str = ""
    """Where the program answers; "" if it has no service but its pages."""
    pages: str = ""
    """The URL below which metrics and debug pages are; "" if they are not served."""


OnReady = Callable[[ReadyMessage], None]


def ignore_ready(_message: ReadyMessage) -> None:
    """Do nothing, for callers that need no ready message."""


class InterruptedBySignalError(Exception):
    """Work that a signal stopped, once it has cleaned up."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """The code that shells report for a program that this signal ended."""
        return 128 + self.number


def find_loop_factory() -> _LoopFactory | None:
    """Return the factory of uvloop, or None for asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_program(
    work: Coroutine[Any, Any, None],
    *,
    loop_factory: _LoopFactory | None = None,
    stop_within_s: float | None = None,
) -> None:
    """Run a program until it ends by itself or SIGTERM or SIGINT cancels it.

    A second signal cancels the work that stops the program as well. With `stop_within_s` it does
    not, because the kernel ends the process when it takes longer to stop; the signals are then
    handled at once, also while work holds the event loop.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_until_signal(work, stop_within_s))


async def _until_signal(work: Coroutine[Any, Any, None], stop_within_s: float | None) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()

    def stop(_number: int, _frame: object) -> None:
        # NB: by the kernel, because no code of this process is sure to run in time.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, stop_within_s or 0.0)
        if not task.cancelling():
            loop.call_soon_threadsafe(task.cancel)

    for number in _STOP_SIGNALS:
        if stop_within_s is None:
            loop.add_signal_handler(number, task.cancel)
        else:
            # NB: handlers of the loop would wait while work holds it.
            signal.signal(number, stop)
    with suppress(asyncio.CancelledError):
        await task
    if stop_within_s is not None:
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_interruptible(work: Coroutine[Any, Any, _T]) -> _T:
    """Return the result of work; SIGTERM, SIGINT or SIGHUP cancels it.

    Raises InterruptedBySignalError when the cancelled work has ended. Further signals are ignored
    until then, because `timeout` and terminals that close send several: work must clean up within
    a bounded time. A signal that the process ignores, as SIGHUP under nohup, stays ignored.
    """
    with asyncio.Runner() as runner:
        return runner.run(_until_result(work))


async def _until_result(work: Coroutine[Any, Any, _T]) -> _T:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not received:
            task.cancel()
        received.append(number)

    loop = asyncio.get_running_loop()
    for number in _INTERRUPTING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    await asyncio.wait((task,))
    if received:
        error = None if task.cancelled() else task.exception()
        raise InterruptedBySignalError(received[0]) from error
    return task.result()


class Parts:
    """The running parts of a program; `stop` must be awaited whatever happens."""

    def __init__(
        self, coroutines: Iterable[Coroutine[Any, Any, Any]] = (), *, are_endless: bool = False
    ) -> None:
        """Start the coroutines in their order; this needs a running event loop.

        Of endless parts, one that ends by itself has failed.
        """
        self._are_endless = are_endless
        self._tasks: list[asyncio.Task[Any]] = []
        self._raised: set[asyncio.Future[Any]] = set()
        for coroutine in coroutines:
            self.start(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start one more part."""
        self._tasks.append(asyncio.create_task(coroutine))

    async def until(self, awaited: Awaitable[_T]) -> _T:
        """Return the result of the awaitable; raise the error of a part that fails before."""
        main = asyncio.ensure_future(awaited)
        pending: set[asyncio.Future[Any]] = {main, *self._tasks}
        try:
            while True:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {main}:
                    self._check(task)
                if main in done:
                    return main.result()
        finally:
            if not main.done():
                main.cancel()
                await asyncio.gather(main, return_exceptions=True)

    async def until_ended(self) -> None:
        """Return when all parts have ended; raise the error of the first that fails."""
        pending = set(self._tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._check(task)

    def _check(self, task: asyncio.Future[Any]) -> None:
        """Raise the error of a part that has ended."""
        # NB: the program would take the cancellation of a part for its own, and end without error.
        if task.cancelled():
            raise RuntimeError("a part of the program was cancelled")
        if task.exception() is not None:
            self._raised.add(task)
        task.result()
        if self._are_endless:
            raise RuntimeError("a part of the program ended")

    async def stop(self) -> None:
        """Cancel the parts, the last one first, each before the next.

        Their errors are logged, apart from those that were raised before.
        """
        tasks, self._tasks = self._tasks, []
        try:
            while tasks:
                task = tasks.pop()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                error = None if task.cancelled() else task.exception()
                if error is not None and task not in self._raised:
                    part = getattr(task.get_coro(), "__qualname__", "")
                    _log.error("part failed", part=part, exc_info=error)
        finally:
            # NB: some are left only if this was cancelled too.
            for task in tasks:
                task.cancel()


async def run_parts(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> None:
    """Run parts until all have ended, one fails or this is cancelled; then stop all of them."""
    parts = Parts(coroutines)
    try:
        await parts.until_ended()
    finally:
        await parts.stop()


@asynccontextmanager
async def beside(coroutine: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Run a coroutine for the time of the block; its errors are logged at the end."""
    part = Parts((coroutine,))
    try:
        yield
    finally:
        await part.stop()


async def keep_running(run: Callable[[], Awaitable[None]], *, what: str, after_s: float) -> None:
    """Run a part until it returns; log any error, and run it again after a pause."""
    while True:
        try:
            return await run()
        except Exception:  # noqa: BLE001 - logged, and the program goes on
            _log.exception(f"{what} failed and is restarted", after_s=after_s)
            await asyncio.sleep(after_s)


async def tune_garbage_collection(
    is_ready: asyncio.Event, is_idle: Callable[[], bool], *, clock: Clock
) -> None:
    """Disable the collector until the first work is done, then freeze all present objects.

    When cancelled before that, leave the collector as it was.
    """
    gc.disable()
    try:
        await is_ready.wait()
        for _ in range(_MAX_IDLE_POLLS):
            if is_idle():
                break
            await clock.sleep(IDLE_POLL_S)
        gc.set_threshold(GC_THRESHOLD)
        gc.freeze()
    finally:
        gc.enable()
