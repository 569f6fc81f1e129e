"""Ends what has fallen silent: a connection whose other end is gone may stay open for ever.

Costs nothing for each event but a look at the clock; there is no timer to set anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from keepclose.kube.clock import Clock


class Watchdog:
    """Looks after one reading at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard_at = clock.monotonic()

    def hear(self) -> None:
        """Note that something came just now."""
        self._heard_at = self._clock.monotonic()

    async def guard(
        self, reading: Coroutine[object, object, None], patience_s: Callable[[], float]
    ) -> bool:
        """Run the reading; return whether it ended by itself, and let its errors through.

        False means that nothing came for as long as the patience of that moment, and that the
        reading was cancelled and has ended.
        """
        self.hear()
        task = asyncio.ensure_future(reading)
        try:
            while not task.done():
                left = self._heard_at + patience_s() - self._clock.monotonic()
                if left <= 0:
                    return False
                try:
                    await self._clock.wait_for(asyncio.wait((task,)), left)
                except TimeoutError:
                    continue
            task.result()
            return True
        finally:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()
