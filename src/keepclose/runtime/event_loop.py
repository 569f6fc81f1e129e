"""The event loop of long-running commands, the signals that stop them, and garbage collection.

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
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from keepclose.kube.clock import Clock

# How many new containers start a collection.
GC_THRESHOLD: Final = 20_000
IDLE_POLL_S: Final = 1.0
# A queue that never empties must not disable the collector forever.
_MAX_IDLE_POLLS: Final = 600
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop, or None for asyncio's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return uvloop.new_event_loop


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run the work until it ends by itself; SIGTERM and SIGINT cancel it."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


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
