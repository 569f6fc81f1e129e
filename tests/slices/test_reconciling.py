"""Whole passes over a Service without hints: pods and slices in, writes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Container, ContainerPort, Node, Pod
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.endpoints import EndpointBuilder
from keepclose.slices.packing import SlicePlan, add_placeholder, finish_plan
from keepclose.slices.placement import Placement
from keepclose.slices.slice_metadata import address_types
from support.builders import endpoint_slice, node, pod, service

NODES = {name: node(name, zone) for name, zone in (("n1", "zone-a"), ("n2", "zone-b"))}
OURS = {
    "kubernetes.io/service-name": "web",
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
}


def some_pods(count: int, *, start: int = 0) -> list[Pod]:
    """Return numbered ready pods."""
    return [
        pod(f"p{number:03}", f"n{number % 2 + 1}", ip=f"10.0.{number // 250}.{number % 250 + 1}")
        for number in range(start, start + count)
    ]


def placed(
    owner: Service,
    pods: Iterable[Pod],
    existing: Iterable[EndpointSlice] = (),
    *,
    nodes: Mapping[str, Node] = NODES,
    address_type: str = "IPv4",
) -> Placement:
    """Return a placement that was told everything."""
    placement = Placement(owner, address_type)
    for piece in existing:
        if piece.address_type == address_type:
            placement.observe(piece)
    builder = EndpointBuilder(owner, address_type)
    for each in pods:
        desired = builder.desired(each, nodes.get(each.spec.node_name))
        if desired is not None:
            placement.add_pod(each.key, desired)
    return placement


def reconcile(
    owner: Service,
    pods: Iterable[Pod],
    existing: Iterable[EndpointSlice] = (),
    *,
    max_endpoints: int = 100,
    address_type: str = "IPv4",
) -> SlicePlan:
    """Return the finished plan of one address type."""
    plan = placed(owner, pods, existing, address_type=address_type).plan(
        max_endpoints=max_endpoints
    )
    return finish_plan(add_placeholder(plan, owner, address_type=address_type), owner)


def sliced(
    owner: Service, pods: list[Pod], *sizes: int, names: str = "abcdefghij"
) -> list[EndpointSlice]:
    """Return existing slices named a, b, ... that hold so many of the pods each."""
    slices: list[EndpointSlice] = []
    start = 0
    for name, size in zip(names, sizes, strict=False):
        (made,) = apply_plan((), reconcile(owner, pods[start : start + size], max_endpoints=1000))
        slices.append(replace(made, metadata=replace(made.metadata, name=name, uid=f"uid-{name}")))
        start += size
    return slices


def sizes(slices: Iterable[EndpointSlice]) -> list[int]:
    """Return the numbers of endpoints, largest first."""
    return sorted((len(piece.endpoints) for piece in slices), reverse=True)


def names(slices: Iterable[EndpointSlice]) -> list[str]:
    """Return the names of slices."""
    return [piece.metadata.name for piece in slices]


def pods_in(slices: Iterable[EndpointSlice]) -> list[str]:
    """Return the names of the pods behind all endpoints, sorted."""
    return sorted(
        endpoint.target_ref.name
        for piece in slices
        for endpoint in piece.endpoints
        if endpoint.target_ref is not None
    )


def test_a_service_without_pods_gets_a_placeholder() -> None:
    """There is always a slice, though it says nothing."""
    plan = reconcile(service(), ())
    (created,) = plan.create
    assert (created.endpoints, created.ports, created.address_type) == ((), (), "IPv4")
    assert created.metadata.labels == OURS
    assert (plan.update, plan.delete, plan.unchanged) == ((), (), ())
    assert (plan.added, plan.removed) == (0, 0)


BOTH = ("10.0.0.9", "fd00::9")


@pytest.mark.parametrize(
    ("families", "cluster_ip", "ips", "want"),
    [
        pytest.param(("IPv4",), "10.96.0.1", BOTH, {"IPv4": ["10.0.0.9"]}, id="IPv4"),
        pytest.param(("IPv6",), "fd00::1", BOTH, {"IPv6": ["fd00::9"]}, id="IPv6"),
        pytest.param(
            ("IPv4", "IPv6"),
            "10.96.0.1",
            BOTH,
            {"IPv4": ["10.0.0.9"], "IPv6": ["fd00::9"]},
            id="dual stack",
        ),
        pytest.param(
            ("IPv4", "IPv6"),
            "10.96.0.1",
            BOTH[:1],
            {"IPv4": ["10.0.0.9"], "IPv6": []},
            id="dual stack over a pod with one address",
        ),
        pytest.param((), "10.96.0.1", BOTH, {"IPv4": ["10.0.0.9"]}, id="by the IPv4 cluster IP"),
        pytest.param((), "fd00::1", BOTH, {"IPv6": ["fd00::9"]}, id="by the IPv6 cluster IP"),
        pytest.param(
            (),
            "None",
            BOTH,
            {"IPv4": ["10.0.0.9"], "IPv6": ["fd00::9"]},
            id="headless without families",
        ),
        pytest.param(("IPv6",), "fd00::1", BOTH[:1], {"IPv6": []}, id="no address of the family"),
    ],
)
def test_one_pod(
    families: tuple[str, ...], cluster_ip: str, ips: tuple[str, ...], want: dict[str, list[str]]
) -> None:
    """A pod is an endpoint in a slice of each family that it and the Service have."""
    owner = service(ip_families=families, cluster_ip=cluster_ip)
    got: dict[str, list[str]] = {}
    for address_type in address_types(owner):
        (created,) = reconcile(owner, [pod(ips=ips)], address_type=address_type).create
        assert created.address_type == address_type
        got[address_type] = [address for e in created.endpoints for address in e.addresses]
    assert got == want


@pytest.mark.parametrize(
    ("existing", "want_update"),
    [
        pytest.param(endpoint_slice(ports=(), name="a"), [], id="the placeholder stays"),
        pytest.param(
            endpoint_slice(ports=(), name="a", labels={"x": "y"}),
            ["a"],
            id="a placeholder with other labels becomes the right one",
        ),
        pytest.param(
            endpoint_slice(ports=(EndpointPort("x", "TCP", 1),), name="a"),
            ["a"],
            id="an empty slice with ports becomes the placeholder",
        ),
    ],
)
def test_one_slice_and_no_pods(existing: EndpointSlice, want_update: list[str]) -> None:
    """What is there is used; nothing is created or deleted."""
    plan = reconcile(service(), (), [existing])
    assert (plan.create, plan.delete, names(plan.update)) == ((), (), want_update)
    for updated in plan.update:
        assert (updated.ports, updated.endpoints, updated.metadata.labels) == ((), (), OURS)
    assert names(plan.unchanged) == ([] if want_update else ["a"])


def test_published_addresses_are_ready_and_stay_so() -> None:
    """With publishNotReadyAddresses an unready pod is a ready endpoint, and nothing flaps."""
    owner = service(publish_not_ready_addresses=True)
    pods = some_pods(50)
    pods[3] = pod("p003", "n2", ip="10.0.0.4", ready=False)
    slices = apply_plan((), reconcile(owner, pods))
    assert {e.conditions.ready for piece in slices for e in piece.endpoints} == {True}
    assert [e.conditions.serving for e in slices[0].endpoints].count(False) == 1
    assert reconcile(owner, pods, slices).is_empty


def test_many_pods() -> None:
    """250 pods make slices of 100, 100 and 50, and then there is nothing more to do."""
    pods = some_pods(250)
    plan = reconcile(service(), pods)
    assert sizes(plan.create) == [100, 100, 50]
    assert plan.added == 250
    slices = apply_plan((), plan)
    assert pods_in(slices) == [each.metadata.name for each in pods]
    again = reconcile(service(), pods, slices)
    assert again.is_empty
    assert names(again.unchanged) == names(slices)


def test_some_slices_exist_already() -> None:
    """One slice is created and one is filled, rather than both filled."""
    pods = some_pods(250)
    existing = sliced(service(), pods, 62, 61)
    plan = reconcile(service(), pods, existing)
    assert (sizes(plan.create), names(plan.update), names(plan.unchanged)) == ([100], ["a"], ["b"])
    assert sizes(apply_plan(existing, plan)) == [100, 89, 61]
    assert (plan.added, plan.removed) == (127, 0)


def test_a_worse_allocation_is_left_alone() -> None:
    """A new slice is preferred to touching two that could share the rest."""
    pods = some_pods(200)
    existing = sliced(service(), pods, 60, 60)
    plan = reconcile(service(), pods, existing)
    assert (plan.update, names(plan.unchanged)) == ((), ["a", "b"])
    assert sizes(apply_plan(existing, plan)) == [80, 60, 60]


def test_a_changed_port_rewrites_all_slices_in_place() -> None:
    """Slices of the old port are recycled for the new one."""
    pods = some_pods(250)
    slices = apply_plan((), reconcile(service(), pods))
    moved = service(ports=(ServicePort(name="http", protocol="TCP", port=80, target_port=81),))
    plan = reconcile(moved, pods, slices)
    assert (plan.create, plan.delete, plan.unchanged) == ((), (), ())
    assert sorted(names(plan.update)) == names(slices)
    after = apply_plan(slices, plan)
    assert {piece.ports for piece in after} == {(EndpointPort("http", "TCP", 81),)}
    assert sizes(after) == [100, 100, 50]
    assert [piece.metadata.uid for piece in after] == [piece.metadata.uid for piece in slices]


def test_changed_labels_of_the_service_update_all_slices() -> None:
    """Endpoints stay where they are, and the slices' other metadata stays too."""
    pods = some_pods(250)
    slices = [
        replace(piece, metadata=replace(piece.metadata, annotations={"mine": "yes"}))
        for piece in apply_plan((), reconcile(service(), pods))
    ]
    plan = reconcile(service(labels={"team": "blue"}), pods, slices)
    assert (plan.create, plan.delete, plan.unchanged) == ((), (), ())
    assert [
        replace(piece, metadata=old.metadata)
        for piece, old in zip(plan.update, slices, strict=True)
    ] == slices
    for piece in plan.update:
        assert piece.metadata.labels == {**OURS, "team": "blue"}
        assert piece.metadata.annotations == {"mine": "yes"}


