"""Watches of our client on both servers: where they begin, what they bring, how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import ServerError
from keepclose.kube.requests import CONFIG_MAPS
from keepclose.kube.watch.reflector import Reflector
from keepclose.kube.watch.stream import WatchEvent
from keepclose.model.core_kinds import ConfigMap
from support.real.apis import ONCE, Api, config_map, opened, wait_until

Events = AsyncIterator[WatchEvent[ConfigMap]]


@pytest.fixture
async def client(api: Api) -> AsyncIterator[Client]:
    """Connect as an administrator."""
    async with opened(api.kubeconfig) as connected:
        yield connected


async def _take(events: Events, count: int) -> list[tuple[str, str, str]]:
    """Return type, name and value of the next changes; bookmarks do not count."""
    taken: list[tuple[str, str, str]] = []
    async with asyncio.timeout(60):
        while len(taken) < count:
            event = await anext(events)
            if event.object is not None:
                name, value = event.object.metadata.name, event.object.data.get("value", "")
                taken.append((event.type, name, value))
    return taken


async def _write(client: Client, namespace: str, values: Sequence[str], name: str = "m") -> None:
    for value in values:
        patch = {"data": {"value": value}}
        await client.patch(CONFIG_MAPS, name, patch, namespace=namespace)


async def test_a_watch_goes_on_where_another_one_ended(client: Client, namespace: str) -> None:
    """From the version of an event on, everything later comes once."""
    await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
    page = await client.list_all(CONFIG_MAPS, namespace=namespace)
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=page.resource_version
    ) as events:
        await _write(client, namespace, ["2"])
        async with asyncio.timeout(60):
            event = await anext(events)
        assert event.object is not None
        assert (event.type, event.object.data) == ("MODIFIED", {"value": "2"})
    await _write(client, namespace, ["3", "4"])
    await client.delete(CONFIG_MAPS, "m", namespace=namespace)
    async with client.watch(
        CONFIG_MAPS, namespace=namespace, resource_version=event.resource_version
    ) as events:
        assert await _take(events, 3) == [
            ("MODIFIED", "m", "3"),
            ("MODIFIED", "m", "4"),
            ("DELETED", "m", "4"),
        ]


async def test_a_watch_ends_cleanly_with_a_bookmark(client: Client, namespace: str) -> None:
    """After its time the stream just ends, and a bookmark says from where to go on."""
    page = await client.list_all(CONFIG_MAPS, namespace=namespace)
    await client.create(CONFIG_MAPS, config_map("m"), namespace=namespace)
    async with (
        asyncio.timeout(60),
        client.watch(
            CONFIG_MAPS,
            namespace=namespace,
            resource_version=page.resource_version,
            timeout_seconds=4,
        ) as events,
    ):
        seen = [await anext(events)]
        await client.create(CONFIG_MAPS, config_map(namespace), namespace="default")
        seen += [event async for event in events]
    assert [event.type for event in seen if event.type != "BOOKMARK"] == ["ADDED"]
    assert seen[-1].type == "BOOKMARK"
    assert int(seen[-1].resource_version) >= int(seen[0].resource_version)


async def test_a_watch_selects(client: Client, namespace: str) -> None:
    """What comes to match is added, what ceases to is deleted, the rest is not told."""
    await client.create(CONFIG_MAPS, config_map("m", tier="a"), namespace=namespace)
    await client.create(CONFIG_MAPS, config_map("n", tier="b"), namespace=namespace)
    page = await client.list_all(CONFIG_MAPS, namespace=namespace)
    async with client.watch(
        CONFIG_MAPS,
        namespace=namespace,
        label_selector="tier=a",
        resource_version=page.resource_version,
    ) as events:
        for name, tier in (("n", "c"), ("n", "a"), ("m", "b")):
            label = {"metadata": {"labels": {"tier": tier}}}
            await client.patch(CONFIG_MAPS, name, label, namespace=namespace)
        assert await _take(events, 2) == [("ADDED", "n", "1"), ("DELETED", "m", "1")]
    page = await client.list_all(CONFIG_MAPS, namespace=namespace)
    async with client.watch(
        CONFIG_MAPS,
        namespace=namespace,
        field_selector="metadata.name=n",
        resource_version=page.resource_version,
    ) as events:
        await _write(client, namespace, ["9"], name="m")
        await _write(client, namespace, ["7"], name="n")
        assert await _take(events, 1) == [("MODIFIED", "n", "7")]


@pytest.mark.parametrize("version", ["", "0"])
@pytest.mark.parametrize("is_asked", [False, True])
async def test_a_watch_begins_with_what_is_there_where_the_server_can(
    version: str, is_asked: bool, api: Api, client: Client, namespace: str
) -> None:
    """Asked for or implied, what exists comes first; an etcd without progress reports fails."""
    for name in ("a", "b"):
        await client.create(CONFIG_MAPS, config_map(name), namespace=namespace)
    async with (
        asyncio.timeout(60),
        client.watch(
            CONFIG_MAPS,
            namespace=namespace,
            resource_version=version,
            send_initial_events=is_asked,
        ) as events,
    ):
        if api.make == "real":
            with pytest.raises(ServerError, match="RequestWatchProgress is disabled"):
                await anext(events)
            return
        assert await _take(events, 2) == [("ADDED", "a", "1"), ("ADDED", "b", "1")]
        if is_asked:
            assert (await anext(events)).initial_events_end
        await _write(client, namespace, ["2"], name="b")
        assert await _take(events, 1) == [("MODIFIED", "b", "2")]


async def test_a_reflector_falls_back_to_lists_where_streams_fail(
    api: Api, client: Client, namespace: str
) -> None:
    """Whichever way the server knows, the cache is complete soon and follows."""
    await client.create(CONFIG_MAPS, config_map("a"), namespace=namespace)
    async with opened(api.kubeconfig, retries=ONCE) as own:
        reflector = Reflector(
            own, CONFIG_MAPS, Cache[ConfigMap](), clock=SystemClock(), namespace=namespace
        )
        running = asyncio.ensure_future(reflector.run())
        try:
            async with asyncio.timeout(60):
                await reflector.synced.wait()
            assert [one.metadata.name for one in reflector.cache.all()] == ["a"]
            want_attempts = 2 if api.make == "real" else 1
            assert (reflector.lists, reflector.errors) == (want_attempts, 0)
            await client.create(CONFIG_MAPS, config_map("b"), namespace=namespace)
            await wait_until(lambda: len(reflector.cache) == 2, "the new object is in the cache")
            assert reflector.relists == 0
        finally:
            running.cancel()
            await asyncio.wait((running,))
