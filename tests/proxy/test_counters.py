"""Connections as the kernel counted them."""

from __future__ import annotations

import asyncio

import pytest

from keepclose.model.gates import FeatureGates
from keepclose.proxy.counters.connections import ConnectionCounters
from keepclose.proxy.counters.kernel_counters import (
    ElementCount,
    KernelCounters,
    dump_counters,
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
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.recording_writer import RecordingWriter
from support.builders import endpoint, endpoint_slice, service
from support.netns import namespaces_or_skip
from support.proxies import FakeCounters

GATES = FeatureGates()


def make_rules(*, pooled: bool = False) -> Rules:
    """Return the rules of a Service with endpoints in two zones and none of a zone."""
    settings = RulesetSettings(count_by=CountBy.ZONE, pooled=pooled)
    rules = Rules(settings, writer=RecordingWriter())
    found = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a"),
        endpoint("10.0.0.2", zone="zone-b"),
        endpoint("10.0.0.3"),
    )
    [port] = routed_ports(service(), "IPv4", gates=GATES)
    endpoints = collect_endpoints([found], "IPv4", gates=GATES)[port.key]
    rules.set_port(port, select(port, endpoints, node=NodeView("n1"), gates=GATES))
    return rules


async def test_counts_by_zone() -> None:
    """Each counter is told by the zone that it counts for; others in the table are left out."""
    rules = make_rules()
    names = {counted.zone: name for name, counted in rules._ruleset.counters().items()}
    assert sorted(names) == ["", "zone-a", "zone-b"]
    reader = FakeCounters({names["zone-a"]: 5, names["zone-b"]: 2, names[""]: 1, "foreign": 9})
    clock = FakeClock()
    counters = ConnectionCounters(
        {"IPv4": rules, "IPv6": rules}, table="kube-proxy", reader=reader, clock=clock
    )
    await counters.refresh()
    assert counters.counts == (
        ConnectionCount("default", "web", "", "", 1),
        ConnectionCount("default", "web", "zone-a", "", 5),
        ConnectionCount("default", "web", "zone-b", "", 2),
    )
    # Several readers within a second share one look at both families.
    await counters.refresh()
    assert reader.reads == 2
    await clock.advance(1.5)
    reader.numbers[names["zone-a"]] = 6
    await counters.refresh()
    assert (reader.reads, counters.counts[1].connections) == (4, 6)


async def test_counts_that_cannot_be_read_stay() -> None:
    """A kernel that does not answer leaves the last counts as they are."""

    class Broken(FakeCounters):
        async def read(self, family: object, table: str) -> dict[str, int]:
            raise OSError(1, f"no {family} {table}")

    counters = ConnectionCounters(
        {"IPv4": make_rules()}, table="kube-proxy", reader=Broken(), clock=FakeClock()
    )
    counters.counts = (ConnectionCount("default", "web", "", "", 1),)
    await counters.refresh()
    assert counters.counts == (ConnectionCount("default", "web", "", "", 1),)


async def test_counters_of_the_kernel() -> None:
    """Named counters of one table are read, with many of them too; a missing table has none."""
    with namespaces_or_skip("counters") as [inside]:
        lines = ["add table ip t", "add counter ip t one { packets 7 bytes 700 ; }"]
        lines += [f"add counter ip t many-{number}" for number in range(3000)]
        lines += ["add table ip other", "add counter ip other two", "add table ip6 t"]
        lines += [
            "add counter ip6 t six { packets 3 bytes 1 ; }",
            "add quota ip t q { 1 mbytes ; }",
        ]
        inside.run("nft", "-f", "-", text="\n".join(lines) + "\n")
        found = inside.do(lambda: dump_counters("ip", "t"))
        assert (len(found), found["one"], found["many-2999"]) == (3001, 7, 0)
        reader = KernelCounters(namespace=inside.path)
        assert await reader.read("ip6", "t") == {"six": 3}
        assert await reader.read("ip", "absent") == {}
        await reader.close()


async def test_a_namespace_that_is_not_there() -> None:
    """What cannot be read is an OSError, whatever stands behind it."""
    with namespaces_or_skip("counters") as [inside]:
        path = inside.path
    reader = KernelCounters(namespace=path)
    with pytest.raises(OSError, match="No such file"):
        await reader.read("ip", "t")
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


async def test_sums_grow_while_endpoints_come_and_go() -> None:
    """A counter that began again adds to the sum, and so does one that is read before it goes."""
    rules = make_rules(pooled=True)
    await rules.write_all()
    reader, clock = FakeCounters(), FakeClock()
    counters = ConnectionCounters({"IPv4": rules}, table="kube-proxy", reader=reader, clock=clock)
    key = encode_key(("10.96.0.10", "tcp", "80", "0"), "ip")
    container = "tcp-counted-endpoints"

    async def look(data: bytes, packets: int) -> int:
        reader.elements[container] = {key: ElementCount(data, packets)}
        await clock.advance(1.5)
        await counters.refresh()
        return sum(one.connections for one in counters.counts if one.zone == "zone-a")

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
        async def read(self, family: NftFamily, table: str) -> dict[str, int]:
            await clock.sleep(1.0)
            return await super().read(family, table)

    reader = Slow()
    counters = ConnectionCounters(
        {"IPv4": make_rules()}, table="kube-proxy", reader=reader, clock=clock
    )
    for wait, want in ((0.0, 1), (19.0, 1), (2.0, 2)):
        await clock.advance(wait)
        task = asyncio.create_task(counters.refresh())
        await clock.advance(1.5)
        await task
        assert reader.reads == want
