"""The fixed part of the table, word for word."""

from __future__ import annotations

from textwrap import dedent

import pytest
from msgspec.structs import replace

from keepclose.ruleset import CountBy, DetectLocal, LocalTraffic, RulesetSettings, TableListing
from keepclose.ruleset.commands import Transaction
from keepclose.ruleset.layout import Layout, build_layout, place_layout

WANT = """\
add table ip kube-proxy { comment "rules for Services, by keepclose" ; }
add set ip kube-proxy cluster-ips { type ipv4_addr ; comment "cluster IPs of all Services" ; }
add set ip kube-proxy hairpin-connections { type ipv4_addr . ipv4_addr . inet_proto . inet_service \
; comment "endpoints of this node that reach themselves" ; }
add set ip kube-proxy nodeport-ips { type ipv4_addr ; comment "where node ports answer" ; }
add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict ; \
comment "cluster, external and load balancer IPs" ; }
add map ip kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; \
comment "node ports" ; }
add map ip kube-proxy no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict \
; comment "what is refused for want of an endpoint" ; }
add map ip kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict ; \
comment "likewise, by node port" ; }
add map ip kube-proxy firewall-ips { type ipv4_addr . inet_proto . inet_service : verdict ; \
comment "load balancer IPs with source ranges" ; }
add chain ip kube-proxy firewall-check
flush chain ip kube-proxy firewall-check
add rule ip kube-proxy firewall-check ip daddr . meta l4proto . th dport vmap @firewall-ips
add chain ip kube-proxy service-endpoints-check
flush chain ip kube-proxy service-endpoints-check
add rule ip kube-proxy service-endpoints-check ip daddr . meta l4proto . th dport vmap \
@no-endpoint-services
add chain ip kube-proxy nodeport-endpoints-check
flush chain ip kube-proxy nodeport-endpoints-check
add rule ip kube-proxy nodeport-endpoints-check ip daddr @nodeport-ips meta l4proto . th dport \
vmap @no-endpoint-nodeports
add chain ip kube-proxy cluster-ips-check
flush chain ip kube-proxy cluster-ips-check
add rule ip kube-proxy cluster-ips-check ip daddr @cluster-ips reject \
comment "a cluster IP, but none of its ports"
add rule ip kube-proxy cluster-ips-check ip daddr 10.96.0.0/16 drop \
comment "a cluster IP that no Service has"
add chain ip kube-proxy services
flush chain ip kube-proxy services
add rule ip kube-proxy services ip daddr @cluster-ips ip saddr != 10.244.1.0/24 \
mark set mark or 0x4000 comment "cluster IPs, not from our pods"
add rule ip kube-proxy services ip daddr . meta l4proto . th dport vmap @service-ips
add rule ip kube-proxy services ip daddr @nodeport-ips meta l4proto . th dport vmap \
@service-nodeports
add chain ip kube-proxy masquerading
flush chain ip kube-proxy masquerading
add rule ip kube-proxy masquerading mark and 0x4000 != 0 mark set mark xor 0x4000 \
masquerade fully-random
add rule ip kube-proxy masquerading ct status dnat \
ip saddr . ip daddr . meta l4proto . th dport @hairpin-connections masquerade fully-random
add chain ip kube-proxy connections-count
flush chain ip kube-proxy connections-count
add chain ip kube-proxy reject-chain { comment "refuses what has no endpoint at all" ; }
flush chain ip kube-proxy reject-chain
add rule ip kube-proxy reject-chain reject
add chain ip kube-proxy filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; }
flush chain ip kube-proxy filter-prerouting-pre-dnat
add rule ip kube-proxy filter-prerouting-pre-dnat ct state new jump firewall-check
add chain ip kube-proxy filter-output-pre-dnat { type filter hook output priority -110 ; }
flush chain ip kube-proxy filter-output-pre-dnat
add rule ip kube-proxy filter-output-pre-dnat ct state new jump firewall-check
add chain ip kube-proxy filter-input { type filter hook input priority 0 ; }
flush chain ip kube-proxy filter-input
add rule ip kube-proxy filter-input ct state new jump nodeport-endpoints-check
add rule ip kube-proxy filter-input ct state new jump service-endpoints-check
add chain ip kube-proxy filter-forward { type filter hook forward priority 0 ; }
flush chain ip kube-proxy filter-forward
add rule ip kube-proxy filter-forward ct state new jump service-endpoints-check
add rule ip kube-proxy filter-forward ct state new jump cluster-ips-check
add chain ip kube-proxy filter-output { type filter hook output priority 0 ; }
flush chain ip kube-proxy filter-output
add rule ip kube-proxy filter-output ct state new jump service-endpoints-check
add rule ip kube-proxy filter-output ct state new jump cluster-ips-check
add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
flush chain ip kube-proxy nat-prerouting
add rule ip kube-proxy nat-prerouting jump services
add chain ip kube-proxy nat-output { type nat hook output priority -100 ; }
flush chain ip kube-proxy nat-output
add rule ip kube-proxy nat-output jump services
add chain ip kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
flush chain ip kube-proxy nat-postrouting
add rule ip kube-proxy nat-postrouting jump masquerading
add chain ip kube-proxy count-postrouting { type nat hook postrouting priority 90 ; }
flush chain ip kube-proxy count-postrouting
add rule ip kube-proxy count-postrouting ct status dnat jump connections-count
add chain ip kube-proxy count-input { type nat hook input priority 90 ; }
flush chain ip kube-proxy count-input
add rule ip kube-proxy count-input ct status dnat jump connections-count
"""
SETTINGS = RulesetSettings(
    local_traffic=LocalTraffic(DetectLocal.CIDR, "10.244.1.0/24"),
    nodeport_ips=("192.0.2.1",),
    service_cidrs=("10.96.0.0/16", "fd00:96::/108"),
)


