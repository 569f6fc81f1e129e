"""The wire between a controller and its API server: it counts writes and can make them fail.

Reads, leases and events pass unseen, so that what is counted is slices and the status of Services.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from keepclose.kube.errors import ConnectionLost
from keepclose.kube.transport.transport import ApiRequest, Response, Transport


class Wire:
    """A transport that counts what is written and loses some of it on the way."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.writes: list[ApiRequest] = []
        """The writes of slices and Services, those that failed too."""
        self.failing = 0.0
        """The part of the writes that fail, one half before they are served, one half after."""
        self.refused = ""
        """The method whose requests get no further at all."""
        self.alter: Callable[[dict[str, Any]], None] | None = None
        """What a server does to objects that are written: it drops or changes a field."""
        self.random = Random(7)

    def take(self) -> list[str]:
        """Return the writes since the last time, as in "PUT endpointslices", and forget them."""
        taken = [name_write(one) for one in self.writes]
        self.writes.clear()
        return taken

    async def send(self, request: ApiRequest) -> Response:
        """Pass a request on, or do not."""
        if request.method == "GET" or "/events" in request.path or "/leases" in request.path:
            return await self._transport.send(request)
        self.writes.append(request)
        dice = self.random.random()
        if dice < self.failing / 2 or request.method == self.refused:
            raise ConnectionLost("wire", "cut before the request was served")
        if self.alter is not None and request.body is not None and request.method != "DELETE":
            body = msgspec.json.decode(request.body)
            self.alter(body)
            request = replace(request, body=msgspec.json.encode(body))
        response = await self._transport.send(request)
        if dice < self.failing:
            await response.close()
            raise ConnectionLost("wire", "cut before the answer came")
        return response

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


def name_write(request: ApiRequest) -> str:
    """Return the method and what it was for, as in "PATCH services/status"."""
    parts = request.path.split("/namespaces/", 1)[-1].split("/")[1:]
    kind, subresource = parts[0], parts[2:3]
    return " ".join((request.method, "/".join((kind, *subresource))))


def written(request: ApiRequest) -> dict[str, object]:
    """Return the object that a write sent; empty for a delete."""
    if request.method == "DELETE" or request.body is None:
        return {}
    body: dict[str, object] = msgspec.json.decode(request.body)
    return body
