"""Which nodes send how much to a Service: by its flows, by pods, by a workload, by nodes or by CPU.

The answer always says which of these was used, because figures depend on it. Only ready nodes send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from keepclose.accounting.address_book import workload_of
from keepclose.accounting.flow_table import FlowKind, FlowTable, is_zone
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.model.meta import NamespacedName
from keepclose.model.quantities import millis
from keepclose.model.workload import Node, Pod
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.traffic_shares import Shares, divide_shares


class ClientBasis(StrEnum):
    """What the distribution of clients is taken from."""

    FLOWS = "flows"
    PODS = "pods"
    NODES = "nodes"
    CPU = "cpu"
    WORKLOAD = "workload"


class ZoneVolume(NamedTuple):
    """What clients of one zone exchanged with a Service in the period of the flows."""

    requests: float = 0.0
    responses: float = 0.0
    connections: float = 0.0

    def amount(self, *, by_bytes: bool) -> float:
        """Return what shares are computed from."""
        return self.requests + self.responses if by_bytes else self.connections


class ServiceVolumes:
    """The traffic of each Service by the zone of its clients, as flows have it."""

    def __init__(self, flows: FlowTable) -> None:
        """Sum up the flows of Services; clients outside and of unknown zones are left out."""
        self.has_bytes = flows.has_bytes
        self.hours = flows.seconds / 3600.0
        self._by_service: dict[tuple[str, str], dict[str, ZoneVolume]] = {}
        self._nodes: dict[tuple[str, str], Counter[str]] = {}
        for key, counts in flows:
            if key.kind is not FlowKind.SERVICE or not is_zone(key.client_zone):
                continue
            name = key.namespace, key.service
            zones = self._by_service.setdefault(name, {})
            old = zones.get(key.client_zone, ZoneVolume())
            zones[key.client_zone] = ZoneVolume(
                old.requests + counts.request_bytes,
                old.responses + counts.response_bytes,
                old.connections + counts.connections,
            )

    def of(self, service: NamespacedName) -> Mapping[str, ZoneVolume]:
        """Return the traffic of a Service by zone; {} without any."""
        return self._by_service.get((service.namespace, service.name), {})

    def amount_of(self, service: NamespacedName) -> float:
        """Return the bytes of a Service, or its connections where flows have no bytes."""
        zones = self.of(service).values()
        return sum([volume.amount(by_bytes=self.has_bytes) for volume in zones])

    def shares_of(self, service: NamespacedName) -> Shares | None:
        """Return the shares of zones as a controller would measure them; None if there are none."""
        zones = self.of(service)
        names = sorted(zones)
        amounts = [zones[zone].amount(by_bytes=self.has_bytes) for zone in names]
        if sum(amounts) <= 0:
            return None
        return Shares(dict(zip(names, divide_shares(amounts), strict=True)), (), "measured")


class ClientDistribution:
    """Returns the clients of each Service, and says in words where they are taken from."""

    def __init__(
        self, basis: ClientBasis, words: str, of: Callable[[NamespacedName], ClientNodes]
    ) -> None:
        """Take what the distribution is called, and what finds the clients of a Service."""
        self.basis = basis
        self.words = words
        self.of = of


def distribute_clients(
    inventory: Inventory,
    basis: ClientBasis,
    *,
    volumes: ServiceVolumes | None = None,
    workload: str = "",
) -> ClientDistribution | None:
    """Return the distribution of clients; None if the input has nothing of the kind.

    `volumes` are needed by flows. `workload` is namespace/name of what owns the client pods.
    """
    labels = labels_by_node(inventory.nodes)
    views = [NodeView.of(node, labels) for node in inventory.nodes if node.is_ready]
    ready = {view.name for view in views}
    everywhere = ClientNodes(views)
    if not views:
        return None
    match basis:
        case ClientBasis.NODES:
            words = "every ready node sends the same"
            return ClientDistribution(basis, words, lambda _: everywhere)
        case ClientBasis.CPU:
            cpu = {node.name: _cpu_of(node) for node in inventory.nodes}
            clients = ClientNodes(views, cpu)
            words = "ready nodes send in proportion to their CPU"
        case ClientBasis.PODS | ClientBasis.WORKLOAD:
            pods = [
                pod
                for pod in _running(inventory)
                if pod.spec.node_name in ready and (not workload or workload_of(pod) == workload)
            ]
            whose = f"the pods of {workload}" if workload else "pods"
            words = f"where {whose} run ({len(pods):,})"
            clients = ClientNodes(views, Counter(pod.spec.node_name for pod in pods))
        case ClientBasis.FLOWS:
            return None if volumes is None else _by_flows(views, volumes, everywhere)
    return ClientDistribution(basis, words, lambda _: clients) if len(clients) else None


def _by_flows(
    views: list[NodeView], volumes: ServiceVolumes, everywhere: ClientNodes
) -> ClientDistribution:
    by_zone: dict[str, list[str]] = {}
    for view in views:
        by_zone.setdefault(view.zone, []).append(view.name)

    def find(service: NamespacedName) -> ClientNodes:
        weights: dict[str, float] = {}
        for zone, volume in volumes.of(service).items():
            nodes = by_zone.get(zone, ())
            for node in nodes:
                weights[node] = volume.amount(by_bytes=volumes.has_bytes) / len(nodes)
        clients = ClientNodes(views, weights) if weights else everywhere
        return clients if len(clients) else everywhere

    words = "as flows say; without flows, every ready node sends the same"
    return ClientDistribution(ClientBasis.FLOWS, words, find)


def _running(inventory: Inventory) -> Iterable[Pod]:
    for pods in inventory.pods.values():
        for pod in pods:
            if pod.status.phase not in ("Succeeded", "Failed"):
                yield pod


def _cpu_of(node: Node) -> float:
    value = node.status.allocatable.get("cpu")
    return float(millis(value) or 0) if value is not None else 0.0
