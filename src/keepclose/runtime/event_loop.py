"""The event loop that long-running commands use, and the signals that end them.

uvloop is quicker and 14 MB large, so it comes with the extra `server` only; where it is not
installed, asyncio's own loop does the work. Nothing may depend on which of the two it is.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)


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
