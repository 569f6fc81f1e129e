"""A transport that answers every write at once with what was sent, as a server would store it.

Nothing is stored and nothing can be read: whoever uses it fills the caches by hand. Answers put
ahead of the real ones (`refuse_next`) make single requests fail.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from keepclose.kube.transport.transport import ApiRequest
from keepclose.testing.scripted_streams import FakeResponse, status_of


class EchoTransport:
    """Counts versions and generations on."""

    def __init__(self) -> None:
        self.version = 1_000_000
        self.requests: list[ApiRequest] = []
        self.handed_over = 0.0
        """When the last request came, by the clock of `time.process_time`."""
        self._refusals: deque[tuple[int, str] | None] = deque()

    def refuse_next(self, *refusals: tuple[int, str] | None) -> None:
        """Refuse the next requests with these codes and reasons; None serves one."""
        self._refusals.extend(refusals)

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Answer a write."""
        self.handed_over = time.process_time()
        self.requests.append(request)
        refusal = self._refusals.popleft() if self._refusals else None
        if refusal is not None:
            body = msgspec.json.encode(status_of(*refusal, ""))
            return FakeResponse(refusal[0], {}, _once(body))
        self.version += 1
        obj: dict[str, Any] = msgspec.json.decode(request.body or b"{}")
        meta = obj.setdefault("metadata", {})
        meta.setdefault("name", f"{meta.get('generateName', '')}{self.version}")
        meta.setdefault("uid", f"uid-{meta['name']}")
        meta["resourceVersion"] = str(self.version)
        meta["generation"] = meta.get("generation", 0) + 1
        return FakeResponse(200, {}, _once(msgspec.json.encode(obj)))

    async def close(self) -> None:
        """Do nothing."""


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body
