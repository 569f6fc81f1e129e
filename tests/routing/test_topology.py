"""What a node uses under the Cluster policy, mechanism by mechanism."""

from __future__ import annotations

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort, routed_ports
from keepclose.routing.topology import ClusterChoice, RoutingMode, choose_cluster_endpoints
from support.builders import endpoint, endpoint_slice, service

GATES = FeatureGates()
LABELS = GATES.with_gates(Gate.ENDPOINT_SLICE_SUBSETTING)
NODE_LEVEL = GATES.with_gates(Gate.NODE_LEVEL_TOPOLOGY)
KEY = NamespacedName("default", "web")
PORT = RoutedPort(KEY, "http", "TCP", "10.96.0.10", 80)
LEVEL_PORT = RoutedPort(KEY, "http", "TCP", "10.96.0.10", 80, node_level=True)
NODE = NodeView("n1", "zone-a", "east")


def ep(
    name: str,
    place: str = "",
    *,
    zones: str = "",
    nodes: str = "",
    for_zone: str = "",
    for_region: str = "",
    state: str = "ready",
) -> PortEndpoint:
    """Return an endpoint known by a letter; `place` is "node/zone", hints separated by blanks."""
    node, _, zone = place.partition("/")
    return PortEndpoint(
        f"10.0.0.{ord(name)}",
        80,
        ready=state == "ready",
        serving=state in ("ready", "leaving"),
        terminating=state in ("leaving", "gone"),
        node_name=node,
        zone=zone,
        zone_hints=tuple(zones.split()),
        node_hints=tuple(nodes.split()),
        for_zone=for_zone,
        for_region=for_region,
    )


def names(endpoints: tuple[PortEndpoint, ...]) -> str:
    """Return the letters of endpoints."""
    return "".join(chr(int(one.address.rpartition(".")[2])) for one in endpoints)


def choose(
    endpoints: list[PortEndpoint],
    *,
    port: RoutedPort = PORT,
    node: NodeView = NODE,
    gates: FeatureGates = GATES,
) -> ClusterChoice:
    """Return the choice with defaults for what a test does not care about."""
    return choose_cluster_endpoints(port, endpoints, node=node, gates=gates)


def codes(choice: ClusterChoice) -> list[ReasonCode]:
    """Return the codes of a choice's reasons."""
    return [reason.code for reason in choice.reasons]


@pytest.mark.parametrize(
    ("endpoints", "gates", "want"),
    [
        pytest.param(
            [ep("a", for_zone="zone-a"), ep("b", for_zone="zone-b")],
            GATES,
            "ab",
            id="gate off takes all slices",
        ),
        pytest.param([ep("a", for_zone="zone-a")], LABELS, "a", id="the same zone is taken"),
        pytest.param(
            [ep("a", for_zone="zone-a"), ep("b", for_zone="zone-b"), ep("c")],
            LABELS,
            "ac",
            id="another zone is not taken",
        ),
        pytest.param(
            [ep("a", for_region="east"), ep("b", for_zone="zone-b")],
            LABELS,
            "a",
            id="the same region is taken",
        ),
        pytest.param(
            [ep("a", for_region="west"), ep("b")], LABELS, "b", id="another region is not taken"
        ),
        pytest.param(
            [ep("a", for_zone="zone-b", for_region="east"), ep("b", for_zone="zone-b")],
            LABELS,
            "a",
            id="one of two labels is enough",
        ),
        pytest.param(
            [ep("b", for_zone="zone-b"), ep("c", for_zone="zone-c")],
            LABELS,
            "bc",
            id="no slice for our zone and none for everybody takes all",
        ),
        pytest.param(
            [ep("a", for_zone="zone-a", state="unready"), ep("b", for_zone="zone-b")],
            LABELS,
            "b",
            id="nothing ready in our slices takes all that is ready",
        ),
        pytest.param(
            [
                ep("a", for_zone="zone-a", state="leaving"),
                ep("b", for_zone="zone-b", state="leaving"),
            ],
            LABELS,
            "ab",
            id="nothing ready anywhere ignores labels",
        ),
    ],
)
def test_slice_labels(endpoints: list[PortEndpoint], gates: FeatureGates, want: str) -> None:
    """Slices for another zone or region are left out, unless nothing ready would remain."""
    assert names(choose(endpoints, gates=gates).endpoints) == want


