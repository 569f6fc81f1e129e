"""Plain service ports share chains, and a changed endpoint is a changed element."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.service_ports import RoutedPort
from keepclose.ruleset import (
    CountBy,
    Counted,
    Ruleset,
    RulesetSettings,
    ServicePortKey,
    Update,
)
from keepclose.ruleset.connection_sets import CONNECTION_SETS
from keepclose.ruleset.listing import listing_of
from keepclose.ruleset.tables import Unserved
from keepclose.ruleset.tracer import Packet
from support.ruleset.kerneltables import KernelTable
from support.ruleset.tracednodes import POD, SETTINGS, follow, load, tell_port

POOLED = replace(SETTINGS, pooled=True)
PORT = RoutedPort(NamespacedName("ns1", "svc1"), "p80", "TCP", "172.30.0.41", 80)
OTHER = RoutedPort(NamespacedName("ns1", "svc2"), "dns", "UDP", "172.30.0.42", 53)
ONE = PortEndpoint("10.180.0.1", 80, node_name="n1", zone="zone-a")
TWO = PortEndpoint("10.180.1.1", 80, node_name="n2", zone="zone-b")
THREE = PortEndpoint("10.180.2.1", 81, node_name="n2", zone="zone-b")
AT = Packet(POD, "172.30.0.41", 80)


def pools(kernel: KernelTable) -> list[str]:
    """Return the shared chains without their fingerprints."""
    return sorted(name.rpartition(".")[0] for name in kernel.chains if name.startswith("pool/"))


def own_chains(kernel: KernelTable) -> list[str]:
    """Return the chains that belong to one port."""
    return [
        name for name in kernel.chains if "/" in name and name.startswith(("service-", "local-"))
    ]


def committed(ruleset: Ruleset, kernel: KernelTable) -> Update:
    """Commit, apply and return the update."""
    update = ruleset.commit()
    assert update is not None
    kernel.apply(update.transactions)
    return update


def test_plain_ports_have_no_chains_of_their_own() -> None:
    """Ports of both protocols lead to their endpoints through chains that nobody owns."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, TWO])
    tell_port(ruleset, OTHER, [THREE])
    kernel = load(ruleset)
    assert pools(kernel) == ["pool/tcp/2", "pool/udp/1"]
    assert own_chains(kernel) == []
    assert follow(kernel, AT) == ("10.180.0.1:80, 10.180.1.1:80", False)
    assert follow(kernel, Packet(POD, "172.30.0.42", 53, "udp")) == ("10.180.2.1:81", False)
    assert follow(ruleset.model(), AT) == ("10.180.0.1:80, 10.180.1.1:80", False)


@pytest.mark.parametrize(
    ("port", "settings"),
    [
        pytest.param(replace(PORT, node_port=30_000), POOLED, id="a node port"),
        pytest.param(replace(PORT, external_ips=("1.2.3.4",)), POOLED, id="an external IP"),
        pytest.param(
            replace(PORT, session_affinity="ClientIP", affinity_seconds=9), POOLED, id="affinity"
        ),
        pytest.param(PORT, SETTINGS, id="nothing is pooled"),
    ],
)
def test_other_ports_keep_their_chains(port: RoutedPort, settings: RulesetSettings) -> None:
    """A port that needs more than a draw has chains of its own."""
    ruleset = Ruleset(settings)
    tell_port(ruleset, port, [ONE, TWO])
    kernel = load(ruleset)
    assert pools(kernel) == []
    assert len(own_chains(kernel)) == 1
    assert follow(kernel, AT) == ("10.180.0.1:80, 10.180.1.1:80", False)


def test_counted_ports_share_chains_too() -> None:
    """Each element counts for the place of its endpoint, so counting needs no chains."""
    ruleset = Ruleset(replace(POOLED, count_by=CountBy.ZONE))
    tell_port(ruleset, PORT, [ONE, TWO, THREE])
    kernel = load(ruleset)
    assert pools(kernel) == ["pool/tcp/3"]
    assert own_chains(kernel) == []
    assert not any(kernel.elements[name] for name in CONNECTION_SETS)
    key = ServicePortKey.of(PORT)
    found = [
        ruleset.counted_by(("tcp-counted-endpoints", ("172.30.0.41", "tcp", "80", str(number))))
        for number in range(4)
    ]
    assert found == [
        Counted(key, "zone-a", "n1", "", 80),
        Counted(key, "zone-b", "", "", 80),
        Counted(key, "zone-b", "", "", 80),
        None,
    ]


