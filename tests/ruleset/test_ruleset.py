"""Updates are small, safe at every step, and end at what is wanted."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset import (
    CountBy,
    Counted,
    LocalTraffic,
    Ruleset,
    ServicePortKey,
    TableListing,
    Update,
    cleanup_text,
)
from keepclose.ruleset.tables import Unserved
from keepclose.ruleset.tracer import Packet, TracedNode, trace_outcomes
from support.ruleset.kerneltables import KernelTable
from support.ruleset.tracednodes import NODE_IP, OUTSIDE, POD, SETTINGS, follow, load, tell_port

PORT = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", "172.30.0.41", 80)
KEY = ServicePortKey.of(PORT)
ONE = PortEndpoint("10.180.0.1", 80, node_name="n1", zone="zone-a")
TWO = PortEndpoint("10.180.1.1", 80, node_name="n2", zone="zone-b")
STICKY = replace(PORT, session_affinity="ClientIP", affinity_seconds=600)


def committed(ruleset: Ruleset, kernel: KernelTable) -> Update:
    """Commit, apply and return the update."""
    update = ruleset.commit()
    assert update is not None
    kernel.apply(update.transactions)
    return update


def names(kernel: KernelTable, prefix: str) -> list[str]:
    """Return the chains, sets and counters whose names begin like this."""
    everything = [*kernel.chains, *kernel.sets, *kernel.counters]
    return [name for name in everything if name.startswith(prefix)]


def test_change_of_endpoints_adds_switches_and_deletes_later() -> None:
    """A new chain, then the element, and only the sweep removes the old chain."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    (old,) = names(kernel, "service-ULMVA6XW")
    tell_port(ruleset, PORT, [ONE, TWO])
    update = committed(ruleset, kernel)
    (new,) = {*names(kernel, "service-ULMVA6XW")} - {old}
    table = "ip kube-proxy"
    assert update.phases == (
        (
            f"add chain {table} {new}\n"
            f"add rule {table} {new} meta l4proto tcp dnat ip addr . port to "
            "numgen random mod 2 map { 0 : 10.180.0.1 . 80 , 1 : 10.180.1.1 . 80 }\n"
        ),
        (
            f"delete element {table} service-ips {{ 172.30.0.41 . tcp . 80 }}\n"
            f"add element {table} service-ips {{ 172.30.0.41 . tcp . 80 : goto {new} }}\n"
        ),
    )
    assert (update.ports, update.retired, update.commands) == (1, 1, 4)
    assert ruleset.sweep(update.serial) == (
        f"flush chain {table} {old}\n",
        f"delete chain {table} {old}\n",
    )
    assert ruleset.sweep(update.serial) == ()


def test_nothing_changed_needs_no_update() -> None:
    """Neither when nothing was said nor when the same was said again."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    load(ruleset)
    assert ruleset.commit() is None
    tell_port(ruleset, PORT, [ONE])
    assert ruleset.commit() is None
    tell_port(ruleset, PORT, [TWO])
    tell_port(ruleset, PORT, [ONE])
    assert ruleset.commit() is None


def test_chain_that_comes_back_is_used_again() -> None:
    """Within the second it still exists; then it is neither added nor swept."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    first = committed(ruleset, kernel)
    tell_port(ruleset, PORT, [ONE])
    second = committed(ruleset, kernel)
    assert len(second.phases) == 1
    kernel.apply(ruleset.sweep_transactions(first.serial))
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.0.1:80", False)
    assert follow(kernel, Packet("10.180.0.1", "172.30.0.41", 80)) == ("10.180.0.1:80", True)
    kernel.apply(ruleset.sweep_transactions(second.serial))
    assert len(names(kernel, "service-ULMVA6XW")) == 1


def test_chain_that_was_swept_is_made_again() -> None:
    """After the second it is gone and has to be added."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    update = committed(ruleset, kernel)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    tell_port(ruleset, PORT, [ONE])
    assert len(committed(ruleset, kernel).phases) == 2
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.0.1:80", False)


def test_hairpin_entry_stays_until_the_sweep() -> None:
    """A connection that is on its way must still be masqueraded."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    update = committed(ruleset, kernel)
    assert len(kernel.elements["hairpin-connections"]) == 1
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert kernel.elements["hairpin-connections"] == {}


