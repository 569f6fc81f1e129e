"""Which flow a connection belongs to, and that exactly one node counts it."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.accounting.address_book import AddressBook
from keepclose.accounting.attribution import Connection, NotCounted, attribute
from keepclose.accounting.flow_table import (
    HOST,
    NO_ZONE,
    OUTSIDE,
    UNKNOWN,
    FlowKey,
    FlowKind,
)
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
)
from keepclose.model.workload import Node, NodeSpec, Pod
from support import builders
from support.flowclusters import (
    CLUSTER_IP,
    NODE_ADDRESSES,
    NODE_PORT,
    OUTSIDE_ADDRESS,
    POD_ADDRESSES,
    POD_NODES,
    ZONES,
    Trip,
    address,
    cluster_book,
    connection,
    entries_of,
    node_of,
    web_service,
)

P1, P2, Q1 = POD_ADDRESSES["p1"], POD_ADDRESSES["p2"], POD_ADDRESSES["q1"]


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            connection(Q1, CLUSTER_IP, reply=(P2, 8080)),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                "TCP",
                "zone-a",
                "zone-b",
                "n1",
                "n2",
                "default/q1",
                "default/p2",
            ),
            id="a pod uses a Service",
        ),
        pytest.param(
            connection(P1, CLUSTER_IP, reply=(P1, 8080)),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                "TCP",
                "zone-a",
                "zone-a",
                "n1",
                "n1",
                "default/p1",
                "default/p1",
            ),
            id="a pod reaches itself through its Service",
        ),
        pytest.param(
            connection(OUTSIDE_ADDRESS, NODE_ADDRESSES["n1"], NODE_PORT, reply=(P2, 8080)),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                "TCP",
                OUTSIDE,
                "zone-b",
                "",
                "n2",
                OUTSIDE,
                "default/p2",
            ),
            id="a client outside uses a node port",
        ),
        pytest.param(
            connection("127.0.0.1", "127.0.0.1", NODE_PORT, reply=(P2, 8080)),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                "TCP",
                "zone-a",
                "zone-b",
                "n1",
                "n2",
                HOST,
                "default/p2",
            ),
            id="the node uses a node port of its loopback address",
        ),
        pytest.param(
            connection(Q1, P2, 8080),
            FlowKey(
                FlowKind.POD,
                "default",
                "web",
                "http",
                "TCP",
                "zone-a",
                "zone-b",
                "n1",
                "n2",
                "default/q1",
                "default/p2",
            ),
            id="a pod calls a pod whose slice names the Service",
        ),
        pytest.param(
            connection(Q1, P2, 9999),
            FlowKey(
                FlowKind.POD,
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client="default/q1",
                endpoint="default/p2",
            ),
            id="a pod calls a port that no Service has",
        ),
        pytest.param(
            connection(Q1, "10.0.2.77", 443),
            FlowKey(
                FlowKind.POD,
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client="default/q1",
            ),
            id="a pod that is not watched has the zone of its node's range",
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n1"], NODE_ADDRESSES["n2"], 10250),
            FlowKey(
                FlowKind.NODE,
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client=HOST,
            ),
            id="a node calls a node",
        ),
        pytest.param(
            connection(Q1, OUTSIDE_ADDRESS, 443),
            FlowKey(
                FlowKind.EGRESS,
                client_zone="zone-a",
                endpoint_zone=OUTSIDE,
                client_node="n1",
                client="default/q1",
            ),
            id="a pod leaves the cluster",
        ),
        pytest.param(
            connection(Q1, "10.0.99.1", 443),
            FlowKey(
                FlowKind.UNKNOWN,
                client_zone="zone-a",
                endpoint_zone=UNKNOWN,
                client_node="n1",
                client="default/q1",
            ),
            id="an address of the cluster without an owner",
        ),
        pytest.param(
            connection(Q1, CLUSTER_IP),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                client_zone="zone-a",
                endpoint_zone=NO_ZONE,
                client_node="n1",
                client="default/q1",
            ),
            id="a Service's address that was not translated",
        ),
        pytest.param(
            connection("127.0.0.1", "127.0.0.1", 5000),
            FlowKey(
                FlowKind.LOCAL,
                client_zone="zone-a",
                endpoint_zone="zone-a",
                client_node="n1",
                endpoint_node="n1",
                client=HOST,
            ),
            id="loopback",
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n1"], NODE_ADDRESSES["n2"], 8472, protocol=17),
            FlowKey(
                FlowKind.TUNNEL,
                protocol="UDP",
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client=HOST,
            ),
            id="packets of an overlay",
        ),
        pytest.param(
            connection(OUTSIDE_ADDRESS, P1, 8080),
            FlowKey(
                FlowKind.POD,
                "default",
                "web",
                "http",
                "TCP",
                OUTSIDE,
                "zone-a",
                "",
                "n1",
                OUTSIDE,
                "default/p1",
            ),
            id="a load balancer that sends to pods",
        ),
    ],
)
def test_connections_of_a_node(seen: Connection, want: FlowKey) -> None:
    """Each connection that n1 counts has the kind, Service, zones and names of its flow."""
    assert attribute(seen, cluster_book(), node="n1", may_wait=False) == want


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(connection(P2, P1, 8080), id="the client's node translated it"),
        pytest.param(
            connection(NODE_ADDRESSES["n2"], P1, 8080), id="another node masqueraded the client"
        ),
        pytest.param(
            connection(Q1, NODE_ADDRESSES["n2"], NODE_PORT), id="another node's node port"
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n2"], NODE_ADDRESSES["n1"], 8472, protocol=17),
            id="another node's overlay",
        ),
        pytest.param(
            connection(P2, NODE_ADDRESSES["n1"], 8081, reply=(P1, 8080)),
            id="a host port, which the client's node counts",
        ),
    ],
)
def test_connections_of_other_nodes(seen: Connection) -> None:
    """A connection that another node counts is not counted here."""
    answer = attribute(seen, cluster_book(), node="n1", may_wait=False)
    assert answer is NotCounted.ELSEWHERE


def _book_of_node_endpoints(*, nodes_first: bool) -> AddressBook:
    """Return a book in which two Services have endpoints with the addresses of nodes.

    One is default/kubernetes of a control plane on n1, whose endpoint names no node; the other one
    has pods in the host network.
    """
    book = AddressBook(cluster_ranges=("10.0.0.0/16", "10.96.0.0/16"))
    api = builders.endpoint_slice(
        builders.endpoint(NODE_ADDRESSES["n1"]),
        name="kubernetes",
        service_name="kubernetes",
        ports=(EndpointPort(name="https", protocol="TCP", port=6443),),
    )
    exporters = builders.endpoint_slice(
        *(
            builders.endpoint(ip, zone=ZONES[name], node_name=name, pod_name=f"exporter-{name}")
            for name, ip in NODE_ADDRESSES.items()
        ),
        name="exporter-x",
        service_name="exporter",
        ports=(EndpointPort(name="metrics", protocol="TCP", port=9100),),
    )
    pods = [
        replace(pod, spec=replace(pod.spec, host_network=True))
        for name, ip in NODE_ADDRESSES.items()
        for pod in (builders.pod(f"exporter-{name}", name, ip=ip),)
    ]
    web = builders.endpoint_slice(
        builders.endpoint(P2, zone="zone-b", node_name="n2", pod_name="p2")
    )
    objects: list[Node | Pod | EndpointSlice | Service] = [
        *pods,
        api,
        exporters,
        web,
        web_service(),
        exporter_service(),
    ]
    nodes = [node_of(name) for name in ZONES]
    for number, item in enumerate([*nodes, *objects] if nodes_first else [*objects, *nodes]):
        at = number / 100
        if isinstance(item, Node):
            book.set_node(item, at=at)
        elif isinstance(item, Pod):
            book.set_pod(item, at=at)
        elif isinstance(item, EndpointSlice):
            book.set_slice(item, at=at)
        else:
            book.set_service(item, at=at)
    return book


def exporter_service() -> Service:
    """Return a Service over pods in the host network."""
    port = ServicePort(name="metrics", protocol="TCP", port=9100, target_port=9100)
    return builders.service(
        "exporter", cluster_ip="10.96.0.20", cluster_ips=("10.96.0.20",), ports=(port,)
    )


@pytest.mark.parametrize("nodes_first", [True, False])
@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            connection(NODE_ADDRESSES["n1"], "8.8.8.8", 443),
            FlowKey(
                FlowKind.EGRESS,
                client_zone="zone-a",
                endpoint_zone=OUTSIDE,
                client_node="n1",
                client=HOST,
            ),
            id="a node of the control plane leaves the cluster",
        ),
        pytest.param(
            connection(OUTSIDE_ADDRESS, NODE_ADDRESSES["n1"], NODE_PORT, reply=(P2, 8080)),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "web",
                "http",
                "TCP",
                OUTSIDE,
                "zone-b",
                "",
                "n2",
                OUTSIDE,
                "default/p2",
            ),
            id="a node port",
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n1"], NODE_ADDRESSES["n2"], 8472, protocol=17),
            FlowKey(
                FlowKind.TUNNEL,
                protocol="UDP",
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client=HOST,
            ),
            id="packets of an overlay",
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n1"], NODE_ADDRESSES["n2"], 9100),
            FlowKey(
                FlowKind.NODE,
                "default",
                "exporter",
                "metrics",
                "TCP",
                "zone-a",
                "zone-b",
                "n1",
                "n2",
                HOST,
                "default/exporter-n2",
            ),
            id="a pod in the host network",
        ),
        pytest.param(
            connection(
                NODE_ADDRESSES["n1"], "10.96.0.20", 9100, reply=(NODE_ADDRESSES["n2"], 9100)
            ),
            FlowKey(
                FlowKind.SERVICE,
                "default",
                "exporter",
                "metrics",
                "TCP",
                "zone-a",
                "zone-b",
                "n1",
                "n2",
                HOST,
                "default/exporter-n2",
            ),
            id="a Service over pods in the host network",
        ),
        pytest.param(
            connection(NODE_ADDRESSES["n1"], NODE_ADDRESSES["n2"], 10250),
            FlowKey(
                FlowKind.NODE,
                client_zone="zone-a",
                endpoint_zone="zone-b",
                client_node="n1",
                endpoint_node="n2",
                client=HOST,
            ),
            id="another port of the node",
        ),
    ],
)
def test_nodes_whose_addresses_are_endpoints(
    seen: Connection, want: FlowKey, *, nodes_first: bool
) -> None:
    """An address of a node remains the node's, whichever slices and pods have it as well."""
    book = _book_of_node_endpoints(nodes_first=nodes_first)
    assert attribute(seen, book, node="n1", may_wait=False) == want


