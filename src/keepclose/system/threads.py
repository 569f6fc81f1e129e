"""Blocking calls made by a worker thread, and what becomes of them when the waiter is cancelled.

A thread cannot be stopped, so a call that has begun goes on after the task that waited for it was
cancelled. Either the thread's result is a resource, which the thread itself then releases
(`open_in_thread`), or the call changes something, and then cancellation waits for its end
(`finish_in_thread`). Neither relies on the event loop: a loop that ends cancels every task and runs
no further callback, while the thread is still at work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

_T = TypeVar("_T")


class _Handover(Generic[_T]):
    """A resource on its way from the worker thread to the task that waits for it."""

    def __init__(self, release: Callable[[_T], object]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._made: list[_T] = []
        self._is_abandoned = False

    def offer(self, resource: _T) -> _T:
        """Hand the resource over; release it where the waiter has left."""
        with self._lock:
            self._made.append(resource)
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self._release(resource)
        return resource

    def abandon(self) -> None:
        """Leave without the resource; release it if it is there already."""
        with self._lock:
            self._is_abandoned = True
            made = list(self._made)
        for resource in made:
            self._release(resource)


async def open_in_thread(make: Callable[[], _T], release: Callable[[_T], object]) -> _T:
    """Return the resource that a worker thread makes; raises what `make` raises.

    When the waiting task is cancelled, the resource is released as soon as it exists.
    """
    handover = _Handover(release)
    try:
        return await asyncio.to_thread(lambda: handover.offer(make()))
    except BaseException:
        handover.abandon()
        raise


async def finish_in_thread(work: Callable[[], _T]) -> _T:
    """Return what a worker thread's call returns; cancellation is raised after the call has ended.

    Raises what the call raises, unless the waiting task was cancelled.
    """
    # NB: a future, because the end of the event loop cancels tasks.
    return await finish_task(asyncio.get_running_loop().run_in_executor(None, work))


async def finish_task(work: Awaitable[_T]) -> _T:
    """Await work to its end, and raise a cancellation only then."""
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            # The cancellation is what the caller gets; asyncio must not complain about the other.
            future.exception()
        raise cancelled
    return future.result()