def test_slice_labels_and_a_node_without_zone() -> None:
    """A node without zone takes all slices, and is told which label it lacks."""
    choice = choose(
        [ep("a", for_zone="zone-a"), ep("b", for_zone="zone-b")],
        node=NodeView("n9", "", "east"),
        gates=LABELS,
    )
    assert (names(choice.endpoints), choice.by_slice_labels) == ("ab", False)
    assert choice.reasons == (
        Reason(
            ReasonCode.NODE_WITHOUT_ZONE,
            "node n9 has no zone label, so it takes slices labelled for any zone or region",
            "Node n9",
            "kubectl label node n9 topology.kubernetes.io/zone=<zone>",
        ),
        Reason(ReasonCode.ALL_ENDPOINTS, "every ready endpoint is used (2)"),
    )


def test_regional_slices_and_a_node_without_zone() -> None:
    """A node without zone is told so also where slices are labelled for regions only."""
    choice = choose([ep("a", for_region="west")], node=NodeView("n9"), gates=LABELS)
    assert names(choice.endpoints) == "a"
    assert codes(choice) == [ReasonCode.NODE_WITHOUT_ZONE, ReasonCode.ALL_ENDPOINTS]


def test_slice_label_reasons() -> None:
    """A choice tells whether labels narrowed it, and in which numbers."""
    narrowed = choose([ep("a", for_zone="zone-a"), ep("b", for_zone="zone-b")], gates=LABELS)
    assert narrowed.by_slice_labels
    assert narrowed.is_narrowed
    assert narrowed.mode is RoutingMode.ALL
    assert narrowed.reasons == (
        Reason(
            ReasonCode.SLICES_FOR_ZONE,
            "in slices for zone zone-a, its region or all zones: 1 of 2 ready endpoints",
        ),
    )
    others = choose([ep("b", for_zone="zone-b")], gates=LABELS)
    assert not others.by_slice_labels
    assert others.reasons[0] == Reason(
        ReasonCode.SLICES_NOT_FOR_US,
        "no slice with a ready endpoint is for zone zone-a, so those of others are taken",
        "Node n1",
    )
    unlabelled = choose([ep("a"), ep("b")], gates=LABELS)
    assert not unlabelled.is_narrowed
    assert codes(unlabelled) == [ReasonCode.ALL_ENDPOINTS]


@pytest.mark.parametrize(
    ("endpoints", "want", "want_mode"),
    [
        pytest.param(
            [
                ep("a", for_zone="zone-a", zones="zone-a"),
                ep("b", for_zone="zone-a", zones="zone-b"),
                ep("c", for_zone="zone-b", zones="zone-a"),
            ],
            "a",
            RoutingMode.SAME_ZONE,
            id="hints narrow what the labels left",
        ),
        pytest.param(
            [ep("a", for_zone="zone-a", zones="zone-a"), ep("b", for_zone="zone-b")],
            "a",
            RoutingMode.SAME_ZONE,
            id="hints missing in slices of others do no harm",
        ),
        pytest.param(
            [
                ep("a", for_zone="zone-a", zones="zone-b"),
                ep("b", for_zone="zone-b", zones="zone-a"),
            ],
            "a",
            RoutingMode.ALL,
            id="hints for us in slices of others do no good",
        ),
    ],
)
def test_labels_before_hints(
    endpoints: list[PortEndpoint],
    want: str,
    want_mode: RoutingMode,
) -> None:
    """Where labels and hints meet, labels filter first and hints judge what remains."""
    choice = choose(endpoints, gates=LABELS)
    assert (names(choice.endpoints), choice.mode) == (want, want_mode)
    assert choice.by_slice_labels


