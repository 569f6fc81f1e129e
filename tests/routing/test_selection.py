"""What one node uses for one service port, per traffic direction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import (
    NO_TRAFFIC,
    PREFER_LOCAL_MAY_USE_TERMINATING,
    Outcome,
    PacketVerdict,
    Selection,
    select,
)
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy, routed_ports
from keepclose.routing.topology import RoutingMode
from support.builders import endpoint, endpoint_slice, node, service

GATES = FeatureGates()
ALL_GATES = FeatureGates(frozenset(Gate))
CLUSTER, LOCAL, PREFER = TrafficPolicy.CLUSTER, TrafficPolicy.LOCAL, TrafficPolicy.PREFER_LOCAL
NORTH = NodeView("north", "za")


def port(
    internal: TrafficPolicy = CLUSTER,
    external: TrafficPolicy = CLUSTER,
    *,
    node_port: int = 0,
    topology_keys: tuple[str, ...] = (),
    node_level: bool = False,
) -> RoutedPort:
    """Return a port with the policies; a node port makes it externally accessible."""
    return RoutedPort(
        NamespacedName("default", "web"),
        "http",
        "TCP",
        "10.96.0.10",
        80,
        node_port=node_port,
        internal_policy=internal,
        external_policy=external,
        topology_keys=topology_keys,
        node_level=node_level,
    )


def ep(name: str, place: str = "south", zones: str = "", nodes: str = "") -> PortEndpoint:
    """Return an endpoint known by its letter, on the node `place`; hints separated by blanks.

    A mark before the letter tells its state: "-" not ready, "~" terminating but serving, "!" none
    of ready, serving and terminating.
    """
    mark, letter = name[:-1], name[-1]
    return PortEndpoint(
        f"10.0.0.{ord(letter)}",
        80,
        ready=not mark,
        serving=mark != "!",
        terminating=mark == "~",
        node_name=place,
        zone_hints=tuple(zones.split()),
        node_hints=tuple(nodes.split()),
    )


def names(endpoints: Sequence[PortEndpoint] | None) -> str | None:
    """Return the letters of endpoints, None for a set that is not used."""
    if endpoints is None:
        return None
    return "".join(chr(int(one.address.rpartition(".")[2])) for one in endpoints)


def said(outcome: Outcome) -> str | None:
    """Return an outcome as letters or as the verdict."""
    return str(outcome.verdict) if outcome.verdict else names(outcome.endpoints)


def codes(selection: Selection) -> list[ReasonCode]:
    """Return the codes of a selection's reasons."""
    return [reason.code for reason in selection.reasons]


INTERNAL_LOCAL = port(LOCAL)
EXTERNAL_LOCAL = port(CLUSTER, LOCAL, node_port=30080)
SAME_NODE_OFF = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
ZONED = [ep("a", "north", "za"), ep("b", "east", "za"), ep("c", "west", "zb"), ep("d", "w", "zb")]
NODED = [
    ep("a", "north", "za", "north"),
    ep("b", "east", "za", "east"),
    ep("c", "west", "zb", "west"),
]


HOME = (NORTH, GATES)
BOTH_LOCAL = port(LOCAL, LOCAL, node_port=30080)
HERE_AND_AWAY = [ep("a", "north"), ep("b")]
AWAY = [ep("a"), ep("b", "west")]
LEAVING = [ep("~a", "north"), ep("b"), ep("~c", "west")]
UNHINTED = [ep("a", "north", "za"), ep("b", "east"), ep("c", "west", "zb")]
CROSSED = [ep("a", "north", "zb"), ep("b", "east", "za"), ep("c", "north", "za")]
MERGED = [ep("a", "north", "zb"), ep("b", "s", "za"), ep("c", "s", "zb"), ep("d", "north", "za")]
SOME_READY = [ep("-a", "north", "za"), ep("b", "east", "za"), ep("c", "west", "zb")]
UNREADY_ZONE = [ep("-a", "north", "za"), ep("b", "east", "zb"), ep("c", "west", "zb")]
MANY_ZONES = [
    ep("a", "s", "za zb zc"),
    ep("b", "s", "zb zc"),
    ep("c", "s", "zb"),
    ep("d", "s", "zc"),
]


