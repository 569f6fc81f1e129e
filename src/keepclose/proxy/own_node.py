"""The node that a proxy runs on, as the API server describes it.

Tells when what routing depends on changes (zone, region and, with topologyKeys, any label) and when
the addresses of the node or of its pods do; heartbeats change neither. A Node that is deleted is no
reason to stop: what was last known stays in effect, and the health page says that the node is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import structlog

from keepclose.model.addresses import canonical, family_of
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.workload import Node
from keepclose.proxy.settings import PROXY_FAMILIES, family_of_range
from keepclose.routing.port_endpoints import NodeView, labels_by_node

_log = structlog.get_logger(__name__)


class NodeAddresses(msgspec.Struct, frozen=True):
    """Addresses by family: at most one of the node itself, and the ranges of its pods."""

    ips: dict[str, str] = {}
    pod_cidrs: dict[str, str] = {}


class OwnNode:
    """What is known of the own node; listeners hear of changes that matter to them."""

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
        self._others: dict[str, dict[str, str]] = {}

    def hear_node(self, old: Node | None, new: Node | None) -> None:
        """Take in a change of a Node; others than the own one are ignored."""
        one = new or old
        if one is None or one.name != self._name:
            return
        if new is None:
            _log.warning("the Node is gone; what is known of it stays in effect", node=self._name)
            return
        view = view_of(new, sees_labels=self._sees_labels)
        view = msgspec.structs.replace(view, others=self._others)
        if view != self.view:
            _log.info("topology of the node", node=self._name, zone=view.zone, was=self.view.zone)
            self.view = view
            self._on_topology()
        addresses = find_addresses(new, self._bind_address)
        if addresses != self.addresses:
            self.addresses = addresses
            self._on_addresses()

    def know_others(self, nodes: Iterable[Node]) -> None:
        """Take in the labels of all nodes, which topologyKeys compare with those of the own one."""
        others = labels_by_node(nodes)
        if others != self._others:
            self._others = others
            self.view = msgspec.structs.replace(self.view, others=others)
            self._on_topology()


def view_of(node: Node, *, sees_labels: bool) -> NodeView:
    """Return what routing has to know of a node; labels only where some decision reads them."""
    view = NodeView.of(node)
    return view if sees_labels else msgspec.structs.replace(view, labels={})


def find_addresses(node: Node | None, bind_address: str = "") -> NodeAddresses:
    """Return the node's addresses: the first of each family, internal ones first.

    A concrete address to bind to comes before them all. An unknown node has no others.
    """
    found: list[str] = []
    bound = canonical(bind_address) if bind_address else None
    if bound is not None and bound not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        found.append(bound)
    if node is not None:
        for wanted in ("InternalIP", "ExternalIP"):
            found += [one.address for one in node.status.addresses if one.type == wanted]
    ips: dict[str, str] = {}
    for text in found:
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
