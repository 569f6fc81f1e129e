"""What one pod contributes to the slices of a Service."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointConditions,
    EndpointHints,
    EndpointPort,
    ForZone,
)
from keepclose.model.meta import ObjectReference
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Container, ContainerPort, Node, Pod, PodStatus
from keepclose.slices.endpoints import (
    DesiredEndpoint,
    EndpointBuilder,
    belongs_in_endpoints,
    build_endpoint,
    desired_endpoint,
    endpoint_id,
    endpoint_ports,
    find_port,
    port_key,
    same_beyond_id,
)
from support.builders import node, pod, service

REF = ObjectReference(kind="Pod", namespace="default", name="p1", uid="uid-p1")
READY = EndpointConditions(ready=True, serving=True, terminating=False)
NODE = node("n1", "zone-a")
HTTP = EndpointPort(name="http", protocol="TCP", port=8080)


def with_status(base: Pod, **changes: object) -> Pod:
    """Return the pod with fields of its status changed."""
    return replace(base, status=replace(base.status, **changes))


def with_spec(base: Pod, **changes: object) -> Pod:
    """Return the pod with fields of its spec changed."""
    return replace(base, spec=replace(base.spec, **changes))


def container(*ports: tuple[str, int, str], restart_policy: str | None = None) -> Container:
    """Return a container with (name, number, protocol) ports."""
    return Container(
        ports=tuple(ContainerPort(name=n, container_port=p, protocol=t) for n, p, t in ports),
        restart_policy=restart_policy,
    )


def with_ports(*ports: ServicePort, headless: bool = False) -> Service:
    """Return a Service with these ports."""
    return service(ports=ports, cluster_ip="None" if headless else "10.96.0.10")


@pytest.mark.parametrize(
    ("candidate", "want"),
    [
        pytest.param(pod(), True, id="a running ready pod is one"),
        pytest.param(pod(ready=False), True, id="an unready pod is one"),
        pytest.param(pod(terminating=True), True, id="a terminating pod is one"),
        pytest.param(pod(terminating=True, ready=False), True, id="and one that is both too"),
        pytest.param(with_status(pod(), phase="Pending"), True, id="a pending pod with an IP is"),
        pytest.param(with_status(pod(), phase=""), True, id="a pod without a phase is"),
        pytest.param(with_status(pod(), phase="Succeeded"), False, id="a succeeded pod is not"),
        pytest.param(with_status(pod(), phase="Failed"), False, id="a failed pod is not"),
        pytest.param(
            with_status(pod(terminating=True), phase="Failed"), False, id="terminating and failed"
        ),
        pytest.param(with_status(pod(), pod_ip="", pod_ips=()), False, id="no IP at all"),
        pytest.param(with_status(pod(), pod_ips=()), True, id="podIP alone suffices"),
        pytest.param(with_status(pod(), pod_ip=""), True, id="podIPs alone suffice"),
        pytest.param(
            Pod(status=PodStatus(phase="Running")), False, id="a pod that just started to run"
        ),
    ],
)
def test_which_pods_belong_in_endpoints(candidate: Pod, want: bool) -> None:
    """Finished pods and pods without any address are no backends; all others are."""
    assert belongs_in_endpoints(candidate) is want


NAMED = ServicePort(name="http", protocol="TCP", port=80, target_port="p")


@pytest.mark.parametrize(
    ("port", "containers", "init_containers", "want"),
    [
        pytest.param(replace(NAMED, target_port=93), (), (), 93, id="a number needs no containers"),
        pytest.param(
            replace(NAMED, target_port=93), (container(("p", 1, "TCP")),), (), 93, id="number wins"
        ),
        pytest.param(NAMED, (), (), None, id="a name without containers is nowhere"),
        pytest.param(NAMED, (container(),), (), None, id="nor in a container without ports"),
        pytest.param(NAMED, (container(("q", 1, "TCP")),), (), None, id="nor under another name"),
        pytest.param(NAMED, (container(("p", 1, "UDP")),), (), None, id="protocols must agree"),
        pytest.param(NAMED, (container(("p", 1, "TCP")),), (), 1, id="one container has it"),
        pytest.param(
            NAMED,
            (container(("q", 1, "TCP"), ("p", 2, "TCP")),),
            (),
            2,
            id="it is the second port of the container",
        ),
        pytest.param(
            NAMED,
            (container(("q", 1, "TCP")), container(("p", 2, "TCP"))),
            (),
            2,
            id="the second container has it",
        ),
        pytest.param(
            NAMED,
            (container(("p", 1, "TCP")), container(("p", 2, "TCP"))),
            (),
            1,
            id="the first container wins",
        ),
        pytest.param(
            NAMED,
            (container(("p", 1, "UDP"), ("p", 2, "TCP")),),
            (),
            2,
            id="the same name under two protocols",
        ),
        pytest.param(
            NAMED,
            (),
            (container(("p", 3, "TCP"), restart_policy="Always"),),
            3,
            id="a sidecar has it",
        ),
        pytest.param(
            NAMED,
            (container(("p", 1, "TCP")),),
            (container(("p", 3, "TCP"), restart_policy="Always"),),
            1,
            id="containers come before sidecars",
        ),
        pytest.param(
            NAMED, (), (container(("p", 3, "TCP")),), None, id="an init container is no sidecar"
        ),
        pytest.param(
            NAMED,
            (),
            (
                container(("p", 3, "TCP")),
                container(("p", 4, "TCP"), restart_policy="Always"),
            ),
            4,
            id="of two init containers the sidecar has it",
        ),
        pytest.param(
            replace(NAMED, protocol=""), (container(("p", 1, "TCP")),), (), 1, id="TCP by default"
        ),
        pytest.param(replace(NAMED, target_port=None), (), (), 80, id="absent means the own port"),
        pytest.param(replace(NAMED, target_port=0), (), (), 80, id="and so does zero"),
        pytest.param(
            replace(NAMED, target_port=""),
            (container(("", 9, "TCP")),),
            (),
            80,
            id='and so does ""',
        ),
    ],
)
def test_find_port(
    port: ServicePort,
    containers: tuple[Container, ...],
    init_containers: tuple[Container, ...],
    want: int | None,
) -> None:
    """Numbers stand for themselves; names are sought in containers, then in sidecars."""
    candidate = with_spec(pod(), containers=containers, init_containers=init_containers)
    assert find_port(port, candidate) == want


@pytest.mark.parametrize(
    ("ports", "headless", "want_ports"),
    [
        pytest.param(
            (
                ServicePort(name="http", protocol="TCP", port=80, target_port=8080),
                ServicePort(name="dns", protocol="UDP", port=53, target_port=5353),
            ),
            False,
            (HTTP, EndpointPort(name="dns", protocol="UDP", port=5353)),
            id="numbers, in the order of the Service",
        ),
        pytest.param(
            (
                ServicePort(name="a", protocol="TCP", port=80, target_port="http"),
                ServicePort(name="b", protocol="TCP", port=81, target_port="gone"),
            ),
            False,
            (EndpointPort(name="a", protocol="TCP", port=8080),),
            id="a name that the pod lacks is dropped",
        ),
        pytest.param(
            (
                ServicePort(
                    name="h",
                    protocol="TCP",
                    port=80,
                    target_port=1,
                    app_protocol="kubernetes.io/h2c",
                ),
                ServicePort(protocol="TCP", port=81, target_port=2, app_protocol="https"),
            ),
            False,
            (
                EndpointPort(name="h", protocol="TCP", port=1, app_protocol="kubernetes.io/h2c"),
                EndpointPort(name="", protocol="TCP", port=2, app_protocol="https"),
            ),
            id="application protocols are copied and a missing name is the empty one",
        ),
        pytest.param((), True, (), id="a headless Service may have no ports"),
        pytest.param(
            (ServicePort(name="x", protocol="TCP", port=1, target_port="x"),),
            True,
            (),
            id="all ports dropped leaves none",
        ),
    ],
)
def test_endpoint_ports(
    ports: tuple[ServicePort, ...], headless: bool, want_ports: tuple[EndpointPort, ...]
) -> None:
    """A pod answers at every port of the Service that can be resolved on it."""
    assert endpoint_ports(with_ports(*ports, headless=headless), pod()) == want_ports


def test_port_key_does_not_depend_on_the_order() -> None:
    """The same ports in any order give one key."""
    ports = (
        HTTP,
        EndpointPort(name="dns", protocol="UDP", port=53),
        EndpointPort(name="dns", protocol="TCP", port=53),
    )
    keys = {port_key(order) for order in permutations(ports)}
    assert keys == {(("dns", "TCP", 53, ""), ("dns", "UDP", 53, ""), ("http", "TCP", 8080, ""))}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((), id="no port"),
        pytest.param((replace(HTTP, name="https"),), id="another name"),
        pytest.param((replace(HTTP, protocol="UDP"),), id="another protocol"),
        pytest.param((replace(HTTP, port=8081),), id="another number"),
        pytest.param((replace(HTTP, port=None),), id="all ports"),
        pytest.param((replace(HTTP, app_protocol="h2c"),), id="an application protocol"),
        pytest.param((HTTP, HTTP), id="twice the same"),
    ],
)
def test_port_keys_of_different_ports_differ(other: tuple[EndpointPort, ...]) -> None:
    """Whatever distinguishes ports distinguishes their keys."""
    assert port_key((HTTP,)) != port_key(other)


def test_port_key_reads_absent_fields_as_the_api_fills_them() -> None:
    """A slice that was not defaulted is not another slice for that; no ports are the key ()."""
    assert port_key((EndpointPort(port=1),)) == port_key(
        (EndpointPort(name="", protocol="TCP", port=1),)
    )
    assert port_key(()) == ()


@pytest.mark.parametrize(
    ("candidate", "home", "publish", "family", "want"),
    [
        pytest.param(
            pod(),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=READY,
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="a ready pod",
        ),
        pytest.param(
            pod(ready=False),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=False, serving=False, terminating=False),
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="an unready pod",
        ),
        pytest.param(
            pod(ready=False),
            NODE,
            True,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=True, serving=False, terminating=False),
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="an unready pod that is published is ready but does not serve",
        ),
        pytest.param(
            pod(terminating=True),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=False, serving=True, terminating=True),
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="a terminating pod that still serves is not ready",
        ),
        pytest.param(
            pod(terminating=True, ready=False),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=False, serving=False, terminating=True),
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="a terminating pod that no longer serves",
        ),
        pytest.param(
            pod(terminating=True),
            NODE,
            True,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=EndpointConditions(ready=True, serving=True, terminating=True),
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="a terminating pod that is published stays ready",
        ),
        pytest.param(
            pod(),
            node("n1", zone=None),
            False,
            "IPv4",
            Endpoint(addresses=("10.0.0.1",), conditions=READY, target_ref=REF, node_name="n1"),
            id="a node without a zone",
        ),
        pytest.param(
            pod(),
            node("n1", zone=""),
            False,
            "IPv4",
            Endpoint(addresses=("10.0.0.1",), conditions=READY, target_ref=REF, node_name="n1"),
            id="an empty zone is none",
        ),
        pytest.param(
            pod(node_name=""),
            None,
            True,
            "IPv4",
            Endpoint(addresses=("10.0.0.1",), conditions=READY, target_ref=REF),
            id="no node at all",
        ),
        pytest.param(
            pod(ips=("10.0.0.9", "fd00::9", "010.000.000.008")),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.9", "10.0.0.8"),
                conditions=READY,
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="all addresses of the family, spelt canonically, in the pod's order",
        ),
        pytest.param(
            pod(ips=("10.0.0.9", "FD00:0::9")),
            NODE,
            False,
            "IPv6",
            Endpoint(
                addresses=("fd00::9",),
                conditions=READY,
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="the other family of a dual-stack pod",
        ),
        pytest.param(pod(), NODE, False, "IPv6", None, id="no address of the family"),
        pytest.param(pod(ips=("nonsense",)), NODE, False, "IPv4", None, id="no address at all"),
        pytest.param(
            with_status(pod(), pod_ips=()), NODE, False, "IPv4", None, id="podIP alone is not used"
        ),
        pytest.param(
            with_spec(pod(), hostname="h", subdomain="web"),
            NODE,
            False,
            "IPv4",
            Endpoint(
                addresses=("10.0.0.1",),
                conditions=READY,
                hostname="h",
                target_ref=REF,
                node_name="n1",
                zone="zone-a",
            ),
            id="a hostname under the Service",
        ),
    ],
)
def test_build_endpoint(
    candidate: Pod, home: Node | None, publish: bool, family: str, want: Endpoint | None
) -> None:
    """All three conditions are explicit, and hints are never set."""
    owner = service(publish_not_ready_addresses=publish)
    assert build_endpoint(candidate, node=home, service=owner, family=family) == want


@pytest.mark.parametrize(
    ("candidate", "want"),
    [
        pytest.param(with_spec(pod(), hostname="h", subdomain="web"), "h", id="all agree"),
        pytest.param(with_spec(pod(), subdomain="web"), None, id="no hostname"),
        pytest.param(with_spec(pod(), hostname="h", subdomain="x"), None, id="another subdomain"),
        pytest.param(
            with_spec(pod(namespace="other"), hostname="h", subdomain="web"),
            None,
            id="another namespace",
        ),
    ],
)
def test_hostname_is_set_only_under_the_service(candidate: Pod, want: str | None) -> None:
    """A hostname is published when the pod's subdomain is the Service in its own namespace."""
    endpoint = build_endpoint(candidate, node=NODE, service=service(), family="IPv4")
    assert endpoint is not None
    assert endpoint.hostname == want


