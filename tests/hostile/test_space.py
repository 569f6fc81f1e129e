"""Objects that nobody deletes fill a bounded space, and no more than that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.storage import store as storage
from keepclose.apiserver.storage.errors import NoSpace
from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import Served, serving

EVENTS = "/api/v1/namespaces/default/events"
MERGE = "application/merge-patch+json"
SPACE = 1 << 20
LARGE = 200_000


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """Serve with little space."""
    monkeypatch.setattr(storage, "OBJECTS_MAX_BYTES", SPACE)
    async with serving(tmp_path / "data", nodes=("n1",)) as served:
        yield served


def _event(name: str, size: int = LARGE) -> dict[str, Any]:
    involved = {"kind": "Node", "name": "n1", "namespace": "default"}
    return {
        "metadata": {"name": name, "finalizers": ["example.com/kept"]},
        "involvedObject": involved,
        "message": "x" * size,
    }


async def test_a_full_store_takes_no_more_and_lets_go(api: Served) -> None:
    """The answer is that of a kube-apiserver whose etcd is full; deletes still work."""
    node = api.token_of("node-n1")
    statuses = []
    for number in range(8):
        reply = await api.call("POST", EVENTS, _event(f"e{number}"), token=node)
        statuses.append(reply.status)
    assert statuses[:3] == [201] * 3
    assert statuses[-1] == 500
    assert reply.message == "etcdserver: mvcc: database space exceeded"
    stored = statuses.count(201)
    listed = await api.get(EVENTS)
    assert len(listed["items"]) == stored
    growing = {"message": "x" * (LARGE + SPACE // 4)}
    reply = await api.call("PATCH", f"{EVENTS}/e0", growing, type=MERGE, token=node)
    assert (reply.status, reply.message) == (500, "etcdserver: mvcc: database space exceeded")
    # What is marked for deletion grows by the mark, and shrinks by its finalizer.
    assert (await api.call("DELETE", f"{EVENTS}/e0")).status == 200
    release = {"metadata": {"finalizers": None}}
    assert (await api.call("PATCH", f"{EVENTS}/e0", release, type=MERGE)).status == 200
    assert (await api.call("GET", f"{EVENTS}/e0")).status == 404
    assert (await api.call("POST", EVENTS, _event("again"), token=node)).status == 201


def test_the_space_is_counted_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Created, changed and deleted objects add up to what is found at start."""
    store = Store.open(tmp_path)
    for name in ("a", "b", "c"):
        store.create("nodes", {"metadata": {"name": name, "uid": name}, "x": "x" * LARGE})
    store.update("nodes", {"metadata": {"name": "a", "uid": "a"}, "x": "x" * (LARGE // 2)})
    store.delete("nodes", "", "b")
    store.close()
    monkeypatch.setattr(storage, "OBJECTS_MAX_BYTES", 2 * LARGE)
    for _ in range(2):
        store = Store.open(tmp_path)
        try:
            fitting = {"metadata": {"name": "d", "uid": "d"}, "x": "x" * (LARGE // 4)}
            store.create("nodes", fitting, max_bytes=SPACE)
            store.delete("nodes", "", "d")
            large = {"metadata": {"name": "d", "uid": "d"}, "x": "x" * (LARGE // 2)}
            with pytest.raises(NoSpace):
                store.create("nodes", large, max_bytes=SPACE)
        finally:
            store.close()
