"""What holds of every placement, whatever existed before and whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointPort, EndpointSlice
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workload import Container, ContainerPort, Pod
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.endpoints import EndpointBuilder
from keepclose.slices.packing import SlicePlan, add_placeholder, finish_plan
from keepclose.slices.placement import Placement
from support.builders import endpoint, endpoint_slice, node, pod, service

WEB = service(ports=(ServicePort(name="http", protocol="TCP", port=80, target_port="http"),))
NODES = {"n1": node("n1", "zone-a"), "n2": node("n2", "zone-b")}
BUILDER = EndpointBuilder(WEB, "IPv4")
ZONE = "endpointslice.kubernetes.io/for-zone"
PODS = 12
ZONES = ("", "zone-a", "zone-b")


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    """Draw one of a few pods in one of its states."""
    number = draw(st.integers(0, PODS - 1))
    base = pod(
        f"p{number:02}",
        draw(st.sampled_from(("n1", "n2", "gone"))),
        ip=f"10.0.0.{number + draw(st.sampled_from((1, 1, 1, 101)))}",
        ready=draw(st.booleans()),
        terminating=draw(st.booleans()),
    )
    port = draw(st.sampled_from((8080, 8080, 8081)))
    ports = (ContainerPort(name="http", container_port=port),)
    return replace(base, spec=replace(base.spec, containers=(Container(ports=ports),)))


@st.composite
def slices(draw: st.DrawFn) -> EndpointSlice:
    """Draw a slice in any shape that one may be found in."""
    endpoints: list[Endpoint] = []
    for each in draw(st.lists(pods(), max_size=6)):
        built = BUILDER.endpoint(each, NODES.get(each.spec.node_name))
        assert built is not None
        endpoints.append(built)
    if draw(st.booleans()):
        endpoints.insert(0, endpoint("10.9.9.9"))
    labels = draw(st.sampled_from(({}, {}, {"foreign": "label"}, {ZONE: "zone-a"}, {ZONE: ""})))
    port = draw(st.sampled_from((8080, 8080, 8081, 1)))
    return endpoint_slice(
        *endpoints,
        name=f"s{draw(st.integers(0, 5))}",
        ports=(EndpointPort(name="http", protocol="TCP", port=port),),
        labels=labels,
        owner_uid=draw(st.sampled_from(("uid-web", "uid-web", "uid-web", "uid-old"))),
    )


def by_name(found: Iterable[EndpointSlice]) -> dict[str, EndpointSlice]:
    """Return slices by name, the last of each name."""
    return {piece.metadata.name: piece for piece in found}


def tell(placement: Placement, each: Pod) -> None:
    """Tell a placement of a pod."""
    desired = BUILDER.desired(each, NODES.get(each.spec.node_name))
    assert desired is not None
    placement.add_pod(each.key, desired)


def fresh_placement(
    found: Iterable[EndpointSlice],
    wanted: Iterable[Pod],
    zones: dict[str, str] | None = None,
    *,
    owner: Service = WEB,
) -> Placement:
    """Return a placement that was told everything at once."""
    placement = Placement(owner, "IPv4")
    for piece in sorted(found, key=lambda piece: piece.metadata.name):
        placement.observe(piece)
    for each in wanted:
        tell(placement, each)
        placement.regroup(each.key, (zones or {}).get(each.metadata.name, ""))
    return placement


def finished(placement: Placement, limit: int) -> SlicePlan:
    """Return the plan as it would be written."""
    plan = add_placeholder(placement.plan(max_endpoints=limit), WEB, address_type="IPv4")
    return finish_plan(plan, WEB)


def seen(found: Iterable[EndpointSlice]) -> Counter[tuple[str, int | None, str]]:
    """Count (pod, port, zone of the slice) over all endpoints; a stranger has the pod ""."""
    return Counter(
        (
            "" if each.target_ref is None else each.target_ref.name,
            piece.ports[0].port if piece.ports else None,
            piece.metadata.labels.get(ZONE, ""),
        )
        for piece in found
        for each in piece.endpoints
    )


def asked(wanted: Iterable[Pod], zones: dict[str, str]) -> Counter[tuple[str, int | None, str]]:
    """Count what the pods ask for, in the same form."""
    return Counter(
        (
            each.metadata.name,
            each.spec.containers[0].ports[0].container_port,
            zones.get(each.metadata.name, ""),
        )
        for each in wanted
        if each.spec.node_name in NODES
    )


POPULATION = st.lists(pods(), max_size=PODS, unique_by=lambda each: each.metadata.name)
FOUND = st.lists(slices(), max_size=5).map(lambda drawn: list(by_name(drawn).values()))
ASSIGNED = st.dictionaries(
    st.integers(0, PODS - 1).map(lambda number: f"p{number:02}"), st.sampled_from(ZONES)
)


@settings(deadline=None, max_examples=100)
@given(found=FOUND, wanted=POPULATION, zones=ASSIGNED, limit=st.integers(1, 6))
def test_any_state_becomes_exactly_the_desired_one_and_stays(
    found: list[EndpointSlice], wanted: list[Pod], zones: dict[str, str], limit: int
) -> None:
    """One pass leaves every wanted endpoint once, as built, and the next has nothing to do."""
    placement = fresh_placement(found, wanted, zones)
    after = apply_plan(found, finished(placement, limit))
    assert seen(after) == asked(wanted, zones)
    built = {each.key: placement.endpoint(each.key) for each in wanted}
    fresh = {each.addresses: each for each in built.values() if each is not None}
    for piece in after:
        for each in piece.endpoints:
            assert replace(each, hints=None) == fresh[each.addresses]
    assert after
    assert finished(fresh_placement(after, wanted, zones), limit).is_empty


@settings(deadline=None, max_examples=60)
@given(found=FOUND, wanted=POPULATION, limit=st.integers(1, 6))
def test_writes_are_few(found: list[EndpointSlice], wanted: list[Pod], limit: int) -> None:
    """A slice is in one list only, creations obey the limit, counts fit the endpoints."""
    plan = fresh_placement(found, wanted).plan(max_endpoints=limit)
    names = [piece.metadata.name for piece in (*plan.update, *plan.delete, *plan.unchanged)]
    assert sorted(names) == sorted(by_name(found))
    assert all(0 < len(piece.endpoints) <= limit for piece in plan.create)
    old = by_name(found)
    assert plan.unchanged == tuple(old[piece.metadata.name] for piece in plan.unchanged)


STEPS = st.lists(
    st.one_of(
        pods(),
        slices(),
        st.integers(0, PODS - 1).map(lambda number: ("remove", f"p{number:02}")),
        st.integers(0, 5).map(lambda number: ("forget", f"s{number}")),
        st.tuples(
            st.just("regroup"),
            st.integers(0, PODS - 1).map(lambda number: f"p{number:02}"),
            st.sampled_from(ZONES),
        ),
        st.just(("write", "")),
    ),
    max_size=14,
)


@settings(deadline=None, max_examples=100)
@given(found=FOUND, wanted=POPULATION, steps=STEPS, limit=st.integers(1, 5))
def test_a_kept_placement_plans_what_a_fresh_one_plans(
    found: list[EndpointSlice],
    wanted: list[Pod],
    steps: list[Pod | EndpointSlice | tuple[str, ...]],
    limit: int,
) -> None:
    """After any sequence of changes and writes both give the same plan, and again the same."""
    placement = fresh_placement(found, wanted)
    current = by_name(found)
    population = {each.metadata.name: each for each in wanted}
    zones: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Pod):
            population[step.metadata.name] = step
            tell(placement, step)
        elif isinstance(step, EndpointSlice):
            current[step.metadata.name] = step
            placement.observe(step)
        elif step[0] == "remove":
            gone = population.pop(step[1], pod(step[1]))
            zones.pop(step[1], None)
            placement.remove_pod(gone.key)
        elif step[0] == "forget":
            current.pop(step[1], None)
            placement.forget(step[1])
        elif step[0] == "regroup" and step[1] in population:
            zones[step[1]] = step[2]
            placement.regroup(population[step[1]].key, step[2])
        elif step[0] == "write":
            after = by_name(apply_plan(current.values(), finished(placement, limit)))
            for name in current.keys() - after.keys():
                placement.forget(name)
            for piece in after.values():
                placement.observe(piece)
            current = after
        scratch = fresh_placement(current.values(), population.values(), zones)
        plan = placement.plan(max_endpoints=limit)
        assert plan == scratch.plan(max_endpoints=limit)
        assert plan == placement.plan(max_endpoints=limit)
        assert placement.errors == scratch.errors
