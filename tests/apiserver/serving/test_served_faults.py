"""Faults of the server itself: told, logged, and survived."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import structlog

from keepclose.apiserver.registry.deletion import Propagation
from keepclose.apiserver.registry.strategy import KindStrategy, ObjectWrite
from keepclose.apiserver.resources import BY_KIND
from keepclose.apiserver.serving.deleting import Deleter
from keepclose.apiserver.storage.errors import StorageError
from keepclose.model.json_values import JsonObject
from keepclose.testing.api_server import PATIENCE, Served

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class Failing(KindStrategy):
    """A kind with a fault: its creates and its deletions raise the given error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.settled: list[bool] = []

    def prepare_create(self, write: ObjectWrite) -> None:
        """Fail, unless the object is named so that it may pass."""
        if write.new["metadata"]["name"] != "fine":
            raise self.error

    def settle(self, write: ObjectWrite, *, stored: bool) -> None:
        """Take note."""
        del write
        self.settled.append(stored)

    def grace_period(self, stored: JsonObject, asked: int | None) -> int | None:
        """Fail."""
        del stored, asked
        raise self.error


def _make_fail(api: Served, error: Exception) -> Failing:
    failing = Failing(error)
    known = cast("dict[str, KindStrategy]", api.server.writer.strategies)
    known[BY_KIND["coordination.k8s.io/v1", "Lease"].store] = failing
    return failing


async def test_a_fault_is_answered_and_survived(api: Served) -> None:
    """An error in a handler is a 500 without its details, logged with them, and changes nothing."""
    failing = _make_fail(api, RuntimeError("secret detail"))
    with structlog.testing.capture_logs() as logs:
        reply = await api.call("POST", LEASES, {"metadata": {"name": "one"}})
    assert reply.status == 500
    assert reply.json == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "Internal error occurred: see the server's log",
        "reason": "InternalError",
        "code": 500,
    }
    assert [(one["event"], one["method"], one["path"]) for one in logs] == [
        ("request failed", "POST", LEASES)
    ]
    assert failing.settled == [False]
    assert (await api.get(LEASES))["items"] == []
    assert (await api.create(CONFIGMAPS, {"metadata": {"name": "one"}}))["metadata"]["uid"]
    metrics = (await api.call("GET", "/metrics")).body.decode()
    assert 'apiserver_request_total{code="500",group="coordination.k8s.io"' in metrics


async def test_a_deletion_of_what_came_after_is_passed_over(api: Served) -> None:
    """The server's own deletions are about one uid: another object of the name is left alone."""
    await api.create(CONFIGMAPS, {"metadata": {"name": "one"}})
    deleter = Deleter(api.server.store, api.server.writer.strategies)
    for uid, name in (("other", "one"), ("any", "none")):
        deleter.end_grace("configmaps", "default", name, uid=uid)
        deleter.delete_dependent(
            "configmaps", "default", name, uid=uid, propagation=Propagation.BACKGROUND
        )
    assert (await api.call("GET", f"{CONFIGMAPS}/one")).status == 200


async def test_a_full_disk_is_told(api: Served) -> None:
    """What is wrong with the files is said to the client, who may be the one to mend it."""
    path = api.server.settings.data_dir / "store.db"
    _make_fail(api, StorageError(path, "the disk is full", "make room"))
    reply = await api.call("POST", LEASES, {"metadata": {"name": "one"}})
    assert (reply.status, reply.message) == (
        500,
        f"Internal error: {path}: the disk is full; make room",
    )


async def test_the_collector_survives_a_fault(api: Served) -> None:
    """The log names the garbage collector when it fails, and it goes on with everything else."""
    owner = await api.create(CONFIGMAPS, {"metadata": {"name": "owner"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    metadata: Mapping[str, Any] = {"ownerReferences": [reference]}
    failing = _make_fail(api, RuntimeError("a fault"))
    await api.create(LEASES, {"metadata": {"name": "fine", **metadata}})
    with structlog.testing.capture_logs() as logs:
        await api.call("DELETE", f"{CONFIGMAPS}/owner")
        async with asyncio.timeout(PATIENCE):
            while not logs:  # noqa: ASYNC110 - a list cannot be awaited
                await asyncio.sleep(0.01)
        assert logs[0]["event"] == "garbage collector failed and is restarted"
        assert (await api.call("GET", f"{LEASES}/fine")).status == 200
        await api.create(CONFIGMAPS, {"metadata": {"name": "orphan", **metadata}})
        await api.until_gone(f"{CONFIGMAPS}/orphan")
        known = cast("dict[str, KindStrategy]", api.server.writer.strategies)
        known[BY_KIND["coordination.k8s.io/v1", "Lease"].store] = KindStrategy()
        await api.until_gone(f"{LEASES}/fine")
    assert failing.settled == [True]
