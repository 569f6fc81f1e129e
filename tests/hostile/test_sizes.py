"""Objects over the limit of stored bytes are refused on every path of a write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from keepclose.apiserver.serving.writing import MAX_OBJECT_BYTES
from keepclose.testing.api_server import Reply, Served, serving

JsonObject = dict[str, Any]
NODES = "/api/v1/nodes"
WORDS_OF_ETCD = "etcdserver: request is too large"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve a Node from a new directory."""
    async with serving(tmp_path / "data") as served:
        await served.create(NODES, node("n"))
        yield served


def node(name: str, images: int = 0) -> JsonObject:
    """Return a Node whose images take about 1 kB each."""
    status = {"images": [{"names": ["i" * 1_000], "sizeBytes": 1}] * images}
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}


LARGE = node("n", MAX_OBJECT_BYTES // 1_000)


@pytest.mark.parametrize(
    ("method", "path", "body", "type"),
    [
        ("POST", "", node("m", MAX_OBJECT_BYTES // 1_000), "application/json"),
        ("PUT", "/n/status", LARGE, "application/json"),
        ("PATCH", "/n/status", {"status": LARGE["status"]}, MERGE),
        ("PATCH", "/n/status", {"status": LARGE["status"]}, STRATEGIC),
        (
            "PATCH",
            "/n/status",
            [{"op": "add", "path": "/status/images", "value": LARGE["status"]["images"]}],
            JSON_PATCH,
        ),
        ("PATCH", "/n/status?fieldManager=a", LARGE, APPLY),
        ("PATCH", "/m?fieldManager=a", node("m", MAX_OBJECT_BYTES // 1_000), APPLY),
    ],
)
async def test_an_object_over_the_limit_is_refused(
    api: Served,
    method: str,
    path: str,
    body: object,
    type: str,  # noqa: A002 - as the header
) -> None:
    """Every path of a write refuses it as a kube-apiserver does, and stores nothing."""
    before = await api.get(f"{NODES}/n")
    reply = await api.call(method, NODES + path, body, type=type)
    assert (reply.status, reply.message) == (500, WORDS_OF_ETCD)
    assert await api.get(f"{NODES}/n") == before
    assert (await api.call("GET", f"{NODES}/m")).status == 404


async def test_an_object_at_the_limit_is_stored_and_deleted(api: Served) -> None:
    """What fits is stored; the mark of its deletion may take it beyond the limit."""
    metadata = {"name": "n", "finalizers": ["a.b/c"]}
    assert (await api.call("PATCH", f"{NODES}/n", {"metadata": metadata}, type=MERGE)).status == 200

    async def fill(count: int) -> Reply:
        status = {"images": [{"names": ["i" * count], "sizeBytes": 1}]}
        return await api.call("PATCH", f"{NODES}/n/status", {"status": status}, type=MERGE)

    base = 1_000_000
    room = MAX_OBJECT_BYTES - len((await fill(base)).body)
    assert (await fill(base + room + 1)).status == 500
    full = await fill(base + room)
    assert (full.status, len(full.body)) == (200, MAX_OBJECT_BYTES)
    assert (await api.call("DELETE", f"{NODES}/n")).status == 200
    assert (await api.get(f"{NODES}/n"))["metadata"]["deletionTimestamp"]


async def test_a_dry_run_stores_nothing_and_is_not_refused(api: Served) -> None:
    """The limit is that of the storage, which a dry run never reaches."""
    reply = await api.call("PUT", f"{NODES}/n/status?dryRun=All", LARGE)
    assert reply.status == 200
