"""Packets of every kind against Services of every kind: where they go and with whose address."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointPort
from keepclose.model.service.types import (
    ServicePort,
)
from keepclose.ruleset import DetectLocal, LocalTraffic, RulesetSettings
from keepclose.ruleset.tracer import Packet
from support.builders import endpoint, endpoint_slice, service
from support.ruleset.kerneltables import KernelTable
from support.ruleset.tracednodes import (
    BLOCKED,
    DROP,
    NODE_IP,
    OTHER_NODE_IP,
    OUTSIDE,
    POD,
    REJECT,
    SETTINGS,
    follow,
    load,
    make_ruleset,
    tell,
)
from support.ruleset.web_objects import slice_of, web

HERE, THERE = "n1", "n2"


def pair(number: int) -> tuple[Endpoint, Endpoint]:
    """Return an endpoint on this node and one on another."""
    return (
        endpoint(f"10.180.0.{number}", node_name=HERE),
        endpoint(f"10.180.1.{number}", node_name=THERE),
    )


SOURCES = {"pod": POD, "node": NODE_IP, "outside": OUTSIDE}
TARGETS = {
    ("cluster IP", ""): ("172.30.0.41", 80),
    ("node port", ""): (NODE_IP, 3001),
    ("balancer", ""): ("1.2.3.4", 80),
    ("cluster IP", "external Local"): ("172.30.0.42", 80),
    ("node port", "external Local"): (NODE_IP, 3002),
    ("balancer", "external Local"): ("5.6.7.8", 80),
    ("cluster IP", "internal Local"): ("172.30.0.43", 80),
    ("node port", "internal Local"): (NODE_IP, 3003),
    ("balancer", "internal Local"): ("9.10.11.12", 80),
}
NUMBERS = {"": 1, "external Local": 2, "internal Local": 3}
MASQUERADED_TO_CLUSTER_IP = {
    # (traffic of pods can be told, masquerade all): sources
    (True, False): {"node", "outside"},
    (False, False): set[str](),
    (True, True): {"pod", "node", "outside"},
    (False, True): {"pod", "node", "outside"},
}


@pytest.fixture(scope="module", params=MASQUERADED_TO_CLUSTER_IP, ids=str)
def masquerading(request: pytest.FixtureRequest) -> tuple[tuple[bool, bool], KernelTable]:
    """Return one of four configurations and a kernel that has it."""
    tells_pods, masquerades_all = request.param
    settings = replace(
        SETTINGS,
        local_traffic=SETTINGS.local_traffic if tells_pods else LocalTraffic(),
        masquerade_all=masquerades_all,
    )
    kernel = load(
        make_ruleset(
            [
                web("one", "172.30.0.41", lb=("1.2.3.4",), node_port=3001),
                web(
                    "two",
                    "172.30.0.42",
                    lb=("5.6.7.8",),
                    node_port=3002,
                    external_traffic_policy="Local",
                ),
                web(
                    "three",
                    "172.30.0.43",
                    lb=("9.10.11.12",),
                    node_port=3003,
                    internal_traffic_policy="Local",
                ),
            ],
            [slice_of("one", *pair(1)), slice_of("two", *pair(2)), slice_of("three", *pair(3))],
            settings=settings,
        )
    )
    return (tells_pods, masquerades_all), kernel


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("kind", "policy"), TARGETS)
def test_masquerading_follows_source_destination_and_policy(
    masquerading: tuple[tuple[bool, bool], KernelTable], source: str, kind: str, policy: str
) -> None:
    """Each of three sources meets nine destinations under four configurations."""
    (tells_pods, masquerades_all), kernel = masquerading
    address, port = TARGETS[kind, policy]
    number = NUMBERS[policy]
    here, both = f"10.180.0.{number}:80", f"10.180.0.{number}:80, 10.180.1.{number}:80"
    if kind == "cluster IP":
        want_masquerade = source in MASQUERADED_TO_CLUSTER_IP[tells_pods, masquerades_all]
        want = here if policy == "internal Local" else both
    elif policy == "external Local":
        want_masquerade = source == "node"
        short_cut = source == "node" or (source == "pod" and tells_pods)
        want = both if short_cut else here
    else:
        want_masquerade, want = True, both
    got = follow(kernel, Packet(SOURCES[source], address, port))
    assert got == (want, want_masquerade)


@pytest.mark.parametrize(
    ("source", "address", "port"),
    [
        pytest.param(POD, "172.30.0.41", 80, id="a pod to the cluster IP"),
        pytest.param(OUTSIDE, "192.168.99.11", 80, id="outside to the external IP"),
        pytest.param(POD, NODE_IP, 3001, id="a pod to the node port"),
        pytest.param(OUTSIDE, NODE_IP, 3001, id="outside to the node port"),
        pytest.param(POD, "1.2.3.4", 80, id="a pod to the load balancer"),
        pytest.param(OUTSIDE, "1.2.3.4", 80, id="outside to the load balancer"),
        pytest.param(NODE_IP, "172.30.0.41", 80, id="the node to the cluster IP"),
        pytest.param(NODE_IP, NODE_IP, 3001, id="the node to its own node port"),
    ],
)
def test_without_endpoints_everything_is_rejected(source: str, address: str, port: int) -> None:
    """A Service without endpoints refuses at each of its addresses."""
    lonely = web(
        "one", "172.30.0.41", lb=("1.2.3.4",), node_port=3001, external_ips=("192.168.99.11",)
    )
    kernel = load(make_ruleset([lonely]))
    assert follow(kernel, Packet(source, address, port)) == (REJECT, False)


def many_ports() -> KernelTable:
    """Return a kernel with one plain Service and one with five ports."""
    ports = (
        ("http", 80, "TCP", 80),
        ("https", 443, "TCP", 8443),
        ("dns-udp", 53, "UDP", 53),
        ("dns-tcp", 53, "TCP", 5353),
        ("dns-sctp", 53, "SCTP", 53),
    )
    two = service(
        "two",
        cluster_ip="172.30.0.42",
        cluster_ips=("172.30.0.42",),
        ports=tuple(ServicePort(name=n, port=p, protocol=proto) for n, p, proto, _ in ports),
    )
    slices = [
        slice_of("one", endpoint("10.180.0.1", node_name=HERE)),
        endpoint_slice(
            endpoint("10.180.0.1", node_name=HERE),
            endpoint("10.180.2.1", node_name=THERE),
            service_name="two",
            ports=tuple(EndpointPort(name=n, port=t, protocol=proto) for n, _, proto, t in ports),
        ),
    ]
    return load(make_ruleset([web("one", "172.30.0.41"), two], slices))


@pytest.mark.parametrize(
    ("source", "protocol", "address", "port", "want"),
    [
        pytest.param(
            "10.180.0.2", "tcp", "172.30.0.41", 80, ("10.180.0.1:80", False), id="one endpoint"
        ),
        pytest.param(
            "10.180.0.1", "tcp", "172.30.0.41", 80, ("10.180.0.1:80", True), id="to itself"
        ),
        pytest.param(
            "10.180.0.2",
            "tcp",
            "172.30.0.42",
            80,
            ("10.180.0.1:80, 10.180.2.1:80", False),
            id="two endpoints",
        ),
        pytest.param(
            "10.180.0.2",
            "tcp",
            "172.30.0.42",
            443,
            ("10.180.0.1:8443, 10.180.2.1:8443", False),
            id="another target port",
        ),
        pytest.param(
            "10.180.0.2",
            "tcp",
            "172.30.0.42",
            53,
            ("10.180.0.1:5353, 10.180.2.1:5353", False),
            id="TCP of three on one port",
        ),
        pytest.param(
            "10.180.0.2",
            "udp",
            "172.30.0.42",
            53,
            ("10.180.0.1:53, 10.180.2.1:53", False),
            id="UDP of three on one port",
        ),
        pytest.param(
            "10.180.0.2",
            "sctp",
            "172.30.0.42",
            53,
            ("10.180.0.1:53, 10.180.2.1:53", False),
            id="SCTP of three on one port",
        ),
        pytest.param(
            "10.180.0.2", "udp", "172.30.0.42", 80, (REJECT, False), id="UDP to a TCP port"
        ),
        pytest.param(
            "10.180.0.2", "tcp", "172.30.0.41", 443, (REJECT, False), id="a port of another Service"
        ),
        pytest.param("10.180.0.2", "tcp", "172.30.0.50", 80, (DROP, False), id="an IP nobody has"),
        pytest.param("10.180.0.2", "tcp", "8.8.8.8", 53, ("", False), id="elsewhere"),
    ],
)
def test_cluster_ips_lead_to_their_endpoints_only(
    source: str, protocol: str, address: str, port: int, want: tuple[str, bool]
) -> None:
    """Address, protocol and port all have to be those of a Service."""
    assert follow(many_ports(), Packet(source, address, port, protocol)) == want


@pytest.mark.parametrize(
    ("source", "address", "port", "want"),
    [
        pytest.param(POD, "172.30.0.41", 80, ("10.180.0.1:80", False), id="cluster IP"),
        pytest.param(OUTSIDE, NODE_IP, 3001, ("10.180.0.1:80", True), id="node port"),
        pytest.param(
            BLOCKED, NODE_IP, 3001, ("10.180.0.1:80", True), id="node ports know no source ranges"
        ),
        pytest.param(OUTSIDE, "1.2.3.4", 80, ("10.180.0.1:80", True), id="allowed, first IP"),
        pytest.param(OUTSIDE, "5.6.7.8", 80, ("10.180.0.1:80", True), id="allowed, second IP"),
        pytest.param(BLOCKED, "1.2.3.4", 80, (DROP, False), id="not allowed, first IP"),
        pytest.param(BLOCKED, "5.6.7.8", 80, (DROP, False), id="not allowed, second IP"),
        pytest.param(POD, "1.2.3.4", 80, (DROP, False), id="a pod is not allowed, first IP"),
        pytest.param(POD, "5.6.7.8", 80, (DROP, False), id="a pod is not allowed, second IP"),
        pytest.param(NODE_IP, "1.2.3.4", 80, ("10.180.0.1:80", True), id="the node, first IP"),
        pytest.param(NODE_IP, "5.6.7.8", 80, ("10.180.0.1:80", True), id="the node, second IP"),
        pytest.param("1.2.3.4", "1.2.3.4", 80, ("10.180.0.1:80", True), id="looped, first IP"),
        pytest.param("5.6.7.8", "5.6.7.8", 80, ("10.180.0.1:80", True), id="looped, second IP"),
    ],
)
def test_source_ranges_guard_load_balancer_ips(
    source: str, address: str, port: int, want: tuple[str, bool]
) -> None:
    """Only the ranges get in, and the node's own traffic where one of them holds it."""
    balanced = web(
        "one",
        "172.30.0.41",
        lb=("1.2.3.4", "5.6.7.8"),
        node_port=3001,
        load_balancer_source_ranges=("192.168.0.0/24", " 203.0.113.0/25"),
    )
    kernel = load(make_ruleset([balanced], [slice_of("one", endpoint("10.180.0.1"))]))
    assert follow(kernel, Packet(source, address, port)) == want


