"""Whose an address was at the time of a connection."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.accounting.address_book import (
    MAX_UNOWNED,
    UNOWNED_S,
    AddressBook,
    workload_of,
)
from keepclose.accounting.flow_table import NO_ZONE
from keepclose.accounting.owner_history import MAX_REMEMBERED, REMEMBERED_S, OwnerKind
from keepclose.model.endpointslice.types import EndpointPort
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import ServicePort
from keepclose.model.workload import NodeAddress, NodeStatus, PodStatus
from support import builders
from support.flowclusters import address, cluster_book, node_of

IP = "10.0.1.50"


def _owner(book: AddressBook, at: float, ip: str = IP) -> str:
    owner = book.owner_of(address(ip), at)
    return "" if owner is None else owner.name


def test_an_address_is_joined_by_time() -> None:
    """A connection belongs to the pod that had the address when it began."""
    book = cluster_book()
    old, new = builders.pod("old", "n1", ip=IP), builders.pod("new", "n2", ip=IP)
    book.set_pod(old, at=10.0)
    book.remove_pod(old.key, at=20.0)
    book.set_pod(new, at=30.0)
    assert _owner(book, 15.0) == "default/old"
    assert _owner(book, 35.0) == "default/new"


def test_a_gap_belongs_to_the_next_owner() -> None:
    """Between two owners the next one has the address: its pod runs before the API says so."""
    book = cluster_book()
    old = builders.pod("old", "n1", ip=IP)
    book.set_pod(old, at=10.0)
    book.remove_pod(old.key, at=20.0)
    book.set_pod(builders.pod("new", "n1", ip=IP), at=30.0)
    assert _owner(book, 25.0) == "default/new"


def test_a_connection_that_is_seen_late_belongs_to_its_pod() -> None:
    """A pod that runs for milliseconds has ended when its connections are seen."""
    book = cluster_book()
    pod = builders.pod("brief", "n1", ip=IP)
    book.set_pod(pod, at=10.0)
    book.set_pod(replace(pod, status=replace(pod.status, phase="Succeeded")), at=10.02)
    assert _owner(book, 10.1) == "default/brief"
    book.set_pod(builders.pod("next", "n1", ip=IP), at=10.2)
    assert _owner(book, 10.15) == "default/brief"
    assert _owner(book, 10.25) == "default/next"


def test_a_pod_that_is_reported_with_its_end_had_its_address() -> None:
    """A pod whose address appears when it has ended already names its connections."""
    book = cluster_book()
    pod = builders.pod("brief", "n1", ip=IP)
    pod = replace(pod, status=replace(pod.status, phase="Succeeded"))
    book.set_pod(pod, at=5.0)
    assert _owner(book, 4.9) == ""
    book.set_pod(pod, at=10.0, has_run_unseen=True)
    assert _owner(book, 9.9) == "default/brief"
    assert _owner(book, 10.1) == "default/brief"
    assert _owner(book, 11.1) == ""


def test_a_pod_that_ended_has_no_address() -> None:
    """A pod that succeeded keeps its address in its status, but no longer has it."""
    book = cluster_book()
    pod = builders.pod("job", "n1", ip=IP)
    book.set_pod(pod, at=10.0)
    book.set_pod(replace(pod, status=replace(pod.status, phase="Succeeded")), at=20.0)
    owner = book.owner_of(address(IP), 25.0)
    assert owner is not None
    assert owner.kind is OwnerKind.POD_RANGE


def test_a_pod_is_a_better_source_than_its_slice() -> None:
    """The pod names the workload, a slice only the pod."""
    book = cluster_book()
    owner = book.owner_of(address("10.0.1.10"), 1.0)
    assert owner is not None
    assert owner.kind is OwnerKind.POD
    book.remove_pod(NamespacedName("default", "p1"), at=2.0)
    owner = book.owner_of(address("10.0.1.10"), 3.0)
    assert owner is not None
    assert (owner.kind, owner.name, owner.zone) == (OwnerKind.ENDPOINT, "default/p1", "zone-a")


def test_a_pod_in_the_host_network_is_its_node() -> None:
    """The address of a node stays the node's, whichever pods use it too."""
    book = cluster_book()
    book.set_pod(builders.pod("agent", "n1", ip="192.0.2.1"), at=1.0)
    owner = book.owner_of(address("192.0.2.1"), 2.0)
    assert owner is not None
    assert (owner.kind, owner.name) == (OwnerKind.NODE, "n1")