def test_a_control_plane_without_nodes_is_outside() -> None:
    """Connections from an endpoint that has neither node nor pod are counted by their target."""
    book = cluster_book()
    api = builders.endpoint("192.0.2.99")
    book.set_slice(
        builders.endpoint_slice(api, name="kubernetes", service_name="kubernetes"), at=0.0
    )
    answer = attribute(connection("192.0.2.99", P1, 8443), book, node="n1", may_wait=False)
    assert isinstance(answer, FlowKey)
    assert (answer.client_zone, answer.endpoint_zone) == (NO_ZONE, "zone-a")


_TRIPS = [
    Trip(client, target, endpoint, is_masqueraded)
    for client, target, endpoint, is_masqueraded in product(
        (*POD_ADDRESSES, *ZONES, "outside"),
        ("service", *ZONES, "pod"),
        ("p1", "p2", "p3"),
        (False, True),
    )
    # Cluster IPs are not reachable from outside.
    if (client, target) != ("outside", "service")
    # Traffic from outside to an endpoint on another node is always masqueraded: replies come back.
    and (client != "outside" or target not in ZONES or is_masqueraded)
]


@pytest.mark.parametrize("watches_all", [True, False])
@given(trip=st.sampled_from(_TRIPS))
def test_one_node_counts_each_connection(trip: Trip, *, watches_all: bool) -> None:
    """Of all nodes that see a connection, exactly one counts it, with the endpoint's zone."""
    keys = []
    for node, seen in entries_of(trip).items():
        book = cluster_book(pods_of=None if watches_all else node)
        answer = attribute(seen, book, node=node, may_wait=False)
        if isinstance(answer, FlowKey):
            keys.append(answer)
    assert len(keys) == 1
    assert keys[0].endpoint_zone == ZONES[POD_NODES[trip.endpoint]]
    # NB: what a node masquerades before another one translates it has that node as its client.
    client_node = POD_NODES.get(trip.client, trip.client)
    assert keys[0].client_zone == ZONES.get(client_node, OUTSIDE)
    assert keys[0].kind is (FlowKind.POD if trip.target == "pod" else FlowKind.SERVICE)
    assert (keys[0].namespace, keys[0].service, keys[0].port) == ("default", "web", "http")