@pytest.mark.parametrize(
    ("routed", "endpoints", "where", "want"),
    [
        pytest.param(port(), ZONED, HOME, ("ab", None, "ab"), id="zone hints are used"),
        pytest.param(
            EXTERNAL_LOCAL, CROSSED, HOME, ("bc", "ac", "abc"), id="external Local ignores hints"
        ),
        pytest.param(
            INTERNAL_LOCAL, CROSSED, HOME, (None, "ac", "ac"), id="internal Local ignores hints"
        ),
        pytest.param(
            port(),
            ZONED,
            (NodeView("north"), GATES),
            ("abcd", None, "abcd"),
            id="node without labels",
        ),
        pytest.param(
            port(),
            ZONED,
            (NodeView.of(node("north", "")), GATES),
            ("abcd", None, "abcd"),
            id="node with an empty zone label",
        ),
        pytest.param(
            port(),
            ZONED,
            (NodeView("north", "zc"), GATES),
            ("abcd", None, "abcd"),
            id="node in a zone that nobody hints at",
        ),
        pytest.param(port(), SOME_READY, HOME, ("b", None, "b"), id="one of our zone is not ready"),
        pytest.param(
            port(), UNREADY_ZONE, HOME, ("bc", None, "bc"), id="none of our zone is ready"
        ),
        pytest.param(port(), UNHINTED, HOME, ("abc", None, "abc"), id="a hint is missing"),
        pytest.param(
            port(),
            MANY_ZONES,
            (NodeView("north", "zb"), GATES),
            ("abc", None, "abc"),
            id="several zones in a hint",
        ),
        pytest.param(
            port(),
            NODED,
            (NORTH, SAME_NODE_OFF),
            ("ab", None, "ab"),
            id="node hints without their gate",
        ),
        pytest.param(port(), NODED, HOME, ("a", None, "a"), id="node hints are used"),
        pytest.param(
            port(),
            [*NODED, ep("d", "w", "zb")],
            HOME,
            ("ab", None, "ab"),
            id="a node hint is missing",
        ),
        pytest.param(
            port(),
            NODED,
            (NodeView("other", "za"), GATES),
            ("ab", None, "ab"),
            id="no node hint for us falls to the zone",
        ),
        pytest.param(
            EXTERNAL_LOCAL, MERGED, HOME, ("bd", "ad", "abd"), id="topology and Local are merged"
        ),
        pytest.param(INTERNAL_LOCAL, [], HOME, (None, "", ""), id="internal Local, none"),
        pytest.param(INTERNAL_LOCAL, AWAY, HOME, (None, "", ""), id="internal Local, all away"),
        pytest.param(
            INTERNAL_LOCAL,
            [ep("a", "north"), ep("b", "north")],
            HOME,
            (None, "ab", "ab"),
            id="internal Local, all here",
        ),
        pytest.param(
            INTERNAL_LOCAL,
            [ep("a"), ep("b", "north"), ep("c")],
            HOME,
            (None, "b", "b"),
            id="internal Local, some here",
        ),
        pytest.param(port(), [ep("-a"), ep("-b")], HOME, ("", None, ""), id="Cluster, none ready"),
        pytest.param(port(), [ep("-a"), ep("b")], HOME, ("b", None, "b"), id="Cluster, some ready"),
        pytest.param(
            port(),
            [ep("~a"), ep("~b", "north"), ep("!c")],
            HOME,
            ("ab", None, "ab"),
            id="Cluster, all terminating",
        ),
        pytest.param(
            port(CLUSTER, CLUSTER, node_port=30080),
            HERE_AND_AWAY,
            HOME,
            ("ab", None, "ab"),
            id="internal Cluster, external Cluster",
        ),
        pytest.param(
            EXTERNAL_LOCAL,
            HERE_AND_AWAY,
            HOME,
            ("ab", "a", "ab"),
            id="internal Cluster, external Local",
        ),
        pytest.param(
            port(LOCAL, CLUSTER, node_port=30080),
            HERE_AND_AWAY,
            HOME,
            ("ab", "a", "ab"),
            id="internal Local, external Cluster",
        ),
        pytest.param(
            BOTH_LOCAL,
            HERE_AND_AWAY,
            HOME,
            ("ab", "a", "ab"),
            id="internal Local, external Local",
        ),
        pytest.param(BOTH_LOCAL, AWAY, HOME, ("ab", "", "ab"), id="both Local, all away"),
        pytest.param(
            EXTERNAL_LOCAL,
            LEAVING,
            HOME,
            ("b", "a", "ab"),
            id="external Local falls to what terminates here, Cluster does not",
        ),
        pytest.param(
            port(CLUSTER, LOCAL),
            HERE_AND_AWAY,
            HOME,
            ("ab", None, "ab"),
            id="external policy without external address",
        ),
        pytest.param(
            INTERNAL_LOCAL,
            HERE_AND_AWAY,
            HOME,
            (None, "a", "a"),
            id="internal Local without external address needs no Cluster set",
        ),
        pytest.param(port(), [], HOME, ("", None, ""), id="no endpoints"),
        pytest.param(
            BOTH_LOCAL,
            [ep("!a", "north")],
            HOME,
            ("", "", ""),
            id="one endpoint, all conditions false",
        ),
    ],
)
def test_endpoint_sets(
    routed: RoutedPort,
    endpoints: list[PortEndpoint],
    where: tuple[NodeView, FeatureGates],
    want: tuple[str | None, str | None, str],
) -> None:
    """Policies and topology leave a Cluster set, a Local set and what is reachable."""
    view, gates = where
    got = select(routed, endpoints, node=view, gates=gates)
    assert (names(got.cluster), names(got.local), names(got.reachable)) == want


