"""Connections as the kernel counted them."""

from __future__ import annotations

import pytest

from keepclose.model.gates import FeatureGates
from keepclose.proxy.counterdump import KernelCounters, dump_counters
from keepclose.proxy.counters import ConnectionCounters
from keepclose.proxy.metrics import ConnectionCount
from keepclose.proxy.recording import RecordingWriter
from keepclose.proxy.rules import Rules
from keepclose.routing.portendpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.serviceports import routed_ports
from keepclose.ruleset.settings import CountBy, RulesetSettings
from keepclose.testing.builders import endpoint, endpoint_slice, service
from keepclose.testing.fakeclock import FakeClock
from keepclose.testing.netns import namespaces_or_skip
from keepclose.testing.proxies import FakeCounters

GATES = FeatureGates()


def make_rules() -> Rules:
    """Return the rules of a Service with endpoints in two zones and none of a zone."""
    rules = Rules(RulesetSettings(count_by=CountBy.ZONE), writer=RecordingWriter())
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