def test_reserved_labels_of_the_service_change_nothing() -> None:
    """They are never copied, so they are never missed."""
    pods = some_pods(250)
    slices = apply_plan((), reconcile(service(), pods))
    marked = service(
        labels={"kubernetes.io/service-name": "bad", "service.kubernetes.io/headless": "bad"}
    )
    assert reconcile(marked, pods, slices).is_empty


def test_recycling() -> None:
    """Of ten slices of an old port three live on under the new one."""
    pods = some_pods(300)
    old = service(ports=(ServicePort(name="http", protocol="TCP", port=80, target_port=1),))
    existing = sliced(old, pods, *[30] * 10)
    plan = reconcile(service(), pods, existing)
    assert (plan.create, sizes(plan.update), len(plan.delete)) == ((), [100, 100, 100], 7)
    assert sizes(apply_plan(existing, plan)) == [100, 100, 100]
    assert plan.removed == 0


def test_update_packing() -> None:
    """Of two slices that change anyway the fuller one is filled."""
    pods = some_pods(100)
    existing = sliced(service(), pods, 80, 20)
    gone = [pod("p000", "n1", ip="10.0.0.1", ready=False), *pods[1:80]]
    changed = [*gone, *pods[80:99], pod("p099", "n1", ip="10.0.0.100", ready=False)]
    plan = reconcile(service(), [*changed, *some_pods(15, start=100)], existing)
    assert (plan.create, plan.delete) == ((), ())
    assert {piece.metadata.name: len(piece.endpoints) for piece in plan.update} == {
        "a": 95,
        "b": 20,
    }


