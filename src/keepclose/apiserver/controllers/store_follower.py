"""Following the changes of some stores, for the controllers that run inside the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from keepclose.apiserver.storage.entries import StoredChange
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.history import Subscription
from keepclose.apiserver.storage.store import Store

# The loop goes on after so much work.
_TURN_SECONDS: Final = 0.005


async def take_turns(steps: Iterator[None]) -> None:
    """Take all steps, and let the event loop go on in between."""
    end = time.perf_counter() + _TURN_SECONDS
    for _ in steps:
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + _TURN_SECONDS


async def follow_stores(
    store: Store,
    names: Iterable[str],
    *,
    resume: Callable[[], Iterator[None]],
    handle: Callable[[StoredChange], Iterator[None]],
) -> None:
    """Look at everything once, then have every change handled, until the store is closed.

    Changes that were lost, because too many came at once, are made up for by another look. Both
    go by steps, each of which is quick.
    """
    # NB: all subscriptions stand before the first look, so that nothing falls between.
    followed = {name: store.subscribe(name, since=None) for name in names}

    async def follow(name: str, subscription: Subscription) -> None:
        while True:
            try:
                changes = await subscription.next()
                await take_turns(step for change in changes for step in handle(change))
            except Overflow:
                subscription = followed[name] = store.subscribe(name, since=None)
                await take_turns(resume())
            except Closed:
                return

    try:
        await take_turns(resume())
        async with asyncio.TaskGroup() as group:
            for name, subscription in list(followed.items()):
                group.create_task(follow(name, subscription))
    finally:
        for subscription in followed.values():
            subscription.close()
