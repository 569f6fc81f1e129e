"""Who asks and for which Pod: the clients of a question, and the share that a Pod gets from them.

Clients are a node, the nodes of a zone, or the node of a Pod. Connections of a client go to the
cluster IP. A share is a range where nodes differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.pod_causes import explain_selected_pod
from keepclose.advise.explaining.selector_causes import explain_not_selected
from keepclose.advise.explaining.service_facts import AlikeNodes, ServiceFacts, name_address
from keepclose.advise.inventory import Inventory
from keepclose.advise.observed_traffic import ShareRange
from keepclose.advise.verification_causes import name_some
from keepclose.model.addresses import canonical, family_of
from keepclose.model.meta import NamespacedName, find_similar_names
from keepclose.model.workload import Pod
from keepclose.slices.slice_metadata import address_types


class ClientKind(StrEnum):
    """What --from names."""

    ALL = "all"
    NODE = "node"
    ZONE = "zone"
    POD = "pod"


class Clients(msgspec.Struct, frozen=True):
    """The clients in question: what names them, and the nodes that they run on."""

    kind: ClientKind = ClientKind.ALL
    name: str = ""
    nodes: tuple[str, ...] = ()
    pod: Pod | None = None


class NotFoundName(msgspec.Struct, frozen=True):
    """A name that no node, zone or Pod has, and similar ones."""

    name: str
    what: str
    similar: tuple[str, ...] = ()


class PodShare(msgspec.Struct, frozen=True):
    """The share of the connections to one port that a Pod gets from the clients."""

    port: str
    low: float
    high: float


def find_clients(inventory: Inventory, text: str, namespace: str) -> Clients | NotFoundName:
    """Return the clients that a text names: node/NAME, zone/NAME, pod/[NS/]NAME, or a bare name.

    A bare name is that of a node, else of a zone, else of a Pod of the namespace; NS/NAME is a Pod.
    """
    kind, slash, rest = text.partition("/")
    kinds = [each.value for each in ClientKind if each is not ClientKind.ALL]
    if slash and kind in kinds:
        return _find(inventory, rest, namespace, (ClientKind(kind),))
    order = (ClientKind.NODE, ClientKind.ZONE, ClientKind.POD)
    return _find(inventory, text, namespace, (ClientKind.POD,) if slash else order)


def find_pod(inventory: Inventory, text: str, namespace: str) -> Pod | NotFoundName:
    """Return the Pod that a text names: [pod/][NS/]NAME."""
    name = text.removeprefix("pod/")
    own, slash, rest = name.rpartition("/")
    key = NamespacedName(own if slash else namespace, rest)
    for pod in inventory.pods.get(key.namespace, ()):
        if pod.metadata.name == key.name:
            return pod
    pods = (pod.key for group in inventory.pods.values() for pod in group)
    return NotFoundName(str(key), "Pod", tuple(find_similar_names(key.name, pods)))


def share_of(pod: Pod, groups: Iterable[AlikeNodes]) -> tuple[PodShare, ...]:
    """Return the share of each port's connections that a Pod gets, over all nodes of the groups."""
    addresses = _addresses(pod)
    ranges: dict[str, ShareRange] = {}
    for group in groups:
        by_port: dict[str, float] = {}
        for port in group.ports:
            endpoints = port.selection.internal.endpoints
            whole = sum(endpoint.weight for endpoint in endpoints)
            own = sum(endpoint.weight for endpoint in endpoints if endpoint.address in addresses)
            by_port[port.title] = own / whole if whole else 0.0
        for title, share in by_port.items():
            single = ShareRange(share, share)
            ranges[title] = ranges[title].joined(single) if title in ranges else single
    return tuple(PodShare(title, *ranges[title]) for title in ranges)


