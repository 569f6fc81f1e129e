"""The loop of the controllers inside the server: a scan of all objects, then one call per change.

It stands for the informer of a controller outside. When changes are lost, because too many came at
once, it scans again. Scans and handlers run in short steps, so that they never block the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from keepclose.apiserver.storage.entries import StoredChange
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.history import Subscription
from keepclose.apiserver.storage.store import Store

# After this much work a controller yields to the event loop.
_TURN_SECONDS: Final = 0.005
# Thousands of objects that are due at once get a fifth of the time of the event loop.
_PAUSE_SECONDS: Final = 4 * _TURN_SECONDS


async def take_turns(steps: Iterator[None]) -> None:
    """Run all steps, and yield to the event loop in between."""
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
    """Run `resume` once, then `handle` for every change, until the store is closed.

    When changes are lost, because too many came at once, `resume` runs again. Both are iterators
    over short steps.
    """
    # NB: all subscriptions begin before the first scan, so that no change is missed.
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


async def follow_deadlines(
    store: Store,
    name: str,
    *,
    resume: Callable[[], Iterator[None]],
    handle: Callable[[StoredChange], None],
    end_due: Callable[[], float | None],
) -> None:
    """Handle the changes of a store and its deadlines until the store is closed.

    `end_due` handles due objects and returns the seconds until the next one is due. It may return 0
    or less; other tasks then get most of the time until the next call.
    """
    subscription = store.subscribe(name, since=None)
    try:
        await take_turns(resume())
        while True:
            left = end_due()
            if left is not None and left <= 0:
                await asyncio.sleep(_PAUSE_SECONDS)
            try:
                async with asyncio.timeout(left):
                    changes = await subscription.next()
            except TimeoutError:
                continue
            except Overflow:
                subscription = store.subscribe(name, since=None)
                await take_turns(resume())
                continue
            for change in changes:
                handle(change)
    except Closed:
        return
    finally:
        subscription.close()
