"""Many requests to one server, a few at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final

AT_ONCE: Final = 8


async def do_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it, a few at once, begun in the order given."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def do(one: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await one

    begun = list(work)
    try:
        async with asyncio.TaskGroup() as group:
            for one in begun:
                group.create_task(do(one))
    finally:
        for one in begun:  # What was never started would be a warning in some later test.
            one.close()
