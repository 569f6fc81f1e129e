"""Floods of connections to servers without credentials: pages of a program, and the webhook."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from keepclose.runtime import pages
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE
from keepclose.webhook.admission import Webhook, write_response
from keepclose.webhook.metrics import WebhookMetrics
from keepclose.webhook.registration import ServingPair
from keepclose.webhook.scope import HintView
from keepclose.webhook.settings import WEBHOOK_PATH
from support.certificates import Authority
from support.controllers import CLOCK
from support.hostile.rawclients import CLOSE, HOST, read_all, status_of, trusting
from support.server_processes import embedded_server

DESCRIPTORS: Final = 256
REVIEW: Final = b'{"request":{"uid":"u1"}}'
MEBIBYTE: Final = 1 << 20


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Run a controller with few descriptors; yield the port of its pages and its log."""
    log = tmp_path / "controller.log"
    with embedded_server(tmp_path / "data") as server, log.open("wb") as errors:
        command = ("prlimit", f"--nofile={DESCRIPTORS}", sys.executable, "-m", "keepclose")
        options = ("--kubeconfig", str(server.role("controller")))
        with subprocess.Popen(
            [*command, "controller", *options, "--metrics-address", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                ready = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
                assert ready is not None
                yield int(ready.group(1)), log
            finally:
                process.kill()


def test_a_probe_finds_a_program_that_is_flooded(controller: tuple[int, Path]) -> None:
    """More half heads than the program has descriptors keep no probe away, and are logged once."""
    port, log = controller
    with contextlib.ExitStack() as opened:
        for _ in range(DESCRIPTORS + 50):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            with contextlib.suppress(ConnectionError):
                one.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        for _ in range(3):
            probe = opened.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            probe.sendall(b"GET /healthz HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
            assert status_of(read_all(probe)) == 200
    assert log.read_text().count("connection limit") == 1
    assert "Too many open files" not in log.read_text()


@pytest.fixture
async def webhook() -> AsyncIterator[int]:
    """Serve a webhook, and yield its port."""
    authority = Authority()
    pair = authority.issue("webhook", hosts=("127.0.0.1",))
    view = HintView(PlannerSettings())
    served = Webhook(view, is_ready=lambda: False, metrics=WebhookMetrics(), clock=CLOCK)
    served.load_certificate(ServingPair(pair.certificate, pair.key, authority.certificate))
    yield await served.start("127.0.0.1", 0)
    await served.stop()


async def test_the_webhook_answers_beside_silent_handshakes(webhook: int) -> None:
    """Connections that never begin TLS count, and the oldest give way to an API server."""
    silent = [
        await asyncio.open_connection("127.0.0.1", webhook)
        for _ in range(2 * pages.MAX_PAGE_CONNECTIONS)
    ]
    assert await _review(webhook) == write_response("u1")
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(ConnectionError):
            assert await silent[0][0].read() == b""
    for _, writer in silent:
        writer.transport.abort()


async def test_the_webhook_answers_beside_unfinished_reviews(
    webhook: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unfinished reviews beyond the limit of bytes lose their connections; a whole one does not."""
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 4 * MEBIBYTE)
    head = _head(2 * MEBIBYTE) + bytes(MEBIBYTE)
    unfinished = []
    for _ in range(6):
        reader, writer = await _connect(webhook)
        writer.write(head)
        unfinished.append((reader, writer))
    async with asyncio.timeout(PATIENCE):
        # NB: which of them the server reads first is not certain.
        closed = [asyncio.ensure_future(_read(reader)) for reader, _ in unfinished]
        await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
    assert await _review(webhook) == write_response("u1")
    for _, writer in unfinished:
        writer.transport.abort()
    await asyncio.wait(closed)


async def _read(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return await reader.read()
    return b""


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=trusting())


async def _review(port: int) -> bytes:
    """Return the body of the answer to a review."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await _connect(port)
        writer.write(_head(len(REVIEW), CLOSE) + REVIEW)
        answer = await reader.read()
        writer.transport.abort()
    return answer.partition(b"\r\n\r\n")[2]


def _head(length: int, extra: bytes = b"") -> bytes:
    line = f"POST {WEBHOOK_PATH} HTTP/1.1\r\nContent-Length: {length}\r\n".encode()
    return line + HOST + extra + b"\r\n"
