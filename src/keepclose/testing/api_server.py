"""The real API server in the running event loop, and a plain HTTP client for it.

    async with serving(tmp_path) as api:
        reply = await api.call("GET", "/api/v1/namespaces")

The server is that of `keepclose apiserver`, with two differences: it takes any free port, and it
creates no objects but namespaces and the default ServiceCIDR, so that a test finds only its own.
With `makes_own_service=True` and `runs_controllers=True` it does all that the command does.
"""

from __future__ import annotations

import asyncio
import io
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from keepclose.apiserver.assembly import ApiServer, ServerSettings
from keepclose.model.json_values import JsonObject

PATIENCE: Final = 60.0
"""Seconds after which an awaited event counts as lost."""


class UnexpectedError(AssertionError):
    """The server gave another status than the test requires."""


class Reply(NamedTuple):
    """A response of the server."""

    status: int
    headers: Mapping[str, str]
    warnings: list[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as a JSON value."""
        return msgspec.json.decode(self.body)

    @property
    def message(self) -> str:
        """The message of a Status."""
        return str(self.json["message"])


class Events:
    """The events of a watch, one after the other."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Read from the response."""
        self.response = response

    async def next(self) -> JsonObject | None:
        """Return the next event; None when the watch has ended."""
        async with asyncio.timeout(PATIENCE):
            line = await self.response.content.readline()
        return msgspec.json.decode(line) if line else None

    async def take(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        found: list[tuple[str, str]] = []
        for _ in range(count):
            event = await self.next()
            if event is None:
                break
            found.append((event["type"], event["object"]["metadata"].get("name", "")))
        return found


class Api:
    """A server as its clients see it."""

    def __init__(self, url: str, *, token: str, ca: Path, session: aiohttp.ClientSession) -> None:
        """Hold the address of the server and its CA."""
        self.url = url
        self.token = token
        self.ca = ca
        self.session = session

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        type: str = "application/json",  # noqa: A002 - as the header has it
        accept: str = "application/json",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Send a request with the administrator's token, or with another; "" sends none."""
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        async with self.session.request(
            method,
            self.url + path,
            # NB: aiohttp warns of large bodies that are sent as bytes.
            data=None if data is None else io.BytesIO(data),
            headers={**self._headers(token), "Content-Type": type, "Accept": accept}
            | dict(headers or {}),
        ) as response:
            warnings = response.headers.getall("Warning", [])
            return Reply(response.status, response.headers, warnings, await response.read())

    async def get(self, path: str) -> Any:
        """Return the object or list; raise UnexpectedError unless the status is 200."""
        return _must_be(200, await self.call("GET", path)).json

    async def create(self, path: str, body: object) -> JsonObject:
        """Create an object and return it; raise UnexpectedError unless the status is 201."""
        created: JsonObject = _must_be(201, await self.call("POST", path, body)).json
        return created

    @asynccontextmanager
    async def watch(
        self, path: str, query: str = "", *, accept: str = "application/json"
    ) -> AsyncIterator[Events]:
        """Watch a collection for the time of the block."""
        target = f"{self.url}{path}?watch=true{query and '&' + query}"
        headers = {**self._headers(None), "Accept": accept}
        async with self.session.get(target, headers=headers) as response:
            if response.status != 200:
                raise UnexpectedError(f"{response.status}: {await response.text()}")
            yield Events(response)

    async def until_gone(self, path: str) -> None:
        """Return when the object is deleted."""
        await self.until(path, lambda reply: reply.status == 404)

    async def until(self, path: str, is_so: Any) -> Reply:
        """Repeat a GET until the condition holds, and return the response."""
        async with asyncio.timeout(PATIENCE):
            while True:
                reply = await self.call("GET", path)
                if is_so(reply):
                    return reply
                await asyncio.sleep(0.01)

    def _headers(self, token: str | None) -> dict[str, str]:
        used = self.token if token is None else token
        return {"Authorization": f"Bearer {used}"} if used else {}


def _must_be(status: int, reply: Reply) -> Reply:
    if reply.status != status:
        raise UnexpectedError(f"{reply.status}: {reply.body.decode(errors='replace')}")
    return reply


class Served(Api):
    """A server in this process."""

    server: ApiServer

    def token_of(self, name: str) -> str:
        """Return the token of a role, or of a node as node-<name>."""
        path = self.server.settings.data_dir / "tokens" / name
        return path.read_text().strip()


@asynccontextmanager
async def serving(directory: Path, **settings: Any) -> AsyncIterator[Served]:
    """Serve from the directory for the time of the block; settings are those of the server."""
    bare = {"makes_own_service": False, "runs_controllers": False}
    chosen = {"data_dir": directory, "port": 0, **bare, **settings}
    server = ApiServer(ServerSettings(**chosen))
    await server.start()
    try:
        ca = directory / "pki" / "ca.crt"
        token = (directory / "tokens" / "admin").read_text().strip()
        async with connected(ca) as session:
            served = Served(server.url, token=token, ca=ca, session=session)
            served.server = server
            yield served
    finally:
        await server.stop()


@asynccontextmanager
async def connected(
    ca: Path, *, certificate: Path | None = None
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session that trusts the CA alone; the certificate file holds a key too."""
    context = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        context.load_cert_chain(certificate)
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=2 * PATIENCE)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, read_bufsize=2**20, auto_decompress=False
    ) as session:
        yield session