def test_affinity_survives_changes_of_other_endpoints() -> None:
    """The set and the chain of an endpoint that stays are not touched."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, STICKY, [ONE])
    kernel = load(ruleset)
    (memory,) = names(kernel, "affinity-")
    tell_port(ruleset, STICKY, [ONE, TWO])
    update = committed(ruleset, kernel)
    sweep = ruleset.sweep(update.serial)
    assert not any(memory in line for text in sweep for line in text.splitlines())
    assert not any(line.startswith(f"add set ip kube-proxy {memory}") for line in update.phases)
    assert memory in kernel.sets


def test_affinity_set_goes_with_its_endpoint() -> None:
    """In the sweep, after the chains that use it."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, STICKY, [ONE, TWO])
    kernel = load(ruleset)
    tell_port(ruleset, STICKY, [ONE])
    update = committed(ruleset, kernel)
    assert len(names(kernel, "affinity-")) == 2
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert len(names(kernel, "affinity-")) == 1
    assert len(names(kernel, "endpoint-")) == 1


def test_affinity_timeout_changes_in_place() -> None:
    """The set is added again with another timeout; no chain changes."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, STICKY, [ONE])
    kernel = load(ruleset)
    (memory,) = names(kernel, "affinity-")
    tell_port(ruleset, replace(STICKY, affinity_seconds=60), [ONE])
    update = committed(ruleset, kernel)
    assert update.phases == (
        (
            f"add set ip kube-proxy {memory} "
            "{ type ipv4_addr ; flags dynamic,timeout ; timeout 60s ; }\n"
        ),
    )


def test_ports_share_a_cluster_ip() -> None:
    """It is dropped from the set with the last of them."""
    ruleset = Ruleset(SETTINGS)
    other = replace(PORT, name="p81", port=81)
    tell_port(ruleset, PORT, [ONE])
    tell_port(ruleset, other, [ONE])
    kernel = load(ruleset)
    ruleset.set_port(KEY, None, None)
    committed(ruleset, kernel)
    assert list(kernel.elements["cluster-ips"]) == [("172.30.0.41",)]
    ruleset.set_port(ServicePortKey.of(other), None, None)
    committed(ruleset, kernel)
    assert kernel.elements["cluster-ips"] == {}


def test_first_by_name_wins_an_address_claimed_twice() -> None:
    """Whoever came first; when it goes the other gets it."""
    ruleset = Ruleset(SETTINGS)
    late = replace(PORT, external_ips=("192.0.2.9",))
    early = replace(
        late, service=NamespacedName("ns1", "a"), cluster_ip="172.30.0.42", name="other"
    )
    tell_port(ruleset, late, [ONE])
    tell_port(ruleset, early, [TWO])
    kernel = load(ruleset)
    packet = Packet(OUTSIDE, "192.0.2.9", 80)
    assert follow(kernel, packet) == ("10.180.1.1:80", True)
    ruleset.set_port(ServicePortKey.of(early), None, None)
    committed(ruleset, kernel)
    assert follow(kernel, packet) == ("10.180.0.1:80", True)
    tell_port(ruleset, early, [TWO])
    committed(ruleset, kernel)
    assert follow(kernel, packet) == ("10.180.1.1:80", True)


def test_service_cidrs_change_one_chain() -> None:
    """Nothing but the check of cluster IPs is written."""
    ruleset = Ruleset(SETTINGS)
    kernel = load(ruleset)
    ruleset.set_service_cidrs(["10.96.0.0/12"])
    update = committed(ruleset, kernel)
    (text,) = update.phases
    lines = text.splitlines()
    assert lines[0] == "flush chain ip kube-proxy cluster-ips-check"
    assert lines[2].startswith(
        "add rule ip kube-proxy cluster-ips-check ip daddr 10.96.0.0/12 drop"
    )
    assert [line.split()[:2] for line in lines[3:]] == [["add", "chain"], ["delete", "chain"]]
    assert follow(kernel, Packet(POD, "10.96.0.1", 80)) == ("DROP", False)
    ruleset.set_service_cidrs(["10.96.0.0/12"])
    assert ruleset.commit() is None


def test_node_port_addresses_are_elements() -> None:
    """Adding one and taking one away needs no rule."""
    ruleset = Ruleset(SETTINGS)
    kernel = load(ruleset)
    ruleset.set_nodeport_ips(["192.168.1.2"])
    assert committed(ruleset, kernel).phases == (
        "add element ip kube-proxy nodeport-ips { 192.168.1.2 }\n",
        f"delete element ip kube-proxy nodeport-ips {{ {NODE_IP} }}\n",
    )


def test_node_port_addresses_do_not_matter_where_all_are_meant() -> None:
    """The set does not even exist."""
    ruleset = Ruleset(replace(SETTINGS, nodeport_ips=None))
    kernel = load(ruleset)
    assert "nodeport-ips" not in kernel.sets
    ruleset.set_nodeport_ips(["192.168.1.2"])
    assert ruleset.commit() is None


def test_commit_without_a_start_takes_the_table_for_absent() -> None:
    """It does what a start from nothing does."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = KernelTable()
    committed(ruleset, kernel)
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.0.1:80", False)