N1, N2, N3, N4 = (
    NodeView("n1", "za"),
    NodeView("n2", "za"),
    NodeView("n3", "zb"),
    NodeView("n4", "zb"),
)


def five(
    marks: str = "     ", *, zones: str = "za za za za zb", nodes: str = ""
) -> list[PortEndpoint]:
    """Return the five endpoints with states and hints; "." stands for no hint."""
    zone_hints = zones.split() if zones else ["."] * 5
    node_hints = nodes.split() if nodes else ["."] * 5
    return [
        ep(mark.strip() + letter, place, zone.strip("."), host.strip("."))
        for mark, letter, place, zone, host in zip(
            marks, "abcde", ("n1", "n1", "n2", "n2", "n3"), zone_hints, node_hints, strict=True
        )
    ]


NODES = "n1 n1 n2 n2 n3"


@pytest.mark.parametrize(
    ("endpoints", "want"),
    [
        pytest.param(five(zones=""), ("abcde", "abcde", "abcde", "abcde"), id="no hints"),
        pytest.param(five(), ("abcd", "abcd", "e", "e"), id="zone hints on all"),
        pytest.param(five(nodes=NODES), ("ab", "cd", "e", "e"), id="zone and node hints on all"),
        pytest.param(
            five("~~   ", nodes=NODES),
            ("cd", "cd", "e", "e"),
            id="own endpoints terminate: ready ones of the zone",
        ),
        pytest.param(
            five("~~~~~", nodes=NODES),
            ("abcde", "abcde", "abcde", "abcde"),
            id="all terminate: all of them, no topology",
        ),
        pytest.param(
            five("!!!!!", nodes=NODES),
            ("reject", "reject", "reject", "reject"),
            id="none serves",
        ),
        pytest.param(
            five(zones="za za . za zb", nodes="n1 n1 . n2 n3"),
            ("abcde", "abcde", "abcde", "abcde"),
            id="one lost all hints",
        ),
        pytest.param(
            five(nodes="n1 n1 . n2 n3"),
            ("abcd", "abcd", "e", "e"),
            id="one has a zone hint only",
        ),
    ],
)
def test_nodes_in_two_zones(endpoints: list[PortEndpoint], want: tuple[str, ...]) -> None:
    """Four nodes, the last without endpoints of its own, use what a real kube-proxy uses."""
    got = tuple(
        said(select(port(), endpoints, node=view, gates=GATES).internal)
        for view in (N1, N2, N3, N4)
    )
    assert got == want


