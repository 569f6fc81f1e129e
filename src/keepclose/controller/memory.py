"""The garbage collector is kept away from what a controller holds.

Caches and states are large, live long and hold no cycles; a collector that walks through them again
and again takes more time than all other work, and halts everything meanwhile. It rests while the
caches fill and the first syncs are made. Then all that is there is put out of its sight, and from
then on it looks only at what comes later, and not at every turn. Memory is freed by reference
counts all the time.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final

from keepclose.kube.clock import Clock

# How many more containers than before make the collector look.
THRESHOLD: Final = 20_000
LOOK_S: Final = 1.0
# A queue that never empties must not keep the collector away for ever.
MOST_LOOKS: Final = 600


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
