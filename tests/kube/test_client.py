"""Tests of the client over a scripted transport: answers, patience and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from random import Random
from typing import Any

import msgspec
import pytest
import structlog

from keepclose.kube.client import Client, PatchType
from keepclose.kube.clock import Clock
from keepclose.kube.errors import (
    Conflict,
    ConnectionLost,
    ConnectionRefused,
    Expired,
    Forbidden,
    NotFound,
    ServerError,
    TimedOut,
    TooManyRequests,
    TransportError,
)
from keepclose.kube.requests import LEASES, NODES, PODS, SERVICES
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest, Response
from keepclose.model.core_kinds import Lease
from keepclose.model.meta import ObjectMeta
from keepclose.testing.fake_clock import FakeClock
from support.builders import node, pod, service


class Answer:
    """An answer from a script."""

    def __init__(
        self,
        body: Any = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        breaks: TransportError | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {}
        self.body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.breaks = breaks
        self.closed = 0

    async def read(self) -> bytes:
        """Return the body, or break."""
        if self.breaks is not None:
            raise self.breaks
        return self.body

    async def chunks(self) -> AsyncIterator[bytes]:
        """Give the body in one piece, then end or break."""
        yield self.body
        if self.breaks is not None:
            raise self.breaks

    async def close(self) -> None:
        """Count how often."""
        self.closed += 1


class Script:
    """A transport that gives prepared answers in order and notes what was asked and when."""

    def __init__(self, *answers: Answer | TransportError, clock: Clock) -> None:
        self.answers = list(answers)
        self.clock = clock
        self.requests: list[ApiRequest] = []
        self.times: list[float] = []
        self.closed = 0

    async def send(self, request: ApiRequest) -> Response:
        """Give the next answer."""
        self.requests.append(request)
        self.times.append(self.clock.monotonic())
        answer = self.answers.pop(0)
        if isinstance(answer, TransportError):
            raise answer
        return answer

    async def close(self) -> None:
        """Count how often."""
        self.closed += 1


def scripted(
    *answers: Answer | TransportError, **settings: Any
) -> tuple[Client, Script, FakeClock]:
    """Return a client over a script, the script, and the clock of both."""
    clock = FakeClock()
    script = Script(*answers, clock=clock)
    settings.setdefault("retries", Retries(random=Random(1)))
    return Client(script, clock=clock, **settings), script, clock


def failure(
    code: int, reason: str = "", *, headers: Mapping[str, str] | None = None, **more: Any
) -> Answer:
    """Return an answer with a Status."""
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"{code} it is", **more}
    return Answer(body, code, headers)


async def test_every_request_says_who_asks_and_what_it_reads() -> None:
    """User agent, accepted type and timeout go with each request; a body has its own type."""
    client, script, _ = scripted(Answer(node()), Answer(node()), user_agent="me/1", timeout=5.0)
    assert await client.get(NODES, "n1") == node()
    await client.patch(NODES, "n1", {"a": 1})
    first, second = script.requests
    assert first.headers == {"Accept": "application/json", "User-Agent": "me/1"}
    assert second.headers == {**first.headers, "Content-Type": "application/merge-patch+json"}
    assert (first.timeout, second.body) == (5.0, b'{"a":1}')


async def test_verbs_return_what_the_server_stored() -> None:
    """Each write gives the object of the answer, not the one that was sent."""
    stored = service("stored")
    client, script, _ = scripted(*(Answer(stored) for _ in range(6)), Answer({"kind": "Status"}))
    plain = {"metadata": {"name": "web", "namespace": "shop"}}
    results = [
        await client.create(SERVICES, plain, field_manager="k"),
        await client.update(SERVICES, service("web", namespace="shop")),
        await client.update_raw(SERVICES, plain, subresource="status"),
        await client.patch(
            SERVICES, "web", {}, namespace="shop", type=PatchType.STRATEGIC, field_manager="k"
        ),
        await client.apply(SERVICES, "web", plain, namespace="shop", field_manager="k", force=True),
        await client.get(SERVICES, "web", namespace="shop"),
    ]
    await client.delete(SERVICES, "web", namespace="shop", uid="u", resource_version="7")
    assert results == [stored] * 6
    web = "/api/v1/namespaces/shop/services/web"
    assert [str(request) for request in script.requests] == [
        "POST /api/v1/namespaces/shop/services",
        f"PUT {web}",
        f"PUT {web}/status",
        f"PATCH {web}",
        f"PATCH {web}",
        f"GET {web}",
        f"DELETE {web}",
    ]
    want = {"uid": "u", "resourceVersion": "7"}
    assert msgspec.json.decode(script.requests[-1].body or b"")["preconditions"] == want


async def test_raw_gives_the_bytes() -> None:
    """Paths outside the kinds are asked for as they are."""
    client, script, _ = scripted(Answer(b"ok"), Answer(b"{}"))
    assert await client.raw("GET", "/readyz", query=[("verbose", "1")]) == b"ok"
    assert await client.raw("POST", "/x", body=b"1", headers={"Content-Type": "a/b"}) == b"{}"
    assert script.requests[0].query == (("verbose", "1"),)
    assert script.requests[1].headers["Content-Type"] == "a/b"


async def test_a_failure_names_the_request() -> None:
    """An error of the server is typed and knows what was asked; the answer is closed."""
    refused = failure(403, "Forbidden")
    client, _, _ = scripted(refused)
    with pytest.raises(Forbidden) as raised:
        await client.list_page(PODS)
    assert raised.value.request == "GET /api/v1/pods"
    assert refused.closed == 1


async def test_a_redirect_is_not_followed() -> None:
    """An answer that is neither success nor failure is an error too."""
    client, script, _ = scripted(Answer(b"moved", 302))
    with pytest.raises(Exception, match="moved"):
        await client.get(NODES, "n1")
    assert len(script.requests) == 1


async def run_by_clock(clock: FakeClock, work: Any) -> Any:
    """Return what the work gives while the clock runs from sleeper to sleeper."""
    task = asyncio.ensure_future(work)
    await clock.run_until(task.done)
    return await task


@pytest.mark.parametrize(
    "passing",
    [
        pytest.param(ConnectionRefused("h", "refused"), id="refused"),
        pytest.param(ConnectionLost("h", "lost"), id="lost"),
        pytest.param(TimedOut("h", "slow"), id="timed out"),
        pytest.param(failure(500, "InternalError"), id="500"),
        pytest.param(failure(503), id="503"),
        pytest.param(failure(429), id="429"),
        pytest.param(Answer(breaks=ConnectionLost("h", "cut")), id="cut while reading"),
    ],
)
async def test_reading_is_repeated_after_what_passes(passing: Answer | TransportError) -> None:
    """A GET is sent again after a short wait, and its answer is given."""
    client, script, clock = scripted(passing, passing, Answer(node()))
    started = clock.monotonic()
    assert await run_by_clock(clock, client.get(NODES, "n1")) == node()
    first, second, third = script.times
    assert first == started
    assert 0 < second - first <= 0.1
    assert 0 < third - second <= 0.2


async def test_the_server_s_time_is_waited_for() -> None:
    """Retry-After is obeyed to the second."""
    busy = failure(429, "TooManyRequests", headers={"Retry-After": "3"})
    slow = failure(503, details={"retryAfterSeconds": 2})
    client, script, clock = scripted(busy, slow, Answer(node()))
    await run_by_clock(clock, client.get(NODES, "n1"))
    assert [round(t - script.times[0], 6) for t in script.times] == [0, 3, 5]


async def test_patience_ends_with_the_last_error() -> None:
    """After the limit on all attempts together the last failure is raised."""
    lost = ConnectionLost("h", "lost")
    client, script, clock = scripted(
        *[lost] * 1000, retries=Retries(random=Random(1), max_elapsed=20.0)
    )
    started = clock.monotonic()
    with pytest.raises(ConnectionLost):
        await run_by_clock(clock, client.get(NODES, "n1"))
    assert 15 < clock.monotonic() - started < 20
    assert 8 < len(script.times) < 30


async def test_a_time_beyond_our_patience_is_not_waited_for() -> None:
    """When the server asks for an hour the caller is told at once."""
    client, _, clock = scripted(failure(429, headers={"Retry-After": "3600"}))
    started = clock.monotonic()
    with pytest.raises(TooManyRequests) as raised:
        await client.get(NODES, "n1")
    assert raised.value.retry_after == 3600
    assert clock.monotonic() == started


PLAIN = {"metadata": {"name": "web", "namespace": "shop"}}
WRITES = {
    "create": lambda c: c.create(SERVICES, PLAIN),
    "update": lambda c: c.update_raw(SERVICES, PLAIN),
    "patch": lambda c: c.patch(SERVICES, "web", {}, namespace="shop"),
    "delete": lambda c: c.delete(SERVICES, "web", namespace="shop"),
    "post": lambda c: c.raw("POST", "/x"),
}
HARMLESS = {
    "dry run": lambda c: c.create(SERVICES, PLAIN, dry_run=True),
    "apply": lambda c: c.apply(SERVICES, "web", PLAIN, namespace="shop", field_manager="k"),
    "delete of one uid": lambda c: c.delete(SERVICES, "web", namespace="shop", uid="u"),
    "delete of one version": lambda c: c.delete(
        SERVICES, "web", namespace="shop", resource_version="7"
    ),
    "list": lambda c: c.raw("GET", "/version"),
}


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize(
    "passing", [ConnectionLost("h", "lost"), TimedOut("h", "slow"), failure(500), failure(503)]
)
async def test_a_write_that_may_have_happened_is_not_repeated(
    name: str, passing: Answer | TransportError
) -> None:
    """Twice could do harm, so the caller decides."""
    client, script, _ = scripted(passing, Answer(service()))
    with pytest.raises((TransportError, ServerError)):
        await WRITES[name](client)
    assert len(script.requests) == 1


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("passing", [ConnectionRefused("h", "refused"), failure(429)])
async def test_a_write_that_did_not_happen_is_repeated(
    name: str, passing: Answer | TransportError
) -> None:
    """Nothing was sent, or the server did nothing: the write is sent again, byte for byte."""
    client, script, clock = scripted(passing, Answer(service()))
    await run_by_clock(clock, WRITES[name](client))
    first, second = script.requests
    assert first == second


@pytest.mark.parametrize("name", HARMLESS)
async def test_a_write_that_does_no_harm_twice_is_repeated(name: str) -> None:
    """Dry runs, applies and deletes of one certain object may be sent again."""
    client, script, clock = scripted(ConnectionLost("h", "lost"), Answer(service()))
    await run_by_clock(clock, HARMLESS[name](client))
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("answer", "want"),
    [(failure(404, "NotFound"), NotFound), (failure(409, "Conflict"), Conflict)],
)
async def test_an_answer_that_stays_is_raised_at_once(answer: Answer, want: type) -> None:
    """What another attempt would not change is not attempted."""
    client, script, _ = scripted(answer)
    with pytest.raises(want):
        await client.get(NODES, "n1")
    assert len(script.requests) == 1


def page_of(
    *names: str, version: str = "9", token: str = "", remaining: int | None = None
) -> Answer:
    """Return a page of a list of pods."""
    metadata = {"resourceVersion": version, "continue": token, "remainingItemCount": remaining}
    return Answer({"items": [pod(name) for name in names], "metadata": metadata})


async def test_a_list_is_read_page_by_page() -> None:
    """All pages make one, the version is asked for once, and tokens are passed on."""
    client, script, _ = scripted(
        page_of("a", "b", token="t1", remaining=3),  # noqa: S106
        page_of("c", "d", token="t2", remaining=1),  # noqa: S106
        page_of("e"),
    )
    page = await client.list_all(
        PODS, namespace="x", label_selector="l", resource_version="0", page_size=2
    )
    assert [p.metadata.name for p in page.items] == list("abcde")
    assert (page.resource_version, page.continue_token, page.remaining) == ("9", "", None)
    assert [dict(request.query) for request in script.requests] == [
        {"labelSelector": "l", "limit": "2", "resourceVersion": "0"},
        {"labelSelector": "l", "limit": "2", "continue": "t1"},
        {"labelSelector": "l", "limit": "2", "continue": "t2"},
    ]


async def test_a_list_that_expires_midway_is_read_again_whole() -> None:
    """The second time everything is asked for at once, so that it cannot expire again."""
    client, script, _ = scripted(
        page_of("a", "b", version="9", token="t1"),  # noqa: S106
        failure(410, "Expired", metadata={"continue": "mixed"}),
        page_of("b", "c", version="20"),
    )
    page = await client.list_all(PODS, page_size=2)
    assert [p.metadata.name for p in page.items] == ["b", "c"]
    assert page.resource_version == "20"
    assert [dict(request.query) for request in script.requests] == [
        {"limit": "2"},
        {"limit": "2", "continue": "t1"},
        {},
    ]


async def test_a_list_that_is_expired_from_the_start_is_an_error() -> None:
    """Asking for a version that is gone is not repaired here."""
    client, _, _ = scripted(failure(410, "Expired"))
    with pytest.raises(Expired):
        await client.list_all(PODS, resource_version="1", resource_version_match="Exact")


async def test_unreadable_objects_of_all_pages_are_told() -> None:
    """Each page's bad objects are logged once and returned together."""
    bad = {"items": [{"metadata": {"name": "bad"}, "spec": 1}], "metadata": {"continue": "t"}}
    worse = {"items": [{"metadata": {"name": "worse"}, "spec": 2}, pod("good")]}
    client, _, _ = scripted(Answer(bad), Answer(worse))
    with structlog.testing.capture_logs() as logs:
        page = await client.list_all(PODS)
    assert [p.metadata.name for p in page.items] == ["good"]
    assert [name for name, _ in page.rejected] == ["bad", "worse"]
    assert [(entry["event"], entry["first"], entry["count"]) for entry in logs] == [
        ("unreadable objects skipped", "bad", 1),
        ("unreadable objects skipped", "worse", 1),
    ]
    assert logs[0]["cause"] == "spec: Invalid value: 1: expected a map, got a number"


