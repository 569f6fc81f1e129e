"""Pods whose grace period is over go, although no kubelet confirms it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.controllers.pod_reaper import POD_STORE, PodReaper
from keepclose.apiserver.status_errors import not_found
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import PATIENCE, Served, serving
from support.kinds import raw

JsonObject = dict[str, Any]
PATH = "/api/v1/namespaces/default/pods"


class Clock:
    """A clock that stands until it is set; 1000 seconds after 1970 at first."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Ending:
    """Pods in a store in memory, and those that were ended."""

    def __init__(self) -> None:
        self.store = Store.open(None)
        self.clock = Clock()
        self.graces = PodReaper(self.store, self.end, clock=self.clock)
        self.ended: list[str] = []

    def end(self, store: str, namespace: str, name: str, *, uid: str) -> None:
        """Take note, and remove the pod."""
        assert uid == f"uid-{name}"
        self.ended.append(name)
        if name == "stuck":
            raise not_found(store, "", name)
        self.store.delete(store, namespace, name)

    def put(self, name: str, *, ends: int | None = None, grace: int = 30) -> None:
        """Store a pod that ends so many seconds after the hour, or is not leaving."""
        metadata: JsonObject = {"uid": f"uid-{name}", "annotations": {"a": '"deletionTimestamp"'}}
        if ends is not None:
            metadata["deletionTimestamp"] = f"1970-01-01T00:{ends // 60:02}:{ends % 60:02}Z"
            metadata["deletionGracePeriodSeconds"] = grace
        pod = raw("Pod", name, metadata=metadata)
        write = (
            self.store.update if self.store.get(POD_STORE, "default", name) else self.store.create
        )
        self.graces.track(write(POD_STORE, pod))


@pytest.fixture
def ending() -> Ending:
    """Nothing stored."""
    return Ending()


def test_the_earliest_end_comes_first(ending: Ending) -> None:
    """Pods end in the order of their deletionTimestamps, each when its time has come."""
    ending.put("late", ends=1020)
    ending.put("early", ends=1010)
    ending.put("staying")
    assert (ending.graces.delete_due(), ending.ended) == (10.0, [])
    ending.clock.now = 1010.0
    assert (ending.graces.delete_due(), ending.ended) == (10.0, ["early"])
    ending.clock.now = 2000.0
    assert (ending.graces.delete_due(), ending.ended) == (None, ["early", "late"])


def test_a_shortened_period_counts(ending: Ending) -> None:
    """A pod whose period was shortened ends at the earlier time, and once."""
    ending.put("one", ends=1030)
    ending.put("one", ends=1005, grace=5)
    assert ending.graces.delete_due() == 5.0
    ending.clock.now = 1005.0
    ending.graces.delete_due()
    ending.clock.now = 1030.0
    assert (ending.graces.delete_due(), ending.ended) == (None, ["one"])


def test_pods_without_a_grace_are_left_alone(ending: Ending) -> None:
    """A pod that only finalizers hold has no grace left, and goes with the last of those."""
    ending.put("held", ends=990, grace=0)
    assert (ending.graces.delete_due(), ending.ended) == (None, [])


def test_a_new_pod_of_the_name_is_left_alone(ending: Ending) -> None:
    """What is noted of a pod does not count for one that came after it."""
    ending.put("one", ends=1010)
    ending.store.delete(POD_STORE, "default", "one")
    ending.put("one")
    ending.clock.now = 1010.0
    assert (ending.graces.delete_due(), ending.ended) == (None, [])


def test_a_refusal_does_not_stop_the_others(ending: Ending) -> None:
    """A pod that cannot be deleted is told of and passed over."""
    ending.put("stuck", ends=1001)
    ending.put("two", ends=1002)
    ending.clock.now = 1003.0
    assert (ending.graces.delete_due(), ending.ended) == (None, ["stuck", "two"])


def test_many_that_are_due_end_a_few_at_a_time(ending: Ending) -> None:
    """Thousands of pods whose time is over at once take many calls, of which each is short."""
    for number in range(2_000):
        ending.put(f"p{number:04}", ends=1001)
    ending.clock.now = 1002.0
    left = ending.graces.delete_due()
    assert left is not None
    assert left <= 0
    assert 0 < len(ending.ended) < 2_000
    while ending.graces.delete_due() is not None:
        pass
    assert ending.ended == [f"p{number:04}" for number in range(2_000)]


async def test_the_loop_goes_on_while_many_end(ending: Ending) -> None:
    """Others have their turn between the ends of pods that were due at once."""
    for number in range(2_000):
        ending.put(f"p{number:04}", ends=1001)
    ending.clock.now = 1002.0
    task = asyncio.ensure_future(ending.graces.run())
    seen: set[int] = set()
    async with asyncio.timeout(PATIENCE):
        while len(ending.ended) < 2_000:
            await asyncio.sleep(0)
            seen.add(len(ending.ended))
    assert len(seen) > 3
    ending.store.close()
    await task