def test_restart_with_nothing_changed_writes_nothing() -> None:
    """Everything is recognised by its name."""
    ruleset = Ruleset(replace(SETTINGS, count_by=CountBy.ZONE))
    tell_port(ruleset, replace(PORT, node_port=30001), [ONE, TWO])
    kernel = load(ruleset)
    again = Ruleset(ruleset.settings)
    tell_port(again, replace(PORT, node_port=30001), [ONE, TWO])
    update = again.reconcile(kernel.listing())
    assert (update.phases, update.retired) == ((), 0)


def test_restart_writes_only_what_changed_meanwhile() -> None:
    """The rest is not even mentioned."""
    ruleset = Ruleset(SETTINGS)
    other = replace(PORT, service=NamespacedName("ns1", "other"), cluster_ip="172.30.0.42")
    tell_port(ruleset, PORT, [ONE])
    tell_port(ruleset, other, [ONE])
    kernel = load(ruleset)
    again = Ruleset(SETTINGS)
    tell_port(again, PORT, [TWO])
    tell_port(again, other, [ONE])
    update = again.reconcile(kernel.listing())
    kernel.apply(update.transactions)
    assert update.commands == 4
    assert not any("other" in text for text in update.phases)
    kernel.apply(again.sweep_transactions(update.serial))
    assert len(names(kernel, "service-ULMVA6XW")) == 1


def test_restart_with_other_settings_replaces_the_fixed_rules_only() -> None:
    """Chains of Services whose rules stay the same stay."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    again = Ruleset(replace(SETTINGS, local_traffic=LocalTraffic(), nodeport_ips=None))
    tell_port(again, PORT, [ONE])
    update = again.reconcile(kernel.listing())
    kernel.apply(update.transactions)
    assert not any("service-ULMVA6XW" in text for text in update.phases)
    assert "nodeport-ips" not in kernel.sets
    assert len(names(kernel, "layout/")) == 1
    assert follow(kernel, Packet(OUTSIDE, "172.30.0.41", 80)) == ("10.180.0.1:80", False)


def test_takeover_of_kube_proxys_table() -> None:
    """Base chains are made anew, its elements are switched, its chains swept."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    theirs = "service-ULMVA6XW-ns1/svc1/tcp/p80"
    existing = TableListing(
        chains=frozenset({"nat-prerouting", "services", theirs}),
        sets=frozenset({"cluster-ips"}),
        elements={
            "service-ips": {("172.30.0.41", "tcp", "80"): f"goto {theirs}"},
            "cluster-ips": {("172.30.0.41",): "", ("172.30.0.99",): ""},
        },
    )
    update = ruleset.reconcile(existing)
    first, second = update.phases
    assert "delete chain ip kube-proxy nat-prerouting\n" in first
    (ours,) = [chain for chain in ruleset.model().chains if chain.startswith("service-ULMVA6XW")]
    assert second == (
        "delete element ip kube-proxy cluster-ips { 172.30.0.99 }\n"
        "delete element ip kube-proxy service-ips { 172.30.0.41 . tcp . 80 }\n"
        f"add element ip kube-proxy service-ips {{ 172.30.0.41 . tcp . 80 : goto {ours} }}\n"
    )
    assert ruleset.sweep(update.serial) == (
        f"flush chain ip kube-proxy {theirs}\n",
        f"delete chain ip kube-proxy {theirs}\n",
    )


def test_distrust_writes_every_chain_anew() -> None:
    """In case that somebody else changed rules."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    kernel.careful = False
    (name,) = names(kernel, "service-ULMVA6XW")
    kernel.chains[name] = replace(kernel.chains[name], rules=())
    kernel.chains["services"] = replace(kernel.chains["services"], rules=())
    update = ruleset.reconcile(kernel.listing(), trust=False)
    kernel.apply(update.transactions)
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.0.1:80", False)


def test_emptied_chains_are_noticed_and_written_anew() -> None:
    """One of a Service and a fixed one; others are not touched."""
    ruleset = Ruleset(SETTINGS)
    other = replace(PORT, service=NamespacedName("ns1", "other"), cluster_ip="172.30.0.42")
    tell_port(ruleset, PORT, [ONE])
    tell_port(ruleset, other, [ONE])
    kernel = load(ruleset)
    kernel.careful = False
    (name,) = names(kernel, "service-ULMVA6XW")
    kernel.chains[name] = replace(kernel.chains[name], rules=())
    update = ruleset.reconcile(kernel.listing())
    assert update.phases == (
        (
            f"flush chain ip kube-proxy {name}\n"
            f"add rule ip kube-proxy {name} meta l4proto tcp dnat to 10.180.0.1:80\n"
        ),
    )
    kernel.apply(update.transactions)
    kernel.chains["services"] = replace(kernel.chains["services"], rules=())
    kernel.apply(ruleset.reconcile(kernel.listing()).transactions)
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.0.1:80", False)


def test_reconcile_after_a_failure_finishes_the_work() -> None:
    """Of two phases only the first was written."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    failed = ruleset.commit()
    assert failed is not None
    kernel.apply(failed.transactions[:1])
    update = ruleset.reconcile(kernel.listing())
    kernel.apply(update.transactions)
    assert follow(kernel, Packet(POD, "172.30.0.41", 80)) == ("10.180.1.1:80", False)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert len(names(kernel, "service-ULMVA6XW")) == 1
    assert kernel.elements["hairpin-connections"] == {}


