"""Watchers with selectors: what they are sent of a large object is made once for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.storage.store import Store
from keepclose.testing.api_server import Served, serving

NODES = "/api/v1/nodes"
MERGE = "application/merge-patch+json"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data", nodes=("n1",)) as served:
        yield served


def _node(**labels: str) -> dict[str, Any]:
    text = '"resourceVersion":"1","metadata":{"resourceVersion":"1"}'
    return {
        "metadata": {"annotations": {"a": text}, "name": "n1", "labels": labels, "uid": "u"},
        "status": {"metadata": {"resourceVersion": "7"}, "images": [{"names": [text]}]},
    }


async def test_lines_for_selections_are_made_once(tmp_path: Path) -> None:
    """An object that leaves a selection has its last state, with the version of the change."""
    store = Store.open(tmp_path)
    try:
        subscription = store.subscribe("nodes", since=None)
        store.create("nodes", _node(a="b"))
        before = store.get("nodes", "", "n1")
        store.update("nodes", _node())
        added, changed = await subscription.next()
        assert before is not None
        left = changed.selected_frame("DELETED")
        want = msgspec.json.decode(before.data)
        want["metadata"]["resourceVersion"] = str(changed.version)
        assert msgspec.json.decode(left) == {"type": "DELETED", "object": want}
        assert changed.selected_frame("DELETED") is left
        joined = changed.selected_frame("ADDED")
        assert msgspec.json.decode(joined) == {
            "type": "ADDED",
            "object": msgspec.json.decode(changed.entry.data),
        }
        assert changed.selected_frame("ADDED") is joined
        assert added.selected_frame("ADDED") is added.frame
        changed.forget_frame()
        assert changed.selected_frame("DELETED") == left
        assert changed.selected_frame("DELETED") is not changed.selected_frame("DELETED")
    finally:
        store.close()


async def test_watchers_hear_who_joins_and_leaves(api: Served) -> None:
    """By labels and by fields, as objects and as metadata."""
    metadata = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
    await api.create(NODES, {"metadata": {"name": "n1"}})
    async with (
        api.watch(NODES, "resourceVersion=1&labelSelector=a") as labelled,
        api.watch(NODES, "resourceVersion=1&labelSelector=a", accept=metadata) as shown,
        api.watch(NODES, "resourceVersion=1&fieldSelector=spec.unschedulable%3Dtrue") as cordoned,
    ):
        for label, cordon in (("b", True), (None, None)):
            value = {"metadata": {"labels": {"a": label}}, "spec": {"unschedulable": cordon}}
            reply = await api.call("PATCH", f"{NODES}/n1", value, type=MERGE)
            assert reply.status == 200
        for events in (labelled, shown, cordoned):
            joined, left = await events.next(), await events.next()
            assert joined is not None
            assert left is not None
            assert (joined["type"], left["type"]) == ("ADDED", "DELETED")
            assert left["object"]["metadata"]["resourceVersion"] == str(
                reply.json["metadata"]["resourceVersion"]
            )
            assert left["object"]["metadata"]["labels"] == {"a": "b"}