def test_source_ranges_without_the_node_keep_looped_traffic_out() -> None:
    """The load balancer IP is no source of its own right."""
    balanced = web(
        "one",
        "172.30.0.41",
        lb=("1.2.3.4",),
        node_port=3001,
        load_balancer_source_ranges=("203.0.113.0/25",),
    )
    kernel = load(make_ruleset([balanced], [slice_of("one", endpoint("10.180.0.1"))]))
    assert follow(kernel, Packet("1.2.3.4", "1.2.3.4", 80)) == (DROP, False)


FAMILY_FACTS = {
    "IPv4": (
        NODE_IP,
        OTHER_NODE_IP,
        "172.30.0.41",
        "10.0.0.2",
        OUTSIDE,
        ("10.244.0.1", "10.244.2.1"),
    ),
    "IPv6": (
        "2001:db8::1",
        "2001:db8:1::2",
        "fd00:172:30::41",
        "fd00:10::2",
        "2600:5200::1",
        ("fd00:10:244:1::1", "fd00:10:244:2::1"),
    ),
}


@pytest.mark.parametrize("flow", ["pod", "outside", "node", "other address"])
@pytest.mark.parametrize("mode", ["primary", "listed", "all"])
@pytest.mark.parametrize("family", FAMILY_FACTS)
def test_node_ports_answer_where_they_are_meant_to(family: str, mode: str, flow: str) -> None:
    """On the first address, on those listed, or on every address of the node."""
    node_ip, other_ip, cluster_ip, pod, outside, endpoints = FAMILY_FACTS[family]
    ips = {"primary": (node_ip,), "listed": (node_ip, other_ip), "all": None}[mode]
    settings = replace(SETTINGS, family=family, nodeport_ips=ips)
    settings = replace(
        settings,
        local_traffic=replace(
            SETTINGS.local_traffic, value="10.0.0.0/8" if family == "IPv4" else "fd00:10::/64"
        ),
    )
    first, second = endpoints
    slices = [slice_of("one", endpoint(first, node_name=THERE), endpoint(second, node_name=HERE))]
    kernel = load(make_ruleset([web("one", cluster_ip, node_port=3001)], slices, settings=settings))
    both = ", ".join(f"[{one}]:80" if ":" in one else f"{one}:80" for one in endpoints)
    packet, want = {
        "pod": (Packet(pod, cluster_ip, 80), (both, False)),
        "outside": (Packet(outside, node_ip, 3001), (both, True)),
        "node": (Packet(node_ip, node_ip, 3001), (both, True)),
        "other address": (
            Packet(outside, other_ip, 3001),
            ("", False) if mode == "primary" else (both, True),
        ),
    }[flow]
    assert follow(kernel, packet) == want


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53"])
def test_node_ports_never_answer_on_loopback(address: str) -> None:
    """Even where they answer on every address."""
    settings = replace(SETTINGS, nodeport_ips=None)
    kernel = load(
        make_ruleset(
            [web("one", "172.30.0.41", node_port=3001)],
            [slice_of("one", endpoint("10.180.0.1"))],
            settings=settings,
        )
    )
    assert follow(kernel, Packet("127.0.0.1", address, 3001)) == ("", False)


