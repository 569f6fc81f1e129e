"""Objects of a cluster, filed by Service."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory, adopt, pods_in_slices
from keepclose.model.core_kinds import Event
from keepclose.model.endpointslice.types import Endpoint, Endpoints
from keepclose.model.meta import NamespacedName, ObjectMeta, ObjectReference
from keepclose.model.workload import NodeAddress, NodeSpec
from keepclose.slices.slice_metadata import is_owned_by
from support.builders import endpoint_slice, node, pod, service


def test_objects_are_filed_by_kind_and_service() -> None:
    """Slices and Endpoints are found by Service, pods by namespace; other kinds do no harm."""
    piece = endpoint_slice()
    endpoints = Endpoints(metadata=ObjectMeta(name="web", namespace="default"))
    inventory = Inventory.of([node(), service(), pod(), piece, endpoints, Event()])
    key = NamespacedName("default", "web")
    assert inventory == Inventory(
        nodes=(node(),),
        services=(service(),),
        pods={"default": (pod(),)},
        slices={key: (piece,)},
        endpoints={key: endpoints},
    )


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param({"app": "web"}, ["a"], id="matching labels"),
        pytest.param({}, ["a", "b"], id="an empty selector takes all of the namespace"),
        pytest.param(None, [], id="no selector takes none"),
    ],
)
def test_a_service_selects_pods_of_its_namespace(
    selector: dict[str, str] | None, want: list[str]
) -> None:
    """The selector and the namespace decide."""
    inventory = Inventory.of([pod("a"), pod("b", labels={"app": "x"}), pod("c", namespace="other")])
    assert [one.metadata.name for one in inventory.pods_of(service(selector=selector))] == want


BARE = service(cluster_ip="", cluster_ips=(), ip_families=(), ip_family_policy=None)


@pytest.mark.parametrize(
    ("objects", "want"),
    [
        pytest.param([], ("IPv4",), id="nothing shows: IPv4"),
        pytest.param([BARE], ("IPv4",), id="a Service that says nothing"),
        pytest.param([pod(ips=("fd00::1",))], ("IPv6",), id="pods of one family"),
        pytest.param([pod(ips=("fd00::1", "10.0.0.1"))], ("IPv6", "IPv4"), id="pods of both"),
        pytest.param(
            [pod(ips=("fd00::1", "10.0.0.1")), service()],
            ("IPv4", "IPv6"),
            id="a cluster IP tells the primary family",
        ),
        pytest.param(
            [replace(node(), spec=NodeSpec(pod_cidrs=("10.0.0.0/24", "fd00::/64")))],
            ("IPv4", "IPv6"),
            id="pod ranges of nodes",
        ),
        pytest.param(
            [
                replace(
                    node(),
                    status=replace(
                        node().status, addresses=(NodeAddress("InternalIP", "fd00::7"),)
                    ),
                )
            ],
            ("IPv6",),
            id="addresses of nodes",
        ),
        pytest.param([endpoint_slice(address_type="IPv6")], ("IPv6",), id="slices"),
        pytest.param(
            [replace(BARE, spec=replace(BARE.spec, ip_family_policy="RequireDualStack"))],
            ("IPv4", "IPv6"),
            id="a Service that requires both",
        ),
        pytest.param(
            [replace(BARE, spec=replace(BARE.spec, ip_families=("IPv6",)))],
            ("IPv6",),
            id="a Service that names one",
        ),
    ],
)
def test_families_are_read_off_what_was_allocated(
    objects: list[object], want: tuple[str, ...]
) -> None:
    """The families of a cluster and their order follow from addresses that are there."""
    assert Inventory.of(objects).families() == want


def test_slices_without_owner_are_adopted() -> None:
    """A slice that names no owner belongs to the Service of its label."""
    orphan = endpoint_slice()
    orphan = replace(orphan, metadata=replace(orphan.metadata, owner_references=()))
    assert is_owned_by(adopt(orphan, service()), service())


def test_slices_of_another_service_are_not_adopted() -> None:
    """With uids at hand, a slice of an older Service of the same name stays foreign."""
    foreign = endpoint_slice(owner_uid="older")
    assert adopt(foreign, service()) is foreign


def test_without_uids_the_label_must_do() -> None:
    """A manifest has no uid, so whatever owner a slice names is taken for it."""
    manifest = replace(service(), metadata=replace(service().metadata, uid=""))
    assert is_owned_by(adopt(endpoint_slice(owner_uid="older"), manifest), manifest)


def test_a_pod_that_many_endpoints_name_has_each_address_once() -> None:
    """Neither a Pod in many slices nor one with many addresses costs more than its endpoints."""
    reference = ObjectReference(kind="Pod", name="p", namespace="default")
    repeated = Endpoint(addresses=("10.0.0.1",), target_ref=reference)
    [known] = pods_in_slices(service(), [endpoint_slice(repeated, repeated), endpoint_slice()])
    assert [one.ip for one in known.status.pod_ips] == ["10.0.0.1"]
    other = replace(repeated, addresses=("10.0.0.2",))
    [known] = pods_in_slices(service(), [endpoint_slice(repeated, other, repeated)])
    assert [one.ip for one in known.status.pod_ips] == ["10.0.0.1", "10.0.0.2"]