def test_a_pod_without_a_ready_condition_does_not_serve() -> None:
    """A missing condition means no."""
    endpoint = build_endpoint(
        with_status(pod(), conditions=()), node=NODE, service=service(), family="IPv4"
    )
    assert endpoint is not None
    assert endpoint.conditions == EndpointConditions(ready=False, serving=False, terminating=False)


@pytest.mark.parametrize(
    ("node_name", "known", "publish", "want_error", "want_kept"),
    [
        pytest.param("n1", True, False, "", True, id="the node is there"),
        pytest.param(
            "n1", True, True, "", True, id="the node is there and addresses are published"
        ),
        pytest.param(
            "n9",
            False,
            False,
            "skipping Pod p1 for Service default/web: Node n9 Not Found",
            False,
            id="the node is missing",
        ),
        pytest.param("n9", False, True, "", True, id="the node is missing but published"),
        pytest.param(
            "",
            False,
            False,
            "skipping Pod p1 for Service default/web: Node  Not Found",
            False,
            id="the pod is not scheduled",
        ),
        pytest.param("", False, True, "", True, id="the pod is not scheduled but published"),
    ],
)
def test_a_pod_whose_node_is_missing(
    node_name: str, known: bool, publish: bool, want_error: str, want_kept: bool
) -> None:
    """Such a pod is left out and told, unless addresses that are not ready are published."""
    desired = desired_endpoint(
        service(publish_not_ready_addresses=publish),
        pod(node_name=node_name),
        node=NODE if known else None,
        family="IPv4",
    )
    assert desired is not None
    assert desired.error == want_error
    assert (desired.endpoint is not None) is want_kept
    if want_kept and desired.endpoint is not None:
        assert desired.endpoint.zone == ("zone-a" if known else None)


