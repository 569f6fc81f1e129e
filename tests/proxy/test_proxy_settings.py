"""Settings of a proxy, their flaws, and the layouts that follow from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.proxy.family import (
    addresses_within,
    layout_of,
    local_traffic_of,
    node_port_ips,
    ranges_of,
    read_interface_addresses,
)
from keepclose.proxy.own_node import NodeAddresses
from keepclose.proxy.settings import (
    DetectLocalMode,
    ProxySettings,
    proxy_settings_errors,
    proxy_settings_warnings,
)
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic

HERE = NodeAddresses({"IPv4": "192.168.0.1"}, {"IPv4": "10.244.1.0/24", "IPv6": "fd00:1::/64"})


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        pytest.param({}, [], id="the defaults are fine"),
        pytest.param(
            {"node_name": ""}, ["node-name must be the name of the Node of this host"], id="no name"
        ),
        pytest.param(
            {"masquerade_bit": 32},
            ["masquerade-bit must be from 0 to 31, but got 32"],
            id="no such bit",
        ),
        pytest.param(
            {"min_sync_s": -1.0}, ["min-sync-period must not be negative"], id="negative time"
        ),
        pytest.param(
            {"min_sync_s": 60.0},
            ["sync-period must be more than 0 and no less than min-sync-period"],
            id="the least is more than the most",
        ),
        pytest.param(
            {"table": "kube proxy;"},
            ["table: 'kube proxy;' must consist of letters, digits, - and _"],
            id="a table that nft would misread",
        ),
        pytest.param(
            {"bind_address": "here"}, ["bind-address: 'here' is not an IP address"], id="no address"
        ),
        pytest.param(
            {"cluster_cidrs": ("10.0.0.0/33",)},
            ["cluster-cidr: '10.0.0.0/33' is not a range"],
            id="no range",
        ),
        pytest.param(
            {"node_port_addresses": ("primary", "some")},
            ["nodeport-addresses: 'some' is neither a range nor one of primary, localhost, all"],
            id="no keyword",
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.CLUSTER_CIDR}, [], id="ClusterCIDR without a range"
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.BRIDGE_INTERFACE},
            ["detect-local-mode BridgeInterface needs pod-bridge-interface"],
            id="a bridge without a name",
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.INTERFACE_PREFIX},
            ["detect-local-mode InterfaceNamePrefix needs pod-interface-name-prefix"],
            id="a prefix without letters",
        ),
    ],
)
def test_flaws(changes: dict[str, Any], want: list[str]) -> None:
    """Each flaw names the option that sets it."""
    assert proxy_settings_errors(ProxySettings(**{"node_name": "n1", **changes})) == want


def test_a_mode_without_its_range_is_warned_of() -> None:
    """As kube-proxy does, the proxy goes on without knowing which traffic is its pods'."""
    settings = ProxySettings(node_name="n1", detect_local=DetectLocalMode.CLUSTER_CIDR)
    (warning,) = proxy_settings_warnings(settings)
    assert warning.startswith("detect-local-mode is ClusterCIDR, but cluster-cidr is empty: ")
    assert (
        proxy_settings_warnings(msgspec.structs.replace(settings, cluster_cidrs=("10.0.0.0/8",)))
        == []
    )
    assert proxy_settings_warnings(ProxySettings(node_name="n1")) == []


@pytest.mark.parametrize(
    ("changes", "family", "want"),
    [
        pytest.param({}, "IPv4", LocalTraffic(DetectLocal.CIDR, "10.244.1.0/24"), id="own range"),
        pytest.param(
            {}, "IPv6", LocalTraffic(DetectLocal.CIDR, "fd00:1::/64"), id="own IPv6 range"
        ),
        pytest.param(
            {
                "detect_local": DetectLocalMode.CLUSTER_CIDR,
                "cluster_cidrs": ("fd00::/32", "10.244.0.0/16"),
            },
            "IPv4",
            LocalTraffic(DetectLocal.CIDR, "10.244.0.0/16"),
            id="the cluster's range of the family",
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.CLUSTER_CIDR, "cluster_cidrs": ("fd00::/32",)},
            "IPv4",
            LocalTraffic(),
            id="no range of the family",
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.BRIDGE_INTERFACE, "pod_interface": "br0"},
            "IPv4",
            LocalTraffic(DetectLocal.INTERFACE, "br0"),
            id="a bridge",
        ),
        pytest.param(
            {"detect_local": DetectLocalMode.INTERFACE_PREFIX, "pod_interface": "veth"},
            "IPv4",
            LocalTraffic(DetectLocal.INTERFACE_PREFIX, "veth"),
            id="interfaces that begin alike",
        ),
    ],
)
def test_local_traffic(changes: dict[str, Any], family: str, want: LocalTraffic) -> None:
    """Local traffic is told as asked, in each family."""
    settings = ProxySettings(**{"node_name": "n1", **changes})
    assert local_traffic_of(settings, HERE, family) == want


def test_a_layout() -> None:
    """The layout of a table follows from the settings and the node."""
    settings = ProxySettings("n1", node_port_addresses=("all",), masquerade_bit=3)
    found = layout_of(settings, HERE, "IPv4", is_counting=True)
    assert (found.node_name, found.node_ip, found.mark) == ("n1", "192.168.0.1", 8)
    assert (found.nodeport_ips, found.count_by) == (None, CountBy.ZONE)
    found = layout_of(ProxySettings("n1"), NodeAddresses(), "IPv6", is_counting=False)
    assert (found.local_traffic, found.count_by) == (LocalTraffic(), CountBy.NOTHING)


@pytest.mark.parametrize(
    ("configured", "family", "want"),
    [
        pytest.param(("primary",), "IPv4", ("192.168.0.1/32",), id="the node's address"),
        pytest.param(("primary",), "IPv6", None, id="no address of the family means all"),
        pytest.param(("all",), "IPv4", None, id="all"),
        pytest.param(("10.0.0.0/8", "0.0.0.0/0"), "IPv4", None, id="a range of everything"),
        pytest.param(("10.0.0.0/8", "fd00::/8"), "IPv6", ("fd00::/8",), id="ranges of the family"),
        pytest.param(("localhost",), "IPv4", ("127.0.0.0/8",), id="loopback"),
        pytest.param((), "IPv4", None, id="nothing said"),
    ],
)
def test_ranges_of_node_ports(
    configured: tuple[str, ...], family: str, want: tuple[str, ...] | None
) -> None:
    """Words and ranges are read for one family."""
    assert ranges_of(configured, HERE, family) == want


def test_addresses_within_ranges() -> None:
    """Only addresses of interfaces in the ranges count, and loopback never does."""
    found = addresses_within(("10.0.0.0/8", "127.0.0.0/8"), ("10.0.0.9", "127.0.0.1", "10.0.0.1"))
    assert found == ("10.0.0.1", "10.0.0.9")
    assert addresses_within((), ("10.0.0.1",)) == ()


def test_addresses_of_this_machine() -> None:
    """Every machine has its loopback address, and node ports do not answer there."""
    assert "127.0.0.1" in read_interface_addresses("IPv4")
    loopback = ProxySettings("n1", node_port_addresses=("localhost",))
    assert node_port_ips(loopback, HERE, "IPv4") == ()
    assert node_port_ips(ProxySettings("n1", node_port_addresses=("all",)), HERE, "IPv4") is None
