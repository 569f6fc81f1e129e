"""The cluster of tests answers as Kubernetes does, where clients can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keepclose.kube.client import Client
from keepclose.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    BrokenStream,
    Conflict,
    ConnectionLost,
    Expired,
    Invalid,
    NotFound,
)
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, Kind
from keepclose.kube.transport.retries import Retries
from keepclose.model.workload import Pod
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster, merge
from keepclose.testing.scripted_streams import failure
from support.builders import node, pod


class Site:
    """A cluster and a client that never tries twice."""

    def __init__(self, *, history: int = 20) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock, history=history)
        self.client = Client(self.cluster, clock=self.clock, retries=Retries(max_elapsed=0))

    def put(self, *names: str) -> None:
        """Write pods."""
        for name in names:
            self.cluster.put(PODS, pod(name))


class Seen:
    """What a watch has shown so far, and how it ended."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []
        self.task: asyncio.Future[None] | None = None

    def error(self) -> BaseException | None:
        """Return what ended the watch, None for the server itself."""
        assert self.task is not None
        return self.task.exception()


@asynccontextmanager
async def watching(site: Site, kind: Kind[Any] = PODS, **options: Any) -> AsyncIterator[Seen]:
    """Watch until the end of the context."""
    seen = Seen()

    async def read() -> None:
        async with site.client.watch(kind, **options) as events:
            async for event in events:
                name = event.object.metadata.name if event.object is not None else ""
                mark = "initial end" if event.initial_events_end else name
                seen.events.append((event.type, mark, event.resource_version))

    seen.task = asyncio.ensure_future(read())
    await site.clock.run_until_idle()
    yield seen
    await site.clock.run_until_idle()
    seen.task.cancel()
    await asyncio.wait((seen.task,))


async def test_objects_are_written_read_and_deleted() -> None:
    """Each write has a new version; names are unique within a namespace."""
    site = Site()
    made = await site.client.create(PODS, pod("a"))
    assert made.metadata.resource_version == site.cluster.version == "2"

    with pytest.raises(AlreadyExists):
        await site.client.create(PODS, pod("a"))
    await site.client.create(PODS, pod("a", namespace="other"))
    assert await site.client.get(PODS, "a", namespace="default") == made

    await site.client.delete(PODS, "a", namespace="default")
    for ask in (
        site.client.get(PODS, "a", namespace="default"),
        site.client.update(PODS, made),
        site.client.delete(PODS, "a", namespace="default"),
    ):
        with pytest.raises(NotFound):
            await ask
    assert [key.namespace for key in site.cluster.objects(PODS)] == ["other"]


async def test_writes_over_an_old_version_conflict() -> None:
    """Update, patch and delete with the version of before are refused, without one they are not."""
    site = Site()
    old = await site.client.create(PODS, pod("a"))
    new = await site.client.patch(
        PODS, "a", {"metadata": {"labels": {"x": "y"}}}, namespace="default"
    )
    assert new.metadata.labels == {"app": "web", "x": "y"}
    assert new.metadata.uid == old.metadata.uid

    with pytest.raises(Conflict):
        await site.client.update(PODS, old)
    stale = {"metadata": {"resourceVersion": old.metadata.resource_version}}
    with pytest.raises(Conflict):
        await site.client.patch(PODS, "a", stale, namespace="default")
    with pytest.raises(Conflict):
        await site.client.delete(PODS, "a", namespace="default", uid="other")
    await site.client.update(PODS, new)


async def test_an_answer_can_be_lost_after_the_write() -> None:
    """The client sees a broken connection, the server has the object."""
    site = Site()
    site.cluster.lost_answers = 1

    with pytest.raises(ConnectionLost):
        await site.client.create(NODES, node("n1"))

    assert [key.name for key in site.cluster.objects(NODES)] == ["n1"]
    await site.client.create(NODES, node("n2"))


