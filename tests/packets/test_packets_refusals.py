"""What must not get through: refused at once, or dropped without a word."""

from __future__ import annotations

from functools import partial

import pytest

from keepclose.model.addresses import IPV4, IPV6
from keepclose.ruleset import DetectLocal, LocalTraffic
from support.netanswers import PATIENCE, SILENCE, Answer, Silence, ask
from support.netns import ip_batch
from support.nettopology import NodePlan
from support.packets.packetflows import (
    CLUSTER,
    DOORS,
    EXTERNAL,
    LOAD_BALANCER,
    NODE_PORT,
    Flow,
    check,
    do_at_once,
    find_answers,
)
from support.packets.tabledbeds import address_of, tabled
from support.packets.webobjects import FAMILIES, Addresses, addresses_of, web

PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))
HERE, THERE = "n1-p1", "n2-p1"
POD, NODE, OUTSIDE, FAR_POD = "n1-p2", "n1", "outside", "n2-p2"
BOTH = (HERE, THERE)
DROPPED, REFUSED = Silence.DROPPED, Silence.REFUSED


def test_a_service_without_endpoints_refuses() -> None:
    """Everybody is told at once that nobody is there, whatever the policies and the address."""
    bare = web("bare", 10, is_external=True)
    picky = web(
        "picky",
        11,
        is_external=True,
        external_traffic_policy="Local",
        internal_traffic_policy="Local",
    )
    with tabled(PLAN) as bed:
        bed.write((bare, picky), bed.slices("bare"))
        flows = [
            Flow(who, to, one, REFUSED)
            for one in (bare, picky)
            for who in (POD, NODE, OUTSIDE)
            for to in (CLUSTER, *DOORS)
        ]
        check(bed, [*flows, *(flow._replace(udp=True) for flow in flows)])
        # The first endpoint ends it, and the last one's end brings it back.
        bed.write((bare, picky), bed.slices("bare", HERE))
        check(bed, [Flow(POD, CLUSTER, bare, (HERE,))])
        bed.write((bare, picky), [])
        check(bed, [Flow(POD, CLUSTER, bare, REFUSED)])


def test_addresses_that_no_service_offers() -> None:
    """A port that a cluster IP lacks is refused; an address that no Service has is dropped."""
    plain = web("plain", 20)
    with tabled(PLAN) as bed:
        bed.write((plain,), bed.slices("plain", *BOTH))
        work, want = {}, {}
        for family in FAMILIES:
            known = addresses_of(plain, family).cluster
            unused = Addresses.of(99, family).cluster
            for who in (POD, NODE, OUTSIDE):
                inside = bed.namespace(who)
                for what, host, port, udp, fate in (
                    ("another port", known, 81, False, REFUSED),
                    ("another protocol", known, 80, True, REFUSED),
                    ("no Service", unused, 80, False, DROPPED),
                    ("no Service, UDP", unused, 53, True, DROPPED),
                ):
                    name = f"{family} {who}: {what}"
                    seconds = SILENCE if fate is DROPPED else PATIENCE
                    work[name] = partial(find_answers, inside, host, port, udp=udp, seconds=seconds)
                    want[name] = fate
        assert do_at_once(work) == want
        # Once the Service is gone its address is like any that nobody has.
        bed.write((), [])
        gone = {
            family: partial(
                ask, bed.namespace(POD), addresses_of(plain, family).cluster, 80, seconds=SILENCE
            )
            for family in FAMILIES
        }
        assert do_at_once(gone) == dict.fromkeys(FAMILIES, DROPPED)


def test_ranges_of_cluster_ips_may_be_unknown() -> None:
    """Where no range is known an address that no Service has is routed like any other."""
    with tabled(PLAN, settings={"service_cidrs": ()}) as bed:
        # The default gateway knows no way either and says so.
        bed.bed.outside.namespace.set_values({"ipv4/ip_forward": 1})
        ip_batch(["route del 10.96.0.0/16"], bed.bed.outside.namespace)
        found = ask(bed.namespace(POD), Addresses.of(99, IPV4).cluster, 80)
        assert found is Silence.UNREACHABLE


