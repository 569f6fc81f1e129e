"""Hints that follow from where an endpoint is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.routing.hint_facts import slice_facts, with_hints
from keepclose.routing.hints import SliceSet, hint_own, own_hint_reasons, remove_hints
from keepclose.routing.reasons import ReasonCode
from support.builders import endpoint, endpoint_slice

Hints = tuple[tuple[str, ...], tuple[str, ...]] | None


def hints_of(one: Endpoint) -> Hints:
    """Return (zones, nodes) of an endpoint's hints, None when it has none."""
    if one.hints is None:
        return None
    return (
        tuple(zone.name for zone in one.hints.for_zones),
        tuple(node.name for node in one.hints.for_nodes),
    )


def all_hints(slices: SliceSet) -> dict[str, Hints]:
    """Return the hints of every endpoint by address."""
    return {e.addresses[0]: hints_of(e) for one in slices.all for e in one.endpoints}


BARE = endpoint_slice(
    endpoint("10.0.0.1", zone="zone-a", node_name="n1"),
    endpoint("10.0.0.2", zone="zone-b", node_name="n2"),
)
WRONG = endpoint_slice(
    endpoint("10.0.0.3", zone="zone-a", node_name="n1", for_zones=("zone-b",)),
    endpoint("10.0.0.4", zone="zone-b", node_name="n2", for_zones=("zone-a", "zone-b")),
    endpoint("10.0.0.5", zone="zone-c", node_name="n3", for_nodes=("n9",)),
    name="wrong",
)


@pytest.mark.parametrize("place", ["create", "update", "unchanged"])
def test_same_zone_hints_every_ready_endpoint_to_its_own_zone(place: str) -> None:
    """Wherever a slice stands in the plan, its ready endpoints get their own zone."""
    slices = hint_own(SliceSet(**{place: (BARE,)}), zones=True, nodes=False)
    assert all_hints(slices) == {"10.0.0.1": (("zone-a",), ()), "10.0.0.2": (("zone-b",), ())}


def test_same_node_adds_the_own_node() -> None:
    """Node hints come with zone hints, so that older proxies stay in the zone."""
    slices = hint_own(SliceSet(create=(BARE,)), zones=True, nodes=True)
    assert all_hints(slices) == {
        "10.0.0.1": (("zone-a",), ("n1",)),
        "10.0.0.2": (("zone-b",), ("n2",)),
    }


def test_node_level_sets_nodes_only() -> None:
    """The annotation value Node asks for node hints without zone hints."""
    slices = hint_own(SliceSet(update=(BARE, WRONG)), zones=False, nodes=True)
    assert all_hints(slices)["10.0.0.1"] == ((), ("n1",))
    assert all_hints(slices)["10.0.0.4"] == ((), ("n2",))


def test_wrong_hints_are_corrected_and_the_slice_becomes_an_update() -> None:
    """Hints of other zones, of several zones, or of nodes not asked for are all put right."""
    slices = hint_own(SliceSet(unchanged=(WRONG,)), zones=True, nodes=False)
    assert (len(slices.update), len(slices.unchanged)) == (1, 0)
    assert all_hints(slices) == {
        "10.0.0.3": (("zone-a",), ()),
        "10.0.0.4": (("zone-b",), ()),
        "10.0.0.5": (("zone-c",), ()),
    }


def test_right_hints_leave_a_slice_unchanged() -> None:
    """A slice that needs nothing stays the very same object."""
    first = hint_own(SliceSet(create=(BARE,)), zones=True, nodes=True)
    again = hint_own(SliceSet(unchanged=first.create), zones=True, nodes=True)
    assert again.update == ()
    assert again.unchanged[0] is first.create[0]


def test_zone_hints_are_wrong_where_only_nodes_are_asked_for() -> None:
    """With node hints alone, a slice with zone hints is written and one without is not."""
    right = endpoint_slice(endpoint("10.0.0.1", zone="a", node_name="n1", for_nodes=("n1",)))
    wrong = endpoint_slice(
        endpoint("10.0.0.2", zone="a", node_name="n1", for_zones=("a",), for_nodes=("n1",))
    )
    slices = hint_own(SliceSet(unchanged=(right, wrong)), zones=False, nodes=True)
    assert slices.unchanged == (right,)
    assert all_hints(SliceSet(update=slices.update)) == {"10.0.0.2": ((), ("n1",))}


