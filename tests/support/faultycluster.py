"""A controller on a cluster in memory, on a clock that a test moves, with a switch for each fault.

    async with desk() as cluster:
        cluster.put(node("n1", "zone-a"), pod("p1", "n1"), service("web"))
        async with cluster.controlled() as controlled:
            await cluster.clock.advance(5)

Names and generations of slices are given as an API server gives them. Every controller has a wire
of its own that counts its requests, and that can be cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.client import Client
from keepclose.kube.errors import ConnectionRefused
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import ENDPOINT_SLICES, EVENTS, NODES, PODS, SERVICES, Kind
from keepclose.kube.transport.retries import Retries
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.reconcile.settings import CONTROLLER_COMPONENT, ControllerSettings
from keepclose.slices.service_planner import plan_service
from keepclose.slices.settings import ClusterNodes
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.fake_cluster import FakeCluster
from keepclose.testing.fake_cluster_state import FakeStore
from keepclose.testing.scripted_streams import FakeResponse, failure
from support.builders import node, pod, service

_KINDS: dict[type, Kind[Any]] = {
    Node: NODES,
    Pod: PODS,
    Service: SERVICES,
    EndpointSlice: ENDPOINT_SLICES,
}
# Turns of the loop in which a watch has told all that it has to tell.
_TURNS = 50
Fact = tuple[object, ...]


class GenerationStore(FakeStore):
    """Counts generations of slices as an API server does: content and labels, nothing else."""

    def put(self, plural: str, key: NamespacedName, obj: JsonObject) -> JsonObject:
        """Write an object and return it with its new version."""
        if plural == ENDPOINT_SLICES.plural:
            old = self.get(plural, key)
            before = 0 if old is None else old["metadata"]["generation"]
            changed = old is None or _content(old) != _content(obj)
            metadata = {**obj["metadata"], "generation": before + changed}
            obj = {**obj, "metadata": metadata}
        return super().put(plural, key, obj)


def _content(obj: JsonObject) -> tuple[object, ...]:
    piece = msgspec.convert(obj, EndpointSlice)
    return piece.endpoints, piece.ports, piece.metadata.labels


class Wire:
    """One controller's way to the cluster."""

    def __init__(self, clock: FakeClock, cluster: FakeCluster, names: Iterator[int]) -> None:
        self._clock = clock
        self._cluster = cluster
        self._names = names
        self.is_cut = False
        """Whether nobody answers."""
        self.busy_s: int | None = None
        """For how long the server asks writers to stay away; None serves them."""
        self.before_answer: Callable[[ApiRequest], None] | None = None
        """Called once a write was served and before its answer is on the way."""
        self.lag: Callable[[], float] | None = None
        """How long a request takes to the server, and how long its answer takes back."""
        self.cuts: Callable[[ApiRequest], bool] = _cuts_nothing
        """Whether nobody answers this request."""
        self.requests: list[tuple[float, ApiRequest]] = []

    async def send(self, request: ApiRequest) -> FakeResponse:
        """Pass a request on, if it gets through."""
        self.requests.append((self._clock.monotonic(), request))
        if self.lag is not None:
            await self._clock.sleep(self.lag())
        if self.is_cut or self.cuts(request):
            raise ConnectionRefused("fake", "connection refused")
        if request.method == "GET":
            return await self._answer(request)
        if self.busy_s is not None:
            answer = failure(429, "TooManyRequests", "too many", retry_after=self.busy_s)
            return FakeResponse(429, answer.headers, _whole(answer.parts))
        response = await self._answer(self._with_name(request))
        if self.before_answer is not None:
            self.before_answer(request)
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        return response

    async def close(self) -> None:
        """Do nothing."""

    async def _answer(self, request: ApiRequest) -> FakeResponse:
        response = await self._cluster.send(request)
        if self.lag is not None:
            await self._clock.sleep(self.lag())
        return response

    @property
    def writes(self) -> list[tuple[float, str]]:
        """When which method was used on a slice, failed attempts too."""
        return [
            (at, request.method)
            for at, request in self.requests
            if request.method != "GET" and ENDPOINT_SLICES.plural in request.path
        ]

    def _with_name(self, request: ApiRequest) -> ApiRequest:
        if request.method != "POST":
            return request
        body: JsonObject = msgspec.json.decode(request.body or b"{}")
        prefix = body["metadata"].get("generateName")
        if not prefix or body["metadata"].get("name"):
            return request
        body["metadata"]["name"] = f"{prefix}{next(self._names):05}"
        return replace(request, body=msgspec.json.encode(body))


class Controlled(NamedTuple):
    """A running controller, and what a test may do to it and ask it."""

    controller: Controller
    wire: Wire
    metrics: ControllerMetrics

    def counted(self, name: str, **labels: str) -> float:
        """Return the value of a counter; 0 for one that never moved."""
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