@pytest.mark.parametrize("pod_first", [True, False])
def test_a_pod_that_says_so_is_in_the_host_network(*, pod_first: bool) -> None:
    """spec.hostNetwork makes the pod's address that of its node, whichever of both comes first."""
    book = AddressBook()
    pod = builders.pod("agent", "n1", ip="192.0.2.1")
    pod = replace(pod, spec=replace(pod.spec, host_network=True))
    if pod_first:
        book.set_pod(pod, at=0.5)
    book.set_node(node_of("n1"), at=1.0)
    book.set_pod(pod, at=1.5)
    owner = book.owner_of(address("192.0.2.1"), 0.7 if pod_first else 2.0)
    assert owner is not None
    assert (owner.kind, owner.name, owner.zone) == (OwnerKind.NODE, "n1", "zone-a")


def test_a_new_label_moves_all_addresses_of_a_node() -> None:
    """The zone of an address is that of its node now, without another event of its pod."""
    book = cluster_book()
    book.set_node(replace(node_of("n1"), metadata=builders.node("n1", "zone-z").metadata), at=5.0)
    owner = book.owner_of(address("10.0.1.10"), 6.0)
    assert owner is not None
    assert owner.zone == "zone-z"


def test_a_node_without_the_label_has_no_zone() -> None:
    """A node without a zone is told apart from an unknown address."""
    book = AddressBook()
    node = builders.node("n9", None)
    status = NodeStatus(addresses=(NodeAddress("InternalIP", "192.0.2.9"),))
    book.set_node(replace(node, status=status), at=0.0)
    owner = book.owner_of(address("192.0.2.9"), 1.0)
    assert owner is not None
    assert owner.zone == NO_ZONE


def test_the_range_of_a_node_moves_with_it() -> None:
    """A range that another node takes over, or that is no longer a node's, changes its owner."""
    book = cluster_book()
    taken = replace(node_of("n2"), spec=node_of("n1").spec)
    book.set_node(taken, at=1.0)
    book.remove_node("n1", at=2.0)
    owner = book.owner_of(address("10.0.1.99"), 3.0)
    assert owner is not None
    assert owner.node == "n2"
    assert book.owner_of(address("10.0.2.99"), 3.0) is None


def test_a_headless_service_comes_first() -> None:
    """An endpoint of two Services, called directly, belongs to the headless one."""
    book = cluster_book()
    headless = builders.service("db", cluster_ip="None", cluster_ips=("None",))
    book.set_service(headless, at=1.0)
    endpoint = builders.endpoint("10.0.1.10", zone="zone-a", node_name="n1", pod_name="p1")
    book.set_slice(builders.endpoint_slice(endpoint, name="db-x", service_name="db"), at=1.0)
    frontend = book.service_behind(address("10.0.1.10"), 8080, 6, 2.0)
    assert frontend is not None
    assert frontend.service.name == "db"


@pytest.mark.parametrize("slice_first", [True, False])
def test_a_port_without_a_name_has_one_number(*, slice_first: bool) -> None:
    """The port of a Service is its own number, by its address and by that of an endpoint."""
    book = AddressBook()
    service = builders.service(ports=(ServicePort(protocol="TCP", port=80, target_port=8080),))
    endpoint_slice = builders.endpoint_slice(
        builders.endpoint("10.0.1.10"), ports=(EndpointPort(protocol="TCP", port=8080),)
    )
    if slice_first:
        book.set_slice(endpoint_slice, at=0.0)
        unknown = book.service_behind(address("10.0.1.10"), 8080, 6, 1.0)
        assert unknown is not None
        assert unknown.port == "8080"
    book.set_service(service, at=0.0)
    book.set_slice(endpoint_slice, at=0.0)
    by_service = book.frontend_of(address("10.96.0.10"), 80, 6, 1.0)
    by_endpoint = book.service_behind(address("10.0.1.10"), 8080, 6, 1.0)
    assert by_service is not None
    assert by_endpoint is not None
    assert by_service.port == by_endpoint.port == "80"


