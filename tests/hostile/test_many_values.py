"""Bodies of a few bytes a value are bounded, and read beside the loop."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.apiserver.schema.protobuf import decode_protobuf
from keepclose.apiserver.schema.protobuf_wire import MessageError
from keepclose.apiserver.serving.application import MANY_VALUES
from keepclose.apiserver.serving.fair_queue import RequestThreads, Turns
from keepclose.model.json_values import VALUES_MAX, JsonValuesError, decode_json
from keepclose.testing.api_server import Served, serving

EVENTS = "/api/v1/namespaces/default/events"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NODES = "/api/v1/nodes"
PROTOBUF = "application/vnd.kubernetes.protobuf"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve from a new directory."""
    async with serving(tmp_path / "data", nodes=("n1",)) as served:
        yield served


def _field(number: int, data: bytes) -> bytes:
    size, digits = len(data), bytearray()
    while size > 0x7F:
        digits.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *digits, size]) + data


def _node_of_taints(count: int) -> bytes:
    """Return a Node as protobuf in which a taint takes two bytes."""
    raw = _field(1, _field(1, b"n1")) + _field(2, b"\x2a\x00" * count)
    return b"k8s\0" + _field(1, _field(1, b"v1") + _field(2, b"Node")) + _field(2, raw)


def test_values_of_a_text_are_counted_before_it_is_decoded() -> None:
    """What stands in strings is no value, however it is escaped."""
    with pytest.raises(JsonValuesError):
        decode_json(b"[" + b"[]," * VALUES_MAX + b"[]]")
    with pytest.raises(JsonValuesError):
        decode_json("[" + '"\\\\",' * VALUES_MAX + "0]")
    for text in (",[{" * VALUES_MAX, '",' * VALUES_MAX, "\\," * VALUES_MAX, '\\",' * VALUES_MAX):
        encoded = msgspec.json.encode({"data": text, "other": [text]})
        assert decode_json(encoded) == {"data": text, "other": [text]}
    whole = list(range(VALUES_MAX - 1))
    assert decode_json(msgspec.json.encode(whole)) == whole


def test_values_of_protobuf_are_counted_as_they_are_read() -> None:
    """An empty message stands for an object."""
    assert len(decode_protobuf(_node_of_taints(1_000))["spec"]["taints"]) == 1_000
    with pytest.raises(MessageError, match="exceeded max values"):
        decode_protobuf(_node_of_taints(VALUES_MAX))


@pytest.mark.parametrize(
    ("method", "path", "media_type", "body"),
    [
        ("POST", EVENTS, "application/json", b'{"metadata":{"finalizers":[%b""]}}'),
        ("PUT", f"{NODES}/n1", "application/json", b'{"spec":{"taints":[%b{}]}}'),
        ("PATCH", f"{NODES}/n1", STRATEGIC, b'{"spec":{"taints":[%b{}]}}'),
        ("PATCH", f"{NODES}/n1", JSON_PATCH, b'[{"op":"test","path":"","value":[%b0]}]'),
        ("DELETE", f"{NODES}/n1", "application/json", b'{"dryRun":[%b""]}'),
        ("POST", REVIEWS, "application/json", b'{"spec":{"x":[%b0]}}'),
    ],
)
async def test_bodies_of_too_many_values_are_bad_requests(
    api: Served, method: str, path: str, media_type: str, body: bytes
) -> None:
    """Every verb refuses them before anything is made of them."""
    await api.create(NODES, {"metadata": {"name": "n1"}})
    filled = body.replace(b"%b", b'"",' * VALUES_MAX)
    reply = await api.call(method, path, filled, type=media_type)
    assert reply.status == 400
    assert b"exceeded max values" in reply.body


async def test_protobuf_of_too_many_values_is_a_bad_request(api: Served) -> None:
    """Three megabytes of empty taints took six gigabytes of memory."""
    reply = await api.call("POST", NODES, _node_of_taints(1_500_000), type=PROTOBUF)
    assert reply.status == 400
    assert b"exceeded max values" in reply.body


@pytest.mark.parametrize(
    ("path", "media_type", "body"),
    [
        (NODES, "application/json", b'{"spec":{"taints":[%b{}]}}' % (b"{}," * (MANY_VALUES + 1))),
        (NODES, PROTOBUF, _node_of_taints(8_000)),
        (NODES, "application/YAML; charset=utf-8", b"x: [%b]" % (b"[]," * 5_000)),
        (REVIEWS, "application/yaml", b"spec: {x: [%b]}" % (b"[]," * 5_000)),
        (REVIEWS, "application/json", b'{"spec":{"x":[%b0]}}' % (b"0," * (MANY_VALUES + 1))),
    ],
    ids=["json", "protobuf", "yaml", "review-yaml", "review-json"],
)
async def test_bodies_of_many_values_are_read_beside_the_loop(
    api: Served, monkeypatch: pytest.MonkeyPatch, path: str, media_type: str, body: bytes
) -> None:
    """What they cost goes by their values, and not by their bytes alone."""
    ran: list[str] = []
    run = RequestThreads.run

    @functools.wraps(run)
    async def note(self: RequestThreads, identity: str, *args: Any, **how: Any) -> Any:
        ran.append(identity)
        return await run(self, identity, *args, **how)

    monkeypatch.setattr(RequestThreads, "run", note)
    small = await api.call("POST", path, b"{}", token=api.token_of("node-n1"))
    assert small.status in (400, 403, 422)
    assert ran == []
    reply = await api.call("POST", path, body, type=media_type, token=api.token_of("node-n1"))
    assert 400 <= reply.status < 500
    assert ran == ["system:node:n1"]


async def test_what_has_grown_in_a_queue_is_answered_beside_the_loop(
    api: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that was small when it came may be about a large object at its turn."""
    await api.create(NODES, {"metadata": {"name": "n1"}})
    ran: list[str] = []
    run_beside = RequestThreads.run

    async def note(self: RequestThreads, identity: str, *args: Any, **how: Any) -> Any:
        ran.append(identity)
        return await run_beside(self, identity, *args, **how)

    async def grow(_self: Any, _identity: str, work: Callable[[], Any]) -> Any:
        # Another connection of the same client was faster.
        grown = {"metadata": {"annotations": {"a": "x" * 200_000}}}
        reply = await api.call("PATCH", f"{NODES}/n1", grown, type=MERGE)
        assert reply.status == 200
        ran.clear()
        return work()

    monkeypatch.setattr(RequestThreads, "run", note)
    monkeypatch.setattr(Turns, "must_wait", lambda *_: True)
    monkeypatch.setattr(Turns, "run", grow)
    reply = await api.call(
        "PATCH",
        f"{NODES}/n1",
        {"metadata": {"annotations": {"b": "y"}}},
        type=MERGE,
        token=api.token_of("node-n1"),
    )
    assert reply.status == 200
    assert reply.json["metadata"]["annotations"]["b"] == "y"
    assert ran == ["system:node:n1"]