def test_endpoints_without_a_zone_get_no_hints() -> None:
    """Without a zone there is nothing to hint, and an old hint goes away."""
    stale = endpoint_slice(endpoint("10.0.0.1", node_name="n1", for_zones=("zone-a",)))
    slices = hint_own(SliceSet(unchanged=(stale,)), zones=True, nodes=False)
    assert all_hints(slices) == {"10.0.0.1": None}


def test_same_node_works_without_zones() -> None:
    """In a cluster without zones the node hint stands alone."""
    slices = hint_own(
        SliceSet(create=(endpoint_slice(endpoint("10.0.0.1", node_name="n1")),)),
        zones=True,
        nodes=True,
    )
    assert all_hints(slices) == {"10.0.0.1": ((), ("n1",))}


@pytest.mark.parametrize("ready", [False, None])
def test_endpoints_that_are_not_ready_trigger_nothing(ready: bool | None) -> None:
    """Wrong or missing hints on an endpoint that is not ready do not cause a write."""
    unready = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a", ready=ready, for_zones=("zone-z",)),
        endpoint("10.0.0.2", zone="zone-a", for_zones=("zone-a",)),
    )
    slices = hint_own(SliceSet(unchanged=(unready,)), zones=True, nodes=False)
    assert slices == SliceSet(unchanged=(unready,))


def test_endpoints_that_are_not_ready_lose_hints_when_the_slice_is_written() -> None:
    """A slice that is written anyway carries no hints that mean nothing."""
    mixed = endpoint_slice(
        endpoint("10.0.0.1", zone="zone-a", ready=False, for_zones=("zone-z",)),
        endpoint("10.0.0.2", zone="zone-a"),
    )
    slices = hint_own(SliceSet(update=(mixed,)), zones=True, nodes=False)
    assert all_hints(slices) == {"10.0.0.1": None, "10.0.0.2": (("zone-a",), ())}


def test_removal_takes_every_hint_also_from_endpoints_that_are_not_ready() -> None:
    """Without a mechanism no endpoint keeps a hint, and an empty hints object counts as one."""
    hinted = endpoint_slice(
        endpoint("10.0.0.1", ready=False, for_zones=("zone-a",)), endpoint("10.0.0.2")
    )
    empty = endpoint_slice(with_hints(endpoint("10.0.0.3"), EndpointHints()), name="empty")
    slices = remove_hints(SliceSet(create=(hinted,), unchanged=(hinted, empty, BARE)))
    assert set(all_hints(slices).values()) == {None}
    assert [one.metadata.name for one in slices.update] == ["web-abcde", "empty"]
    assert slices.unchanged == (BARE,)


def test_inputs_are_never_changed() -> None:
    """The slices that went in are as they were: they belong to a cache."""
    before = hash(repr(WRONG))
    hint_own(SliceSet(unchanged=(WRONG,)), zones=True, nodes=True)
    remove_hints(SliceSet(unchanged=(WRONG,)))
    assert hash(repr(WRONG)) == before


@pytest.mark.parametrize(
    ("endpoints", "nodes", "want_code", "want_subject"),
    [
        pytest.param((), False, ReasonCode.NO_READY_ENDPOINTS, "", id="nothing"),
        pytest.param(
            (endpoint(zone="zone-a"),), False, ReasonCode.HINTS_POPULATED, "", id="complete"
        ),
        pytest.param(
            (endpoint("10.0.0.1", node_name="n9"), endpoint("10.0.0.2", zone="a")),
            False,
            ReasonCode.ENDPOINT_WITHOUT_ZONE,
            "Node n9",
            id="node without zone",
        ),
        pytest.param(
            (endpoint("10.0.0.1"),),
            False,
            ReasonCode.ENDPOINT_WITHOUT_ZONE,
            "Endpoint 10.0.0.1",
            id="no node either",
        ),
        pytest.param(
            (endpoint("10.0.0.1", zone="zone-a"),),
            True,
            ReasonCode.ENDPOINT_WITHOUT_NODE,
            "Endpoint 10.0.0.1",
            id="no node for node hints",
        ),
        pytest.param(
            (Endpoint(conditions=endpoint().conditions, zone="a"),),
            True,
            ReasonCode.ENDPOINT_WITHOUT_NODE,
            "Endpoint ?",
            id="not even an address",
        ),
    ],
)
def test_reasons_name_whom_to_blame(
    endpoints: tuple[Endpoint, ...], nodes: bool, want_code: ReasonCode, want_subject: str
) -> None:
    """The reason tells whether hints are complete, and else the node or endpoint at fault."""
    slices = SliceSet(create=(endpoint_slice(*endpoints),))
    reasons = own_hint_reasons(slices, zones=True, nodes=nodes)
    assert (reasons[0].code, reasons[0].subject) == (want_code, want_subject)