def explain_target(
    pod: Pod, facts: ServiceFacts, shares: Iterable[PodShare], clients: Clients
) -> list[TrafficCause]:
    """Return why a Pod gets no connections of the clients; [] if it gets some on every port.

    If it gets some, what would keep a Pod from them is a note, such as that it terminates.
    """
    listed = list(shares)
    unserved = [share.port for share in listed if share.high == 0.0]
    if pod not in facts.selected:
        if not _ready_states(pod, facts):
            return [explain_not_selected(pod, facts)]
        causes: list[TrafficCause] = []
    else:
        causes = list(explain_selected_pod(pod, facts))
    if len(unserved) < len(listed):
        weight = CauseWeight.DEFEATS if unserved else CauseWeight.NOTE
        return [
            replace(cause, weight=weight) if cause.weight is CauseWeight.BLOCKS else cause
            for cause in causes
        ]
    if any(cause.weight is CauseWeight.BLOCKS for cause in causes):
        return causes
    if not unserved or not facts.is_routed:
        return causes
    states = _ready_states(pod, facts)
    if not any(states):
        said = f"says that {min(_addresses(pod))} is not" if states else "has its address"
        which = "an EndpointSlice of the Service" if states else "no EndpointSlice of the Service"
        causes.append(
            TrafficCause(
                TrafficCauseCode.SLICES_STALE,
                f"it is ready, and {which} {said}",
                f"Pod {pod.key}",
                weight=CauseWeight.BLOCKS,
            )
        )
        return causes
    causes += _closer(pod, facts, unserved, clients)
    return causes


def explain_client(facts: ServiceFacts, clients: Clients) -> list[TrafficCause]:
    """Return why a client Pod cannot reach the Service's addresses, whatever nodes do."""
    pod = clients.pod
    if pod is None or facts.service.is_headless:
        return []
    families = {family_of(address) for address in _addresses(pod)}
    wanted = address_types(facts.service)
    if not families or families.intersection(wanted):
        return []
    return [
        TrafficCause(
            TrafficCauseCode.ADDRESS_FAMILY,
            f"the Service has {' and '.join(wanted)} addresses only, and the client Pod "
            f"{', '.join(sorted(_addresses(pod)))}",
            f"Pod {pod.key}",
            weight=CauseWeight.BLOCKS,
        )
    ]


def _find(
    inventory: Inventory, name: str, namespace: str, kinds: tuple[ClientKind, ...]
) -> Clients | NotFoundName:
    by_zone: dict[str, list[str]] = {}
    for node in inventory.nodes:
        by_zone.setdefault(node.zone, []).append(node.name)
    names = [node.name for node in inventory.nodes]
    missing: NotFoundName | None = None
    for kind in kinds:
        if kind is ClientKind.NODE and name in names:
            return Clients(kind, name, (name,))
        if kind is ClientKind.ZONE and name and name in by_zone:
            return Clients(kind, name, tuple(by_zone[name]))
        if kind is ClientKind.POD:
            found = find_pod(inventory, name, namespace)
            if isinstance(found, Pod):
                return Clients(kind, str(found.key), (found.spec.node_name,), found)
            missing = found
    places = [*names, *(zone for zone in by_zone if zone)]
    similar = tuple(get_close_matches(name, places, n=3, cutoff=0.5))
    what = "node, zone or Pod"
    if len(kinds) == 1:
        what = "Pod" if kinds[0] is ClientKind.POD else kinds[0].value
    if missing is not None:
        similar = (*similar, *missing.similar)[:3]
    return NotFoundName(name, what, similar)


def _addresses(pod: Pod) -> set[str]:
    texts = (pod.status.pod_ip, *(each.ip for each in pod.status.pod_ips))
    return {address for text in texts if text and (address := canonical(text))}


def _ready_states(pod: Pod, facts: ServiceFacts) -> list[bool]:
    """Return whether each endpoint with an address of the Pod is ready; [] without any."""
    addresses = _addresses(pod)
    return [
        endpoint.conditions.ready is not False
        for held in facts.slices
        for endpoint in held.endpoints
        if name_address(endpoint) in addresses
    ]


def _closer(
    pod: Pod, facts: ServiceFacts, unserved: list[str], clients: Clients
) -> Iterator[TrafficCause]:
    """Yield that the clients' nodes use other endpoints, in the words of their selection."""
    port = next(each for each in facts.groups[0].ports if each.title in unserved)
    others = [endpoint.address for endpoint in port.selection.internal.endpoints]
    if not others:
        # Then no Pod gets anything, which is a cause of its own.
        return
    reasons = [
        reason.message
        for reason in (*port.selection.internal_reasons, *port.selection.other_reasons)
    ]
    where = facts.cluster.nodes.get(pod.spec.node_name)
    zone = where.zone if where is not None else ""
    place = f" in {zone}" if zone else ""
    who = f"clients on {name_some(clients.nodes)}" if clients.nodes else "clients on these nodes"
    yield TrafficCause(
        TrafficCauseCode.CLOSER_ENDPOINTS,
        f"{who} do not use this Pod{place}: they use {name_some(others)} "
        f"({'; '.join(reasons) or 'by selection'})",
        f"Pod {pod.key}",
        weight=CauseWeight.BLOCKS,
    )
