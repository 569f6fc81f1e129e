"""What is asked of the traffic command, and which address and port that means.

A Service is named as kubectl's users name it; what has no address to connect to is refused in words
that say what would do. Nothing here opens a connection.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.errors import NotFound
from keepclose.kube.requests import SERVICES
from keepclose.lab.refusals import LabRefusal
from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import find_near_names
from keepclose.model.service.types import Service
from keepclose.model.well_known import PROXY_NAME_LABEL
from keepclose.routing.service_ports import RoutedPort, routed_ports

OUTSIDE: Final = "outside"
MOST_CONNECTIONS: Final = 1_000_000
NOTHING: Final = 3
_FAMILIES: Final = {"": "", "ipv4": IPV4, "ipv6": IPV6}


class Via(StrEnum):
    """At which of its addresses a Service is called."""

    CLUSTER_IP = "cluster-ip"
    NODE_PORT = "node-port"
    LOAD_BALANCER = "load-balancer"


class TrafficRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person asked for; "" leaves the choice to us."""

    service: str
    source: str = msgspec.field(default="", name="from")
    connections: Annotated[int, msgspec.Meta(ge=1, le=MOST_CONNECTIONS)] = 1000
    """From each zone."""
    udp: bool = False
    port: str = ""
    """Name or number."""
    family: str = ""
    via: str = ""


class Target(NamedTuple):
    """A service port, and the way to it."""

    service: Service
    port: RoutedPort
    family: str
    via: Via

    @property
    def is_outside(self) -> bool:
        """Whether it is called from outside the cluster."""
        return self.via is not Via.CLUSTER_IP


def read_request(params: dict[str, Any]) -> TrafficRequest:
    """Return what was asked for; raises LabRefusal."""
    try:
        request = msgspec.convert(params, TrafficRequest)
    except msgspec.ValidationError as error:
        raise LabRefusal(f"traffic: {error}") from None
    if request.family.lower() not in _FAMILIES:
        raise LabRefusal(f"--family: {request.family!r} must be ipv4 or ipv6")
    if request.via not in ("", Via.NODE_PORT, Via.LOAD_BALANCER):
        raise LabRefusal(f"--via: {request.via!r} must be node-port or load-balancer")
    if request.via and request.source not in ("", OUTSIDE):
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
        known = [one.key for one in (await client.list_all(SERVICES)).items]
    near = suggest(find_near_names(name, known))
    raise LabRefusal(f"there is no Service {namespace}/{name}{near}", code=NOTHING)


def suggest(near: list[str]) -> str:
    """Return the end of a refusal that offers near names, or "" when there are none."""
    names = list(dict.fromkeys(near))[:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def choose_target(service: Service, request: TrafficRequest, *, gates: FeatureGates) -> Target:
    """Return which port of a Service is called and how; raises LabRefusal."""
    who = f"Service {service.key}"
    if service.spec.type == "ExternalName":
        raise LabRefusal(
            f"{who} is only a DNS name (type ExternalName); nothing routes its connections",
            code=NOTHING,
        )
    if service.is_headless:
        raise LabRefusal(
            f"{who} is headless: clients connect to its pods by DNS, and nothing routes them",
            code=NOTHING,
        )
    if PROXY_NAME_LABEL in service.metadata.labels:
        raise LabRefusal(
            f"{who} is left to another proxy by the label {PROXY_NAME_LABEL}", code=NOTHING
        )
    families = [one for one in (IPV4, IPV6) if routed_ports(service, one, gates=gates)]
    # The Service's own order, of those that have an address.
    families.sort(key=lambda one: one != next(iter(service.spec.ip_families), IPV4))
    family = _FAMILIES[request.family.lower()] or next(iter(families), "")
    if family not in families:
        has = f"only {families[0]}" if families else "none at all"
        raise LabRefusal(f"{who} has no {family or 'cluster IP'} address, {has}", code=NOTHING)
    port = _choose_port(routed_ports(service, family, gates=gates), request, who)
    return Target(service, port, family, _choose_way(port, request, service))


def _choose_port(ports: tuple[RoutedPort, ...], request: TrafficRequest, who: str) -> RoutedPort:
    protocol = "UDP" if request.udp else "TCP"
    fitting = [one for one in ports if one.protocol == protocol]
    listed = ", ".join(f"{one.name} {one.port}/{one.protocol}".strip() for one in ports)
    if request.port:
        named = [one for one in ports if request.port in (one.name, str(one.port))]
        found = next((one for one in named if one.protocol == protocol), None)
        if found is not None:
            return found
        if named and named[0].protocol in ("TCP", "UDP"):
            how = "leave out --udp" if request.udp else "add --udp"
            raise LabRefusal(f"port {request.port} of {who} is {named[0].protocol}; {how}")
        raise LabRefusal(f"{who} has no port {request.port}; it has {listed}", code=NOTHING)
    if not fitting:
        how = "; add --udp" if any(one.protocol == "UDP" for one in ports) else ""
        raise LabRefusal(f"{who} has no {protocol} port; it has {listed}{how}", code=NOTHING)
    return fitting[0]


def _choose_way(port: RoutedPort, request: TrafficRequest, service: Service) -> Via:
    if request.source != OUTSIDE and not request.via:
        return Via.CLUSTER_IP
    ways = {Via.NODE_PORT: bool(port.node_port), Via.LOAD_BALANCER: bool(port.load_balancer_ips)}
    who = f"Service {service.key}"
    if request.via:
        way = Via(request.via)
        if not ways[way]:
            lacks = {
                Via.NODE_PORT: "no node port",
                Via.LOAD_BALANCER: "no load balancer's address in its status",
            }[way]
            raise LabRefusal(f"{who} (type {service.spec.type}) has {lacks}", code=NOTHING)
        return way
    found = next((way for way, exists in ways.items() if exists), None)
    if found is None:
        raise LabRefusal(
            f"{who} (type {service.spec.type}) cannot be reached from outside; "
            "give it type NodePort or LoadBalancer",
            code=NOTHING,
        )
    return found