def test_source_ranges() -> None:
    """They guard the load balancer's address, and it alone; a node in a range may come back."""
    pods = ("10.244.1.0/24", "fd00:244:1::/64")
    outside = ("192.168.100.200/32", "fd00:192::200/128")
    nodes = ("192.168.100.1/32", "fd00:192::1/128")
    for_pods, for_outside, for_nodes, for_all, kept = (
        web("for-pods", 30, is_external=True, load_balancer_source_ranges=pods),
        web("for-outside", 31, is_external=True, load_balancer_source_ranges=outside),
        web("for-nodes", 32, is_external=True, load_balancer_source_ranges=nodes),
        web(
            "for-all",
            33,
            is_external=True,
            load_balancer_source_ranges=(*pods, "0.0.0.0/0", "::/0"),
        ),
        web(
            "kept",
            34,
            is_external=True,
            external_traffic_policy="Local",
            load_balancer_source_ranges=outside,
        ),
    )
    services = (for_pods, for_outside, for_nodes, for_all, kept)
    with tabled(PLAN) as bed:
        slices = [piece for one in services for piece in bed.slices(one.metadata.name, *BOTH)]
        bed.write(services, slices)
        way = LOAD_BALANCER
        flows = [
            Flow(POD, way, for_pods, BOTH, is_masked=True),
            Flow(NODE, way, for_pods, DROPPED),
            Flow(OUTSIDE, way, for_pods, DROPPED),
            Flow(FAR_POD, way, for_pods, DROPPED),
            Flow(POD, way, for_outside, DROPPED),
            Flow(OUTSIDE, way, for_outside, BOTH, is_masked=True),
            Flow(NODE, way, for_nodes, BOTH, is_masked=True),
            Flow(OUTSIDE, way, for_nodes, DROPPED),
            Flow(OUTSIDE, way, for_all, BOTH, is_masked=True),
            Flow(POD, way, for_all, BOTH, is_masked=True),
            Flow(OUTSIDE, way, kept, (HERE,)),
            Flow(POD, way, kept, DROPPED),
            # Other ways in are not guarded.
            Flow(OUTSIDE, NODE_PORT, for_pods, BOTH, is_masked=True),
            Flow(OUTSIDE, EXTERNAL, for_pods, BOTH, is_masked=True),
            Flow(OUTSIDE, CLUSTER, for_pods, BOTH, is_masked=True),
        ]
        check(bed, [*flows, *(flow._replace(udp=True) for flow in flows)])
        # A load balancer may put its address on the node; then that is where the node's own
        # connections to it come from.
        for one in (for_nodes, for_pods):
            lines = [
                f"address add {addresses_of(one, family).load_balancer}/{length} dev lo{at_once}"
                # NB: else an address of IPv6 is not used before the kernel has found the time.
                for family, length, at_once in ((IPV4, 32, ""), (IPV6, 128, " nodad"))
            ]
            ip_batch(lines, bed.namespace(NODE))
        flows = [
            Flow(NODE, way, for_nodes, BOTH, is_masked=True),
            Flow(NODE, way, for_pods, DROPPED),
        ]
        check(bed, flows)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("addresses", "want"),
    [
        pytest.param("primary", {"own": True, "gateway": False}, id="only the node's own address"),
        pytest.param("all", {"own": True, "gateway": True}, id="every address of the node"),
        pytest.param("gateway", {"own": False, "gateway": True}, id="only another address"),
        pytest.param("none", {"own": False, "gateway": False}, id="no address"),
    ],
)
def test_addresses_of_node_ports(family: str, addresses: str, want: dict[str, bool]) -> None:
    """Node ports answer at the addresses that were chosen, never at loopback, and elsewhere not."""
    door = web("door", 40, is_external=True)
    empty = web("empty", 41, is_external=True)
    plan = (NodePlan("n1", "zone-a", 2),)
    gateway = "fd00:244:1::1" if family == IPV6 else "10.244.1.1"
    own = "fd00:192::1" if family == IPV6 else "192.168.100.1"
    chosen = {"primary": (own,), "all": None, "gateway": (gateway,), "none": ()}[addresses]
    with tabled(plan, settings={"nodeport_ips": chosen}, families=(family,)) as bed:
        bed.write((door, empty), bed.slices("door", HERE))
        port = addresses_of(door, family).node_port
        own_address = address_of(bed.bed.nodes[0], family)
        loopback = "::1" if family == IPV6 else "127.0.0.1"
        found = {
            name: isinstance(ask(bed.namespace(POD), host, port), Answer)
            for name, host in (("own", own_address), ("gateway", gateway))
        }
        assert found == want
        assert isinstance(ask(bed.namespace(OUTSIDE), own_address, port), Answer) is want["own"]
        assert ask(bed.namespace(NODE), loopback, port) is REFUSED
        # Nobody listens there, so without a rule the node itself refuses.
        unserved = addresses_of(empty, family).node_port
        assert ask(bed.namespace(OUTSIDE), own_address, unserved) is REFUSED
        assert ask(bed.namespace(OUTSIDE), own_address, unserved, udp=True) is REFUSED


@pytest.mark.parametrize(
    "traffic",
    [
        pytest.param(LocalTraffic(DetectLocal.INTERFACE_PREFIX, "pod"), id="links named pod..."),
        pytest.param(LocalTraffic(DetectLocal.INTERFACE, "pod2"), id="the link of the client"),
    ],
)
def test_pods_told_by_their_links(traffic: LocalTraffic) -> None:
    """Pods may be told by the interface that their packets come from."""
    plain = web("plain", 50)
    kept = web("kept", 51, is_external=True, external_traffic_policy="Local")
    with tabled(PLAN, settings={"local_traffic": traffic}) as bed:
        bed.write((plain, kept), [*bed.slices("plain", *BOTH), *bed.slices("kept", *BOTH)])
        flows = [
            Flow(POD, CLUSTER, plain, BOTH),
            Flow(NODE, CLUSTER, plain, BOTH, is_masked=True),
            Flow(OUTSIDE, CLUSTER, plain, BOTH, is_masked=True),
            Flow(POD, NODE_PORT, kept, BOTH),
            Flow(NODE, NODE_PORT, kept, BOTH, is_masked=True),
            Flow(OUTSIDE, NODE_PORT, kept, (HERE,)),
        ]
        check(bed, flows)
