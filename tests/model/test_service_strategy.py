"""Writes of a Service keep what was allocated and drop what no longer applies."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.service import strategy as service_strategy
from keepclose.model.service.strategy import (
    drop_disabled_service_fields,
    drop_type_dependent_fields,
    normalize_cluster_ips,
    patch_allocated_values,
    prepare_service_for_create,
    prepare_service_for_update,
    prepare_status_update,
    service_warnings,
)
from keepclose.model.service.types import (
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceStatus,
)
from support.builders import service

GATES = FeatureGates()
A = "10.96.0.10"
B = "10.96.0.11"
A6 = "fd00::10"
STATUS = ServiceStatus(
    load_balancer=LoadBalancerStatus(ingress=(LoadBalancerIngress(ip="192.0.2.1", ip_mode="VIP"),)),
    conditions=(Condition(type="Ready", status="True"),),
)
NO_BALANCER = replace(STATUS, load_balancer=LoadBalancerStatus())


def with_ips(one: str, *many: str) -> Service:
    """Return a Service with clusterIP and clusterIPs as given."""
    return service(cluster_ip=one, cluster_ips=many)


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(None, with_ips(""), with_ips(""), id="create: neither"),
        pytest.param(None, with_ips(A), with_ips(A, A), id="create: singular only"),
        pytest.param(None, with_ips("None"), with_ips("None", "None"), id="create: headless"),
        pytest.param(None, with_ips("", A), with_ips("", A), id="create: plural only"),
        pytest.param(None, with_ips(A, A), with_ips(A, A), id="create: both agree"),
        pytest.param(None, with_ips(A, B), with_ips(A, B), id="create: both differ"),
        pytest.param(None, with_ips(A, A, A6), with_ips(A, A, A6), id="create: dual stack"),
        pytest.param(with_ips(A, A), with_ips(A, A), with_ips(A, A), id="update: no change"),
        pytest.param(
            with_ips(A, A, A6), with_ips(A), with_ips(A, A, A6), id="update: plural left out"
        ),
        pytest.param(with_ips(A, A), with_ips("", A), with_ips(""), id="update: singular cleared"),
        pytest.param(with_ips(A, A), with_ips(""), with_ips(""), id="update: both cleared"),
        pytest.param(
            with_ips(A, A), with_ips("", B), with_ips("", B), id="update: cleared and changed"
        ),
        pytest.param(with_ips(A, A), with_ips(B, A), with_ips(B, B), id="update: singular changed"),
        pytest.param(
            with_ips(A, A, A6),
            with_ips(B, A, A6),
            with_ips(B, B),
            id="update: singular of two changed",
        ),
        pytest.param(with_ips(A, A), with_ips(B, B), with_ips(B, B), id="update: both changed"),
        pytest.param(
            with_ips(A, A), with_ips(A, B), with_ips(A, B), id="update: plural changed alone"
        ),
        pytest.param(with_ips(""), with_ips(A), with_ips(A, A), id="update: singular added"),
        pytest.param(
            with_ips(A, A), with_ips(B), with_ips(B), id="update: changed, plural left out"
        ),
    ],
)
def test_cluster_ips_follow_cluster_ip(old: Service | None, new: Service, want: Service) -> None:
    """A client that knows only the singular field is understood."""
    assert normalize_cluster_ips(new, old) == want


def port(name: str, number: int, node_port: int = 0) -> ServicePort:
    """Return a TCP port."""
    return ServicePort(
        name=name, protocol="TCP", port=number, target_port=number, node_port=node_port
    )


def node_ports(*ports: ServicePort, **spec: Any) -> Service:
    """Return a NodePort Service with the ports."""
    return service(
        **{"type": "NodePort", "external_traffic_policy": "Cluster", "ports": ports, **spec}
    )


def balancer(**spec: Any) -> Service:
    """Return a LoadBalancer Service with a health-check node port."""
    return service(
        **{
            "type": "LoadBalancer",
            "external_traffic_policy": "Local",
            "allocate_load_balancer_node_ports": True,
            "health_check_node_port": 30100,
            "ports": (port("http", 80, 30080),),
            **spec,
        }
    )


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(with_ips(A, A, A6), with_ips(""), with_ips(A, A, A6), id="addresses left out"),
        pytest.param(with_ips(A, A), with_ips(B, B), with_ips(B, B), id="addresses changed"),
        pytest.param(
            with_ips(A, A), with_ips(B), with_ips(B, A), id="a changed address gets the old list"
        ),
        pytest.param(with_ips(""), with_ips(""), with_ips(""), id="nothing was allocated"),
        pytest.param(
            with_ips(A, A),
            service(type="ExternalName", cluster_ip="", cluster_ips=()),
            service(type="ExternalName", cluster_ip="", cluster_ips=()),
            id="ExternalName takes no address",
        ),
        pytest.param(
            service(type="ExternalName", cluster_ip="", cluster_ips=()),
            with_ips(""),
            with_ips(""),
            id="ExternalName gives no address",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080), port("b", 81, 30081)),
            node_ports(port("a", 80), port("b", 81)),
            node_ports(port("a", 80, 30080), port("b", 81, 30081)),
            id="node ports left out",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080), port("b", 81, 30081)),
            node_ports(port("b", 9, 0), port("c", 80, 0)),
            node_ports(port("b", 9, 30081), port("c", 80, 0)),
            id="node ports go by name",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080), port("b", 81, 30081)),
            node_ports(port("a", 80), port("b", 81, 30080)),
            node_ports(port("a", 80), port("b", 81, 30080)),
            id="a node port moved to another name",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80), port("a", 81)),
            node_ports(port("a", 80, 30080), port("a", 81, 30080)),
            id="ports of one name get one node port",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30099)),
            node_ports(port("a", 80, 30099)),
            id="a node port changed",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            service(ports=(port("a", 80),)),
            service(ports=(port("a", 80),)),
            id="ClusterIP takes no node port",
        ),
        pytest.param(
            node_ports(port("http", 80, 30080)),
            balancer(ports=(port("http", 80),), health_check_node_port=0),
            balancer(health_check_node_port=0),
            id="LoadBalancer takes node ports of NodePort",
        ),
        pytest.param(
            balancer(),
            balancer(ports=(port("http", 80),), allocate_load_balancer_node_ports=False),
            balancer(ports=(port("http", 80),), allocate_load_balancer_node_ports=False),
            id="without allocation a node port can be given up",
        ),
        pytest.param(
            balancer(), balancer(health_check_node_port=0), balancer(), id="health port left out"
        ),
        pytest.param(
            balancer(),
            balancer(health_check_node_port=30101),
            balancer(health_check_node_port=30101),
            id="health port changed",
        ),
        pytest.param(
            balancer(),
            balancer(health_check_node_port=0, external_traffic_policy="Cluster"),
            balancer(health_check_node_port=0, external_traffic_policy="Cluster"),
            id="Cluster takes no health port",
        ),
        pytest.param(
            balancer(),
            balancer(health_check_node_port=0, external_traffic_policy="PreferLocal"),
            balancer(health_check_node_port=0, external_traffic_policy="PreferLocal"),
            id="PreferLocal takes no health port",
        ),
    ],
)
def test_allocated_values_are_kept(old: Service, new: Service, want: Service) -> None:
    """An update that leaves out what was allocated keeps it, as far as it still applies."""
    assert patch_allocated_values(new, old) == want


def named(**spec: Any) -> Service:
    """Return an ExternalName Service that still has all fields of a ClusterIP one."""
    return service(**{"type": "ExternalName", "external_name": "example.com", **spec})


BARE_NAMED = named(cluster_ip="", cluster_ips=(), ip_families=(), ip_family_policy=None)
CLASSY = balancer(load_balancer_class="example.com/lb", health_check_node_port=0)
CLASSY = replace(CLASSY, spec=replace(CLASSY.spec, external_traffic_policy="Cluster"))


def reclassed(**spec: Any) -> Service:
    """Return the LoadBalancer Service of a class with some fields changed."""
    return replace(CLASSY, spec=replace(CLASSY.spec, **spec))


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param(None, named(), named(), id="a create keeps all"),
        pytest.param(service(), service(), service(), id="no change"),
        pytest.param(service(), named(), BARE_NAMED, id="ExternalName drops addresses"),
        pytest.param(
            service(),
            named(cluster_ip=B, cluster_ips=(B,)),
            named(cluster_ip=B, cluster_ips=(B,), ip_families=(), ip_family_policy=None),
            id="changed address stays",
        ),
        pytest.param(
            service(),
            named(cluster_ips=(A, A6)),
            named(cluster_ips=(A, A6), ip_families=(), ip_family_policy=None),
            id="added address stays",
        ),
        pytest.param(
            service(),
            named(ip_families=("IPv6",)),
            named(cluster_ip="", cluster_ips=(), ip_families=("IPv6",), ip_family_policy=None),
            id="changed families stay",
        ),
        pytest.param(
            service(),
            named(ip_family_policy="PreferDualStack"),
            named(
                cluster_ip="",
                cluster_ips=(),
                ip_families=(),
                ip_family_policy="PreferDualStack",
            ),
            id="changed family policy stays",
        ),
        pytest.param(
            service(cluster_ip="None", cluster_ips=("None",)),
            named(cluster_ip="None", cluster_ips=("None",)),
            BARE_NAMED,
            id="None is an address too",
        ),
        pytest.param(BARE_NAMED, named(), named(), id="ExternalName before and after"),
        pytest.param(named(), service(), service(), id="from ExternalName"),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30080), type="ClusterIP"),
            service(ports=(port("a", 80),)),
            id="ClusterIP drops node ports and the external policy",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30081), type="ClusterIP"),
            service(ports=(port("a", 80, 30081),)),
            id="changed node port stays",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30080), port("b", 81, 30081), type="ClusterIP"),
            service(ports=(port("a", 80, 30080), port("b", 81, 30081))),
            id="added node port stays",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080), port("b", 81, 30081)),
            node_ports(port("b", 82, 30081), type="ClusterIP"),
            service(ports=(port("b", 82),)),
            id="fewer ports are no change of node ports",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30080), type="LoadBalancer"),
            node_ports(port("a", 80, 30080), type="LoadBalancer"),
            id="LoadBalancer keeps node ports",
        ),
        pytest.param(
            balancer(),
            balancer(allocate_load_balancer_node_ports=False),
            balancer(allocate_load_balancer_node_ports=False),
            id="allocation switched off keeps node ports",
        ),
        pytest.param(
            service(ports=(port("a", 80, 30080),)),
            service(ports=(port("a", 80, 30080),)),
            service(ports=(port("a", 80, 30080),)),
            id="ClusterIP before and after",
        ),
        pytest.param(
            balancer(),
            balancer(external_traffic_policy="Cluster"),
            balancer(external_traffic_policy="Cluster", health_check_node_port=0),
            id="Cluster drops the health port",
        ),
        pytest.param(
            balancer(),
            balancer(external_traffic_policy="PreferLocal"),
            balancer(external_traffic_policy="PreferLocal", health_check_node_port=0),
            id="PreferLocal drops the health port",
        ),
        pytest.param(
            balancer(),
            balancer(external_traffic_policy="Cluster", health_check_node_port=30101),
            balancer(external_traffic_policy="Cluster", health_check_node_port=30101),
            id="changed health port stays",
        ),
        pytest.param(
            balancer(external_traffic_policy="Cluster"),
            balancer(external_traffic_policy="Cluster"),
            balancer(external_traffic_policy="Cluster"),
            id="health port not needed before either",
        ),
        pytest.param(
            balancer(),
            balancer(type="NodePort"),
            balancer(
                type="NodePort",
                health_check_node_port=0,
                allocate_load_balancer_node_ports=None,
            ),
            id="NodePort drops what only load balancers have",
        ),
        pytest.param(
            balancer(),
            balancer(type="NodePort", allocate_load_balancer_node_ports=False),
            balancer(
                type="NodePort",
                health_check_node_port=0,
                allocate_load_balancer_node_ports=False,
            ),
            id="changed allocation stays",
        ),
        pytest.param(
            CLASSY,
            reclassed(type="NodePort"),
            reclassed(
                type="NodePort", load_balancer_class=None, allocate_load_balancer_node_ports=None
            ),
            id="NodePort drops the class",
        ),
        pytest.param(
            CLASSY,
            reclassed(type="NodePort", load_balancer_class="example.com/other"),
            reclassed(
                type="NodePort",
                load_balancer_class="example.com/other",
                allocate_load_balancer_node_ports=None,
            ),
            id="changed class stays",
        ),
        pytest.param(CLASSY, CLASSY, CLASSY, id="LoadBalancer keeps the class"),
        pytest.param(
            reclassed(load_balancer_class=None),
            reclassed(type="NodePort"),
            reclassed(type="NodePort", allocate_load_balancer_node_ports=None),
            id="added class stays",
        ),
        pytest.param(
            CLASSY,
            reclassed(type="ClusterIP", external_traffic_policy="Local"),
            reclassed(
                type="ClusterIP",
                external_traffic_policy="Local",
                load_balancer_class=None,
                allocate_load_balancer_node_ports=None,
                ports=(port("http", 80),),
            ),
            id="changed external policy stays",
        ),
        pytest.param(
            node_ports(port("a", 80, 30080)),
            node_ports(port("a", 80, 30080), type="ClusterIP", external_ips=("192.0.2.1",)),
            service(
                ports=(port("a", 80),),
                external_ips=("192.0.2.1",),
                external_traffic_policy="Cluster",
            ),
            id="external IPs keep the external policy",
        ),
        pytest.param(
            service(external_ips=("192.0.2.1",), external_traffic_policy="Cluster"),
            service(external_traffic_policy="Cluster"),
            service(),
            id="without external IPs the external policy goes",
        ),
        pytest.param(
            service(external_traffic_policy="Local"),
            service(external_traffic_policy="Local"),
            service(external_traffic_policy="Local"),
            id="not accessible before either",
        ),
        pytest.param(
            replace(balancer(), status=STATUS),
            replace(balancer(), status=STATUS),
            replace(balancer(), status=STATUS),
            id="LoadBalancer keeps its status",
        ),
        pytest.param(
            replace(CLASSY, status=STATUS),
            replace(reclassed(type="NodePort"), status=STATUS),
            replace(
                reclassed(
                    type="NodePort",
                    load_balancer_class=None,
                    allocate_load_balancer_node_ports=None,
                ),
                status=NO_BALANCER,
            ),
            id="other types lose addresses of the load balancer but no condition",
        ),
    ],
)
def test_fields_go_with_the_type(old: Service | None, new: Service, want: Service) -> None:
    """What no longer applies is dropped, unless the user changed it in the same update."""
    assert drop_type_dependent_fields(new, old) == want


CLOSE = service(traffic_distribution="PreferClose")
KEYED = service(topology_keys=("kubernetes.io/hostname", "*"))
POLICED = service(internal_traffic_policy="Local")
UNPOLICED = service(internal_traffic_policy=None)
NO_DISTRIBUTION = GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION)
NO_INTERNAL = GATES.without(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY)
KEYS = GATES.with_gates(Gate.SERVICE_TOPOLOGY)


@pytest.mark.parametrize(
    ("new", "old", "gates", "want"),
    [
        pytest.param(CLOSE, None, GATES, CLOSE, id="distribution, create, on"),
        pytest.param(CLOSE, service(), GATES, CLOSE, id="distribution, update, on"),
        pytest.param(CLOSE, None, NO_DISTRIBUTION, service(), id="distribution, create, off"),
        pytest.param(CLOSE, service(), NO_DISTRIBUTION, service(), id="distribution, update, off"),
        pytest.param(CLOSE, CLOSE, NO_DISTRIBUTION, CLOSE, id="distribution in use, off"),
        pytest.param(
            service(traffic_distribution="PreferSameNode"),
            CLOSE,
            NO_DISTRIBUTION,
            service(traffic_distribution="PreferSameNode"),
            id="distribution in use may change, off",
        ),
        pytest.param(service(), CLOSE, NO_DISTRIBUTION, service(), id="distribution removed, off"),
        pytest.param(KEYED, None, KEYS, KEYED, id="keys, create, on"),
        pytest.param(KEYED, None, GATES, service(), id="keys, create, off"),
        pytest.param(KEYED, service(), GATES, service(), id="keys, update, off"),
        pytest.param(KEYED, KEYED, GATES, KEYED, id="keys in use, off"),
        pytest.param(POLICED, None, GATES, POLICED, id="internal policy, create, on"),
        pytest.param(POLICED, None, NO_INTERNAL, UNPOLICED, id="internal policy, create, off"),
        pytest.param(POLICED, UNPOLICED, NO_INTERNAL, UNPOLICED, id="internal policy, update, off"),
        pytest.param(POLICED, service(), NO_INTERNAL, POLICED, id="internal policy in use, off"),
    ],
)
def test_fields_of_disabled_gates_are_dropped(
    new: Service, old: Service | None, gates: FeatureGates, want: Service
) -> None:
    """A field whose gate is off is not stored anew, but what is stored stays usable."""
    assert drop_disabled_service_fields(new, old, gates=gates) == want


def test_a_create_has_no_status() -> None:
    """The status of a create is wiped and disabled fields are dropped."""
    written = replace(CLOSE, status=STATUS)
    assert prepare_service_for_create(written, gates=NO_DISTRIBUTION) == service()
    assert prepare_service_for_create(written, gates=GATES) == CLOSE


def test_an_update_keeps_the_stored_status() -> None:
    """Whatever status an update carries, the stored one is taken."""
    old = replace(balancer(), status=STATUS)
    new = balancer(traffic_distribution="PreferSameZone")
    assert prepare_service_for_update(new, old, gates=GATES) == replace(new, status=STATUS)


def test_an_update_drops_what_no_longer_applies() -> None:
    """Status, type-dependent and disabled fields are handled together."""
    old = replace(CLASSY, status=STATUS)
    new = replace(
        reclassed(type="ClusterIP", traffic_distribution="PreferClose"), status=ServiceStatus()
    )
    want_spec = replace(
        CLASSY.spec,
        type="ClusterIP",
        load_balancer_class=None,
        allocate_load_balancer_node_ports=None,
        external_traffic_policy="",
        ports=(port("http", 80),),
    )
    got = prepare_service_for_update(new, old, gates=NO_DISTRIBUTION)
    assert got == replace(old, spec=want_spec, status=NO_BALANCER)


def test_an_update_of_the_status_keeps_the_stored_spec() -> None:
    """The spec of a status update is ignored, its metadata and status are taken."""
    old = balancer()
    new = replace(service(labels={"a": "b"}), status=STATUS)
    want = replace(old, metadata=new.metadata, status=STATUS)
    assert prepare_status_update(new, old) == want


def test_unchanged_services_are_not_copied() -> None:
    """Each step hands back the same object when it has nothing to do."""
    same = service()
    assert normalize_cluster_ips(same) is same
    assert normalize_cluster_ips(same, service()) is same
    assert patch_allocated_values(same, service()) is same
    assert drop_type_dependent_fields(same, service()) is same
    assert drop_disabled_service_fields(same, None, gates=GATES) is same


def test_warnings_belong_to_the_steps_of_a_write() -> None:
    """Whoever writes finds the warnings beside the other steps."""
    assert service_strategy.service_warnings is service_warnings


def test_node_ports_go_although_a_port_without_one_came() -> None:
    """A new port that asks for no node port is no sign that the others are still wanted."""
    old = node_ports(port("a", 80, 30080))
    new = service(type="ClusterIP", ports=(port("a", 80, 30080), port("b", 81)))
    dropped = drop_type_dependent_fields(new, old)
    assert [one.node_port for one in dropped.spec.ports] == [0, 0]