def test_deprecated_topology_is_replaced() -> None:
    """Endpoints that name their node only the old way are written anew."""
    pods = some_pods(110)
    slices = apply_plan((), reconcile(service(), pods))
    old = [
        replace(
            piece,
            endpoints=tuple(
                replace(e, node_name=None, zone=None, deprecated_topology={"zone": "zone-a"})
                for e in piece.endpoints
            ),
        )
        for piece in slices
    ]
    plan = reconcile(service(), pods, old)
    assert names(plan.update) == names(slices)
    assert [piece.endpoints for piece in plan.update] == [piece.endpoints for piece in slices]


@pytest.mark.parametrize(
    ("owner_uid", "want_created", "want_deleted"),
    [
        pytest.param("uid-web", 0, [], id="the slice is this Service's"),
        pytest.param("uid-older", 1, ["a"], id="the slice is left from an older Service"),
    ],
)
def test_recreation_of_a_service(
    owner_uid: str, want_created: int, want_deleted: list[str]
) -> None:
    """A slice of an older Service of the same name is deleted, and never recycled."""
    (own,) = apply_plan((), reconcile(service(), [pod()]))
    owners = (replace(own.metadata.owner_references[0], uid=owner_uid),)
    existing = replace(own, metadata=replace(own.metadata, name="a", owner_references=owners))
    plan = reconcile(service(), [pod()], [existing])
    assert (len(plan.create), plan.update, names(plan.delete)) == (want_created, (), want_deleted)
    after = apply_plan([existing], plan)
    assert pods_in(after) == ["p1"]