@pytest.mark.parametrize("has_ranges", [True, False])
@pytest.mark.parametrize("target", ["service", "pod", "n2"])
def test_clients_that_only_their_node_knows_count_once(target: str, *, has_ranges: bool) -> None:
    """A client that is no endpoint and whose Node has no pod CIDR is counted by one node."""
    for client, endpoint in (("q1", "p2"), ("q2", "p1"), ("q1", "p3")):
        keys = []
        for node, seen in entries_of(Trip(client, target, endpoint)).items():
            book = cluster_book(pods_of=node)
            if not has_ranges:
                for name in ZONES:
                    book.set_node(replace(node_of(name), spec=NodeSpec()), at=0.5)
            answer = attribute(seen, book, node=node, may_wait=False)
            if isinstance(answer, FlowKey):
                keys.append(answer)
        assert len(keys) == 1
        assert keys[0].endpoint_zone == ZONES[POD_NODES[endpoint]]


def test_an_unnamed_client_is_here_if_its_destination_is_not() -> None:
    """What an unnamed pod sends to another place passes no kernel but that of its own node."""
    seen = connection("10.0.99.1", P2, 8080)
    here = attribute(seen, cluster_book(), node="n1", may_wait=False)
    assert isinstance(here, FlowKey)
    assert here.client_zone == UNKNOWN
    assert attribute(seen, cluster_book(), node="n2", may_wait=False) is NotCounted.ELSEWHERE
    to_host_port = connection("10.0.99.1", NODE_ADDRESSES["n2"], 8081, reply=(P2, 8080))
    there = attribute(to_host_port, cluster_book(), node="n2", may_wait=False)
    assert there is NotCounted.ELSEWHERE


