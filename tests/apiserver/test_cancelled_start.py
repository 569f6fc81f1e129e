"""A server whose start is cancelled."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from keepclose.apiserver.http.server import HttpsServer
from support.ports import reserved_port


async def test_nothing_listens_after_a_start_that_was_cancelled() -> None:
    """Whenever it is cancelled, the port is free again."""

    def handle(_request: object) -> NoReturn:
        raise AssertionError("no request is sent")

    with reserved_port() as port:
        for turns in range(1, 100):
            server = HttpsServer(handle, context=None)
            starting = asyncio.create_task(server.start("127.0.0.1", port))
            for _ in range(turns):
                await asyncio.sleep(0)
            is_over = starting.done()
            starting.cancel()
            await asyncio.wait([starting])
            if is_over:
                await server.stop()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            if is_over:
                return
    pytest.fail("the server never started")