@pytest.mark.parametrize(
    ("endpoints", "want", "want_mode"),
    [
        pytest.param(
            [ep("a", "n1/zone-a"), ep("b", "n2/zone-a")],
            "a",
            RoutingMode.NODE_LEVEL,
            id="an endpoint on this node, no hints needed",
        ),
        pytest.param(
            [ep("a", "n1/zone-a", zones="zone-b", nodes="n2"), ep("b", "n2/z", nodes="n1")],
            "a",
            RoutingMode.NODE_LEVEL,
            id="place wins over hints",
        ),
        pytest.param(
            [ep("a", "n1/zone-a", state="leaving"), ep("b", "n2/zone-a"), ep("c", "n3/zone-b")],
            "bc",
            RoutingMode.ALL,
            id="one that terminates here is not preferred",
        ),
        pytest.param(
            [
                ep("a", "n1/zone-a", state="unready"),
                ep("b", "n2/zone-a", zones="zone-a"),
                ep("c", "n3/zone-b", zones="zone-b"),
            ],
            "b",
            RoutingMode.SAME_ZONE,
            id="nothing ready here falls to the zone",
        ),
        pytest.param(
            [ep("b", "n2/zone-a"), ep("c", "n3/zone-b")],
            "bc",
            RoutingMode.ALL,
            id="nothing here and no hints",
        ),
        pytest.param(
            [ep("b", "n2/zone-a", nodes="n1"), ep("c", "n3/zone-b", nodes="n3")],
            "b",
            RoutingMode.SAME_NODE,
            id="nothing here falls to node hints",
        ),
        pytest.param(
            [ep("a", "n1/zone-a", state="leaving"), ep("b", "n2/zone-a", state="leaving")],
            "ab",
            RoutingMode.ALL,
            id="nothing ready anywhere",
        ),
    ],
)
def test_node_level(
    endpoints: list[PortEndpoint],
    want: str,
    want_mode: RoutingMode,
) -> None:
    """Node-level topology uses ready endpoints on this node, else does as if it were absent."""
    choice = choose(endpoints, port=LEVEL_PORT, gates=NODE_LEVEL)
    assert (names(choice.endpoints), choice.mode) == (want, want_mode)


def test_node_level_reasons() -> None:
    """Node-level topology says how many endpoints it found, or that it fell back."""
    found = choose([ep("a", "n1/zone-a"), ep("b", "n2/zone-a")], port=LEVEL_PORT)
    assert found.reasons == (
        Reason(
            ReasonCode.NODE_LEVEL,
            "the Service asks for endpoints on the client's node; "
            "on node n1: 1 of 2 ready endpoints",
        ),
    )
    fallen = choose([ep("b", "n2/zone-a")], port=LEVEL_PORT)
    assert fallen.reasons[0] == Reason(
        ReasonCode.LOCAL_FELL_BACK,
        "the Service asks for endpoints on the client's node, but no ready endpoint is on node n1",
        "Node n1",
        "run endpoints on node n1, in proportion to its clients",
    )
    assert codes(fallen) == [ReasonCode.LOCAL_FELL_BACK, ReasonCode.ALL_ENDPOINTS]


def test_node_level_without_a_name() -> None:
    """A node that does not know its name has no endpoints of its own."""
    choice = choose([ep("a"), ep("b", "n2/z")], port=LEVEL_PORT, node=NodeView(""))
    assert names(choice.endpoints) == "ab"


