"""Elements that go to the kernel as netlink messages are those that their text stands for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.proxy.nft.element_messages import NoBinaryFormError, encode_batch
from keepclose.proxy.nft.libnftables import ElementSocket, LibnftablesWriter
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.selection import select
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset import (
    CountBy,
    DetectLocal,
    LocalTraffic,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    TableListing,
    Transaction,
)
from keepclose.ruleset.commands import AddChain, AddElement, AddMap, AddTable, DeleteElement
from keepclose.ruleset.layout import NO_ENDPOINT_SERVICES, SERVICE_IPS
from keepclose.ruleset.statements import Drop, Goto
from keepclose.ruleset.tables import Chain, Element, Map
from support.netns import Namespace, namespaces_or_skip

V4 = RulesetSettings(node_name="n1", node_ip="192.168.0.2", nodeport_ips=("192.168.0.2",))
V6 = RulesetSettings(
    family="IPv6", node_name="n1", node_ip="2001:db8::1", nodeport_ips=("2001:db8::1",)
)
HOSTS = {
    "IPv4": ("172.30.0.", "10.180.0.", "192.0.2.1", "203.0.113.0/25"),
    "IPv6": ("fd00:172::", "fd00:10::", "2001:db8::9", "2001:db8:1::/64"),
}


def pods_of(cidr: str) -> LocalTraffic:
    """Return how a node identifies its pods by their range."""
    return LocalTraffic(DetectLocal.CIDR, cidr)


@pytest.fixture
def inside() -> Iterator[Namespace]:
    """Make a namespace."""
    with namespaces_or_skip("elements") as [made]:
        yield made


def ports(family: str) -> list[RoutedPort]:
    """Return ports that between them have an element in every set and map."""
    service, _, outside, ranges = HOSTS[family]
    plain = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", f"{service}1", 80)
    return [
        plain,
        replace(plain, name="udp", protocol="UDP", port=53),
        replace(plain, name="sctp", protocol="SCTP", port=65535),
        replace(
            plain,
            service=NamespacedName("ns1", "full"),
            cluster_ip=f"{service}2",
            node_port=30001,
            load_balancer_ips=(outside,),
            source_ranges=(ranges,),
        ),
        replace(
            plain,
            service=NamespacedName("ns1", 'a"; é'),
            cluster_ip=f"{service}3",
            node_port=30002,
        ),
    ]


def tell(ruleset: Ruleset, *numbers: int) -> None:
    """Say to the ruleset that all ports but the last have these endpoints."""
    family = ruleset.settings.family
    _, prefix, _, _ = HOSTS[family]
    *routed, refused = ports(family)
    endpoints = [PortEndpoint(f"{prefix}{one}", 8080, node_name=f"n{one % 3}") for one in numbers]
    for port in routed:
        say(ruleset, port, endpoints)
    say(ruleset, refused, [])


def say(ruleset: Ruleset, port: RoutedPort, endpoints: Sequence[PortEndpoint]) -> None:
    """Say what a port has."""
    selection = select(port, endpoints, node=NodeView("n1"), gates=FeatureGates())
    ruleset.set_port(ServicePortKey.of(port), port, selection)


def send(inside: Namespace, transaction: Transaction) -> bool:
    """Write one transaction as messages; return whether the kernel took it."""

    def write() -> bool:
        wire = ElementSocket()
        try:
            return wire.write(transaction)
        finally:
            wire.close()

    return inside.do(write)


def written(inside: Namespace, transactions: Sequence[Transaction], *, is_direct: bool) -> int:
    """Write the transactions; return how many went as messages."""
    count = 0
    for transaction in transactions:
        if is_direct and transaction.elements:
            assert send(inside, transaction), transaction.text
            count += 1
        else:
            inside.run("nft", "-f", "-", text=transaction.text)
    return count


def listed(inside: Namespace, table: str) -> list[Any]:
    """Return what nft lists, without handles and in a fixed order."""
    entries = json.loads(inside.run("nft", "--json", "list", "table", *table.split()))["nftables"]
    for entry in entries:
        for body in entry.values():
            body.pop("handle", None)
            if "elem" in body:
                body["elem"] = sorted(body["elem"], key=json.dumps)
    return sorted((one for one in entries if "metainfo" not in one), key=json.dumps)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(replace(V4, pooled=True), id="pooled"),
        pytest.param(V4, id="own chains"),
        pytest.param(replace(V6, pooled=True), id="IPv6"),
        pytest.param(
            replace(V4, count_by=CountBy.ZONE, local_traffic=pods_of("10.244.1.0/24")), id="counted"
        ),
        pytest.param(
            replace(V6, count_by=CountBy.ZONE, local_traffic=pods_of("fd00:1::/64")),
            id="counted IPv6",
        ),
    ],
)
def test_messages_and_text_make_the_same_table(settings: RulesetSettings) -> None:
    """First rules, changed ones and the deletions after them are the same either way."""
    with namespaces_or_skip("text", "wire") as [by_text, by_message]:
        direct = 0
        for inside, is_direct in ((by_text, False), (by_message, True)):
            ruleset = Ruleset(settings)
            tell(ruleset, *range(1, 41))
            updates = [ruleset.reconcile(TableListing())]
            transactions = list(updates[0].transactions)
            tell(ruleset, *range(3, 50))
            changed = ruleset.commit()
            assert changed is not None
            transactions += changed.transactions
            tell(ruleset, 4, 5)
            fewer = ruleset.commit()
            assert fewer is not None
            transactions += [*fewer.transactions, *ruleset.sweep_transactions(fewer.serial)]
            direct += written(inside, transactions, is_direct=is_direct)
        assert direct >= 3
        want = listed(by_text, settings.whole_table)
        assert listed(by_message, settings.whole_table) == want
        # Nothing that is compared here is empty.
        assert sum(len(body.get("elem", ())) for one in want for body in one.values()) >= 12


def test_elements_beyond_one_attribute(inside: Namespace) -> None:
    """A transaction may hold more elements than fit into one message."""
    keys = [(f"10.{one >> 16}.{one >> 8 & 255}.{one & 255}", "tcp", "80") for one in range(5000)]
    inside.run("nft", "-f", "-", text=TABLE.text)
    added = tuple(AddElement(Element(SERVICE_IPS, key, Goto("c"))) for key in keys)
    assert written(inside, [Transaction("ip t", added)], is_direct=True) == 1
    deleted = tuple(DeleteElement(SERVICE_IPS, key) for key in keys[1:])
    assert written(inside, [Transaction("ip t", deleted)], is_direct=True) == 1
    shown = inside.run("nft", "list", "map", "ip", "t", SERVICE_IPS)
    assert shown.count("goto c") == 1
    assert "10.0.0.0 . tcp . 80 : goto c" in shown


TABLE = Transaction(
    "ip t",
    (
        AddTable("a table"),
        AddChain(Chain("c")),
        AddMap(Map(SERVICE_IPS, ("ipv4_addr", "inet_proto", "inet_service"))),
        AddMap(Map(NO_ENDPOINT_SERVICES, ("ipv4_addr", "inet_proto", "inet_service"))),
    ),
)


def test_a_refused_batch_leaves_nothing(inside: Namespace) -> None:
    """One element that leads nowhere undoes the others of its transaction."""
    inside.run("nft", "-f", "-", text=TABLE.text)
    fine = AddElement(Element(SERVICE_IPS, ("10.0.0.1", "tcp", "80"), Goto("c")))
    wrong = AddElement(Element(SERVICE_IPS, ("10.0.0.2", "tcp", "80"), Goto("gone")))
    assert not send(inside, Transaction("ip t", (fine, wrong)))
    assert "10.0.0.1" not in inside.run("nft", "list", "table", "ip", "t")
    assert send(inside, Transaction("ip t", (fine,)))
    assert "10.0.0.1" in inside.run("nft", "list", "table", "ip", "t")


def test_what_has_no_binary_form() -> None:
    """Keys that only nft can read are never guessed at."""
    for key in (("web.example", "tcp", "80"), ("10.0.0.1", "dccp", "80"), ("tcp", "http"), ()):
        commands = (AddElement(Element(SERVICE_IPS, key, Drop())),)
        with pytest.raises(NoBinaryFormError):
            encode_batch(Transaction("ip t", commands))
    with pytest.raises(NoBinaryFormError):
        encode_batch(
            Transaction("inet t", (DeleteElement(SERVICE_IPS, ("10.0.0.1", "tcp", "80")),))
        )
    assert encode_batch(TABLE) == b""


class Counting(LibnftablesWriter):
    """Notes what libnftables is given."""

    def __init__(self, inside: Namespace) -> None:
        super().__init__(namespace=inside.path)
        self.texts: list[str] = []

    async def apply(self, text: str) -> None:
        """Note the text and apply it."""
        self.texts.append(text)
        await super().apply(text)


async def test_a_changed_endpoint_never_meets_libnftables(inside: Namespace) -> None:
    """So the tables of others on the machine, which libnftables reads, cost nothing."""
    writer = Counting(inside)
    rules = Rules(replace(V4, pooled=True), writer=writer)
    [port, *_] = ports("IPv4")
    gates, node = FeatureGates(), NodeView("n1")
    endpoints = [PortEndpoint(f"10.180.0.{one}", 80) for one in range(1, 4)]
    rules.set_port(port, select(port, endpoints, node=node, gates=gates))
    await rules.write_all()
    writer.texts.clear()
    others = [*endpoints[:2], PortEndpoint("10.180.0.9", 80)]
    rules.set_port(port, select(port, others, node=node, gates=gates))
    await rules.write_changes()
    assert writer.texts == []
    assert "10.180.0.9 . 80" in inside.run("nft", "list", "table", "ip", "kube-proxy")
    await writer.close()


async def test_a_refused_element_is_named(inside: Namespace) -> None:
    """What the kernel refuses as messages is told in the words of nft, with its line."""
    writer = Counting(inside)
    rules = Rules(replace(V4, pooled=True), writer=writer)
    [port, *_] = ports("IPv4")
    gates, node = FeatureGates(), NodeView("n1")
    endpoints = [PortEndpoint(f"10.180.0.{one}", 80) for one in range(1, 4)]
    rules.set_port(port, select(port, endpoints, node=node, gates=gates))
    await rules.write_all()
    inside.run("nft", "flush", "map", "ip", "kube-proxy", "tcp-endpoints")
    others = [*endpoints[:2], PortEndpoint("10.180.0.9", 80)]
    rules.set_port(port, select(port, others, node=node, gates=gates))
    with pytest.raises(NftError) as caught:
        await rules.write_changes()
    assert caught.value.failure is NftFailure.NOT_FOUND
    assert caught.value.line.startswith("delete element ip kube-proxy tcp-endpoints {")
    await writer.close()