@pytest.mark.parametrize("policy", ["Local", "Cluster"])
@pytest.mark.parametrize(
    ("source", "address", "port"),
    [
        pytest.param(POD, "172.30.0.41", 80, id="a pod to the cluster IP"),
        pytest.param(POD, "192.168.99.11", 80, id="a pod to the external IP"),
        pytest.param(OUTSIDE, "192.168.99.11", 80, id="outside to the external IP"),
        pytest.param(POD, "1.2.3.4", 80, id="a pod to the load balancer"),
        pytest.param(OUTSIDE, "1.2.3.4", 80, id="outside to the load balancer"),
        pytest.param(POD, NODE_IP, 3001, id="a pod to the node port"),
        pytest.param(OUTSIDE, NODE_IP, 3001, id="outside to the node port"),
    ],
)
def test_external_policy_governs_every_external_address(
    policy: str, source: str, address: str, port: int
) -> None:
    """External IPs, load balancers and node ports are alike; the cluster IP is not meant."""
    balanced = web(
        "one",
        "172.30.0.41",
        lb=("1.2.3.4",),
        node_port=3001,
        external_ips=("192.168.99.11",),
        external_traffic_policy=policy,
    )
    endpoints = endpoint("10.180.0.1", node_name=THERE), endpoint("10.180.2.1", node_name=HERE)
    kernel = load(make_ruleset([balanced], [slice_of("one", *endpoints)]))
    both, want_masquerade = "10.180.0.1:80, 10.180.2.1:80", policy == "Cluster"
    if address == "172.30.0.41":
        want_masquerade = False
    only_here = policy == "Local" and source == OUTSIDE
    want = "10.180.2.1:80" if only_here else both
    assert follow(kernel, Packet(source, address, port)) == (want, want_masquerade)


