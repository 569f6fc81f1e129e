"""Watch streams and answers of a hostile API server, as our client reads them.

Whatever comes, the client raises an error of its own, and how the bytes are cut changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
from fuzzbounds import require
from fuzzobjects import OBJECTS

from keepclose.kube.clock import SystemClock
from keepclose.kube.errors import KubeError, error_from
from keepclose.kube.requests import Kind
from keepclose.kube.watch.list_decoding import decode_object, decode_page
from keepclose.kube.watch.stream import EventDecoder, read_events
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod

MUTATES_JSON = True
_KINDS: tuple[Kind[Any], ...] = (
    Kind("", "v1", "services", "Service", True, Service),
    Kind("", "v1", "pods", "Pod", True, Pod),
    Kind("", "v1", "nodes", "Node", False, Node),
    Kind("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, EndpointSlice),
)


def seeds() -> Iterator[bytes]:
    """Yield events, lists and failures."""
    names = ("services", "pods", "nodes", "endpointslices.discovery.k8s.io")
    for number, name in enumerate(names):
        head = str(number).encode() + b"\n"
        for kind in ("ADDED", "DELETED"):
            yield head + msgspec.json.encode({"type": kind, "object": OBJECTS[name]})
        page = {"metadata": {"resourceVersion": "7", "continue": "x"}, "items": [OBJECTS[name]]}
        yield head + msgspec.json.encode(page)
    bookmark = {
        "metadata": {"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}}
    }
    yield b"0\n" + msgspec.json.encode({"type": "BOOKMARK", "object": bookmark})
    status = {
        "kind": "Status",
        "message": "too old",
        "reason": "Expired",
        "code": 410,
        "details": {"retryAfterSeconds": 1, "causes": [{"field": "a", "message": "b"}]},
        "metadata": {"continue": "x"},
    }
    yield b"0\n" + msgspec.json.encode({"type": "ERROR", "object": status})
    yield b"0\n" + msgspec.json.encode(status)


def check(data: bytes) -> None:
    """Read the bytes as a stream, as a list, as an object and as a failure."""
    head, _, body = data.partition(b"\n")
    kind = _KINDS[(head[0] if head else 0) % len(_KINDS)]
    stream = body + b"\n" + body
    whole = asyncio.run(_events(kind, [stream]))
    third = max(1, len(stream) // 3)
    pieces = [stream[at : at + third] for at in range(0, len(stream), third)]
    require(asyncio.run(_events(kind, pieces)) == whole, "cut into pieces it is another stream")
    for decode in (decode_page, decode_object):
        try:
            decode(kind, body, where="x")
        except KubeError as error:
            require(str(error), "an error without a text")
    for code in (0, 200, 404, 410, 429, 599):
        failure = error_from(code, {"Retry-After": head.decode("latin-1")}, body)
        require(str(failure), "a failure without a text")


async def _events(kind: Kind[Any], pieces: list[bytes]) -> list[str]:
    async def chunks() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    seen: list[str] = []
    try:
        async for event in read_events(chunks(), EventDecoder(kind), clock=SystemClock()):
            seen += [repr(event)]
    except KubeError as error:
        seen.append(str(error))
    return seen
