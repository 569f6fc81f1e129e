"""Takes the steps of the tour in a running cluster, and returns what is to be seen after each.

A step is over when the slices say what it promises and real connections go where the decisions of
the core send them; both are waited for, within limits. Where there are no packets the core is asked
where they would go.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.heuristics.discovery import find_heuristics
from keepclose.kube.auth.in_cluster import load_settings
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import Expired, KubeError, TransportError
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, SERVICES, Kind
from keepclose.lab.cluster.control import CallError, call_lab
from keepclose.lab.cluster.tour_steps import (
    TOUR_NAMESPACE,
    TOUR_SERVICE,
    HintedEndpoint,
    Promise,
    TourChange,
    TourStep,
    TourTraffic,
    hinted_endpoints,
)
from keepclose.lab.traffic.expected_shares import expect, find_goals
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
"""How long hints may take, at most."""
_TRAFFIC_S: Final = 30.0
_AGAIN_S: Final = 0.2


class TourError(Exception):
    """Why the tour cannot go on; `code` is the command's exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


class Forecast(NamedTuple):
    """Where connections would go."""

    shares: dict[str, dict[str, float]]
    """By zone of the client, then of the endpoint."""
    in_zone: float
    on_node: float
    busiest: float
    """How many times an equal share the busiest endpoint gets."""
    place: str
    """The zone of that."""


class Sight(NamedTuple):
    """What is to be seen after a step."""

    step: TourStep
    endpoints: tuple[HintedEndpoint, ...]
    service: Service
    reasons: tuple[Reason, ...]
    """Why the Service is treated as it is."""
    traffic: TrafficReport | Forecast
    before: TrafficReport | Forecast | None = None
    """What the traffic was like in the middle of the step, where that is told."""

    @property
    def is_fine(self) -> bool:
        """Whether traffic is as expected."""
        return not isinstance(self.traffic, TrafficReport) or self.traffic.is_fine

    @property
    def story(self) -> tuple[str, ...]:
        """What happened and why, in a few lines."""
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


class Tour:
    """Takes steps one after the other in the cluster of a directory."""

    def __init__(self, directory: Path, *, has_packets: bool, patience_s: float = HINTS_S) -> None:
        self._directory, self._has_packets, self._patience_s = directory, has_packets, patience_s
        self._settings = load_settings(directory / "kubeconfig")

    def take(self, step: TourStep) -> Sight:
        """Do what the step does and return what is to be seen then; raises TourError."""
        try:
            before = None
            if step.first_promise is not None:
                self._change(step.first)
                found = asyncio.run(self._settle(step.first_promise))
                before = self._measure(found)
            self._change(step.changes)
            found = asyncio.run(self._settle(step.promise))
            traffic = self._measure(found)
        except CallError as error:
            raise TourError(str(error), error.code) from error
        except KubeError as error:
            raise TourError(str(error), 4) from error
        service = found.service
        gates = self._gates()
        strategy = choose_strategy(service, gates=gates, heuristics=find_heuristics(gates))
        endpoints = tuple(hinted_endpoints(found.slices))
        return Sight(step, endpoints, service, strategy.reasons, traffic, before)

    def _change(self, changes: Sequence[TourChange]) -> None:
        for change in changes:
            if isinstance(change.deed, TourTraffic):
                call_lab(self._directory, change.deed.do, change.deed.params)
            else:
                asyncio.run(self._patch(*change.deed))

    async def _patch(self, kind: Kind[Any], name: str, patch: JsonObject) -> None:
        async with self._connect() as client:
            await client.patch(kind, name, patch, namespace=TOUR_NAMESPACE)

    async def _settle(self, promise: Promise) -> _Found:
        """Return the objects when the slices are as promised."""
        async with self._connect() as client:
            gap = "nothing is known of them"

            async def until_kept() -> list[EndpointSlice]:
                nonlocal gap
                while True:
                    try:
                        async with aclosing(_follow(client)) as states:
                            async for slices in states:
                                gap = promise.find_gap(hinted_endpoints(slices))
                                if not gap:
                                    return slices
                    except (Expired, TransportError):
                        await asyncio.sleep(_AGAIN_S)

            try:
                async with asyncio.timeout(self._patience_s):
                    slices = await until_kept()
            except TimeoutError:
                text = f"the endpoints of {TOUR_SERVICE} are not as they should be"
                raise TourError(f"{text} after {self._patience_s:g} s: {gap}") from None
            service = await client.get(SERVICES, TOUR_SERVICE, namespace=TOUR_NAMESPACE)
            nodes = (await client.list_all(NODES)).items
        return _Found(service, slices, nodes)

    def _measure(self, found: _Found) -> TrafficReport | Forecast:
        """Return how traffic goes, once it goes as expected or the time for that is up."""
        if not self._has_packets:
            return forecast(
                found.service, found.slices, found.nodes, gates=self._gates("apiserver")
            )
        end = time.monotonic() + _TRAFFIC_S
        while True:
            params = {"service": f"{TOUR_NAMESPACE}/{TOUR_SERVICE}", "connections": CONNECTIONS}
            report = msgspec.convert(call_lab(self._directory, "traffic", params), TrafficReport)
            # NB: nodes follow a change one after the other, perhaps during the run.
            if (report.is_fine and report.is_settled) or time.monotonic() > end:
                return report

    def _gates(self, role: str = "controller") -> FeatureGates:
        names: list[str] = call_lab(self._directory, "gates", {})["gates"][role]
        return FeatureGates(frozenset(map(Gate, names)))

    def _connect(self) -> Client:
        return connect(self._settings, clock=SystemClock())


