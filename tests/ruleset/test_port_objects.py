"""The objects of one service port, word for word, for each way in."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.selection import select
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.ruleset import CountBy, LocalTraffic, RulesetSettings, ServicePortKey
from keepclose.ruleset.commands import AddElement, AddSet, Command, add_chain
from keepclose.ruleset.port_objects import NO_OBJECTS, render_port
from support.ruleset.tracednodes import SETTINGS

PORT = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", "172.30.0.41", 80)
HERE = PortEndpoint("10.180.0.1", 80, node_name="n1", zone="zone-a")
THERE = PortEndpoint("10.180.1.1", 80, node_name="n2", zone="zone-b")
BASE = "ULMVA6XW-ns1/svc1/tcp/p80"
GATES = FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)


def rendered(
    port: RoutedPort, *endpoints: PortEndpoint, settings: RulesetSettings = SETTINGS
) -> list[str]:
    """Return the commands of a port without the table; "#" stands for each fingerprint."""
    selection = select(port, endpoints, node=NodeView("n1", "zone-a"), gates=GATES)
    key = ServicePortKey.of(port)
    objects = render_port(key, port, selection, settings=settings)
    commands: list[Command] = [AddSet(one) for one in objects.sets]
    for chain in objects.chains:
        commands += add_chain(chain)
    commands += [AddElement(one) for one in objects.elements]
    prints = re.compile(r"\.[A-Z2-7]{8}(?= |$)")
    return [prints.sub(".#", command.text("T").replace(" T ", " ")) for command in commands]


def test_cluster_ip_with_one_endpoint() -> None:
    """A plain translation; an endpoint on this node gets its hairpin entry."""
    assert rendered(PORT, HERE) == [
        f"add chain service-{BASE}.#",
        f"add rule service-{BASE}.# meta l4proto tcp dnat to 10.180.0.1:80",
        "add element cluster-ips { 172.30.0.41 }",
        f"add element service-ips {{ 172.30.0.41 . tcp . 80 : goto service-{BASE}.# }}",
        "add element hairpin-connections { 10.180.0.1 . 10.180.0.1 . tcp . 80 }",
    ]


def test_cluster_ip_with_several_endpoints() -> None:
    """One draw by chance in one rule."""
    assert rendered(PORT, HERE, THERE)[1] == (
        f"add rule service-{BASE}.# meta l4proto tcp dnat ip addr . port to "
        "numgen random mod 2 map { 0 : 10.180.0.1 . 80 , 1 : 10.180.1.1 . 80 }"
    )


def test_weights_become_shares_of_the_numbers() -> None:
    """Weights 6 and 2 are as good as 3 and 1."""
    heavy, light = replace(HERE, weight=6), replace(THERE, weight=2)
    assert rendered(PORT, heavy, light)[1] == (
        f"add rule service-{BASE}.# meta l4proto tcp dnat ip addr . port to "
        "numgen random mod 4 map { 0-2 : 10.180.0.1 . 80 , 3 : 10.180.1.1 . 80 }"
    )


def test_ipv6_brackets_the_address() -> None:
    """And everything else is the same."""
    port = replace(PORT, cluster_ip="fd00:172::41")
    settings = replace(SETTINGS, family="IPv6", nodeport_ips=None)
    assert rendered(port, PortEndpoint("fd00:10::1", 80), settings=settings) == [
        f"add chain service-{BASE}.#",
        f"add rule service-{BASE}.# meta l4proto tcp dnat to [fd00:10::1]:80",
        "add element cluster-ips { fd00:172::41 }",
        f"add element service-ips {{ fd00:172::41 . tcp . 80 : goto service-{BASE}.# }}",
    ]


def test_without_endpoints_the_cluster_ip_rejects() -> None:
    """No chain at all, and a comment that says whose fault it is."""
    assert rendered(PORT) == [
        "add element cluster-ips { 172.30.0.41 }",
        (
            'add element no-endpoint-services { 172.30.0.41 . tcp . 80 comment "ns1/svc1:p80" '
            ": goto reject-chain }"
        ),
    ]


def test_internal_local_without_local_endpoints_drops() -> None:
    """Endpoints exist, but not here."""
    port = replace(PORT, internal_policy=TrafficPolicy.LOCAL)
    assert rendered(port, THERE) == [
        "add element cluster-ips { 172.30.0.41 }",
        'add element no-endpoint-services { 172.30.0.41 . tcp . 80 comment "ns1/svc1:p80" : drop }',
    ]


def test_node_port_under_cluster_policy() -> None:
    """Traffic from outside is marked for masquerading and joins the rest."""
    assert rendered(replace(PORT, node_port=30001), THERE) == [
        f"add chain service-{BASE}.#",
        f"add rule service-{BASE}.# meta l4proto tcp dnat to 10.180.1.1:80",
        f"add chain external-{BASE}.#",
        f'add rule external-{BASE}.# mark set mark or 0x4000 comment "masquerade"',
        f"add rule external-{BASE}.# goto service-{BASE}.#",
        "add element cluster-ips { 172.30.0.41 }",
        f"add element service-ips {{ 172.30.0.41 . tcp . 80 : goto service-{BASE}.# }}",
        f"add element service-nodeports {{ tcp . 30001 : goto external-{BASE}.# }}",
    ]


def test_load_balancer_under_local_policy() -> None:
    """Pods and the node use the whole cluster, all others the endpoints here."""
    port = replace(
        PORT,
        load_balancer_ips=("1.2.3.4",),
        external_ips=("192.168.99.11",),
        external_policy=TrafficPolicy.LOCAL,
    )
    assert rendered(port, HERE, THERE)[2:-1] == [
        f"add chain local-{BASE}.#",
        f"add rule local-{BASE}.# meta l4proto tcp dnat to 10.180.0.1:80",
        f"add chain external-{BASE}.#",
        (
            f"add rule external-{BASE}.# ip saddr 10.0.0.0/8 goto service-{BASE}.# "
            'comment "own pods use the whole cluster"'
        ),
        (
            f"add rule external-{BASE}.# fib saddr type local mark set mark or 0x4000 "
            'comment "masquerade the node itself"'
        ),
        (
            f"add rule external-{BASE}.# fib saddr type local goto service-{BASE}.# "
            'comment "the node uses the whole cluster"'
        ),
        f"add rule external-{BASE}.# goto local-{BASE}.#",
        "add element cluster-ips { 172.30.0.41 }",
        f"add element service-ips {{ 172.30.0.41 . tcp . 80 : goto service-{BASE}.# }}",
        f"add element service-ips {{ 192.168.99.11 . tcp . 80 : goto external-{BASE}.# }}",
        f"add element service-ips {{ 1.2.3.4 . tcp . 80 : goto external-{BASE}.# }}",
    ]


def test_local_policy_without_local_endpoints_drops_what_falls_out() -> None:
    """The short cuts stay, and the rest meets the refusals."""
    port = replace(PORT, node_port=30001, external_policy=TrafficPolicy.LOCAL)
    settings = replace(SETTINGS, local_traffic=LocalTraffic())
    assert rendered(port, THERE, settings=settings)[2:] == [
        f"add chain external-{BASE}.#",
        (
            f"add rule external-{BASE}.# fib saddr type local mark set mark or 0x4000 "
            'comment "masquerade the node itself"'
        ),
        (
            f"add rule external-{BASE}.# fib saddr type local goto service-{BASE}.# "
            'comment "the node uses the whole cluster"'
        ),
        "add element cluster-ips { 172.30.0.41 }",
        f"add element service-ips {{ 172.30.0.41 . tcp . 80 : goto service-{BASE}.# }}",
        f"add element service-nodeports {{ tcp . 30001 : goto external-{BASE}.# }}",
        'add element no-endpoint-nodeports { tcp . 30001 comment "ns1/svc1:p80" : drop }',
    ]


def test_prefer_local_masquerades_and_goes_to_the_local_chain() -> None:
    """No short cut is needed: everybody gets the same."""
    port = replace(PORT, node_port=30001, external_policy=TrafficPolicy.PREFER_LOCAL)
    external = [line for line in rendered(port, HERE, THERE) if "rule external-" in line]
    assert external == [
        f'add rule external-{BASE}.# mark set mark or 0x4000 comment "masquerade"',
        f"add rule external-{BASE}.# goto local-{BASE}.#",
    ]


def test_topology_keys_that_match_nothing_refuse_own_pods_only() -> None:
    """Under the Local policy others still reach the endpoints here."""
    port = replace(
        PORT,
        load_balancer_ips=("1.2.3.4",),
        external_policy=TrafficPolicy.LOCAL,
        topology_keys=("topology.kubernetes.io/rack",),
    )
    assert rendered(port, HERE) == [
        f"add chain local-{BASE}.#",
        f"add rule local-{BASE}.# meta l4proto tcp dnat to 10.180.0.1:80",
        f"add chain external-{BASE}.#",
        (
            f"add rule external-{BASE}.# ip saddr 10.0.0.0/8 return "
            'comment "own pods use the whole cluster"'
        ),
        (
            f"add rule external-{BASE}.# fib saddr type local return "
            'comment "the node uses the whole cluster"'
        ),
        f"add rule external-{BASE}.# goto local-{BASE}.#",
        "add element cluster-ips { 172.30.0.41 }",
        (
            'add element no-endpoint-services { 172.30.0.41 . tcp . 80 comment "ns1/svc1:p80" '
            ": goto reject-chain }"
        ),
        f"add element service-ips {{ 1.2.3.4 . tcp . 80 : goto external-{BASE}.# }}",
        (
            'add element no-endpoint-services { 1.2.3.4 . tcp . 80 comment "ns1/svc1:p80" '
            ": goto reject-chain }"
        ),
        "add element hairpin-connections { 10.180.0.1 . 10.180.0.1 . tcp . 80 }",
    ]


@pytest.mark.parametrize(
    ("ranges", "want"),
    [
        pytest.param(("203.0.113.0/25",), "203.0.113.0/25", id="without the node"),
        pytest.param(
            ("203.0.113.0/25", "192.168.0.0/24"),
            "{ 1.2.3.4, 192.168.0.0/24, 203.0.113.0/25 }",
            id="with the node",
        ),
        pytest.param(("10.0.0.0/8", "10.1.0.0/16"), "10.0.0.0/8", id="overlapping"),
    ],
)
def test_source_ranges_make_a_firewall(ranges: tuple[str, ...], want: str) -> None:
    """Only for load balancer IPs; the IP itself is allowed where the node is."""
    port = replace(PORT, load_balancer_ips=("1.2.3.4",), source_ranges=ranges)
    lines = rendered(port, THERE)
    assert [line for line in lines if "firewall" in line] == [
        f"add chain firewall-{BASE}.#",
        f"add rule firewall-{BASE}.# ip saddr != {want} drop",
        f"add element firewall-ips {{ 1.2.3.4 . tcp . 80 : goto firewall-{BASE}.# }}",
    ]


def test_session_affinity_remembers_by_endpoint() -> None:
    """Sets first, then the endpoints' chains, then the chain that asks each set."""
    port = replace(PORT, session_affinity="ClientIP", affinity_seconds=10800)
    one, two = "5OJB2KTY-ns1/svc1/tcp/p80__10.180.0.1/80", ""
    lines = rendered(port, HERE, THERE)
    two = lines[1].split()[2].removeprefix("affinity-")
    assert lines[:-3] == [
        f"add set affinity-{one} {{ type ipv4_addr ; flags dynamic,timeout ; timeout 10800s ; }}",
        f"add set affinity-{two} {{ type ipv4_addr ; flags dynamic,timeout ; timeout 10800s ; }}",
        f"add chain endpoint-{one}.#",
        f"add rule endpoint-{one}.# update @affinity-{one} {{ ip saddr }}",
        f"add rule endpoint-{one}.# meta l4proto tcp dnat to 10.180.0.1:80",
        f"add chain endpoint-{two}.#",
        f"add rule endpoint-{two}.# update @affinity-{two} {{ ip saddr }}",
        f"add rule endpoint-{two}.# meta l4proto tcp dnat to 10.180.1.1:80",
        f"add chain service-{BASE}.#",
        f"add rule service-{BASE}.# ip saddr @affinity-{one} goto endpoint-{one}.#",
        f"add rule service-{BASE}.# ip saddr @affinity-{two} goto endpoint-{two}.#",
        (
            f"add rule service-{BASE}.# numgen random mod 2 vmap "
            f"{{ 0 : goto endpoint-{one}.# , 1 : goto endpoint-{two}.# }}"
        ),
    ]