async def test_lists_are_paged_at_one_version() -> None:
    """Later pages show the state of the first, until that is too old."""
    site = Site(history=3)
    site.put("a", "b", "c")
    first = await site.client.list_page(PODS, limit=2)
    site.put("d")

    second = await site.client.list_page(PODS, limit=2, continue_token=first.continue_token)
    assert [one.metadata.name for one in (*first.items, *second.items)] == ["a", "b", "c"]
    assert (first.resource_version, second.resource_version) == ("4", "4")
    assert second.continue_token == ""

    site.put("e", "f", "g")
    with pytest.raises(Expired):
        await site.client.list_page(PODS, limit=2, continue_token=first.continue_token)


async def test_lists_of_any_version_may_lag_behind_and_are_whole() -> None:
    """Version 0 takes what a cache has; no version is the present."""
    site = Site()
    site.put("a", "b", "c")
    site.cluster.stale_by = 2

    stale = await site.client.list_page(PODS, resource_version="0", limit=1)
    fresh = await site.client.list_page(PODS)

    assert ([one.metadata.name for one in stale.items], stale.resource_version) == (["a"], "2")
    assert len(fresh.items) == 3


async def test_lists_keep_to_kind_and_namespace() -> None:
    """Objects of other kinds and namespaces stay out."""
    site = Site()
    site.put("a")
    site.cluster.put(PODS, pod("b", namespace="other"))
    site.cluster.put(NODES, node("n1"))

    assert len((await site.client.list_page(PODS)).items) == 2
    assert len((await site.client.list_page(PODS, namespace="other")).items) == 1
    assert (await site.client.list_page(ENDPOINT_SLICES)).items == []


async def test_what_it_cannot_do_is_refused() -> None:
    """Selectors and unknown paths are errors, not silently wrong answers."""
    site = Site()

    with pytest.raises(BadRequest):
        await site.client.list_page(PODS, label_selector="a=b")
    with pytest.raises(NotFound):
        await site.client.raw("GET", "/apis/apps/v1/deployments")
    with pytest.raises(NotFound):
        await site.client.raw("GET", "/api/v1/namespaces/default/pods/a/log")


async def test_a_watch_shows_what_came_after_its_version() -> None:
    """Changes since then come first, later ones as they happen, each with its own version."""
    site = Site()
    site.put("a", "b")
    async with watching(site, resource_version="2") as seen:
        site.put("a")
        site.cluster.delete(PODS, "b", namespace="default")
        site.cluster.put(NODES, node("n1"))
    assert seen.events == [
        ("ADDED", "b", "3"),
        ("MODIFIED", "a", "4"),
        ("DELETED", "b", "5"),
    ]


async def test_a_watch_of_one_namespace_shows_no_other() -> None:
    """Namespaces hold for watches as for lists."""
    site = Site()
    async with watching(site, namespace="other", resource_version="1") as seen:
        site.put("a")
        site.cluster.put(PODS, pod("b", namespace="other"))
    assert seen.events == [("ADDED", "b", "3")]


async def test_a_watch_without_a_version_begins_with_what_is_there() -> None:
    """Objects come as additions; only a streamed list marks their end."""
    site = Site()
    site.put("a")
    async with watching(site) as seen:
        pass
    assert seen.events == [("ADDED", "a", "2")]
    async with watching(site, send_initial_events=True) as seen:
        pass
    assert seen.events == [("ADDED", "a", "2"), ("BOOKMARK", "initial end", "2")]

    site.cluster.streams_lists = False
    async with watching(site, send_initial_events=True) as seen:
        pass
    assert isinstance(seen.error(), Invalid)


async def test_bookmarks_come_each_minute_and_the_end_in_time() -> None:
    """A quiet watch hears the present version every 60 s, and ends when the client said."""
    site = Site()
    async with watching(site, resource_version="1", timeout_seconds=150) as seen:
        site.cluster.store.touch()
        await site.clock.advance(60.0)
        site.cluster.store.touch()
        await site.clock.advance(89.9)
        assert site.cluster.watches
        await site.clock.advance(0.1)
        assert not site.cluster.watches
    assert seen.events == [("BOOKMARK", "", "2"), ("BOOKMARK", "", "3")]
    assert seen.error() is None