def test_unknown_names_are_awaited() -> None:
    """A connection waits for the names of its addresses and of its Service, if it may."""
    book = AddressBook(cluster_ranges=("10.0.0.0/16", "10.96.0.0/16"))
    seen = connection(Q1, CLUSTER_IP, reply=(P2, 8080))
    assert attribute(seen, book, node="n1", may_wait=True) is NotCounted.WAIT
    assert attribute(seen, cluster_book(), node="n1", may_wait=True) != NotCounted.WAIT


def test_only_public_addresses_are_outside_at_once() -> None:
    """A private address without an owner may become that of a pod; a public one may not."""
    book = cluster_book()
    private, public = connection(Q1, "172.31.9.9", 443), connection(Q1, "8.8.8.8", 443)
    assert attribute(private, book, node="n1", may_wait=True) is NotCounted.WAIT
    assert isinstance(attribute(public, book, node="n1", may_wait=True), FlowKey)


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        pytest.param(None, FlowKind.SERVICE, id="no mode"),
        pytest.param("VIP", FlowKind.SERVICE, id="VIP"),
        pytest.param("Proxy", FlowKind.EGRESS, id="Proxy"),
    ],
)
def test_the_address_of_a_load_balancer(mode: str | None, want: FlowKind) -> None:
    """A node leads connections to it to endpoints, unless its mode is Proxy: then they leave."""
    balancer = "198.51.100.9"
    ingress = LoadBalancerIngress(ip=balancer, ip_mode=mode)
    service = replace(
        web_service(), status=ServiceStatus(load_balancer=LoadBalancerStatus(ingress=(ingress,)))
    )
    book = cluster_book()
    book.set_service(service, at=0.0)
    flow = attribute(connection(P1, balancer), book, node="n1", may_wait=False)
    assert isinstance(flow, FlowKey)
    assert flow.kind is want


