"""`keepclose demo`: takes the steps of the tour in a running cluster, and returns their results.

A step is done when the slices are as expected and real connections go where the routing decisions
send them; both waits have a limit. On a machine that cannot have the network, the decisions show
where connections would go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.advise.expectations import expect, name_endpoints
from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import Expired, KubeError, TransportError
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.lab.cluster.control import CallError, call_lab
from keepclose.lab.cluster.tour_steps import (
    TOUR_NAMESPACE,
    TOUR_SERVICE,
    ExpectedEndpoints,
    HintedEndpoint,
    LabRequest,
    TourChange,
    TourStep,
    hinted_endpoints,
)
from keepclose.lab.traffic.report import TrafficReport
from keepclose.model.addresses import IPV4
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import Service
from keepclose.model.well_known import SERVICE_NAME_LABEL
from keepclose.model.workload import Node
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.reasons import Reason
from keepclose.routing.service_ports import routed_ports
from keepclose.routing.strategy import choose_strategy

CONNECTIONS: Final = 300
"""From each zone, for each step."""
HINTS_S: Final = 30.0
"""The limit of the wait for hints."""
_TRAFFIC_S: Final = 30.0
_RETRY_S: Final = 0.2


class TourError(Exception):
    """Why the tour cannot go on; `code` is the command's exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Forecast(NamedTuple):
    """Where connections would go, on a machine that cannot have the network."""

    shares: dict[str, dict[str, float]]
    """By zone of the client, then of the endpoint."""
    in_zone: float
    on_node: float
    busiest: float
    """How many times an equal share the busiest endpoint gets."""
    place: str
    """The zone of the busiest endpoint."""


class StepResult(NamedTuple):
    """The result of a step."""

    step: TourStep
    endpoints: tuple[HintedEndpoint, ...]
    service: Service
    reasons: tuple[Reason, ...]
    """Why the Service has its strategy."""
    traffic: TrafficReport | Forecast
    before: TrafficReport | Forecast | None = None
    """The traffic after the first changes of the step, if the story has it."""

    @property
    def is_fine(self) -> bool:
        """Whether traffic is as expected."""
        return not isinstance(self.traffic, TrafficReport) or self.traffic.is_fine

    @property
    def story(self) -> tuple[str, ...]:
        """What happened and why, in two or three lines."""
        in_zone, on_node, busiest, place = _figures(self.traffic)
        failed = self.traffic.failed if isinstance(self.traffic, TrafficReport) else 0
        values = {
            "reason": self.reasons[0].message if self.reasons else "",
            "in_zone": f"{in_zone:.0%}".replace("%", " %"),
            "on_node": f"{on_node:.0%}".replace("%", " %"),
            "busiest": f"{busiest:.2f}x",
            "place": place,
            "before": f"{_figures(self.before)[2]:.2f}x" if self.before else "",
            "failed": f"{failed} connections fail" if failed else "no connection fails",
            "field": self.service.spec.traffic_distribution,
        }
        return tuple(line.format(**values) for line in self.step.story)