def test_counting_changes_no_chain() -> None:
    """Elements of sets count; the rules of the port are the same."""
    port = replace(
        PORT, session_affinity="ClientIP", node_port=30001, load_balancer_ips=("5.6.7.8",)
    )
    lines = rendered(port, HERE, THERE, settings=replace(SETTINGS, count_by=CountBy.ZONE))
    counting = [line for line in lines if " counted-" in line]
    assert [line for line in lines if line not in counting] == rendered(port, HERE, THERE)
    assert sorted(counting) == [
        "add element counted-connections { 172.30.0.41 . tcp . 80 . 10.180.0.1 . 80 }",
        "add element counted-connections { 172.30.0.41 . tcp . 80 . 10.180.1.1 . 80 }",
        "add element counted-connections { 5.6.7.8 . tcp . 80 . 10.180.0.1 . 80 }",
        "add element counted-connections { 5.6.7.8 . tcp . 80 . 10.180.1.1 . 80 }",
        "add element counted-nodeports { tcp . 30001 . 10.180.0.1 . 80 }",
        "add element counted-nodeports { tcp . 30001 . 10.180.1.1 . 80 }",
        "add element counted-outside { 5.6.7.8 . tcp . 80 . 10.180.0.1 . 80 }",
        "add element counted-outside { 5.6.7.8 . tcp . 80 . 10.180.1.1 . 80 }",
        "add element counted-outside-nodeports { tcp . 30001 . 10.180.0.1 . 80 }",
        "add element counted-outside-nodeports { tcp . 30001 . 10.180.1.1 . 80 }",
    ]


