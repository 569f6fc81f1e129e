"""How a proxy runs: for which node, how often it writes, and how it tells local traffic.

Names and defaults are those of kube-proxy's nftables mode, but one: local traffic is told by the
pod ranges of the node, because the range of the whole cluster takes pods of other nodes for local
ones, and then answers to them get lost on the way back.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_network
from typing import Final

import msgspec

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.gates import FeatureGates

PROXY_COMPONENT: Final = "keepclose-proxy"
_TABLE: Final = "kube-proxy"
PROXY_FAMILIES: Final = (IPV4, IPV6)
NODE_PORT_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "primary": (),
    "localhost": ("127.0.0.0/8", "::1/128"),
    "all": ("0.0.0.0/0", "::/0"),
}


class DetectLocalMode(StrEnum):
    """By what traffic of the node's own pods is known."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class ProxySettings(msgspec.Struct, frozen=True):
    """Everything a proxy can be told; times are seconds."""

    node_name: str
    gates: FeatureGates = FeatureGates()
    families: tuple[str, ...] = PROXY_FAMILIES
    table: str = _TABLE
    min_sync_s: float = 1.0
    """The least time between the end of one sync and the start of the next."""
    sync_s: float = 30.0
    """The longest wait after a failed sync, and between two looks whether the table is there."""
    full_sync_s: float = 3600.0
    """How long a proxy trusts that nobody else changed its table."""
    later_s: float = 1.0
    """How long chains that nothing leads to any more stay before they are deleted."""
    detect_local: DetectLocalMode = DetectLocalMode.NODE_CIDR
    cluster_cidrs: tuple[str, ...] = ()
    pod_interface: str = ""
    """The name of the pods' bridge, or what the names of their interfaces begin with."""
    masquerade_all: bool = False
    masquerade_bit: int = 14
    node_port_addresses: tuple[str, ...] = ("primary",)
    bind_address: str = ""
    counts_connections: bool = True
    most_chains_counted: int = 200
    """Up to how many service ports that need chains of their own: those with node ports, external
    or load balancer IPs, affinity or weights. Counted, each of their endpoints needs a chain."""
    pooled: bool = True
    """Whether endpoints of plain ports share maps, whose changes cost the same in a large table."""
    acknowledges: bool = True
    acknowledge_every_s: float = 5.0
    node_wait_s: float = 30.0
    """How long a start waits for the Node and its addresses."""


def proxy_settings_errors(settings: ProxySettings) -> list[str]:
    """Return what cannot be followed, named by the option that sets it; empty when all is well."""
    flaws: list[str] = []
    if not settings.node_name:
        flaws.append("node-name must name the Node that this machine is")
    if not 0 <= settings.masquerade_bit <= 31:
        flaws.append(f"masquerade-bit must be from 0 to 31, but got {settings.masquerade_bit}")
    if settings.min_sync_s < 0:
        flaws.append("min-sync-period must not be negative")
    if settings.sync_s <= 0 or settings.sync_s < settings.min_sync_s:
        flaws.append("sync-period must be more than 0 and no less than min-sync-period")
    if not _is_table_name(settings.table):
        flaws.append(f"table: {settings.table!r} must be of letters, digits, - and _")
    if settings.bind_address and family_of(settings.bind_address) is None:
        flaws.append(f"bind-address: {settings.bind_address!r} is no IP address")
    flaws += [f"cluster-cidr: {one!r} is no range" for one in _no_ranges(settings.cluster_cidrs)]
    flaws += [
        f"nodeport-addresses: {one!r} is no range and none of {', '.join(NODE_PORT_KEYWORDS)}"
        for one in _no_ranges(settings.node_port_addresses)
        if one not in NODE_PORT_KEYWORDS
    ]
    match settings.detect_local:
        case DetectLocalMode.BRIDGE_INTERFACE if not settings.pod_interface:
            flaws.append("detect-local-mode BridgeInterface needs pod-bridge-interface")
        case DetectLocalMode.INTERFACE_PREFIX if not settings.pod_interface:
            flaws.append("detect-local-mode InterfaceNamePrefix needs pod-interface-name-prefix")
    return flaws


def settings_warnings(settings: ProxySettings) -> list[str]:
    """Return what works otherwise than its option sounds; kube-proxy goes on with these too."""
    if settings.detect_local is DetectLocalMode.CLUSTER_CIDR and not settings.cluster_cidrs:
        effect = "traffic of pods is not told from traffic from outside"
        return [f"detect-local-mode is ClusterCIDR, but no cluster-cidr is given: {effect}"]
    return []


def family_of_range(text: str) -> str | None:
    """Return "IPv4" or "IPv6", or None when the text is no range of addresses."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return IPV4 if network.version == 4 else IPV6


def _no_ranges(texts: tuple[str, ...]) -> list[str]:
    return [text for text in texts if family_of_range(text) is None]


def _is_table_name(text: str) -> bool:
    plain = text.replace("-", "").replace("_", "")
    return text.isascii() and plain.isalnum() and text[0].isalpha()