@pytest.mark.parametrize(
    ("view", "want", "want_mode"),
    [
        pytest.param(N1, "abcd", RoutingMode.SAME_ZONE, id="as labelled"),
        pytest.param(NodeView("n1", "zb"), "e", RoutingMode.SAME_ZONE, id="label changed"),
        pytest.param(NodeView("n1"), "abcde", RoutingMode.ALL, id="label removed"),
    ],
)
def test_zone_label_of_the_node(view: NodeView, want: str, want_mode: RoutingMode) -> None:
    """Which zone a node follows is decided by its label alone."""
    got = select(port(), five(), node=view, gates=GATES)
    assert (said(got.internal), got.mode) == (want, want_mode)


HERE, NEAR, FAR = ("a", "north", "za"), ("b", "east", "za"), ("c", "west", "zb")
SCENARIOS = {
    "local ready": ("a", "b", "c"),
    "local terminating only": ("~a", "b", "c"),
    "remote only": ("b", "c"),
    "none": (),
}
# What each policy alone gives on node north, written down by hand; the two directions do not
# influence one another, so 8 rows give the 72 cases.
WANT: dict[tuple[str, bool], dict[TrafficPolicy, str]] = {
    ("local ready", False): {CLUSTER: "abc", LOCAL: "a", PREFER: "a"},
    ("local ready", True): {CLUSTER: "ab", LOCAL: "a", PREFER: "a"},
    ("local terminating only", False): {CLUSTER: "bc", LOCAL: "a", PREFER: "bc"},
    ("local terminating only", True): {CLUSTER: "b", LOCAL: "a", PREFER: "b"},
    ("remote only", False): {CLUSTER: "bc", LOCAL: "drop", PREFER: "bc"},
    ("remote only", True): {CLUSTER: "b", LOCAL: "drop", PREFER: "b"},
    ("none", False): {CLUSTER: "reject", LOCAL: "reject", PREFER: "reject"},
    ("none", True): {CLUSTER: "reject", LOCAL: "reject", PREFER: "reject"},
}
MATRIX = [
    pytest.param(
        scenario,
        hinted,
        internal,
        external,
        id=f"{scenario}, {'zone hints' if hinted else 'no hints'}, {internal}/{external}",
    )
    for scenario, hinted, internal, external in product(
        SCENARIOS, (False, True), TrafficPolicy, TrafficPolicy
    )
]


def scene(scenario: str, *, hinted: bool) -> list[PortEndpoint]:
    """Return the endpoints of a scenario."""
    places = {letter: (place, zone) for letter, place, zone in (HERE, NEAR, FAR)}
    return [
        ep(name, places[name[-1]][0], places[name[-1]][1] if hinted else "")
        for name in SCENARIOS[scenario]
    ]


@pytest.mark.parametrize(("scenario", "hinted", "internal", "external"), MATRIX)
def test_policy_matrix(
    scenario: str,
    hinted: bool,
    internal: TrafficPolicy,
    external: TrafficPolicy,
) -> None:
    """Each direction follows its own policy in every combination of the two."""
    routed = port(internal, external, node_port=30080)
    got = select(routed, scene(scenario, hinted=hinted), node=NORTH, gates=ALL_GATES)
    want = WANT[scenario, hinted]
    assert said(got.internal) == want[internal]
    assert said(got.external) == want[external]
    want_inside = want[CLUSTER] if external is LOCAL else want[external]
    assert said(got.external_from_inside) == want_inside


@pytest.mark.parametrize(
    ("scenario", "hinted", "want"),
    [
        pytest.param("local ready", True, "a", id="ready here"),
        pytest.param("local terminating only", False, "a", id="terminating here"),
        pytest.param("local terminating only", True, "a", id="terminating here, zone hints"),
        pytest.param("remote only", True, "b", id="nothing here"),
        pytest.param("none", False, "reject", id="nothing at all"),
    ],
)
def test_prefer_local_may_use_terminating(scenario: str, hinted: bool, want: str) -> None:
    """The open point of PreferLocal can be decided the other way: what terminates here wins."""
    routed = port(PREFER, PREFER, node_port=30080)
    got = select(
        routed,
        scene(scenario, hinted=hinted),
        node=NORTH,
        gates=ALL_GATES,
        prefer_local_may_use_terminating=True,
    )
    assert (said(got.internal), said(got.external)) == (want, want)


