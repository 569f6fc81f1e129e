"""KEP-3015, first draft: both Traffic Policies and Topology, one test a statement.

Left out: the unresolved questions of renaming Local and of keeping it for internal traffic, and
what public documentation emphasizes. Whether a terminating local endpoint counts is not said.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

from keepclose.routing.selection import PacketVerdict
from keepclose.routing.service_ports import routed_ports
from support.builders import service
from support.nettopology import NodePlan
from support.packets.tabledbeds import tabled
from support.packets.webobjects import web
from support.proposals.packet_answers import answers_at_node_port
from support.proposals.policy_services import (
    DROPPED,
    NODES,
    ON,
    exposed,
    external,
    internal,
    on,
    outcomes,
    sliced,
    trace,
)

EVERYWHERE = sliced(*(on(name) for name in NODES))
TWO_HERE = sliced(on("n1", 1), on("n1", 2), on("n2"), on("n3"))
ELSEWHERE = sliced(on("n2"), on("n3"), on("n4"))
PLAN = (NodePlan("n1", "zone-a", 1), NodePlan("n2", "zone-b", 1))
BOTH = ("n1-p1", "n2-p1")


def _seen_from_outside(policy: str, *pods: str) -> tuple[set[str], set[str], str]:
    """Return who answers at the port of n1, which sources they see, and the client's own one."""
    asked = web("web", 10, is_external=True, external_traffic_policy=policy)
    with tabled(PLAN, gates=ON) as bed:
        bed.write([asked], bed.slices("web", *pods))
        found = answers_at_node_port(bed, "n1", asked, want=2 if policy == "Cluster" else 1)
        assert isinstance(found, set)
        names = {answer.name for answer in found}
        return names, {answer.seen for answer in found}, bed.source("outside", "IPv4")


def test_kep3015_draft1_external_local_preserves_the_source() -> None:
    """External: Local preserves the client's source IP."""
    names, sources, own = _seen_from_outside("Local", *BOTH)
    assert (names, sources) == ({"n1-p1"}, {own})


def test_kep3015_draft1_external_prefer_local_cannot_preserve_it_remotely() -> None:
    """External: PreferLocal cannot preserve the source when it bounces to another node."""
    names, sources, own = _seen_from_outside("PreferLocal", "n2-p1")
    assert names == {"n2-p1"}
    assert own not in sources


def test_kep3015_draft1_external_prefer_local_never_preserves_it() -> None:
    """External: PreferLocal never preserves the source IP, not even when delivering locally."""
    names, sources, own = _seen_from_outside("PreferLocal", *BOTH)
    assert names == {"n1-p1"}
    assert own not in sources


def test_kep3015_draft1_external_cluster_spreads_load() -> None:
    """External, Cluster: any of the endpoints is equally likely, none preferred for being local."""
    chances, _ = trace(exposed(), EVERYWHERE, "n1", is_external=True)
    assert chances == {f"10.0.{number}.1:8080": Fraction(1, 4) for number in range(1, 5)}


def test_kep3015_draft1_external_cluster_serves_a_single_advertised_node() -> None:
    """External, Cluster: a single node IP is enough for clients to reach all endpoints."""
    for name in NODES:
        assert len(external(exposed(), EVERYWHERE, name)) == 4


def test_kep3015_draft1_external_cluster_does_not_preserve_the_source() -> None:
    """External, Cluster: the source IP is not preserved."""
    names, sources, own = _seen_from_outside("Cluster", *BOTH)
    assert names == set(BOTH)
    assert own not in sources


def test_kep3015_draft1_external_local_uses_endpoints_of_the_node() -> None:
    """External, Local: a connection goes to one of the endpoints on the same node."""
    chances, _ = trace(exposed(external="Local"), TWO_HERE, "n1", is_external=True)
    assert chances == {"10.0.1.1:8080": Fraction(1, 2), "10.0.1.2:8080": Fraction(1, 2)}


