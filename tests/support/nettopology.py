"""A cluster's network in namespaces: zones with nodes, pods on the nodes, and a host outside.

    with topology_or_skip() as bed:
        bed.node("n1").pods[0].namespace.run("ip", "route")

Nodes and the outside host meet on one bridge. Pods hang on routed links, each with an address of
its own, so that answers always come back through their node and its connection tracking. Nodes have
a default route: a host's own packets to a Service are routed before they are translated. Refusals
are not limited in number, since a slow refusal looks like silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from keepclose.lab.network.links import NODE_SETTINGS, PLACE_SETTINGS
from support.netns import (
    Namespace,
    NamespacesUnavailableError,
    ip_batch,
    ip_batches,
    namespaces,
)

POD_NETWORK: Final = "10.244.0.0/16"
POD_NETWORK6: Final = "fd00:244::/32"
SERVICE_NETWORK: Final = "10.96.0.0/16"
SERVICE_NETWORK6: Final = "fd00:96::/108"
_OUTSIDE: Final = 200
_FIRST_POD: Final = 11


class NodePlan(NamedTuple):
    """A node to make."""

    name: str
    zone: str
    pods: int = 2


THREE_ZONES: Final = tuple(NodePlan(f"n{i + 1}", f"zone-{'abc'[i // 2]}") for i in range(6))


class Place(NamedTuple):
    """Somebody with an address of each family."""

    name: str
    namespace: Namespace
    address: str
    address6: str


class BedNode(NamedTuple):
    """A node with its pods."""

    name: str
    zone: str
    namespace: Namespace
    address: str
    address6: str
    pod_cidr: str
    pod_cidr6: str
    pods: tuple[Place, ...]


class Bed(NamedTuple):
    """The whole network."""

    nodes: tuple[BedNode, ...]
    outside: Place

    @property
    def pods(self) -> tuple[Place, ...]:
        """All pods, node by node."""
        return tuple(pod for node in self.nodes for pod in node.pods)

    def node(self, name: str) -> BedNode:
        """Return a node by its name."""
        return next(node for node in self.nodes if node.name == name)

    def route_via(self, network: str, node: BedNode) -> None:
        """Let the outside host send packets for a network to a node."""
        gateway = node.address6 if ":" in network else node.address
        ip_batch([f"route replace {network} via {gateway}"], self.outside.namespace)


@contextlib.contextmanager
def topology(plan: Sequence[NodePlan] = THREE_ZONES) -> Iterator[Bed]:
    """Make the network for the block; raises NamespacesUnavailableError."""
    pods = [f"{node.name}-p{i + 1}" for node in plan for i in range(node.pods)]
    with namespaces("wire", "outside", *(node.name for node in plan), *pods) as made:
        wire, outside_namespace, *rest = made
        node_namespaces, pod_namespaces = rest[: len(plan)], iter(rest[len(plan) :])
        nodes = []
        for number, (node, inside) in enumerate(zip(plan, node_namespaces, strict=True), 1):
            places = tuple(
                Place(
                    f"{node.name}-p{i + 1}",
                    next(pod_namespaces),
                    f"10.244.{number}.{_FIRST_POD + i}",
                    f"fd00:244:{number}::{_FIRST_POD + i}",
                )
                for i in range(node.pods)
            )
            nodes.append(
                BedNode(
                    node.name,
                    node.zone,
                    inside,
                    f"192.168.100.{number}",
                    f"fd00:192::{number}",
                    f"10.244.{number}.0/24",
                    f"fd00:244:{number}::/64",
                    places,
                )
            )
        outside = Place(
            "outside", outside_namespace, f"192.168.100.{_OUTSIDE}", f"fd00:192::{_OUTSIDE}"
        )
        bed = Bed(tuple(nodes), outside)
        _connect(bed, wire)
        yield bed


@contextlib.contextmanager
def topology_or_skip(plan: Sequence[NodePlan] = THREE_ZONES) -> Iterator[Bed]:
    """Make the network for the block of a test, or skip the test with the reason."""
    import pytest  # noqa: PLC0415 - only tests have it

    with contextlib.ExitStack() as stack:
        try:
            bed = stack.enter_context(topology(plan))
        except NamespacesUnavailableError as error:
            pytest.skip(str(error))
        yield bed


def _connect(bed: Bed, wire: Namespace) -> None:
    for node in bed.nodes:
        node.namespace.set_values(NODE_SETTINGS)
    for place in (bed.outside, *bed.pods):
        place.namespace.set_values(PLACE_SETTINGS)
    members = [*((node.name, node.namespace) for node in bed.nodes)]
    members.append(("outside", bed.outside.namespace))
    lines = ["link add br0 type bridge", "link set br0 up"]
    for name, namespace in members:
        lines += [
            f"link add {name} type veth peer name eth0 netns {namespace.name}",
            f"link set {name} master br0 up",
        ]
    ip_batch(lines, wire)
    ip_batches(
        {
            **{node.namespace: _node_lines(bed, node) for node in bed.nodes},
            bed.outside.namespace: _outside_lines(bed),
        }
    )
    ip_batches({pod.namespace: _pod_lines(node, pod) for node in bed.nodes for pod in node.pods})


def _node_lines(bed: Bed, node: BedNode) -> list[str]:
    lines = [
        f"address add {node.address}/24 dev eth0",
        f"address add {node.address6}/64 dev eth0 nodad",
        "link set eth0 up",
        f"route add default via {bed.outside.address}",
        f"route add default via {bed.outside.address6}",
    ]
    for other in bed.nodes:
        if other is not node:
            lines.append(f"route add {other.pod_cidr} via {other.address}")
            lines.append(f"route add {other.pod_cidr6} via {other.address6}")
    for number, pod in enumerate(node.pods, 1):
        link = f"pod{number}"
        lines += [
            f"link add {link} type veth peer name eth0 netns {pod.namespace.name}",
            f"address add {_gateway(node.pod_cidr)}/32 dev {link}",
            f"address add {_gateway(node.pod_cidr6)}/128 dev {link} nodad",
            f"link set {link} up",
            f"route add {pod.address}/32 dev {link}",
            f"route add {pod.address6}/128 dev {link}",
        ]
    return lines


def _pod_lines(node: BedNode, pod: Place) -> list[str]:
    return [
        f"address add {pod.address}/32 dev eth0",
        f"address add {pod.address6}/128 dev eth0 nodad",
        "link set eth0 up",
        f"route add {_gateway(node.pod_cidr)}/32 dev eth0",
        f"route add {_gateway(node.pod_cidr6)}/128 dev eth0",
        f"route add default via {_gateway(node.pod_cidr)}",
        f"route add default via {_gateway(node.pod_cidr6)}",
    ]


def _outside_lines(bed: Bed) -> list[str]:
    lines = [
        f"address add {bed.outside.address}/24 dev eth0",
        f"address add {bed.outside.address6}/64 dev eth0 nodad",
        "link set eth0 up",
    ]
    for node in bed.nodes:
        lines.append(f"route add {node.pod_cidr} via {node.address}")
        lines.append(f"route add {node.pod_cidr6} via {node.address6}")
    return lines


def _gateway(cidr: str) -> str:
    """Return the first address of a pod network."""
    network = cidr.partition("/")[0]
    return f"{network}1" if ":" in network else f"{network.removesuffix('0')}1"