@pytest.mark.parametrize("by_event", [True, False], ids=["by an event", "by the status"])
async def test_old_versions_expire(by_event: bool) -> None:
    """A version from before the history ends the watch, in either of the two ways."""
    site = Site(history=2)
    site.cluster.expires_by_event = by_event
    site.put("a", "b", "c", "d")

    async with watching(site, resource_version="3") as seen:
        pass
    assert len(seen.events) == 2
    async with watching(site, resource_version="2") as seen:
        pass
    assert isinstance(seen.error(), Expired)
    site.cluster.store.compact()
    async with watching(site, resource_version="4") as seen:
        pass
    assert isinstance(seen.error(), Expired)
    async with watching(site, resource_version="5") as seen:
        assert seen.task is not None
        assert not seen.task.done()


@pytest.mark.parametrize(
    ("fault", "want_error"),
    [
        pytest.param("cut", ConnectionLost, id="a cut"),
        pytest.param("cut_midway", ConnectionLost, id="a cut in a line"),
        pytest.param("garble", BrokenStream, id="garbage"),
        pytest.param("expire", Expired, id="an expiry"),
        pytest.param("end", None, id="an orderly end"),
    ],
)
async def test_open_watches_can_fail(fault: str, want_error: type[Exception] | None) -> None:
    """Each fault ends the watch as its name says, after what was sent before."""
    site = Site()
    async with watching(site, resource_version="1") as seen:
        site.put("a")
        (watch,) = site.cluster.watches
        getattr(watch, fault)()
        site.put("b")
        await site.clock.run_until_idle()
        assert ("ADDED", "a", "2") in seen.events
        assert ("ADDED", "b", "3") not in seen.events
    error = seen.error()
    assert error is None if want_error is None else isinstance(error, want_error)


async def test_a_stalled_watch_stays_open_and_silent() -> None:
    """Neither events nor bookmarks nor the end come any more."""
    site = Site()
    async with watching(site, resource_version="1", timeout_seconds=100) as seen:
        site.cluster.watches[0].stall()
        site.put("a")
        await site.clock.advance(1000.0)
        assert seen.events == []
        assert len(site.cluster.watches) == 1
        assert site.cluster.watches[0].is_stalled


async def test_an_event_can_come_twice() -> None:
    """A repeat is the same event with the same version."""
    site = Site()
    async with watching(site, resource_version="1") as seen:
        site.put("a")
        site.cluster.watches[0].repeat()
    assert seen.events == [("ADDED", "a", "2")] * 2


async def test_a_restored_backup_goes_back_in_time() -> None:
    """Objects and versions are those of before, and the history is gone."""
    site = Site()
    site.put("a", "b")
    site.cluster.store.restore(2)

    assert [key.name for key in site.cluster.objects(PODS)] == ["a"]
    assert site.cluster.version == "2"


async def test_answers_can_be_put_ahead() -> None:
    """A fault takes the place of one answer, and is over."""
    site = Site()
    site.cluster.answer_next(failure(418, "Teapot"))

    with pytest.raises(ApiError) as caught:
        await site.client.list_page(PODS)
    assert caught.value.code == 418
    page = await site.client.list_page(PODS)
    want_items: list[Pod] = []
    assert page.items == want_items


@pytest.mark.parametrize(
    ("target", "patch", "want"),
    [
        pytest.param({"a": 1}, {"a": 2}, {"a": 2}, id="a member is replaced"),
        pytest.param({"a": 1, "b": 2}, {"a": None}, {"b": 2}, id="null removes"),
        pytest.param({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 1, "c": 2}}, id="maps merge"),
        pytest.param({"a": [1]}, {"a": [2]}, {"a": [2]}, id="lists are replaced"),
        pytest.param({"a": 1}, {"a": {"b": None}}, {"a": {}}, id="a map takes another's place"),
    ],
)
def test_merge_patches(target: object, patch: object, want: object) -> None:
    """Patches merge as RFC 7386 says."""
    assert merge(target, patch) == want