def test_prefer_local_default() -> None:
    """By default PreferLocal takes ready endpoints only."""
    assert PREFER_LOCAL_MAY_USE_TERMINATING is False


@pytest.mark.parametrize("scenario", [pytest.param(name, id=name) for name in SCENARIOS])
def test_prefer_local_without_its_gate(scenario: str) -> None:
    """A proxy that does not know PreferLocal does as under Cluster, never as under Local."""
    one = service(
        type="NodePort",
        internal_traffic_policy="PreferLocal",
        external_traffic_policy="PreferLocal",
    )
    (routed,) = routed_ports(one, "IPv4", gates=GATES, assume_allocated=True)
    got = select(routed, scene(scenario, hinted=True), node=NORTH, gates=GATES)
    want = WANT[scenario, True][CLUSTER]
    assert (said(got.internal), said(got.external)) == (want, want)


@pytest.mark.parametrize(
    ("internal", "external", "node_port", "want_internal", "want_external"),
    [
        pytest.param(CLUSTER, CLUSTER, 30080, "ab", "ab", id="neither: topology for both"),
        pytest.param(CLUSTER, LOCAL, 30080, "ab", "a", id="external Local only"),
        pytest.param(LOCAL, LOCAL, 30080, "a", "a", id="both Local"),
        pytest.param(LOCAL, CLUSTER, 30080, "a", "ab", id="internal Local only"),
        pytest.param(CLUSTER, LOCAL, 0, "ab", "", id="no external address, no external traffic"),
    ],
)
def test_policies_precede_topology(
    internal: TrafficPolicy,
    external: TrafficPolicy,
    node_port: int,
    want_internal: str,
    want_external: str,
) -> None:
    """A Local policy takes its direction away from topology."""
    routed = port(internal, external, node_port=node_port)
    got = select(routed, scene("local ready", hinted=True), node=NORTH, gates=GATES)
    assert (said(got.internal), said(got.external)) == (want_internal, want_external)


def test_no_external_traffic() -> None:
    """A port without external address has neither endpoints nor a verdict for the outside."""
    got = select(port(LOCAL, LOCAL), [ep("a", "west")], node=NORTH, gates=GATES)
    assert said(got.internal) == "drop"
    assert (got.external, got.external_from_inside) == (NO_TRAFFIC, NO_TRAFFIC)
    assert NO_TRAFFIC.verdict is PacketVerdict.NONE


@pytest.mark.parametrize(
    ("endpoints", "want_any", "want_terminating"),
    [
        pytest.param([], False, False, id="none"),
        pytest.param([ep("a")], True, False, id="ready elsewhere"),
        pytest.param([ep("~a")], True, False, id="terminating elsewhere"),
        pytest.param([ep("~a", "north")], True, True, id="terminating here"),
        pytest.param([ep("~a", "north"), ep("b", "north")], True, False, id="both here"),
        pytest.param([ep("-a", "north"), ep("!b")], False, False, id="unusable"),
    ],
)
def test_has_any(
    endpoints: list[PortEndpoint],
    want_any: bool,
    want_terminating: bool,
) -> None:
    """Under Local a node still knows whether anything usable exists on other nodes."""
    got = select(INTERNAL_LOCAL, endpoints, node=NORTH, gates=GATES)
    assert (got.has_any, got.local_is_terminating) == (want_any, want_terminating)