def test_local_policy_counts_the_endpoints_that_each_client_may_get() -> None:
    """Clients from outside get endpoints of this node, its own pods those of all nodes."""
    port = replace(PORT, node_port=30001, external_policy=TrafficPolicy.LOCAL)
    lines = rendered(port, HERE, THERE, settings=replace(SETTINGS, count_by=CountBy.ZONE))
    assert sorted(line for line in lines if " counted-" in line and "30001" in line) == [
        "add element counted-nodeports { tcp . 30001 . 10.180.0.1 . 80 }",
        "add element counted-nodeports { tcp . 30001 . 10.180.1.1 . 80 }",
        "add element counted-outside-nodeports { tcp . 30001 . 10.180.0.1 . 80 }",
    ]


@pytest.mark.parametrize(("count_by", "want"), [(CountBy.NODE, {"n2", "n3"}), (CountBy.ZONE, {""})])
def test_counting_by_node_tells_nodes_of_a_zone_apart(count_by: CountBy, want: set[str]) -> None:
    """Counts of a zone have no node, unless it is this one."""
    far = replace(THERE, node_name="n3", address="10.180.2.1")
    port = replace(PORT, node_port=30001)
    selection = select(port, (THERE, far), node=NodeView("n1", "zone-a"), gates=GATES)
    settings = replace(SETTINGS, count_by=count_by)
    objects = render_port(ServicePortKey.of(port), port, selection, settings=settings)
    assert {counted.node for counted in objects.counted_endpoints.values()} == want