def test_a_pod_that_is_no_backend_asks_for_nothing() -> None:
    """A finished pod does not even keep slices of its ports alive."""
    finished = with_status(pod(), phase="Succeeded")
    assert desired_endpoint(service(), finished, node=NODE, family="IPv4") is None


def test_a_pod_of_another_family_still_names_its_ports() -> None:
    """There is no endpoint, but the key of the ports counts."""
    desired = desired_endpoint(service(), pod(), node=NODE, family="IPv6")
    assert desired == DesiredEndpoint(ports=(HTTP,), port_key=(("http", "TCP", 8080, ""),))


def test_desired_carries_endpoint_and_identity() -> None:
    """What a pod asks for is complete."""
    desired = desired_endpoint(service(), pod(), node=NODE, family="IPv4")
    assert desired == DesiredEndpoint(
        ports=(HTTP,),
        port_key=(("http", "TCP", 8080, ""),),
        endpoint=Endpoint(
            addresses=("10.0.0.1",),
            conditions=READY,
            target_ref=REF,
            node_name="n1",
            zone="zone-a",
        ),
        endpoint_id=(("10.0.0.1",), "", "default", "p1"),
    )


def test_a_builder_keeps_pods_of_different_ports_apart() -> None:
    """What was worked out for one pod is not taken for another with other containers."""
    builder = EndpointBuilder(with_ports(NAMED), "IPv4")
    one = with_spec(pod(), containers=(container(("p", 1, "TCP")),))
    two = with_spec(pod(), containers=(container(("p", 2, "TCP")),))
    assert [builder.ports(each)[1] for each in (one, two, one)] == [
        (("http", "TCP", 1, ""),),
        (("http", "TCP", 2, ""),),
        (("http", "TCP", 1, ""),),
    ]


