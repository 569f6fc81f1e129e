"""Which endpoint sits in which slice, kept up to date one change at a time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointHints, EndpointPort, EndpointSlice, ForZone
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Pod
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.endpoints import DesiredEndpoint, EndpointBuilder
from keepclose.slices.placement import Placement, SlicePlan
from support.builders import endpoint, endpoint_slice, node, pod, service

WEB = service()
NODE = node("n1", "zone-a")
BUILDER = EndpointBuilder(WEB, "IPv4")
ZONE = "endpointslice.kubernetes.io/for-zone"
HINTS = EndpointHints(for_zones=(ForZone("zone-a"),))


def numbered(number: int, *, ready: bool = True) -> Pod:
    """Return a numbered pod."""
    return pod(f"p{number:03}", ip=f"10.0.{number // 250}.{number % 250 + 1}", ready=ready)


def key(number: int) -> NamespacedName:
    """Return the key of a numbered pod."""
    return NamespacedName("default", f"p{number:03}")


def desired(number: int, *, ready: bool = True) -> DesiredEndpoint:
    """Return what a numbered pod asks for."""
    wanted = BUILDER.desired(numbered(number, ready=ready), NODE)
    assert wanted is not None
    return wanted


def holding(name: str, *numbers: int, zone: str = "", owner_uid: str = "uid-web") -> EndpointSlice:
    """Return an existing slice that holds numbered pods, with hints on every endpoint."""
    endpoints = []
    for number in numbers:
        built = desired(number).endpoint
        assert built is not None
        endpoints.append(replace(built, hints=HINTS))
    return endpoint_slice(
        *endpoints, name=name, labels={ZONE: zone} if zone else {}, owner_uid=owner_uid
    )


def placement_of(
    slices: Iterable[EndpointSlice], numbers: Iterable[int], **zones: str
) -> Placement:
    """Return a placement of slices and numbered pods; zones are given as p000="zone-a"."""
    placement = Placement(WEB, "IPv4")
    for piece in slices:
        placement.observe(piece)
    for number in numbers:
        placement.add_pod(key(number), desired(number))
    for name, zone in zones.items():
        placement.regroup(NamespacedName("default", name), zone)
    return placement


def contents(slices: Iterable[EndpointSlice]) -> dict[str, list[str]]:
    """Return the pods' names in each slice, by the slice's name or its prefix."""
    return {
        piece.metadata.name or piece.metadata.generate_name: [
            each.target_ref.name for each in piece.endpoints if each.target_ref is not None
        ]
        for piece in slices
    }


def names(slices: Iterable[EndpointSlice]) -> list[str]:
    """Return the names of slices."""
    return [piece.metadata.name for piece in slices]


def test_kept_endpoints_stay_in_order_and_are_fresh_but_for_their_hints() -> None:
    """Hints travel along for those who decide on them, whether the slice is written or not."""
    placement = placement_of([holding("a", 2, 0, 1), holding("b", 5)], (0, 2, 5))
    placement.add_pod(key(2), desired(2, ready=False))
    plan = placement.plan()
    assert contents(plan.update) == {"a": ["p002", "p000"]}
    assert [each.conditions.ready for each in plan.update[0].endpoints] == [False, True]
    assert [each.hints for each in plan.update[0].endpoints] == [HINTS, HINTS]
    assert plan.unchanged == (holding("b", 5),)
    assert (plan.added, plan.removed) == (0, 1)


def test_an_unchanged_slice_that_is_filled_keeps_its_hints_too() -> None:
    """Only what comes in has none yet."""
    plan = placement_of([holding("a", 0)], (0, 1)).plan()
    assert contents(plan.update) == {"a": ["p000", "p001"]}
    assert [each.hints for each in plan.update[0].endpoints] == [HINTS, None]


def test_an_update_keeps_the_metadata() -> None:
    """Name, uid, versions and annotations are the slice's; reserved labels are put right."""
    piece = holding("a", 0, 1)
    meta = replace(
        piece.metadata,
        resource_version="5",
        generation=4,
        annotations={"mine": "yes"},
        labels={**piece.metadata.labels, "service.kubernetes.io/headless": ""},
    )
    (updated,) = placement_of([replace(piece, metadata=meta)], (0,)).plan().update
    assert updated.metadata == replace(meta, labels=piece.metadata.labels)


def test_a_slice_that_keeps_nothing_is_deleted() -> None:
    """And what is left over is created, for others to recycle."""
    plan = placement_of([holding("a", 0, 1)], (2, 3)).plan()
    assert names(plan.delete) == ["a"]
    assert contents(plan.create) == {"web-": ["p002", "p003"]}
    assert (plan.added, plan.removed) == (2, 2)