def test_counters_say_what_they_count() -> None:
    """By service port, zone, node, mode and origin; they outlive changes of other endpoints."""
    ruleset = Ruleset(replace(SETTINGS, count_by=CountBy.ZONE))
    port = replace(PORT, node_port=30001)
    tell_port(ruleset, port, [ONE, TWO])
    kernel = load(ruleset)

    def counted(name: str, *key: str) -> Counted | Unserved | None:
        assert (name, key) in {(name, each) for each in kernel.elements[name]}
        return ruleset.counted_by((name, key))

    one, two = Counted(KEY, "zone-a", "n1", "", 80), Counted(KEY, "zone-b", "", "", 80)
    at = ("172.30.0.41", "tcp", "80")
    assert counted("counted-connections", *at, "10.180.0.1", "80") == one
    assert counted("counted-connections", *at, "10.180.1.1", "80") == two
    assert counted("counted-nodeports", "tcp", "30001", "10.180.1.1", "80") == two
    outside = "counted-outside-nodeports"
    want = two._replace(is_from_outside=True)
    assert counted(outside, "tcp", "30001", "10.180.1.1", "80") == want
    tell_port(ruleset, port, [ONE, replace(TWO, address="10.180.1.2")])
    changing = ruleset.changing_counters()
    assert changing[outside, ("tcp", "30001", "10.180.1.1", "80")] == want
    update = committed(ruleset, kernel)
    counting = [line for text in update.phases for line in text.splitlines() if "counted-" in line]
    assert len(counting) == 6
    assert not any("10.180.0.1" in line for line in counting)
    assert ruleset.counted_by((outside, ("tcp", "30001", "10.180.1.1", "80"))) is None


def test_connections_from_outside_count_apart_only_where_pods_are_known() -> None:
    """Without a way to identify the own pods every connection counts as the node's."""
    settings = replace(SETTINGS, count_by=CountBy.ZONE, local_traffic=LocalTraffic())
    ruleset = Ruleset(settings)
    tell_port(ruleset, replace(PORT, node_port=30001), [ONE])
    kernel = load(ruleset)
    assert [name for name in kernel.sets if name.startswith("counted-")] == [
        "counted-connections",
        "counted-nodeports",
    ]
    node = TracedNode(frozenset({NODE_IP}))
    ((trace, _),) = trace_outcomes(kernel.table(), Packet(OUTSIDE, NODE_IP, 30001), node)
    assert [name for name, _ in trace.counted] == ["counted-nodeports"]


def test_counters_of_an_earlier_version_are_deleted() -> None:
    """Named counters have no use once elements count."""
    ruleset = Ruleset(replace(SETTINGS, count_by=CountBy.ZONE))
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    kernel.counters["traffic-ULMVA6XW-ns1/svc1/tcp/p80__zone-a/n1/"] = None
    update = ruleset.reconcile(kernel.listing())
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert kernel.counters == {}


def test_sweep_of_one_update_leaves_later_ones() -> None:
    """What a second update left unused has its own second to wait."""
    ruleset = Ruleset(SETTINGS)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    first = committed(ruleset, kernel)
    tell_port(ruleset, PORT, [ONE, TWO])
    second = committed(ruleset, kernel)
    tell_port(ruleset, PORT, [TWO, replace(TWO, port=81)])
    third = committed(ruleset, kernel)
    kernel.apply(ruleset.sweep_transactions(first.serial))
    assert len(kernel.elements["hairpin-connections"]) == 1
    assert len(names(kernel, "service-ULMVA6XW")) == 3
    kernel.apply(ruleset.sweep_transactions(third.serial))
    assert len(names(kernel, "service-ULMVA6XW")) == 1
    assert kernel.elements["hairpin-connections"] == {}
    assert second.serial < third.serial


def test_cleanup_removes_the_table_in_any_case() -> None:
    """Adding it first makes the deletion safe, and no table name can break out."""
    assert cleanup_text(SETTINGS) == "add table ip kube-proxy\ndelete table ip kube-proxy\n"
    odd = replace(SETTINGS, family="IPv6", table="a b; flush ruleset\n")
    assert cleanup_text(odd) == (
        "add table ip6 a_b__flush_ruleset_\ndelete table ip6 a_b__flush_ruleset_\n"
    )