@pytest.mark.parametrize(
    "name", ["projectcalico.org/IPv4VXLANTunnelAddr", "network.cilium.io/ipv4-cilium-host"]
)
@pytest.mark.parametrize("translated_by", ["n1", ""])
def test_a_node_that_masquerades_with_the_address_of_its_tunnel(
    name: str, translated_by: str
) -> None:
    """Such a connection to a pod of another node counts once, if the Node has the address."""
    tunnels = {"n1": "172.20.1.1", "n2": "172.20.2.1"}
    pod = "172.20.2.9"
    keys = []
    for me in ("n1", "n2"):
        book = AddressBook()
        for node, tunnel in tunnels.items():
            plain = node_of(node)
            metadata = replace(plain.metadata, annotations={name: tunnel})
            book.set_node(replace(plain, metadata=metadata), at=0.0)
        book.distrust_ranges()
        book.set_own_addresses(me, [address(NODE_ADDRESSES[me]), address(tunnels[me])], at=0.0)
        book.set_service(web_service(), at=0.0)
        endpoint = builders.endpoint(pod, zone="zone-b", node_name="n2", pod_name="p2")
        book.set_slice(builders.endpoint_slice(endpoint), at=0.0)
        seen = connection(tunnels["n1"], pod, 8080)
        if me == translated_by:
            seen = connection(OUTSIDE_ADDRESS, NODE_ADDRESSES["n1"], NODE_PORT, reply=(pod, 8080))
        answer = attribute(seen, book, node=me, may_wait=False)
        if isinstance(answer, FlowKey):
            keys.append(answer)
    want = FlowKind.SERVICE if translated_by else FlowKind.POD
    assert [(key.kind, key.service, key.endpoint_zone) for key in keys] == [(want, "web", "zone-b")]


def test_named_subnets_have_zones() -> None:
    """An address outside the cluster has the zone of its subnet, the longest prefix first."""
    book = AddressBook(
        subnets=(("172.31.0.0/16", "zone-x"), ("172.31.9.0/24", "zone-y")),
    )
    owner = book.owner_of(address("172.31.9.9"), 0.0)
    assert owner is not None
    assert owner.zone == "zone-y"


@given(
    protocol=st.integers(0, 255),
    addresses=st.lists(
        st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
        min_size=3,
        max_size=3,
    ),
    ports=st.lists(st.integers(0, 65535), min_size=3, max_size=3),
)
def test_every_connection_has_an_answer(
    protocol: int, addresses: list[bytes], ports: list[int]
) -> None:
    """No connection raises, and without waiting each is a flow or another node's."""
    seen = connection(Q1, P1)._replace(
        protocol=protocol,
        source=addresses[0],
        destination=addresses[1],
        reply_source=addresses[2],
        source_port=ports[0],
        destination_port=ports[1],
        reply_source_port=ports[2],
    )
    answer = attribute(seen, cluster_book(), node="n1", may_wait=False)
    assert answer is not NotCounted.WAIT
