"""Which flow a connection belongs to, and which node counts it.

The kernels of two nodes see most connections: that of the client and that of the endpoint. Each
connection is counted once, by these rules, in this order:

1. A connection whose destination was translated to an endpoint of a Service is counted by the node
   that translated it. For cluster IPs that is the client's node, for node ports and addresses from
   outside the node that received the packet. Masquerading changes nothing: the original source is
   the client. A pod that reaches itself through its Service (hairpin) has one entry on one node.
2. A connection to a node port of another node is not counted here, because that node translates it.
3. Any other connection is counted by the node of its source, pod or node.
4. If its source is outside the cluster, it is counted by the node of its destination.
5. A source in the cluster's ranges that has no name has a node too: if the destination is here, the
   source is elsewhere and so is its count. If the destination is not here, the source must be.
6. A connection between two other machines that this node only forwards is counted if the
   destination is unknown, and otherwise not.

The kind is that of the destination. Packets of overlays between nodes are a kind of their own.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from keepclose.accounting.address_book import PROTOCOLS, AddressBook
from keepclose.accounting.flow_table import (
    HOST,
    NO_ZONE,
    OUTSIDE,
    UNKNOWN,
    FlowKey,
    FlowKind,
)
from keepclose.accounting.owner_history import Frontend, OwnerKind

TUNNEL_PORTS: Final = frozenset((4789, 6081, 8472, 51820, 51821, 51871))
"""VXLAN (two ports), Geneve, WireGuard (three ports), all UDP."""
_TUNNEL_PROTOCOLS: Final = frozenset((4, 41, 47, 50, 97))
"""IP in IP, IPv6 in IP, GRE, ESP, Ethernet in IP."""
_UDP: Final = 17


class Connection(NamedTuple):
    """A connection as the kernel of a node tracks it; ports are 0 for protocols without any."""

    protocol: int
    source: bytes
    source_port: int
    destination: bytes
    destination_port: int
    reply_source: bytes
    """The sender of replies: the endpoint."""
    reply_source_port: int
    at: float
    """When it began, or when it was first seen, in seconds of the Unix epoch."""

    @property
    def is_translated(self) -> bool:
        """Whether the node translated the destination."""
        return (
            self.reply_source != self.destination or self.reply_source_port != self.destination_port
        )


class NotCounted(Enum):
    """Why a connection has no flow."""

    ELSEWHERE = "another node counts it"
    WAIT = "an address has no owner yet"


class _Party(NamedTuple):
    """A side of a connection."""

    zone: str
    node: str = ""
    name: str = ""
    workload: str = ""
    kind: OwnerKind | None = None
    is_local: bool = False
    is_waiting: bool = False
    """Whether the API may still name the owner."""


def attribute(
    connection: Connection,
    book: AddressBook,
    *,
    node: str,
    may_wait: bool,
    has_all_names: bool = True,
) -> FlowKey | NotCounted:
    """Return the flow of a connection that this node's kernel tracks, with all detail.

    Return WAIT only if `may_wait`: when an address or a Service is not known (yet). Without
    `has_all_names` an address that has no owner in the book is unknown, and not outside.
    """
    at = connection.at
    client = _party(connection.source, book, at, node, has_all_names=has_all_names)
    server = _party(connection.reply_source, book, at, node, has_all_names=has_all_names)
    translated = connection.is_translated
    frontend = _frontend(connection, book, node)
    if translated and frontend is None and may_wait:
        return NotCounted.WAIT
    if _is_on_link(connection.destination) and not translated:
        if not has_all_names:
            if may_wait and client.is_waiting:
                return NotCounted.WAIT
            client = _without_guess(client)
        own = client.name or HOST
        return _key(connection, FlowKind.LOCAL, None, client=client, server=client, name=own)
    if may_wait and (client.is_waiting or server.is_waiting):
        return NotCounted.WAIT
    if _is_tunnel(connection, client, server):
        if not client.is_local:
            return NotCounted.ELSEWHERE
        return _key(connection, FlowKind.TUNNEL, None, client=client, server=server, name=HOST)
    if not translated and _is_node_port_elsewhere(connection, book, server):
        return NotCounted.ELSEWHERE
    counts_translated = translated and (
        frontend is not None or not (_is_in_cluster(client) or client.zone == UNKNOWN)
    )
    if not counts_translated and not _counts_plain(client, server):
        return NotCounted.ELSEWHERE
    if not has_all_names:
        client, server = _without_guess(client), _without_guess(server)
    kind = _kind(frontend, server, translated=translated)
    behind = None
    if kind is FlowKind.POD or server.kind is OwnerKind.NODE:
        behind = book.service_behind(
            connection.reply_source, connection.reply_source_port, connection.protocol, at
        )
    if kind is not FlowKind.SERVICE:
        frontend = behind
    elif not translated and server.kind is None:
        # The address of the Service itself: no endpoint answered for it.
        server = _Party(NO_ZONE)
    key = _key(connection, kind, frontend, client=client, server=server, name=_client_name(client))
    if behind is not None and behind.endpoint and not key.endpoint:
        # A pod in the host network: only its port tells it from others of the node.
        return key._replace(endpoint=behind.endpoint)
    return key


def _counts_plain(client: _Party, server: _Party) -> bool:
    if client.is_local:
        return True
    if _is_in_cluster(client):
        return False
    if server.is_local:
        return client.zone != UNKNOWN
    return client.zone == UNKNOWN or not _is_in_cluster(server)


def _frontend(connection: Connection, book: AddressBook, node: str) -> Frontend | None:
    frontend = book.frontend_of(
        connection.destination, connection.destination_port, connection.protocol, connection.at
    )
    if frontend is not None or not connection.is_translated:
        return frontend
    owner = book.owner_of(connection.destination, connection.at)
    is_own = owner is not None and owner.kind is OwnerKind.NODE and owner.node == node
    if is_own or _is_on_link(connection.destination):
        return book.node_port_of(connection.destination_port, connection.protocol, connection.at)
    return None


def _kind(frontend: Frontend | None, server: _Party, *, translated: bool) -> FlowKind:
    if frontend is not None:
        return FlowKind.SERVICE
    match server.kind:
        case OwnerKind.POD | OwnerKind.ENDPOINT | OwnerKind.POD_RANGE:
            return FlowKind.POD
        case OwnerKind.NODE:
            return FlowKind.NODE
        case OwnerKind.SUBNET:
            return FlowKind.EGRESS
        case _:
            pass
    if server.zone == OUTSIDE and not translated:
        return FlowKind.EGRESS
    return FlowKind.UNKNOWN


def _party(
    address: bytes, book: AddressBook, at: float, node: str, *, has_all_names: bool
) -> _Party:
    if _is_loopback(address):
        own = book.zone_of(node)
        waits = own == UNKNOWN and not has_all_names
        return _Party(own, node, "", "", OwnerKind.NODE, is_local=True, is_waiting=waits)
    owner = book.owner_of(address, at)
    if owner is None:
        if book.is_of_cluster(address):
            return _Party(UNKNOWN, is_waiting=not book.is_unowned(address, at))
        # NB: a cloud may give pods any private address, so only a public one is surely outside.
        return _Party(
            OUTSIDE, is_waiting=not _is_public(address) and not book.is_unowned(address, at)
        )
    is_local = owner.node == node and owner.kind is not OwnerKind.SUBNET
    # NB: interfaces have a node before its Node is listed, which has the zone.
    waits = (owner.kind is OwnerKind.POD_RANGE and is_local) or (
        owner.zone == UNKNOWN and not has_all_names
    )
    return _Party(owner.zone, owner.node, owner.name, owner.workload, owner.kind, is_local, waits)


def _without_guess(party: _Party) -> _Party:
    """Return a side whose owner is awaited with an unknown zone: it may be anywhere."""
    if party.is_waiting and party.kind is None:
        return party._replace(zone=UNKNOWN)
    return party


def _key(
    connection: Connection,
    kind: FlowKind,
    frontend: Frontend | None,
    *,
    client: _Party,
    server: _Party,
    name: str,
) -> FlowKey:
    return FlowKey(
        kind,
        frontend.service.namespace if frontend else "",
        frontend.service.name if frontend else "",
        frontend.port if frontend else "",
        PROTOCOLS.get(connection.protocol) or str(connection.protocol),
        client.zone,
        server.zone,
        client.node,
        server.node,
        name,
        server.name if server.kind in (OwnerKind.POD, OwnerKind.ENDPOINT) else "",
    )


def _client_name(client: _Party) -> str:
    match client.kind:
        case OwnerKind.POD | OwnerKind.ENDPOINT:
            return client.workload or client.name
        case OwnerKind.NODE | OwnerKind.POD_RANGE:
            return HOST
        case OwnerKind.SUBNET:
            return client.name
        case _:
            return client.zone


def _is_in_cluster(party: _Party) -> bool:
    """Whether a side has a node, whose agent can count it."""
    if party.kind is OwnerKind.ENDPOINT:
        # Such as those of default/kubernetes if the control plane has no Nodes.
        return bool(party.node or party.name)
    return party.kind is not None and party.kind is not OwnerKind.SUBNET


def _is_node_port_elsewhere(connection: Connection, book: AddressBook, server: _Party) -> bool:
    return (
        server.kind is OwnerKind.NODE
        and not server.is_local
        and book.node_port_of(connection.destination_port, connection.protocol, connection.at)
        is not None
    )


def _is_tunnel(connection: Connection, client: _Party, server: _Party) -> bool:
    if client.kind is not OwnerKind.NODE or server.kind is not OwnerKind.NODE:
        return False
    if connection.protocol in _TUNNEL_PROTOCOLS:
        return True
    return connection.protocol == _UDP and connection.destination_port in TUNNEL_PORTS


@lru_cache(maxsize=4096)
def _is_public(address: bytes) -> bool:
    return ip_address(address).is_global


@lru_cache(maxsize=4096)
def _is_loopback(address: bytes) -> bool:
    return ip_address(address).is_loopback


@lru_cache(maxsize=4096)
def _is_on_link(address: bytes) -> bool:
    parsed = ip_address(address)
    return (
        parsed.is_loopback
        or parsed.is_link_local
        or parsed.is_multicast
        or address == b"\xff\xff\xff\xff"
    )
