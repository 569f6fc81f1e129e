"""The request of the traffic command: which port and address of a Service, and from which sources.

A Service is named as in kubectl. A Service without an address to connect to is rejected, with what
would help. Nothing here opens a connection.

Each node has a client, which stands for all pods of the node. Connections are counted by zone, so
that zones with more nodes do not count for more. From outside, nodes are called in turn: at their
own addresses, or as a load balancer would, which leaves out nodes whose health check reports no
local endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import SERVICES
from keepclose.lab.access import LabRefusal, LabView
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.traffic.connections import ConnectionSource, Inside
from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName, find_similar_names
from keepclose.model.service.types import Service
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.routing.service_ports import RoutedPort, routed_ports

_OUTSIDE: Final = "outside"
MOST_CONNECTIONS: Final = 1_000_000
NO_ADDRESS: Final = 3
_FAMILIES: Final = {"": "", "ipv4": IPV4, "ipv6": IPV6}


class Via(StrEnum):
    """Which address of a Service is called."""

    CLUSTER_IP = "cluster-ip"
    NODE_PORT = "node-port"
    LOAD_BALANCER = "load-balancer"


class TrafficRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of the command; "" is the default."""

    service: str
    source: str = msgspec.field(default="", name="from")
    connections: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1000
    """From each zone."""
    udp: bool = False
    port: str = ""
    """Name or number."""
    family: str = ""
    via: str = ""


class TrafficTarget(NamedTuple):
    """A service port, and the address by which it is called."""

    service: Service
    port: RoutedPort
    family: str
    via: Via

    @property
    def is_outside(self) -> bool:
        """Whether the port is called from outside the cluster."""
        return self.via is not Via.CLUSTER_IP


def read_traffic_request(params: dict[str, Any]) -> TrafficRequest:
    """Return the decoded options; raises LabRefusal."""
    try:
        request = msgspec.convert(params, TrafficRequest)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"traffic: {error}") from None
    if request.family.lower() not in _FAMILIES:
        raise LabRefusal(f"--family: {request.family!r} must be ipv4 or ipv6")
    if request.via not in ("", Via.NODE_PORT, Via.LOAD_BALANCER):
        raise LabRefusal(f"--via: {request.via!r} must be node-port or load-balancer")
    if request.via and request.source not in ("", _OUTSIDE):
        raise LabRefusal(f"--via {request.via} goes with --from outside, not {request.source}")
    return request


async def find_service(client: Client, text: str) -> Service:
    """Return a Service by "name" or "namespace/name"; raises LabRefusal with near names."""
    namespace, slash, name = text.partition("/")
    if not slash:
        namespace, name = "default", text
    if not name or not namespace or "/" in name:
        raise LabRefusal(f"{text!r} is no name of a Service; write NAME or NAMESPACE/NAME")
    try:
        return await client.get(SERVICES, name, namespace=namespace)
    except NotFound:
        services = [service.key for service in (await client.list_all(SERVICES)).items]
    near = suggest(find_similar_names(name, services))
    raise LabRefusal(f"there is no Service {namespace}/{name}{near}", code=NO_ADDRESS)