def test_kep3015_draft1_external_local_discards_without_endpoints() -> None:
    """External, Local: without endpoints on the node the packets are discarded, not refused."""
    chances, _ = trace(exposed(external="Local"), ELSEWHERE, "n1", is_external=True)
    assert chances == {DROPPED: 1}


def test_kep3015_draft1_external_local_another_node_may_be_valid() -> None:
    """External, Local: the client may try again and hit a valid node the next time."""
    chances, _ = trace(exposed(external="Local"), ELSEWHERE, "n2", is_external=True)
    assert chances == {"10.0.2.1:8080": 1}


def test_kep3015_draft1_external_local_keeps_the_source_because_it_never_leaves() -> None:
    """External, Local: packets never leave the node, so the source need not be replaced."""
    _, is_masqueraded = trace(exposed(external="Local"), TWO_HERE, "n1", is_external=True)
    assert not is_masqueraded


def _balanced(policy: str) -> int:
    """Return the port at which a load balancer asks whether a node has endpoints; 0 for none."""
    asked = service(
        type="LoadBalancer", external_traffic_policy=policy, health_check_node_port=31000
    )
    (port,) = routed_ports(asked, "IPv4", gates=ON)
    return port.health_check_node_port


def test_kep3015_draft1_external_local_tells_the_load_balancer() -> None:
    """External, Local: the load balancer learns which nodes have no endpoints."""
    assert _balanced("Local") == 31000


def test_kep3015_draft1_external_prefer_local_needs_no_health_check() -> None:
    """External, PreferLocal: any node can serve, as with Cluster, so none has to be left out."""
    assert _balanced("PreferLocal") == _balanced("Cluster") == 0


def test_kep3015_draft1_external_prefer_local_uses_one_of_the_local_endpoints() -> None:
    """External, PreferLocal: a connection goes to one of the endpoints on the same node."""
    chances, _ = trace(exposed(external="PreferLocal"), TWO_HERE, "n1", is_external=True)
    assert chances == {"10.0.1.1:8080": Fraction(1, 2), "10.0.1.2:8080": Fraction(1, 2)}


def test_kep3015_draft1_external_prefer_local_falls_back_to_a_random_endpoint() -> None:
    """External, PreferLocal: without local ones a random remote endpoint, as with Cluster."""
    preferred, _ = trace(exposed(external="PreferLocal"), ELSEWHERE, "n1", is_external=True)
    cluster, _ = trace(exposed(), ELSEWHERE, "n1", is_external=True)
    assert preferred == cluster
    assert set(preferred.values()) == {Fraction(1, 3)}


def test_kep3015_draft1_external_prefer_local_depends_on_even_arrivals() -> None:
    """External, PreferLocal: it depends on an upstream load balancer to distribute evenly.

    Whatever arrives at n1 stays on n1, however many endpoints others have.
    """
    slices = sliced(on("n1"), *(on("n3", number) for number in range(1, 9)))
    chances, _ = trace(exposed(external="PreferLocal"), slices, "n1", is_external=True)
    assert chances == {"10.0.1.1:8080": 1}


def test_kep3015_draft1_external_prefer_local_survives_changing_endpoints() -> None:
    """External, PreferLocal: it is more reliable than Local in the face of changing endpoints."""
    before, after = sliced(on("n1"), on("n3")), sliced(on("n3"))
    for policy, want in (("Local", {DROPPED}), ("PreferLocal", {"10.0.3.1:8080"})):
        asked = exposed(external=policy)
        assert set(trace(asked, before, "n1", is_external=True)[0]) == {"10.0.1.1:8080"}
        assert set(trace(asked, after, "n1", is_external=True)[0]) == want


def test_kep3015_draft1_internal_source_is_always_preserved() -> None:
    """Internal: the source IP is always preserved for internal traffic."""
    for policy in ("Cluster", "Local", "PreferLocal"):
        for slices in (EVERYWHERE, TWO_HERE):
            _, is_masqueraded = trace(exposed(internal=policy), slices, "n1", is_external=False)
            assert not is_masqueraded, policy


