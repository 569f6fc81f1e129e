"""A slice that was written anew costs what changed in it, and is planned as at a fresh look."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import (
    EndpointConditions,
    EndpointHints,
    EndpointSlice,
    ForZone,
)
from keepclose.model.workload import Pod
from keepclose.slices.endpoints import EndpointBuilder
from keepclose.slices.placement import Placement
from support.builders import endpoint_slice, node, pod, service

WEB = service()
NODE = node("n1", "zone-a")
BUILDER = EndpointBuilder(WEB, "IPv4")
PODS = 8
HINTS = (None, EndpointHints(for_zones=(ForZone("zone-a"),)))


def numbered(number: int, *, ready: bool) -> Pod:
    """Return a numbered pod."""
    return pod(f"p{number}", ip=f"10.0.0.{number + 1}", ready=ready)


def tell(placement: Placement, each: Pod) -> None:
    """Tell a placement of a pod."""
    desired = BUILDER.desired(each, NODE)
    assert desired is not None
    placement.add_pod(each.key, desired)


def holding(name: str, numbers: list[int]) -> EndpointSlice:
    """Return a slice that holds numbered pods, all ready."""
    built = [BUILDER.endpoint(numbered(number, ready=True), NODE) for number in numbers]
    return endpoint_slice(*[one for one in built if one is not None], name=name)


@st.composite
def versions(draw: st.DrawFn, piece: EndpointSlice) -> EndpointSlice:
    """Draw another version of a slice: other looks, order, or number of endpoints."""
    endpoints = list(piece.endpoints)
    if endpoints:
        place = draw(st.integers(0, len(endpoints) - 1))
        ready = draw(st.booleans())
        endpoints[place] = replace(
            endpoints[place],
            conditions=EndpointConditions(ready=ready, serving=ready, terminating=False),
            hints=draw(st.sampled_from(HINTS)),
        )
    match draw(st.sampled_from(("looks", "looks", "order", "fewer", "labels"))):
        case "order":
            endpoints.reverse()
        case "fewer":
            endpoints = endpoints[1:]
        case "labels":
            labels = {**piece.metadata.labels, "foreign": "label"}
            piece = replace(piece, metadata=replace(piece.metadata, labels=labels))
        case _:
            pass
    return replace(piece, endpoints=tuple(endpoints))


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_kept_placement_plans_like_a_fresh_one(data: st.DataObject) -> None:
    """Whatever comes in which order, with plans between, nothing is overlooked."""
    slices = {"s0": holding("s0", [0, 1, 2, 3]), "s1": holding("s1", [3, 4, 5])}
    pods = {number: numbered(number, ready=True) for number in range(PODS)}
    kept = Placement(WEB, "IPv4")
    for piece in slices.values():
        kept.observe(piece)
    for each in pods.values():
        tell(kept, each)
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            number = data.draw(st.integers(0, PODS - 1))
            pods[number] = numbered(number, ready=data.draw(st.booleans()))
            tell(kept, pods[number])
        else:
            name = data.draw(st.sampled_from(sorted(slices)))
            slices[name] = data.draw(versions(slices[name]))
            kept.observe(slices[name])
        fresh = Placement(WEB, "IPv4")
        for piece in slices.values():
            fresh.observe(piece)
        for each in pods.values():
            tell(fresh, each)
        assert kept.plan(max_endpoints=5) == fresh.plan(max_endpoints=5)


def test_a_version_with_other_looks_alone_leaves_the_other_endpoints_alone() -> None:
    """Once the write of a changed pod is seen, nothing is left to do and nothing is built anew."""
    placement = Placement(WEB, "IPv4")
    placement.observe(holding("s0", [0, 1, 2]))
    for number in range(3):
        tell(placement, numbered(number, ready=number != 1))
    (update,) = placement.plan().update
    placement.observe(update)
    plan = placement.plan()
    assert plan.is_empty
    assert plan.unchanged == (update,)
    assert plan.unchanged[0] is update