BASE = Endpoint(
    addresses=("10.0.0.2", "10.0.0.1"),
    conditions=READY,
    hostname="h",
    target_ref=REF,
    node_name="n1",
    zone="zone-a",
)


@pytest.mark.parametrize(
    ("changed", "want"),
    [
        pytest.param(
            replace(BASE, addresses=("10.0.0.1", "10.0.0.2")), True, id="order is nothing"
        ),
        pytest.param(replace(BASE, zone="zone-b", node_name="n2"), True, id="place is nothing"),
        pytest.param(
            replace(BASE, target_ref=replace(REF, uid="new")), True, id="the uid is nothing"
        ),
        pytest.param(replace(BASE, addresses=("10.0.0.1",)), False, id="an address less"),
        pytest.param(replace(BASE, hostname=None), False, id="no hostname"),
        pytest.param(
            replace(BASE, target_ref=replace(REF, name="p2")), False, id="another pod's name"
        ),
        pytest.param(
            replace(BASE, target_ref=replace(REF, namespace="x")), False, id="another namespace"
        ),
        pytest.param(replace(BASE, target_ref=None), False, id="no pod"),
    ],
)
def test_endpoint_id(changed: Endpoint, want: bool) -> None:
    """Addresses, hostname and the pod's name make an endpoint."""
    assert (endpoint_id(changed) == endpoint_id(BASE)) is want


