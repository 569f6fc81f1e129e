"""Watches: where they begin, what selectors make of changes, how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.negotiation import ResponseForm, ResponseShape
from keepclose.apiserver.serving.options import RequestTarget, parse_query, read_list_options
from keepclose.apiserver.serving.watching import Watch
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import PATIENCE

MAP = BY_KIND["v1", "ConfigMap"]


def _map(name: str, namespace: str = "default", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": f"u-{name}", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


class Watcher:
    """Reads the events of a watch one by one."""

    def __init__(
        self,
        store: Store,
        query: str = "",
        *,
        namespace: str = "",
        form: ResponseForm | None = None,
    ) -> None:
        options = read_list_options(parse_query(f"watch=1&{query}"))
        self.watch = Watch(store, RequestTarget(MAP, namespace), options, form or ResponseForm())
        self.frames: AsyncIterator[bytes] = self.watch.frames()
        self._lines: list[bytes] = []

    async def event(self) -> dict[str, Any]:
        """Return the next event."""
        while not self._lines:
            async with asyncio.timeout(PATIENCE):
                self._lines = (await anext(self.frames)).splitlines()
        found: dict[str, Any] = json.loads(self._lines.pop(0))
        return found

    async def told(self) -> tuple[str, str, int]:
        """Return type, name and version of the next event."""
        event = await self.event()
        metadata = event["object"]["metadata"]
        return event["type"], metadata.get("name", ""), int(metadata["resourceVersion"])


async def test_a_watch_from_nowhere_begins_with_what_is_there() -> None:
    """Without a version everything is told as added, then every change."""
    store = Store.open(None)
    first = store.create("configmaps", _map("a")).version
    watcher = Watcher(store)
    assert await watcher.told() == ("ADDED", "a", first)
    changed = store.update("configmaps", _map("a", x="1")).version
    assert await watcher.told() == ("MODIFIED", "a", changed)
    gone = store.delete("configmaps", "default", "a").version
    assert await watcher.told() == ("DELETED", "a", gone)


async def test_a_watch_from_a_version_tells_what_came_after() -> None:
    """Nothing is missed and nothing is told twice."""
    store = Store.open(None)
    start = store.create("configmaps", _map("a")).version
    second = store.create("configmaps", _map("b")).version
    watcher = Watcher(store, f"resourceVersion={start}")
    third = store.create("configmaps", _map("c")).version
    assert await watcher.told() == ("ADDED", "b", second)
    assert await watcher.told() == ("ADDED", "c", third)


async def test_the_initial_list_can_be_streamed() -> None:
    """With sendInitialEvents a bookmark marks the end of what was there."""
    store = Store.open(None)
    version = store.create("configmaps", _map("a")).version
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    watcher = Watcher(store, query)
    assert await watcher.told() == ("ADDED", "a", version)
    mark = await watcher.event()
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"] == {
        "resourceVersion": str(version),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }


async def test_selectors_turn_changes_into_coming_and_going() -> None:
    """What begins to match is added, what ceases to match is deleted with its last state."""
    store = Store.open(None)
    start = store.create("configmaps", _map("a", app="api")).version
    query = f"resourceVersion={start}&labelSelector=app%3Dweb&allowWatchBookmarks=1"
    watcher = Watcher(store, query)
    comes = store.update("configmaps", _map("a", app="web")).version
    assert await watcher.told() == ("ADDED", "a", comes)
    stays = store.update("configmaps", _map("a", app="web", x="1")).version
    assert await watcher.told() == ("MODIFIED", "a", stays)
    goes = store.update("configmaps", _map("a", app="api")).version
    event = await watcher.event()
    assert (event["type"], event["object"]["metadata"]["labels"]["x"]) == ("DELETED", "1")
    assert event["object"]["metadata"]["resourceVersion"] == str(goes)
    store.delete("configmaps", "default", "a")
    again = store.create("configmaps", _map("b", app="web")).version
    assert await watcher.told() == ("ADDED", "b", again)


async def test_a_namespace_hears_of_its_own_only() -> None:
    """A watch of a namespace is not told of others."""
    store = Store.open(None)
    watcher = Watcher(store, namespace="here")
    store.create("configmaps", _map("a", namespace="there"))
    version = store.create("configmaps", _map("b", namespace="here")).version
    assert await watcher.told() == ("ADDED", "b", version)


async def test_a_version_that_is_gone_is_an_error_event() -> None:
    """The client learns in the stream that it must list again."""
    store = Store.open(None)
    start = store.create("configmaps", _map("a")).version
    store.create("configmaps", _map("b"))
    store.compact()
    watcher = Watcher(store, f"resourceVersion={start}")
    event = await watcher.event()
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"].startswith(f"too old resource version: {start} (")
    with pytest.raises(StopAsyncIteration):
        await watcher.event()


async def test_a_watcher_who_falls_behind_is_let_go() -> None:
    """Nothing piles up for a client that does not read: it gets 410 and must list again."""
    store = Store.open(None)
    store.create("configmaps", _map("a"))
    options = read_list_options({"resourceVersion": str(store.version)})
    watcher = Watcher(store)
    watcher.watch = Watch(store, RequestTarget(MAP), options, ResponseForm(), most_waiting=3)
    watcher.frames = watcher.watch.frames()
    for number in range(5):
        store.update("configmaps", _map("a", x=str(number)))
    event = await watcher.event()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


async def test_a_watch_ends_in_time_with_a_bookmark() -> None:
    """The last bookmark says from where to go on, also past changes of other kinds."""
    store = Store.open(None)
    watcher = Watcher(store, "timeoutSeconds=1&allowWatchBookmarks=true")
    other = store.create("pods", {**_map("x"), "kind": "Pod"}).version
    assert await watcher.told() == ("BOOKMARK", "", other)
    with pytest.raises(StopAsyncIteration):
        await watcher.event()


async def test_tables_describe_their_columns_once() -> None:
    """A watcher who prints gets rows, with the columns before the first."""
    store = Store.open(None)
    store.create("configmaps", _map("a"))
    store.create("configmaps", _map("b"))
    watcher = Watcher(store, form=ResponseForm(ResponseShape.TABLE))
    first, second = await watcher.event(), await watcher.event()
    assert first["object"]["kind"] == "Table"
    assert first["object"]["columnDefinitions"][0]["name"] == "Name"
    assert first["object"]["rows"][0]["cells"][0] == "a"
    assert second["object"]["columnDefinitions"] is None
    assert second["object"]["rows"][0]["cells"][0] == "b"


async def test_metadata_alone_can_be_watched() -> None:
    """A watcher who wants metadata gets nothing else."""
    store = Store.open(None)
    store.create("configmaps", {**_map("a"), "data": {"secret": "x"}})
    watcher = Watcher(store, form=ResponseForm(ResponseShape.METADATA))
    found = (await watcher.event())["object"]
    assert (found["kind"], found["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    assert set(found) == {"kind", "apiVersion", "metadata"}


async def test_large_objects_are_sent_in_portions() -> None:
    """No frame holds more than a mebibyte of objects, unless a single one is larger."""
    store = Store.open(None)
    for number in range(5):
        store.create("configmaps", {**_map(f"old-{number}"), "data": {"a": "x" * 400_000}})
    watcher = Watcher(store)
    for number in range(5):
        store.create("configmaps", {**_map(f"new-{number}"), "data": {"a": "x" * 400_000}})
    store.create("configmaps", {**_map("larger"), "data": {"a": "x" * 1_500_000}})
    names: list[list[str]] = []
    for _ in range(7):
        frame = await anext(watcher.frames)
        names.append(
            [json.loads(line)["object"]["metadata"]["name"] for line in frame.splitlines()]
        )
    assert names == [
        ["old-0", "old-1"],
        ["old-2", "old-3"],
        ["old-4"],
        ["new-0", "new-1"],
        ["new-2", "new-3"],
        ["new-4"],
        ["larger"],
    ]
