"""The lines of `ip` and `tc` that let nodes, pods and the host outside reach each other.

Nodes and the outside host share one bridge. Pods have routed links to their node, each with its own
address, so that replies always pass the node and its connection tracking. Nodes have a default
route, because a host's own packets to a Service are routed before they are translated. Neighbour
entries are permanent and never resolved: the kernel has one neighbour table for all namespaces,
which a few hundred pods would overflow.

Delays use the kernel's netem. Each node delays what leaves its link, by destination: another node
or its pods. Packets to other destinations, and within the node, are never delayed.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from keepclose.lab.network.addresses import (
    CLIENT,
    GATEWAY,
    LOAD_BALANCER_NETWORKS,
    NODE_PREFIX_LENGTHS,
    OUTSIDE_ADDRESSES,
    NodeNumbering,
    mac_address,
)
from keepclose.system.namespaces import (
    NetworkError,
    NetworkNamespace,
    create_network_namespace,
    search_path,
)

_T = TypeVar("_T")
# Addresses can be used at once, without duplicate address detection.
PLACE_SETTINGS: Final[Mapping[str, int | str]] = {
    "ipv6/conf/default/accept_dad": 0,
    "ipv6/conf/default/dad_transmits": 0,
    "ipv6/conf/all/accept_dad": 0,
    "ipv6/conf/default/accept_ra": 0,
}
# A client that connects often would run out of local ports.
CALLER_SETTINGS: Final[Mapping[str, int | str]] = {
    **PLACE_SETTINGS,
    "ipv4/ip_local_port_range": "10240 65535",
    "ipv4/tcp_tw_reuse": 1,
}
# Replies may come from an address without a route back. ICMP errors are not rate limited, because a
# late rejection looks like a dropped packet.
NODE_SETTINGS: Final[Mapping[str, int | str]] = {
    **PLACE_SETTINGS,
    "ipv4/ip_forward": 1,
    "ipv6/conf/all/forwarding": 1,
    "ipv6/conf/default/forwarding": 1,
    "ipv4/conf/all/rp_filter": 0,
    "ipv4/conf/default/rp_filter": 0,
    "ipv4/conf/all/send_redirects": 0,
    "ipv4/conf/default/send_redirects": 0,
    "ipv4/icmp_ratelimit": 0,
    # NB: without the mask a limit for all destinations together still holds.
    "ipv4/icmp_ratemask": 0,
    "ipv6/icmp/ratelimit": 0,
    "ipv6/icmp/ratemask": 255,
}
WIRE_SETTINGS: Final[Mapping[str, int | str]] = {
    "ipv6/conf/all/disable_ipv6": 1,
    "ipv6/conf/default/disable_ipv6": 1,
}
WIRE_LINES: Final = ("link add br0 type bridge mcast_snooping 0", "link set br0 up")
_AT_ONCE: Final = 4
# The group of links to delete: the kernel deletes a whole group as quickly as one link.
_DELETED_GROUP: Final = 7
NO_DELAY_LINES: Final = ("qdisc delete dev eth0 root",)
_MAX_DELAYS: Final = 15
_PROBES: Final = (
    ("qdisc add dev lo root netem delay 1ms", "netem (sch_netem)"),
    ("qdisc replace dev lo root handle 1: prio", "prio (sch_prio)"),
    ("filter add dev lo parent 1: protocol ip u32 match u32 0 0 flowid 1:1", "u32 (cls_u32)"),
)


def run_batch(namespace: NetworkNamespace, lines: Sequence[str], *, tool: str = "ip") -> None:
    """Run lines of `ip` or `tc` in a namespace with one process, up to the first that fails.

    Raises NetworkError with that line.
    """
    try:
        namespace.run(tool, "-batch", "-", text="\n".join(lines) + "\n")
    except NetworkError as error:
        text = str(error)
        if match := re.search(r"Command failed -:(\d+)", text):
            # The reason is the rest of the line before; the message of `run` begins with the tool.
            before = text[: match.start()].rstrip()
            reason = before[before.rfind("\n") + 1 :].removeprefix(f"{tool}: ")
            text = f"{tool} {lines[int(match[1]) - 1]}: {reason}"
        raise NetworkError(f"{namespace.name}: {text}") from None


def run_batches(
    batches: Iterable[tuple[NetworkNamespace, Sequence[str]]], *, tool: str = "ip"
) -> None:
    """Run lines in several namespaces at once; raises NetworkError with the first that failed."""
    do_at_once([functools.partial(run_batch, where, lines, tool=tool) for where, lines in batches])


def try_batches(
    batches: Iterable[tuple[NetworkNamespace, Sequence[str]]], *, tool: str = "ip"
) -> None:
    """Run lines that delete something, ignoring the ones that fail because it is gone."""

    def run(where: NetworkNamespace, lines: Sequence[str]) -> None:
        with contextlib.suppress(NetworkError):
            where.run(tool, "-force", "-batch", "-", text="\n".join(lines) + "\n")

    do_at_once([functools.partial(run, where, lines) for where, lines in batches])


def do_at_once(works: Sequence[Callable[[], _T]]) -> list[_T]:
    """Run functions in parallel and return their results in order.

    All of them have ended when this returns or raises what the first failed one raised.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(work) for work in works]
    return [future.result() for future in futures]


def plug_lines(link: str, namespace: NetworkNamespace, address: str) -> list[str]:
    """Return the lines that connect a namespace with this address to the bridge."""
    mac = mac_address(address)
    return [
        f"link add {link} type veth peer name eth0 address {mac} netns {namespace.path}",
        f"link set {link} master br0 up",
    ]