@pytest.mark.parametrize(
    ("routed", "want_internal", "want_external"),
    [
        pytest.param(port(), "reject", "", id="Cluster"),
        pytest.param(INTERNAL_LOCAL, "reject", "", id="Local"),
        pytest.param(port(PREFER, LOCAL, node_port=30080), "reject", "reject", id="both"),
    ],
)
def test_terminating_gate_off(routed: RoutedPort, want_internal: str, want_external: str) -> None:
    """Without ProxyTerminatingEndpoints an endpoint that terminates gets no traffic at all."""
    gates = GATES.without(Gate.PROXY_TERMINATING_ENDPOINTS)
    got = select(routed, [ep("~a", "north")], node=NORTH, gates=gates)
    assert (said(got.internal), said(got.external)) == (want_internal, want_external)
    assert got.has_any is False


def test_unmatched_topology_keys() -> None:
    """A demand that no endpoint meets refuses connections, also where others could serve."""
    keys = ("kubernetes.io/hostname",)
    plain = select(port(topology_keys=keys), [ep("a")], node=NORTH, gates=ALL_GATES)
    assert (said(plain.internal), plain.has_any) == ("reject", False)
    assert plain.mode is RoutingMode.TOPOLOGY_KEYS
    assert codes(plain) == [ReasonCode.TOPOLOGY_KEYS_UNMATCHED]
    mixed = select(
        port(PREFER, LOCAL, node_port=30080, topology_keys=keys),
        [ep("a")],
        node=NORTH,
        gates=ALL_GATES,
    )
    assert (said(mixed.internal), said(mixed.external)) == ("reject", "drop")
    assert said(mixed.external_from_inside) == "reject"


def test_node_level_leaves_local_alone() -> None:
    """Node-level topology narrows the Cluster set and never the Local set."""
    routed = port(CLUSTER, LOCAL, node_port=30080, node_level=True)
    got = select(routed, [ep("a", "north"), ep("~b", "north"), ep("c")], node=NORTH, gates=GATES)
    assert (names(got.cluster), names(got.local), names(got.reachable)) == ("a", "a", "a")
    assert got.mode is RoutingMode.NODE_LEVEL


def test_slice_labels_leave_local_alone() -> None:
    """Slices for another zone are left out of the Cluster set only, and both sets reachable."""
    labelled = [
        PortEndpoint("10.0.0.97", 80, node_name="north", for_zone="zb"),
        PortEndpoint("10.0.0.98", 80, node_name="east", for_zone="za"),
    ]
    got = select(EXTERNAL_LOCAL, labelled, node=NORTH, gates=ALL_GATES)
    assert (names(got.cluster), names(got.local), names(got.reachable)) == ("b", "a", "ab")
    assert got.by_slice_labels
    assert got.mode is RoutingMode.ALL


def test_unchanged_sets_are_shared() -> None:
    """Where Local adds nothing, what is reachable is the Cluster set itself."""
    got = select(EXTERNAL_LOCAL, [ep("a", "north"), ep("b")], node=NORTH, gates=GATES)
    assert got.reachable is got.cluster


def test_weights_pass_through() -> None:
    """Weights of endpoints arrive in the outcome, and the selection says that there are some."""
    weighted = endpoint_slice(
        endpoint("10.0.0.97", for_zones=("za",)),
        endpoint("10.0.0.98", for_zones=("za", "zb")),
        endpoint("10.0.0.99", for_zones=("zb",)),
        annotations={"keepclose.dev/endpoint-weights": "[2,3,5]"},
    )
    found = collect_endpoints([weighted], "IPv4", gates=GATES)
    got = select(port(), found["http", "TCP"], node=NORTH, gates=GATES)
    assert [(one.shown, one.weight) for one in got.internal.endpoints] == [
        ("10.0.0.97/8080", 2),
        ("10.0.0.98/8080", 3),
    ]
    assert got.reasons[-1] == Reason(
        ReasonCode.WEIGHTED, "endpoints get traffic in proportion to their weights"
    )


