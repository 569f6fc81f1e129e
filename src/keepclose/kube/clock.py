"""The interface of time: everything in this package that waits or reads a clock uses it.

A test passes a clock that it moves itself, so that an hour of backoff takes no time and happens in
the same order every run. The transport waits for the bytes of sockets by itself, but takes its
timeouts from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Clock(Protocol):
    """Wall-clock time, monotonic time, sleeps and timeouts."""

    def now(self) -> float:
        """Return the wall-clock time in seconds since 1970; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since a fixed moment; they never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds; 0 and less only yield to other tasks."""
        ...

    async def wait_for(self, awaitable: Awaitable[_T], timeout: float | None) -> _T:  # noqa: ASYNC109
        """Return the result of the awaitable, or cancel it and raise TimeoutError.

        A timeout of None means no limit.
        """
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Return the wall-clock time."""
        return time.time()

    def monotonic(self) -> float:
        """Return the monotonic time."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(max(0.0, seconds))

    async def wait_for(self, awaitable: Awaitable[_T], timeout: float | None) -> _T:  # noqa: ASYNC109
        """Wait on the running event loop."""
        if timeout is None:
            return await awaitable
        async with asyncio.timeout(timeout):
            return await awaitable