@pytest.mark.parametrize(
    ("keys", "endpoints", "want"),
    [
        pytest.param(
            ("kubernetes.io/hostname",),
            [ep("a", "n1/zone-a"), ep("b", "n2/zone-a")],
            "a",
            id="keys decide",
        ),
        pytest.param(
            ("kubernetes.io/hostname",),
            [ep("b", "n2/zone-a", zones="zone-a")],
            "",
            id="hints do not help a demand that fails",
        ),
        pytest.param(
            ("topology.kubernetes.io/zone", "*"),
            [ep("a", "n1/zone-a", zones="zone-b"), ep("b", "n2/zone-b", zones="zone-a")],
            "a",
            id="keys go before hints",
        ),
        pytest.param(
            ("kubernetes.io/hostname", "*"),
            [ep("a", "n1/zone-a", state="leaving"), ep("b", "n2/zone-a")],
            "b",
            id="only ready endpoints are judged",
        ),
        pytest.param(
            ("kubernetes.io/hostname",),
            [ep("a", "n1/zone-a", state="leaving"), ep("b", "n2/zone-a", state="leaving")],
            "a",
            id="with nothing ready the demand holds for those that terminate",
        ),
    ],
)
def test_topology_keys_govern(
    keys: tuple[str, ...],
    endpoints: list[PortEndpoint],
    want: str,
) -> None:
    """Where topologyKeys are set, nothing else has a say."""
    port = RoutedPort(KEY, "http", "TCP", "10.96.0.10", 80, topology_keys=keys)
    choice = choose(endpoints, port=port, gates=LABELS)
    assert (names(choice.endpoints), choice.mode) == (want, RoutingMode.TOPOLOGY_KEYS)


def test_topology_keys_without_endpoints() -> None:
    """Without any endpoint there is nothing to match, and nothing is said about keys."""
    port = RoutedPort(KEY, "http", "TCP", "10.96.0.10", 80, topology_keys=("*",))
    assert choose([], port=port) == ClusterChoice((), RoutingMode.ALL, False, ())


def test_terminating_fallback() -> None:
    """With nothing ready, those that still serve are used on any node, whatever their hints."""
    leaving = [
        ep("a", "n2/zone-b", zones="zone-b", state="leaving"),
        ep("b", "n1/zone-a", zones="zone-a", state="leaving"),
        ep("c", "n1/zone-a", zones="zone-a", state="unready"),
        ep("d", "n1/zone-a", zones="zone-a", state="gone"),
    ]
    choice = choose(leaving)
    assert (names(choice.endpoints), choice.mode) == ("ab", RoutingMode.ALL)
    assert choice.reasons == (
        Reason(
            ReasonCode.TERMINATING_FALLBACK,
            "no endpoint is ready; those that still serve while they terminate are used (2 of 4)",
        ),
    )
    off = choose(leaving, gates=GATES.without(Gate.PROXY_TERMINATING_ENDPOINTS))
    assert (off.endpoints, off.reasons) == ((), ())


def routed(
    *,
    annotation: str | None,
    zones: bool = True,
    nodes: bool = False,
    gates: FeatureGates,
    node: NodeView = NODE,
) -> str:
    """Return the letters used after objects have gone all the way from the API to a choice."""
    annotations = {} if annotation is None else {"service.kubernetes.io/topology-mode": annotation}
    hinted = [
        endpoint(
            f"10.0.0.{ord(name)}",
            node_name=host,
            zone=zone,
            for_zones=(zone,) if zones else (),
            for_nodes=(host,) if nodes else (),
        )
        for name, host, zone in (
            ("a", "n1", "zone-a"),
            ("b", "n2", "zone-a"),
            ("c", "n3", "zone-b"),
        )
    ]
    (port,) = routed_ports(service(annotations=annotations), "IPv4", gates=gates)
    found = collect_endpoints([endpoint_slice(*hinted)], "IPv4", gates=gates)
    return names(choose(list(found[port.key]), port=port, node=node, gates=gates).endpoints)


OLD_PROXY = GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION, Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)


