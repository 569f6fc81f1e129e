"""Odd values in every place of a request get an answer of the 2xx or the 4xx, never a fault."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from keepclose.testing.api_server import Reply, Served, serving

MAPS = "/api/v1/namespaces/default/configmaps"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
DRY = "dryRun=All"
# What a kube-apiserver itself answers with 500 or 504; tests/real holds both servers to it.
KUBERNETES_FAULTS = ("Too large resource version", "list element types are not identical")

NUMBERS = (
    *("0", "1", "-1", "+1", "00", " 1", "1 ", "1.5", "1e3", "0x10", "1_000", "abc", "", "null"),
    *("NaN", "\u0661", "\u00b2", "-", "+", "--1", "9" * 19, "9" * 20, "9" * 400, "9" * 5_000),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809"),
    *("18446744073709551615", "18446744073709551616", "1" + "0" * 400, "-" + "9" * 5_000),
)
WORDS = (
    *(
        "",
        "true",
        "false",
        "1",
        "0",
        "TRUE",
        "yes",
        "x",
        "All",
        "None",
        "Exact",
        "Strict",
        "Orphan",
    ),
    *("a" * 5_000, "\0", "\u2028", "\ud7ff", "%", "\\", '"', "{}", "[]", "../..", "a b"),
)
SELECTORS = (
    *("a", "a=", "=a", "a==b", "a in (b", "a in (b,)", "a in ()", "!", "!a", "a,,b", ",", "a>1"),
    *("a>x", "a>" + "9" * 5_000, "(" * 5_000, "a" * 5_000, "a=b," * 1_000, "\\,", "a\\=b"),
    *("metadata.name=x", "metadata.name!=x", "metadata.name=a,metadata.name=b", "spec.nope=1"),
)
SEGMENTS = ("..", ".", "%2e", "a%2Fb", "%00", "%C3%A9", "%ff", "a" * 300, "A", "a%20b", "-", "%25")
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, "", "x", "9" * 5_000),
    *([], [None], [[]], [1, "a"], {}, {"a": None}, {"": ""}, {"a": {"a": {"a": [[[]]]}}}),
)
TOKEN_VERSION = "meta.k8s.io/v1"  # noqa: S105 - the version of a token


class Case(NamedTuple):
    """One request."""

    method: str
    path: str
    body: Any = None
    type: str = "application/json"

    def __str__(self) -> str:
        """Return the request, shortened, as a failed test shows it."""
        return f"{self.method} {self.path[:120]} {str(self.body)[:200]} {self.type}"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve a ConfigMap from a new directory."""
    async with serving(tmp_path / "data") as served:
        await served.create(MAPS, {"metadata": {"name": "c", "finalizers": ["a.b/c", "a.b/d"]}})
        yield served


def query_cases() -> Iterator[Case]:
    """Yield odd values of every option of a query."""
    for option, value in itertools.product(("limit", "timeoutSeconds", "resourceVersion"), NUMBERS):
        yield Case("GET", f"{MAPS}?{option}={quote(value)}")
        yield Case("GET", f"{MAPS}/c?{option}={quote(value)}")
    for value, match in itertools.product(NUMBERS, ("Exact", "NotOlderThan", "x")):
        yield Case("GET", f"{MAPS}?resourceVersion={quote(value)}&resourceVersionMatch={match}")
    for value in NUMBERS:
        yield Case("DELETE", f"{MAPS}/none?gracePeriodSeconds={quote(value)}")
    for value in (*WORDS, *NUMBERS):
        for option in ("dryRun", "fieldManager", "fieldValidation", "force", "pretty"):
            yield Case(
                "PUT", f"{MAPS}/none?{option}={quote(value)}", {"metadata": {"name": "none"}}
            )
            yield Case("PATCH", f"{MAPS}/none?{option}={quote(value)}", {}, MERGE)
        for option in ("dryRun", "propagationPolicy", "orphanDependents"):
            yield Case("DELETE", f"{MAPS}/none?{option}={quote(value)}")
        for option in ("allowWatchBookmarks", "sendInitialEvents", "includeObject", "continue"):
            yield Case("GET", f"{MAPS}?{option}={quote(value)}")
    for option, value in itertools.product(
        ("labelSelector", "fieldSelector"), (*SELECTORS, *WORDS)
    ):
        yield Case("GET", f"{MAPS}?{option}={quote(value)}")


def token_cases() -> Iterator[Case]:
    """Yield tokens to go on with that this server never gave."""
    versions: tuple[Any, ...] = (0, 1, -1, -5, 10**9, 2**63, 10**30, "x", None, True, 1.5, [])
    starts: tuple[Any, ...] = ("default/c\0", "default/", "/", "", "../x", 5, None, [], "a/b/c")
    for version, start in itertools.product(versions, starts):
        value = {"v": TOKEN_VERSION, "rv": version, "start": start}
        token = base64.urlsafe_b64encode(json.dumps(value).encode()).decode()
        yield Case("GET", f"{MAPS}?limit=1&continue={token}")
    for raw in (b"", b"[]", b"{}", b"null", b"5", b'{"v":"z"}', b"\xff\xfe", b"{" * 5_000):
        yield Case("GET", f"{MAPS}?continue={base64.urlsafe_b64encode(raw).decode()}")


