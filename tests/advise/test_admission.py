"""Objects from files, taken as an API server would take them."""

from __future__ import annotations

from msgspec.structs import replace

from keepclose.advise.inventory import admit_node, admit_pod, admit_service, admit_slice
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.meta import ObjectMeta
from keepclose.model.service.types import Service, ServicePort, ServiceSpec
from support.builders import endpoint, endpoint_slice, node, pod, service

BOTH = ("IPv4", "IPv6")


def manifest(**spec: object) -> Service:
    """Return a Service as a person writes it."""
    meta = ObjectMeta(name="web", namespace="default")
    written = {"selector": {"app": "web"}, "ports": (ServicePort(port=80),), **spec}
    return Service(metadata=meta, spec=ServiceSpec(**written))  # type: ignore[arg-type]


def admitted(**spec: object) -> Service:
    """Return the admitted Service; it must have been accepted."""
    answer = admit_service(manifest(**spec), BOTH)
    assert isinstance(answer, Service), answer
    return answer


def test_a_manifest_gets_what_a_server_would_fill_in() -> None:
    """Type, protocol, policies and families are defaulted; stand-ins serve for cluster IPs."""
    spec = admitted().spec
    assert (spec.type, spec.ports[0].protocol, spec.internal_traffic_policy) == (
        "ClusterIP",
        "TCP",
        "Cluster",
    )
    assert (spec.ip_families, spec.cluster_ips) == (("IPv4",), ("0.0.0.0",))  # noqa: S104
    dual = admitted(ip_family_policy="PreferDualStack").spec
    assert (dual.ip_families, dual.cluster_ips) == (BOTH, ("0.0.0.0", "::"))  # noqa: S104


def test_allocated_addresses_are_kept() -> None:
    """What a cluster has allocated is not touched, and None stays headless."""
    assert admitted(cluster_ip="10.96.0.9").spec.cluster_ips == ("10.96.0.9",)
    assert admitted(cluster_ip="None").is_headless


def test_external_names_get_no_address() -> None:
    """An ExternalName Service has none."""
    spec = admitted(type="ExternalName", external_name="example.com", ports=()).spec
    assert (spec.cluster_ip, spec.cluster_ips) == ("", ())


def test_a_health_check_port_is_not_asked_for() -> None:
    """A server allocates it before it validates."""
    made = admitted(type="LoadBalancer", external_traffic_policy="Local")
    assert made.spec.health_check_node_port == 0


def test_values_behind_gates_are_taken() -> None:
    """Whether PreferLocal or a custom value has an effect is not for admission to say."""
    made = admitted(traffic_distribution="a.dev/X", internal_traffic_policy="PreferLocal")
    assert made.spec.traffic_distribution == "a.dev/X"


def test_every_cause_is_returned() -> None:
    """An invalid Service comes back as its causes."""
    answer = admit_service(manifest(type="Nope", ports=(ServicePort(port=0),)), BOTH)
    assert isinstance(answer, list)
    assert [cause.field for cause in answer] == [
        "spec.ports[0].port",
        "spec.ports[0].targetPort",
        "spec.type",
    ]


def test_a_family_that_the_cluster_lacks_is_a_cause() -> None:
    """Families are judged against those that the cluster shows."""
    answer = admit_service(manifest(ip_families=("IPv6",)), ("IPv4",))
    assert isinstance(answer, list)
    assert answer[0].field == "spec.ipFamilies[0]"


def test_slices_are_defaulted_and_checked() -> None:
    """Port names and protocols are filled in; a bad address is a cause."""
    piece = endpoint_slice(endpoint(), ports=(EndpointPort(port=80),))
    answer = admit_slice(piece)
    assert isinstance(answer, EndpointSlice)
    assert answer.ports == (EndpointPort(name="", protocol="TCP", port=80),)
    bad = admit_slice(endpoint_slice(endpoint("fd00::1")))
    assert isinstance(bad, list)
    assert bad[0].field == "endpoints[0].addresses"


def test_nodes_and_pods_are_checked() -> None:
    """A valid object comes back as it is, an invalid one as its causes."""
    assert admit_node(node()) == node()
    assert isinstance(admit_node(node(cpu="abc")), list)
    assert admit_pod(pod()) == pod()
    assert isinstance(admit_pod(pod(ip="nowhere")), list)


def test_an_admitted_service_is_stable() -> None:
    """Admitting twice changes nothing more."""
    once = admitted()
    assert admit_service(once, BOTH) == once
    stored = replace(service(), spec=replace(service().spec, external_traffic_policy=""))
    assert admit_service(stored, BOTH) == stored
