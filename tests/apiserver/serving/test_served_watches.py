"""Watches over HTTP: across restarts, behind selectors, too slow, and ended in good order."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.resources import BY_KIND
from keepclose.testing.api_server import PATIENCE, Events, Served, serving

JsonObject = dict[str, Any]
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
MERGE_PATCH = "application/merge-patch+json"


def _map(name: str, **labels: str) -> JsonObject:
    return {"metadata": {"name": name, "labels": labels}}


async def _next(events: Events) -> JsonObject:
    event = await events.next()
    assert event is not None
    return event


async def test_a_watch_tells_everything_in_order(api: Served) -> None:
    """What is there, then additions, changes and deletions, each with its version."""
    first = await api.create(CONFIGMAPS, _map("one"))
    async with api.watch(CONFIGMAPS) as events:
        assert await events.next() == {"type": "ADDED", "object": first}
        second = await api.create(CONFIGMAPS, _map("two"))
        assert await events.next() == {"type": "ADDED", "object": second}
        patch = {"data": {"a": "b"}}
        changed = (await api.call("PATCH", f"{CONFIGMAPS}/one", patch, type=MERGE_PATCH)).json
        assert await events.next() == {"type": "MODIFIED", "object": changed}
        await api.call("DELETE", f"{CONFIGMAPS}/two")
        last = await _next(events)
        assert (last["type"], last["object"]["metadata"]["name"]) == ("DELETED", "two")
        versions = [
            int(one["metadata"]["resourceVersion"])
            for one in (first, second, changed, last["object"])
        ]
        assert versions == sorted(set(versions))


async def test_a_watch_goes_on_after_a_restart(tmp_path: Path) -> None:
    """From the last version seen, a new server on the same files tells every change since."""
    async with serving(tmp_path) as api:
        async with api.watch(CONFIGMAPS) as events:
            await api.create(CONFIGMAPS, _map("seen"))
            seen = (await _next(events))["object"]["metadata"]["resourceVersion"]
        # These are missed by the watcher, who is gone.
        await api.create(CONFIGMAPS, _map("missed"))
        await api.call("DELETE", f"{CONFIGMAPS}/seen")
    async with (
        serving(tmp_path) as api,
        api.watch(CONFIGMAPS, f"resourceVersion={seen}") as events,
    ):
        assert await events.take(2) == [("ADDED", "missed"), ("DELETED", "seen")]
        await api.create(CONFIGMAPS, _map("new"))
        assert await events.take(1) == [("ADDED", "new")]


async def test_a_watch_ends_cleanly_with_the_server(tmp_path: Path) -> None:
    """A server that stops ends its watches as complete answers, not as broken connections."""
    async with serving(tmp_path) as api, api.watch(CONFIGMAPS) as events:
        await api.create(CONFIGMAPS, _map("one"))
        assert await events.take(1) == [("ADDED", "one")]
        await api.server.stop()
        assert await events.next() is None


async def test_a_watch_has_its_time(api: Served) -> None:
    """With timeoutSeconds a watch ends, with a last bookmark for who wants bookmarks."""
    created = await api.create(CONFIGMAPS, _map("one"))
    async with api.watch(CONFIGMAPS, "timeoutSeconds=1&allowWatchBookmarks=true") as events:
        assert (await _next(events))["type"] == "ADDED"
        bookmark = await _next(events)
        assert bookmark["type"] == "BOOKMARK"
        version = bookmark["object"]["metadata"]["resourceVersion"]
        assert version == created["metadata"]["resourceVersion"]
        assert await events.next() is None


async def test_bookmarks_come_in_between(tmp_path: Path) -> None:
    """Changes elsewhere move the version that a quiet watcher may go on from."""
    async with (
        serving(tmp_path, bookmark_seconds=0.05) as api,
        api.watch(CONFIGMAPS, "allowWatchBookmarks=true") as events,
    ):
        node = await api.create("/api/v1/nodes", {"metadata": {"name": "n"}})
        version = ""
        while version != node["metadata"]["resourceVersion"]:
            bookmark = await _next(events)
            assert bookmark["type"] == "BOOKMARK"
            version = bookmark["object"]["metadata"]["resourceVersion"]


async def test_a_list_that_streams(api: Served) -> None:
    """With sendInitialEvents the objects come first and their end is marked."""
    for name in ("one", "two"):
        await api.create(CONFIGMAPS, _map(name))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with api.watch(CONFIGMAPS, query) as events:
        assert await events.take(2) == [("ADDED", "one"), ("ADDED", "two")]
        end = await _next(events)
        assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_selectors(api: Served) -> None:
    """An object that comes into the selection is added, and one that leaves it is deleted."""
    await api.create(CONFIGMAPS, _map("one", color="blue"))
    async with api.watch(CONFIGMAPS, "labelSelector=color%3Dred") as events:
        for color in ("red", "blue"):
            patch = {"metadata": {"labels": {"color": color}}}
            await api.call("PATCH", f"{CONFIGMAPS}/one", patch, type=MERGE_PATCH)
        assert await events.take(2) == [("ADDED", "one"), ("DELETED", "one")]
        await api.create(CONFIGMAPS, _map("two", color="red"))
        assert await events.take(1) == [("ADDED", "two")]


@pytest.mark.parametrize(
    ("query", "want_code", "want_text"),
    [
        pytest.param("resourceVersion=abc", 400, "invalid resource version", id="no version"),
        pytest.param("labelSelector=%3D", 400, "unable to parse", id="no selector"),
        pytest.param("fieldSelector=data%3Dx", 400, "not a known field selector", id="no field"),
        pytest.param("sendInitialEvents=true", 422, "requires setting", id="half of a list"),
        pytest.param("includeObject=Some", 400, "unrecognized includeObject", id="some objects"),
        pytest.param("timeoutSeconds=long", 400, "invalid syntax", id="a time in words"),
    ],
)
async def test_watches_that_are_refused(
    api: Served, query: str, want_code: int, want_text: str
) -> None:
    """Options that mean nothing are refused before the stream begins."""
    table = "application/json;as=Table;v=v1;g=meta.k8s.io"
    reply = await api.call("GET", f"{CONFIGMAPS}?watch=true&{query}", accept=table)
    assert reply.status == want_code
    assert want_text in reply.message


async def test_a_version_that_is_no_longer_known(api: Served) -> None:
    """A watch from before the kept history is told 410 and ends."""
    await api.create(CONFIGMAPS, _map("one"))
    await api.create(CONFIGMAPS, _map("two"))
    api.server.store.compact()
    async with api.watch(CONFIGMAPS, "resourceVersion=1") as events:
        error = await _next(events)
        assert (error["type"], error["object"]["code"]) == ("ERROR", 410)
        assert error["object"]["reason"] == "Expired"
        assert await events.next() is None


async def test_versions_that_are_still_to_come(api: Served) -> None:
    """A watch from the future gets what comes after it; a streamed list says it is too early."""
    created = await api.create(CONFIGMAPS, _map("one"))
    version = int(created["metadata"]["resourceVersion"]) + 2
    async with api.watch(CONFIGMAPS, f"resourceVersion={version}") as events:
        for name in ("two", "three", "four"):
            await api.create(CONFIGMAPS, _map(name))
        assert await events.take(1) == [("ADDED", "four")]
    query = (
        f"sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={version + 9}"
    )
    async with api.watch(CONFIGMAPS, query) as events:
        error = await _next(events)
        assert (error["type"], error["object"]["code"]) == ("ERROR", 504)
        assert error["object"]["details"]["retryAfterSeconds"] == 1
        assert await events.next() is None


async def test_metadata_and_tables_know_bookmarks(tmp_path: Path) -> None:
    """Bookmarks come in the form that the watcher asked for."""
    async with serving(tmp_path, bookmark_seconds=0.05) as api:
        for shape, kind in (("Table", "Table"), ("PartialObjectMetadata",) * 2):
            accept = f"application/json;as={shape};v=v1;g=meta.k8s.io"
            async with api.watch(CONFIGMAPS, "allowWatchBookmarks=true", accept=accept) as events:
                bookmark = await _next(events)
                assert (bookmark["type"], bookmark["object"]["kind"]) == ("BOOKMARK", kind)
                assert bookmark["object"]["metadata"]["resourceVersion"]


async def test_a_slow_watcher_is_let_go(api: Served) -> None:
    """Who reads nothing is dropped with 410 after 10,000 changes; until then memory is bounded."""
    host, port = api.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(api.ca))
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, limit=2**16)
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
    writer.write(f"GET {CONFIGMAPS}?watch=true {head}\r\n".encode())
    async with asyncio.timeout(PATIENCE):
        await reader.readuntil(b"\r\n\r\n")
    store = api.server.store
    maps = BY_KIND["v1", "ConfigMap"].store
    watching = store._state.part(maps).subscribers._by_namespace["default"]
    (subscription,) = watching
    # The writes go past HTTP: it is the watcher that is put to the test.
    text, most = "x" * 500, 0
    for number in range(30_000):
        store.create(
            maps,
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": f"m{number}", "namespace": "default", "uid": f"u{number}"},
                "data": {"a": text},
            },
        )
        most = max(most, subscription.pending)
        if number % 100 == 0:
            await asyncio.sleep(0)
        if subscription not in watching:
            break
    else:
        pytest.fail("the watcher was not let go")
    assert most == 10_000
    assert subscription.pending == 0
    sent = b""
    async with asyncio.timeout(PATIENCE):
        while not sent.endswith(b"\r\n0\r\n\r\n"):
            sent = sent[-4096:] + await reader.read(2**16)
    error = msgspec.json.decode(sent.removesuffix(b"\r\n0\r\n\r\n").splitlines()[-1])
    assert (error["type"], error["object"]["code"]) == ("ERROR", 410)
    writer.close()
    await writer.wait_closed()
    assert (await api.call("GET", "/healthz")).status == 200


async def test_many_requests_behind_a_watch_on_one_connection(api: Served) -> None:
    """A request that is sent while a watch runs on the same connection is answered after it."""
    host, port = api.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=str(api.ca))
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n"
    writer.write(f"GET {CONFIGMAPS}?watch=true&timeoutSeconds=1 {head}\r\n".encode())
    writer.write(f"GET /healthz {head}Connection: close\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.endswith(b"\r\n\r\nok")
    writer.close()
    await writer.wait_closed()