def test_named_ports_make_groups() -> None:
    """Pods that give one name different numbers never share a slice."""
    owner = service(ports=(ServicePort(name="http", protocol="TCP", port=80, target_port="named"),))
    pods = [
        replace(
            each,
            spec=replace(
                each.spec,
                containers=(
                    Container(ports=(ContainerPort(name="named", container_port=8000 + n % 5),)),
                ),
            ),
        )
        for n, each in enumerate(some_pods(300))
    ]
    plan = reconcile(owner, pods)
    assert [(piece.ports, len(piece.endpoints)) for piece in plan.create] == [
        ((EndpointPort("http", "TCP", 8000 + n),), 60) for n in range(5)
    ]
    assert reconcile(owner, pods, apply_plan((), plan)).is_empty


@pytest.mark.parametrize(
    ("limit", "want"),
    [
        pytest.param(50, [50] * 5, id="50"),
        pytest.param(80, [80, 80, 80, 10], id="80"),
        pytest.param(150, [150, 100], id="150"),
        pytest.param(250, [250], id="250"),
        pytest.param(500, [250], id="500"),
    ],
)
def test_max_endpoints_per_slice(limit: int, want: list[int]) -> None:
    """No slice is created larger than the limit."""
    assert sizes(reconcile(service(), some_pods(250), max_endpoints=limit).create) == want


def test_counts_of_added_and_removed() -> None:
    """Both are counted in the slices that stay; a whole group that goes is not."""
    pods = some_pods(20)
    existing = sliced(service(), pods, 10)
    plan = reconcile(service(), pods[5:20], existing)
    assert (plan.added, plan.removed) == (10, 5)
    emptied = reconcile(service(), pods[10:12], existing)
    assert (emptied.added, emptied.removed) == (2, 10)
    assert reconcile(service(), (), existing).removed == 0