class Tour:
    """The tour through the cluster of a directory."""

    def __init__(self, directory: Path, *, has_packets: bool, timeout_s: float = HINTS_S) -> None:
        self._directory, self._has_packets, self._timeout_s = directory, has_packets, timeout_s
        self._settings = load_connection_settings(directory / "kubeconfig")

    def take(self, step: TourStep) -> StepResult:
        """Make the changes of the step and return the result; raises TourError."""
        try:
            before = None
            if step.first_expected is not None:
                self._change(step.first)
                observed = asyncio.run(self._wait_for(step.first_expected))
                before = self._measure(observed)
            self._change(step.changes)
            observed = asyncio.run(self._wait_for(step.expected))
            traffic = self._measure(observed)
        except CallError as error:
            raise TourError(str(error), error.code) from error
        except KubeError as error:
            raise TourError(str(error), 4) from error
        service = observed.service
        gates = self._gates()
        strategy = choose_strategy(service, gates=gates, heuristics=find_heuristics(gates))
        endpoints = tuple(hinted_endpoints(observed.slices))
        return StepResult(step, endpoints, service, strategy.reasons, traffic, before)

    def _change(self, changes: Sequence[TourChange]) -> None:
        for change in changes:
            if isinstance(change.action, LabRequest):
                call_lab(self._directory, change.action.do, change.action.params)
            else:
                asyncio.run(self._patch(*change.action))

    async def _patch(self, kind: Kind[Any], name: str, patch: JsonObject) -> None:
        async with self._connect() as client:
            await client.patch(kind, name, patch, namespace=TOUR_NAMESPACE)

    async def _wait_for(self, expected: ExpectedEndpoints) -> _RoutingObjects:
        """Wait until the slices are as expected, and return the objects."""
        async with self._connect() as client:
            difference = "their state is unknown"

            async def until_expected() -> list[EndpointSlice]:
                nonlocal difference
                while True:
                    try:
                        async with aclosing(_follow(client)) as states:
                            async for slices in states:
                                difference = expected.find_difference(hinted_endpoints(slices))
                                if not difference:
                                    return slices
                    except (Expired, TransportError):
                        await asyncio.sleep(_RETRY_S)

            try:
                async with asyncio.timeout(self._timeout_s):
                    slices = await until_expected()
            except TimeoutError:
                text = f"the endpoints of {TOUR_SERVICE} are not as they should be"
                raise TourError(f"{text} after {self._timeout_s:g} s: {difference}") from None
            service = await client.get(SERVICES, TOUR_SERVICE, namespace=TOUR_NAMESPACE)
            nodes = (await client.list_all(NODES)).items
        return _RoutingObjects(service, slices, nodes)

    def _measure(self, observed: _RoutingObjects) -> TrafficReport | Forecast:
        """Return the traffic, once it is as expected or the time is up."""
        if not self._has_packets:
            return forecast(
                observed.service, observed.slices, observed.nodes, gates=self._gates("apiserver")
            )
        end = time.monotonic() + _TRAFFIC_S
        while True:
            params = {"service": f"{TOUR_NAMESPACE}/{TOUR_SERVICE}", "connections": CONNECTIONS}
            report = msgspec.convert(call_lab(self._directory, "traffic", params), TrafficReport)
            # NB: nodes apply a change one after the other, perhaps during the run.
            if (report.is_fine and report.is_settled) or time.monotonic() > end:
                return report

    def _gates(self, role: str = "controller") -> FeatureGates:
        names: list[str] = call_lab(self._directory, "gates", {})["gates"][role]
        return FeatureGates(frozenset(map(Gate, names)))

    def _connect(self) -> Client:
        return connect(self._settings, clock=SystemClock())


class _RoutingObjects(NamedTuple):
    """The objects that routing depends on."""

    service: Service
    slices: list[EndpointSlice]
    nodes: list[Node]


def forecast(
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    *,
    gates: FeatureGates,
) -> Forecast:
    """Return where connections would go if every zone opened as many, spread over its nodes."""
    port = routed_ports(service, IPV4, gates=gates)[0]
    zones = {node.name: node.zone for node in nodes}
    port_endpoints = name_endpoints(port, slices, family=IPV4, zones=zones, gates=gates)
    places = {endpoint.pod: endpoint for endpoint in port_endpoints.named.values()}
    names = sorted(set(zones.values()))
    shares: dict[str, dict[str, float]] = {zone: {} for zone in names}
    load = dict.fromkeys(places, 0.0)
    in_zone = on_node = 0.0
    labels = labels_by_node(nodes)
    for node in nodes:
        part = 1 / list(zones.values()).count(node.zone)
        for pod, share in expect(
            port_endpoints, node=NodeView.of(node, labels), gates=gates
        ).shares.items():
            endpoint = places[pod]
            row = shares[node.zone]
            row[endpoint.zone] = row.get(endpoint.zone, 0.0) + share * part
            load[pod] += share * part / len(names)
            in_zone += share * part / len(names) * (endpoint.zone == node.zone)
            on_node += share * part / len(names) * (endpoint.node == node.name)
    pod = max(load, key=lambda name: (load[name], name))
    return Forecast(shares, in_zone, on_node, load[pod] * len(load), places[pod].zone)


def _figures(traffic: TrafficReport | Forecast) -> tuple[float, float, float, str]:
    if isinstance(traffic, Forecast):
        return traffic[1:]
    busiest = traffic.busiest
    return (
        traffic.in_zone or 0.0,
        traffic.on_node or 0.0,
        busiest.times if busiest else 0.0,
        busiest.zone if busiest else "",
    )


async def _follow(client: Client) -> AsyncGenerator[list[EndpointSlice], None]:
    """Yield the slices of the Service now and after every change."""
    label = f"{SERVICE_NAME_LABEL}={TOUR_SERVICE}"
    page = await client.list_all(ENDPOINT_SLICES, namespace=TOUR_NAMESPACE, label_selector=label)
    slices = {endpoint_slice.metadata.name: endpoint_slice for endpoint_slice in page.items}
    yield list(slices.values())
    async with client.watch(
        ENDPOINT_SLICES,
        namespace=TOUR_NAMESPACE,
        label_selector=label,
        resource_version=page.resource_version,
    ) as events:
        async for event in events:
            if event.object is None:
                continue
            slices[event.object.metadata.name] = event.object
            if event.type == "DELETED":
                del slices[event.object.metadata.name]
            yield list(slices.values())
