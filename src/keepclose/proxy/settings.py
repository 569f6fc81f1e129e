"""Settings of a proxy: its node, how often it syncs, and how it detects local traffic.

Names and defaults are those of kube-proxy's nftables mode, with one exception: by default the pod
ranges of the node identify local traffic (NodeCIDR). The range of the whole cluster also covers
pods of other nodes, and then replies to those pods are lost.
"""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_network
from typing import Final

import msgspec

from keepclose.model.addresses import IPV4, IPV6, family_of
from keepclose.model.gates import FeatureGates

PROXY_COMPONENT: Final = "keepclose-proxy"
PROXY_FAMILIES: Final = (IPV4, IPV6)
NODE_PORT_KEYWORDS: Final[dict[str, tuple[str, ...]]] = {
    "primary": (),
    "localhost": ("127.0.0.0/8", "::1/128"),
    "all": ("0.0.0.0/0", "::/0"),
}
_TABLE: Final = "kube-proxy"


class DetectLocalMode(StrEnum):
    """How rules identify traffic of the node's own pods."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_PREFIX = "InterfaceNamePrefix"


class ProxySettings(msgspec.Struct, frozen=True):
    """The settings of a proxy; times are in seconds."""

    node_name: str
    gates: FeatureGates = FeatureGates()
    families: tuple[str, ...] = PROXY_FAMILIES
    table: str = _TABLE
    min_sync_s: float = 1.0
    """The minimum time between the end of one sync and the start of the next."""
    sync_s: float = 30.0
    """The longest backoff after a failed sync, and the period of checks of the table."""
    full_sync_s: float = 3600.0
    """The period of full syncs, which find changes that other programs made to the table."""
    later_s: float = 1.0
    """How long unused chains stay before they are deleted."""
    detect_local: DetectLocalMode = DetectLocalMode.NODE_CIDR
    cluster_cidrs: tuple[str, ...] = ()
    pod_interface: str = ""
    """The name of the pods' bridge, or the prefix of their interfaces' names."""
    masquerade_all: bool = False
    masquerade_bit: int = 14
    node_port_addresses: tuple[str, ...] = ("primary",)
    bind_address: str = ""
    counts_connections: bool = True
    pooled: bool = True
    """Whether plain ports share maps of endpoints, so that a change in a large table is fast."""
    acknowledges: bool = True
    acknowledge_every_s: float = 5.0
    node_wait_s: float = 30.0
    """How long the proxy waits at start for the addresses of its Node."""


def proxy_settings_errors(settings: ProxySettings) -> list[str]:
    """Return the validation errors, each with the name of its option; empty if valid."""
    errors: list[str] = []
    if not settings.node_name:
        errors.append("node-name must be the name of the Node of this host")
    if not 0 <= settings.masquerade_bit <= 31:
        errors.append(f"masquerade-bit must be from 0 to 31, but got {settings.masquerade_bit}")
    if settings.min_sync_s < 0:
        errors.append("min-sync-period must not be negative")
    if settings.sync_s <= 0 or settings.sync_s < settings.min_sync_s:
        errors.append("sync-period must be more than 0 and no less than min-sync-period")
    if not _is_table_name(settings.table):
        errors.append(f"table: {settings.table!r} must consist of letters, digits, - and _")
    if settings.bind_address and family_of(settings.bind_address) is None:
        errors.append(f"bind-address: {settings.bind_address!r} is not an IP address")
    errors += [
        f"cluster-cidr: {text!r} is not a range" for text in _invalid_ranges(settings.cluster_cidrs)
    ]
    keywords = ", ".join(NODE_PORT_KEYWORDS)
    errors += [
        f"nodeport-addresses: {text!r} is neither a range nor one of {keywords}"
        for text in _invalid_ranges(settings.node_port_addresses)
        if text not in NODE_PORT_KEYWORDS
    ]
    match settings.detect_local:
        case DetectLocalMode.BRIDGE_INTERFACE if not settings.pod_interface:
            errors.append("detect-local-mode BridgeInterface needs pod-bridge-interface")
        case DetectLocalMode.INTERFACE_PREFIX if not settings.pod_interface:
            errors.append("detect-local-mode InterfaceNamePrefix needs pod-interface-name-prefix")
    return errors


def proxy_settings_warnings(settings: ProxySettings) -> list[str]:
    """Return warnings about settings without effect; kube-proxy accepts these settings too."""
    if settings.detect_local is DetectLocalMode.CLUSTER_CIDR and not settings.cluster_cidrs:
        effect = "the proxy cannot distinguish traffic of pods from traffic from outside"
        return [f"detect-local-mode is ClusterCIDR, but cluster-cidr is empty: {effect}"]
    return []


def family_of_range(text: str) -> str | None:
    """Return "IPv4" or "IPv6", or None if the text is not a range of addresses."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return IPV4 if network.version == 4 else IPV6


def _invalid_ranges(texts: tuple[str, ...]) -> list[str]:
    return [text for text in texts if family_of_range(text) is None]


def _is_table_name(text: str) -> bool:
    plain = text.replace("-", "").replace("_", "")
    return text.isascii() and plain.isalnum() and text[0].isalpha()
