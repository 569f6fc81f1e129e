"""A stand-in for a running cluster: answers requests of commands as a test tells it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keepclose.lab.access import LabRefusal
from keepclose.lab.cluster.control import ControlHandler, ControlServer, ReportProgress
from keepclose.model.json_values import JsonObject

Reply = JsonObject | LabRefusal


class LabServer:
    """Answers each request by its name, and remembers what was asked."""

    def __init__(self, replies: Mapping[str, Reply], news: tuple[JsonObject, ...]) -> None:
        self.asked: list[tuple[str, JsonObject]] = []
        self._replies, self._news = replies, news

    @property
    def handlers(self) -> dict[str, ControlHandler]:
        """The handlers of the control socket."""
        return {name: self._handler(name) for name in self._replies}

    def _handler(self, name: str) -> ControlHandler:
        async def handle(params: JsonObject, tell: ReportProgress) -> JsonObject:
            self.asked.append((name, params))
            for one in self._news:
                tell(one)
            reply = self._replies[name]
            if isinstance(reply, LabRefusal):
                raise reply
            return reply

        return handle


@contextmanager
def answering(
    directory: Path, news: tuple[JsonObject, ...] = (), /, **replies: Reply
) -> Iterator[LabServer]:
    """Answer requests for the block, in a thread of its own."""
    lab = LabServer(replies, news)
    is_up = threading.Event()
    ends: list[Callable[[], Any]] = []

    async def serve() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(ended.set))
        server = ControlServer(directory / "lab.sock", lab.handlers)
        await server.start()
        is_up.set()
        await ended.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_up.wait(10)
        yield lab
    finally:
        for end in ends:
            end()
        thread.join()