@pytest.mark.parametrize(
    ("routed", "endpoints", "want"),
    [
        pytest.param(port(), [ep("a")], [ReasonCode.ALL_ENDPOINTS], id="plain"),
        pytest.param(port(), [], [ReasonCode.NO_ENDPOINTS], id="nothing"),
        pytest.param(
            port(LOCAL, LOCAL, node_port=30080),
            [ep("a")],
            [
                ReasonCode.NO_LOCAL_ENDPOINT,
                ReasonCode.NO_LOCAL_ENDPOINT,
                ReasonCode.ALL_ENDPOINTS,
            ],
            id="Local in both directions, pods of this node use all",
        ),
        pytest.param(
            port(PREFER, PREFER, node_port=30080),
            [ep("a", "north")],
            [ReasonCode.LOCAL_PREFERRED, ReasonCode.LOCAL_PREFERRED],
            id="PreferLocal found one, topology had no say",
        ),
        pytest.param(
            port(PREFER, CLUSTER),
            [ep("a", "west", "za")],
            [ReasonCode.LOCAL_FELL_BACK, ReasonCode.SAME_ZONE],
            id="PreferLocal fell back to the zone",
        ),
        pytest.param(
            INTERNAL_LOCAL,
            [ep("~a", "north")],
            [ReasonCode.TERMINATING_FALLBACK],
            id="Local with what terminates",
        ),
    ],
)
def test_reasons(routed: RoutedPort, endpoints: list[PortEndpoint], want: list[ReasonCode]) -> None:
    """Reasons are those of the sets that traffic really uses, policies first."""
    assert codes(select(routed, endpoints, node=NORTH, gates=ALL_GATES)) == want


@pytest.mark.parametrize(
    ("endpoints", "want"),
    [
        pytest.param([], "there are no endpoints, so connections are refused", id="none"),
        pytest.param(
            [ep("-a"), ep("!b")],
            "of 2 endpoints none is ready and none still serves while it terminates, "
            "so connections are refused",
            id="unusable",
        ),
    ],
)
def test_no_endpoints_reason(endpoints: list[PortEndpoint], want: str) -> None:
    """A port without usable endpoints names its Service."""
    got = select(port(), endpoints, node=NORTH, gates=GATES)
    assert got.reasons == (Reason(ReasonCode.NO_ENDPOINTS, want, "Service default/web"),)


HOSTS = ("n0", "n1", "n2", "")
AREAS = ("z0", "z1", "")
hosts, areas = st.sampled_from(HOSTS), st.sampled_from(AREAS)
policies = st.sampled_from(TrafficPolicy)
views = st.builds(NodeView, hosts, areas, st.sampled_from(("r0", "")))
gate_sets = st.builds(FeatureGates, st.frozensets(st.sampled_from(Gate)))
named_zones = st.lists(st.sampled_from(("z0", "z1")), max_size=2, unique=True).map(tuple)
named_hosts = st.lists(st.sampled_from(("n0", "n1")), max_size=2, unique=True).map(tuple)


@st.composite
def endpoint_lists(draw: st.DrawFn) -> list[PortEndpoint]:
    """Draw endpoints of distinct addresses; in half of the lists hints are complete."""
    complete = draw(st.booleans())
    count = draw(st.integers(min_value=0, max_value=6))
    return [
        PortEndpoint(
            f"10.0.0.{number}",
            80,
            ready=draw(st.booleans()) or draw(st.booleans()),
            serving=draw(st.booleans()),
            terminating=draw(st.booleans()),
            node_name=draw(hosts),
            zone=draw(areas),
            zone_hints=draw(named_zones) or (("z0",) if complete else ()),
            node_hints=draw(named_hosts) or (("n0",) if complete else ()),
            for_zone=draw(areas),
            for_region=draw(st.sampled_from(("r0", "r1", ""))),
        )
        for number in range(count)
    ]


ports_of_any_kind = st.builds(
    port,
    policies,
    policies,
    node_port=st.sampled_from((0, 30080)),
    node_level=st.booleans(),
)
checked = settings(deadline=None, max_examples=200)


@checked
@given(endpoint_lists(), views, gate_sets, st.booleans())
def test_cluster_never_black_holes(
    endpoints: list[PortEndpoint],
    view: NodeView,
    gates: FeatureGates,
    node_level: bool,
) -> None:
    """Under Cluster a ready endpoint anywhere means that traffic goes to ready endpoints."""
    got = select(port(node_level=node_level), endpoints, node=view, gates=gates)
    if any(one.ready for one in endpoints):
        assert got.internal.endpoints
        assert all(one.ready for one in got.internal.endpoints)