@pytest.mark.parametrize(
    "port",
    [
        pytest.param(replace(PORT, protocol="ICMP"), id="unknown protocol"),
        pytest.param(replace(PORT, protocol="TCP }\nflush ruleset"), id="hostile protocol"),
    ],
)
def test_unknown_protocol_has_no_objects(port: RoutedPort) -> None:
    """Nft would refuse the whole transaction."""
    selection = select(port, (HERE,), node=NodeView("n1"), gates=GATES)
    assert render_port(ServicePortKey.of(port), port, selection, settings=SETTINGS) is NO_OBJECTS


def test_unusable_addresses_are_left_out() -> None:
    """Of endpoints, of the Service, and of what is only assumed to be allocated."""
    port = replace(
        PORT,
        cluster_ip="x; flush ruleset",
        external_ips=("fd00::1", "192.168.99.11", "192.168.99.11"),
        source_ranges=("nonsense",),
        load_balancer_ips=("1.2.3.4",),
        assumed_node_port=True,
    )
    bad = [
        replace(THERE, address="10.0.0.1 }"),
        replace(THERE, address="fd00::1"),
        replace(THERE, port=70000),
        replace(HERE, address="nowhere"),
    ]
    assert rendered(port, *bad, THERE) == [
        f"add chain service-{BASE}.#",
        f"add rule service-{BASE}.# meta l4proto tcp dnat to 10.180.1.1:80",
        f"add chain external-{BASE}.#",
        f'add rule external-{BASE}.# mark set mark or 0x4000 comment "masquerade"',
        f"add rule external-{BASE}.# goto service-{BASE}.#",
        f"add element service-ips {{ 192.168.99.11 . tcp . 80 : goto external-{BASE}.# }}",
        f"add element service-ips {{ 1.2.3.4 . tcp . 80 : goto external-{BASE}.# }}",
    ]


def test_node_without_a_name_has_no_hairpins() -> None:
    """Nothing is known to be on it, not even endpoints without a node."""
    lines = rendered(PORT, replace(HERE, node_name=""), settings=replace(SETTINGS, node_name=""))
    assert not any("hairpin" in line for line in lines)