def path_cases() -> Iterator[Case]:
    """Yield odd segments of paths."""
    for segment, method in itertools.product(SEGMENTS, ("GET", "PUT", "PATCH", "DELETE", "POST")):
        body = {"metadata": {"name": "c"}} if method in ("PUT", "PATCH", "POST") else None
        kind = MERGE if method == "PATCH" else "application/json"
        for path in (
            f"{MAPS}/{segment}",
            f"{MAPS}/none/{segment}",
            f"/api/v1/namespaces/{segment}/configmaps",
            f"/api/v1/namespaces/{segment}/configmaps/c",
            f"/api/{segment}/configmaps",
            f"/apis/{segment}/v1/configmaps",
            f"/api/v1/{segment}",
        ):
            yield Case(method, path if method == "GET" else f"{path}?{DRY}", body, kind)


def body_cases() -> Iterator[Case]:
    """Yield odd members of preconditions, options of deletions, and metadata."""
    for value in VALUES:
        for member in ("uid", "resourceVersion"):
            body = {"preconditions": {member: value}}
            yield Case("DELETE", f"{MAPS}/c?{DRY}", body)
        for member in (
            *("preconditions", "gracePeriodSeconds", "propagationPolicy", "orphanDependents"),
            *("dryRun", "kind", "apiVersion", "nope"),
        ):
            yield Case("DELETE", f"{MAPS}/c?{DRY}", {member: value})
            yield Case("DELETE", f"{MAPS}?{DRY}&labelSelector=a=b", {member: value})
        yield Case("DELETE", f"{MAPS}/c?{DRY}", json.dumps(value).encode())
        for member in (
            *("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp"),
            *("deletionTimestamp", "deletionGracePeriodSeconds", "labels", "annotations"),
            *("ownerReferences", "finalizers", "managedFields", "generateName", "selfLink"),
        ):
            metadata = {"name": "c", member: value}
            yield Case("PUT", f"{MAPS}/c?{DRY}", {"metadata": metadata})
            yield Case("PATCH", f"{MAPS}/c?{DRY}", {"metadata": {member: value}}, MERGE)
            yield Case("PATCH", f"{MAPS}/c?{DRY}", {"metadata": {member: value}}, STRATEGIC)
        for kind in (JSON_PATCH, MERGE, STRATEGIC):
            yield Case("PATCH", f"{MAPS}/c?{DRY}", json.dumps(value).encode(), kind)


def operation_cases() -> Iterator[Case]:
    """Yield odd operations of JSON patches."""
    paths = (
        *(
            "",
            "/",
            "x",
            "//",
            "/metadata",
            "/metadata/finalizers/-",
            "/data/k",
            "/~",
            "/~2",
            "/nope/x",
        ),
        *(f"/metadata/finalizers/{index}" for index in NUMBERS),
    )
    for path, kind in itertools.product(
        paths, ("add", "remove", "replace", "test", "move", "copy")
    ):
        operation = {"op": kind, "path": path, "value": "a.b/c", "from": "/metadata/finalizers/0"}
        yield Case("PATCH", f"{MAPS}/c?{DRY}", [operation], JSON_PATCH)
        turned = {**operation, "from": path, "path": "/metadata/finalizers/0"}
        yield Case("PATCH", f"{MAPS}/c?{DRY}", [turned], JSON_PATCH)
    for value, member in itertools.product(VALUES, ("op", "path", "from", "value")):
        operation = {"op": "copy", "path": "/a", "from": "/metadata", member: value}
        yield Case("PATCH", f"{MAPS}/c?{DRY}", [operation], JSON_PATCH)
        yield Case(
            "PATCH", f"{MAPS}/c?{DRY}", [{"op": "add", "path": "", "value": value}], JSON_PATCH
        )
    for value in VALUES:
        replacement = [{"op": "replace", "path": "", "value": value}]
        yield Case("PATCH", f"{MAPS}/c?{DRY}", replacement, JSON_PATCH)


@pytest.mark.parametrize(
    "cases", [query_cases, token_cases, path_cases, body_cases, operation_cases]
)
async def test_odd_values_are_no_faults_of_the_server(api: Served, cases: Any) -> None:
    """Whatever stands in a query, a path, a precondition or an operation gets a 2xx or a 4xx."""
    odd: list[str] = []
    count = 0
    for case in cases():
        count += 1
        reply = await api.call(case.method, case.path, case.body, type=case.type)
        if not is_expected(reply):
            odd.append(f"{case} -> {reply.status} {reply.body[:200]!r}")
    assert count > 100
    assert not odd, f"{len(odd)} of {count}:\n" + "\n".join(odd[:20])


def is_expected(reply: Reply) -> bool:
    """Return whether an answer is a 2xx or a 4xx, or a 5xx with a sentence of a kube-apiserver."""
    if reply.status >= 500:
        return any(sentence in reply.message for sentence in KUBERNETES_FAULTS)
    return 200 <= reply.status < 300 or reply.status >= 400