def chain_texts(layout: Layout, name: str) -> list[str]:
    """Return the rules of a chain, without comments."""
    (chain,) = [chain for chain in layout.chains if chain.name == name]
    return [rule.text for rule in chain.rules]


def test_layout_of_a_new_table() -> None:
    """Everything is added in an order that nft accepts, and the marker comes last."""
    layout = build_layout(SETTINGS)
    commands = place_layout(layout, TableListing(), trust=True)
    text = Transaction("ip kube-proxy", tuple(commands)).text
    marker = (
        f"add chain ip kube-proxy {layout.marker.name} "
        '{ comment "says which rules the chains without a slash hold" ; }\n'
    )
    assert text == dedent(WANT) + marker
    assert [element.key for element in layout.elements] == [("192.0.2.1",)]


def test_connections_are_counted_behind_the_translation() -> None:
    """Those from outside first; a cluster IP is never taken for a node port."""
    settings = replace(SETTINGS, count_by=CountBy.ZONE)
    used = "meta l4proto . ct original proto-dst"
    key = f"ct original ip daddr . {used} . ip daddr . th dport"
    outside = "ip saddr != 10.244.1.0/24 fib saddr type != local"
    texts = chain_texts(build_layout(settings), "connections-count")
    assert texts[:2] == [
        f"meta l4proto tcp {outside} {key} @counted-outside return",
        f"meta l4proto tcp {key} @counted-connections return",
    ]
    assert [text.split()[2] for text in texts[:6]] == ["tcp", "tcp", "udp", "udp", "sctp", "sctp"]
    assert texts[6] == "ct original ip daddr @cluster-ips return"
    key = f"{used} . ip daddr . th dport"
    assert texts[7:9] == [
        f"meta l4proto tcp {outside} {key} @counted-outside-nodeports return",
        f"meta l4proto tcp {key} @counted-nodeports return",
    ]
    unknown = build_layout(replace(settings, local_traffic=LocalTraffic()))
    assert len(chain_texts(unknown, "connections-count")) == 7


