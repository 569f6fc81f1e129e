"""The network of a cluster on one machine: nodes with pods and clients, and a host outside.

    underlay = Underlay()
    underlay.open()
    underlay.add_nodes(["n1", "n2"])
    (place,) = underlay.add_pods([("n1", "default/web")])

All of it is inside namespaces that this object holds, so that it is gone with the process. What
fails is taken back: a call either does all that it was asked for or nothing. Calls block and may
come from several threads.
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
from keepclose.system.namespaces import NetworkError, NetworkNamespace, make_namespace

Between = Callable[[str, str], float]


class NetworkPlace(NamedTuple):
    """Somebody with an address of each family: IPv4, then IPv6."""

    name: str
    namespace: NetworkNamespace
    addresses: tuple[str, ...]


class NodePlace(NamedTuple):
    """A node, and the client on it from which traffic is sent."""

    name: str
    namespace: NetworkNamespace
    addresses: NodeNumbering
    client: NetworkPlace


class _Pod(NamedTuple):
    node: NodePlace
    host: int
    place: NetworkPlace


class Underlay:
    """The whole network."""

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
        """Held by whoever shows the host outside another way for a while."""
        self.measuring = asyncio.Lock()
        """Held by whoever measures and wants no other measurement beside."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Make the wire and the host outside; raises NetworkError."""
        with self._lock, contextlib.ExitStack() as undoing:
            wanted = [("wire", WIRE_SETTINGS), ("outside", CALLER_SETTINGS)]
            wire, outside = _make(wanted, undoing)
            run_batch(wire, [*WIRE_LINES, *plug_lines("outside", outside, OUTSIDE_ADDRESSES[0])])
            run_batch(outside, outside_lines())
            self._wire, self.outside = wire, NetworkPlace("outside", outside, OUTSIDE_ADDRESSES)
            undoing.pop_all()

    def close(self) -> None:
        """Let go of everything; the kernel then takes it away."""
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
            inside = _make([(name, NODE_SETTINGS) for name in names], undoing)
            callers = _make([(f"{name}-client", CALLER_SETTINGS) for name in names], undoing)
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

    def add_pods(self, wanted: Sequence[tuple[str, str]]) -> list[NetworkPlace]:
        """Add pods to nodes, each with addresses of its own, and return their places in order.

        A pod that is already there stays as it is. Raises NetworkError.
        """
        with self._lock, contextlib.ExitStack() as undoing:
            nodes: dict[str, NodePlace] = {}
            for name, pod in wanted:
                there = self._pods[pod].node if pod in self._pods else nodes.get(pod)
                if there is None:
                    nodes[pod] = self._node(name)
                elif there.name != name:
                    raise NetworkError(f"pod {pod} is on node {there.name}, not on {name}")
            hosts = {pod: self._take_number(node, undoing) for pod, node in nodes.items()}
            made = _make([(pod, PLACE_SETTINGS) for pod in nodes], undoing)
            near: dict[NetworkNamespace, list[str]] = {}
            far = []
            added = {}
            for (pod, node), inside in zip(nodes.items(), made, strict=True):
                host, addresses = hosts[pod], node.addresses
                near.setdefault(node.namespace, []).extend(attach_lines(addresses, host, inside))
                far.append((inside, pod_lines(addresses, host)))
                place = NetworkPlace(pod, inside, addresses.pod_addresses(host))
                added[pod] = _Pod(node, host, place)
            run_batches(near.items())
            run_batches(far)
            undoing.pop_all()
            self._pods.update(added)
            return [self._pods[pod].place for _, pod in wanted]

    def remove_pods(self, pods: Sequence[str]) -> None:
        """Take pods away at once, also where somebody still has a socket inside.

        Unknown ones are fine.
        """
        with self._lock:
            gone = [one for pod in pods if (one := self._pods.pop(pod, None))]
            links: dict[NetworkNamespace, list[str]] = {}
            for one in gone:
                links.setdefault(one.node.namespace, []).append(pod_link(one.host))
            try_batches((inside, detach_lines(names)) for inside, names in links.items())
            for one in gone:
                one.place.namespace.close()
                self._numbers[one.node.name].give_back(one.host)

    def pod(self, pod_id: str) -> NetworkPlace | None:
        """Return where a pod is."""
        found = self._pods.get(pod_id)
        return found.place if found else None

    def cut(self, node: str) -> None:
        """Take a node's link to all others down; what is on the node still reaches each other."""
        with self._lock:
            run_batch(self._open_wire(), [f"link set {_port(self._node(node))} down"])

    def mend(self, node: str) -> None:
        """Take a node's link to all others up again."""
        with self._lock:
            run_batch(self._open_wire(), [f"link set {_port(self._node(node))} up"])

    def delay(self, milliseconds_between: Between) -> None:
        """Delay packets on their way from one node to another, also between nodes added later.

        The function gives the way in one direction. Raises NetworkError where the kernel cannot.
        """
        with self._lock:
            batches = []
            for node in self.nodes.values():
                others = [other for other in self.nodes.values() if other is not node]
                far = [(one.addresses, milliseconds_between(node.name, one.name)) for one in others]
                if lines := delay_lines(far):
                    batches.append((node.namespace, lines))
            if batches:
                check_delays()
            try_batches([(one, NO_DELAY_LINES) for one in self._delayed], tool="tc")
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
        undoing.callback(numbers.give_back, host)
        return host


def _make(
    wanted: Sequence[tuple[str, Mapping[str, int | str]]], undoing: contextlib.ExitStack
) -> list[NetworkNamespace]:
    def make(name: str, settings: Mapping[str, int | str]) -> NetworkNamespace:
        namespace = make_namespace(name, settings)
        undoing.callback(namespace.close)
        return namespace

    return do_at_once([functools.partial(make, *one) for one in wanted])


def _port(node: NodePlace) -> str:
    return f"node{node.addresses.number}"


def _routing(
    outside: NetworkPlace, *, old: Sequence[NodePlace], new: Sequence[NodePlace]
) -> Iterator[tuple[NetworkNamespace, list[str]]]:
    """Yield what each place must be told so that it finds the new nodes, and they all others."""
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
