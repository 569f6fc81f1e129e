"""Owners and dependents that no controller would make: nothing is lost, and nobody waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.controllers.garbage_collector import GarbageCollector
from keepclose.apiserver.registry.deletion import Propagation
from keepclose.apiserver.registry.metadata import OWNERS_MAX, metadata_causes
from keepclose.apiserver.registry.registry import strategies
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.storage.entries import Entry
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import PATIENCE, Served, serving

JsonObject = dict[str, Any]
NODES = "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve without any objects."""
    async with serving(tmp_path / "data") as api:
        yield api


def owned(name: str, kind: str, owner: str, uid: str) -> JsonObject:
    """Return an object that names an owner of the core group."""
    reference = {"apiVersion": "v1", "kind": kind, "name": owner, "uid": uid}
    return {"metadata": {"name": name, "ownerReferences": [reference]}}


@pytest.mark.parametrize("path", [NODES, NAMESPACES])
@pytest.mark.parametrize("is_there", [True, False])
async def test_cluster_scoped_objects_have_no_namespaced_owners(
    served: Served, path: str, is_there: bool
) -> None:
    """A Node or a Namespace with an owner in some namespace stays, as in Kubernetes."""
    uid = "absent"
    if is_there:
        uid = (await served.create(CONFIG_MAPS, {"metadata": {"name": "o"}}))["metadata"]["uid"]
    before = await served.create(path, owned("kept", "ConfigMap", "o", uid))
    # Changes of a kind are looked at one after the other, so the first one was when this one goes.
    await served.create(path, owned("gone", "Node", "absent", "absent"))
    await served.until_gone(f"{path}/gone")
    assert await served.get(f"{path}/kept") == before


# Many more than the collector reads in the milliseconds for which it works, and more changes than
# may wait for it.
MANY = 20_000
STORE = "configmaps"


class Counted:
    """A store with a collector, which says how much is read between two turns of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin without objects."""
        self.store = Store.open(None)
        self.collector = GarbageCollector(self.store, strategies(), self.delete)
        self.most = self._read = 0
        get = self.store.get

        def count(store: str, namespace: str, name: str) -> Entry | None:
            self._read += 1
            return get(store, namespace, name)

        monkeypatch.setattr(self.store, "get", count)

    def add(self, name: str, owner: str = "") -> None:
        """Store a ConfigMap that may have an owner."""
        body = owned(name, "ConfigMap", owner, f"uid-{owner}") if owner else {"metadata": {}}
        body["metadata"] |= {"namespace": "default", "name": name, "uid": f"uid-{name}"}
        self.store.create(STORE, {"apiVersion": "v1", "kind": "ConfigMap", **body})

    def add_many(self, owner: str) -> None:
        """Store so many dependents that nothing may look at all of them at once."""
        for number in range(MANY):
            self.add(f"{owner}-{number}", owner)

    def delete(
        self, store: str, namespace: str, name: str, *, uid: str, propagation: Propagation
    ) -> None:
        """Delete at once, or mark for the foreground."""
        entry = self.store.get(store, namespace, name)
        assert entry is not None
        assert entry.uid == uid
        if propagation is not Propagation.FOREGROUND:
            self.store.delete(store, namespace, name)
            return
        obj = msgspec.json.decode(entry.data)
        obj["metadata"] |= {
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["foregroundDeletion"],
        }
        self.store.update(store, obj)

    async def follow_until(self, is_over: Callable[[], bool]) -> None:
        """Let the collector work until something is so; note the most that it read in a turn."""
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            running = group.create_task(self.collector.run())
            while not is_over():
                self._read = 0
                await asyncio.sleep(0)
                self.most = max(self.most, self._read)
            running.cancel()


async def test_the_first_look_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """At start the loop goes on while all owners are looked for."""
    counted = Counted(monkeypatch)
    counted.add("owner")
    counted.add_many("owner")
    # The last of all kinds in order.
    last = "servicecidrs.networking.k8s.io"
    late = owned("late", "Node", "absent", "absent")
    late["metadata"]["uid"] = "uid-late"
    counted.store.create(last, {"apiVersion": "v1", "kind": "ServiceCIDR", **late})
    await counted.follow_until(lambda: counted.store.count(last) == 0)
    assert counted.most < MANY / 2


async def test_lost_changes_are_made_up_for_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that takes more dependents with it than changes may wait stops nobody."""
    counted = Counted(monkeypatch)
    for owner in ("kept", "deleted"):
        counted.add(owner)
        counted.add_many(owner)
    begun = lost = False

    def is_over() -> bool:
        nonlocal begun, lost
        if not begun and counted.store.watchers(STORE):
            begun = True
            counted.store.delete(STORE, "default", "deleted")
        elif begun and not lost and not counted.store.watchers(STORE):
            lost = True
            # Nobody is told of this one, so that only a look at everything finds it.
            counted.add("late", "absent")
        return lost and counted.store.count(STORE) == MANY + 1

    await counted.follow_until(is_over)
    assert counted.most < MANY / 2


async def test_a_circle_is_looked_for_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that waits for a dependent with very many of its own stops nobody."""
    counted = Counted(monkeypatch)
    counted.add("owner")
    counted.add("middle", "owner")
    counted.add_many("middle")
    uid = "uid-owner"
    counted.delete(STORE, "default", "owner", uid=uid, propagation=Propagation.FOREGROUND)
    await counted.follow_until(lambda: counted.store.count(STORE) == 0)
    assert counted.most < MANY / 2


async def test_owners_are_bounded(served: Served) -> None:
    """The collector reads all references of an object for each owner that goes, so they are few."""
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent"}
    references = [{**reference, "uid": f"uid-{number}"} for number in range(OWNERS_MAX + 1)]
    body = {"metadata": {"name": "many", "ownerReferences": references}}
    reply = await served.call("POST", CONFIG_MAPS, body)
    assert (reply.status, reply.message) == (
        422,
        (
            'ConfigMap "many" is invalid: metadata.ownerReferences: Too many: 1001: '
            "must have at most 1000 items"
        ),
    )
    del references[0]
    assert (await served.call("POST", f"{CONFIG_MAPS}?dryRun=All", body)).status == 201


def test_stored_owners_may_be_fewer() -> None:
    """An object that was stored with more owners than that can be written, and lose some."""
    resource = BY_KIND["v1", "ConfigMap"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "absent"}

    def having(count: int) -> JsonObject:
        references = [{**reference, "uid": f"uid-{number}"} for number in range(count)]
        return {"metadata": {"name": "a", "namespace": "b", "ownerReferences": references}}

    stored = having(OWNERS_MAX + 9)
    assert not metadata_causes(resource, having(OWNERS_MAX + 8), stored)
    assert not metadata_causes(resource, stored, stored)
    assert metadata_causes(resource, having(OWNERS_MAX + 10), stored)
