"""Everything that an explanation of one Service rests on, computed once.

The plan is that of the controller, and the routes are those of the proxy's selection, for the
slices that nodes go by: those of the input of any writer, or the planned ones where the input
has no slices at all. Nodes that cannot be told apart by a selection are selected for once: a
cluster of thousands of nodes has few groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from keepclose.advise.advice import overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import (
    ResolvedPort,
    ResolvedService,
    advise_changes,
    measure_slices,
    plan_slices,
    ports_with_endpoints,
)
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.addresses import canonical
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.selection import find_distinguished_nodes, select
from keepclose.routing.service_ports import PortKey
from keepclose.slices.settings import ClusterNodes, PlannerSettings

MAX_SELECTIONS: Final = 2_000_000
"""Groups of nodes times endpoints that are selected for; beyond, groups are left out."""
MIN_GROUPS: Final = 20
"""How many groups are never left out."""


class AlikeNodes(NamedTuple):
    """Nodes for which the selection of every port is the same."""

    zone: str
    nodes: tuple[str, ...]
    ports: tuple[ResolvedPort, ...]
    ready: int
    """How many of the nodes are ready; only these send traffic."""


class ServiceFacts(NamedTuple):
    """One Service: its plan, its slices, its pods, and the route of each group of nodes."""

    service: Service
    inventory: Inventory
    settings: PlannerSettings
    cluster: ClusterNodes
    planned: ResolvedService
    slices: tuple[EndpointSlice, ...]
    """The slices that nodes go by."""
    has_slices: bool
    """Whether they are those of the input; else the planned ones."""
    selected: tuple[Pod, ...]
    knows_pods: bool
    knows_nodes: bool
    groups: tuple[AlikeNodes, ...]
    traffic: RoutedTraffic
    """Where the traffic of all ready nodes in question goes; nothing if nodes were left out."""
    acknowledgements: tuple[NodeAcknowledgement, ...] = ()
    nodes_left_out: int = 0
    """How many nodes no group has, because the cluster is too large."""

    @property
    def key(self) -> NamespacedName:
        """The identity of the Service."""
        return self.service.key

    @property
    def subject(self) -> str:
        """The Service as causes name it."""
        return f"Service {self.service.key}"

    @property
    def is_routed(self) -> bool:
        """Whether nodes route the Service at all."""
        return any(group.ports for group in self.groups)

    @property
    def has_usable_endpoint(self) -> bool:
        """Whether some port has an endpoint that some node may use; of headless Services any."""
        if not self.is_routed:
            return bool(self.ready_endpoints())
        return any(port.selection.has_any for group in self.groups for port in group.ports)

    @property
    def written(self) -> tuple[EndpointSlice, ...]:
        """The slices of the input that the EndpointSlice controller manages."""
        return tuple(each for each in self.slices if is_managed(each, self.settings.managed_by))

    @property
    def foreign(self) -> tuple[EndpointSlice, ...]:
        """The slices that another controller manages, or no controller."""
        return tuple(each for each in self.slices if not is_managed(each, self.settings.managed_by))

    def ready_endpoints(self) -> list[Endpoint]:
        """Return the endpoints in the slices that nodes take for ready."""
        return [
            endpoint
            for endpoint_slice in self.slices
            for endpoint in endpoint_slice.endpoints
            if endpoint.conditions.ready is not False
        ]


def is_managed(endpoint_slice: EndpointSlice, managed_by: str) -> bool:
    """Return whether a controller of this name manages the slice."""
    return endpoint_slice.metadata.labels.get(MANAGED_BY_LABEL) == managed_by


def collect_facts(
    service: Service,
    inventory: Inventory,
    *,
    settings: PlannerSettings,
    nodes: frozenset[str] | None = None,
    acknowledgements: Iterable[NodeAcknowledgement] = (),
) -> ServiceFacts:
    """Return the facts of a Service; with `nodes`, only the routes and traffic of these nodes.

    The Service must have been admitted.
    """
    cluster = ClusterNodes.of(inventory.nodes)
    planned = plan_slices(service, inventory, cluster, settings)
    # Manifests without any slice are those of a cluster before its controller wrote them.
    has_slices = bool(inventory.slices)
    slices = inventory.slices.get(service.key, ()) if has_slices else planned.slices
    labels = labels_by_node(inventory.nodes)
    views = [NodeView.of(node, labels) for node in inventory.nodes]
    ready = frozenset(node.name for node in inventory.nodes if node.is_ready)
    senders = ClientNodes(view for view in views if view.name in ready)
    planned = advise_changes(planned, inventory, cluster, settings=settings, senders=senders)
    chosen = [view for view in views if nodes is None or view.name in nodes]
    groups, left_out = group_nodes(service, slices, chosen, settings, ready)
    if nodes is not None:
        senders = ClientNodes(view for view in chosen if view.name in ready)
    traffic = RoutedTraffic()
    if not left_out:
        traffic = measure_slices(
            service, slices, senders, gates=settings.gates, bound=overload_bound(service)
        )
    return ServiceFacts(
        service,
        inventory,
        settings,
        cluster,
        planned,
        slices,
        has_slices,
        tuple(inventory.pods_of(service)),
        _knows_pods(service, inventory),
        bool(inventory.nodes),
        groups,
        traffic,
        tuple(acknowledgements),
        left_out,
    )


def _knows_pods(service: Service, inventory: Inventory) -> bool:
    """Return whether the Pods of the Service's namespace were read.

    A namespace without Pods whose slices have endpoints of Pods was not.
    """
    if inventory.pods.get(service.metadata.namespace):
        return True
    has_endpoints = any(
        endpoint.target_ref is not None
        for held in inventory.slices.get(service.key, ())
        for endpoint in held.endpoints
    )
    return bool(inventory.pods) and not has_endpoints


def group_nodes(
    service: Service,
    slices: Sequence[EndpointSlice],
    views: Iterable[NodeView],
    settings: PlannerSettings,
    ready: frozenset[str],
) -> tuple[tuple[AlikeNodes, ...], int]:
    """Return the nodes in groups with their selections, and how many nodes were left out."""
    ports = ports_with_endpoints(service, slices, settings.gates)
    apart = [find_distinguished_nodes(port, endpoints) for port, _, endpoints in ports]
    members: dict[tuple[str, ...], list[NodeView]] = {}
    for view in views:
        is_single = any(names is None or view.name in names for names in apart)
        key = (view.zone, view.region, view.name if is_single else "")
        members.setdefault(key, []).append(view)
    count = sum(len(endpoints) for _, _, endpoints in ports)
    kept = list(members.values())[: max(MIN_GROUPS, MAX_SELECTIONS // max(1, count))]
    left_out = sum(map(len, members.values())) - sum(map(len, kept))
    groups = tuple(
        AlikeNodes(
            group[0].zone,
            tuple(view.name for view in group),
            tuple(
                ResolvedPort(
                    port, family, select(port, endpoints, node=group[0], gates=settings.gates)
                )
                for port, family, endpoints in ports
            ),
            sum(view.name in ready for view in group),
        )
        for group in kept
    )
    return groups, left_out


def load_endpoints(facts: ServiceFacts) -> dict[str, float]:
    """Return how many times its fair share each endpoint gets, by address.

    Every ready node in question sends the same; the fair share is that of `measure_traffic`. Of
    several ports the one counts where the endpoint gets most.
    """
    loads: dict[tuple[str, PortKey], dict[str, float]] = {}
    answered: dict[tuple[str, PortKey], float] = {}
    for group in facts.groups:
        for resolved in group.ports if group.ready else ():
            chosen = resolved.selection.internal.endpoints
            if not chosen:
                continue
            key = resolved.family, resolved.port.key
            answered[key] = answered.get(key, 0.0) + group.ready
            of_port = loads.setdefault(key, {})
            whole = sum(endpoint.weight for endpoint in chosen)
            for endpoint in chosen:
                load = group.ready * endpoint.weight / whole
                of_port[endpoint.address] = of_port.get(endpoint.address, 0.0) + load
    by_address: dict[str, float] = {}
    for port, family, endpoints in ports_with_endpoints(
        facts.service, facts.slices, facts.settings.gates
    ):
        key = family, port.key
        of_port = loads.get(key, {})
        ready = sum(endpoint.ready for endpoint in endpoints)
        for address, load in of_port.items():
            # NB: where none is ready, those that terminate share the traffic.
            ratio = load * (ready or len(of_port)) / answered[key]
            by_address[address] = max(ratio, by_address.get(address, 0.0))
    return by_address


def counted_slices(slices: Iterable[EndpointSlice]) -> list[EndpointSlice]:
    """Return the slices of one address family, so that a Pod with two addresses counts once.

    It is the family with most endpoints, as mechanisms decide for each family apart.
    """
    families: dict[str, list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        families.setdefault(endpoint_slice.address_type, []).append(endpoint_slice)
    groups = [families[family] for family in sorted(families)]
    return max(groups, key=lambda group: sum(len(each.endpoints) for each in group), default=[])


def name_address(endpoint: Endpoint) -> str:
    """Return the address of an endpoint in its canonical form; "" if it has none."""
    first = endpoint.addresses[0] if endpoint.addresses else ""
    return canonical(first) or first