async def test_a_watch_gives_events_and_closes() -> None:
    """Events come typed, the request is a stream, and the answer is closed at the end."""
    event = msgspec.json.encode({"type": "ADDED", "object": pod("a")}) + b"\n"
    answer = Answer(event * 2)
    client, script, _ = scripted(answer)
    async with client.watch(PODS, namespace="x", resource_version="7") as events:
        found = [event.object async for event in events]
    assert found == [pod("a")] * 2
    assert script.requests[0].streaming
    assert answer.closed == 1


async def test_a_watch_left_early_is_closed() -> None:
    """Leaving the context in the middle closes the answer, errors too."""
    event = msgspec.json.encode({"type": "ADDED", "object": pod("a")}) + b"\n"
    answer = Answer(event * 2)
    client, _, _ = scripted(answer)

    async def read_one() -> None:
        async with client.watch(PODS) as events:
            async for _ in events:
                raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        await read_one()
    assert answer.closed == 1


async def test_opening_a_watch_is_tried_once() -> None:
    """Who watches knows better than the client from where to go on."""
    client, script, _ = scripted(failure(410, "Expired"))
    with pytest.raises(Expired) as raised:
        async with client.watch(PODS, resource_version="1"):
            pass
    assert raised.value.request == "GET /api/v1/pods"
    client, script, _ = scripted(ConnectionRefused("h", "refused"))
    with pytest.raises(ConnectionRefused):
        async with client.watch(PODS):
            pass
    assert len(script.requests) == 1


async def test_a_client_is_a_context() -> None:
    """Leaving the context closes the transport."""
    client, script, _ = scripted()
    async with client as same:
        assert same is client
    assert script.closed == 1


async def test_a_lease_survives_an_update() -> None:
    """A struct that holds its kind whole is sent with its type and version."""
    lease = Lease(metadata=ObjectMeta(name="l", namespace="x", resource_version="4"))
    client, script, _ = scripted(Answer(lease))
    assert await client.update(LEASES, lease) == lease
    sent = msgspec.json.decode(script.requests[0].body or b"")
    assert sent == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "x", "resourceVersion": "4"},
        "spec": {},
    }
