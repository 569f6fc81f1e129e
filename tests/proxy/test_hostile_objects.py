"""Objects that no server should store: one of them must never harm the rules of others."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.model.service.types import (
    ClientIPConfig,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
    SessionAffinityConfig,
)
from keepclose.model.well_known import ENDPOINT_WEIGHTS_ANNOTATION
from keepclose.proxy.nft.select_writer import NftCommandWriter
from keepclose.proxy.settings import PROXY_FAMILIES
from keepclose.testing.recording_writer import RecordingWriter
from support.builders import endpoint, endpoint_slice, service
from support.familynodes import CheckingWriter, FamilyNode
from support.netns import Namespace, namespaces_or_skip

GOOD = NamespacedName("default", "good")
NASTY = 'a"; flush ruleset\n} é*\\$(\x00#'
LONG = "n" * 1000
NO_EXTERNAL_IPS = FeatureGates().without(Gate.ALLOW_SERVICE_EXTERNAL_IPS)


def good_objects() -> tuple[Service, EndpointSlice]:
    """Return a Service with which nothing is wrong, and its endpoint."""
    return (
        service("good", cluster_ip="10.96.0.99", cluster_ips=("10.96.0.99",)),
        endpoint_slice(endpoint("10.0.9.9"), name="good-1", service_name="good"),
    )


def balanced(one: Service, *addresses: str) -> Service:
    """Return the Service with addresses of a load balancer."""
    ingress = tuple(LoadBalancerIngress(ip=address) for address in addresses)
    return replace(one, status=ServiceStatus(LoadBalancerStatus(ingress)))


def sticky(seconds: int) -> dict[str, Any]:
    """Return a spec with session affinity of so many seconds."""
    config = SessionAffinityConfig(ClientIPConfig(seconds))
    return {"session_affinity": "ClientIP", "session_affinity_config": config}


async def sync_all(one: FamilyNode) -> None:
    """Write everything, or raise what the writer says."""
    await one.family.sync.sync_or_raise()
    await one.clock.advance(2)
    await one.family.sync.sweep()


T = TypeVar("T")


def usually(good: st.SearchStrategy[T], bad: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """Return a strategy of good values with a bad one now and then, so that most gets through."""
    return st.integers(0, 11).flatmap(lambda number: good if number else bad)


text = st.text(
    alphabet=st.one_of(st.sampled_from("\";\n{}@#\\$*' /é\u2028\x00:,|-"), st.characters()),
    max_size=40,
)
names = usually(
    st.sampled_from(["web", "api", "a.b", "a" * 253]),
    st.one_of(text, st.sampled_from([LONG, "-", ".", "", NASTY])),
)
no_addresses = st.one_of(
    st.sampled_from(
        ["10.0.0.256", "fe80::1%eth0", "", " 10.0.0.4", "10.0.0.5/32", "10.0.0.6:80", "1.2.3"]
    ),
    st.sampled_from(["10.0.0.1\n", "10.0.0.9;", "10.0.0.0/8", "@cluster-ips", "{ 10.0.0.1 }"]),
    text,
)
odd_addresses = st.sampled_from(
    [
        *("010.0.0.2", "0.0.0.0", "127.0.0.1", "255.255.255.255", "224.0.0.1"),  # noqa: S104
        *("FD00::1", "::", "::1", "::ffff:10.0.0.3", "ff02::1", "fd00:0:0:0::7"),
    ]
)
any_address = st.one_of(
    st.sampled_from(["10.0.0.1", "fd00::1"]), odd_addresses, st.ip_addresses().map(str)
)
addresses = {
    "IPv4": usually(
        st.one_of(st.sampled_from(["10.0.0.1", "10.0.0.2"]), st.ip_addresses(v=4).map(str)),
        st.one_of(any_address, no_addresses),
    ),
    "IPv6": usually(
        st.one_of(st.sampled_from(["fd00::1", "fd00::2"]), st.ip_addresses(v=6).map(str)),
        st.one_of(any_address, no_addresses),
    ),
}
ranges = usually(
    st.sampled_from(["10.0.0.0/8", "10.1.0.0/16", "10.0.0.7/8", " 10.2.0.0/16 ", "fd00::/8"]),
    st.one_of(
        st.sampled_from(["0.0.0.0/0", "1.2.3.4", "::/0", "10.0.0.0/33", "::ffff:1.2.3.0/120"]),
        st.sampled_from(["10.0.0.0/255.0.0.0", "", "fd00::/129", "0.0.0.0/1"]),
        text,
    ),
)
bad_numbers = st.sampled_from([0, -1, 65536, 1 << 31, 1 << 63, -(1 << 63)])
numbers = usually(st.sampled_from([1, 80, 30001, 65535]), bad_numbers)
protocols = usually(
    st.sampled_from(["TCP", "UDP", "SCTP"]),
    st.one_of(st.sampled_from(["tcp", "", "ICMP", "TCP; drop"]), text),
)
seconds = usually(
    st.sampled_from([1, 10800, 86400]), st.one_of(bad_numbers, st.sampled_from([86401, 10**12]))
)


@st.composite
def services(draw: st.DrawFn, family: str, number: int) -> Service:
    """Return a Service of which anything may be wrong."""
    cluster_ip = draw(addresses[family])
    made = service(
        draw(usually(st.just(f"s{number}"), names)),
        namespace=draw(names),
        annotations={draw(text): draw(text)},
        type=draw(st.sampled_from(["ClusterIP", "NodePort", "LoadBalancer", "", "Other"])),
        ports=tuple(
            ServicePort(
                draw(names),
                draw(protocols),
                None,
                draw(numbers),
                None,
                draw(st.one_of(st.just(0), numbers)),
            )
            for _ in range(draw(st.integers(1, 3)))
        ),
        cluster_ip=cluster_ip,
        cluster_ips=(cluster_ip,),
        ip_families=(family,),
        external_ips=tuple(draw(st.lists(addresses[family], max_size=3))),
        load_balancer_source_ranges=tuple(draw(st.lists(ranges, max_size=4))),
        external_traffic_policy=draw(st.sampled_from(["Local", "Cluster", "", "x"])),
        internal_traffic_policy=draw(st.sampled_from(["Local", "Cluster", None, "x"])),
        **(sticky(draw(seconds)) if draw(st.booleans()) else {}),
    )
    return balanced(made, *draw(st.lists(addresses[family], max_size=3)))


endpoints = {
    family: st.builds(
        endpoint,
        addresses[family],
        zone=usually(st.sampled_from(["zone-a", "zone-b"]), text),
        node_name=usually(st.sampled_from(["n1", "n2"]), text),
        ready=usually(st.sampled_from([True, None]), st.just(False)),
        terminating=usually(st.sampled_from([False, None]), st.just(True)),
    )
    for family in PROXY_FAMILIES
}


@st.composite
def slices(draw: st.DrawFn, family: str, owner: Service) -> EndpointSlice:
    """Return a slice of which anything may be wrong, mostly of the Service."""
    asked = [(one.name, one.protocol) for one in owner.spec.ports] or [("", "TCP")]
    weights = draw(
        st.one_of(text, st.sampled_from(["[1,2]", "[0,1]", "[-1]", f"[{10**20},1]", "[1e9]"]))
    )
    ports: list[EndpointPort] = []
    for _ in range(draw(st.integers(1, 2))):
        name, protocol = draw(st.sampled_from(asked))
        number = draw(usually(st.sampled_from([80, 8080]), st.one_of(bad_numbers, st.none())))
        wanted = draw(usually(st.just(name), st.one_of(text, st.none())))
        ports.append(EndpointPort(wanted, draw(usually(st.just(protocol), text)), number))
    return endpoint_slice(
        *draw(st.lists(usually(endpoints[family], st.just(Endpoint())), min_size=1, max_size=4)),
        name=draw(names),
        namespace=owner.metadata.namespace,
        service_name=draw(usually(st.just(owner.metadata.name), text)),
        address_type=draw(usually(st.just(family), st.sampled_from(["IPv4", "IPv6", "FQDN"]))),
        ports=tuple(ports),
        annotations={ENDPOINT_WEIGHTS_ANNOTATION: weights},
    )


Objects = list[Service | EndpointSlice]


@st.composite
def worlds(draw: st.DrawFn, family: str) -> Objects:
    """Return some Services and slices, all of which may be flawed."""
    made: Objects = []
    for number in range(draw(st.integers(2, 6))):
        one = draw(services(family, number))
        made += [one, *draw(st.lists(slices(family, one), min_size=1, max_size=2))]
    return made


histories = st.sampled_from(PROXY_FAMILIES).flatmap(
    lambda family: st.tuples(st.just(family), worlds(family), worlds(family))
)
FUZZ = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(history=histories, counts=st.booleans())
def test_nothing_breaks_off_a_sync(history: tuple[str, Objects, Objects], counts: bool) -> None:
    """Whatever objects hold, a sync goes through, and what it writes are plain lines."""
    family, objects, more = history

    async def run() -> list[str]:
        writer = RecordingWriter()
        one = FamilyNode(writer, family, counts_connections=counts)
        one.put(*objects, *good_objects())
        await sync_all(one)
        one.put(*more)
        await sync_all(one)
        assert one.family.sync.is_idle
        return writer.applied

    with capture_logs():
        written = asyncio.run(run())
    lines = [line for one in written for line in one.splitlines()]
    table = "ip kube-proxy" if family == "IPv4" else "ip6 kube-proxy"
    commands = ("add", "delete", "flush")
    assert all(line.split(" ", 2)[0] in commands and f" {table}" in line for line in lines)
    assert any("10.0.9.9" in line for line in lines) is (family == "IPv4")


# NB: each example takes a while, and looking for the smallest one would take minutes.
@settings(FUZZ, max_examples=15, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(history=histories)
def test_the_kernel_takes_whatever_is_made_of_hostile_objects(
    history: tuple[str, Objects, Objects],
) -> None:
    """No text is refused by nft, in both forms of the table, and after a change too."""
    family, objects, more = history

    async def run(inside: Namespace, *, counts: bool) -> None:
        writer = CheckingWriter(NftCommandWriter(namespace=inside.path))
        one = FamilyNode(writer, family, counts_connections=counts)
        try:
            one.put(*objects, *good_objects())
            await sync_all(one)
            one.put(*more)
            await sync_all(one)
            one.family.sync.request(full=True)
            await sync_all(one)
        finally:
            await writer.close()

    with capture_logs(), namespaces_or_skip("nft") as [inside]:
        for counts in (True, False):
            asyncio.run(run(inside, counts=counts))


class Told(NamedTuple):
    """What a sync of some objects led to."""

    node: FamilyNode
    texts: list[str]
    logs: list[Any]

    @property
    def flaws(self) -> list[tuple[str, str]]:
        """The objects and flaws that were logged."""
        return [
            (one["object"], one["error"])
            for one in self.logs
            if one["event"] == "invalid part of an object ignored"
        ]

    def mentions(self, word: str) -> bool:
        """Return whether something is in one of the transactions."""
        return any(word in one for one in self.texts)


async def told(*objects: Service | EndpointSlice, **options: Any) -> Told:
    """Sync these objects beside good ones, whose rules must come in any case, and return."""
    writer = RecordingWriter()
    with capture_logs() as logs:
        one = FamilyNode(writer, **options)
        one.put(*objects, *good_objects())
        await sync_all(one)
        # What is heard again is not told again.
        one.put(*objects)
        await sync_all(one)
        await one.family.close()
    assert one.used("good") == {"http": ["10.0.9.9:8080"]}
    assert any("10.96.0.99" in text for text in writer.applied)
    return Told(one, writer.applied, logs)


SLICE = endpoint_slice(endpoint("10.0.0.1"))


@pytest.mark.parametrize(
    ("flawed", "want"),
    [
        pytest.param(
            service(cluster_ip="10.96.0.300", cluster_ips=("10.96.0.300",)),
            "cluster IP '10.96.0.300': not an IPv4 address",
            id="a cluster IP that is none",
        ),
        pytest.param(
            service(cluster_ip="fd00::5", cluster_ips=("fd00::5",)),
            "cluster IP 'fd00::5': not an IPv4 address",
            id="a cluster IP of the other family",
        ),
        pytest.param(
            service(LONG),
            f"port 'http' of default/{LONG}: not a name that Kubernetes allows",
            id="a name of 1000 letters",
        ),
        pytest.param(
            service(NASTY),
            f"port 'http' of default/{NASTY}: not a name that Kubernetes allows",
            id="a name that would end a quotation",
        ),
        pytest.param(
            service(ports=(ServicePort(NASTY, "TCP", None, 80),)),
            f"port {NASTY!r} of default/web: not a name that Kubernetes allows",
            id="a port's name that would end a quotation",
        ),
        pytest.param(
            service(ports=(ServicePort("http", "TCP", None, 65536),)),
            "port 'http': a number that is not from 1 to 65535",
            id="a port beyond the last",
        ),
        pytest.param(
            service(ports=(ServicePort("http", "TCP", None, 0),)),
            "port 'http': a number that is not from 1 to 65535",
            id="port 0",
        ),
        pytest.param(
            service(ports=(ServicePort("http", "TCP", None, 80, None, 65536),), type="NodePort"),
            "port 'http': a number that is not from 1 to 65535",
            id="a node port beyond the last",
        ),
        pytest.param(
            service(ports=(ServicePort("http", "TCP; drop", None, 80),)),
            "port 'http': unknown protocol 'TCP; drop'",
            id="a protocol that is none",
        ),
    ],
)
async def test_flawed_services_have_no_rules(flawed: Service, want: str) -> None:
    """One line says what is wrong with the Service; others have theirs."""
    found = await told(flawed, SLICE)
    assert [flaw for _, flaw in found.flaws] == [want]
    assert list(found.node.family.states.services) == [GOOD]
    assert not found.mentions("10.0.0.1")


@pytest.mark.parametrize(
    ("changes", "want_flaws"),
    [
        pytest.param(
            {"external_ips": ("nonsense", NASTY)},
            ["external IP 'nonsense': not an IP address"],
            id="external IPs",
        ),
        pytest.param(
            {"load_balancer_source_ranges": ("10.0.0.0/8", "10.0.0.0/40")},
            ["source range '10.0.0.0/40': not a range of addresses"],
            id="source ranges",
        ),
        pytest.param(
            sticky(-5), ["session affinity for -5 s: not from 1 to 86400"], id="less than no time"
        ),
        pytest.param(
            sticky(10**12),
            ["session affinity for 1000000000000 s: not from 1 to 86400"],
            id="all the time",
        ),
        pytest.param(
            {
                "external_ips": ("nonsense",),
                "ports": (
                    ServicePort("http", "TCP", None, 80),
                    ServicePort("far", "TCP", None, 65536),
                ),
            },
            [
                "external IP 'nonsense': not an IP address",
                "port 'far': a number that is not from 1 to 65535",
            ],
            id="two flaws at once",
        ),
    ],
)
async def test_the_rest_of_a_flawed_service_is_routed(
    changes: dict[str, Any], want_flaws: list[str]
) -> None:
    """What can be followed is, and each flaw is told once, however often the Service comes."""
    found = await told(service(**changes), SLICE)
    assert [flaw for _, flaw in found.flaws] == want_flaws
    assert found.node.used() == {"http": ["10.0.0.1:8080"]}
    assert found.mentions("10.0.0.1")
    assert not found.mentions("nonsense")


async def test_the_longest_affinity() -> None:
    """The kernel is told of a day where more is asked for, and of nothing for less than 1 s."""
    found = await told(service(**sticky(1 << 63)), SLICE)
    assert found.mentions("timeout 86400s ;")
    found = await told(service(**sticky(0)), SLICE)
    assert not found.mentions("affinity-")


@pytest.mark.parametrize("number", [65536, -1, 1 << 40])
async def test_health_check_ports_that_are_none(number: int) -> None:
    """It is told once, by a line and an event, and the rules of all Services come."""
    balancer = service(
        type="LoadBalancer", external_traffic_policy="Local", health_check_node_port=number
    )
    found = await told(balancer, SLICE, node_port_addresses=("all",))
    assert found.node.used() == {"http": ["10.0.0.1:8080"]}
    assert not found.node.family.sync.is_failing
    [(key, message)] = found.node.failed_checks
    assert key == NamespacedName("default", "web")
    assert message == (
        f'node n1 failed to start healthcheck "default/web" on port {number}: '
        "bind(): port must be 0-65535."
    )


async def test_health_checks_where_node_ports_do_not_answer() -> None:
    """A node that has none of the addresses of node ports listens nowhere, and says so."""
    balancer = service(
        type="LoadBalancer", external_traffic_policy="Local", health_check_node_port=30999
    )
    found = await told(balancer, SLICE, node_port_addresses=("203.0.113.0/24",))
    [(_, message)] = found.node.failed_checks
    assert message == (
        'node n1 failed to start healthcheck "default/web" on port 30999: the node has none of '
        "the addresses of node ports"
    )


@pytest.mark.parametrize(
    ("one", "want_used", "want_flaw"),
    [
        pytest.param(
            endpoint_slice(endpoint("10.0.0.1"), endpoint("fd00::1")),
            ["10.0.0.1:8080"],
            "endpoint 'fd00::1': not an IPv4 address",
            id="an address of the other family",
        ),
        pytest.param(
            endpoint_slice(endpoint("10.0.0.1"), endpoint(NASTY)),
            ["10.0.0.1:8080"],
            f"endpoint {NASTY!r}: not an IPv4 address",
            id="an address that is none",
        ),
        pytest.param(
            endpoint_slice(endpoint("10.0.0.1"), Endpoint()),
            ["10.0.0.1:8080"],
            "an endpoint without an address",
            id="no address",
        ),
        *[
            pytest.param(
                endpoint_slice(endpoint(), ports=(EndpointPort("http", "TCP", number),)),
                [],
                "port 'http' without a usable number",
                id=f"port {number}",
            )
            for number in (0, 65536, None, -8080)
        ],
    ],
)
async def test_flawed_slices(one: EndpointSlice, want_used: list[str], want_flaw: str) -> None:
    """What can be used is; a Service that is left without endpoints is refused, not forgotten."""
    found = await told(service(), one)
    assert found.node.used() == {"http": want_used}
    assert [flaw for _, flaw in found.flaws] == [want_flaw]
    assert found.mentions("no-endpoint-services { 10.96.0.10 . tcp . 80") is (want_used == [])


async def test_slices_of_unknown_services() -> None:
    """They wait without rules and without a word."""
    orphans = [
        endpoint_slice(endpoint("10.0.0.7"), name="a", service_name="absent"),
        endpoint_slice(endpoint("10.0.0.8"), name="b", service_name=NASTY),
        replace(SLICE, metadata=ObjectMeta(name="c", namespace="default")),
    ]
    found = await told(*orphans)
    assert found.flaws == []
    assert not any(map(found.mentions, ("10.0.0.7", "10.0.0.8", "10.0.0.1")))


async def test_addresses_that_stand_in_several_places() -> None:
    """An address is one endpoint of a port, within a slice and across slices."""
    found = await told(
        service(),
        endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.1"), endpoint("010.0.0.1")),
        endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2"), name="web-2"),
        counts_connections=True,
    )
    assert found.node.used() == {"http": ["10.0.0.1:8080", "10.0.0.2:8080"]}
    assert found.mentions("tcp-counted-endpoints { 10.96.0.10 . tcp . 80 . 0 : 10.0.0.1 . 8080 }")
    assert found.mentions("tcp-counted-endpoints { 10.96.0.10 . tcp . 80 . 1 : 10.0.0.2 . 8080 }")
    assert not found.mentions("10.96.0.10 . tcp . 80 . 2")


def external(name: str, number: int, **spec: Any) -> Service:
    """Return a Service with a node port and an external IP that others have too."""
    address = f"10.96.1.{number}"
    port = ServicePort("http", "TCP", None, 80, 8080, 30001)
    return balanced(
        service(
            name,
            type="LoadBalancer",
            cluster_ip=address,
            cluster_ips=(address,),
            ports=(port,),
            **{"external_ips": ("192.0.2.1",), **spec},
        ),
        "192.0.2.2",
    )


async def test_ports_and_addresses_that_two_services_have() -> None:
    """The first by name has them, whoever came first, and the other when that is gone."""
    late, early = external("late", 1), external("early", 2)
    ends = [
        endpoint_slice(endpoint(address), name=name, service_name=name)
        for name, address in (("late", "10.0.0.1"), ("early", "10.0.0.2"))
    ]
    found = await told(late, early, *ends)
    for slot in (
        "service-nodeports { tcp . 30001",
        "service-ips { 192.0.2.1 . tcp . 80",
        "service-ips { 192.0.2.2 . tcp . 80",
    ):
        [line] = [
            line
            for text in found.texts
            for line in text.splitlines()
            if f"add element ip kube-proxy {slot}" in line
        ]
        assert "default/early/tcp/http" in line


async def test_nobody_takes_over_a_cluster_ip() -> None:
    """A Service keeps its own cluster IP though one that comes first by name claims it too."""
    thief = external("a-thief", 1, external_ips=("10.96.0.10",))
    victim = service()
    stolen = endpoint_slice(endpoint("10.0.6.6"), name="thief", service_name="a-thief")
    for objects in ((thief, stolen, victim, SLICE), (victim, SLICE, thief, stolen)):
        found = await told(*objects, counts_connections=True)
        [line] = [
            line
            for text in found.texts
            for line in text.splitlines()
            if "service-ips { 10.96.0.10 . tcp . 80" in line
        ]
        assert " : goto pool/tcp/1." in line
        assert found.mentions("{ 10.96.0.10 . tcp . 80 . 0 : 10.0.0.1 . 8080 }")
        found = await told(*objects, counts_connections=True, pooled=False)
        [line] = [
            line
            for text in found.texts
            for line in text.splitlines()
            if "service-ips { 10.96.0.10 . tcp . 80" in line
        ]
        assert "default/web/tcp/http" in line


async def test_external_ips_can_be_switched_off() -> None:
    """Without the gate no traffic to external IPs is led anywhere; load balancers are served."""
    for gates, want in ((FeatureGates(), True), (NO_EXTERNAL_IPS, False)):
        made = external("web", 1)
        found = await told(made, SLICE, gates=gates, counts_connections=True)
        assert found.mentions("{ 192.0.2.1 . tcp . 80") is want
        assert found.mentions("service-ips { 192.0.2.2 . tcp . 80")


@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("affinity", [True, False])
def test_the_kernel_takes_a_thousand_endpoints(counts: bool, affinity: bool) -> None:
    """Each of them can be drawn, in all forms of the table, at a node port too."""
    many = [
        endpoint(f"10.1.{number >> 8}.{number & 255}", zone=f"z{number % 3}")
        for number in range(1000)
    ]

    async def run(inside: Namespace) -> str:
        writer = CheckingWriter(NftCommandWriter(namespace=inside.path))
        one = FamilyNode(writer, counts_connections=counts)
        one.put(service(**(sticky(60) if affinity else {})), endpoint_slice(*many))
        node_port = external("open", 3)
        one.put(node_port, endpoint_slice(*many, name="open-1", service_name="open"))
        try:
            await sync_all(one)
        finally:
            await writer.close()
        assert len(one.used()["http"]) == 1000
        return inside.run("nft", "list", "table", "ip", "kube-proxy")

    with namespaces_or_skip("nft") as [inside]:
        shown = asyncio.run(run(inside))
    assert "numgen random mod 1000" in shown
    assert all(f"10.1.{number >> 8}.{number & 255}" in shown for number in range(1000))
