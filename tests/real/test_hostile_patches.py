"""Hostile patches, sizes, options and grace periods get the same status from both servers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from support.real.same_answers import (
    JSON,
    JSON_PATCH,
    MAPS,
    MERGE,
    NODES,
    PODS,
    STRATEGIC,
    Api,
)

Question = tuple[str, str, Any, str]
DRY = "?dryRun=All"
NUMBERS = ("-1", "+1", "00", " 1", "1.5", "1_000", "\u0661", "", "abc", "9" * 19, "9" * 400)


def config_map(name: str = "c") -> dict[str, Any]:
    """Return a ConfigMap with finalizers, which is a list to patch."""
    metadata = {"name": name, "finalizers": ["a.b/c", "a.b/d"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": "v"}}


def patch(*operations: dict[str, Any]) -> Question:
    """Return a JSON patch of the ConfigMap."""
    return "PATCH", f"{MAPS}/c{DRY}", list(operations), JSON_PATCH


def questions() -> Iterator[Question]:
    """Yield what both servers are asked."""
    double = {"op": "copy", "from": "/x", "path": "/x/-"}
    yield patch({"op": "add", "path": "/x", "value": [1]}, *[double] * 22)
    kilobyte = {"op": "add", "path": "/x", "value": "y" * 1_000}
    yield patch(kilobyte, *[{"op": "copy", "from": "/x", "path": "/z"}] * 3_200)
    yield patch(*[{"op": "test", "path": "/data/k", "value": "v"}] * 10_000)
    yield patch(*[{"op": "test", "path": "/data/k", "value": "v"}] * 10_001)
    for index in (*NUMBERS, "-", "-2", "-3", "2", "3", "9" * 5_000):
        path = f"/metadata/finalizers/{index}"
        for kind in ("add", "remove", "replace", "test", "copy", "move"):
            yield patch({"op": kind, "path": path, "from": path, "value": "a.b/c"})
    for member in ("op", "path", "from"):
        yield patch({"op": "copy", "path": "/data", "from": "/data", member: 5})
    for value in ([1], None, "x", 5):
        yield patch({"op": "replace", "path": "", "value": value})
    for media_type in (MERGE, STRATEGIC, JSON_PATCH):
        nested = b'{"a":' * 11_000 + b"1" + b"}" * 11_000
        whole = b'[{"op":"add","path":"/x","value":' + nested + b"}]"
        body = whole if media_type == JSON_PATCH else b'{"x":' + nested + b"}"
        yield "PATCH", f"{MAPS}/c{DRY}", body, media_type
    mixed: list[Any]
    for mixed in ([None], [[]], [1, "a"]):
        yield "PATCH", f"{MAPS}/c{DRY}", {"metadata": {"finalizers": mixed}}, STRATEGIC
    for number in NUMBERS:
        for option in ("limit", "timeoutSeconds"):
            yield "GET", f"{MAPS}?{option}={quote(number)}", None, JSON
        yield "DELETE", f"{MAPS}/none?gracePeriodSeconds={quote(number)}", None, JSON
    for version in ("9" * 20, "9" * 5_000, "-1", "abc", "18446744073709551616"):
        yield "GET", f"{MAPS}?resourceVersion={version}", None, JSON
    for options in (
        {"dryRun": ["x"]},
        {"dryRun": ["All", "All"]},
        {"propagationPolicy": "x"},
        {"preconditions": None},
        {"gracePeriodSeconds": 2**63},
        {"gracePeriodSeconds": "5"},
    ):
        yield "DELETE", f"{MAPS}/none", options, JSON
    images = [{"names": ["i" * 1_000], "sizeBytes": 1}]
    for count in (1_000, 2_000):
        yield "PATCH", f"{NODES}/n/status", {"status": {"images": images * count}}, MERGE


def test_hostile_requests_get_the_same_status(servers: tuple[Api, Api]) -> None:
    """Each request is answered with the code, and where there is one the reason, of Kubernetes."""
    for api in servers:
        assert api.ask("POST", MAPS, config_map())[0] == 201
        assert api.ask("POST", NODES, {"metadata": {"name": "n"}})[0] == 201
    different: list[str] = []
    for method, path, body, media_type in questions():
        answers = [api.ask(method, path, body, media_type) for api in servers]
        real, ours = ((code, found.get("reason")) for code, found, _ in answers)
        if real != ours:
            different.append(f"{method} {path[:80]} {str(body)[:150]}: {real}, ours {ours}")
    assert not different, "\n".join(different)


@pytest.mark.parametrize("grace", [30, 9_223_372_036, 9_223_372_037, 2**40, 2**62, -(2**63)])
def test_grace_periods_end_at_the_same_time(servers: tuple[Api, Api], grace: int) -> None:
    """A deleted pod is marked with the same moment, but for the seconds between the requests."""
    found: list[tuple[str, int]] = []
    for api in servers:
        containers = [{"name": "main", "image": "web:1"}]
        spec = {"nodeName": "n9", "terminationGracePeriodSeconds": grace, "containers": containers}
        assert api.ask("POST", PODS, {"metadata": {"name": "graced"}, "spec": spec})[0] == 201
        code, deleted, _ = api.ask("DELETE", f"{PODS}/graced")
        assert code == 200
        metadata = deleted["metadata"]
        found.append((metadata["deletionTimestamp"][:10], metadata["deletionGracePeriodSeconds"]))
        api.ask("DELETE", f"{PODS}/graced?gracePeriodSeconds=0")
    assert found[0] == found[1]