def test_the_fix_labels_the_node() -> None:
    """A node without a zone label is mended by one command."""
    slices = SliceSet(create=(endpoint_slice(endpoint(node_name="n9"), endpoint(node_name="n9")),))
    reason = own_hint_reasons(slices, zones=True, nodes=False)[0]
    assert reason.fix == "kubectl label node n9 topology.kubernetes.io/zone=<zone>"
    assert "and 1 more of 2 ready endpoints" in reason.message


def test_a_single_endpoint_without_zone_is_told_alone() -> None:
    """The message speaks of further endpoints only where there are some."""
    slices = SliceSet(create=(endpoint_slice(endpoint("10.0.0.1"), endpoint(zone="zone-a")),))
    reason = own_hint_reasons(slices, zones=True, nodes=False)[0]
    assert reason.message == "10.0.0.1 of 2 ready endpoints cannot be hinted"


def random_endpoints() -> st.SearchStrategy[list[Endpoint]]:
    """Return endpoints with any mixture of zones, nodes, readiness and hints."""
    names = st.sampled_from(["a", "b", "c"])
    some = st.lists(names, max_size=2, unique=True).map(tuple)
    one = st.builds(
        endpoint,
        st.integers(1, 250).map(lambda n: f"10.0.0.{n}"),
        zone=st.none() | names,
        node_name=st.none() | names,
        ready=st.sampled_from([True, False, None]),
        for_zones=some,
        for_nodes=some,
    )
    return st.lists(one, max_size=6)


@settings(max_examples=150, deadline=None)
@given(groups=st.lists(random_endpoints(), max_size=4), zones=st.booleans(), nodes=st.booleans())
def test_hinting_is_idempotent_and_complete(
    groups: list[list[Endpoint]], zones: bool, nodes: bool
) -> None:
    """After hinting, ready endpoints have exactly the wanted hints and a second pass is idle."""
    slices = tuple(endpoint_slice(*group, name=f"s{number}") for number, group in enumerate(groups))
    done = hint_own(SliceSet(unchanged=slices), zones=zones, nodes=nodes)
    for one in (e for s in done.all for e in s.endpoints if e.is_ready):
        want_zones = (one.zone,) if zones and one.zone else ()
        want_nodes = (one.node_name,) if nodes and one.node_name else ()
        got = hints_of(one) or ((), ())
        assert got == (want_zones, want_nodes)
    assert hint_own(SliceSet(unchanged=done.all), zones=zones, nodes=nodes).update == ()
    assert remove_hints(remove_hints(SliceSet(unchanged=slices))).all == tuple(
        bare for bare in remove_hints(SliceSet(unchanged=slices)).all
    )


def count(one: EndpointSlice) -> tuple[int, dict[str, int], dict[str, int]]:
    """Return ready endpoints, and their number by own and by hinted zone."""
    facts = slice_facts(one)
    return facts.ready, facts.by_zone, facts.hinted


@pytest.mark.parametrize(
    ("endpoints", "want"),
    [
        pytest.param((), (0, {}, {}), id="empty"),
        pytest.param(
            (endpoint(zone="a", for_zones=("a",)), endpoint(zone="b", for_zones=("b",))),
            (2, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
            id="one zone each",
        ),
        pytest.param(
            (endpoint(zone="a", for_zones=("a", "b")),),
            (1, {"a": 1}, {"a": 1, "b": 1}),
            id="several zones count in each",
        ),
        pytest.param(
            (endpoint(zone="a", ready=False, for_zones=("a",)), endpoint(zone="a", ready=None)),
            (0, {}, {}),
            id="not ready and unknown do not count",
        ),
        pytest.param((endpoint(), endpoint(zone="")), (2, {"": 2}, {}), id="no zone"),
    ],
)
def test_facts_count_ready_endpoints(
    endpoints: tuple[Endpoint, ...], want: tuple[int, dict[str, int], dict[str, int]]
) -> None:
    """Facts count explicitly ready endpoints by own zone and by hinted zone."""
    assert count(endpoint_slice(*endpoints)) == want
