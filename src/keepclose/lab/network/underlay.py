"""The network of a cluster on one machine: nodes with pods and clients, and a host outside.

    underlay = Underlay()
    underlay.open()
    underlay.add_nodes(["n1", "n2"])
    (place,) = underlay.add_pods([("n1", "default/web")])

The object holds all namespaces, so the network is gone with the process. A call that fails rolls
back: it does all that was requested or nothing. Calls block and may come from several threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from keepclose.lab.network.addresses import (
    CLIENT,
    OUTSIDE_ADDRESSES,
    NodeNumbering,
    PodNumbers,
    node_addresses,
)
from keepclose.lab.network.links import (
    CALLER_SETTINGS,
    NO_DELAY_LINES,
    NODE_SETTINGS,
    PLACE_SETTINGS,
    WIRE_LINES,
    WIRE_SETTINGS,
    attach_lines,
    check_delays,
    delay_lines,
    detach_lines,
    do_at_once,
    load_balancer_lines,
    node_lines,
    outside_lines,
    plug_lines,
    pod_lines,
    pod_link,
    route_lines,
    run_batch,
    run_batches,
    try_batches,
)
from keepclose.system.namespaces import NetworkError, NetworkNamespace, create_network_namespace

Between = Callable[[str, str], float]


class NetworkPlace(NamedTuple):
    """A namespace with an address of each family: IPv4, then IPv6."""

    name: str
    namespace: NetworkNamespace
    addresses: tuple[str, ...]


class NodePlace(NamedTuple):
    """A node, and the client on it that sends traffic."""

    name: str
    namespace: NetworkNamespace
    addresses: NodeNumbering
    client: NetworkPlace


class _Pod(NamedTuple):
    node: NodePlace
    host: int
    place: NetworkPlace


class Underlay:
    """The network of the lab: a bridge with nodes, pods behind them, and a host outside."""

    outside: NetworkPlace

    def __init__(self) -> None:
        self.nodes: dict[str, NodePlace] = {}
        self._pods: dict[str, _Pod] = {}
        self._numbers: dict[str, PodNumbers] = {}
        self._wire: NetworkNamespace | None = None
        self._between: Between | None = None
        self._delayed: list[NetworkNamespace] = []
        self._lock = threading.RLock()
        self.routing = asyncio.Lock()
        """Held while the host outside has changed routes."""
        self.measuring = asyncio.Lock()
        """Held during a measurement that no other may disturb."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Create the bridge and the host outside; raises NetworkError."""
        with self._lock, contextlib.ExitStack() as undoing:
            requested = [("wire", WIRE_SETTINGS), ("outside", CALLER_SETTINGS)]
            wire, outside = _create(requested, undoing)
            run_batch(wire, [*WIRE_LINES, *plug_lines("outside", outside, OUTSIDE_ADDRESSES[0])])
            run_batch(outside, outside_lines())
            self._wire, self.outside = wire, NetworkPlace("outside", outside, OUTSIDE_ADDRESSES)
            undoing.pop_all()

    def close(self) -> None:
        """Release all namespaces; the kernel then deletes them."""
        with self._lock:
            for pod in self._pods.values():
                pod.place.namespace.close()
            for node in self.nodes.values():
                node.client.namespace.close()
                node.namespace.close()
            if self._wire is not None:
                self.outside.namespace.close()
                self._wire.close()
            self._wire = None
            self._pods.clear()
            self.nodes.clear()
            self._numbers.clear()
            self._delayed.clear()
            self._between = None

    def add_nodes(self, names: Sequence[str]) -> None:
        """Add nodes that reach all others and are reached by them; raises NetworkError."""
        with self._lock, contextlib.ExitStack() as undoing:
            wire = self._open_wire()
            for place, name in enumerate(names):
                if name in self.nodes or name in names[:place]:
                    raise NetworkError(f"node {name} is there already")
            numbers = range(len(self.nodes) + 1, len(self.nodes) + 1 + len(names))
            addresses = [node_addresses(number) for number in numbers]
            inside = _create([(name, NODE_SETTINGS) for name in names], undoing)
            callers = _create([(f"{name}-client", CALLER_SETTINGS) for name in names], undoing)
            old = list(self.nodes.values())
            new = [
                NodePlace(
                    name, own, mine, NetworkPlace(call.name, call, mine.pod_addresses(CLIENT))
                )
                for name, own, mine, call in zip(names, inside, addresses, callers, strict=True)
            ]
            ports = [_port(node) for node in new]
            undoing.callback(try_batches, [(wire, detach_lines(ports))])
            plugs = [plug_lines(_port(n), n.namespace, n.addresses.address) for n in new]
            run_batch(wire, [line for lines in plugs for line in lines])
            run_batches(_routing(self.outside, old=old, new=new))
            run_batches((n.client.namespace, pod_lines(n.addresses, CLIENT)) for n in new)
            undoing.pop_all()
            self.nodes.update((node.name, node) for node in new)
            self._numbers.update((name, PodNumbers()) for name in names)
            if self._between is not None:
                self.delay(self._between)

    def add_pods(self, requested: Sequence[tuple[str, str]]) -> list[NetworkPlace]:
        """Add pods to nodes, each with addresses of its own, and return their places in order.

        A pod that is already there stays as it is. Raises NetworkError.
        """
        with self._lock, contextlib.ExitStack() as undoing:
            nodes: dict[str, NodePlace] = {}
            for name, pod in requested:
                there = self._pods[pod].node if pod in self._pods else nodes.get(pod)
                if there is None:
                    nodes[pod] = self._node(name)
                elif there.name != name:
                    raise NetworkError(f"pod {pod} is on node {there.name}, not on {name}")
            hosts = {pod: self._take_number(node, undoing) for pod, node in nodes.items()}
            created = _create([(pod, PLACE_SETTINGS) for pod in nodes], undoing)
            near: dict[NetworkNamespace, list[str]] = {}
            far = []
            added = {}
            for (pod, node), inside in zip(nodes.items(), created, strict=True):
                host, addresses = hosts[pod], node.addresses
                near.setdefault(node.namespace, []).extend(attach_lines(addresses, host, inside))
                far.append((inside, pod_lines(addresses, host)))
                place = NetworkPlace(pod, inside, addresses.pod_addresses(host))
                added[pod] = _Pod(node, host, place)
            run_batches(near.items())
            run_batches(far)
            undoing.pop_all()
            self._pods.update(added)
            return [self._pods[pod].place for _, pod in requested]

    def remove_pods(self, pods: Sequence[str]) -> None:
        """Remove pods at once, also if sockets inside are still open; ignores unknown pods."""
        with self._lock:
            gone = [pod for name in pods if (pod := self._pods.pop(name, None))]
            links: dict[NetworkNamespace, list[str]] = {}
            for pod in gone:
                links.setdefault(pod.node.namespace, []).append(pod_link(pod.host))
            try_batches((inside, detach_lines(names)) for inside, names in links.items())
            for pod in gone:
                pod.place.namespace.close()
                self._numbers[pod.node.name].release(pod.host)

    def pod(self, pod_id: str) -> NetworkPlace | None:
        """Return the namespace and addresses of a pod."""
        pod = self._pods.get(pod_id)
        return pod.place if pod else None

    def cut(self, node: str) -> None:
        """Take a node's link to all others down; pods on the node still reach each other."""
        with self._lock:
            run_batch(self._open_wire(), [f"link set {_port(self._node(node))} down"])

    def restore(self, node: str) -> None:
        """Take a node's link to all others up again."""
        with self._lock:
            run_batch(self._open_wire(), [f"link set {_port(self._node(node))} up"])

    def delay(self, milliseconds_between: Between) -> None:
        """Delay packets from one node to another, also between nodes that are added later.

        The function gives the delay in one direction. Raises NetworkError if the kernel has none.
        """
        with self._lock:
            batches = []
            for node in self.nodes.values():
                others = [other for other in self.nodes.values() if other is not node]
                far = [
                    (other.addresses, milliseconds_between(node.name, other.name))
                    for other in others
                ]
                if lines := delay_lines(far):
                    batches.append((node.namespace, lines))
            if batches:
                check_delays()
            try_batches([(inside, NO_DELAY_LINES) for inside in self._delayed], tool="tc")
            self._delayed = [inside for inside, _ in batches]
            run_batches(batches, tool="tc")
            self._between = milliseconds_between

    def _open_wire(self) -> NetworkNamespace:
        if self._wire is None:
            raise NetworkError("the network is not open")
        return self._wire

    def _node(self, name: str) -> NodePlace:
        if name not in self.nodes:
            raise NetworkError(f"there is no node {name}")
        return self.nodes[name]

    def _take_number(self, node: NodePlace, undoing: contextlib.ExitStack) -> int:
        numbers = self._numbers[node.name]
        try:
            host = numbers.take()
        except NetworkError as error:
            raise NetworkError(f"node {node.name} takes no more pods: {error}") from None
        undoing.callback(numbers.release, host)
        return host


