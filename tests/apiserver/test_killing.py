"""The server killed in the middle of its work, again and again, and everything answered is there.

Eight clients create ConfigMaps as fast as they can while one watches. When a random number of
creates has been answered the server gets SIGKILL, and a new one is started on the same files.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import uvloop

from support.ports import reserved_port
from support.server_processes import Embedded, start_embedded

JsonObject = dict[str, Any]
ROUNDS: Final = 20
CREATES: Final = 10_000
CONNECTIONS: Final = 8
PATIENCE: Final = 180.0
_GONE: Final = (OSError, EOFError)


class Connection:
    """A kept connection to the server."""

    def __init__(self, server: Embedded) -> None:
        self._server = server
        self._head = f"Host: x\r\nAuthorization: Bearer {server.token()}\r\n"

    async def open(self) -> Connection:
        """Connect."""
        context = ssl.create_default_context(cafile=self._server.directory / "pki" / "ca.crt")
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._server.port, ssl=context, limit=2**27
        )
        return self

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of the answer; raises what _GONE holds when the server goes."""
        self.send(method, path, body)
        head = await self.reader.readuntil(b"\r\n\r\n")
        if b"Transfer-Encoding: chunked" in head:
            # A long list.
            return int(head[9:12]), await self._chunks()
        length = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self.reader.readexactly(length)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return body

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        """Send a request."""
        length = f"Content-Length: {len(body)}\r\n"
        head = f"{method} {path} HTTP/1.1\r\n{self._head}{length}\r\n"
        self.writer.write(head.encode() + body)

    async def close(self) -> None:
        """Let go."""
        self.writer.close()
        with contextlib.suppress(*_GONE):
            await self.writer.wait_closed()


class Watcher:
    """A client that follows a namespace over the ends of servers."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen: list[tuple[int, str]] = []
        self.version = ""

    async def follow(self, server: Embedded, *, until: Callable[[], bool]) -> None:
        """Go on from the last version seen, until that is so or the server is gone."""
        connection = await Connection(server).open()
        try:
            connection.send("GET", f"{self.path}?watch=true&resourceVersion={self.version}")
            await connection.reader.readuntil(b"\r\n\r\n")
            while not until():
                size = int(await connection.reader.readuntil(b"\r\n"), 16)
                frame = await connection.reader.readexactly(size + 2)
                for line in frame.splitlines():
                    if line:
                        self._note(msgspec.json.decode(line))
        except _GONE:
            return
        finally:
            await connection.close()

    def _note(self, event: JsonObject) -> None:
        assert event["type"] == "ADDED", event
        metadata = event["object"]["metadata"]
        self.version = metadata["resourceVersion"]
        self.seen.append((int(self.version), metadata["name"]))
        _check_whole(event["object"])


def _content(name: str) -> str:
    """Return what an object of the name holds: between 64 bytes and 4 KiB."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    return digest * (1 + int(digest[:2], 16) % 64)


def _check_whole(found: JsonObject) -> None:
    metadata = found["metadata"]
    assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
    assert found["data"] == {"text": _content(metadata["name"])}
    assert metadata["uid"]
    assert metadata["creationTimestamp"]
    assert [one["operation"] for one in metadata["managedFields"]] == ["Update"]


async def _create_until_killed(server: Embedded, path: str, *, kill_at: int) -> set[str]:
    """Create objects, kill the server after so many answers, and return what was answered."""
    answered: set[str] = set()
    names = iter([f"map-{number:05}" for number in range(CREATES)])

    async def create(connection: Connection) -> None:
        try:
            for name in names:
                body = {"metadata": {"name": name}, "data": {"text": _content(name)}}
                status, answer = await connection.call("POST", path, msgspec.json.encode(body))
                assert status == 201, answer
                answered.add(name)
                if len(answered) == kill_at:
                    server.process.kill()
        except _GONE:
            pass
        finally:
            await connection.close()

    connections = [await Connection(server).open() for _ in range(CONNECTIONS)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(create, connections))
    return answered


async def _round(server: Embedded, number: int, *, kill_at: int) -> Embedded:
    """Create, kill, start again and check; return the new server."""
    namespace = f"round-{number}"
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    connection = await Connection(server).open()
    body = msgspec.json.encode({"metadata": {"name": namespace}})
    status, answer = await connection.call("POST", "/api/v1/namespaces", body)
    assert status == 201, answer
    await connection.close()
    watcher = Watcher(path)
    watcher.version = msgspec.json.decode(answer)["metadata"]["resourceVersion"]
    watching = asyncio.create_task(watcher.follow(server, until=lambda: False))
    answered = await _create_until_killed(server, path, kill_at=kill_at)
    async with asyncio.timeout(PATIENCE):
        await watching
    seen_before = len(watcher.seen)
    server.stop()
    server = start_embedded(server.directory, "--no-controllers", port=server.port)
    connection = await Connection(server).open()
    async with asyncio.timeout(PATIENCE):
        status, answer = await connection.call("GET", path)
    assert status == 200
    await connection.close()
    listed = msgspec.json.decode(answer)["items"]
    for found in listed:
        _check_whole(found)
    stored = {one["metadata"]["name"] for one in listed}
    assert len(stored) == len(listed)
    assert answered <= stored, f"{len(answered - stored)} answered objects are lost"
    assert len(stored - answered) <= CONNECTIONS
    async with asyncio.timeout(PATIENCE):
        await watcher.follow(server, until=lambda: len(watcher.seen) >= len(listed))
    want = sorted(
        (int(one["metadata"]["resourceVersion"]), one["metadata"]["name"]) for one in listed
    )
    assert watcher.seen == want, f"of {len(want)} objects {seen_before} were seen before the kill"
    return server


async def _kill_again_and_again(directory: Path) -> None:
    rnd = random.Random(20)
    with reserved_port() as port:
        server = start_embedded(directory, "--no-controllers", port=port)
        try:
            for number in range(ROUNDS):
                server = await _round(server, number, kill_at=rnd.randint(1, CREATES - 1))
        finally:
            server.stop()


@pytest.mark.slow
def test_nothing_answered_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    """After each of 20 kills every answered object is there whole, and the watch has no gap."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_kill_again_and_again(tmp_path / "data"))