@pytest.mark.parametrize(
    ("policy", "nodes", "want"),
    [
        pytest.param(
            "Cluster",
            (HERE, "a", "b"),
            "10.0.1.1:80, 10.0.1.2:80, 10.0.1.3:80",
            id="Cluster uses all",
        ),
        pytest.param("Local", (HERE, "a", "b"), "10.0.1.1:80", id="Local uses the one here"),
        pytest.param(
            "Local", (HERE, HERE, "b"), "10.0.1.1:80, 10.0.1.2:80", id="Local uses both here"
        ),
        pytest.param("Local", ("c", "a", "b"), DROP, id="Local drops when none is here"),
    ],
)
def test_internal_policy_governs_the_cluster_ip(
    policy: str, nodes: tuple[str, ...], want: str
) -> None:
    """And once all endpoints are gone, connections are rejected under any policy."""
    plain = web("one", "172.30.1.1", internal_traffic_policy=policy)
    endpoints = [endpoint(f"10.0.1.{n}", node_name=node) for n, node in enumerate(nodes, 1)]
    ruleset = make_ruleset([plain], [slice_of("one", *endpoints)])
    kernel = load(ruleset)
    packet = Packet(POD, "172.30.1.1", 80)
    assert follow(kernel, packet) == (want, False)
    tell(ruleset, [plain], [])
    update = ruleset.commit()
    assert update is not None
    kernel.apply(update.transactions)
    assert follow(kernel, packet) == (REJECT, False)


