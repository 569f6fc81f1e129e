"""Derives the settings of a table from the settings of the proxy and the addresses of its node.

As in kube-proxy, nodeport-addresses takes ranges and the words primary, localhost and all. Node
ports answer at those addresses of the host's interfaces that are in the ranges of the family. No
range of the family, or a range of all addresses, means every address. Node ports never answer at
loopback addresses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Final

from keepclose.model.addresses import IPV4, IPV6
from keepclose.model.gates import Gate
from keepclose.proxy.own_node import NodeAddresses
from keepclose.proxy.settings import (
    NODE_PORT_KEYWORDS,
    DetectLocalMode,
    ProxySettings,
    family_of_range,
)
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic, RulesetSettings

_RTM_GETADDR: Final = 22
_RTM_NEWADDR: Final = 20
_NLMSG_DONE: Final = 3
_NLMSG_ERROR: Final = 2
_NLM_F_REQUEST_DUMP: Final = 0x301
_IFA_ADDRESS: Final = 1
_IFA_LOCAL: Final = 2
_HEADER: Final = struct.Struct("=IHHII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ATTRIBUTE: Final = struct.Struct("=HH")


def layout_of(
    settings: ProxySettings,
    addresses: NodeAddresses,
    family: str,
    *,
    is_counting: bool,
    counts_chains: bool = True,
) -> RulesetSettings:
    """Return the settings of the table of a family on a node with these addresses.

    They do not include the ranges of cluster IPs, which come from ServiceCIDRs.
    """
    return RulesetSettings(
        family=family,
        table=settings.table,
        node_name=settings.node_name,
        node_ip=addresses.ips.get(family, ""),
        local_traffic=local_traffic_of(settings, addresses, family),
        masquerade_all=settings.masquerade_all,
        masquerade_bit=settings.masquerade_bit,
        nodeport_ips=node_port_ips(settings, addresses, family),
        count_by=CountBy.ZONE if is_counting else CountBy.NOTHING,
        count_chains=counts_chains,
        uses_external_ips=settings.gates.on(Gate.ALLOW_SERVICE_EXTERNAL_IPS),
        pooled=settings.pooled,
    )


def local_traffic_of(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> LocalTraffic:
    """Return how rules identify traffic of the node's pods; not at all if no range is known."""
    match settings.detect_local:
        case DetectLocalMode.NODE_CIDR:
            value = addresses.pod_cidrs.get(family, "")
            return LocalTraffic(DetectLocal.CIDR, value) if value else LocalTraffic()
        case DetectLocalMode.CLUSTER_CIDR:
            own = [cidr for cidr in settings.cluster_cidrs if family_of_range(cidr) == family]
            return LocalTraffic(DetectLocal.CIDR, own[0]) if own else LocalTraffic()
        case DetectLocalMode.BRIDGE_INTERFACE:
            return LocalTraffic(DetectLocal.INTERFACE, settings.pod_interface)
    return LocalTraffic(DetectLocal.INTERFACE_PREFIX, settings.pod_interface)


def node_port_ips(
    settings: ProxySettings, addresses: NodeAddresses, family: str
) -> tuple[str, ...] | None:
    """Return the addresses at which node ports answer now; None for all of the node's."""
    ranges = ranges_of(settings.node_port_addresses, addresses, family)
    if ranges is None:
        return None
    return addresses_within(ranges, read_interface_addresses(family))


def ranges_of(
    configured: Iterable[str], addresses: NodeAddresses, family: str
) -> tuple[str, ...] | None:
    """Return the ranges of the family at which node ports answer; None for all addresses."""
    texts: list[str] = []
    for text in configured:
        if text == "primary":
            texts += [
                f"{address}/{ip_address(address).max_prefixlen}"
                for address in addresses.ips.values()
                if not ip_address(address).is_loopback
            ]
        else:
            texts += NODE_PORT_KEYWORDS.get(text, (text,))
    ranges = [text for text in texts if family_of_range(text) == family]
    if not ranges or any(ip_network(text, strict=False).prefixlen == 0 for text in ranges):
        return None
    return tuple(ranges)


def addresses_within(ranges: Iterable[str], addresses: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that are in one of the ranges, sorted, without loopback addresses."""
    networks = [ip_network(text, strict=False) for text in ranges]
    candidates = {ip_address(text) for text in addresses}
    matching = [
        address
        for address in candidates
        if not address.is_loopback and any(address in network for network in networks)
    ]
    return tuple(str(address) for address in sorted(matching, key=int))


def read_interface_addresses(family: str) -> tuple[str, ...]:
    """Return the addresses of all interfaces in the thread's network namespace; none on failure."""
    number = {IPV4: socket.AF_INET, IPV6: socket.AF_INET6}[family]
    addresses: list[str] = []
    with suppress(OSError), _open() as netlink:
        body = _ADDRESS.pack(number, 0, 0, 0, 0)
        size = _HEADER.size + len(body)
        netlink.send(_HEADER.pack(size, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0) + body)
        while True:
            texts, is_last = _parse(netlink.recv(1 << 16), number)
            addresses += texts
            if is_last:
                break
    return tuple(addresses)


def _open() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    netlink.settimeout(2)
    netlink.bind((0, 0))
    return netlink


def _parse(data: bytes, number: int) -> tuple[list[str], bool]:
    """Return the addresses in one reply, and whether it was the last."""
    addresses: list[str] = []
    position = 0
    while position + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, position)
        if kind in (_NLMSG_DONE, _NLMSG_ERROR) or length < _HEADER.size:
            return addresses, True
        if kind == _RTM_NEWADDR:
            message = data[position + _HEADER.size : position + length]
            attributes = _attributes(message[_ADDRESS.size :])
            raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
            if raw:
                addresses.append(socket.inet_ntop(number, raw))
        position += (length + 3) & ~3
    return addresses, False


def _attributes(data: bytes) -> dict[int, bytes]:
    attributes: dict[int, bytes] = {}
    position = 0
    while position + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = data[position + _ATTRIBUTE.size : position + length]
        position += (length + 3) & ~3
    return attributes
