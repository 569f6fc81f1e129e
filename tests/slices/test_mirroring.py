"""Slices that mirror an Endpoints object."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import (
    EndpointAddress,
    Endpoints,
    EndpointSlice,
    EndpointsPort,
    EndpointSubset,
)
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.service.types import Service
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.mirroring import MirrorEvent, MirrorPlan, plan_mirroring, should_mirror
from keepclose.slices.packing import SlicePlan
from support.builders import endpoint_slice, service

MANUAL = service(selector=None)
HTTP = EndpointsPort("http", 80, "TCP")
HTTPS = EndpointsPort("https", 443, "TCP")
DNS = EndpointsPort("dns", 53, "")


def subset(
    *ips: str, not_ready: tuple[str, ...] = (), ports: tuple[EndpointsPort, ...] = (HTTP,)
) -> EndpointSubset:
    """Return a subset of addresses."""
    return EndpointSubset(
        tuple(EndpointAddress(ip) for ip in ips),
        tuple(EndpointAddress(ip) for ip in not_ready),
        ports,
    )


def endpoints_of(
    *subsets: EndpointSubset,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    deleted: bool = False,
) -> Endpoints:
    """Return an Endpoints object named like the Service."""
    return Endpoints(
        metadata=ObjectMeta(
            name="web",
            namespace="default",
            uid="uid-endpoints",
            labels=labels or {},
            annotations=annotations or {},
            deletion_timestamp="2026-01-01T00:00:00Z" if deleted else None,
        ),
        subsets=subsets,
    )


def said(
    slices: Iterable[EndpointSlice],
) -> list[tuple[str, tuple[int | None, ...], dict[str, bool]]]:
    """Return of each slice its type, port numbers, and readiness by address."""
    return [
        (
            piece.address_type,
            tuple(port.port for port in piece.ports),
            {each.addresses[0]: each.conditions.ready is True for each in piece.endpoints},
        )
        for piece in slices
    ]


def written(source: Endpoints) -> list[EndpointSlice]:
    """Return the slices after the object was mirrored for the first time."""
    return apply_plan((), plan_mirroring(source, MANUAL, existing=()).plan)


def names(slices: Iterable[EndpointSlice]) -> list[str]:
    """Return the names of slices."""
    return [piece.metadata.name for piece in slices]


@pytest.mark.parametrize(
    ("labels", "annotations", "want"),
    [
        pytest.param({}, {}, True, id="a plain object"),
        pytest.param(
            {"endpointslice.kubernetes.io/skip-mirror": "true"}, {}, False, id="opted out"
        ),
        pytest.param(
            {"endpointslice.kubernetes.io/skip-mirror": "yes"}, {}, True, id="only true opts out"
        ),
        pytest.param(
            {}, {"control-plane.alpha.kubernetes.io/leader": ""}, False, id="a leader's lock"
        ),
    ],
)
def test_should_mirror(labels: dict[str, str], annotations: dict[str, str], want: bool) -> None:
    """Locks and objects that opted out are not backends."""
    assert should_mirror(endpoints_of(labels=labels, annotations=annotations)) is want


EXISTING = endpoint_slice(name="a")


@pytest.mark.parametrize(
    ("source", "owner"),
    [
        pytest.param(None, MANUAL, id="no Endpoints"),
        pytest.param(endpoints_of(subset("10.0.0.1")), None, id="no Service"),
        pytest.param(endpoints_of(subset("10.0.0.1")), service(), id="the Service has a selector"),
        pytest.param(
            endpoints_of(subset("10.0.0.1")), service(selector={}), id="even an empty selector"
        ),
        pytest.param(
            endpoints_of(
                subset("10.0.0.1"), labels={"endpointslice.kubernetes.io/skip-mirror": "true"}
            ),
            MANUAL,
            id="opted out",
        ),
    ],
)
def test_mirrored_slices_go(source: Endpoints | None, owner: Service | None) -> None:
    """Without a reason to mirror, what was mirrored is deleted."""
    other = endpoint_slice(name="b")
    got = plan_mirroring(source, owner, existing=(other, EXISTING))
    assert got == MirrorPlan(SlicePlan(delete=(EXISTING, other)), is_mirroring=False)


@pytest.mark.parametrize(
    ("subsets", "want", "want_added"),
    [
        pytest.param((), [], 0, id="no subsets, and no placeholder"),
        pytest.param((subset(),), [], 0, id="no addresses"),
        pytest.param(
            (subset("10.0.0.1", "10.0.0.2"),),
            [("IPv4", (80,), {"10.0.0.1": True, "10.0.0.2": True})],
            2,
            id="ready addresses",
        ),
        pytest.param(
            (subset("10.0.0.1", not_ready=("10.0.0.2",)),),
            [("IPv4", (80,), {"10.0.0.1": True, "10.0.0.2": False})],
            2,
            id="and some not ready",
        ),
        pytest.param(
            (subset(not_ready=("10.0.0.2",)),),
            [("IPv4", (80,), {"10.0.0.2": False})],
            1,
            id="only not ready ones",
        ),
        pytest.param(
            (subset("fd00::1", "10.0.0.1"),),
            [("IPv4", (80,), {"10.0.0.1": True}), ("IPv6", (80,), {"fd00::1": True})],
            2,
            id="both families",
        ),
        pytest.param(
            (subset("10.0.0.1", ports=(HTTP, HTTPS)),),
            [("IPv4", (80, 443), {"10.0.0.1": True})],
            1,
            id="two ports",
        ),
        pytest.param(
            (subset("10.0.0.1", ports=(HTTP,)), subset("10.0.0.2", ports=(HTTPS,))),
            [("IPv4", (80,), {"10.0.0.1": True}), ("IPv4", (443,), {"10.0.0.2": True})],
            2,
            id="two subsets of different ports",
        ),
        pytest.param(
            (subset("10.0.0.1"), subset("10.0.0.2")),
            [("IPv4", (80,), {"10.0.0.1": True, "10.0.0.2": True})],
            2,
            id="two subsets of the same ports make one slice",
        ),
        pytest.param(
            (subset("10.0.0.1", ports=()),),
            [("IPv4", (), {"10.0.0.1": True})],
            1,
            id="no ports",
        ),
        pytest.param(
            (subset("10.0.0.1", ports=(DNS,)),),
            [("IPv4", (53,), {"10.0.0.1": True})],
            1,
            id="a port without a protocol",
        ),
        pytest.param(
            (subset("010.000.0.1"),),
            [("IPv4", (80,), {"10.0.0.1": True})],
            1,
            id="an irregular spelling",
        ),
    ],
)
def test_mirroring_for_the_first_time(
    subsets: tuple[EndpointSubset, ...],
    want: list[tuple[str, tuple[int | None, ...], dict[str, bool]]],
    want_added: int,
) -> None:
    """One slice per family and set of ports; a second pass has nothing to do."""
    source = endpoints_of(*subsets)
    got = plan_mirroring(source, MANUAL, existing=())
    assert said(got.plan.create) == want
    assert (got.plan.added, got.events, got.skipped) == (want_added, (), 0)
    assert plan_mirroring(source, MANUAL, existing=apply_plan((), got.plan)).plan.is_empty


def test_a_port_without_a_protocol_is_tcp() -> None:
    """As the API would have filled in."""
    (piece,) = written(endpoints_of(subset("10.0.0.1", ports=(DNS,))))
    assert piece.ports[0].protocol == "TCP"


@pytest.mark.parametrize(
    ("subsets", "limit", "want_sizes", "want_skipped", "want_events"),
    [
        pytest.param(
            (subset("10.0.0.1", "nonsense", "10.0.0.2"),),
            1000,
            [2],
            1,
            (
                MirrorEvent(
                    "InvalidIPAddress",
                    "Skipped 1 invalid IP addresses when mirroring to EndpointSlices",
                ),
            ),
            id="an invalid address",
        ),
        pytest.param(
            (subset("10.0.0.1", "10.0.0.2", not_ready=("10.0.0.3",)),),
            2,
            [2],
            1,
            (
                MirrorEvent(
                    "TooManyAddressesToMirror",
                    "A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. "
                    "1 addresses were skipped",
                ),
            ),
            id="one too many",
        ),
        pytest.param(
            (subset("0", "10.0.0.1", "10.0.0.2", "10.0.0.3"),),
            1,
            [1],
            3,
            (
                MirrorEvent(
                    "InvalidIPAddress",
                    "Skipped 1 invalid IP addresses when mirroring to EndpointSlices",
                ),
                MirrorEvent(
                    "TooManyAddressesToMirror",
                    "A max of 1 addresses can be mirrored to EndpointSlices per Endpoints subset. "
                    "3 addresses were skipped",
                ),
            ),
            id="both, and the second counts all",
        ),
        pytest.param(
            (
                subset("10.0.0.1", "10.0.0.2"),
                subset("10.0.1.1", "10.0.1.2", ports=(HTTPS,)),
            ),
            2,
            [2, 2],
            0,
            (),
            id="the limit is per subset",
        ),
        pytest.param(
            (subset("10.0.0.1", "10.0.0.2", "fd00::1"),),
            2,
            [2],
            1,
            (
                MirrorEvent(
                    "TooManyAddressesToMirror",
                    "A max of 2 addresses can be mirrored to EndpointSlices per Endpoints subset. "
                    "1 addresses were skipped",
                ),
            ),
            id="and for both families together",
        ),
    ],
)
def test_addresses_that_are_left_out(
    subsets: tuple[EndpointSubset, ...],
    limit: int,
    want_sizes: list[int],
    want_skipped: int,
    want_events: tuple[MirrorEvent, ...],
) -> None:
    """What cannot be mirrored is told, the rest is mirrored."""
    got = plan_mirroring(endpoints_of(*subsets), MANUAL, existing=(), max_per_subset=limit)
    assert [len(piece.endpoints) for piece in got.plan.create] == want_sizes
    assert (got.skipped, got.events) == (want_skipped, want_events)


TWO = endpoints_of(subset("10.0.0.1", "10.0.0.2"))


@pytest.mark.parametrize(
    ("source", "want_counts"),
    [
        pytest.param(
            endpoints_of(subset("10.0.0.1", "10.0.0.2", "10.0.0.3")), (1, 0, 0), id="added"
        ),
        pytest.param(endpoints_of(subset("10.0.0.1")), (0, 1, 0), id="removed"),
        pytest.param(
            endpoints_of(subset("10.0.0.1", not_ready=("10.0.0.2",))), (0, 0, 1), id="unready"
        ),
        pytest.param(endpoints_of(subset("10.0.0.8", "10.0.0.9")), (2, 2, 0), id="all replaced"),
        pytest.param(
            endpoints_of(subset("10.0.0.1", "10.0.0.2"), labels={"a": "b"}),
            (0, 0, 0),
            id="a label alone",
        ),
        pytest.param(
            endpoints_of(subset("10.0.0.1", "10.0.0.2"), annotations={"a": "b"}),
            (0, 0, 0),
            id="an annotation alone",
        ),
    ],
)
def test_a_change_rewrites_the_slice(source: Endpoints, want_counts: tuple[int, int, int]) -> None:
    """The slice keeps its name and says what the object says now."""
    existing = written(TWO)
    got = plan_mirroring(source, MANUAL, existing=existing)
    assert (got.plan.create, got.plan.delete, got.plan.unchanged) == ((), (), ())
    assert (got.plan.added, got.plan.removed, got.updated) == want_counts
    assert names(got.plan.update) == names(existing)
    after = apply_plan(existing, got.plan)
    assert said(after) == said(plan_mirroring(source, MANUAL, existing=()).plan.create)
    assert after[0].metadata.uid == existing[0].metadata.uid
    assert plan_mirroring(source, MANUAL, existing=after).plan.is_empty


@pytest.mark.parametrize(
    ("owners", "want_rewritten"),
    [
        pytest.param(
            (OwnerReference("v1", "Endpoints", "web", "uid-older", controller=True),),
            True,
            id="an older object of the same name",
        ),
        pytest.param(
            (
                OwnerReference("v1", "Service", "web", "uid-service"),
                OwnerReference("v1", "Endpoints", "web", "uid-older"),
            ),
            True,
            id="among other owners",
        ),
        pytest.param(
            (OwnerReference("v1", "Endpoints", "web", "uid-endpoints", controller=True),),
            False,
            id="this very object",
        ),
        pytest.param(
            (OwnerReference("v1", "Endpoints", "other", "uid-older"),),
            False,
            id="an object of another name",
        ),
        pytest.param((), False, id="no owner"),
    ],
)
def test_a_slice_of_a_deleted_object_is_taken_over(
    owners: tuple[OwnerReference, ...], want_rewritten: bool
) -> None:
    """A slice with the right endpoints but a deleted owner would be garbage collected."""
    (piece,) = written(TWO)
    existing = replace(piece, metadata=replace(piece.metadata, owner_references=owners))
    got = plan_mirroring(TWO, MANUAL, existing=(existing,))
    assert (got.plan.added, got.plan.removed, got.updated) == (0, 0, 0)
    if not want_rewritten:
        assert got.plan.is_empty
        return
    (updated,) = got.plan.update
    assert (got.plan.create, got.plan.delete, got.plan.unchanged) == ((), (), ())
    assert updated.metadata.name == piece.metadata.name
    assert updated.metadata.owner_references == piece.metadata.owner_references
    assert said([updated]) == said([piece])
    assert plan_mirroring(TWO, MANUAL, existing=apply_plan([existing], got.plan)).plan.is_empty


def test_annotations_that_are_not_copied_call_for_no_write() -> None:
    """The trigger time changes at every write of the object."""
    noisy = replace(
        TWO,
        metadata=replace(
            TWO.metadata,
            annotations={
                "endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"
            },
        ),
    )
    got = plan_mirroring(noisy, MANUAL, existing=written(TWO))
    assert got.plan.is_empty
    assert names(got.plan.unchanged) == names(written(TWO))


def test_a_family_that_vanishes_is_counted() -> None:
    """Its slice goes, because the ports are still there."""
    existing = written(endpoints_of(subset("10.0.0.1", "fd00::1")))
    got = plan_mirroring(endpoints_of(subset("10.0.0.1")), MANUAL, existing=existing)
    assert [piece.address_type for piece in got.plan.delete] == ["IPv6"]
    assert (got.plan.removed, len(got.plan.unchanged)) == (1, 1)


def test_all_but_one_slice_of_the_same_ports_go() -> None:
    """There is one slice per family and ports; the first by name stays."""
    (piece,) = written(TWO)
    twin = replace(piece, metadata=replace(piece.metadata, name="zzz", uid="uid-zzz"))
    got = plan_mirroring(TWO, MANUAL, existing=(twin, piece))
    assert (names(got.plan.unchanged), names(got.plan.delete)) == (names([piece]), ["zzz"])


def test_an_endpoint_twice_in_the_slice_is_put_right() -> None:
    """The second counts as removed."""
    (piece,) = written(TWO)
    doubled = replace(piece, endpoints=(*piece.endpoints, piece.endpoints[0]))
    got = plan_mirroring(TWO, MANUAL, existing=(doubled,))
    assert (got.plan.added, got.plan.removed) == (0, 1)
    assert said(got.plan.update) == said([piece])


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param(TWO, endpoints_of(subset("10.0.0.1", ports=(HTTPS,))), (0, 1, 0), id="a port"),
        pytest.param(
            TWO,
            endpoints_of(subset("10.0.0.1", ports=(HTTPS,)), subset("10.0.0.2", ports=(DNS,))),
            (1, 1, 0),
            id="one becomes two",
        ),
        pytest.param(
            endpoints_of(subset("10.0.0.1"), subset("10.0.0.2", ports=(DNS,))),
            endpoints_of(subset("10.0.0.1", ports=(HTTPS,))),
            (0, 1, 1),
            id="two become one",
        ),
        pytest.param(
            TWO,
            endpoints_of(subset("fd00::1", ports=(HTTPS,))),
            (1, 0, 1),
            id="another family is not recycled",
        ),
        pytest.param(TWO, endpoints_of(), (0, 0, 1), id="nothing to create"),
        pytest.param(endpoints_of(), TWO, (1, 0, 0), id="nothing to delete"),
        pytest.param(TWO, TWO, (0, 0, 0), id="nothing to do"),
    ],
)
def test_recycling(before: Endpoints, after: Endpoints, want: tuple[int, int, int]) -> None:
    """A slice to delete lends its name to one of its type to create."""
    existing = written(before)
    plan = plan_mirroring(after, MANUAL, existing=existing).plan
    assert (len(plan.create), len(plan.update), len(plan.delete)) == want
    done = apply_plan(existing, plan)
    fresh = plan_mirroring(after, MANUAL, existing=()).plan.create
    assert sorted(said(done), key=str) == sorted(said(fresh), key=str)


def test_a_dying_object_gets_no_new_slices() -> None:
    """What exists is still put right."""
    dying = endpoints_of(subset("10.0.0.1"), subset("10.0.0.9", ports=(DNS,)), deleted=True)
    got = plan_mirroring(dying, MANUAL, existing=written(TWO)).plan
    assert (got.create, len(got.update), got.delete) == ((), 1, ())


IPS = st.sampled_from(("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"))
SUBSETS = st.lists(
    st.builds(
        lambda ready, idle, ports: subset(*ready, not_ready=tuple(idle), ports=tuple(ports)),
        st.lists(IPS, max_size=3),
        st.lists(IPS, max_size=2),
        st.lists(st.sampled_from((HTTP, HTTPS, DNS)), unique=True, max_size=2),
    ),
    max_size=3,
)


@settings(deadline=None, max_examples=80)
@given(before=SUBSETS, after=SUBSETS)
def test_from_any_object_to_any_other(
    before: list[EndpointSubset], after: list[EndpointSubset]
) -> None:
    """One pass says what a first pass would say, and the next has nothing to do."""
    existing = written(endpoints_of(*before))
    source = endpoints_of(*after)
    done = apply_plan(existing, plan_mirroring(source, MANUAL, existing=existing).plan)
    assert sorted(said(done), key=str) == sorted(said(written(source)), key=str)
    assert plan_mirroring(source, MANUAL, existing=done).plan.is_empty
