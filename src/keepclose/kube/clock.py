"""Time as one seam: everything in this package that waits or reads a clock does it here.

A test hands in a clock that it moves itself, so that an hour of backoff takes no time and happens
in the same order every run. Waits for bytes of a socket are the transport's; their limits are
still counted here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

_T = TypeVar("_T")


class Clock(Protocol):
    """What a program may know about time."""

    def now(self) -> float:
        """Return the wall clock's time in seconds since 1970; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds since some moment; they never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after that many seconds; 0 and less only let others run."""
        ...

    async def wait_for(self, awaitable: Awaitable[_T], timeout: float | None) -> _T:  # noqa: ASYNC109
        """Return what the awaitable gives, or cancel it and raise TimeoutError.

        None waits for as long as it takes.
        """
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        """Return the wall clock's time."""
        return time.time()

    def monotonic(self) -> float:
        """Return the time that never goes back."""
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