def test_layout_of_the_other_family() -> None:
    """Types, addresses and ranges are those of IPv6."""
    layout = build_layout(
        replace(
            SETTINGS,
            family="IPv6",
            nodeport_ips=None,
            local_traffic=LocalTraffic(DetectLocal.CIDR, "fd00:10::/64"),
        )
    )
    assert [one.key for one in layout.sets] == [
        ("ipv6_addr",),
        ("ipv6_addr", "ipv6_addr", "inet_proto", "inet_service"),
    ]
    assert chain_texts(layout, "services") == [
        "ip6 daddr @cluster-ips ip6 saddr != fd00:10::/64 mark set mark or 0x4000",
        "ip6 daddr . meta l4proto . th dport vmap @service-ips",
        "fib daddr type local ip6 daddr != ::1 meta l4proto . th dport vmap @service-nodeports",
    ]
    assert chain_texts(layout, "nodeport-endpoints-check") == [
        "ip6 daddr != ::1 meta l4proto . th dport vmap @no-endpoint-nodeports"
    ]
    assert chain_texts(layout, "cluster-ips-check") == [
        "ip6 daddr @cluster-ips reject",
        "ip6 daddr fd00:96::/108 drop",
    ]


@pytest.mark.parametrize(
    ("local_traffic", "masquerade_all", "want"),
    [
        pytest.param(LocalTraffic(), False, [], id="pods cannot be told"),
        pytest.param(
            LocalTraffic(), True, ["ip daddr @cluster-ips mark set mark or 0x4000"], id="all"
        ),
        pytest.param(
            LocalTraffic(DetectLocal.CIDR, "fd00::/8"), False, [], id="range of another family"
        ),
        pytest.param(
            LocalTraffic(DetectLocal.INTERFACE, "cbr0"),
            False,
            ['ip daddr @cluster-ips iifname != "cbr0" mark set mark or 0x4000'],
            id="bridge",
        ),
        pytest.param(
            LocalTraffic(DetectLocal.INTERFACE_PREFIX, "veth"),
            False,
            ['ip daddr @cluster-ips iifname != "veth*" mark set mark or 0x4000'],
            id="prefix of interfaces",
        ),
    ],
)
def test_traffic_to_cluster_ips_is_masqueraded_by_settings(
    local_traffic: LocalTraffic, masquerade_all: bool, want: list[str]
) -> None:
    """All of it, what is not from own pods, or none where that cannot be told."""
    settings = replace(SETTINGS, local_traffic=local_traffic, masquerade_all=masquerade_all)
    assert chain_texts(build_layout(settings), "services")[:-2] == want


def test_node_ports_on_all_addresses_spare_loopback() -> None:
    """What is not the node's own address is none of its ports."""
    assert chain_texts(build_layout(replace(SETTINGS, nodeport_ips=None)), "services")[-1] == (
        "fib daddr type local ip daddr != 127.0.0.0/8 meta l4proto . th dport "
        "vmap @service-nodeports"
    )


def test_marker_names_the_rules() -> None:
    """Other rules, another marker; other node port addresses, the same."""
    marker = build_layout(SETTINGS).marker.name
    assert marker == build_layout(SETTINGS).marker.name
    assert marker == build_layout(replace(SETTINGS, nodeport_ips=("192.0.2.2",))).marker.name
    assert marker != build_layout(replace(SETTINGS, service_cidrs=())).marker.name
    assert marker != build_layout(replace(SETTINGS, nodeport_ips=None)).marker.name


def test_unusable_addresses_are_left_out() -> None:
    """An address of the other family, or none at all, does not reach the kernel."""
    settings = replace(
        SETTINGS, nodeport_ips=("fd00::1", "x", "192.0.2.1", "192.0.2.1"), service_cidrs=("x",)
    )
    layout = build_layout(settings)
    assert [element.key for element in layout.elements] == [("192.0.2.1",)]
    assert chain_texts(layout, "cluster-ips-check") == ["ip daddr @cluster-ips reject"]