class _Found(NamedTuple):
    """The objects that routing hangs on."""

    service: Service
    slices: list[EndpointSlice]
    nodes: list[Node]


async def _follow(client: Client) -> AsyncGenerator[list[EndpointSlice], None]:
    """Yield the slices of the Service as they are, and again after every change."""
    label = f"{SERVICE_NAME_LABEL}={TOUR_SERVICE}"
    page = await client.list_all(ENDPOINT_SLICES, namespace=TOUR_NAMESPACE, label_selector=label)
    known = {one.metadata.name: one for one in page.items}
    yield list(known.values())
    async with client.watch(
        ENDPOINT_SLICES,
        namespace=TOUR_NAMESPACE,
        label_selector=label,
        resource_version=page.resource_version,
    ) as events:
        async for event in events:
            if event.object is None:
                continue
            known[event.object.metadata.name] = event.object
            if event.type == "DELETED":
                del known[event.object.metadata.name]
            yield list(known.values())


def forecast(
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    *,
    gates: FeatureGates,
) -> Forecast:
    """Return where connections would go if every zone made as many, spread over its nodes."""
    port = routed_ports(service, IPV4, gates=gates)[0]
    zones = {node.name: node.zone for node in nodes}
    goals = find_goals(port, slices, family=IPV4, zones=zones, gates=gates)
    places = {goal.pod: goal for goal in goals.goals.values()}
    names = sorted(set(zones.values()))
    shares: dict[str, dict[str, float]] = {zone: {} for zone in names}
    load = dict.fromkeys(places, 0.0)
    in_zone = on_node = 0.0
    labels = labels_by_node(nodes)
    for node in nodes:
        part = 1 / list(zones.values()).count(node.zone)
        for pod, share in expect(goals, node=NodeView.of(node, labels), gates=gates).shares.items():
            goal = places[pod]
            row = shares[node.zone]
            row[goal.zone] = row.get(goal.zone, 0.0) + share * part
            load[pod] += share * part / len(names)
            in_zone += share * part / len(names) * (goal.zone == node.zone)
            on_node += share * part / len(names) * (goal.node == node.name)
    pod = max(load, key=lambda one: (load[one], one))
    return Forecast(shares, in_zone, on_node, load[pod] * len(load), places[pod].zone)
