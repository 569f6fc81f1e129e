"""What the kernel and its own nft say to our texts, in a network namespace of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from keepclose.model.meta import NamespacedName
from keepclose.proxy.counters.kernel_counters import read_counts
from keepclose.proxy.nft.element_messages import decode_key
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.ruleset import (
    CountBy,
    Counted,
    DetectLocal,
    LocalTraffic,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    TableListing,
    cleanup_text,
    listing_of,
)
from support.netns import Namespace, namespaces_or_skip
from support.ruleset.tracednodes import SETTINGS, tell_port

NASTY = 'a"; flush ruleset\n} é*\\'


class Kernel:
    """A network namespace, seen as what keeps tables."""

    def __init__(self, inside: Namespace) -> None:
        self.inside = inside
        self.run = inside.run

    def write(self, *texts: str) -> None:
        """Run the transactions."""
        for text in texts:
            self.run("nft", "-f", "-", text=text)

    def listing(self, table: str = "ip kube-proxy") -> TableListing:
        """Return what is there."""
        shown = self.run("nft", "--json", "list", "table", *table.split())
        return listing_of([json.loads(shown)])


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """Make a fresh namespace."""
    with namespaces_or_skip("rules") as [inside]:
        yield Kernel(inside)


def endpoints(*numbers: int, family: str = "IPv4") -> list[PortEndpoint]:
    """Return endpoints on three nodes in three zones."""
    prefix = "10.180.0." if family == "IPv4" else "fd00:10::"
    return [
        PortEndpoint(
            f"{prefix}{number}",
            8080,
            node_name=f"n{number % 3 + 1}",
            zone=f"zone-{'abc'[number % 3]}",
            weight=number,
        )
        for number in numbers
    ]


def ports(family: str) -> list[RoutedPort]:
    """Return a port of every kind."""
    by_family = {
        "IPv4": ("172.30.0.", "192.0.2.1", "1.2.3.4", ("203.0.113.0/25", "192.168.0.0/16")),
        "IPv6": ("fd00:172::", "2001:db8::9", "2001:db8::4", ("2001:db8::/64", "fd00::/8")),
    }
    prefix, external, balancer, ranges = by_family[family]
    plain = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", f"{prefix}1", 80)
    full = replace(
        plain,
        service=NamespacedName("ns1", "full"),
        cluster_ip=f"{prefix}2",
        node_port=30001,
        external_ips=(external,),
        load_balancer_ips=(balancer,),
        source_ranges=ranges,
    )
    return [
        plain,
        replace(plain, name="udp", protocol="UDP"),
        replace(plain, name="sctp", protocol="SCTP"),
        full,
        replace(
            full,
            service=NamespacedName("n" * 63, "s" * 63),
            name="p" * 63,
            port=81,
            node_port=30002,
            external_policy=TrafficPolicy.LOCAL,
            session_affinity="ClientIP",
            affinity_seconds=10800,
        ),
        replace(plain, service=NamespacedName(NASTY, NASTY * 40), name=NASTY, port=82),
    ]


LAYOUTS = [
    pytest.param(SETTINGS, id="usual"),
    pytest.param(replace(SETTINGS, pooled=True), id="pooled"),
    pytest.param(replace(SETTINGS, count_by=CountBy.ZONE, nodeport_ips=None), id="by zone"),
    pytest.param(
        replace(
            SETTINGS,
            count_by=CountBy.NODE,
            masquerade_all=True,
            table="other",
            local_traffic=LocalTraffic(DetectLocal.INTERFACE_PREFIX, "veth"),
        ),
        id="by node",
    ),
    pytest.param(
        replace(
            SETTINGS, local_traffic=LocalTraffic(DetectLocal.INTERFACE, NASTY), service_cidrs=()
        ),
        id="by bridge",
    ),
    pytest.param(
        RulesetSettings(
            family="IPv6",
            node_name="n1",
            node_ip="2001:db8::1",
            local_traffic=LocalTraffic(DetectLocal.CIDR, "fd00:10::/64"),
            nodeport_ips=("2001:db8::1",),
            service_cidrs=("fd00:172::/108", "fd00:173::/108"),
            count_by=CountBy.ZONE,
        ),
        id="IPv6",
    ),
]


@pytest.mark.parametrize("settings", LAYOUTS)
def test_kernel_takes_every_kind_of_object(kernel: Kernel, settings: RulesetSettings) -> None:
    """All phases, a change of everything, the sweep; and a restart finds nothing to do."""
    family, table = settings.family, settings.whole_table
    ruleset = Ruleset(settings)
    for count, port in enumerate(ports(family)):
        tell_port(ruleset, port, endpoints(*range(1, count + 1), family=family))
    update = ruleset.reconcile(TableListing())
    kernel.write(*update.phases)

    for count, port in enumerate(ports(family)):
        tell_port(ruleset, port, endpoints(*range(count, 9, 2), family=family)[1:])
    changed = ruleset.commit()
    assert changed is not None
    kernel.write(*changed.phases)
    kernel.write(*ruleset.sweep(changed.serial))
    if settings.pooled:
        # Pools that nobody needs any more are left to the next comparison.
        compared = ruleset.reconcile(kernel.listing(table))
        kernel.write(*compared.phases, *ruleset.sweep(compared.serial))

    model, listing = ruleset.model(), kernel.listing(table)
    assert listing.chains == set(model.chains)
    assert listing.sets == set(model.sets)
    assert listing.elements == {
        **{name: {} for name in (*model.sets, *model.maps)},
        **{
            name: {
                key: "" if one.verdict is None else one.verdict.text()
                for key, one in elements.items()
            }
            for name, elements in model.elements.items()
            if name in model.sets or name in model.maps
        },
    }
    again = ruleset.reconcile(listing)
    assert not any("add set" not in line for text in again.phases for line in text.splitlines())
    assert again.retired == 0
    kernel.write(*again.phases)

    kernel.write(*ruleset.reconcile(listing, trust=False).phases)
    for port in ports(family):
        ruleset.set_port(ServicePortKey.of(port), None, None)
    removed = ruleset.commit()
    assert removed is not None
    kernel.write(*removed.phases)
    kernel.write(*ruleset.sweep(removed.serial))
    left = [name for name in kernel.listing(table).chains if not name.startswith("pool/")]
    assert set(left) == set(ruleset.model().chains)
    kernel.write(cleanup_text(settings))
    assert kernel.run("nft", "list", "tables") == ""
    kernel.write(cleanup_text(settings))


def test_kernel_lets_go_of_kube_proxys_table(kernel: Kernel) -> None:
    """A table with other priorities and other chains is taken over in two transactions."""
    theirs = "service-ULMVA6XW-ns1/svc1/tcp/p80"
    kernel.write(
        "add table ip kube-proxy\n"
        "add chain ip kube-proxy services\n"
        "add chain ip kube-proxy nat-prerouting { type nat hook prerouting priority -90 ; }\n"
        "add rule ip kube-proxy nat-prerouting jump services\n"
        f"add chain ip kube-proxy {theirs}\n"
        f"add rule ip kube-proxy {theirs} meta l4proto tcp dnat to 10.180.0.1:8080\n"
        "add set ip kube-proxy cluster-ips { type ipv4_addr ; }\n"
        "add element ip kube-proxy cluster-ips { 172.30.0.99 }\n"
        "add map ip kube-proxy service-ips "
        "{ type ipv4_addr . inet_proto . inet_service : verdict ; }\n"
        f"add element ip kube-proxy service-ips {{ 172.30.0.1 . tcp . 80 : goto {theirs} }}\n"
    )
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, ports("IPv4")[0], endpoints(1, 2))
    update = ruleset.reconcile(kernel.listing())
    kernel.write(*update.phases)
    kernel.write(*ruleset.sweep(update.serial))
    assert kernel.listing().chains == set(ruleset.model().chains)
    assert kernel.listing().elements["cluster-ips"] == {("172.30.0.1",): ""}


def test_kernel_spreads_connections_by_weight(kernel: Kernel) -> None:
    """A range of numbers in a map means what it says, and the counter counts connections."""
    script = """
