"""Following the changes of some stores, for the controllers that run inside the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from keepclose.apiserver.storage.entries import Change
from keepclose.apiserver.storage.errors import Closed, Overflow
from keepclose.apiserver.storage.store import Store
from keepclose.apiserver.storage.subscriptions import Subscription


async def follow_stores(
    store: Store,
    names: Iterable[str],
    *,
    resume: Callable[[], object],
    handle: Callable[[Change], object],
) -> None:
    """Look at everything once, then have every change handled, until the store is closed.

    Changes that were lost, because too many came at once, are made up for by another look.
    """
    # NB: all subscriptions stand before the first look, so that nothing falls between.
    followed = {name: store.subscribe(name, since=None) for name in names}

    async def follow(name: str, subscription: Subscription) -> None:
        while True:
            try:
                for change in await subscription.next():
                    handle(change)
            except Overflow:
                subscription = followed[name] = store.subscribe(name, since=None)
                resume()
            except Closed:
                return

    try:
        resume()
        async with asyncio.TaskGroup() as group:
            for name, subscription in list(followed.items()):
                group.create_task(follow(name, subscription))
    finally:
        for subscription in followed.values():
            subscription.close()
