"""The order of writes: no wanted endpoint is ever without a slice."""

from __future__ import annotations

from random import Random

from msgspec.structs import replace

from keepclose.controller.writes import SliceOperation, WriteOrder
from keepclose.model.endpointslice.types import EndpointPort, EndpointSlice
from keepclose.slices.packing import SlicePlan
from support.builders import endpoint, endpoint_slice


def piece(name: str, *numbers: int) -> EndpointSlice:
    """Return a slice with the endpoints of these numbers."""
    return endpoint_slice(*(endpoint(f"10.0.0.{number}") for number in numbers), name=name)


def addresses(one: EndpointSlice) -> set[str]:
    """Return what a slice holds."""
    return {found.addresses[0] for found in one.endpoints}


def run(
    plan: SlicePlan, present: list[EndpointSlice], *, failing: frozenset[int] = frozenset()
) -> tuple[list[tuple[str, str]], list[set[str]], dict[str, EndpointSlice]]:
    """Do the writes; return them, what was served after each, and what there is in the end."""
    stored = {one.metadata.name: one for one in present}
    order = WriteOrder(plan, stored)
    writes: list[tuple[str, str]] = []
    served: list[set[str]] = []
    while (write := order.next()) is not None:
        number = len(writes)
        name = write.endpoint_slice.metadata.name
        writes.append((write.operation.value, name))
        if number in failing:
            order.record_failure()
            continue
        if write.operation is SliceOperation.DELETE:
            del stored[name]
            order.record_done(write, None)
        else:
            if write.operation is SliceOperation.UPDATE:
                version = stored[name].metadata.resource_version
                assert write.endpoint_slice.metadata.resource_version == version
            meta = replace(write.endpoint_slice.metadata, resource_version=f"v{number}")
            stored[name] = replace(write.endpoint_slice, metadata=meta)
            order.record_done(write, stored[name])
        served.append(set().union(*(addresses(one) for one in stored.values())))
    return writes, served, stored


def test_creates_come_first_and_deletes_last() -> None:
    """Updates that remove nothing go before those that do, whatever the order of the plan."""
    plan = SlicePlan(
        create=(piece("new", 9),),
        update=(piece("shrinks", 1), piece("grows", 3, 4)),
        delete=(piece("old", 5),),
    )
    present = [piece("shrinks", 1, 2), piece("grows", 3), piece("old", 5)]
    writes, _, _ = run(plan, present)
    assert writes == [
        ("create", "new"),
        ("update", "grows"),
        ("update", "shrinks"),
        ("delete", "old"),
    ]


def test_an_endpoint_arrives_before_it_leaves() -> None:
    """Of two updates that remove something, the one that the other waits for goes first."""
    plan = SlicePlan(update=(piece("a", 1), piece("b", 2, 3)))
    writes, served, _ = run(plan, [piece("a", 1, 2), piece("b", 3, 4)])
    assert writes == [("update", "b"), ("update", "a")]
    assert all({"10.0.0.1", "10.0.0.2", "10.0.0.3"} <= now for now in served)


def test_slices_that_swap_endpoints_are_bridged() -> None:
    """One of the two first holds the endpoints of both; one write more, and nothing is away."""
    plan = SlicePlan(update=(piece("a", 2), piece("b", 1)))
    writes, served, stored = run(plan, [piece("a", 1), piece("b", 2)])
    assert writes == [("update", "a"), ("update", "b"), ("update", "a")]
    assert all({"10.0.0.1", "10.0.0.2"} == now for now in served)
    assert [addresses(stored[name]) for name in "ab"] == [{"10.0.0.2"}, {"10.0.0.1"}]


def test_slices_of_other_ports_are_written_without_a_bridge() -> None:
    """What cannot be bridged is still written."""
    ports = (EndpointPort(name="http", protocol="TCP", port=9999),)
    plan = SlicePlan(
        update=(replace(piece("a", 2), ports=ports), replace(piece("b", 1), ports=ports))
    )
    writes, _, stored = run(plan, [piece("a", 1), piece("b", 2)])
    assert writes == [("update", "a"), ("update", "b")]
    assert stored["a"].ports == ports


def test_after_a_failed_create_nothing_that_it_should_hold_is_removed() -> None:
    """The slice from which an endpoint should have moved keeps it; the rest of the plan goes on."""
    plan = SlicePlan(
        create=(piece("new", 2),), update=(piece("a", 1), piece("b", 3)), delete=(piece("c", 2),)
    )
    present = [piece("a", 1, 2), piece("b", 3, 4), piece("c", 2)]
    writes, served, stored = run(plan, present, failing=frozenset({0}))
    assert writes == [("create", "new"), ("update", "a"), ("update", "b")]
    assert served[-1] == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}
    assert set(stored) == {"a", "b", "c"}


def test_no_wanted_endpoint_is_ever_away() -> None:
    """For random plans, with and without failures, what was served and is wanted stays served."""
    random = Random(11)
    for _ in range(500):
        endpoints = list(range(1, 13))
        before = {name: random.sample(endpoints, random.randrange(1, 6)) for name in "abcd"}
        seats = {n: random.choice("abcdef") for n in endpoints if random.random() < 0.9}
        after = {name: [n for n, seat in seats.items() if seat == name] for name in "abcdef"}
        plan = SlicePlan(
            create=tuple(piece(name, *after[name]) for name in "ef" if after[name]),
            update=tuple(
                piece(name, *after[name])
                for name in "abcd"
                if after[name] and set(after[name]) != set(before[name])
            ),
            delete=tuple(piece(name, *before[name]) for name in "abcd" if not after[name]),
        )
        failing = frozenset({random.randrange(6)} if random.random() < 0.5 else ())
        had = {f"10.0.0.{n}" for found in before.values() for n in found}
        want = {f"10.0.0.{n}" for n in seats}
        present = [piece(name, *found) for name, found in before.items()]
        _, served, stored = run(plan, present, failing=failing)
        assert all(had & want <= now for now in served)
        if not failing:
            assert set().union(*(addresses(one) for one in stored.values())) == want
