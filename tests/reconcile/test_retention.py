"""Writes that a server does not keep are not repeated, and nothing else is held up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.field_errors import SLICE_GATES, describe_fields, differing_fields
from keepclose.reconcile.dropped_fields import retain_slices, withhold
from keepclose.slices.packing import SlicePlan
from support.builders import endpoint, endpoint_slice

NAMES = ("hints", "hints.forNodes", "hints.forZones", "zone", "nodeName", "conditions.ready")


def dropping(names: frozenset[str]) -> Callable[[EndpointSlice], EndpointSlice]:
    """Return a server that drops these fields of endpoints."""

    def store(sent: EndpointSlice) -> EndpointSlice:
        plain: dict[str, Any] = msgspec.to_builtins(sent)
        for each in plain["endpoints"]:
            for name in names:
                outer, _, inner = name.partition(".")
                if inner:
                    each.get(outer, {}).pop(inner, None)
                else:
                    each.pop(outer, None)
        return msgspec.convert(plain, EndpointSlice)

    return store


def hinted(count: int) -> EndpointSlice:
    """Return a slice of so many endpoints with all that an endpoint can have."""
    endpoints = [
        endpoint(
            f"10.0.0.{number}",
            zone="zone-a",
            node_name="n1",
            for_zones=("zone-a",),
            for_nodes=("n1",),
        )
        for number in range(1, count + 1)
    ]
    return endpoint_slice(*endpoints, name="web-1")


@given(
    st.frozensets(st.sampled_from(NAMES)),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
def test_each_wish_is_written_once_whatever_the_server_drops(
    names: frozenset[str], counts: list[int]
) -> None:
    """A wish is sent when it differs from what is stored and was not sent just now."""
    store = dropping(names)
    retention = retain_slices()
    present = replace(hinted(1), endpoints=())
    for count in counts:
        wish = hinted(count)
        writes = 0
        for _ in range(4):
            update = () if wish.endpoints == present.endpoints else (wish,)
            plan = withhold(SlicePlan(update=update), retention, [present])
            for sent in plan.update:
                writes += 1
                present = store(sent)
                retention.note(present.metadata.key, sent, present)
        assert writes <= 1
        # NB: what differs in a field that is kept has arrived.
        assert present == store(wish)
        assert bool(retention.fields(present.metadata.key)) == (present != wish)


def test_a_field_that_is_kept_sets_all_slices_free_that_lost_it() -> None:
    """One slice that keeps the field is enough for all others to be written again."""
    store = dropping(frozenset({"hints.forNodes"}))
    retention = retain_slices()
    slices = [
        replace(item, metadata=replace(item.metadata, name=f"web-{number}"))
        for number, item in enumerate([hinted(2)] * 3)
    ]
    for item in slices:
        assert not retention.note(item.metadata.key, item, store(item))
    assert len(retention.samples()) == 1
    freed = retention.note(slices[0].metadata.key, slices[0], slices[0])
    assert set(freed) == {item.metadata.key for item in slices[1:]}
    assert len(retention) == 0


def test_a_slice_that_changed_meanwhile_is_written_again() -> None:
    """Only the outcome of the own write makes the same write pointless."""
    store = dropping(frozenset({"hints"}))
    retention = retain_slices()
    wish = hinted(2)
    retention.note(wish.metadata.key, wish, store(wish))
    assert retention.is_pointless(wish.metadata.key, wish, store(wish))
    assert not retention.is_pointless(wish.metadata.key, wish, store(hinted(3)))
    assert not retention.is_pointless(wish.metadata.key, hinted(3), store(wish))
    plan = SlicePlan(update=(wish,), rehinted=2)
    assert withhold(plan, retention, [store(wish)]) == SlicePlan(unchanged=(store(wish),))
    retention.forget(wish.metadata.key)
    assert withhold(plan, retention, [store(wish)]) == plan


def test_fields_are_named_once_with_their_gate() -> None:
    """The message names the field as kubectl explain does, and the gate that stands for it."""
    wish = hinted(3)
    lost = dropping(frozenset({"hints.forNodes", "zone"}))(wish)
    fields = differing_fields(wish, lost)
    assert fields == ("endpoints[].hints.forNodes", "endpoints[].zone")
    assert describe_fields(fields) == (
        "the API server does not keep endpoints[].hints.forNodes, endpoints[].zone as written; "
        "feature gate PreferSameTrafficDistribution is probably off there"
    )
    assert describe_fields(("ports",)) == "the API server does not keep ports as written"
    assert differing_fields(wish, hinted(2)) == ("endpoints",)
    labels = tuple(f"metadata.labels.x{number}" for number in range(1000))
    assert describe_fields(labels) == (
        "the API server does not keep metadata.labels.x0, metadata.labels.x1, metadata.labels.x2, "
        "metadata.labels.x3, metadata.labels.x4 and 995 more as written"
    )
    assert len(SLICE_GATES) == 5
