"""A cluster of three zones as an address book, and connections as its nodes' kernels see them.

A packet of a client passes up to two nodes that track it. `entries_of` states, in plain terms of
translation and masquerading, what each of them has in its table.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from keepclose.accounting.address_book import AddressBook, pack_address
from keepclose.accounting.attribution import Connection
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Node, NodeAddress, NodeSpec
from support import builders

ZONES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
NODE_ADDRESSES = {"n1": "192.0.2.1", "n2": "192.0.2.2", "n3": "192.0.2.3"}
POD_ADDRESSES = {
    "p1": "10.0.1.10",
    "q1": "10.0.1.11",
    "p2": "10.0.2.10",
    "q2": "10.0.2.11",
    "p3": "10.0.3.10",
}
POD_NODES = {"p1": "n1", "q1": "n1", "p2": "n2", "q2": "n2", "p3": "n3"}
OUTSIDE_ADDRESS = "203.0.113.7"
CLUSTER_IP = "10.96.0.10"
NODE_PORT = 30080


def address(text: str) -> bytes:
    """Return an address as the kernel has it."""
    raw = pack_address(text)
    assert raw is not None
    return raw


def node_of(name: str) -> Node:
    """Return a node with an address and a pod range."""
    node = builders.node(name, ZONES[name])
    return replace(
        node,
        spec=NodeSpec(pod_cidrs=(f"10.0.{name[1:]}.0/24",)),
        status=replace(node.status, addresses=(NodeAddress("InternalIP", NODE_ADDRESSES[name]),)),
    )


def web_service() -> Service:
    """Return a Service of type NodePort."""
    port = ServicePort(name="http", protocol="TCP", port=80, target_port=8080, node_port=NODE_PORT)
    return builders.service(type="NodePort", ports=(port,))


def cluster_book(*, at: float = 0.0, pods_of: str | None = None) -> AddressBook:
    """Return the book of an agent; with `pods_of` it watches only the pods of that node."""
    book = AddressBook(cluster_ranges=("10.0.0.0/16", "10.96.0.0/16"))
    for name in ZONES:
        book.set_node(node_of(name), at=at)
    for name, ip in POD_ADDRESSES.items():
        if pods_of in (None, POD_NODES[name]):
            book.set_pod(builders.pod(name, POD_NODES[name], ip=ip), at=at)
    book.set_service(web_service(), at=at)
    endpoints = [
        builders.endpoint(
            POD_ADDRESSES[name],
            zone=ZONES[POD_NODES[name]],
            node_name=POD_NODES[name],
            pod_name=name,
        )
        for name in ("p1", "p2", "p3")
    ]
    book.set_slice(builders.endpoint_slice(*endpoints), at=at)
    return book


def connection(
    source: str,
    destination: str,
    port: int = 80,
    *,
    reply: tuple[str, int] | None = None,
    protocol: int = 6,
    at: float = 1.0,
) -> Connection:
    """Return a connection; `reply` is the endpoint that it was translated to."""
    reply_source, reply_port = reply or (destination, port)
    return Connection(
        protocol,
        address(source),
        40000,
        address(destination),
        port,
        address(reply_source),
        reply_port,
        at,
    )


class Trip(NamedTuple):
    """A connection of a client, by what it calls."""

    client: str
    """A pod, a node, or "outside"."""
    target: str
    """"service", a node whose node port is called, or a pod that is called directly."""
    endpoint: str
    """The pod that serves it."""
    is_masqueraded: bool = False


def entries_of(trip: Trip) -> dict[str, Connection]:
    """Return what the nodes on the way track, by node."""
    source = (POD_ADDRESSES | NODE_ADDRESSES | {"outside": OUTSIDE_ADDRESS})[trip.client]
    client_node = POD_NODES.get(trip.client, trip.client if trip.client in ZONES else "")
    endpoint_node = POD_NODES[trip.endpoint]
    served_by = (POD_ADDRESSES[trip.endpoint], 8080)
    entries: dict[str, Connection] = {}
    if trip.target == "service":
        translator = client_node
        entries[client_node] = connection(source, CLUSTER_IP, 80, reply=served_by)
    elif trip.target in ZONES:
        translator = trip.target
        called = NODE_ADDRESSES[trip.target]
        if client_node and client_node != translator:
            entries[client_node] = connection(source, called, NODE_PORT)
        seen = NODE_ADDRESSES[client_node] if client_node and trip.is_masqueraded else source
        entries[translator] = connection(seen, called, NODE_PORT, reply=served_by)
    else:
        translator = client_node
        if client_node:
            entries[client_node] = connection(source, *served_by)
    if endpoint_node not in entries:
        seen = NODE_ADDRESSES[translator] if translator and trip.is_masqueraded else source
        entries[endpoint_node] = connection(seen, *served_by)
    return entries