class Desk:
    """A cluster that a test changes directly."""

    def __init__(self, *, history: int = 2000) -> None:
        self.clock = FakeClock()
        self.server = FakeCluster(self.clock, history=history)
        self.server.store = GenerationStore(history=history)
        self._names = count(1)

    def wire(self) -> Wire:
        """Return one more way to the server."""
        return Wire(self.clock, self.server, self._names)

    def put(self, *objects: Node | Pod | Service | EndpointSlice) -> None:
        """Write objects as other clients would."""
        for one in objects:
            self.server.put(_KINDS[type(one)], one)

    def delete(self, *objects: Node | Pod | Service | EndpointSlice) -> None:
        """Delete objects as other clients would."""
        for one in objects:
            meta = one.metadata
            self.server.delete(_KINDS[type(one)], meta.name, namespace=meta.namespace)

    def slices(self, service: str | None = "web") -> list[EndpointSlice]:
        """Return the slices of a Service by name; of all Services for None."""
        found = self.server.objects(ENDPOINT_SLICES).values()
        return [one for one in found if service in (None, one.service_key.name)]

    def service(self, name: str = "web") -> Service:
        """Return a Service as it is now."""
        return self.server.objects(SERVICES)[NamespacedName("default", name)]

    def told(self) -> list[tuple[str, str]]:
        """Return reason and message of all Events, oldest first."""
        found = self.server.objects(EVENTS).values()
        return [(one.reason, one.message) for one in found]

    def want(self, service: str = "web", settings: ControllerSettings | None = None) -> list[Fact]:
        """Return what the slices of a Service should say, planned from nothing."""
        found = self.service(service)
        selector = (found.spec.selector or {}).items()
        pods = [
            one
            for one in self.server.objects(PODS).values()
            if selector <= one.metadata.labels.items()
        ]
        plan = plan_service(
            found,
            pods=pods,
            cluster=ClusterNodes.of(self.server.objects(NODES).values()),
            settings=(settings or ControllerSettings()).plan,
        )
        return facts(plan.slices)

    @asynccontextmanager
    async def controlled(
        self,
        settings: ControllerSettings | None = None,
        *,
        lag: Callable[[], float] | None = None,
    ) -> AsyncIterator[Controlled]:
        """Run a controller for the time of the block; it has come to rest when that begins."""
        settings = settings or ControllerSettings()
        wire = self.wire()
        wire.lag = lag
        metrics = ControllerMetrics(max_endpoints=settings.plan.max_endpoints)
        async with Client(wire, clock=self.clock, retries=Retries(max_elapsed=0.0)) as client:
            controller = Controller(
                client,
                settings,
                clock=self.clock,
                recorder=EventRecorder(client, component=CONTROLLER_COMPONENT, clock=self.clock),
                observer=metrics,
            )
            task = asyncio.create_task(controller.run())
            try:
                await self.clock.advance(5)
                yield Controlled(controller, wire, metrics)
            finally:
                task.cancel()
                await self.clock.run_until(task.done)
                if not task.cancelled():
                    task.result()


def web(number: int, *, ready: bool = True) -> Pod:
    """Return one of six pods, two in each zone."""
    return pod(f"p{number}", f"n{number % 3}", ip=f"10.0.0.{number + 1}", ready=ready)


def populate(cluster: Desk) -> None:
    """Add three zones of one node, six pods, and a Service that keeps traffic in its zone."""
    cluster.put(*(node(f"n{number}", f"zone-{'abc'[number]}") for number in range(3)))
    cluster.put(*(web(number) for number in range(6)))
    cluster.put(service("web", traffic_distribution="PreferSameZone"))


@asynccontextmanager
async def desk(*, history: int = 2000) -> AsyncIterator[Desk]:
    """Open an empty cluster."""
    yield Desk(history=history)


def facts(slices: Iterable[EndpointSlice]) -> list[Fact]:
    """Return all that routing needs, endpoint by endpoint, whatever slice holds it.

    An endpoint that stands in two slices is here twice.
    """
    return sorted(
        (
            (
                piece.address_type,
                tuple(sorted((port.name, port.protocol, port.port) for port in piece.ports)),
                one.addresses,
                one.node_name,
                one.zone,
                one.conditions,
                one.hints,
                one.target_ref and one.target_ref.name,
            )
            for piece in slices
            for one in piece.endpoints
        ),
        key=repr,
    )


def _cuts_nothing(_request: ApiRequest) -> bool:
    return False


async def _whole(parts: Iterable[object]) -> AsyncIterator[bytes]:
    for part in parts:
        if isinstance(part, bytes):
            yield part
