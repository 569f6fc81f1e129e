"""Connections as the kernel counted them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates
from keepclose.proxy.counters.connections import ConnectionCounters
from keepclose.proxy.counters.kernel_counters import (
    ElementCount,
    ElementCounts,
    KernelCounters,
    read_counts,
    read_some_counts,
)
from keepclose.proxy.counters.metrics import ConnectionCount
from keepclose.proxy.nft.element_messages import decode_key, encode_key
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftFamily
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.ruleset.settings import CountBy, DetectLocal, LocalTraffic, RulesetSettings
from keepclose.ruleset.tables import ElementKey
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.recording_writer import RecordingWriter
from support.builders import endpoint, endpoint_slice, service
from support.netns import namespaces_or_skip
from support.proxies import FakeCounters

GATES = FeatureGates()


def make_rules(
    *,
    pooled: bool = False,
    local_traffic: LocalTraffic = LocalTraffic(),  # noqa: B008 (frozen)
    node_port: int = 0,
    port_name: str = "http",
) -> Rules:
    """Return the rules of a Service with endpoints in two zones and none of a zone."""
    settings = RulesetSettings(count_by=CountBy.ZONE, pooled=pooled, local_traffic=local_traffic)
    rules = Rules(settings, writer=RecordingWriter())
    found = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a"),
        endpoint("10.0.0.2", zone="zone-b"),
        endpoint("10.0.0.3"),
    )
    [port] = routed_ports(service(), "IPv4", gates=GATES)
    endpoints = collect_endpoints([found], "IPv4", gates=GATES)[port.key]
    port = replace(port, node_port=node_port, name=port_name)
    rules.set_port(port, select(port, endpoints, node=NodeView("n1"), gates=GATES))
    return rules


def connection(address: str, packets: int) -> dict[bytes, ElementCount]:
    """Return the counter of connections that used the cluster IP and got an endpoint."""
    key = ("10.96.0.10", "tcp", "80", address, "8080")
    return {encode_key(key, "ip"): ElementCount(b"", packets)}


def make_counters(
    reader: FakeCounters, clock: FakeClock, rules: Rules, *, zone: str = "zone-a"
) -> ConnectionCounters:
    """Return the counters of a node."""
    return ConnectionCounters(
        {"IPv4": rules}, table="kube-proxy", zone=lambda: zone, reader=reader, clock=clock
    )


async def test_counts_by_zone() -> None:
    """Each element counts for its endpoint's zone; an unknown element is left out."""
    rules = make_rules()
    await rules.write_all()
    reader, clock = FakeCounters(), FakeClock()
    reader.elements["counted-connections"] = {
        **connection("10.0.0.1", 5),
        **connection("10.0.0.2", 2),
        **connection("10.0.0.3", 1),
        **connection("10.0.0.9", 9),
        b"\x01": ElementCount(b"", 3),
    }
    counters = make_counters(reader, clock, rules)
    await counters.refresh()
    port = ("default", "web", "http", "TCP", "zone-a")
    assert counters.counts == (
        ConnectionCount(*port, "(none)", "", 1),
        ConnectionCount(*port, "zone-a", "", 5),
        ConnectionCount(*port, "zone-b", "", 2),
    )
    # Several readers within a second share one look.
    before = reader.reads
    await counters.refresh()
    assert reader.reads == before
    await clock.advance(1.5)
    reader.elements["counted-connections"] = connection("10.0.0.1", 6)
    await counters.refresh()
    assert (reader.reads, counters.counts[1].connections) == (2 * before, 6)


@pytest.mark.parametrize(
    ("local", "zone", "want"),
    [
        pytest.param("10.0.0.0/24", "zone-a", ["(outside)", "zone-a"], id="pods are known"),
        pytest.param("", "zone-a", ["zone-a"], id="pods are not known"),
        pytest.param("", "", ["(none)"], id="a node without a zone"),
    ],
)
async def test_the_zone_of_clients(local: str, zone: str, want: list[str]) -> None:
    """A client's zone is that of the node, unless the rules know that it is not of the node."""
    traffic = LocalTraffic(DetectLocal.CIDR, local) if local else LocalTraffic()
    rules = make_rules(local_traffic=traffic, node_port=30001, port_name="")
    await rules.write_all()
    reader = FakeCounters()
    key = encode_key(("tcp", "30001", "10.0.0.2", "8080"), "ip")
    for container in rules.counted_containers:
        if "nodeports" in container and "unserved" not in container:
            reader.elements[container] = {key: ElementCount(b"", 4)}
    counters = make_counters(reader, FakeClock(), rules, zone=zone)
    await counters.refresh()
    assert [count.client_zone for count in counters.counts] == want
    assert {count[:4] + count[5:] for count in counters.counts} == {
        ("default", "web", "80", "TCP", "zone-b", "", 4)
    }


async def test_counts_that_cannot_be_read_stay() -> None:
    """A kernel that does not answer leaves the last counts as they are."""

    class Broken(FakeCounters):
        async def read_elements(self, family: object, table: str, *_: object) -> ElementCounts:
            raise OSError(1, f"no {family} {table}")

    counters = make_counters(Broken(), FakeClock(), make_rules())
    counts = (ConnectionCount("default", "web", "http", "TCP", "", "", "", 1),)
    counters.counts = counts
    await counters.refresh()
    assert counters.counts == counts


async def test_a_namespace_that_is_not_there() -> None:
    """What cannot be read is an OSError, whatever stands behind it."""
    with namespaces_or_skip("counters") as [inside]:
        path = inside.path
    reader = KernelCounters(namespace=path)
    with pytest.raises(OSError, match="No such file"):
        await reader.read_elements("ip", "t", "m")
    await reader.close()


