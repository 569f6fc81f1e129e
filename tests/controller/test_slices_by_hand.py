"""Slices that people and other programs edit, delete, copy or make up: ours are put right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.well_known import (
    MANAGED_BY_LABEL,
    SERVICE_NAME_LABEL,
)
from keepclose.reconcile.settings import ControllerSettings
from keepclose.slices.settings import PlannerSettings
from support.builders import endpoint, endpoint_slice
from support.faultycluster import Desk, desk, facts, populate, web


@pytest.fixture
async def cluster() -> AsyncIterator[Desk]:
    """Open a cluster with one Service."""
    async with desk() as found:
        populate(found)
        yield found


def _relabelled(piece: EndpointSlice, **labels: str) -> EndpointSlice:
    known = {"manager": MANAGED_BY_LABEL, "service": SERVICE_NAME_LABEL}
    changed = {known.get(key, key): value for key, value in labels.items()}
    meta = replace(piece.metadata, labels={**piece.metadata.labels, **changed})
    return replace(piece, metadata=meta)


def _unhinted(piece: EndpointSlice) -> EndpointSlice:
    endpoints = tuple(replace(one, hints=None) for one in piece.endpoints)
    return replace(piece, endpoints=endpoints)


def _emptied(piece: EndpointSlice) -> EndpointSlice:
    return replace(piece, endpoints=())


def _shortened(piece: EndpointSlice) -> EndpointSlice:
    return replace(piece, endpoints=piece.endpoints[:2])


def _swollen(piece: EndpointSlice) -> EndpointSlice:
    return replace(
        piece, endpoints=(*piece.endpoints, endpoint("192.0.2.1"), endpoint("192.0.2.2"))
    )


def _disowned(piece: EndpointSlice) -> EndpointSlice:
    return replace(piece, metadata=replace(piece.metadata, owner_references=()))


def _rewired(piece: EndpointSlice) -> EndpointSlice:
    return replace(piece, ports=(replace(piece.ports[0], port=9),))


def _deleted(_piece: EndpointSlice) -> None:
    return None


@pytest.mark.parametrize("is_fresh", [False, True], ids=["the writer", "the next controller"])
@pytest.mark.parametrize(
    ("edit", "most_writes"),
    [
        pytest.param(_deleted, 1, id="deleted"),
        pytest.param(_emptied, 1, id="all endpoints removed"),
        pytest.param(_shortened, 1, id="some endpoints removed"),
        pytest.param(_swollen, 1, id="endpoints added"),
        pytest.param(_unhinted, 1, id="hints removed"),
        pytest.param(_rewired, 1, id="another port"),
        pytest.param(_disowned, 2, id="owner removed"),
        pytest.param(lambda one: _relabelled(one, x="y"), 1, id="a label more"),
        pytest.param(lambda one: _relabelled(one, manager="me"), 1, id="another manager"),
        pytest.param(lambda one: _relabelled(one, service="ghost"), 1, id="another Service"),
    ],
)
async def test_a_slice_edited_by_hand_is_put_right(
    cluster: Desk,
    edit: Callable[[EndpointSlice], EndpointSlice | None],
    most_writes: int,
    is_fresh: bool,
) -> None:
    """Two seconds later all is as before; a controller that did not write the slice knows too."""
    if is_fresh:
        async with cluster.controlled():
            pass
    async with cluster.controlled() as controlled:
        (piece,) = cluster.slices()
        asked = len(controlled.wire.writes)
        assert asked == (0 if is_fresh else 1)
        edited = edit(piece)
        if edited is None:
            cluster.delete(piece)
        else:
            cluster.put(edited)
        await cluster.clock.advance(2)
        ours = [
            one
            for one in cluster.slices()
            if one.metadata.labels[MANAGED_BY_LABEL] == piece.metadata.labels[MANAGED_BY_LABEL]
        ]
        assert facts(ours) == cluster.want()
        (mended,) = ours
        assert mended.metadata.labels == piece.metadata.labels
        assert mended.metadata.owner_references == piece.metadata.owner_references
        assert 1 <= len(controlled.wire.writes) - asked <= most_writes
        asked = len(controlled.wire.writes)
        await cluster.clock.advance(600)
        assert len(controlled.wire.writes) == asked


@pytest.mark.parametrize(
    ("stranger", "stays"),
    [
        pytest.param(
            endpoint_slice(endpoint("192.0.2.1"), name="web-x", owner_uid="older"),
            False,
            id="of an older Service of the name",
        ),
        pytest.param(
            endpoint_slice(endpoint("192.0.2.1"), name="web-x"), False, id="of no owner at all"
        ),
        pytest.param(
            endpoint_slice(
                endpoint("2001:db8::1"), name="web-x", owner_uid="uid-web", address_type="IPv6"
            ),
            False,
            id="of a family that the Service has not",
        ),
        pytest.param(
            endpoint_slice(
                endpoint("example.dev"), name="web-x", owner_uid="uid-web", address_type="FQDN"
            ),
            False,
            id="of names",
        ),
        pytest.param(
            endpoint_slice(
                *(endpoint(f"192.0.2.{number}") for number in range(1, 151)),
                name="web-x",
                owner_uid="uid-web",
            ),
            False,
            id="of too many endpoints that nobody wants",
        ),
        pytest.param(
            endpoint_slice(endpoint("192.0.2.1"), name="x", service_name="ghost"),
            True,
            id="of a Service that is not there",
        ),
        pytest.param(
            endpoint_slice(endpoint("192.0.2.1"), name="x", service_name=""),
            True,
            id="of no Service",
        ),
        pytest.param(
            endpoint_slice(
                endpoint("192.0.2.1"), name="web-x", labels={MANAGED_BY_LABEL: "example.dev"}
            ),
            True,
            id="of another manager",
        ),
    ],
)
async def test_a_foreign_slice_does_no_harm(
    cluster: Desk, stranger: EndpointSlice, stays: bool
) -> None:
    """What poses as ours goes, what is not ours stays, and our own slice is not touched."""
    async with cluster.controlled() as controlled:
        (own,) = cluster.slices()
        cluster.put(stranger)
        await cluster.clock.advance(2)
        found = {one.metadata.name: one for one in cluster.slices(None)}
        assert found[own.metadata.name] == own
        assert (stranger.metadata.name in found) is stays
        assert len(found) == 1 + stays
        assert [method for _, method in controlled.wire.writes[1:]] == ["DELETE"] * (not stays)
        name = "endpoint_slice_controller_changes_total"
        assert controlled.counted(name, operation="delete") == (not stays)


async def test_endpoints_that_stand_twice_are_left_in_one_slice(cluster: Desk) -> None:
    """A copy of our slice with a few endpoints too many goes; what is in use stays in use."""
    async with cluster.controlled() as controlled:
        (own,) = cluster.slices()
        meta = replace(own.metadata, name="web-zzz", uid="", generation=0)
        many = tuple(endpoint(f"192.0.2.{number}") for number in range(1, 151))
        cluster.put(replace(own, metadata=meta, endpoints=(*own.endpoints, *many)))
        await cluster.clock.advance(2)
        assert cluster.slices() == [own]
        assert [method for _, method in controlled.wire.writes[1:]] == ["DELETE"]


async def test_a_slice_that_goes_before_its_write_is_answered_is_not_waited_for(
    cluster: Desk,
) -> None:
    """The deletion is seen before the answer; the next syncs must not wait for a slice for ever."""
    async with cluster.controlled() as controlled:
        (piece,) = cluster.slices()

        def delete(_request: object) -> None:
            controlled.wire.before_answer = None
            cluster.delete(piece)

        controlled.wire.before_answer = delete
        cluster.put(web(0, ready=False))
        await cluster.clock.advance(3)
        assert facts(cluster.slices()) == cluster.want()
        assert [method for _, method in controlled.wire.writes] == ["POST", "PUT", "POST"]
        cluster.put(web(0))
        await cluster.clock.advance(3)
        assert facts(cluster.slices()) == cluster.want()
        assert [method for _, method in controlled.wire.writes[3:]] == ["PUT"]


async def test_a_slice_given_away_before_its_write_is_answered_is_not_waited_for(
    cluster: Desk,
) -> None:
    """As with a deletion: what has left us by the time of the answer does not come back."""
    async with cluster.controlled() as controlled:

        def give_away(_request: object) -> None:
            controlled.wire.before_answer = None
            (piece,) = cluster.slices()
            cluster.put(_relabelled(piece, manager="me"))

        controlled.wire.before_answer = give_away
        cluster.put(web(0, ready=False))
        await cluster.clock.advance(3)
        cluster.put(web(0))
        await cluster.clock.advance(3)
        ours = [one for one in cluster.slices() if one.metadata.labels[MANAGED_BY_LABEL] != "me"]
        assert facts(ours) == cluster.want()
        assert [method for _, method in controlled.wire.writes] == ["POST", "PUT", "POST", "PUT"]


async def test_a_slice_that_somebody_fills_is_not_deleted_from_an_old_view(
    cluster: Desk,
) -> None:
    """A delete counts for the version that was looked at: endpoints written since then stay."""
    settings = ControllerSettings(plan=PlannerSettings(max_endpoints=3), batch_s=0.5)
    async with cluster.controlled(settings) as controlled:
        first, second = cluster.slices()
        assert [one.addresses[0] for one in second.endpoints] == [
            "10.0.0.4",
            "10.0.0.5",
            "10.0.0.6",
        ]
        filled = replace(second, endpoints=(endpoint("10.0.0.7"),))

        def fill(_request: object) -> None:
            controlled.wire.before_answer = None
            cluster.put(filled)

        controlled.wire.before_answer = fill
        cluster.put(web(0, ready=False))
        cluster.delete(*(web(number) for number in (3, 4, 5)))
        await cluster.clock.advance(0.9)
        assert [method for _, method in controlled.wire.writes[2:]] == ["PUT", "DELETE"]
        assert [one.endpoints for one in cluster.slices()][1] == filled.endpoints
        await cluster.clock.advance(5)
        # Nobody wants what was filled in; the next look at it deletes it for good.
        assert [one.metadata.name for one in cluster.slices()] == [first.metadata.name]
        assert facts(cluster.slices()) == cluster.want(settings=settings)