def test_leftovers_are_placed_in_order_of_their_identity() -> None:
    """However they were told, the plan is the same."""
    forwards = placement_of((), range(7)).plan(max_endpoints=3)
    backwards = placement_of((), reversed(range(7))).plan(max_endpoints=3)
    assert forwards == backwards
    assert [next(iter(contents([piece]).values())) for piece in forwards.create] == [
        ["p000", "p001", "p002"],
        ["p003", "p004", "p005"],
        ["p006"],
    ]


def test_an_endpoint_in_two_slices_stays_in_the_first_by_name() -> None:
    """The order in which they were observed is nothing."""
    for order in (("a", "b"), ("b", "a")):
        pieces = {"a": holding("a", 0, 1), "b": holding("b", 1, 2)}
        plan = placement_of([pieces[name] for name in order], (0, 1, 2)).plan()
        assert contents(plan.update) == {"b": ["p002"]}
        assert names(plan.unchanged) == ["a"]
        assert plan.removed == 1


def test_an_endpoint_twice_in_one_slice_is_kept_once() -> None:
    """The second is removed, and the hints of the first stay."""
    piece = holding("a", 0, 1, 0)
    bare = replace(piece.endpoints[2], hints=None)
    plan = placement_of([replace(piece, endpoints=(*piece.endpoints[:2], bare))], (0, 1)).plan()
    assert contents(plan.update) == {"a": ["p000", "p001"]}
    assert [each.hints for each in plan.update[0].endpoints] == [HINTS, HINTS]
    assert plan.removed == 1


def test_the_duplicate_takes_over_when_the_first_slice_goes() -> None:
    """Forgetting or moving the keeper makes the other slice the keeper."""
    placement = placement_of([holding("a", 0), holding("b", 0)], (0,))
    assert (names(placement.plan().unchanged), names(placement.plan().delete)) == (["a"], ["b"])
    placement.forget("a")
    assert (names(placement.plan().unchanged), names(placement.plan().delete)) == (["b"], [])
    placement.observe(holding("a", 0))
    assert (names(placement.plan().unchanged), names(placement.plan().delete)) == (["a"], ["b"])
    placement.observe(holding("a", 7))
    assert (names(placement.plan().unchanged), names(placement.plan().delete)) == (["b"], ["a"])


def test_slices_of_others_are_deleted_and_keep_nothing() -> None:
    """Their endpoints are placed as if the slices did not exist."""
    plan = placement_of([holding("a", 0, owner_uid="older"), holding("b", 1)], (0, 1)).plan()
    assert names(plan.delete) == ["a"]
    assert contents(plan.update) == {"b": ["p001", "p000"]}
    assert plan.removed == 0


def test_a_new_service_of_the_name_disowns_the_slices() -> None:
    """Serving another uid turns everything round, and back again."""
    placement = placement_of([holding("a", 0, 1)], (0, 1))
    assert placement.plan().is_empty
    placement.set_service(replace(WEB, metadata=replace(WEB.metadata, uid="uid-new")))
    plan = placement.plan()
    assert (names(plan.delete), contents(plan.create)) == (["a"], {"web-": ["p000", "p001"]})
    assert plan.create[0].metadata.owner_references[0].uid == "uid-new"
    placement.set_service(WEB)
    assert placement.plan().is_empty


def test_new_labels_of_the_service_reach_the_slices() -> None:
    """A new version of the Service has its labels compared again."""
    placement = placement_of([holding("a", 0)], (0,))
    assert placement.plan().is_empty
    placement.set_service(replace(WEB, metadata=replace(WEB.metadata, labels={"team": "blue"})))
    (updated,) = placement.plan().update
    assert updated.metadata.labels["team"] == "blue"
    assert updated.endpoints == holding("a", 0).endpoints


def test_groups_without_wanted_ports_are_deleted_uncounted() -> None:
    """Nobody wants the ports, so the slice goes whole."""
    other = replace(holding("a", 0), ports=(EndpointPort("http", "TCP", 1),))
    plan = placement_of([other], (0,)).plan()
    assert (names(plan.delete), contents(plan.create)) == (["a"], {"web-": ["p000"]})
    assert (plan.added, plan.removed) == (1, 0)


def test_ports_in_another_order_are_the_same_ports() -> None:
    """A slice is not rewritten for the order of its ports."""
    ports = (EndpointPort("a", "TCP", 1), EndpointPort("b", "TCP", 2))
    wanted = replace(desired(0), ports=ports, port_key=(("a", "TCP", 1, ""), ("b", "TCP", 2, "")))
    placement = Placement(WEB, "IPv4")
    placement.observe(replace(holding("x", 0), ports=ports[::-1]))
    placement.add_pod(key(0), wanted)
    assert placement.plan().is_empty