@checked
@given(endpoint_lists(), views)
def test_hint_levels_never_mix(endpoints: list[PortEndpoint], view: NodeView) -> None:
    """The Cluster set is all ready endpoints, or those for this node, or those for its zone."""
    got = select(port(), endpoints, node=view, gates=GATES)
    ready = tuple(one for one in endpoints if one.ready)
    want = {
        RoutingMode.ALL: ready,
        RoutingMode.SAME_NODE: tuple(one for one in ready if view.name in one.node_hints),
        RoutingMode.SAME_ZONE: tuple(one for one in ready if view.zone in one.zone_hints),
    }
    if ready:
        assert got.internal.endpoints == want[got.mode]


@checked
@given(endpoint_lists(), views, gate_sets, ports_of_any_kind)
def test_local_stays_on_the_node(
    endpoints: list[PortEndpoint], view: NodeView, gates: FeatureGates, routed: RoutedPort
) -> None:
    """The Local set never holds an endpoint of another node, and Local traffic gets that set."""
    got = select(routed, endpoints, node=view, gates=gates)
    assert all(one.node_name == view.name != "" for one in got.local or ())
    if routed.internal_policy is LOCAL:
        assert got.internal.endpoints == got.local


@checked
@given(endpoint_lists(), views, gate_sets, ports_of_any_kind, st.booleans())
def test_outcomes_are_one_of_two_sets(
    endpoints: list[PortEndpoint],
    view: NodeView,
    gates: FeatureGates,
    routed: RoutedPort,
    may_terminate: bool,
) -> None:
    """Whatever the policy, traffic gets the Local set, the Cluster set or a refusal."""
    got = select(
        routed,
        endpoints,
        node=view,
        gates=gates,
        prefer_local_may_use_terminating=may_terminate,
    )
    for outcome in (got.internal, got.external, got.external_from_inside):
        if outcome.endpoints:
            assert outcome.verdict is PacketVerdict.NONE
            assert outcome.endpoints in (got.local, got.cluster)
    if routed.internal_policy is PREFER:
        assert got.internal.verdict is not PacketVerdict.DROP
    used = {one.key for one in (*(got.local or ()), *(got.cluster or ()))}
    assert {one.key for one in got.reachable} == used
    assert [one.key for one in got.reachable] == sorted(used)


@st.composite
def slice_lists(draw: st.DrawFn) -> list[EndpointSlice]:
    """Draw slices of one Service in which an address may stand several times."""
    return [
        endpoint_slice(
            *draw(st.lists(slice_endpoints, max_size=4)),
            name=f"web-{number}",
            labels={"endpointslice.kubernetes.io/for-zone": zone} if zone else {},
        )
        for number, zone in enumerate(draw(st.lists(areas, max_size=4)))
    ]


slice_endpoints: st.SearchStrategy[Endpoint] = st.builds(
    endpoint,
    st.sampled_from(("10.0.0.2", "10.0.0.10", "10.0.0.1")),
    zone=st.sampled_from(("z0", None)),
    node_name=st.sampled_from(("n0", "n1", None)),
    ready=st.sampled_from((True, False, None)),
    serving=st.sampled_from((True, False, None)),
    terminating=st.sampled_from((True, False, None)),
    for_zones=named_zones,
    for_nodes=named_hosts,
)


@checked
@given(slice_lists(), st.randoms(use_true_random=False), views, ports_of_any_kind, gate_sets)
def test_order_of_slices_does_not_matter(
    slices: list[EndpointSlice],
    chance: Random,
    view: NodeView,
    routed: RoutedPort,
    gates: FeatureGates,
) -> None:
    """Slices that arrive in another order lead to the same selection."""
    shuffled = list(slices)
    chance.shuffle(shuffled)
    first, second = (
        select(
            routed,
            collect_endpoints(order, "IPv4", gates=gates).get(routed.key, ()),
            node=view,
            gates=gates,
        )
        for order in (slices, shuffled)
    )
    assert first == second