def suggest(near: list[str]) -> str:
    """Return the end of a refusal that suggests near names, or "" if there are none."""
    names = list(dict.fromkeys(near))[:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def choose_target(
    service: Service, request: TrafficRequest, *, gates: FeatureGates
) -> TrafficTarget:
    """Return the port and address of a Service to call; raises LabRefusal."""
    who = f"Service {service.key}"
    if service.spec.type == "ExternalName":
        raise LabRefusal(
            f"{who} is only a DNS name (type ExternalName); nothing routes its connections",
            code=NO_ADDRESS,
        )
    if service.is_headless:
        raise LabRefusal(
            f"{who} is headless: clients connect to its pods by DNS, and nothing routes them",
            code=NO_ADDRESS,
        )
    if PROXY_NAME_LABEL in service.metadata.labels:
        raise LabRefusal(
            f"{who} is left to another proxy by the label {PROXY_NAME_LABEL}", code=NO_ADDRESS
        )
    families = [family for family in (IPV4, IPV6) if routed_ports(service, family, gates=gates)]
    # In the order of spec.ipFamilies, without families that have no address.
    families.sort(key=lambda family: family != next(iter(service.spec.ip_families), IPV4))
    family = _FAMILIES[request.family.lower()] or next(iter(families), "")
    if family not in families:
        has = f"only {families[0]}" if families else "none at all"
        raise LabRefusal(f"{who} has no {family or 'cluster IP'} address, {has}", code=NO_ADDRESS)
    port = _choose_port(routed_ports(service, family, gates=gates), request, who)
    return TrafficTarget(service, port, family, _choose_via(port, request, service))


class TrafficSource(NamedTuple):
    """A client of the Service."""

    group: str
    """The zone whose connections are shown together, or the requested node or pod."""
    name: str
    node: str
    """The node that routes the connections first."""
    zone: str
    caller: ConnectionSource
    gateway: str = ""
    """The node's address, if the outside host needs a route via the node."""


class _Place(NamedTuple):
    group: str
    name: str
    node: str
    namespace: Inside


async def find_sources(
    lab: LabView,
    underlay: Underlay,
    target: TrafficTarget,
    request: TrafficRequest,
    *,
    zones: dict[str, str],
    spared: Sequence[str] = (),
) -> list[TrafficSource]:
    """Return the sources with their numbers of connections, by zone; raises LabRefusal.

    `zones` has the zone of each node; `spared` are nodes that are lost, or that no load balancer
    would choose.
    """
    nodes = sorted(underlay.nodes, key=lambda name: zones.get(name, ""))
    if not nodes:
        raise LabRefusal("this cluster has no nodes", code=NO_ADDRESS)
    if not target.is_outside or target.via is Via.LOAD_BALANCER:
        nodes = [name for name in nodes if name not in spared]
    if target.is_outside:
        return _from_outside(underlay, target, request.connections, nodes=nodes, zones=zones)
    places = await _find_places(lab, underlay, target, request.source, nodes=nodes, zones=zones)
    groups: dict[str, list[_Place]] = {}
    for place in places:
        groups.setdefault(place.group, []).append(place)
    return [
        TrafficSource(
            place.group,
            place.name,
            place.node,
            zones.get(place.node, ""),
            ConnectionSource(place.namespace, target.port.cluster_ip, target.port.port, times),
        )
        for group in groups.values()
        for place, times in zip(
            group, divide_connections(request.connections, len(group)), strict=True
        )
        if times
    ]


def divide_connections(whole: int, parts: int) -> list[int]:
    """Return a number divided into parts that are as equal as possible, greater ones first."""
    each, rest = divmod(whole, parts) if parts else (0, 0)
    return [each + (number < rest) for number in range(parts)]


def _choose_port(ports: tuple[RoutedPort, ...], request: TrafficRequest, who: str) -> RoutedPort:
    protocol = "UDP" if request.udp else "TCP"
    fitting = [port for port in ports if port.protocol == protocol]
    listed = ", ".join(f"{port.name} {port.port}/{port.protocol}".strip() for port in ports)
    if request.port:
        named = [port for port in ports if request.port in (port.name, str(port.port))]
        chosen = next((port for port in named if port.protocol == protocol), None)
        if chosen is not None:
            return chosen
        if named and named[0].protocol in ("TCP", "UDP"):
            how = "leave out --udp" if request.udp else "add --udp"
            raise LabRefusal(f"port {request.port} of {who} is {named[0].protocol}; {how}")
        raise LabRefusal(f"{who} has no port {request.port}; it has {listed}", code=NO_ADDRESS)
    if not fitting:
        how = "; add --udp" if any(port.protocol == "UDP" for port in ports) else ""
        raise LabRefusal(f"{who} has no {protocol} port; it has {listed}{how}", code=NO_ADDRESS)
    return fitting[0]


def _choose_via(port: RoutedPort, request: TrafficRequest, service: Service) -> Via:
    if request.source != _OUTSIDE and not request.via:
        return Via.CLUSTER_IP
    available = {
        Via.NODE_PORT: bool(port.node_port),
        Via.LOAD_BALANCER: bool(port.load_balancer_ips),
    }
    who = f"Service {service.key}"
    if request.via:
        via = Via(request.via)
        if not available[via]:
            lacks = {
                Via.NODE_PORT: "no node port",
                Via.LOAD_BALANCER: "no load balancer's address in its status",
            }[via]
            raise LabRefusal(f"{who} (type {service.spec.type}) has {lacks}", code=NO_ADDRESS)
        return via
    chosen = next((via for via, exists in available.items() if exists), None)
    if chosen is None:
        raise LabRefusal(
            f"{who} (type {service.spec.type}) cannot be reached from outside; "
            "give it type NodePort or LoadBalancer",
            code=NO_ADDRESS,
        )
    return chosen


def _from_outside(
    underlay: Underlay,
    target: TrafficTarget,
    connections: int,
    *,
    nodes: Sequence[str],
    zones: dict[str, str],
) -> list[TrafficSource]:
    outside = underlay.outside.namespace
    sources = []
    for name, times in zip(nodes, divide_connections(connections, len(nodes)), strict=True):
        addresses = underlay.nodes[name].addresses
        address = addresses.address6 if target.family == IPV6 else addresses.address
        zone, gateway = zones.get(name, ""), ""
        caller = ConnectionSource(outside, address, target.port.node_port, times)
        if target.via is Via.LOAD_BALANCER:
            gateway = address
            caller = ConnectionSource(
                outside, target.port.load_balancer_ips[0], target.port.port, times
            )
        if times:
            sources.append(
                TrafficSource(zone, f"{_OUTSIDE} via {name}", name, zone, caller, gateway)
            )
    return sources


async def _find_places(
    lab: LabView,
    underlay: Underlay,
    target: TrafficTarget,
    source: str,
    *,
    nodes: Sequence[str],
    zones: dict[str, str],
) -> list[_Place]:
    def client(name: str, group: str) -> _Place:
        return _Place(group, name, name, underlay.nodes[name].client.namespace)

    if not source or source in zones.values():
        return [
            client(name, zone)
            for name in nodes
            if (zone := zones.get(name, "")) == source or not source
        ]
    if source in underlay.nodes:
        return [client(source, source)]
    pod = await _find_pod(lab, source, namespace=target.service.metadata.namespace)
    if pod is None:
        near = get_close_matches(source, [*filter(None, zones.values()), *underlay.nodes], n=2)
        raise LabRefusal(f"--from: no zone, node or pod {source}{suggest(near)}", code=NO_ADDRESS)
    node = underlay.nodes.get(pod.spec.node_name)
    place = underlay.pod(pod.uid)
    namespace = node.namespace if pod.spec.host_network and node else place and place.namespace
    if not namespace or pod.has_ended:
        raise LabRefusal(f"--from: pod {pod.key} is not running", code=NO_ADDRESS)
    name = pod.metadata.name
    return [_Place(name, name, pod.spec.node_name, namespace)]


async def _find_pod(lab: LabView, text: str, *, namespace: str) -> WorkloadPod | None:
    """Return a pod by "namespace/name", or by a name in the Service's namespace or in default."""
    space, slash, name = text.partition("/")
    keys = [NamespacedName(space, name)] if slash else [NamespacedName(namespace, text)]
    if not slash and namespace != "default":
        keys.append(NamespacedName("default", text))
    for key in keys:
        if not key.name or not key.namespace or "/" in key.name or key.name in (".", ".."):
            continue
        try:
            return await lab.client.get(LAB_PODS, key.name, namespace=key.namespace)
        except NotFound:
            continue
    return None