COUNTED = """add table ip t
add map ip t m {{ typeof ip daddr . meta l4proto . th dport . numgen random mod 65536 : \
ip daddr . tcp dport ; counter ; }}
add set ip t s {{ type inet_proto . inet_service ; counter ; }}
add element ip t s {{ tcp . 30001 counter packets 9 bytes 1 }}
add element ip t m {{ {elements} }}
"""


def test_counters_of_elements_are_read() -> None:
    """Of all elements of a map or set, however many, and of those asked for; others have none."""
    with namespaces_or_skip("counters") as [inside]:
        elements = [
            f"10.96.{one >> 8}.{one & 255} . tcp . 80 . 3 counter packets {one} bytes 1 "
            f": 10.0.0.1 . 8080"
            for one in range(5000)
        ]
        inside.run("nft", "-f", "-", text=COUNTED.format(elements=" , ".join(elements)))
        found = inside.do(lambda: read_counts("ip", "t", "m"))
        by_key = {decode_key(key, "ip"): count.packets for key, count in found.items()}
        assert by_key == {
            (f"10.96.{one >> 8}.{one & 255}", "tcp", "80", "3"): one for one in range(5000)
        }
        keys = [("10.96.0.7", "tcp", "80", "3"), ("10.96.0.7", "tcp", "80", "4")]
        some = inside.do(lambda: read_some_counts("ip", "t", "m", keys))
        assert {decode_key(key, "ip"): one.packets for key, one in some.items()} == {keys[0]: 7}
        [(key, count)] = inside.do(lambda: read_counts("ip", "t", "s")).items()
        assert (decode_key(key, "ip"), count.packets) == (("tcp", "30001"), 9)
        assert inside.do(lambda: read_counts("ip", "t", "absent")) == {}
        assert inside.do(lambda: read_counts("ip6", "t", "m")) == {}


@pytest.mark.parametrize("ip", ["ip", "ip6"])
def test_counters_of_connections_are_read(ip: NftFamily) -> None:
    """Keys that end in an endpoint are read and asked for, with and without a first address."""
    used, got = ("10.96.0.1", "10.0.0.1") if ip == "ip" else ("fd00:96::1", "fd00::1")
    address = "ipv4_addr" if ip == "ip" else "ipv6_addr"
    door = ("tcp", "30001", got, "8080")
    text = f"add table {ip} t\n"
    for name, key in (("c", (used, "tcp", "80", got, "8080")), ("n", door)):
        types = "inet_proto . inet_service . " + f"{address} . inet_service"
        first = f"{address} . " if name == "c" else ""
        text += f"add set {ip} t {name} {{ type {first}{types} ; counter ; }}\n"
        text += f"add element {ip} t {name} {{ {' . '.join(key)} counter packets 5 bytes 1 }}\n"
    with namespaces_or_skip("counters") as [inside]:
        inside.run("nft", "-f", "-", text=text)
        for name, key in (("c", (used, "tcp", "80", got, "8080")), ("n", door)):
            for read in (
                inside.do(lambda name=name: read_counts(ip, "t", name)),  # type: ignore[misc]
                inside.do(lambda name=name, key=key: read_some_counts(ip, "t", name, [key])),  # type: ignore[misc]
            ):
                [(raw, count)] = read.items()
                assert (decode_key(raw, ip, has_endpoint=True), count.packets) == (key, 5)


@pytest.mark.parametrize("raw", [b"", b"\x06", bytes(12), bytes(20), bytes(44), bytes(400)])
def test_bytes_that_are_no_connection_key(raw: bytes) -> None:
    """They have no parts, whatever their length is."""
    assert decode_key(raw, "ip", has_endpoint=True) == ()
    assert decode_key(raw, "ip6", has_endpoint=True) == ()


async def test_sums_grow_while_endpoints_come_and_go() -> None:
    """A counter that began again adds to the sum, and so does one that is read before it goes."""
    rules = make_rules(pooled=True)
    await rules.write_all()
    reader, clock = FakeCounters(), FakeClock()
    counters = make_counters(reader, clock, rules)
    key = encode_key(("10.96.0.10", "tcp", "80", "0"), "ip")
    container = "tcp-counted-endpoints"

    async def look(data: bytes, packets: int) -> int:
        reader.elements[container] = {key: ElementCount(data, packets)}
        await clock.advance(1.5)
        await counters.refresh()
        return sum(one.connections for one in counters.counts if one.endpoint_zone == "zone-a")

    # What an earlier proxy counted is not counted again.
    reader.elements[container] = {key: ElementCount(b"a", 100)}
    await counters.start()
    assert await look(b"a", 103) == 3
    assert await look(b"b", 2) == 5
    assert await look(b"b", 1) == 6
    reader.elements[container] = {key: ElementCount(b"b", 11)}
    slot = (container, ("10.96.0.10", "tcp", "80", "0"))
    counted = rules.counted_by(slot)
    assert counted is not None
    await counters.collect("IPv4", {slot: counted})
    assert await look(b"c", 4) == 20


async def test_looks_that_take_long_are_rare() -> None:
    """What was read stays fresh for twenty times as long as reading took."""
    clock = FakeClock()

    class Slow(FakeCounters):
        async def read_elements(
            self,
            family: NftFamily,
            table: str,
            container: str,
            keys: Sequence[ElementKey] | None = None,
        ) -> ElementCounts:
            if container == "counted-connections":
                await clock.sleep(1.0)
                self.slow_reads += 1
            return await super().read_elements(family, table, container, keys)

        slow_reads = 0

    reader = Slow()
    counters = make_counters(reader, clock, make_rules())
    for wait, want in ((0.0, 1), (19.0, 1), (2.0, 2)):
        await clock.advance(wait)
        task = asyncio.create_task(counters.refresh())
        await clock.advance(1.5)
        await task
        assert reader.slow_reads == want