def test_a_deleted_service_names_earlier_connections() -> None:
    """A Service that was deleted still names the connections of before, and no later ones."""
    book = cluster_book()
    book.remove_service(NamespacedName("default", "web"), at=10.0)
    assert book.frontend_of(address("10.96.0.10"), 80, 6, 5.0) is not None
    assert book.frontend_of(address("10.96.0.10"), 80, 6, 15.0) is None


def test_addresses_without_an_owner_are_remembered_for_a_time() -> None:
    """That an address has no owner is remembered while it is used, in bounded number."""
    book = AddressBook()
    database = address("10.50.0.1")
    assert not book.is_unowned(database, 0.0)
    assert book.record_unowned(database, at=0.0)
    assert book.is_unowned(database, UNOWNED_S - 1)
    assert book.is_unowned(database, 2 * UNOWNED_S - 2)
    assert not book.is_unowned(database, 4 * UNOWNED_S)
    for number in range(MAX_UNOWNED + 1):
        assert book.record_unowned(bytes((10, 60, *divmod(number, 256))), at=0.0)
    assert not book.is_unowned(bytes((10, 60, 0, 0)), 1.0)
    assert book.is_unowned(bytes((10, 60, 0, 1)), 1.0)


def test_an_address_that_pods_use_is_waited_for() -> None:
    """An address that had an owner may get the next one, so its absence is not remembered."""
    book = AddressBook()
    pod = builders.pod("old", "n1", ip=IP)
    assert book.record_unowned(address(IP), at=0.0)
    book.set_pod(pod, at=1.0)
    book.remove_pod(pod.key, at=2.0)
    assert not book.is_unowned(address(IP), 3.0)
    assert not book.record_unowned(address(IP), at=3.0)


def test_past_owners_are_forgotten() -> None:
    """Owners that ended are dropped after some minutes, and beyond a number at once."""
    book = AddressBook()
    gone = builders.pod("gone", "n1", ip="10.9.0.1")
    book.set_pod(gone, at=0.0)
    book.remove_pod(gone.key, at=1.0)
    book.set_pod(builders.pod("later", "n1", ip="10.9.0.2"), at=2.0 + REMEMBERED_S)
    assert _owner(book, 0.5, "10.9.0.1") == ""
    at = 3.0 + REMEMBERED_S
    first = builders.pod("first", "n1", ip="10.9.0.3")
    book.set_pod(first, at=at)
    book.remove_pod(first.key, at=at + 1)
    for number in range(MAX_REMEMBERED + 1):
        ip = f"10.{10 + number // 65536}.{number // 256 % 256}.{number % 256}"
        pod = builders.pod("many", "n1", ip=ip)
        book.set_pod(pod, at=at + 2)
    book.remove_pod(NamespacedName("default", "many"), at=at + 3)
    assert _owner(book, at, "10.9.0.3") == ""


@pytest.mark.parametrize(
    ("owner", "labels", "want"),
    [
        (OwnerReference(kind="ReplicaSet", name="web-5d4f", controller=True), "5d4f", "web"),
        (OwnerReference(kind="ReplicaSet", name="web-5d4f", controller=True), "", "web-5d4f"),
        (OwnerReference(kind="DaemonSet", name="dns", controller=True), "", "dns"),
        (OwnerReference(kind="ReplicaSet", name="web-5d4f"), "5d4f", "web-5d4f-x"),
        (None, "", "web-5d4f-x"),
    ],
)
def test_the_workload_of_a_pod(owner: OwnerReference | None, labels: str, want: str) -> None:
    """A pod's workload is its Deployment, its other controller, or itself."""
    pod = builders.pod(
        "web-5d4f-x", owner=owner, labels={"pod-template-hash": labels} if labels else {}
    )
    assert workload_of(pod) == f"default/{want}"


def test_bad_addresses_are_ignored() -> None:
    """Texts that are no addresses and CIDRs that are none neither raise nor become owners."""
    book = AddressBook()
    pod = builders.pod("p")
    book.set_pod(replace(pod, status=PodStatus(phase="Running", pod_ip="999.1.1.1")), at=0.0)
    node = node_of("n1")
    book.set_node(replace(node, spec=replace(node.spec, pod_cidrs=("10.0.0.0/99", "x"))), at=0.0)
    assert _owner(book, 1.0, "10.0.0.1") == ""
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        AddressBook(cluster_ranges=("10.0.0.0/99",))