def _create(
    requested: Sequence[tuple[str, Mapping[str, int | str]]], undoing: contextlib.ExitStack
) -> list[NetworkNamespace]:
    def create(name: str, settings: Mapping[str, int | str]) -> NetworkNamespace:
        namespace = create_network_namespace(name, settings)
        undoing.callback(namespace.close)
        return namespace

    return do_at_once([functools.partial(create, *arguments) for arguments in requested])


def _port(node: NodePlace) -> str:
    return f"node{node.addresses.number}"


def _routing(
    outside: NetworkPlace, *, old: Sequence[NodePlace], new: Sequence[NodePlace]
) -> Iterator[tuple[NetworkNamespace, list[str]]]:
    """Yield the lines of each namespace that connect the new nodes with all others."""
    added = [node.addresses for node in new]
    for node in new:
        mine = node.addresses
        others = [other.addresses for other in (*old, *new) if other is not node]
        lines = [*node_lines(mine), *route_lines(others)]
        yield node.namespace, [*lines, *attach_lines(mine, CLIENT, node.client.namespace)]
    for node in old:
        yield node.namespace, route_lines(added)
    balanced = load_balancer_lines(added[0]) if added and not old else []
    yield outside.namespace, [*route_lines(added), *balanced]


__all__ = ["NetworkPlace", "NodePlace", "Underlay"]
