"""Waiting until what was applied works."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from keepclose.lab.cluster.readiness import Workloads, until_connected
from keepclose.lab.kinds import DEPLOYMENTS
from keepclose.system.namespaces import NetworkNamespace, create_network_namespace
from keepclose.testing.api_server import PATIENCE, serving
from support.labs import workloads

T = TypeVar("T")


class GatedNamespace(NetworkNamespace):
    """A namespace in which work ends when it may; notes the sockets that were opened."""

    def __init__(self, inner: NetworkNamespace) -> None:
        super().__init__(inner.name, inner.fd)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.opened: list[socket.socket] = []

    def do(self, work: Callable[[], T]) -> T:
        """Do the work at once, and hand its result over when that is allowed."""
        result = super().do(work)
        assert isinstance(result, socket.socket)
        self.opened.append(result)
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE)
        return result


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_no_socket_is_left_when_the_wait_is_cancelled() -> None:
    """The socket that a worker thread opens for a task that has gone is closed."""
    namespace = create_network_namespace("test")
    gated = GatedNamespace(namespace)

    async def wait() -> None:
        try:
            await until_connected(gated, "127.0.0.1", 80)
        finally:
            gated.may_end.set()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.to_thread(gated.has_begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(main())
    finally:
        namespace.close()
    (one,) = gated.opened
    assert one.fileno() == -1


def deployment(name: str, image: str, cpu: str = "1m") -> dict[str, Any]:
    """Return a Deployment of two pods."""
    container = {"name": "main", "image": image, "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container]},
            },
        },
    }


async def test_what_is_not_ready_is_said_and_why(tmp_path: Path) -> None:
    """After some patience it is told what is waited for, and at the end why it was in vain."""
    objects = [deployment("web", "web:1"), deployment("huge", "web:1", "1000")]
    async with serving(tmp_path / "data") as api, workloads(api) as lab:
        await lab.cluster.add_node("n1", "zone-a")
        for body in objects:
            await lab.client.create(DEPLOYMENTS, body, namespace="default")
        await lab.until(
            lambda: (
                sum(pod.is_ready for pod in lab.pods) == 2
                and sum(pod.status.condition("PodScheduled") is not None for pod in lab.pods) >= 2
            )
        )
        told: list[tuple[str, str, bool | None]] = []
        await Workloads.of(objects[:1]).until_ready(lab.client, lambda *one: told.append(one))
        assert told == [("web", "2 pods ready", True)]
        told.clear()
        await Workloads.of(objects[1:]).until_ready(
            lab.client, lambda *one: told.append(one), first_report_s=0.0, limit_s=0.01
        )
        why = "0 of 2 pods ready: Unschedulable (0/1 nodes are available: 1 Insufficient cpu)"
        assert told == [("huge", f"waiting, {why}", None), ("huge", why, False)]