@pytest.mark.parametrize(
    ("deleted", "pods", "held", "want"),
    [
        pytest.param(False, 1, 0, (1, 0, 0), id="a living Service gets a slice"),
        pytest.param(True, 1, 0, (0, 0, 0), id="a dying Service gets none"),
        pytest.param(True, 0, 0, (0, 0, 0), id="not even a placeholder"),
        pytest.param(True, 2, 1, (0, 1, 0), id="its slices are still updated"),
        pytest.param(True, 0, 1, (0, 1, 0), id="and recycled"),
    ],
)
def test_a_service_that_is_being_deleted(
    deleted: bool, pods: int, held: int, want: tuple[int, int, int]
) -> None:
    """Creations would race with the garbage collector, so there are none."""
    base = service()
    existing = sliced(base, some_pods(1), held) if held else []
    stamp = "2026-01-01T00:00:00Z" if deleted else None
    owner = replace(base, metadata=replace(base.metadata, deletion_timestamp=stamp))
    plan = reconcile(owner, some_pods(pods), existing)
    assert (len(plan.create), len(plan.update), len(plan.delete)) == want


def test_deletions_still_happen_for_a_service_that_is_being_deleted() -> None:
    """Two slices without pods: one becomes the placeholder, the other goes."""
    base = service()
    existing = sliced(base, some_pods(2), 1, 1)
    owner = replace(
        base, metadata=replace(base.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    plan = reconcile(owner, (), existing)
    assert (plan.create, names(plan.update), names(plan.delete)) == ((), ["a"], ["b"])


GONE = "skipping Pod {} for Service default/web: Node gone Not Found"


@pytest.mark.parametrize(
    ("publish", "home", "existing", "want_pods", "want_errors"),
    [
        pytest.param(False, "n1", False, ["p0", "p1"], (), id="all nodes are there"),
        pytest.param(False, "gone", False, ["p0"], (GONE.format("p1"),), id="a node is missing"),
        pytest.param(True, "gone", False, ["p0", "p1"], (), id="missing but published"),
        pytest.param(
            False, "gone", True, ["p0"], (GONE.format("p1"),), id="it was an endpoint before"
        ),
        pytest.param(True, "gone", True, ["p0", "p1"], (), id="it was, and is published"),
        pytest.param(False, "n1", True, ["p0", "p1"], (), id="it was, and is there"),
    ],
)
def test_pods_with_missing_nodes(
    publish: bool, home: str, existing: bool, want_pods: list[str], want_errors: tuple[str, ...]
) -> None:
    """The pod is left out and told, and the others are written all the same."""
    owner = service(publish_not_ready_addresses=publish)
    before = [pod("p0", ip="10.0.0.1"), pod("p1", ip="10.0.0.2")]
    pods = [before[0], pod("p1", home, ip="10.0.0.2")]
    slices = apply_plan((), reconcile(owner, before)) if existing else []
    placement = placed(owner, pods, slices)
    assert placement.errors == want_errors
    assert pods_in(apply_plan(slices, placement.plan())) == want_pods


def test_a_headless_service_without_ports() -> None:
    """Its endpoints have no ports, and its placeholder is the very slice they go into."""
    owner = service(cluster_ip="None", ports=())
    slices = apply_plan((), reconcile(owner, ()))
    plan = reconcile(owner, [pod()], slices)
    assert (plan.create, plan.delete, names(plan.update)) == ((), (), names(slices))
    assert (plan.update[0].ports, pods_in(plan.update)) == ((), ["p1"])


def test_scaling_to_zero_turns_the_last_slice_into_the_placeholder() -> None:
    """One of two slices is emptied and kept."""
    pods = some_pods(150)
    slices = apply_plan((), reconcile(service(), pods))
    plan = reconcile(service(), (), slices)
    assert (plan.create, names(plan.update), names(plan.delete)) == (
        (),
        [slices[0].metadata.name],
        [slices[1].metadata.name],
    )
    after = apply_plan(slices, plan)
    assert [(piece.ports, piece.endpoints) for piece in after] == [((), ())]
    assert reconcile(service(), (), after).is_empty