import socket
for _ in range(400):
    s = socket.socket(); s.settimeout(20); s.connect(("172.30.0.1", 80)); s.close()
"""
    server = """
import socket, sys, threading
socks = []
for name in ("10.180.0.1", "10.180.0.2"):
    s = socket.create_server((name, 8080), backlog=512); socks.append(s)
def serve(s):
    while True:
        s.accept()[0].close()
for s in socks:
    threading.Thread(target=serve, args=(s,), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
    for address in ("10.180.0.1", "10.180.0.2"):
        kernel.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    kernel.run("ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
    kernel.run("ip", "address", "add", "192.168.0.2/24", "dev", "d0")
    kernel.run("ip", "link", "set", "d0", "up")
    kernel.run("ip", "link", "set", "d1", "up")
    kernel.run("ip", "route", "add", "default", "dev", "d0")
    ruleset = Ruleset(replace(SETTINGS, count_by=CountBy.ZONE))
    heavy, light = endpoints(1, 2)
    tell_port(ruleset, ports("IPv4")[0], [replace(heavy, weight=9), replace(light, weight=1)])
    kernel.write(*ruleset.reconcile(TableListing()).phases)
    with subprocess.Popen(
        kernel.inside.command(sys.executable, "-c", server),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        kernel.run(sys.executable, "-c", script)
        process.terminate()
    counts: dict[str, int] = {}
    for key, count in kernel.inside.do(
        lambda: read_counts("ip", "kube-proxy", "counted-connections")
    ).items():
        slot = ("counted-connections", decode_key(key, "ip", has_endpoint=True))
        counted = ruleset.counted_by(slot)
        assert isinstance(counted, Counted)
        counts[counted.zone] = count.packets
    assert counts["zone-b"] + counts["zone-c"] == 400
    # Beyond lies less than one chance in 10 ** 10; an even spread would give 200.
    assert 316 <= counts["zone-b"] <= 396