def test_kep3015_draft1_internal_prefer_local_has_no_caveats() -> None:
    """Internal: PreferLocal is implemented in the obvious way: local ones, else as Cluster."""
    asked = exposed(internal="PreferLocal")
    assert internal(asked, TWO_HERE, "n1") == {"10.0.1.1", "10.0.1.2"}
    assert internal(asked, ELSEWHERE, "n1") == internal(exposed(), ELSEWHERE, "n1")


def test_kep3015_draft1_internal_local_never_bounces() -> None:
    """Internal: with Local, logs never bounce to a daemon on another node, but are dropped."""
    asked = exposed(internal="Local")
    assert internal(asked, TWO_HERE, "n1") == {"10.0.1.1", "10.0.1.2"}
    assert outcomes(asked, ELSEWHERE, "n1")[0].verdict is PacketVerdict.DROP


def test_kep3015_draft1_internal_same_result_if_always_available() -> None:
    """Internal: with a daemon on every node PreferLocal gives the same result as Local."""
    for name in NODES:
        local, preferred = exposed(internal="Local"), exposed(internal="PreferLocal")
        assert internal(preferred, EVERYWHERE, name) == internal(local, EVERYWHERE, name)


def test_kep3015_draft1_internal_and_external_are_parallel() -> None:
    """Internal: Local and PreferLocal are parallel with the external case, but for the source."""
    for policy, slices in product(("Local", "PreferLocal"), (EVERYWHERE, ELSEWHERE, TWO_HERE)):
        asked = exposed(internal=policy, external=policy)
        inside, outside = outcomes(asked, slices, "n1")
        assert inside == outside


CROSSED = sliced(
    on("n1", for_zones=("zone-b",)),
    on("n2", for_zones=("zone-a",)),
    on("n3", for_zones=("zone-b",)),
)
"""The endpoint on n1 is hinted for the other zone."""


def test_kep3015_draft1_topology_local_policies_take_precedence() -> None:
    """Topology: Local traffic policies have precedence over topology aware routing."""
    asked = exposed(internal="Local", external="Local")
    assert internal(asked, CROSSED, "n1") == external(asked, CROSSED, "n1") == {"10.0.1.1"}


def test_kep3015_draft1_topology_applies_to_cluster_policy() -> None:
    """Topology: topology only applies to the Cluster traffic policy."""
    assert internal(exposed(), CROSSED, "n1") == external(exposed(), CROSSED, "n1") == {"10.0.2.1"}


def test_kep3015_draft1_topology_is_ignored_when_delivering_locally() -> None:
    """Topology: when it delivers locally, PreferLocal ignores topology, as Local does."""
    asked = exposed(internal="PreferLocal", external="PreferLocal")
    assert internal(asked, CROSSED, "n1") == external(asked, CROSSED, "n1") == {"10.0.1.1"}


def test_kep3015_draft1_topology_is_used_when_delivering_remotely() -> None:
    """Topology: when it delivers remotely, PreferLocal makes use of topology."""
    asked = exposed(internal="PreferLocal", external="PreferLocal")
    assert (
        internal(asked, CROSSED, "n4")
        == external(asked, CROSSED, "n4")
        == {
            "10.0.1.1",
            "10.0.3.1",
        }
    )


def test_kep3015_draft1_topology_there_is_no_third_set() -> None:
    """Topology: PreferLocal uses the endpoints of Local or those of Cluster, no third set."""
    states: list[dict[str, Any]] = [
        {},
        {"for_zones": ("zone-a",)},
        {"for_zones": ("zone-b",)},
        {"ready": False},
        {"ready": False, "serving": True, "terminating": True},
    ]
    for first, second, third in product(states, repeat=3):
        slices = sliced(on("n1", **first), on("n2", **second), on("n3", **third))
        for name in NODES:
            sets = {
                policy: outcomes(exposed(internal=policy, external=policy), slices, name)
                for policy in ("Cluster", "Local", "PreferLocal")
            }
            for direction in (0, 1):
                preferred = sets["PreferLocal"][direction]
                assert preferred in (sets["Cluster"][direction], sets["Local"][direction])
