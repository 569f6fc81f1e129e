"""The node that a proxy runs on, and the labels of others, as the API server describes them.

It reports changes of what routing depends on (zone, region and, with topologyKeys, any label) and
changes of the addresses of the node or of its pods; heartbeats change neither. The proxy does not
stop when its Node is deleted: the last state stays in effect, and only /healthz fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import msgspec
import structlog

from keepclose.kube.clock import Clock
from keepclose.kube.errors import Forbidden, Unauthorized
from keepclose.model.addresses import canonical, family_of
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.settings import PROXY_FAMILIES, family_of_range
from keepclose.routing.port_endpoints import NodeView, labels_by_node
from keepclose.routing.topology import needs_node_labels

_log = structlog.get_logger(__name__)


class NodeAddresses(msgspec.Struct, frozen=True):
    """Addresses by family: at most one of the node itself, and one range of its pods."""

    ips: dict[str, str] = {}
    pod_cidrs: dict[str, str] = {}


class OwnNode:
    """The state of the own node; callbacks receive changes of topology and addresses."""

    def __init__(
        self,
        name: str,
        *,
        gates: FeatureGates,
        bind_address: str = "",
        on_topology: Callable[[], None],
        on_addresses: Callable[[], None],
    ) -> None:
        self._name = name
        self._sees_labels = gates.on(Gate.SERVICE_TOPOLOGY)
        self._bind_address = bind_address
        self._on_topology = on_topology
        self._on_addresses = on_addresses
        self.view = NodeView(name)
        self.addresses = find_addresses(None, bind_address)
        self._other_labels: dict[str, dict[str, str]] = {}

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a Node; Nodes other than the own one are ignored."""
        node = new or old
        if node is None or node.name != self._name:
            return
        if new is None:
            _log.warning("own Node deleted; its last state stays in effect", node=self._name)
            return
        view = view_of(new, sees_labels=self._sees_labels)
        view = msgspec.structs.replace(view, others=self._other_labels)
        if view != self.view:
            _log.info(
                "topology of the node changed", node=self._name, zone=view.zone, was=self.view.zone
            )
            self.view = view
            self._on_topology()
        addresses = find_addresses(new, self._bind_address)
        if addresses != self.addresses:
            self.addresses = addresses
            self._on_addresses()

    def set_all_nodes(self, nodes: Iterable[Node]) -> None:
        """Set the labels of all nodes, which topologyKeys compare with those of the own node."""
        labels = labels_by_node(nodes)
        if labels != self._other_labels:
            self._other_labels = labels
            self.view = msgspec.structs.replace(self.view, others=labels)
            self._on_topology()


class OtherNodes:
    """The labels of all Nodes, which are watched once a Service needs them."""

    def __init__(
        self, own_node: OwnNode, caches: ProxyCaches, *, wait_s: float, clock: Clock
    ) -> None:
        self._own_node = own_node
        self._caches = caches
        self._wait_s = wait_s
        self._clock = clock
        self._needed = asyncio.Event()
        self._is_update_scheduled = False

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Handle a change of a Service."""
        del old
        if new is not None and needs_node_labels(new.spec.topology_keys):
            self._needed.set()

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Handle a change of a Node."""
        labels = [{} if node is None else node.metadata.labels for node in (old, new)]
        # NB: every node sends a heartbeat every few seconds, which changes no label.
        is_changed = labels[0] != labels[1] or old is None or new is None
        if is_changed and not self._is_update_scheduled:
            # One update for all changes that arrive together, such as a first list.
            self._is_update_scheduled = True
            asyncio.get_running_loop().call_soon(self._update)

    async def watch(self) -> None:
        """Watch all Nodes once a Service needs their labels, until cancelled."""
        await self._needed.wait()
        reflector = self._caches.all_nodes_reflector
        if reflector is not None:
            _log.info("all Nodes are watched: topologyKeys need their labels")
            await reflector.run()

    async def wait(self) -> None:
        """Wait for the labels that Services need, or topologyKeys would reject traffic.

        The wait is limited as for the own Node, because other Services do not need the labels.
        """
        reflector = self._caches.all_nodes_reflector
        if reflector is None or not self._needed.is_set():
            return
        try:
            await self._clock.wait_for(reflector.wait_synced(), self._wait_s)
        except (TimeoutError, Forbidden, Unauthorized) as error:
            _log.warning("labels of other Nodes are unknown", error=str(error))
        self._update()

    def _update(self) -> None:
        self._is_update_scheduled = False
        self._own_node.set_all_nodes(self._caches.all_nodes.all())


def view_of(node: Node, *, sees_labels: bool) -> NodeView:
    """Return the routing view of a node; it has labels only if topologyKeys read them."""
    view = NodeView.of(node)
    return view if sees_labels else msgspec.structs.replace(view, labels={})


def find_addresses(node: Node | None, bind_address: str = "") -> NodeAddresses:
    """Return the node's addresses: the first of each family, internal addresses first.

    A specific bind address takes precedence. Without a Node there is no other address.
    """
    candidates: list[str] = []
    bound = canonical(bind_address) if bind_address else None
    if bound is not None and bound not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        candidates.append(bound)
    if node is not None:
        for address_type in ("InternalIP", "ExternalIP"):
            candidates += [
                entry.address for entry in node.status.addresses if entry.type == address_type
            ]
    ips: dict[str, str] = {}
    for text in candidates:
        family, address = family_of(text), canonical(text)
        if family is not None and address is not None:
            ips.setdefault(family, address)
    pod_cidrs: dict[str, str] = {}
    if node is not None:
        for text in node.spec.pod_cidrs or (node.spec.pod_cidr,):
            family = family_of_range(text)
            if family in PROXY_FAMILIES:
                pod_cidrs.setdefault(family, text)
    return NodeAddresses(ips, pod_cidrs)
