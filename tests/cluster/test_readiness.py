"""Waiting until what was applied works."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from keepclose.cluster.readiness import until_connected
from keepclose.network.namespaces import Namespace, make_namespace
from keepclose.testing.apiservers import PATIENCE

T = TypeVar("T")


class GatedNamespace(Namespace):
    """A namespace in which work ends when it may; notes the sockets that were opened."""

    def __init__(self, inner: Namespace) -> None:
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
    namespace = make_namespace("test")
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
