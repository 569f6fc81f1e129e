"""From where traffic is sent, and which node is the first to route it.

Each node has a client of its own on it, which stands for all pods there. Connections are counted by
zone, so that zones with more nodes do not count for more. From outside every node is called in
turn: at its own address, or as a load balancer would pass connections on, which spares nodes whose
health check says that they have nobody to serve them.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from keepclose.kube.errors import NotFound
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.refusals import LabRefusal
from keepclose.lab.traffic.connections import Caller, Inside
from keepclose.lab.traffic.targets import NOTHING, OUTSIDE, Target, TrafficRequest, Via, suggest
from keepclose.lab.view import LabView
from keepclose.lab.workloads.pods import PODS, WorkloadPod
from keepclose.model.addresses import IPV6
from keepclose.model.meta import NamespacedName


class Source(NamedTuple):
    """Somebody who calls the Service."""

    group: str
    """Whose connections are shown together: a zone, or the one node or pod asked for."""
    name: str
    node: str
    """The node that is the first to route the connections."""
    zone: str
    caller: Caller
    gateway: str = ""
    """The node's address, where the way there must be shown to the outside host first."""


class _Place(NamedTuple):
    group: str
    name: str
    node: str
    namespace: Inside


async def find_sources(
    lab: LabView,
    underlay: Underlay,
    target: Target,
    request: TrafficRequest,
    *,
    zones: dict[str, str],
    spared: Sequence[str] = (),
) -> list[Source]:
    """Return who calls how often, zone by zone; raises LabRefusal.

    `zones` holds the zone of each node; `spared` are nodes that are lost, or that no load balancer
    would choose.
    """
    nodes = sorted(underlay.nodes, key=lambda name: zones.get(name, ""))
    if not nodes:
        raise LabRefusal("this cluster has no nodes", code=NOTHING)
    if not target.is_outside or target.via is Via.LOAD_BALANCER:
        nodes = [name for name in nodes if name not in spared]
    if target.is_outside:
        return _from_outside(underlay, target, request.connections, nodes=nodes, zones=zones)
    places = await _find_places(lab, underlay, target, request.source, nodes=nodes, zones=zones)
    groups: dict[str, list[_Place]] = {}
    for place in places:
        groups.setdefault(place.group, []).append(place)
    return [
        Source(
            place.group,
            place.name,
            place.node,
            zones.get(place.node, ""),
            Caller(place.namespace, target.port.cluster_ip, target.port.port, times),
        )
        for group in groups.values()
        for place, times in zip(group, share_out(request.connections, len(group)), strict=True)
        if times
    ]


def share_out(whole: int, parts: int) -> list[int]:
    """Return a number in parts as equal as can be, greater ones first."""
    each, rest = divmod(whole, parts) if parts else (0, 0)
    return [each + (number < rest) for number in range(parts)]


def _from_outside(
    underlay: Underlay,
    target: Target,
    connections: int,
    *,
    nodes: Sequence[str],
    zones: dict[str, str],
) -> list[Source]:
    outside = underlay.outside.namespace
    sources = []
    for name, times in zip(nodes, share_out(connections, len(nodes)), strict=True):
        addresses = underlay.nodes[name].addresses
        address = addresses.address6 if target.family == IPV6 else addresses.address
        zone, gateway = zones.get(name, ""), ""
        caller = Caller(outside, address, target.port.node_port, times)
        if target.via is Via.LOAD_BALANCER:
            gateway = address
            caller = Caller(outside, target.port.load_balancer_ips[0], target.port.port, times)
        if times:
            sources.append(Source(zone, f"{OUTSIDE} via {name}", name, zone, caller, gateway))
    return sources


async def _find_places(
    lab: LabView,
    underlay: Underlay,
    target: Target,
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
        raise LabRefusal(f"--from: no zone, node or pod {source}{suggest(near)}", code=NOTHING)
    node = underlay.nodes.get(pod.spec.node_name)
    place = underlay.pod(pod.uid)
    namespace = node.namespace if pod.spec.host_network and node else place and place.namespace
    if not namespace or pod.has_ended:
        raise LabRefusal(f"--from: pod {pod.key} is not running", code=NOTHING)
    name = pod.metadata.name
    return [_Place(name, name, pod.spec.node_name, namespace)]


async def _find_pod(lab: LabView, text: str, *, namespace: str) -> WorkloadPod | None:
    """Return a pod by "namespace/name", or by a name beside the Service or in default."""
    space, slash, name = text.partition("/")
    keys = [NamespacedName(space, name)] if slash else [NamespacedName(namespace, text)]
    if not slash and namespace != "default":
        keys.append(NamespacedName("default", text))
    for key in keys:
        if not key.name or not key.namespace or "/" in key.name or key.name in (".", ".."):
            continue
        try:
            return await lab.client.get(PODS, key.name, namespace=key.namespace)
        except NotFound:
            continue
    return None
