"""What objects take in memory is counted with what holds their labels and owners."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from keepclose.apiserver.storage.store import Store

MANY = 10_000
# The allocator's own share, and the bytes that a write leaves behind for a while.
MAX_UNCOUNTED = 2.0


def _labels(name: str) -> dict[str, Any]:
    return {"labels": {f"{name}-{number}": "" for number in range(MANY)}}


def _owners(name: str) -> dict[str, Any]:
    return {"ownerReferences": [{"uid": f"{name}-{number}"} for number in range(MANY)]}


@pytest.mark.parametrize("make", [_labels, _owners])
def test_labels_and_owners_count(make: Any) -> None:
    """An object of many short labels or owners counts by about what it takes, not by its JSON."""
    store = Store.open(None)
    tracemalloc.start()
    try:
        for name in ("a", "b", "c"):
            metadata = {"name": name, "namespace": "default", "uid": name, **make(name)}
            store.create("pods", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
            del metadata
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < MAX_UNCOUNTED * store.history_bytes
    store.close()
