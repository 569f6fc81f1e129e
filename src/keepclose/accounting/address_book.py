"""Whose address is it, and since when: pods, endpoints, nodes, Services and named subnets.

Pods are replaced within seconds and their addresses are used again, so an address is looked up by
the time of the connection, in histories of owners.

Sources, the best first: the node itself; the pod itself; an endpoint of a slice; the pod CIDR of a
node; a subnet that a user named. The node comes first because pods in its network, and endpoints of
Services such as default/kubernetes, have its address too: the address remains that of the node, and
only the port tells which Service is behind it. Addresses are packed bytes, 4 or 16, as the kernel
has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from ipaddress import ip_address, ip_network
from typing import Final, NamedTuple

from keepclose.accounting.flow_table import NO_ZONE, UNKNOWN
from keepclose.accounting.owner_history import AddressOwner, Frontend, OwnerHistory, OwnerKind
from keepclose.model.addresses import parse_lenient
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import TUNNEL_ADDRESS_ANNOTATIONS
from keepclose.model.workload import Node, Pod

UNOWNED_S: Final = 300.0
"""How long an address that has no owner is remembered after its last connection."""
MAX_UNOWNED: Final = 10_000
PROTOCOLS: Final = {1: "ICMP", 6: "TCP", 17: "UDP", 58: "ICMPv6", 132: "SCTP"}
NUMBERS: Final = {name: number for number, name in PROTOCOLS.items()}
_ENDED_PHASES: Final = ("Succeeded", "Failed")
_TEMPLATE_HASH: Final = "pod-template-hash"


class AddressBook:
    """The owners of addresses, and the Services behind addresses and ports."""

    def __init__(
        self, *, cluster_ranges: Iterable[str] = (), subnets: Iterable[tuple[str, str]] = ()
    ) -> None:
        """Take the ranges of pods and Services, and the zones of subnets outside the cluster.

        Raises ValueError for a text that is no CIDR.
        """
        self._owners = OwnerHistory()
        self._frontends = OwnerHistory()
        self._node_ports = OwnerHistory()
        self._endpoint_ports = OwnerHistory()
        self._zones: dict[str, str] = {}
        self._node_ranges: dict[str, tuple[_Range, ...]] = {}
        self._nodes_by_range: dict[_Range, str] = {}
        self._range_lengths: tuple[tuple[int, int], ...] = ()
        """Width and prefix length of all nodes' ranges, the longest first."""
        self._trusts_ranges = True
        self._cluster_ranges = tuple(_Range.parse(text) for text in cluster_ranges)
        self._subnets = tuple(
            sorted(
                ((_Range.parse(text), text, zone) for text, zone in subnets),
                key=lambda entry: -entry[0].length,
            )
        )
        self._unowned: dict[bytes, float] = {}
        """Addresses for whose owner connections waited in vain, and when they were last used."""
        self._headless: set[NamespacedName] = set()
        self._only_ports: dict[NamespacedName, str] = {}
        """The number of the port of each Service whose port has no name."""
        self.changes = 0
        """How often the book changed; a caller that waits for names compares it."""

    def set_pod(self, pod: Pod, *, at: float, has_run_unseen: bool = False) -> None:
        """Record the addresses of a pod; a pod that has ended has none.

        With `has_run_unseen` it had them until now, and the API reports them with its end only.
        """
        owners: dict[Hashable, AddressOwner] = {}
        priority = OwnerKind.POD
        if not has_ended(pod) or has_run_unseen:
            node = pod.spec.node_name
            owner = AddressOwner(OwnerKind.POD, str(pod.key), node, "", workload_of(pod))
            if pod.spec.host_network:
                owner = AddressOwner(OwnerKind.NODE, node, node)
            owners = dict.fromkeys(addresses_of(pod), owner)
            priority = owner.kind
        self._owners.set(("pod", pod.key), owners, priority=priority, at=at)
        if has_ended(pod) and owners:
            self._owners.set(("pod", pod.key), {}, priority=priority, at=at)
        self.changes += 1

    def remove_pod(self, key: NamespacedName, *, at: float) -> None:
        """Record that a pod was deleted."""
        self._owners.set(("pod", key), {}, priority=OwnerKind.POD, at=at)
        self.changes += 1

    def set_node(self, node: Node, *, at: float) -> None:
        """Record zone, addresses and pod ranges of a node."""
        self._zones[node.name] = node.zone or NO_ZONE
        owner = AddressOwner(OwnerKind.NODE, node.name, node.name)
        texts = [address.address for address in node.status.addresses] + tunnel_addresses_of(node)
        owners: dict[Hashable, AddressOwner] = {
            raw: owner for text in texts if (raw := pack_address(text)) is not None
        }
        self._owners.set(("node", node.name), owners, priority=OwnerKind.NODE, at=at)
        ranges = []
        for text in node.spec.pod_cidrs or ((node.spec.pod_cidr,) if node.spec.pod_cidr else ()):
            try:
                ranges.append(_Range.parse(text))
            except ValueError:
                continue
        self._set_ranges(node.name, tuple(ranges))
        self.changes += 1

    def remove_node(self, name: str, *, at: float) -> None:
        """Record that a node was deleted; its zone is kept for connections of before."""
        self._owners.set(("node", name), {}, priority=OwnerKind.NODE, at=at)
        self._set_ranges(name, ())
        self.changes += 1

    def set_own_addresses(self, node: str, addresses: Iterable[bytes], *, at: float) -> None:
        """Record the addresses of a node's interfaces, which the API does not have."""
        owner = AddressOwner(OwnerKind.NODE, node, node)
        owners: dict[Hashable, AddressOwner] = dict.fromkeys(addresses, owner)
        self._owners.set(("interfaces", node), owners, priority=OwnerKind.NODE, at=at)
        self.changes += 1

    def set_slice(self, endpoint_slice: EndpointSlice, *, at: float) -> None:
        """Record the endpoints of a slice, and the ports that lead to its Service."""
        service = endpoint_slice.service_key
        owners: dict[Hashable, AddressOwner] = {}
        ports: dict[Hashable, Frontend] = {}
        for endpoint in endpoint_slice.endpoints:
            reference = endpoint.target_ref
            name = workload = ""
            if reference is not None and reference.kind == "Pod":
                name = workload = f"{reference.namespace}/{reference.name}"
            owner = AddressOwner(
                OwnerKind.ENDPOINT, name, endpoint.node_name or "", endpoint.zone or "", workload
            )
            for address in endpoint.addresses:
                raw = pack_address(address)
                if raw is None:
                    continue
                owners[raw] = owner
                for port in endpoint_slice.ports:
                    number = NUMBERS.get(port.protocol or "TCP")
                    if port.port is not None and number is not None and service.name:
                        frontend = Frontend(service, port.name or "", name)
                        ports[raw, port.port, number] = frontend
        source = ("slice", endpoint_slice.metadata.key)
        self._owners.set(source, owners, priority=OwnerKind.ENDPOINT, at=at)
        # NB: clients use a headless Service by the addresses of its pods, so it comes first.
        priority = 1 if service in self._headless else 2
        self._endpoint_ports.set(source, ports, priority=priority, at=at)
        self.changes += 1

    def remove_slice(self, key: NamespacedName, *, at: float) -> None:
        """Record that a slice was deleted."""
        self._owners.set(("slice", key), {}, priority=OwnerKind.ENDPOINT, at=at)
        self._endpoint_ports.set(("slice", key), {}, priority=2, at=at)
        self.changes += 1

    def set_service(self, service: Service, *, at: float) -> None:
        """Record the addresses, ports and node ports of a Service."""
        spec = service.spec
        (self._headless.add if service.is_headless else self._headless.discard)(service.key)
        self._only_ports.pop(service.key, None)
        if len(spec.ports) == 1 and not spec.ports[0].name:
            self._only_ports[service.key] = str(spec.ports[0].port)
        addresses = {*spec.cluster_ips, spec.cluster_ip, *spec.external_ips}
        addresses |= {
            ingress.ip
            for ingress in service.status.load_balancer.ingress
            if ingress.is_routed_by_nodes
        }
        packed = [raw for address in addresses if (raw := pack_address(address)) is not None]
        frontends: dict[Hashable, Frontend] = {}
        node_ports: dict[Hashable, Frontend] = {}
        for port in spec.ports:
            number = NUMBERS.get(port.protocol or "TCP")
            if number is None:
                continue
            frontend = Frontend(service.key, port.name or str(port.port))
            for raw in packed:
                frontends[raw, port.port, number] = frontend
            if port.node_port:
                node_ports[port.node_port, number] = frontend
        self._frontends.set(service.key, frontends, priority=1, at=at)
        self._node_ports.set(service.key, node_ports, priority=1, at=at)
        self.changes += 1

    def remove_service(self, key: NamespacedName, *, at: float) -> None:
        """Record that a Service was deleted."""
        self._frontends.set(key, {}, priority=1, at=at)
        self._node_ports.set(key, {}, priority=1, at=at)
        self._headless.discard(key)
        self._only_ports.pop(key, None)
        self.changes += 1

    def owner_of(self, address: bytes, at: float) -> AddressOwner | None:
        """Return the owner of an address at a time, with its zone; None if there is none."""
        owner = self._owners.find(address, at)
        if isinstance(owner, AddressOwner):
            zone = self._zones.get(owner.node, "") or owner.zone or NO_ZONE
            return owner._replace(zone=zone)
        number = int.from_bytes(address, "big")
        width = len(address)
        node = self._node_by_range(number, width) if self._trusts_ranges else None
        if node is not None:
            zone = self._zones.get(node, NO_ZONE)
            return AddressOwner(OwnerKind.POD_RANGE, "", node, zone)
        for subnet, text, zone in self._subnets:
            if subnet.has(number, width):
                return AddressOwner(OwnerKind.SUBNET, text, "", zone)
        return None

    def has_just_changed(self, address: bytes, port: int, protocol: int, at: float) -> bool:
        """Whether an owner of an address or a port ended a moment ago, so that answers will change.

        NB: no change of the book tells when the moment is over.
        """
        place = address, port, protocol
        return (
            self._owners.has_just_ended(address, at)
            or self._frontends.has_just_ended(place, at)
            or self._endpoint_ports.has_just_ended(place, at)
            or self._node_ports.has_just_ended((port, protocol), at)
        )

    def record_unowned(self, address: bytes, *, at: float) -> bool:
        """Remember that connections waited for the owner of an address in vain.

        Return False for an address that has or had an owner: the next one may be on its way.
        """
        if self._owners.has(address) or self.owner_of(address, at) is not None:
            return False
        self._unowned.pop(address, None)
        self._unowned[address] = at
        if len(self._unowned) > MAX_UNOWNED:
            del self._unowned[next(iter(self._unowned))]
        return True

    def is_unowned(self, address: bytes, at: float) -> bool:
        """Whether it is pointless to wait for the owner of an address that has none."""
        used_at = self._unowned.get(address)
        if used_at is None:
            return False
        if at - used_at > UNOWNED_S or self._owners.has(address):
            del self._unowned[address]
            return False
        # NB: an address that is in use all the time, such as a database's, is no pod's meanwhile.
        self._unowned[address] = max(at, used_at)
        return True

    def zone_of(self, node: str) -> str:
        """Return the zone of a node; UNKNOWN if there is no such node."""
        return self._zones.get(node, UNKNOWN)

    def is_of_cluster(self, address: bytes) -> bool:
        """Whether an address is in the ranges of the cluster's pods and Services."""
        number = int.from_bytes(address, "big")
        width = len(address)
        if any(cluster_range.has(number, width) for cluster_range in self._cluster_ranges):
            return True
        return not self._trusts_ranges and self._node_by_range(number, width) is not None

    def is_in_range_of(self, node: str, address: bytes) -> bool | None:
        """Whether an address is in the pod CIDRs of a node; None if it has none."""
        ranges = self._node_ranges.get(node)
        if not ranges:
            return None
        number = int.from_bytes(address, "big")
        return any(pod_range.has(number, len(address)) for pod_range in ranges)

    def distrust_ranges(self) -> None:
        """Name no node by its pod CIDRs from now on: pods have other addresses."""
        self._trusts_ranges = False
        self.changes += 1

    def frontend_of(self, address: bytes, port: int, protocol: int, at: float) -> Frontend | None:
        """Return the Service that has this address and port; None if none has."""
        frontend = self._frontends.find((address, port, protocol), at)
        return frontend if isinstance(frontend, Frontend) else None

    def node_port_of(self, port: int, protocol: int, at: float) -> Frontend | None:
        """Return the Service that has this node port; None if none has."""
        frontend = self._node_ports.find((port, protocol), at)
        return frontend if isinstance(frontend, Frontend) else None

    def service_behind(
        self, address: bytes, port: int, protocol: int, at: float
    ) -> Frontend | None:
        """Return the Service that an endpoint belongs to, a headless one first; None if none."""
        frontend = self._endpoint_ports.find((address, port, protocol), at)
        if not isinstance(frontend, Frontend):
            return None
        if not frontend.port:
            # A port without a name is the only one of its Service, which has its number.
            number = self._only_ports.get(frontend.service) or str(port)
            return frontend._replace(port=number)
        return frontend

    def is_headless(self, service: NamespacedName) -> bool:
        """Whether a Service is known and has no cluster IP."""
        return service in self._headless

    def _node_by_range(self, number: int, width: int) -> str | None:
        # NB: by prefix length, because a cluster has thousands of nodes but few lengths.
        for range_width, length in self._range_lengths:
            if range_width == width:
                node = self._nodes_by_range.get(_Range.around(number, width, length))
                if node is not None:
                    return node
        return None

    def _set_ranges(self, node: str, ranges: tuple[_Range, ...]) -> None:
        if ranges == self._node_ranges.get(node, ()):
            return
        for pod_range in self._node_ranges.pop(node, ()):
            if self._nodes_by_range.get(pod_range) == node:
                del self._nodes_by_range[pod_range]
        if ranges:
            self._node_ranges[node] = ranges
        for pod_range in ranges:
            self._nodes_by_range[pod_range] = node
        lengths = {(pod_range.width, pod_range.length) for pod_range in self._nodes_by_range}
        self._range_lengths = tuple(sorted(lengths, key=lambda pair: -pair[1]))