def test_refusals_are_counted_by_port() -> None:
    """A port without endpoints has an element that counts refusals, and tells whose it is."""
    ruleset = Ruleset(replace(POOLED, count_by=CountBy.ZONE))
    tell_port(ruleset, replace(PORT, node_port=30_000), [])
    kernel = load(ruleset)
    key = ServicePortKey.of(PORT)
    for slot in (
        ("unserved-services", ("172.30.0.41", "tcp", "80")),
        ("unserved-nodeports", ("tcp", "30000")),
    ):
        assert slot[1] in kernel.elements[slot[0]]
        assert ruleset.counted_by(slot) == Unserved(key, "reject")
    tell_port(ruleset, replace(PORT, node_port=30_000), [ONE])
    committed(ruleset, kernel)
    assert kernel.elements["unserved-services"] == {}


def test_unequal_weights_keep_their_chain() -> None:
    """Numbers of a pool are equally likely, so weights need a chain."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, replace(TWO, weight=2)])
    kernel = load(ruleset)
    assert pools(kernel) == []
    assert len(own_chains(kernel)) == 1


def test_replaced_endpoint_is_one_element_in_one_transaction() -> None:
    """As many endpoints as before: only what stands under a number changes."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, TWO])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [ONE, THREE])
    update = committed(ruleset, kernel)
    at = "ip kube-proxy tcp-endpoints { 172.30.0.41 . tcp . 80 . 1"
    assert update.phases == (f"delete element {at} }}\nadd element {at} : 10.180.2.1 . 81 }}\n",)
    assert update.retired == 0
    assert follow(kernel, AT) == ("10.180.0.1:80, 10.180.2.1:81", False)


def test_fewer_endpoints_leave_the_last_number_for_a_while() -> None:
    """Who still draws from the old number of endpoints finds one that is there."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, TWO])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [TWO])
    update = ruleset.commit()
    assert update is not None
    first, second = update.transactions
    kernel.apply([first])
    assert follow(kernel, AT) == ("10.180.1.1:80", False)
    assert len(kernel.elements["tcp-endpoints"]) == 2
    kernel.apply([second])
    assert follow(kernel, AT) == ("10.180.1.1:80", False)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert list(kernel.elements["tcp-endpoints"]) == [("172.30.0.41", "tcp", "80", "0")]
    assert pools(kernel) == ["pool/tcp/1", "pool/tcp/2"]


def test_more_endpoints_come_before_they_are_drawn() -> None:
    """The element is there one transaction before the chain that draws its number is entered."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [ONE, TWO])
    update = ruleset.commit()
    assert update is not None
    first, second = update.transactions
    kernel.apply([first])
    assert len(kernel.elements["tcp-endpoints"]) == 2
    assert follow(kernel, AT) == ("10.180.0.1:80", False)
    kernel.apply([second])
    assert follow(kernel, AT) == ("10.180.0.1:80, 10.180.1.1:80", False)


def test_shared_chain_outlives_one_of_its_ports() -> None:
    """A port that goes takes its elements along, and no chain that others use."""
    ruleset = Ruleset(POOLED)
    second = replace(PORT, cluster_ip="172.30.0.43", service=NamespacedName("ns1", "svc3"))
    tell_port(ruleset, PORT, [ONE])
    tell_port(ruleset, second, [TWO])
    kernel = load(ruleset)
    tell_port(ruleset, second, [])
    update = committed(ruleset, kernel)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert pools(kernel) == ["pool/tcp/1"]
    assert list(kernel.elements["tcp-endpoints"]) == [("172.30.0.41", "tcp", "80", "0")]
    assert follow(kernel, AT) == ("10.180.0.1:80", False)


def test_unused_shared_chains_go_with_the_next_comparison() -> None:
    """What nobody draws from any more is deleted after the table was read."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, TWO])
    kernel = load(ruleset)
    tell_port(ruleset, PORT, [ONE])
    committed(ruleset, kernel)
    update = ruleset.reconcile(kernel.listing())
    kernel.apply(update.transactions)
    kernel.apply(ruleset.sweep_transactions(update.serial))
    assert pools(kernel) == ["pool/tcp/1"]
    assert follow(kernel, AT) == ("10.180.0.1:80", False)


def test_restart_changes_nothing() -> None:
    """A proxy that finds its own table writes nothing."""
    ruleset = Ruleset(POOLED)
    tell_port(ruleset, PORT, [ONE, TWO])
    kernel = load(ruleset)
    again = Ruleset(POOLED)
    tell_port(again, PORT, [ONE, TWO])
    update = again.reconcile(kernel.listing())
    assert update.phases == ()
    assert update.retired == 0


def test_listed_endpoints_are_read() -> None:
    """A port that looks like the number of a protocol stays a port."""
    listed = {
        "map": {
            "name": "tcp-endpoints",
            "elem": [[{"concat": ["172.30.0.41", 6, 17, 6]}, {"concat": ["10.180.0.1", 80]}]],
        }
    }
    want = {("172.30.0.41", "tcp", "17", "6"): "10.180.0.1 . 80"}
    assert listing_of([{"nftables": [listed]}]).elements["tcp-endpoints"] == want
