"""Follows a cluster by list and watch, and publishes what changed of it.

A change of a Service or of its slices costs one measurement of that Service. A change of nodes that
matters for traffic costs one of every Service; between two of them the loop serves browsers.
Reports of kubelets that change neither zones nor readiness cost nothing. Pages and previews are
computed when a browser asks for them, in a thread, from the objects of that moment.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
import structlog

from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism, missing_gates, switch_to
from keepclose.advise.mechanism_changes import change_patch as patch_of
from keepclose.advise.overview.service_pages import (
    ClusterFacts,
    ServicePage,
    ServicePreview,
    build_page,
    preview_mechanism,
)
from keepclose.advise.overview.service_rows import ServiceRow, describe_row, describe_unknown
from keepclose.advise.overview.zone_columns import arrange_zones, is_same_for_traffic
from keepclose.cli.dashboard.feed import Feed
from keepclose.kube.cache import Cache, Index, Named
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, EVENTS, NODES, PODS, SERVICES, Kind
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.core_kinds import Event
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.plain_text import make_plain
from keepclose.model.reported import ReportedNode, ReportedPod
from keepclose.model.service.types import Service
from keepclose.model.timestamps import seconds_of
from keepclose.model.workload import Node, Pod
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.runtime.program import run_parts
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.system.threads import ask_in_thread

SERVICES_TOPIC: Final = "services"
ZONES_TOPIC: Final = "zones"
EVENTS_TOPIC: Final = "events"
STATUS_TOPIC: Final = "status"
MAX_SHOWN_EVENTS: Final = 60
EVENTS_WITHIN_S: Final = 15 * 60.0
_STATUS_EVERY_S: Final = 1.0
_EVENTS_EVERY_S: Final = 0.2
_WORK_AT_ONCE_S: Final = 0.01
_COMPUTED_AT_ONCE: Final = 2
_MAX_MESSAGE: Final = 600
# With what kubelets report, because causes name it.
_REPORTED_NODES: Final[Kind[Any]] = replace(NODES, struct=ReportedNode)
_REPORTED_PODS: Final[Kind[Any]] = replace(PODS, struct=ReportedPod)
_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class LiveRow(msgspec.Struct, frozen=True):
    """The line of a Service, and how often its objects have changed since the start."""

    row: ServiceRow
    revision: int


class ShownEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An Event of the last minutes."""

    at: float
    """Seconds of the Unix epoch."""
    is_warning: bool
    about: str
    """The object as KIND NAMESPACE/NAME."""
    service: str
    """NAMESPACE/NAME of the Service that it is about; "" for another object."""
    reason: str
    message: str
    count: int


class DashboardStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How the dashboard itself is."""

    cluster: str
    is_complete: bool
    """Whether all objects were read once."""
    problem: str
    """Why what is shown may be old; "" if it is not."""
    allows_writes: bool


class StaleServiceError(Exception):
    """A Service is not as the browser has seen it, or a change does not fit it any more."""


class WatchedCluster:
    """The objects of a cluster; run it once."""

    def __init__(
        self,
        name: str,
        settings: PlannerSettings,
        *,
        feed: Feed,
        clock: Clock,
        allows_writes: bool = False,
    ) -> None:
        self._name, self._settings = name, settings
        self._feed, self._clock = feed, clock
        self.allows_writes = allows_writes
        self.services: Cache[Service] = Cache()
        self._slices: Cache[EndpointSlice] = Cache(
            (Index("service", lambda item: (item.service_key,)),)
        )
        self._nodes: Cache[Node] = Cache()
        self._pods: Cache[Pod] = Cache((Index("namespace", _namespace_of),))
        self._events: Cache[Event] = Cache()
        self._reflectors: tuple[Reflector[Any], ...] = ()
        self._dirty: dict[NamespacedName, None] = {}
        self._revisions: Counter[NamespacedName] = Counter()
        self._has_new_nodes = True
        self._recent: dict[NamespacedName, tuple[float, Event]] = {}
        """Events of the last minutes, with their times: a cluster keeps those of an hour."""
        self._has_new_events = asyncio.Event()
        self._wake = asyncio.Event()
        self._facts = self._read_facts()
        self._computing = asyncio.Semaphore(_COMPUTED_AT_ONCE)
        self.complete = asyncio.Event()
        """Set when all rows have been published once."""

    async def run(self, client: Client) -> None:
        """Follow the cluster until cancelled.

        Raises an error of the API server that waiting does not change, if it comes at the start.
        """
        self.services.subscribe(self._on_service)
        self._slices.subscribe(self._on_slice)
        self._nodes.subscribe(self._on_node)
        self._events.subscribe(self._on_event)
        needed: tuple[Reflector[Any], ...] = (
            Reflector(client, SERVICES, self.services, clock=self._clock),
            Reflector(client, ENDPOINT_SLICES, self._slices, clock=self._clock),
            Reflector(client, _REPORTED_NODES, self._nodes, clock=self._clock),
        )
        # Pods and Events only make the answers better, so nothing waits for them.
        more: tuple[Reflector[Any], ...] = (
            Reflector(client, _REPORTED_PODS, self._pods, clock=self._clock),
            Reflector(client, EVENTS, self._events, clock=self._clock),
        )
        self._reflectors = (*needed, *more)
        self._publish_status()
        await run_parts(
            (
                *(reflector.run() for reflector in self._reflectors),
                self._update(needed),
                self._report_status(),
                self._report_events(),
            )
        )

    async def read_page(self, key: NamespacedName) -> ServicePage | None:
        """Return the page of a Service; None if there is none."""
        service = self.services.get(key)
        if service is None:
            return None
        inventory, facts = self._inventory_of(service), self._facts
        return await self._compute(partial(build_page, service, inventory, facts))

    async def read_preview(
        self, key: NamespacedName, mechanism: Mechanism
    ) -> ServicePreview | str | None:
        """Return a preview, or why there is none; None if there is no such Service."""
        service = self.services.get(key)
        if service is None:
            return None
        inventory, facts = self._inventory_of(service), self._facts
        return await self._compute(partial(preview_mechanism, service, mechanism, inventory, facts))

    def find_patch(self, key: NamespacedName, mechanism: Mechanism, version: str) -> JsonObject:
        """Return the patch that gives a Service a mechanism, for the version that was previewed.

        Raises StaleServiceError.
        """
        service = self.services.get(key)
        if service is None:
            raise StaleServiceError("the Service is gone")
        if service.metadata.resource_version != version:
            raise StaleServiceError("the Service has changed since the preview; look at it again")
        if gates := missing_gates(mechanism, self._settings):
            raise StaleServiceError(f"feature gate {gates[0]} is off, so it would have no effect")
        change = switch_to(mechanism, service, self._settings)
        patch = None if change is None else patch_of(service, change.service)
        if not patch:
            raise StaleServiceError("there is nothing to change")
        patch["metadata"] = {**patch.get("metadata", {}), "resourceVersion": version}
        return patch

    async def _compute(self, question: Callable[[], _T]) -> _T:
        async with self._computing:
            return await ask_in_thread(question)

    def _inventory_of(self, service: Service) -> Inventory:
        """Return what is needed to plan one Service."""
        namespace = service.metadata.namespace
        pods = tuple(self._pods.by_index("namespace", namespace))
        return Inventory(
            nodes=tuple(self._nodes.all()),
            services=(service,),
            # NB: without any, as where Pods may not be listed, endpoints are those of the slices.
            pods={namespace: pods} if pods else {},
            slices={service.key: tuple(self._slices.by_index("service", service.key))},
        )

    def _read_facts(self) -> ClusterFacts:
        nodes = self._nodes.all()
        labels = labels_by_node(nodes)
        clients = ClientNodes(NodeView.of(node, labels) for node in nodes if node.is_ready)
        return ClusterFacts(ClusterNodes.of(nodes), clients, self._settings)

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        self._mark(each.key for each in (old, new) if each is not None)

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._mark(each.service_key for each in (old, new) if each is not None)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if old is None or new is None or not is_same_for_traffic(old, new):
            self._has_new_nodes = True
            self._wake.set()

    def _on_event(self, old: Event | None, new: Event | None) -> None:
        if new is not None:
            at = _time_of(new)
            if at > self._clock.now() - EVENTS_WITHIN_S:
                self._recent[new.metadata.key] = at, new
                self._has_new_events.set()
        elif old is not None and self._recent.pop(old.metadata.key, None) is not None:
            self._has_new_events.set()

    def _mark(self, keys: Iterable[NamespacedName]) -> None:
        for key in keys:
            if key not in self._dirty:
                self._revisions[key] += 1
            self._dirty[key] = None
        self._wake.set()

    async def _update(self, needed: Iterable[Reflector[Any]]) -> None:
        for reflector in needed:
            await reflector.wait_synced()
        while True:
            self._wake.clear()
            if self._has_new_nodes:
                self._has_new_nodes = False
                self._facts = self._read_facts()
                self._feed.publish(ZONES_TOPIC, "", arrange_zones(self._nodes.all()))
                self._dirty.update(dict.fromkeys(self.services))
            await self._publish_rows()
            if not self.complete.is_set():
                self.complete.set()
                self._publish_status()
            await self._wake.wait()

    async def _publish_rows(self) -> None:
        started = self._clock.monotonic()
        while self._dirty:
            key = next(iter(self._dirty))
            del self._dirty[key]
            service = self.services.get(key)
            if service is None:
                self._revisions.pop(key, None)
                self._feed.publish(SERVICES_TOPIC, str(key), None)
                continue
            row = self._describe(service)
            self._feed.publish(SERVICES_TOPIC, str(key), LiveRow(row, self._revisions[key]))
            if self._clock.monotonic() - started > _WORK_AT_ONCE_S:
                await asyncio.sleep(0)
                started = self._clock.monotonic()

    def _describe(self, service: Service) -> ServiceRow:
        slices = self._slices.by_index("service", service.key)
        try:
            return describe_row(service, slices, self._facts.clients, self._settings)
        except Exception:  # noqa: BLE001 - logged, and the other Services are shown
            _log.exception("Service not described", service=str(service.key))
            return describe_unknown(service)

    async def _report_events(self) -> None:
        """Publish Events, those of a moment together, because a rollout has hundreds."""
        while True:
            self._has_new_events.clear()
            self._publish_events()
            await self._has_new_events.wait()
            await self._clock.sleep(_EVENTS_EVERY_S)

    def _publish_events(self) -> None:
        since = self._clock.now() - EVENTS_WITHIN_S
        for key in [key for key, (at, _) in self._recent.items() if at <= since]:
            del self._recent[key]
        latest = heapq.nlargest(MAX_SHOWN_EVENTS, self._recent.values(), key=lambda pair: pair[0])
        self._feed.publish(EVENTS_TOPIC, "", [_show_event(at, event) for at, event in latest])

    async def _report_status(self) -> None:
        while True:
            self._publish_status()
            await self._clock.sleep(_STATUS_EVERY_S)
            if any(at <= self._clock.now() - EVENTS_WITHIN_S for at, _ in self._recent.values()):
                # Events become too old without any change.
                self._has_new_events.set()

    def _publish_status(self) -> None:
        failures = [
            f"{reflector.kind} cannot be read: {reflector.failure}"
            for reflector in self._reflectors
            if reflector.failure is not None
        ]
        self._feed.publish(
            STATUS_TOPIC,
            "",
            DashboardStatus(
                make_plain(self._name),
                self.complete.is_set(),
                make_plain(failures[0], most=_MAX_MESSAGE) if failures else "",
                self.allows_writes,
            ),
        )


def _namespace_of(item: Named) -> Iterable[str]:
    return (item.metadata.namespace,)


def _time_of(event: Event) -> float:
    """Return when an Event was last seen; 0 if it does not say."""
    for text in (event.last_timestamp, event.first_timestamp, event.metadata.creation_timestamp):
        if (seconds := seconds_of(text)) is not None:
            return seconds
    return 0.0


def _show_event(at: float, event: Event) -> ShownEvent:
    about = event.involved_object
    name = f"{about.namespace}/{about.name}" if about.namespace else about.name
    return ShownEvent(
        at,
        event.type == "Warning",
        make_plain(f"{about.kind} {name}"),
        make_plain(name) if about.kind == "Service" else "",
        make_plain(event.reason),
        make_plain(event.message, most=_MAX_MESSAGE),
        max(event.count, 1),
    )
