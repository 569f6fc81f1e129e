"""Which change in a cache queues which Service, and when."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from keepclose.controller.event_handlers import EventHandlers, PodLatencies
from keepclose.controller.service_planners import ServicePlanners
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServiceStatus,
)
from keepclose.model.well_known import MANAGED_BY_LABEL, NODE_TOPOLOGY_ANNOTATION
from keepclose.model.workload import Node, Pod
from keepclose.reconcile.caches import Caches
from keepclose.reconcile.contention import Contention
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.strategy import choose_strategy
from keepclose.slices.node_changes import NodeChange, depends_on_shares, node_change
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.fake_clock import FakeClock
from support import builders
from support.builders import node, pod, service


class Desk:
    """Caches with listeners and nobody behind them."""

    def __init__(self, settings: ControllerSettings | None = None) -> None:
        settings = settings or ControllerSettings()
        self.clock = FakeClock()
        self.caches = Caches()
        self.queue: WorkQueue[NamespacedName] = WorkQueue(self.clock)
        self.planners = ServicePlanners(self.caches, settings.plan)
        self.nodes = self.planners.nodes
        self.event_handlers = EventHandlers(
            self.caches,
            self.queue,
            self.planners,
            Contention(self.clock),
            PodLatencies(self.clock, on_reached=lambda _: None),
            settings=settings,
        )
        self.own_writes = self.event_handlers.own_writes
        self.event_handlers.subscribe()
        self._version = 0

    def put(self, *objects: Pod | Node | Service | EndpointSlice) -> None:
        """Write objects, each with a version of its own."""
        for one in objects:
            self._version += 1
            meta = replace(one.metadata, resource_version=str(self._version))
            if isinstance(one, Pod):
                self.caches.pods.put(replace(one, metadata=meta))
            elif isinstance(one, Node):
                self.caches.nodes.put(replace(one, metadata=meta))
            elif isinstance(one, Service):
                self.caches.services.put(replace(one, metadata=meta))
            else:
                self.caches.slices.put(replace(one, metadata=meta))

    async def queued(self) -> set[str]:
        """Return the Services in line, and empty it."""
        found: set[str] = set()
        while self.queue.depth:
            key = await self.queue.get()
            assert key is not None
            self.queue.done(key)
            found.add(key.name)
        return found


@pytest.fixture
async def desk() -> Desk:
    """Return two Services in one namespace, one of another, and two nodes with a pod each."""
    found = Desk()
    found.put(
        service("web"),
        service("api", selector={"app": "api"}),
        service("web", namespace="other"),
        node("n1", "zone-a"),
        node("n2", "zone-b"),
        pod("p1", "n1"),
        pod("p2", "n2", ip="10.0.0.2", labels={"app": "api"}),
    )
    assert await found.queued() == {"web", "api"}
    return found


POD = pod("p1", "n1")


@pytest.mark.parametrize(
    ("changed", "want"),
    [
        pytest.param(POD, set(), id="nothing that an endpoint shows"),
        pytest.param(pod("p1", "n1", ready=False), {"web"}, id="readiness"),
        pytest.param(pod("p1", "n1", ip="10.0.0.9"), {"web"}, id="address"),
        pytest.param(pod("p1", "n1", terminating=True), {"web"}, id="end"),
        pytest.param(pod("p1", "n1", labels={"app": "api"}), {"web", "api"}, id="labels"),
        pytest.param(pod("p1", "n1", labels={"app": "web", "x": "y"}), set(), id="other labels"),
        pytest.param(pod("p3", "n1"), {"web"}, id="a new pod"),
        pytest.param(pod("p3", "n1", labels={}), set(), id="a new pod that nobody selects"),
    ],
)
async def test_a_change_of_a_pod_queues_the_services_concerned(
    desk: Desk, changed: Pod, want: set[str]
) -> None:
    """Only Services that gain, lose or show the pod are queued."""
    desk.put(changed)
    assert await desk.queued() == want


async def test_a_deleted_pod_queues_its_services(desk: Desk) -> None:
    """The end of a pod is a change like any other."""
    desk.caches.pods.delete(NamespacedName("default", "p2"))
    assert await desk.queued() == {"api"}


@pytest.mark.parametrize(
    ("changed", "want"),
    [
        pytest.param(node("n1", "zone-a"), set(), id="a heartbeat"),
        pytest.param(node("n1", "zone-a", labels={"x": "y"}), set(), id="a label of no concern"),
        pytest.param(node("n1", "zone-c"), {"web", "api"}, id="zone: its pods, and all by shares"),
        pytest.param(node("n1", "zone-a", ready=False), {"api"}, id="readiness: all by shares"),
        pytest.param(node("n1", "zone-a", cpu="8"), {"api"}, id="CPU: all by shares"),
        pytest.param(node("n3", "zone-a"), {"api"}, id="a new node without pods"),
        pytest.param(node("n3", "zone-a", ready=False), set(), id="a new node that is not ready"),
    ],
)
async def test_a_change_of_a_node_queues_the_services_concerned(
    desk: Desk, changed: Node, want: set[str]
) -> None:
    """A zone concerns the pods there; shares concern those who depend on them."""
    desk.planners.by_shares.add(NamespacedName("default", "api"))
    before = desk.nodes.cluster
    desk.put(changed)
    assert await desk.queued() == want
    assert (desk.nodes.cluster is before) == (changed.name == "n1" and not want)


async def test_a_deleted_node_queues_the_services_of_its_pods(desk: Desk) -> None:
    """Without their node the pods have no zone any more."""
    desk.caches.nodes.delete(NamespacedName("", "n1"))
    assert await desk.queued() == {"web"}


async def test_only_the_wish_of_a_service_queues_it(desk: Desk) -> None:
    """A status that others write is no reason to look at a Service."""
    ingress = LoadBalancerStatus(ingress=(LoadBalancerIngress(ip="192.0.2.1"),))
    desk.put(replace(service("web"), status=ServiceStatus(load_balancer=ingress)))
    assert await desk.queued() == set()
    desk.put(service("web", annotations={"a": "b"}))
    assert await desk.queued() == {"web"}
    desk.caches.services.delete(NamespacedName("default", "web"))
    assert await desk.queued() == {"web"}


async def test_changes_of_pods_are_gathered_for_the_batch_period() -> None:
    """Many pods within the period cost one visit after it; a Service is never made to wait."""
    desk = Desk(ControllerSettings(batch_s=0.5))
    desk.put(service("web"))
    assert await desk.queued() == {"web"}
    desk.put(*(pod(f"p{number}", ip=f"10.0.0.{number}") for number in range(1, 9)))
    assert (desk.queue.depth, desk.queue.delayed) == (0, 1)
    await desk.clock.advance(0.5)
    assert await desk.queued() == {"web"}


def _renamed(one: EndpointSlice) -> EndpointSlice:
    labels = {**one.metadata.labels, "kubernetes.io/service-name": "api"}
    return replace(one, metadata=replace(one.metadata, labels=labels))


def _edited(one: EndpointSlice) -> EndpointSlice:
    return replace(one, endpoints=(), metadata=replace(one.metadata, generation=9))


def _doomed(one: EndpointSlice) -> EndpointSlice:
    meta = replace(one.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    return replace(one, metadata=meta)


def _given_away(one: EndpointSlice) -> EndpointSlice:
    labels = {**one.metadata.labels, MANAGED_BY_LABEL: "example.dev"}
    return replace(one, metadata=replace(one.metadata, labels=labels))


@pytest.mark.parametrize(
    ("change", "want"),
    [
        pytest.param(lambda one: one, set(), id="our own write"),
        pytest.param(_edited, {"web"}, id="a newer generation"),
        pytest.param(_renamed, {"web", "api"}, id="another Service"),
        pytest.param(_given_away, {"web"}, id="another manager"),
        pytest.param(_doomed, {"web"}, id="a deletion that a finalizer holds up"),
    ],
)
async def test_a_slice_that_somebody_else_wrote_queues_its_service_after_a_second(
    desk: Desk, change: Callable[[EndpointSlice], EndpointSlice], want: set[str]
) -> None:
    """Our own writes concern nobody, and a slice that left us is not waited for."""
    written = builders.endpoint_slice(builders.endpoint())
    written = replace(written, metadata=replace(written.metadata, generation=1))
    written = replace(written, metadata=replace(written.metadata, resource_version="0"))
    desk.own_writes.record(written)
    desk.put(written)
    assert (await desk.queued(), desk.queue.delayed) == (set(), 0)
    desk.put(change(written))
    assert await desk.queued() == set()
    await desk.clock.advance(1)
    assert await desk.queued() == want
    key = NamespacedName("default", "web")
    managed_by = ControllerSettings().plan.managed_by
    present = desk.caches.slices_of(key, managed_by)
    assert not desk.own_writes.is_cache_behind(key, present)


async def test_news_during_our_own_writes_is_judged_when_they_are_answered(desk: Desk) -> None:
    """An event that overtakes the answer to its write is known as ours; another one is not."""
    key = NamespacedName("default", "web")
    for generation, tracked, want in ((1, 1, set()), (3, 2, {"web"})):
        piece = builders.endpoint_slice(builders.endpoint())
        piece = replace(piece, metadata=replace(piece.metadata, generation=generation))
        with desk.own_writes.writing(key):
            desk.put(piece)
            meta = replace(piece.metadata, generation=tracked, resource_version="0")
            desk.own_writes.record(replace(piece, metadata=meta))
        await desk.clock.advance(1)
        assert await desk.queued() == want


async def test_a_service_that_waits_for_the_cache_is_synced_as_soon_as_it_moves(
    desk: Desk,
) -> None:
    """The delay of a retry is cut short by what it waited for."""
    desk.own_writes.await_event(NamespacedName("default", "web"))
    desk.put(builders.endpoint_slice(builders.endpoint()))
    assert await desk.queued() == {"web"}
    desk.put(builders.endpoint_slice(builders.endpoint("10.0.0.2")))
    assert await desk.queued() == set()


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(None, node(), NodeChange(True, True), id="it comes"),
        pytest.param(node(), None, NodeChange(True, True), id="it goes"),
        pytest.param(None, node(zone=None), NodeChange(True, True), id="it comes without a zone"),
        pytest.param(node(), node(zone=None), NodeChange(True, True), id="it loses its zone"),
        pytest.param(
            node(ready=False), node(ready=False, cpu="9"), NodeChange(False, False), id="idle CPU"
        ),
        pytest.param(
            node(),
            node(labels={"node-role.kubernetes.io/control-plane": ""}),
            NodeChange(False, True),
            id="it becomes a control plane",
        ),
    ],
)
def test_what_a_change_of_a_node_means(
    old: Node | None, new: Node | None, want: NodeChange
) -> None:
    """Pods move with the zone, shares with everything that counts for traffic."""
    assert node_change(old, new) == want


@pytest.mark.parametrize(
    ("annotations", "mode", "want"),
    [
        pytest.param({}, NodeLevelMode.MANUAL, False, id="nothing is detected"),
        pytest.param({}, NodeLevelMode.AUTO, True, id="everything is looked at"),
        pytest.param({NODE_TOPOLOGY_ANNOTATION: "Auto"}, NodeLevelMode.MANUAL, True, id="asked"),
    ],
)
def test_detection_of_node_level_services_depends_on_nodes(
    annotations: dict[str, str], mode: NodeLevelMode, want: bool
) -> None:
    """A Service that may turn out to be one per node is looked at when nodes come and go."""
    gates = FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY)
    settings = PlannerSettings(gates=gates, node_level_mode=mode)
    strategy = choose_strategy(
        service(annotations=annotations),
        gates=gates,
        default_subsetting=settings.subsets.default,
        heuristics={},
    )
    assert depends_on_shares(strategy, annotations, settings=settings) == want
