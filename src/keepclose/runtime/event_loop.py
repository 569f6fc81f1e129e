"""The event loop that long-running commands use, and the signals that end them.

uvloop is quicker and 14 MB large, so it comes with the extra `server` only; where it is not
installed, asyncio's own loop does the work. Nothing may depend on which of the two it is.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from keepclose.kube.clock import Clock

ENDING: Final = (signal.SIGTERM, signal.SIGINT)
# How many more containers than before make the collector look.
THRESHOLD: Final = 20_000
LOOK_S: Final = 1.0
# A queue that never empties must not keep the collector away for ever.
MOST_LOOKS: Final = 600


def find_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the quicker loop, or None for asyncio's own."""
    try:
        import uvloop  # noqa: PLC0415 - not everybody has it
    except ImportError:
        return None
    return uvloop.new_event_loop


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends by itself, or a signal asks for its end and it is cancelled."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def settle_memory(
    is_ready: asyncio.Event, is_idle: Callable[[], bool], *, clock: Clock
) -> None:
    """Keep the collector away until the first work is done, then let it see only what is new.

    Cancelled before that, it leaves the collector as it was.
    """
    gc.disable()
    try:
        await is_ready.wait()
        for _ in range(MOST_LOOKS):
            if is_idle():
                break
            await clock.sleep(LOOK_S)
        gc.set_threshold(THRESHOLD)
        gc.freeze()
    finally:
        gc.enable()