def test_endpoint_id_of_a_bare_endpoint() -> None:
    """What is absent is empty."""
    assert endpoint_id(Endpoint(addresses=("10.0.0.1",))) == (("10.0.0.1",), "", "", "")


@pytest.mark.parametrize(
    ("changed", "want"),
    [
        pytest.param(BASE, True, id="nothing changed"),
        pytest.param(
            replace(BASE, target_ref=replace(REF, resource_version="7")),
            True,
            id="the pod's resourceVersion is nothing",
        ),
        pytest.param(
            replace(BASE, hints=EndpointHints(for_zones=(ForZone("zone-a"),))),
            True,
            id="hints are nothing",
        ),
        pytest.param(
            replace(BASE, deprecated_topology={"kubernetes.io/hostname": "n1"}),
            True,
            id="deprecated topology is nothing",
        ),
        pytest.param(
            replace(BASE, target_ref=replace(REF, uid="other")), False, id="the pod was recreated"
        ),
        pytest.param(replace(BASE, target_ref=None), False, id="the pod is gone"),
        pytest.param(replace(BASE, node_name="n2"), False, id="another node"),
        pytest.param(replace(BASE, node_name=None), False, id="no node"),
        pytest.param(replace(BASE, zone="zone-b"), False, id="another zone"),
        pytest.param(replace(BASE, zone=None), False, id="no zone"),
        pytest.param(
            replace(BASE, conditions=replace(READY, ready=False)), False, id="ready flipped"
        ),
        pytest.param(
            replace(BASE, conditions=replace(READY, serving=False)), False, id="serving flipped"
        ),
        pytest.param(
            replace(BASE, conditions=replace(READY, terminating=None)),
            False,
            id="an absent condition differs from a false one",
        ),
    ],
)
def test_same_beyond_id(changed: Endpoint, want: bool) -> None:
    """A write is needed for node, zone, conditions and pod, not for hints."""
    assert same_beyond_id(BASE, changed) is want
    assert same_beyond_id(changed, BASE) is want