class _Range(NamedTuple):
    """A CIDR as numbers."""

    first: int
    last: int
    width: int
    length: int

    @classmethod
    def parse(cls, text: str) -> _Range:
        """Read a CIDR; raises ValueError."""
        network = ip_network(text.strip(), strict=False)
        return cls(
            int(network.network_address),
            int(network.broadcast_address),
            network.max_prefixlen // 8,
            network.prefixlen,
        )

    @classmethod
    def around(cls, number: int, width: int, length: int) -> _Range:
        """Return the range of a prefix length that has an address."""
        rest = (1 << (8 * width - length)) - 1
        return cls(number & ~rest, number | rest, width, length)

    def has(self, number: int, width: int) -> bool:
        """Whether an address is in the range."""
        return width == self.width and self.first <= number <= self.last


def pack_address(text: str) -> bytes | None:
    """Return an address as bytes; None if the text is no address."""
    parsed = parse_lenient(text)
    return None if parsed is None else parsed.address.packed


def show_address(raw: bytes) -> str:
    """Return packed bytes as a text; they must be 4 or 16."""
    return str(ip_address(raw))


def has_ended(pod: Pod) -> bool:
    """Whether a pod no longer has its addresses, although its status still shows them."""
    return pod.status.phase in _ENDED_PHASES


def tunnel_addresses_of(node: Node) -> list[str]:
    """Return the addresses of overlays that a network has written to its Node; mostly none."""
    annotations = node.metadata.annotations
    return [annotations[name] for name in TUNNEL_ADDRESS_ANNOTATIONS if name in annotations]


def addresses_of(pod: Pod) -> list[bytes]:
    """Return the addresses in the status of a pod."""
    texts = [address.ip for address in pod.status.pod_ips] or [pod.status.pod_ip]
    return [raw for text in texts if (raw := pack_address(text)) is not None]


def workload_of(pod: Pod) -> str:
    """Return what made a pod as namespace/name: its Deployment, its other owner, or itself."""
    for owner in pod.metadata.owner_references:
        if not owner.controller:
            continue
        name = owner.name
        # The name of a Deployment's ReplicaSet ends with the hash that its pods have as a label.
        template = pod.metadata.labels.get(_TEMPLATE_HASH, "")
        if owner.kind == "ReplicaSet" and template:
            name = name.removesuffix(f"-{template}")
        return f"{pod.metadata.namespace}/{name}"
    return str(pod.key)