def test_an_empty_slice_whose_ports_are_wanted_stays() -> None:
    """Even when no pod has an address of the family: the ports alone keep it."""
    placement = Placement(WEB, "IPv6")
    builder = EndpointBuilder(WEB, "IPv6")
    asked = builder.desired(pod(), NODE)
    assert asked is not None
    assert asked.endpoint is None
    placement.observe(endpoint_slice(name="a", address_type="IPv6"))
    assert names(placement.plan().delete) == ["a"]
    placement.add_pod(key(1), asked)
    assert placement.plan() == SlicePlan(unchanged=(endpoint_slice(name="a", address_type="IPv6"),))
    placement.remove_pod(key(1))
    assert names(placement.plan().delete) == ["a"]


def test_an_empty_slice_takes_leftovers() -> None:
    """It is an unchanged slice like any other."""
    plan = placement_of([endpoint_slice(name="a")], (0, 1)).plan()
    assert (contents(plan.update), plan.create) == ({"a": ["p000", "p001"]}, ())


def test_a_slice_that_is_being_deleted_is_not_counted_on() -> None:
    """It is forgotten, and its endpoints are placed elsewhere."""
    piece = holding("a", 0)
    placement = placement_of([piece], (0,))
    dying = replace(
        piece, metadata=replace(piece.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    placement.observe(dying)
    assert placement.slices == ()
    assert contents(placement.plan().create) == {"web-": ["p000"]}


def test_zone_groups_never_mix() -> None:
    """Endpoints go only into slices meant for their zone, and new slices say the zone."""
    slices = [holding("a", 0, zone="zone-a"), holding("b", 1, zone="zone-b"), holding("c", 2)]
    placement = placement_of(
        slices, range(6), p000="zone-a", p001="zone-b", p003="zone-a", p004="zone-c", p005="zone-c"
    )
    plan = placement.plan()
    assert contents(plan.update) == {"a": ["p000", "p003"]}
    assert plan.update[0].metadata.labels[ZONE] == "zone-a"
    assert names(plan.unchanged) == ["b", "c"]
    assert contents(plan.create) == {"web-": ["p004", "p005"]}
    assert plan.create[0].metadata.labels[ZONE] == "zone-c"


def test_regrouping_moves_an_endpoint() -> None:
    """It leaves its slice and enters one of its new group; going back restores all."""
    placement = placement_of([holding("a", 0, 1)], (0, 1))
    placement.regroup(key(1), "zone-b")
    plan = placement.plan()
    assert contents(plan.update) == {"a": ["p000"]}
    assert contents(plan.create) == {"web-": ["p001"]}
    assert placement.grouped() == frozenset({key(1)})
    placement.regroup(key(1), "")
    assert placement.plan().is_empty
    assert placement.grouped() == frozenset()


def test_a_zone_without_endpoints_has_no_slices() -> None:
    """Its slices go, also empty ones, though the ports are wanted elsewhere."""
    empty = endpoint_slice(name="b", labels={ZONE: "zone-b"})
    placement = placement_of([holding("a", 0, zone="zone-a"), empty], (0,), p000="zone-a")
    plan = placement.plan()
    assert (names(plan.unchanged), names(plan.delete)) == (["a"], ["b"])


def test_a_zone_that_lost_its_last_endpoint_goes_uncounted() -> None:
    """As for ports that nobody wants, its slices are deleted whole."""
    placement = placement_of([holding("a", 0, zone="zone-a")], (0,), p000="zone-a")
    assert placement.plan().is_empty
    placement.regroup(key(0), "zone-b")
    plan = placement.plan()
    assert (names(plan.delete), plan.added, plan.removed) == (["a"], 1, 0)


def test_a_pod_keeps_its_zone_when_it_changes_and_loses_it_when_it_goes() -> None:
    """Zones are assigned from outside, also before the pod is known."""
    placement = Placement(WEB, "IPv4")
    placement.regroup(key(0), "zone-a")
    placement.add_pod(key(0), desired(0))
    placement.add_pod(key(0), desired(0, ready=False))
    assert [zone for _, _, zone in placement.endpoints()] == ["zone-a"]
    placement.remove_pod(key(0))
    placement.add_pod(key(0), desired(0))
    assert [zone for _, _, zone in placement.endpoints()] == [""]


def test_what_can_be_asked() -> None:
    """Endpoints by pod, the zone as written, and whether slices are divided."""
    placement = placement_of([holding("a", 0, zone="zone-a"), holding("b", 1)], (0, 1, 2))
    assert placement.endpoint(key(0)) == desired(0).endpoint
    assert placement.endpoint(key(9)) is None
    assert [placement.written_zone(key(n)) for n in (0, 1, 2, 9)] == ["zone-a", "", "", ""]
    assert placement.is_divided
    assert names(placement.slices) == ["a", "b"]
    placement.forget("a")
    assert not placement.is_divided


def test_slices_of_others_divide_nothing() -> None:
    """The labels of an older Service's slices are no memory of this one."""
    piece = holding("a", 0, zone="zone-a", owner_uid="older")
    placement = placement_of([piece], (0,))
    assert not placement.is_divided
    assert placement.written_zone(key(0)) == ""


def test_errors_come_and_go_with_their_pods() -> None:
    """They are told in the order of the pods' names."""
    placement = Placement(WEB, "IPv4")
    for number in (2, 1):
        failed = BUILDER.desired(numbered(number), None)
        assert failed is not None
        placement.add_pod(key(number), failed)
    text = "skipping Pod {} for Service default/web: Node n1 Not Found"
    assert placement.errors == (text.format("p001"), text.format("p002"))
    placement.add_pod(key(1), desired(1))
    placement.remove_pod(key(2))
    assert not placement.errors


def test_planning_twice_gives_the_same() -> None:
    """A plan alters nothing."""
    placement = placement_of([holding("a", 0, 1, 9), holding("b", 1, 2)], range(8))
    assert placement.plan(max_endpoints=4) == placement.plan(max_endpoints=4)
    assert placement.slices == (holding("a", 0, 1, 9), holding("b", 1, 2))


def test_only_the_slice_of_a_changed_pod_is_looked_at() -> None:
    """What was worked out about other slices is used again, to the very object."""
    slices = apply_plan((), placement_of((), range(500)).plan())
    placement = placement_of(slices, range(500))
    assert placement.plan().is_empty
    before = {name: held.verdict for name, held in placement._slices.items()}
    placement.add_pod(key(123), desired(123, ready=False))
    plan = placement.plan()
    after = {name: held.verdict for name, held in placement._slices.items()}
    assert [name for name in after if after[name] is not before[name]] == names(plan.update)
    assert len(plan.update) == 1
    assert not placement._unsettled


def test_a_pod_that_asks_for_the_same_again_is_no_change() -> None:
    """Nothing is looked at again."""
    placement = placement_of([holding("a", 0)], (0,))
    placement.plan()
    verdict = placement._slices["a"].verdict
    placement.add_pod(key(0), desired(0))
    assert placement._slices["a"].verdict is verdict


def test_a_changed_address_moves_nothing_else() -> None:
    """The old endpoint of the pod goes, the new one takes its place in the slice."""
    placement = placement_of([holding("a", 0, 1)], (0, 1))
    moved = BUILDER.desired(pod("p000", ip="10.7.7.7"), NODE)
    assert moved is not None
    placement.add_pod(key(0), moved)
    plan = placement.plan()
    assert [each.addresses for each in plan.update[0].endpoints] == [("10.0.0.2",), ("10.7.7.7",)]
    assert (plan.added, plan.removed) == (1, 1)


def test_unknown_names_do_no_harm() -> None:
    """Forgetting and unwanting what is not there changes nothing."""
    placement = placement_of([holding("a", 0)], (0,))
    placement.forget("unknown")
    placement.remove_pod(key(9))
    placement.regroup(key(9), "")
    assert placement.plan() == SlicePlan(unchanged=(holding("a", 0),))


def test_an_endpoint_without_a_pod_is_removed() -> None:
    """A slice may hold anything; what no pod asks for goes."""
    piece = holding("a", 0)
    foreign = replace(piece, endpoints=(endpoint("10.9.9.9"), *piece.endpoints))
    plan = placement_of([foreign], (0,)).plan()
    assert contents(plan.update) == {"a": ["p000"]}
    assert len(plan.update[0].endpoints) == 1


@pytest.mark.parametrize("managed_by", ["endpointslice-controller.k8s.io", "keepclose.dev"])
def test_slices_carry_the_name_of_the_controller(managed_by: str) -> None:
    """Created slices are signed by whoever places them."""
    placement = Placement(WEB, "IPv4", managed_by=managed_by)
    placement.add_pod(key(0), desired(0))
    (created,) = placement.plan().create
    assert created.metadata.labels["endpointslice.kubernetes.io/managed-by"] == managed_by
