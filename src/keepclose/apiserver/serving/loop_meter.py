"""How long the event loop is held at a time, in CPU time of its thread.

A timer that comes late means that something kept the loop, or that the machine has other work. CPU
time tells the two apart: between two beats of an idle loop next to none is spent, whatever else
runs, and a request that holds the loop shows with all that it took. Beats come only while there are
requests, so that an idle server sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

BEAT_SECONDS: Final = 0.01
# The loop is looked at for so long after a request, because watchers hear of its change later.
REST_BEATS: Final = 100


class LoopMeter:
    """Reports what CPU time passed between two beats of the running loop."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        """Report to the function."""
        self._observe = observe
        self._left = 0
        self._since = 0.0

    @property
    def beating(self) -> bool:
        """Whether the loop is being looked at."""
        return self._left > 0

    def wake(self) -> None:
        """Begin to look, or go on."""
        if self._left == 0:
            self._since = time.thread_time()
            asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)
        self._left = REST_BEATS

    def _beat(self) -> None:
        now = time.thread_time()
        self._observe(now - self._since)
        self._since = now
        self._left -= 1
        if self._left:
            asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)
