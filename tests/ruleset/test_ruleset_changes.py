"""From any state to any other: no step is refused, none loses a connection, all end as wanted."""

from __future__ import annotations

import re
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.ruleset import (
    CountBy,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    Transaction,
    Update,
)
from keepclose.ruleset.tracer import Packet
from support.ruleset.kerneltables import KernelTable
from support.ruleset.tracednodes import SETTINGS, follow, tell_port

GATES = FeatureGates().with_gates(Gate.PREFER_LOCAL_TRAFFIC_POLICY)
PORTS = (
    RoutedPort(NamespacedName("ns", "a"), "http", "TCP", "172.30.0.1", 80),
    RoutedPort(NamespacedName("ns", "a"), "dns", "UDP", "172.30.0.1", 53),
    RoutedPort(NamespacedName("ns", "b"), "", "TCP", "172.30.0.2", 80),
)
CLIENTS = ("10.0.0.9", "192.168.0.2", "203.0.113.9")

policies = st.sampled_from(TrafficPolicy)
ports = st.builds(
    lambda port, seconds, node_port, lbs, externals, ranges, internal, external: replace(
        port,
        session_affinity="ClientIP" if seconds else "None",
        affinity_seconds=seconds,
        node_port=node_port,
        load_balancer_ips=lbs,
        external_ips=externals,
        source_ranges=ranges,
        internal_policy=internal,
        external_policy=external,
    ),
    st.sampled_from(PORTS),
    st.sampled_from([0, 0, 60, 600]),
    st.sampled_from([0, 30001, 30002]),
    st.sampled_from([(), ("1.2.3.4",), ("1.2.3.4", "5.6.7.8")]),
    st.sampled_from([(), ("192.0.2.9",)]),
    st.sampled_from([(), ("192.168.0.0/16",), ("203.0.113.0/24", "192.168.0.0/24")]),
    policies,
    policies,
)
endpoints = st.lists(
    st.builds(
        lambda number, node, ready, weight: PortEndpoint(
            f"10.1.{node}.{number}",
            8080,
            ready=ready,
            serving=True,
            terminating=not ready,
            node_name=f"n{node}",
            zone=f"zone-{'abc'[node % 3]}",
            weight=weight,
        ),
        st.integers(1, 3),
        st.integers(1, 3),
        st.booleans(),
        st.sampled_from([1, 1, 1, 5]),
    ),
    max_size=4,
    unique_by=lambda one: one.address,
)


class Said(NamedTuple):
    """What a ruleset is told about a port."""

    port: RoutedPort
    endpoints: tuple[PortEndpoint, ...]


class Step(NamedTuple):
    """What happens between two commits."""

    said: tuple[Said, ...]
    removed: tuple[ServicePortKey, ...]
    cidrs: tuple[str, ...] | None
    restarts: bool
    sweeps: bool


def steps(told: st.SearchStrategy[RoutedPort]) -> st.SearchStrategy[Step]:
    """Return steps in which such ports are told of."""
    keys = [ServicePortKey.of(port) for port in PORTS]
    return st.builds(
        Step,
        st.lists(st.builds(Said, told, endpoints.map(tuple)), max_size=3).map(tuple),
        st.lists(st.sampled_from(keys), max_size=1).map(tuple),
        st.sampled_from([None, None, ("172.30.0.0/16",), ("10.96.0.0/12",)]),
        st.sampled_from([False, False, True]),
        st.booleans(),
    )


def state(kernel: KernelTable) -> object:
    """Return what has to be the same in two tables."""
    table = kernel.table()
    return (
        {name: (chain.rules, chain.hook) for name, chain in table.chains.items()},
        table.sets,
        table.maps,
        {
            name: {key: element.verdict for key, element in elements.items()}
            for name, elements in table.elements.items()
            if elements
        },
    )


def wanted(ruleset: Ruleset) -> object:
    """Return the same of what a ruleset wants."""
    model = ruleset.model()
    kernel = KernelTable()
    kernel.chains, kernel.sets, kernel.maps = model.chains, model.sets, model.maps
    kernel.elements = model.elements
    return state(kernel)


def reached(kernel: KernelTable) -> dict[Packet, tuple[str, bool]]:
    """Return what becomes of packets to every address that might be served."""
    targets = [("172.30.0.1", 80, "tcp"), ("172.30.0.1", 53, "udp"), ("172.30.0.2", 80, "tcp")]
    targets += [("192.168.0.2", 30001, "tcp"), ("1.2.3.4", 80, "tcp"), ("192.0.2.9", 80, "tcp")]
    packets = [
        Packet(client, address, port, protocol)
        for client in CLIENTS
        for address, port, protocol in targets
    ]
    table = kernel.table()
    return {packet: follow(table, packet) for packet in packets}