READY = (True, True, False)
LEAVING = (False, True, True)
GONE = (False, False, True)
STATES = {
    "ready": [(1, HERE, READY), (2, HERE, READY), (3, HERE, LEAVING), (5, THERE, READY)],
    "leaving here": [(2, HERE, LEAVING), (3, HERE, LEAVING), (4, HERE, GONE), (5, THERE, READY)],
    "leaving everywhere": [(2, HERE, LEAVING), (4, THERE, GONE), (5, THERE, LEAVING)],
    "leaving elsewhere": [(5, THERE, LEAVING)],
    "gone": [(5, HERE, GONE), (6, THERE, GONE)],
}
WANT_TERMINATING = {
    # (policy, state): to the cluster IP, to the load balancer
    ("Local", "ready"): ("1, 2, 5", "1, 2"),
    ("Local", "leaving here"): ("5", "2, 3"),
    ("Local", "leaving everywhere"): ("2, 5", "2"),
    ("Local", "leaving elsewhere"): ("5", DROP),
    ("Local", "gone"): (REJECT, REJECT),
    ("Cluster", "ready"): ("1, 2, 5", "1, 2, 5"),
    ("Cluster", "leaving here"): ("5", "5"),
    ("Cluster", "leaving everywhere"): ("2, 5", "2, 5"),
    ("Cluster", "leaving elsewhere"): ("5", "5"),
    ("Cluster", "gone"): (REJECT, REJECT),
}


@pytest.mark.parametrize("after", ["as it is", "endpoints deleted"])
@pytest.mark.parametrize("flow", ["pod to cluster IP", "outside to balancer"])
@pytest.mark.parametrize(("policy", "state"), WANT_TERMINATING)
def test_terminating_endpoints_serve_as_a_last_resort(
    policy: str, state: str, flow: str, after: str
) -> None:
    """Each policy falls back by itself: Local to those here, Cluster to those anywhere."""
    balanced = web(
        "one", "172.30.1.1", lb=("1.2.3.4",), node_port=3001, external_traffic_policy=policy
    )
    endpoints = [
        endpoint(
            f"10.0.1.{number}",
            node_name=node,
            ready=ready,
            serving=serving,
            terminating=terminating,
        )
        for number, node, (ready, serving, terminating) in STATES[state]
    ]
    ruleset = make_ruleset([balanced], [slice_of("one", *endpoints)])
    kernel = load(ruleset)
    internal, external = WANT_TERMINATING[policy, state]
    want = internal if flow == "pod to cluster IP" else external
    if after == "endpoints deleted":
        tell(ruleset, [balanced], [])
        update = ruleset.commit()
        kernel.apply(() if update is None else update.transactions)
        want = REJECT
    if want not in (DROP, REJECT):
        want = ", ".join(f"10.0.1.{number}:80" for number in want.split(", "))
    packet = Packet(POD, "172.30.1.1", 80)
    if flow == "outside to balancer":
        packet = Packet(OUTSIDE, "1.2.3.4", 80)
    is_served = want not in (DROP, REJECT)
    want_masquerade = is_served and policy == "Cluster" and flow == "outside to balancer"
    assert follow(kernel, packet) == (want, want_masquerade)


@pytest.mark.parametrize(
    ("interface", "want"),
    [
        pytest.param("vethabc", ("10.180.0.1:80", False), id="from a pod"),
        pytest.param("eth0", ("10.180.0.1:80", True), id="from outside"),
    ],
)
@pytest.mark.parametrize("by", ["BridgeInterface", "InterfaceNamePrefix"])
def test_local_traffic_is_told_by_its_interface(
    by: str, interface: str, want: tuple[str, bool]
) -> None:
    """By a whole name or by how names begin."""
    mode = DetectLocal(by)
    value = "vethabc" if mode is DetectLocal.INTERFACE else "veth"
    settings = replace(SETTINGS, local_traffic=LocalTraffic(mode, value))
    kernel = load(
        make_ruleset(
            [web("one", "172.30.0.41")],
            [slice_of("one", endpoint("10.180.0.1"))],
            settings=settings,
        )
    )
    assert follow(kernel, Packet(OUTSIDE, "172.30.0.41", 80, interface=interface)) == want


def test_another_mark_bit_masquerades_as_well() -> None:
    """The bit is set and cleared, and no other is touched."""
    settings = RulesetSettings(
        node_name=HERE, local_traffic=SETTINGS.local_traffic, masquerade_bit=3, nodeport_ips=None
    )
    kernel = load(
        make_ruleset(
            [web("one", "172.30.0.41")],
            [slice_of("one", endpoint("10.180.0.1"))],
            settings=settings,
        )
    )
    assert follow(kernel, Packet(OUTSIDE, "172.30.0.41", 80)) == ("10.180.0.1:80", True)
    (masquerading,) = [c for c in kernel.chains.values() if c.name == "masquerading"]
    assert masquerading.rules[0].text.startswith("mark and 0x8 != 0 mark set mark xor 0x8 ")
