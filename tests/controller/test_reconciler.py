"""One sync at a time, with caches filled by hand and a server that answers at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.kube.client import Client
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.transport.retries import Retries
from keepclose.model.meta import NamespacedName, ObjectReference
from keepclose.model.service.types import Service
from keepclose.reconcile.settings import ControllerSettings
from keepclose.runtime.workers import Result
from keepclose.slices.service_planner import ServicePlan
from keepclose.testing.fake_clock import FakeClock
from support.builders import endpoint, endpoint_slice, node, pod, service
from support.echoes import EchoTransport

KEY = NamespacedName("default", "web")


class FakePublisher:
    """Remembers what users would read in Events."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, str]] = []
        self.forgotten: list[NamespacedName] = []

    def publish_plan(self, service: Service, plan: ServicePlan) -> None:
        """Do nothing."""

    def publish_failure(self, service: Service, reason: str, message: str) -> None:
        """Record a failure."""
        assert service.key == KEY
        self.failures.append((reason, message))

    def publish_warning(self, reference: ObjectReference, reason: str, message: str) -> None:
        """Do nothing."""

    def forget(self, key: NamespacedName) -> None:
        """Record a deleted Service."""
        self.forgotten.append(key)


class Bench:
    """A controller whose caches a test fills."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.transport = EchoTransport()
        client = Client(self.transport, clock=self.clock, retries=Retries(max_elapsed=0.0))
        self.publisher = FakePublisher()
        self.controller = Controller(
            client,
            ControllerSettings(),
            clock=self.clock,
            recorder=EventRecorder(client, component="test", clock=self.clock),
            publisher=self.publisher,
        )
        self.caches = self.controller.caches
        self.caches.nodes.put(node("n1"))

    async def sync(self) -> Result:
        """Sync the Service."""
        return await self.controller.services.sync(KEY)

    async def drain(self) -> None:
        """Empty the queue."""
        while self.controller.services.queue.depth:
            key = await self.controller.services.queue.get()
            assert key is not None
            self.controller.services.queue.done(key)

    def writes(self) -> list[tuple[str, str]]:
        """Return method and last step of the path of all requests, and forget them."""
        found = [(one.method, one.path.rpartition("/")[2]) for one in self.transport.requests]
        self.transport.requests.clear()
        return found


@pytest.fixture
async def bench() -> Bench:
    """Return a Service with one pod, and its slice written."""
    found = Bench()
    found.caches.services.put(service())
    found.caches.pods.put(pod("p1"))
    assert await found.sync() is Result.SUCCESS
    assert found.writes() == [("POST", "endpointslices")]
    return found


def add_pod(bench: Bench) -> None:
    """Give the Service something to do."""
    bench.caches.pods.put(pod("p2", ip="10.0.0.2"))


async def test_what_was_written_is_known_at_once(bench: Bench) -> None:
    """The next sync starts from the answer, without waiting for the watch."""
    [piece] = bench.caches.slices.all()
    assert await bench.sync() is Result.SUCCESS
    add_pod(bench)
    assert await bench.sync() is Result.SUCCESS
    assert bench.writes() == [("PUT", piece.metadata.name)]
    [piece] = bench.caches.slices.all()
    assert len(piece.endpoints) == 2


async def test_nothing_is_planned_from_a_cache_that_lags_behind(bench: Bench) -> None:
    """A list from the past makes the sync wait; the news that it waits for brings it back."""
    [older] = bench.caches.slices.all()
    add_pod(bench)
    assert await bench.sync() is Result.SUCCESS
    [newer] = bench.caches.slices.all()
    await bench.drain()
    bench.caches.slices.replace([older])
    assert await bench.sync() is Result.STALE
    assert bench.writes() == [("PUT", older.metadata.name)]
    assert bench.controller.services.queue.depth == 0
    bench.caches.slices.put(newer)
    assert bench.controller.services.queue.depth == 1
    assert await bench.sync() is Result.SUCCESS
    assert bench.writes() == []


@pytest.mark.parametrize(
    ("refusal", "want"),
    [
        pytest.param((409, "Conflict"), Result.STALE, id="somebody else was faster"),
        pytest.param((404, "NotFound"), Result.STALE, id="the slice is gone"),
        pytest.param((422, "Invalid"), Result.ERROR, id="the server does not like it"),
        pytest.param((500, "InternalError"), Result.ERROR, id="the server has a bad day"),
    ],
)
async def test_a_refused_write_is_tried_again(
    bench: Bench, refusal: tuple[int, str], want: Result
) -> None:
    """Only what the user should know is told, and the next sync writes what is missing."""
    add_pod(bench)
    bench.transport.refuse_next(refusal)
    assert await bench.sync() is want
    name = bench.caches.slices.all()[0].metadata.name
    message = (
        "Error updating Endpoint Slices for Service default/web: "
        f"failed to update {name} EndpointSlice for Service default/web: status {refusal[0]}"
    )
    told = [("FailedToUpdateEndpointSlices", message)]
    assert bench.publisher.failures == (told if want is Result.ERROR else [])
    assert await bench.sync() is Result.SUCCESS
    assert bench.writes() == [("PUT", name)] * 2


async def test_slices_of_a_family_that_the_service_lost_are_deleted_by_uid(bench: Bench) -> None:
    """A delete names the uid, so that a newer slice of that name is safe."""
    six = endpoint_slice(endpoint("2001:db8::1"), name="web-six", address_type="IPv6")
    bench.caches.slices.put(six)
    assert await bench.sync() is Result.SUCCESS
    [request] = bench.transport.requests
    body: dict[str, Any] = msgspec.json.decode(request.body or b"")
    assert (request.method, body["preconditions"]) == ("DELETE", {"uid": "uid-web-six"})
    # Until the watch tells of its end the cache is known to be late.
    assert await bench.sync() is Result.STALE
    bench.caches.slices.delete(six.metadata.key)
    assert await bench.sync() is Result.SUCCESS


@pytest.mark.parametrize(
    ("refusal", "want"),
    [
        pytest.param((404, "NotFound"), Result.SUCCESS, id="gone is gone"),
        pytest.param((409, "Conflict"), Result.STALE, id="another one has the name"),
        pytest.param((500, "InternalError"), Result.ERROR, id="the server has a bad day"),
    ],
)
async def test_a_refused_delete_is_no_expected_one(
    bench: Bench, refusal: tuple[int, str], want: Result
) -> None:
    """What was not deleted is deleted next time."""
    bench.caches.slices.put(
        endpoint_slice(endpoint("2001:db8::1"), name="web-six", address_type="IPv6")
    )
    bench.transport.refuse_next(refusal)
    assert await bench.sync() is want
    again = await bench.sync()
    assert again is (Result.STALE if want is Result.SUCCESS else Result.SUCCESS)


async def test_a_service_without_pods_has_an_empty_slice(bench: Bench) -> None:
    """The last slice becomes the placeholder."""
    bench.caches.pods.delete(NamespacedName("default", "p1"))
    assert await bench.sync() is Result.SUCCESS
    [piece] = bench.caches.slices.all()
    want: tuple[object, ...] = ()
    assert (piece.endpoints, piece.ports) == (want, want)
    assert bench.writes() == [("PUT", piece.metadata.name)]


async def test_an_empty_selector_takes_all_pods_of_the_namespace(bench: Bench) -> None:
    """Those of other namespaces and labels are told apart."""
    bench.caches.pods.put(pod("p2", ip="10.0.0.2", labels={}))
    bench.caches.pods.put(pod("p3", ip="10.0.0.3", namespace="other"))
    bench.caches.services.put(service(selector={}))
    assert await bench.sync() is Result.SUCCESS
    [piece] = bench.caches.slices.all()
    assert [one.addresses[0] for one in piece.endpoints] == ["10.0.0.1", "10.0.0.2"]


async def test_a_service_that_is_no_more_is_forgotten(bench: Bench) -> None:
    """Nothing is written, and nothing remembered."""
    bench.caches.services.delete(KEY)
    assert await bench.sync() is Result.SUCCESS
    assert (bench.publisher.forgotten, len(bench.controller.services.planners)) == ([KEY], 0)
    assert bench.writes() == []


async def test_a_service_that_loses_its_selector_keeps_its_slices(bench: Bench) -> None:
    """They are left alone, and taken up again with the selector."""
    bench.caches.services.put(service(selector=None))
    add_pod(bench)
    assert await bench.sync() is Result.SUCCESS
    assert bench.writes() == []
    bench.caches.services.put(service())
    assert await bench.sync() is Result.SUCCESS
    assert [method for method, _ in bench.writes()] == ["PUT"]


async def test_a_status_that_changed_costs_no_new_state(bench: Bench) -> None:
    """A Service that wishes the same as before is not worked out anew."""
    entry = bench.controller.services.planners._entries[KEY]
    families = entry.planner._families
    changed = replace(service(), metadata=replace(service().metadata, resource_version="7"))
    bench.caches.services.put(changed)
    assert await bench.sync() is Result.SUCCESS
    assert entry.service == changed
    assert entry.planner._families is families


async def test_a_mistake_of_the_program_costs_the_state_and_nothing_else(bench: Bench) -> None:
    """The exception comes through, and the next sync starts from the caches."""
    entry = bench.controller.services.planners._entries[KEY]
    entry.pods[NamespacedName("default", "p1")] = None
    entry.service = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        await bench.sync()
    assert len(bench.controller.services.planners) == 0
    assert await bench.sync() is Result.SUCCESS
    assert bench.writes() == []


async def test_a_pod_without_an_event_of_its_own_is_seen_by_the_next_sync(bench: Bench) -> None:
    """A phase that ends without a change of readiness queues nothing, and counts all the same."""
    bench.caches.pods.put(pod("p2", ip="10.0.0.2", ready=False))
    await bench.sync()
    ended = pod("p2", ip="10.0.0.2", ready=False)
    bench.caches.pods.put(
        replace(
            ended,
            metadata=replace(ended.metadata, resource_version="2"),
            status=replace(ended.status, phase="Failed"),
        )
    )
    await bench.sync()
    [piece] = bench.caches.slices.all()
    assert [one.addresses[0] for one in piece.endpoints] == ["10.0.0.1"]


async def test_a_lost_list_of_slices_is_written_again_without_harm(bench: Bench) -> None:
    """What looks deleted is created anew; when the first one turns up again only one stays."""
    [first] = bench.caches.slices.all()
    bench.caches.slices.replace([])
    assert await bench.sync() is Result.SUCCESS
    bench.caches.slices.put(first)
    assert await bench.sync() is Result.SUCCESS
    assert [method for method, _ in bench.writes()] == ["POST", "DELETE"]
