"""A transport that answers from a script: pages, watch lines and every fault of a network.

    transport = ScriptedTransport(clock)
    transport.script(
        page([pod], version="7"),
        stream(modified(newer), bookmark("9"), STALL),
        refusal(),
        failure(410, "Expired"),
    )

Requests are answered in order and recorded in `requests`. After the last answer, requests wait
forever, as with a server that is gone without closing connections. Only the clock makes it wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from multidict import CIMultiDict

from keepclose.kube.clock import Clock
from keepclose.kube.errors import ConnectionLost, ConnectionRefused, TimedOut, TransportError
from keepclose.kube.transport.transport import ApiRequest

HOST: Final = "scripted"
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


class MovableClock(Clock, Protocol):
    """A clock whose wall time can be set, such as the FakeClock."""

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone."""
        ...


@dataclass(frozen=True)
class Pause:
    """No bytes for some seconds."""

    seconds: float


@dataclass(frozen=True)
class Jump:
    """The wall clock changes while the bytes are in flight."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """The connection breaks."""

    error: TransportError = field(default_factory=lambda: ConnectionLost(HOST, "reset by peer"))


class Stall:
    """No further bytes, on a connection that stays open."""


CUT: Final = Cut()
STALL: Final = Stall()
Part = bytes | Pause | Jump | Cut | Stall


@dataclass(frozen=True)
class Answer:
    """The answer to one request; with an error there is no answer."""

    status: int = 200
    parts: tuple[Part, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    error: TransportError | None = None
    delay_s: float = 0.0


class FakeResponse:
    """A response whose body is an iterator of bytes."""

    def __init__(self, status: int, headers: Mapping[str, str], body: AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = CIMultiDict(headers)
        self._body = body
        self.is_closed = False

    async def read(self) -> bytes:
        """Return the whole body."""
        return b"".join([chunk async for chunk in self._body])

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives."""
        return self._body

    async def close(self) -> None:
        """Record that the client has closed the response."""
        self.is_closed = True


class ScriptedTransport:
    """Answers requests one after the other, whatever their path."""

    def __init__(self, clock: MovableClock, *answers: Answer) -> None:
        self._clock = clock
        self._answers = deque(answers)
        self.requests: list[ApiRequest] = []
        self.responses: list[FakeResponse] = []
        self.is_closed = False

    def script(self, *answers: Answer) -> None:
        """Add answers at the end."""
        self._answers.extend(answers)

    @property
    def left(self) -> int:
        """The number of answers that no request has taken."""
        return len(self._answers)

    def queries(self) -> list[dict[str, str]]:
        """Return the query of each request, in order."""
        return [dict(request.query) for request in self.requests]

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Return the next answer of the script."""
        self.requests.append(request)
        answer = self._answers.popleft() if self._answers else Answer(parts=(STALL,))
        if answer.delay_s:
            await self._clock.sleep(answer.delay_s)
        if answer.error is not None:
            raise answer.error
        body = self._play(answer.parts)
        if not request.streaming:
            body = self._in_time(body, request.timeout)
        response = FakeResponse(answer.status, answer.headers, body)
        self.responses.append(response)
        return response

    async def close(self) -> None:
        """Record that the client has closed the transport."""
        self.is_closed = True

    async def _play(self, parts: tuple[Part, ...]) -> AsyncIterator[bytes]:
        for part in parts:
            match part:
                case bytes():
                    yield part
                case Pause():
                    await self._clock.sleep(part.seconds)
                case Jump():
                    self._clock.jump(part.seconds)
                case Cut():
                    raise part.error
                case Stall():
                    await asyncio.get_running_loop().create_future()

    async def _in_time(
        self, body: AsyncIterator[bytes], limit_s: float | None
    ) -> AsyncIterator[bytes]:
        async def read() -> bytes:
            return b"".join([chunk async for chunk in body])

        try:
            yield await self._clock.wait_for(read(), limit_s)
        except TimeoutError as error:
            raise TimedOut(HOST, f"no whole answer in {limit_s} s") from error


def answer(obj: object, *, status: int = 200) -> Answer:
    """Return an answer with this object as its body."""
    return Answer(status, (msgspec.json.encode(obj),), {"Content-Type": "application/json"})


def page(objects: Iterable[object], *, version: str, next_page: str = "") -> Answer:
    """Return a page of a list; `next_page` is its continue token."""
    metadata = {"resourceVersion": version}
    if next_page:
        metadata["continue"] = next_page
    return answer(
        {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": list(objects)}
    )


def failure(
    code: int, reason: str = "", message: str = "", *, retry_after: int | None = None
) -> Answer:
    """Return an error with its Status object."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    body = msgspec.json.encode(status_of(code, reason, message))
    return Answer(code, (body,), {"Content-Type": "application/json", **headers})


def refusal() -> Answer:
    """Return the error of a connection that is refused."""
    return Answer(error=ConnectionRefused(HOST, "connection refused"))


def lost() -> Answer:
    """Return the error of a connection that breaks before the headers arrive."""
    return Answer(error=ConnectionLost(HOST, "reset by peer"))


def stream(*parts: Part, delay_s: float = 0.0) -> Answer:
    """Return a watch with these lines and faults; then the server ends it."""
    return Answer(200, parts, {"Content-Type": "application/json"}, delay_s=delay_s)


def added(obj: object) -> bytes:
    """Return the line of a new object."""
    return _line("ADDED", obj)


def modified(obj: object) -> bytes:
    """Return the line of a changed object."""
    return _line("MODIFIED", obj)


def deleted(obj: object) -> bytes:
    """Return the line of a deleted object."""
    return _line("DELETED", obj)


def bookmark(version: str, *, ends_initial: bool = False) -> bytes:
    """Return the line of a bookmark; one may end the initial objects."""
    metadata: dict[str, Any] = {"resourceVersion": version}
    if ends_initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    return _line("BOOKMARK", {"metadata": metadata})


def error_event(code: int, reason: str = "", message: str = "") -> bytes:
    """Return the line by which a server ends a watch that it cannot serve."""
    return _line("ERROR", status_of(code, reason, message))


def half(line: bytes) -> bytes:
    """Return the first half of a line."""
    return line[: len(line) // 2]


def slowly(line: bytes, *, pause_s: float, chunks: int = 8) -> tuple[Part, ...]:
    """Return a line in chunks, with a pause before each."""
    size = -(-len(line) // chunks)
    cut = [line[start : start + size] for start in range(0, len(line), size)]
    return tuple(part for chunk in cut for part in (Pause(pause_s), chunk))


def status_of(code: int, reason: str, message: str) -> dict[str, Any]:
    """Return a Status object of a failure."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or f"status {code}",
        "reason": reason,
        "code": code,
    }


def _line(event_type: str, obj: object) -> bytes:
    return msgspec.json.encode({"type": event_type, "object": obj}) + b"\n"
