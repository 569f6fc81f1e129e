"""The tracer follows rules as the kernel does, and says with which probability."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace

from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset import CountBy, Table
from keepclose.ruleset.statements import (
    Drop,
    Goto,
    IsNew,
    Jump,
    Lookup,
    PacketField,
    Reject,
    Return,
    SetMark,
    Statement,
)
from keepclose.ruleset.tables import Chain, Element, Hook, Map, Slot, make_rule
from keepclose.ruleset.tracer import Fate, Packet, Trace, TracedNode, trace_outcomes, trace_packet
from support.ruleset.tracednodes import (
    NODE_IP,
    OUTSIDE,
    POD,
    SETTINGS,
    make_ruleset,
    shown,
    tell_port,
)

PORT = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", "172.30.0.41", 80)
HERE = PortEndpoint("10.180.0.1", 80, node_name="n1", zone="zone-a")
THERE = PortEndpoint("10.180.1.1", 80, node_name="n2", zone="zone-b")
NODE = TracedNode(frozenset({NODE_IP}))


def table_of(
    port: RoutedPort, *endpoints: PortEndpoint, count_by: CountBy = CountBy.NOTHING
) -> Table:
    """Return the whole table for one port."""
    ruleset = make_ruleset(settings=replace(SETTINGS, count_by=count_by))
    tell_port(ruleset, port, endpoints)
    return ruleset.model()


def chances(table: Table, packet: Packet, node: TracedNode = NODE) -> dict[str, Fraction]:
    """Return how likely each end is."""
    found: dict[str, Fraction] = {}
    for trace, probability in trace_outcomes(table, packet, node):
        found[shown(trace)] = found.get(shown(trace), Fraction(0)) + probability
    return found


@pytest.mark.parametrize("count_by", CountBy)
@pytest.mark.parametrize("affinity", [0, 600])
def test_shares_are_probabilities(count_by: CountBy, affinity: int) -> None:
    """However the choice is written down."""
    port = replace(
        PORT, session_affinity="ClientIP" if affinity else "None", affinity_seconds=affinity
    )
    table = table_of(port, replace(HERE, weight=3), replace(THERE, weight=2), count_by=count_by)
    assert chances(table, Packet(POD, "172.30.0.41", 80)) == {
        "10.180.0.1:80": Fraction(3, 5),
        "10.180.1.1:80": Fraction(2, 5),
    }


def test_caller_draws() -> None:
    """Shares go to the caller, whose answer is followed."""
    table = table_of(PORT, replace(HERE, weight=3), THERE)
    asked: list[list[int]] = []

    def last(shares: object) -> int:
        assert isinstance(shares, list)
        asked.append(shares)
        return len(shares) - 1

    trace = trace_packet(table, Packet(POD, "172.30.0.41", 80), NODE, choose=last)
    assert (trace.endpoint, asked) == (("10.180.1.1", 80), [[3, 1]])


def test_remembered_client_goes_back_to_its_endpoint() -> None:
    """And is remembered anew."""
    port = replace(PORT, session_affinity="ClientIP", affinity_seconds=600)
    table = table_of(port, HERE, THERE)
    (memory,) = [name for name in table.sets if name.endswith("10.180.1.1/80")]
    packet = Packet(POD, "172.30.0.41", 80)
    (outcome,) = trace_outcomes(
        table, packet, TracedNode(NODE.addresses, {memory: frozenset({POD})})
    )
    assert outcome.trace.endpoint == ("10.180.1.1", 80)
    assert outcome.trace.remembered == (memory,)
    assert (
        len(chances(table, packet, TracedNode(remembered={memory: frozenset({"10.0.0.3"})}))) == 2
    )


def test_counters_count_where_connections_go() -> None:
    """One element counts each connection, by what the client used and the endpoint it got."""
    table = table_of(replace(PORT, node_port=30001), HERE, THERE, count_by=CountBy.ZONE)

    def counted(packet: Packet) -> list[tuple[Slot, ...]]:
        return [trace.counted for trace, _ in trace_outcomes(table, packet, NODE)]

    endpoints = [("10.180.0.1", "80"), ("10.180.1.1", "80")]
    for source, from_node in ((POD, False), (NODE_IP, True)):
        used = ("172.30.0.41", "tcp", "80")
        assert counted(Packet(source, "172.30.0.41", 80, from_node=from_node)) == [
            (("counted-connections", (*used, *endpoint)),) for endpoint in endpoints
        ]
        assert counted(Packet(source, NODE_IP, 30001, from_node=from_node)) == [
            (("counted-nodeports", ("tcp", "30001", *endpoint)),) for endpoint in endpoints
        ]
    assert counted(Packet(OUTSIDE, NODE_IP, 30001)) == [
        (("counted-outside-nodeports", ("tcp", "30001", *endpoint)),) for endpoint in endpoints
    ]


def test_a_connection_of_the_node_to_itself_is_counted_once() -> None:
    """It passes postrouting and input, and nat chains of the second do not see it."""
    own = replace(HERE, address=NODE_IP)
    table = table_of(replace(PORT, node_port=30001), own, count_by=CountBy.ZONE)
    for packet in (
        Packet(NODE_IP, "172.30.0.41", 80, from_node=True),
        Packet(POD, "172.30.0.41", 80),
        Packet(OUTSIDE, NODE_IP, 30001),
    ):
        ((trace, _),) = trace_outcomes(table, packet, NODE)
        assert (trace.endpoint, len(trace.counted)) == ((NODE_IP, 80), 1)


def test_path_names_the_rules_that_took_effect() -> None:
    """From the hook to the translation and the masquerading."""
    table = table_of(replace(PORT, node_port=30001), THERE)
    ((trace, _),) = trace_outcomes(table, Packet(OUTSIDE, NODE_IP, 30001), NODE)
    path = [step.split(":")[0].split("-ULMVA6XW")[0] for step in trace.path]
    assert path == [
        "filter-prerouting-pre-dnat",
        "nat-prerouting",
        "services",
        "external",
        "external",
        "service",
        "filter-forward",
        "filter-forward",
        "count-postrouting",
        "nat-postrouting",
        "masquerading",
    ]
    assert (trace.mark, trace.masqueraded) == (0, True)


def small_table(*statements: tuple[Statement, ...], other: tuple[Statement, ...] = ()) -> Table:
    """Return a table with one base chain that jumps to `first`, and a chain `second`."""
    chains = [
        Chain(
            "base",
            (
                make_rule("ip", IsNew(), Jump("first")),
                make_rule("ip", SetMark(0x100)),
            ),
            Hook("filter", "prerouting", 0),
        ),
        Chain("first", tuple(make_rule("ip", *one) for one in statements)),
        Chain("second", (make_rule("ip", *other),) if other else ()),
    ]
    return Table(
        "IPv4",
        "t",
        {chain.name: chain for chain in chains},
        {},
        {"ports": Map("ports", ("inet_service",))},
        {
            "ports": {
                ("80",): Element("ports", ("80",), Goto("second")),
                ("81",): Element("ports", ("81",), Drop()),
            }
        },
    )


def traced(table: Table, port: int = 80) -> Trace:
    """Return the only way of a packet from outside."""
    (outcome,) = trace_outcomes(table, Packet(OUTSIDE, "8.8.8.8", port), NODE)
    return outcome.trace


@pytest.mark.parametrize(
    ("rules", "want"),
    [
        pytest.param([(SetMark(1),), (SetMark(2),)], 0x103, id="rule after rule, then back"),
        pytest.param([(Return(),), (SetMark(2),)], 0x100, id="return leaves the chain"),
        pytest.param([(Goto("second"),), (SetMark(2),)], 0x110, id="goto does not come back here"),
        pytest.param([(Jump("second"),), (SetMark(2),)], 0x112, id="jump comes back here"),
        pytest.param(
            [(Lookup((PacketField.PORT,), "ports"),), (SetMark(2),)], 0x110, id="a map may say goto"
        ),
    ],
)
def test_ways_between_chains(rules: list[tuple[Statement, ...]], want: int) -> None:
    """Jump, goto and return are nftables' own."""
    assert traced(small_table(*rules, other=(SetMark(0x10),))).mark == want


def test_lookup_that_finds_nothing_ends_the_rule_only() -> None:
    """The next rule is tried, and the path does not mention the lookup."""
    table = small_table((Lookup((PacketField.PORT,), "ports"), Drop()), (SetMark(2),))
    trace = traced(table, port=82)
    assert (trace.fate, trace.mark) == (Fate.PASSED, 0x102)
    assert not any("vmap" in step for step in trace.path)
    assert traced(table, port=81).fate is Fate.DROPPED


def test_refusals_end_the_way() -> None:
    """Nothing after them is looked at."""
    assert traced(small_table((Reject(),), (SetMark(2),))) == Trace(
        Fate.REJECTED,
        None,
        masqueraded=False,
        mark=0,
        remembered=(),
        counted=(),
        path=("base: ct state new jump first", "first: reject"),
    )


def test_endless_jumps_are_told() -> None:
    """The kernel would not have taken such rules."""
    with pytest.raises(RecursionError, match="first"):
        traced(small_table((Jump("first"),)))