async def test_it_follows_the_store(ending: Ending) -> None:
    """A run begins with what is stored, follows changes, and ends with the store."""
    ending.clock.now = 1010.0
    ending.put("before", ends=1000)
    task = asyncio.create_task(ending.graces.run())
    watch = ending.store.subscribe(POD_STORE, since=None)
    async with asyncio.timeout(PATIENCE):
        assert [change.type for change in await watch.next()] == ["DELETED"]
        ending.store.create(
            POD_STORE,
            raw(
                "Pod",
                "after",
                metadata={
                    "uid": "uid-after",
                    "deletionTimestamp": "1970-01-01T00:10:00Z",
                    "deletionGracePeriodSeconds": 1,
                },
            ),
        )
        assert [change.type for change in await watch.next()] == ["ADDED"]
        assert [change.type for change in await watch.next()] == ["DELETED"]
        assert ending.ended == ["before", "after"]
        ending.store.close()
        await task


async def test_a_burst_of_changes_loses_nobody(ending: Ending) -> None:
    """When more changes come than can wait, everything stored is looked at again."""
    task = asyncio.create_task(ending.graces.run())
    await asyncio.sleep(0)
    ending.clock.now = 1010.0
    for number in range(10_050):
        ending.store.create(POD_STORE, raw("Pod", f"pod-{number}", metadata={"uid": f"u{number}"}))
    pod = raw("Pod", "one", metadata={"uid": "uid-one"})
    pod["metadata"] |= {
        "deletionTimestamp": "1970-01-01T00:10:00Z",
        "deletionGracePeriodSeconds": 1,
    }
    ending.store.create(POD_STORE, pod)
    watch = ending.store.subscribe(POD_STORE, since=None)
    async with asyncio.timeout(PATIENCE):
        assert [change.entry.name for change in await watch.next()] == ["one"]
    ending.store.close()
    await task


def _bound(name: str, *, grace: int) -> JsonObject:
    return {
        "metadata": {"name": name},
        "spec": {
            "nodeName": "n",
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "main", "image": "registry.test/main:1"}],
        },
    }


async def test_a_deleted_pod_goes_by_itself(api: Served) -> None:
    """A pod on a node is there for its grace period and then gone, as the watchers are told."""
    # NB: its end has whole seconds, so that of one second next to nothing may be left.
    await api.create(PATH, _bound("one", grace=3))
    async with api.watch(PATH) as events:
        reply = await api.call("DELETE", f"{PATH}/one")
        assert reply.json["metadata"]["deletionGracePeriodSeconds"] == 3
        assert (await api.call("GET", f"{PATH}/one")).status == 200
        assert await events.take(3) == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]


async def test_finalizers_hold_beyond_the_grace(api: Served) -> None:
    """A pod with finalizers loses its grace period only, and goes with the last finalizer."""
    pod = _bound("one", grace=1)
    pod["metadata"]["finalizers"] = ["test.example.com/a"]
    await api.create(PATH, pod)
    await api.call("DELETE", f"{PATH}/one")
    await api.until(
        f"{PATH}/one", lambda now: now.json["metadata"]["deletionGracePeriodSeconds"] == 0
    )
    none = {"metadata": {"finalizers": None}}
    await api.call("PATCH", f"{PATH}/one", none, type="application/merge-patch+json")
    assert (await api.call("GET", f"{PATH}/one")).status == 404


async def test_graces_go_on_after_a_restart(tmp_path: Path) -> None:
    """A pod that was on its way out when the server ended goes after it has started again."""
    async with serving(tmp_path) as api:
        await api.create(PATH, _bound("one", grace=1))
        await api.create(PATH, _bound("other", grace=600))
        await api.call("DELETE", f"{PATH}/one")
        await api.call("DELETE", f"{PATH}/other")
    async with serving(tmp_path) as api:
        await api.until_gone(f"{PATH}/one")
        assert (await api.call("GET", f"{PATH}/other")).status == 200


async def test_a_namespace_waits_for_its_pods(api: Served) -> None:
    """A namespace with a pod on a node goes once the grace of the pod is over."""
    await api.create("/api/v1/namespaces", {"metadata": {"name": "gone"}})
    await api.create("/api/v1/namespaces/gone/pods", _bound("one", grace=1))
    await api.call("DELETE", "/api/v1/namespaces/gone")
    assert (await api.call("GET", "/api/v1/namespaces/gone")).status == 200
    await api.until_gone("/api/v1/namespaces/gone")