def apply_watched(kernel: KernelTable, transactions: tuple[Transaction, ...]) -> None:
    """Apply step by step; what is served before and after is served, old or new, in between."""
    before = reached(kernel)
    between = []
    for transaction in transactions:
        kernel.apply([transaction])
        between.append(reached(kernel))
    if not between:
        return
    after = between.pop()
    for moment in between:
        for packet, got in moment.items():
            ends = before[packet], after[packet]
            if all(":" in to for to, _ in ends):
                old, new, now = [set(to.split(", ")) for to, _ in (*ends, got)]
                assert now <= old | new, packet
                assert got[1] in {masqueraded for _, masqueraded in ends}, packet
            else:
                assert got in ends or ":" not in got[0], packet


def carry_out(plan: list[Step], chosen: RulesetSettings) -> tuple[Ruleset, KernelTable]:
    """Return what there is after all steps, each of which was watched."""
    ruleset = Ruleset(chosen)
    kernel = KernelTable()
    kernel.apply(ruleset.reconcile(kernel.listing()).transactions)
    said: dict[ServicePortKey, Said] = {}
    for step in plan:
        for one in step.said:
            said[ServicePortKey.of(one.port)] = one
            tell_port(ruleset, one.port, one.endpoints, gates=GATES)
        for key in step.removed:
            said.pop(key, None)
            ruleset.set_port(key, None, None)
        if step.cidrs is not None:
            ruleset.set_service_cidrs(step.cidrs)
        if step.restarts:
            ruleset = Ruleset(ruleset.settings)
            for one in said.values():
                tell_port(ruleset, one.port, one.endpoints, gates=GATES)
            update: Update | None = ruleset.reconcile(kernel.listing())
        else:
            update = ruleset.commit()
        if update is not None:
            apply_watched(kernel, update.transactions)
            if step.sweeps:
                kernel.apply(ruleset.sweep_transactions(update.serial - 1))
    kernel.apply(ruleset.sweep_transactions(10**6))
    return ruleset, kernel


@settings(deadline=None, max_examples=60)
@given(plan=st.lists(steps(ports), min_size=1, max_size=5), count_by=st.sampled_from(CountBy))
def test_every_way_is_safe_and_ends_as_wanted(plan: list[Step], count_by: CountBy) -> None:
    """Changes, removals, restarts and sweeps in any order."""
    ruleset, kernel = carry_out(plan, replace(SETTINGS, count_by=count_by))
    assert state(kernel) == wanted(ruleset)
    assert ruleset.commit() is None
    assert ruleset.reconcile(kernel.listing()).retired == 0


plain_ports = st.builds(
    lambda port, internal: replace(port, internal_policy=internal), st.sampled_from(PORTS), policies
)


@settings(deadline=None, max_examples=60)
@given(plan=st.lists(steps(st.one_of(plain_ports, plain_ports, ports)), min_size=1, max_size=6))
def test_pooled_ports_are_as_safe(plan: list[Step]) -> None:
    """Pools that nobody needs are left to the next start; all else is as wanted."""
    ruleset, kernel = carry_out(plan, replace(SETTINGS, pooled=True))
    update = ruleset.reconcile(kernel.listing())
    kernel.apply(update.transactions)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert state(kernel) == wanted(ruleset)


LINE = re.compile(
    r"(add|delete|flush) (table|chain|rule|set|map|element|counter) ip kube-proxy[^\n\"]*"
    r"(\"[^\"\n]{0,128}\"[^\n\"]*)*"
)
nasty = st.text(
    alphabet=st.one_of(st.sampled_from("\";\n{}@#\\$*' /é\u2028\x00"), st.characters()), max_size=60
)


@settings(deadline=None, max_examples=150)
@given(names=st.lists(nasty, min_size=9, max_size=9))
def test_no_text_of_an_object_can_break_out(names: list[str]) -> None:
    """Whatever objects hold, each line is one command of known form."""
    namespace, name, port_name, address, zone, node, cluster_ip, external, source = names
    port = RoutedPort(
        NamespacedName(namespace, name),
        port_name,
        "TCP",
        cluster_ip,
        80,
        node_port=30001,
        external_ips=(external, "192.0.2.9"),
        load_balancer_ips=("1.2.3.4", external),
        source_ranges=(source, "10.0.0.0/8"),
        session_affinity="ClientIP",
        affinity_seconds=10,
        external_policy=TrafficPolicy.LOCAL,
    )
    ruleset = Ruleset(
        replace(
            SETTINGS,
            count_by=CountBy.NODE,
            local_traffic=replace(SETTINGS.local_traffic, value=source),
            service_cidrs=(source,),
            nodeport_ips=(address,),
        )
    )
    kernel = KernelTable()
    for told in (
        (),
        (PortEndpoint(address, 80), PortEndpoint("10.0.0.1", 80, zone=zone, node_name=node)),
    ):
        tell_port(ruleset, port, told)
        update = ruleset.reconcile(kernel.listing())
        kernel.apply(update.transactions)
        for text in (*update.phases, *ruleset.sweep(update.serial)):
            assert text.endswith("\n")
            for line in text.removesuffix("\n").split("\n"):
                assert LINE.fullmatch(line), line