@pytest.mark.parametrize(
    ("gates", "annotation", "hinted", "want"),
    [
        pytest.param(OLD_PROXY, "Auto", True, "ab", id="new controller, old proxy: both set"),
        pytest.param(OLD_PROXY, None, True, "abc", id="new controller, old proxy: field only"),
        pytest.param(OLD_PROXY, "auto", True, "ab", id="new controller, old proxy: annotation"),
        pytest.param(GATES, "Auto", True, "ab", id="old controller, new proxy: both set"),
        pytest.param(GATES, None, False, "abc", id="old controller, new proxy: field only"),
        pytest.param(GATES, "auto", True, "ab", id="old controller, new proxy: annotation only"),
        pytest.param(GATES, None, True, "ab", id="all new: field only"),
        pytest.param(
            OLD_PROXY.without(Gate.TOPOLOGY_AWARE_HINTS), "Auto", True, "abc", id="both gates off"
        ),
        pytest.param(OLD_PROXY, "Disabled", True, "abc", id="old proxy: disabled"),
    ],
)
def test_version_skew(
    gates: FeatureGates,
    annotation: str | None,
    hinted: bool,
    want: str,
) -> None:
    """Old and new controllers and proxies together give topology or plain routing, never less."""
    assert routed(annotation=annotation, zones=hinted, gates=gates) == want


PROXY_OFF = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
ZONELESS = NodeView("n1")


@pytest.mark.parametrize(
    ("zones", "nodes", "node", "gates", "want"),
    [
        pytest.param(True, True, NODE, GATES, "a", id="all on"),
        pytest.param(False, False, NODE, GATES, "abc", id="controller off, hints removed"),
        pytest.param(True, False, NODE, GATES, "ab", id="API server off, node hints dropped"),
        pytest.param(True, True, NODE, PROXY_OFF, "ab", id="proxy off"),
        pytest.param(False, True, ZONELESS, GATES, "a", id="no zones, all on"),
        pytest.param(False, False, ZONELESS, GATES, "abc", id="no zones, API server off"),
        pytest.param(False, True, ZONELESS, PROXY_OFF, "abc", id="no zones, proxy off"),
        pytest.param(
            True,
            True,
            NODE,
            PROXY_OFF.with_gates(Gate.NODE_LEVEL_TOPOLOGY),
            "a",
            id="node hints also serve node-level topology",
        ),
    ],
)
def test_same_node_with_parts_switched_off(
    zones: bool,
    nodes: bool,
    node: NodeView,
    gates: FeatureGates,
    want: str,
) -> None:
    """PreferSameNode degrades to the zone, or to all, when some part does not know it."""
    assert routed(annotation=None, zones=zones, nodes=nodes, gates=gates, node=node) == want


def test_ignored_hints_reasons() -> None:
    """Hints that are not followed are mentioned, with what switches them off."""
    deaf = RoutedPort(KEY, "http", "TCP", "10.96.0.10", 80, honours_hints=False)
    hinted = [ep("a", zones="zone-a")]
    by_annotation = choose(hinted, port=deaf, gates=OLD_PROXY)
    assert by_annotation.reasons[0] == Reason(
        ReasonCode.HINTS_IGNORED,
        "endpoints carry hints, but feature gate ServiceTrafficDistribution is off and no "
        "topology annotation asks to follow them",
        "Service default/web",
    )
    by_gate = choose(hinted, port=deaf, gates=OLD_PROXY.without(Gate.TOPOLOGY_AWARE_HINTS))
    assert by_gate.reasons[0] == Reason(
        ReasonCode.HINTS_IGNORED,
        "endpoints carry hints, but feature gate ServiceTrafficDistribution is off and so is "
        "TopologyAwareHints",
        "FeatureGate ServiceTrafficDistribution",
    )
    assert codes(choose([ep("a")], port=deaf, gates=OLD_PROXY)) == [ReasonCode.ALL_ENDPOINTS]


def test_hint_reasons_are_kept_on_the_way() -> None:
    """The reasons of every level that was tried stay, so that people see where it ended."""
    hinted = [ep("b", zones="zone-a", nodes="n2"), ep("c", zones="zone-b", nodes="n3")]
    assert codes(choose(hinted)) == [ReasonCode.NODE_NOT_HINTED, ReasonCode.SAME_ZONE]
    assert codes(choose(hinted, node=NodeView("n9"))) == [
        ReasonCode.NODE_NOT_HINTED,
        ReasonCode.NODE_WITHOUT_ZONE,
        ReasonCode.ALL_ENDPOINTS,
    ]
