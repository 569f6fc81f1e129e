"""Hints written on slices of another controller."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.transport.retries import Retries
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.well_known import ENDPOINTSLICE_CONTROLLER
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.runtime.workers import Result
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.scripted_streams import Answer, status_of
from keepclose.webhook.hint_writes import HintWriter, try_hints
from keepclose.webhook.metrics import WebhookMetrics
from support.builders import endpoint, endpoint_slice, service


def version(one: EndpointSlice, number: int) -> EndpointSlice:
    """Return a slice in a version."""
    return replace(one, metadata=replace(one.metadata, resource_version=str(number)))


PRESENT = version(endpoint_slice(endpoint(zone="zone-a"), name="web-1"), 7)
WANTED = version(endpoint_slice(endpoint(zone="zone-a", for_zones=("zone-a",)), name="web-1"), 7)


class Stand:
    """A writer over a cluster that answers as a test says."""

    def __init__(self, *answers: Answer) -> None:
        clock = FakeClock()
        self.cluster = FakeCluster(clock)
        self.cluster.answer_next(*answers)
        client = Client(self.cluster, clock=clock, retries=Retries(max_elapsed=0.0))
        self.cache: Cache[EndpointSlice] = Cache()
        self.cache.put(PRESENT)
        self.recorder = EventRecorder(client, component="test", clock=clock)
        self.metrics = WebhookMetrics()
        self.freed: list[NamespacedName] = []
        self.guard = SliceGuard(
            self.cache,
            managed_by=ENDPOINTSLICE_CONTROLLER,
            try_write=partial(try_hints, client),
            on_due=self.freed.append,
        )
        self.writer = HintWriter(
            client, self.cache, self.recorder, self.guard, metrics=self.metrics
        )


def said(code: int, reason: str) -> Answer:
    """Return a refusal."""
    return Answer(code, (msgspec.json.encode(status_of(code, reason, "no")),))


async def test_only_hints_and_the_version_are_sent() -> None:
    """The patch names what differs and what it was seen in; the cache has the result at once."""
    stored = version(WANTED, 8)
    stand = Stand(Answer(200, (msgspec.json.encode(stored),)))
    assert await stand.writer.write(service("web"), (WANTED,)) is Result.SUCCESS
    (request,) = stand.cluster.requests
    assert (request.method, dict(request.query)) == ("PATCH", {"fieldManager": "keepclose-hints"})
    assert msgspec.json.decode(request.body or b"") == [
        {"op": "add", "path": "/metadata/resourceVersion", "value": "7"},
        {
            "op": "add",
            "path": "/endpoints/0/hints",
            "value": {"forZones": [{"name": "zone-a"}]},
        },
    ]
    assert stand.cache.get(WANTED.metadata.key) == stored
    assert b"keepclose_hint_writes_total 1.0" in stand.metrics.page()


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        pytest.param(said(409, "Conflict"), Result.STALE, id="another client wrote first"),
        pytest.param(said(404, "NotFound"), Result.STALE, id="it is gone"),
        pytest.param(said(403, "Forbidden"), Result.ERROR, id="it may not be written"),
    ],
)
async def test_writes_that_fail(answer: Answer, want: Result) -> None:
    """What a newer version makes moot is tried again; anything else is an error."""
    stand = Stand(answer)
    assert await stand.writer.write(service("web"), (WANTED,)) is want
    assert stand.cache.get(WANTED.metadata.key) is PRESENT


async def test_what_is_known_to_be_old_is_not_sent() -> None:
    """A slice that changed since the decision costs no request."""
    stand = Stand()
    stand.cache.put(version(PRESENT, 9))
    assert await stand.writer.write(service("web"), (WANTED,)) is Result.STALE
    assert stand.cluster.requests == []


async def test_hints_that_the_server_drops_are_not_sent_again() -> None:
    """The same patch is sent once; a slice that changed meanwhile is patched again."""
    dropped = version(PRESENT, 8)
    stand = Stand(Answer(200, (msgspec.json.encode(dropped),)))
    assert await stand.writer.write(service("web"), (WANTED,)) is Result.SUCCESS
    assert stand.guard.fields([dropped]) == ("endpoints[].hints",)
    again = version(WANTED, 8)
    assert await stand.writer.write(service("web"), (again,)) is Result.SUCCESS
    assert len(stand.cluster.requests) == 1
    other = version(replace(PRESENT, endpoints=(*PRESENT.endpoints, endpoint("10.9.9.9"))), 9)
    stand.cache.put(other)
    stand.cluster.answer_next(Answer(200, (msgspec.json.encode(version(other, 10)),)))
    wanted = version(replace(other, endpoints=(*WANTED.endpoints, *other.endpoints[1:])), 9)
    assert await stand.writer.write(service("web"), (wanted,)) is Result.SUCCESS
    assert len(stand.cluster.requests) == 2


async def test_whether_hints_are_kept_is_asked_by_a_patch_that_changes_nothing() -> None:
    """The right to patch is enough; a server that would keep the hints gets them again."""
    stand = Stand(Answer(200, (msgspec.json.encode(version(PRESENT, 8)),)))
    await stand.writer.write(service("web"), (WANTED,))
    stand.cluster.answer_next(Answer(200, (msgspec.json.encode(version(PRESENT, 8)),)))
    await stand.guard.recheck()
    assert (len(stand.guard), stand.freed) == (1, [])
    stand.cluster.answer_next(Answer(200, (msgspec.json.encode(version(WANTED, 8)),)))
    await stand.guard.recheck()
    assert (len(stand.guard), stand.freed) == (0, [WANTED.service_key])
    asked = stand.cluster.requests[1:]
    assert {(one.method, dict(one.query).get("dryRun")) for one in asked} == {("PATCH", "All")}
