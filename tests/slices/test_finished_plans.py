"""The last touches on a plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.slices.packing import (
    SlicePlan,
    add_placeholder,
    finish_plan,
    take_over,
    with_trigger_time,
)
from keepclose.slices.slice_metadata import new_slice, placeholder
from support.builders import endpoint, endpoint_slice, service

TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
TIME = "2026-01-02T03:04:05Z"
WEB = service()


def fresh(number: int, address_type: str = "IPv4") -> EndpointSlice:
    """Return a slice to create with one numbered endpoint."""
    return new_slice(WEB, address_type=address_type, endpoints=(endpoint(f"10.0.0.{number}"),))


def existing(name: str, *, owner_uid: str = "uid-web", address_type: str = "IPv4") -> EndpointSlice:
    """Return a slice to delete."""
    return endpoint_slice(
        endpoint("10.9.9.9"), name=name, owner_uid=owner_uid, address_type=address_type
    )


EMPTY = placeholder(WEB, address_type="IPv4")
NAMED_EMPTY = replace(EMPTY, metadata=replace(EMPTY.metadata, name="a", generate_name=""))


@pytest.mark.parametrize(
    ("plan", "want"),
    [
        pytest.param(SlicePlan(), SlicePlan(create=(EMPTY,)), id="nothing exists"),
        pytest.param(
            SlicePlan(delete=(existing("a"), existing("b"))),
            SlicePlan(delete=(existing("a"), existing("b")), create=(EMPTY,)),
            id="everything goes",
        ),
        pytest.param(
            SlicePlan(delete=(NAMED_EMPTY,)),
            SlicePlan(unchanged=(NAMED_EMPTY,)),
            id="the placeholder itself would go",
        ),
        pytest.param(
            SlicePlan(delete=(NAMED_EMPTY, existing("b"))),
            SlicePlan(delete=(NAMED_EMPTY, existing("b")), create=(EMPTY,)),
            id="the placeholder and another would go",
        ),
        pytest.param(
            SlicePlan(delete=(existing("a"),), create=(fresh(1),)),
            SlicePlan(delete=(existing("a"),), create=(fresh(1),)),
            id="something is created",
        ),
        pytest.param(
            SlicePlan(delete=(existing("a"),), update=(existing("b"),)),
            SlicePlan(delete=(existing("a"),), update=(existing("b"),)),
            id="something is updated",
        ),
        pytest.param(
            SlicePlan(delete=(existing("a"),), unchanged=(existing("b"),)),
            SlicePlan(delete=(existing("a"),), unchanged=(existing("b"),)),
            id="something stays",
        ),
    ],
)
def test_add_placeholder(plan: SlicePlan, want: SlicePlan) -> None:
    """A plan that would leave no slice gets one, unless the right one is there."""
    assert add_placeholder(plan, WEB, address_type="IPv4") == want


@pytest.mark.parametrize(
    ("create", "delete", "want_create", "want_update", "want_delete"),
    [
        pytest.param((1, 2), (), [1, 2], [], [], id="nothing to recycle"),
        pytest.param((), ("a",), [], [], ["a"], id="nothing to create"),
        pytest.param((1,), ("a",), [], [("a", 1)], [], id="one becomes the other"),
        pytest.param(
            (1, 2, 3), ("a",), [1, 2], [("a", 3)], [], id="the last creation takes the deletion"
        ),
        pytest.param(
            (1,), ("a", "b"), [], [("a", 1)], ["b"], id="the first deletion takes the creation"
        ),
        pytest.param((1, 2), ("a", "b"), [], [("a", 2), ("b", 1)], [], id="two and two, crosswise"),
        pytest.param((1,), ("old",), [1], [], ["old"], id="an older Service's slice just goes"),
        pytest.param((1,), ("old", "b"), [], [("b", 1)], ["old"], id="and is skipped"),
        pytest.param((1,), ("six",), [1], [], ["six"], id="another address type just goes"),
    ],
)
def test_recycling(
    create: tuple[int, ...],
    delete: tuple[str, ...],
    want_create: list[int],
    want_update: list[tuple[str, int]],
    want_delete: list[str],
) -> None:
    """A slice to delete lends its name to one to create."""
    lenders = {
        "a": existing("a"),
        "b": existing("b"),
        "old": existing("old", owner_uid="uid-older"),
        "six": existing("six", address_type="IPv6"),
    }
    plan = SlicePlan(
        create=tuple(fresh(number) for number in create),
        update=(existing("z"),),
        delete=tuple(lenders[name] for name in delete),
    )
    done = finish_plan(plan, WEB)
    assert done.create == tuple(fresh(number) for number in want_create)
    assert done.update == (
        existing("z"),
        *(take_over(fresh(number), lenders[name]) for name, number in want_update),
    )
    assert done.delete == tuple(lenders[name] for name in want_delete)


def test_what_is_taken_over() -> None:
    """The identity is the old slice's, everything else the new one's."""
    old = replace(
        endpoint_slice(name="a", labels={"x": "y"}, annotations={"mine": "yes"}),
        metadata=replace(
            endpoint_slice(name="a").metadata,
            resource_version="7",
            generation=3,
            creation_timestamp=TIME,
        ),
    )
    got = take_over(fresh(1), old)
    assert got.endpoints == fresh(1).endpoints
    assert got.metadata == replace(
        fresh(1).metadata,
        name="a",
        generate_name="",
        uid="uid-a",
        resource_version="7",
        generation=3,
        creation_timestamp=TIME,
    )


@pytest.mark.parametrize(
    ("present", "trigger_time", "want"),
    [
        pytest.param({}, "", {}, id="none and none"),
        pytest.param({}, TIME, {TRIGGER: TIME}, id="set"),
        pytest.param({TRIGGER: "old", "a": "b"}, TIME, {"a": "b", TRIGGER: TIME}, id="replaced"),
        pytest.param({TRIGGER: "old", "a": "b"}, "", {"a": "b"}, id="removed"),
        pytest.param({TRIGGER: TIME}, TIME, {TRIGGER: TIME}, id="right already"),
        pytest.param({TRIGGER: ""}, "", {}, id="an empty one is removed"),
    ],
)
def test_with_trigger_time(
    present: dict[str, str], trigger_time: str, want: dict[str, str]
) -> None:
    """The annotation says when the change was triggered; other annotations stay."""
    got = with_trigger_time(endpoint_slice(annotations=present), trigger_time)
    assert got == endpoint_slice(annotations=want)


def test_all_writes_carry_the_trigger_time() -> None:
    """Created and updated slices do; unchanged ones are not touched."""
    plan = SlicePlan(create=(fresh(1),), update=(existing("a"),), unchanged=(existing("b"),))
    done = finish_plan(plan, WEB, trigger_time=TIME)
    assert [piece.metadata.annotations for piece in (*done.create, *done.update)] == [
        {TRIGGER: TIME},
        {TRIGGER: TIME},
    ]
    assert done.unchanged == (existing("b"),)


def dying() -> Service:
    """Return a Service with a deletion timestamp."""
    return replace(WEB, metadata=replace(WEB.metadata, deletion_timestamp=TIME))


def test_a_dying_service_gets_no_creations_but_the_rest() -> None:
    """Creations that found no slice to recycle are dropped."""
    plan = SlicePlan(
        create=(fresh(1), fresh(2)), delete=(existing("a"), existing("old", owner_uid="x"))
    )
    done = finish_plan(plan, dying())
    assert done.create == ()
    assert done.update == (take_over(fresh(2), existing("a")),)
    assert done.delete == (existing("old", owner_uid="x"),)
