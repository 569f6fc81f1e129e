"""Following the changes of some stores, for the controllers that run inside the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from keepclose.apiserver.storage.entries import Change
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.store import Store
from keepclose.apiserver.storage.subscriptions import Subscription

# The loop goes on after so much work.
_TURN_SECONDS: Final = 0.005
# Thousands that are due at once share the loop: a fifth of it is theirs.
_PAUSE_SECONDS: Final = 4 * _TURN_SECONDS


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
    handle: Callable[[Change], Iterator[None]],
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


async def follow_deadlines(
    store: Store,
    name: str,
    *,
    resume: Callable[[], Iterator[None]],
    handle: Callable[[Change], None],
    end_due: Callable[[], float | None],
) -> None:
    """Have the changes of a store handled and what is due ended, until the store is closed.

    `end_due` ends what is due and returns in how many seconds more is; when that is 0 or less,
    others have most of the time until the next call.
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
