"""Blocking calls in a worker thread, and what happens to them when the waiting task is cancelled.

A thread cannot be stopped, so a call that has started continues after the waiting task was
cancelled. Either its result is a resource, which the thread itself then releases
(`open_in_thread`), or the call changes something, and then the cancellation waits for its end
(`finish_in_thread`). Neither relies on the event loop: a loop that ends cancels every task and runs
no further callback while the thread still works.

A program without an event loop bounds the time of a call with `call_within`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _Handover(Generic[_T]):
    """A resource on its way from the worker thread to the task that waits for it."""

    def __init__(self, release: Callable[[_T], object]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._offered: list[_T] = []
        self._is_abandoned = False

    def offer(self, resource: _T) -> _T:
        """Hand over the resource; release it if the waiting task was cancelled."""
        with self._lock:
            self._offered.append(resource)
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self._release(resource)
        return resource

    def abandon(self) -> None:
        """Stop waiting for the resource; release it if it exists already."""
        with self._lock:
            self._is_abandoned = True
            offered = list(self._offered)
        for resource in offered:
            self._release(resource)


def call_within(seconds: float, call: Callable[[], _T], stop: Callable[[], object]) -> _T:
    """Return what a call returns, raise what it raises; raise TimeoutError if it takes longer.

    A call that takes longer, or that an interrupt ends, continues in its thread until it notices
    `stop`, which may raise OSError. Its thread does not keep the process from ending.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_late = True
    try:
        thread.join(seconds)
        is_late = thread.is_alive()
    finally:
        if is_late:
            with suppress(OSError):
                stop()
    if is_late:
        message = f"it takes longer than {seconds:.0f} s"
        raise TimeoutError(message)
    if errors:
        raise errors[0]
    return results[0]


async def open_in_thread(make: Callable[[], _T], release: Callable[[_T], object]) -> _T:
    """Return the resource that a worker thread creates; raise what `make` raises.

    When the waiting task is cancelled, the resource is released as soon as it exists.
    """
    handover = _Handover(release)
    try:
        return await asyncio.to_thread(lambda: handover.offer(make()))
    except BaseException:
        handover.abandon()
        raise


async def ask_in_thread(question: Callable[[], _T]) -> _T:
    """Return the result of a call in a worker thread; raise what it raises.

    A cancelled caller does not wait: the call goes on to its end, and its result is dropped.
    """
    return await open_in_thread(question, _drop)


def _drop(_result: object) -> None:
    """Drop a result that came too late and holds no resources."""


async def finish_in_thread(work: Callable[[], _T]) -> _T:
    """Return the result of a call in a worker thread; a cancellation is raised after its end.

    Raise what the call raises, unless the waiting task was cancelled.
    """
    # NB: a future, because an event loop that ends cancels tasks.
    return await finish_task(asyncio.get_running_loop().run_in_executor(None, work))


async def finish_task(work: Awaitable[_T]) -> _T:
    """Await the work to its end, and raise a cancellation only then."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            # The caller gets the cancellation; asyncio must not log the other error as unhandled.
            future.exception()
        raise cancelled
    return future.result()