def outside_lines() -> list[str]:
    """Return the lines for the addresses of the outside host."""
    return _address_lines(OUTSIDE_ADDRESSES, NODE_PREFIX_LENGTHS)


def node_lines(node: NodeNumbering) -> list[str]:
    """Return the lines for the addresses and default routes of a node."""
    address, address6 = OUTSIDE_ADDRESSES
    lines = _address_lines((node.address, node.address6), NODE_PREFIX_LENGTHS)
    lines += _neighbour_lines(OUTSIDE_ADDRESSES, mac_address(address), "eth0")
    lines += [f"route add default via {address}", f"route add default via {address6}"]
    gateway, gateway6 = node.pod_addresses(GATEWAY)
    lines += [f"address add {gateway}/32 dev lo", f"address add {gateway6}/128 dev lo nodad"]
    return lines


def route_lines(nodes: Iterable[NodeNumbering]) -> list[str]:
    """Return the lines for the routes of a host on the bridge to nodes and their pods."""
    lines = []
    for node in nodes:
        addresses = (node.address, node.address6)
        lines += _neighbour_lines(addresses, mac_address(node.address), "eth0")
        lines.append(f"route replace {node.pod_cidr} via {node.address}")
        lines.append(f"route replace {node.pod_cidr6} via {node.address6}")
    return lines


def load_balancer_lines(node: NodeNumbering) -> list[str]:
    """Return the lines for the routes of the outside host to load balancer addresses."""
    network, network6 = LOAD_BALANCER_NETWORKS
    return [
        f"route replace {network} via {node.address}",
        f"route replace {network6} via {node.address6}",
    ]


def pod_link(host: int) -> str:
    """Return the name of a node's link to a pod, by the number of the pod's address."""
    return "client" if host == CLIENT else f"pod{host}"


def attach_lines(node: NodeNumbering, host: int, namespace: NetworkNamespace) -> list[str]:
    """Return the lines for a node's link to a pod."""
    link = pod_link(host)
    addresses = node.pod_addresses(host)
    near, far = mac_address(node.pod_addresses(GATEWAY)[0]), mac_address(addresses[0])
    far_end = f"name eth0 address {far}"
    return [
        f"link add {link} address {near} type veth peer {far_end} netns {namespace.path}",
        f"link set {link} up",
        f"route replace {addresses[0]}/32 dev {link}",
        f"route replace {addresses[1]}/128 dev {link}",
        *_neighbour_lines(addresses, far, link),
    ]


def pod_lines(node: NodeNumbering, host: int) -> list[str]:
    """Return the lines for the addresses and default routes of a pod."""
    gateways = node.pod_addresses(GATEWAY)
    return [
        *_address_lines(node.pod_addresses(host), (32, 128)),
        *_neighbour_lines(gateways, mac_address(gateways[0]), "eth0"),
        *(f"route add default via {gateway} dev eth0 onlink" for gateway in gateways),
    ]


def detach_lines(links: Sequence[str]) -> list[str]:
    """Return the lines that delete links, all at once."""
    marks = [f"link set {link} group {_DELETED_GROUP}" for link in links]
    return [*marks, f"link delete group {_DELETED_GROUP}"]


def delay_lines(delays: Iterable[tuple[NodeNumbering, float]]) -> list[str]:
    """Return the lines of `tc` that delay a node's packets to other nodes, in milliseconds.

    There are none if no delay is positive. Raises NetworkError with too many different delays: a
    prio qdisc has sixteen bands, and one of them is for packets without a delay.
    """
    groups: dict[str, list[NodeNumbering]] = {}
    for node, milliseconds in delays:
        if milliseconds > 0:
            groups.setdefault(f"{milliseconds:.3f}ms", []).append(node)
    if not groups:
        return []
    if len(groups) > _MAX_DELAYS:
        raise NetworkError(f"{len(groups)} different delays from one node, {_MAX_DELAYS} at most")
    bands = len(groups) + 1
    # NB: a prio qdisc needs at least two bands and a map for all sixteen priorities.
    lines = [f"qdisc add dev eth0 root handle 1: prio bands {bands} priomap{' 0' * 16}"]
    for band, (delay, nodes) in enumerate(groups.items(), 2):
        flow = f"1:{band:x}"
        lines.append(f"qdisc add dev eth0 parent {flow} netem limit 100000 delay {delay}")
        for node in nodes:
            addresses = (f"{node.address}/32", f"{node.address6}/128")
            for network in (*addresses, node.pod_cidr, node.pod_cidr6):
                match = "ipv6 prio 2 u32 match ip6" if ":" in network else "ip prio 1 u32 match ip"
                lines.append(
                    f"filter add dev eth0 parent 1: protocol {match} dst {network} flowid {flow}"
                )
    return lines


def check_delays() -> None:
    """Try out delays in a temporary namespace; raises NetworkError if the kernel has none."""
    if shutil.which("tc", path=search_path()) is None:
        raise NetworkError("tc is not installed (package iproute2)")
    trial = create_network_namespace("trial")
    try:
        for line, kind in _PROBES:
            try:
                run_batch(trial, [line], tool="tc")
            except NetworkError as error:
                text = str(error)
                if "unknown" in text or "No such file" in text:
                    raise NetworkError(f"this kernel has no {kind}") from None
                raise
    finally:
        trial.close()


def _address_lines(addresses: Sequence[str], lengths: Sequence[int]) -> list[str]:
    return [
        f"address add {addresses[0]}/{lengths[0]} dev eth0",
        f"address add {addresses[1]}/{lengths[1]} dev eth0 nodad",
        "link set eth0 up",
    ]


def _neighbour_lines(addresses: Sequence[str], mac: str, link: str) -> list[str]:
    return [f"neighbour replace {address} lladdr {mac} dev {link}" for address in addresses]
