"""A cache that follows a server, and a record of all that its handlers were told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.requests import CONFIG_MAPS
from keepclose.kube.watch.reflector import IDLE_S, Reflector
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.meta import NamespacedName
from support.real.apis import CLOCK, ONCE, opened, wait_until


class Impatient(Random):
    """Draws the shortest delay each time, so that a test need not wait for a long one."""

    def uniform(self, a: float, b: float) -> float:
        """Return the lower end."""
        return min(a, b)


class Follower:
    """ConfigMaps of one namespace as a reflector sees them."""

    def __init__(self, client: Client, namespace: str, *, idle_s: float) -> None:
        self.namespace = namespace
        self.cache = Cache[ConfigMap]()
        self.told: dict[NamespacedName, ConfigMap] = {}
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            self.cache,
            clock=CLOCK,
            namespace=namespace,
            random=Impatient(1),
            idle_s=idle_s,
        )
        self.cache.subscribe(self._hear)

    def _hear(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        known = new or old
        assert known is not None
        key = known.metadata.key
        assert self.told.pop(key, None) == old
        if new is not None:
            self.told[key] = new

    async def expect_equality(self, client: Client) -> None:
        """Return when cache and handlers hold exactly what the server has."""
        page = await client.list_all(CONFIG_MAPS, namespace=self.namespace)
        want = {one.metadata.key: one for one in page.items}
        await wait_until(lambda: self.cache.snapshot() == want, "the cache equals a fresh list")
        assert self.told == want


@asynccontextmanager
async def following(
    kubeconfig: Path, namespace: str, *, idle_s: float = IDLE_S
) -> AsyncIterator[Follower]:
    """Run a follower for the time of the block, which begins when its cache is complete."""
    async with opened(kubeconfig, retries=ONCE) as client:
        follower = Follower(client, namespace, idle_s=idle_s)
        running = asyncio.ensure_future(follower.reflector.run())
        try:
            await wait_until(follower.reflector.synced.is_set, "the cache is complete")
            yield follower
            assert not running.done(), "the reflector ended by itself"
        finally:
            running.cancel()
            await asyncio.wait((running,))
