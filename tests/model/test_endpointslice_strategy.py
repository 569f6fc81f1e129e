"""Slices are prepared before they are stored, and clients are warned."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.strategy import (
    ALLOWS_CREATE_ON_UPDATE,
    ALLOWS_UNCONDITIONAL_UPDATE,
    deprecated_node_names,
    drop_deprecated_topology,
    drop_disabled_slice_fields,
    prepare_slice_for_create,
    prepare_slice_for_update,
    slice_warnings_on_create,
    slice_warnings_on_update,
)
from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from support.builders import endpoint, endpoint_slice

GATES = FeatureGates()
NO_NODE_HINTS = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
NODE_TOPOLOGY_ONLY = NO_NODE_HINTS.with_gates(Gate.NODE_LEVEL_TOPOLOGY)
NO_HINTS = GATES.without(Gate.TOPOLOGY_AWARE_HINTS)
NEITHER = NO_HINTS.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)

PLAIN = endpoint()
ZONED = endpoint(for_zones=("zone-a",))
NODED = endpoint(for_nodes=("n1",))
BOTH = endpoint(for_zones=("zone-a",), for_nodes=("n1",))
EMPTY_HINTS = replace(PLAIN, hints=EndpointHints())
HOSTNAME = "kubernetes.io/hostname"
V1BETA1 = "discovery.k8s.io/v1beta1"


def on_node(name: str, *, node_name: str | None = None, address: str = "10.0.0.1") -> Endpoint:
    """Return an endpoint whose deprecated topology names a node."""
    return replace(endpoint(address, node_name=node_name), deprecated_topology={HOSTNAME: name})


@pytest.mark.parametrize(
    ("gates", "want"),
    [
        pytest.param(GATES, (PLAIN, ZONED, NODED, BOTH), id="node hints on"),
        pytest.param(
            NO_NODE_HINTS,
            (PLAIN, ZONED, EMPTY_HINTS, ZONED),
            id="node hints off, the hints object stays",
        ),
        pytest.param(
            NODE_TOPOLOGY_ONLY,
            (PLAIN, ZONED, NODED, BOTH),
            id="node-level topology keeps node hints too",
        ),
        pytest.param(NO_HINTS, (PLAIN,) * 4, id="hints off"),
        pytest.param(NEITHER, (PLAIN,) * 4, id="all off, the whole object goes"),
    ],
)
def test_fields_dropped_on_create(gates: FeatureGates, want: tuple[Endpoint, ...]) -> None:
    """A new slice loses hints whose gate is off."""
    new = endpoint_slice(PLAIN, ZONED, NODED, BOTH)
    assert prepare_slice_for_create(new, gates=gates).endpoints == want


@pytest.mark.parametrize(
    ("gates", "old", "want"),
    [
        pytest.param(GATES, (PLAIN,), (ZONED, BOTH), id="gates on"),
        pytest.param(NO_NODE_HINTS, (PLAIN, BOTH), (ZONED, BOTH), id="old had node hints"),
        pytest.param(NO_NODE_HINTS, (ZONED,), (ZONED, ZONED), id="old had zone hints only"),
        pytest.param(NO_NODE_HINTS, (), (ZONED, ZONED), id="old had no endpoints"),
        pytest.param(NODE_TOPOLOGY_ONLY, (), (ZONED, BOTH), id="node-level topology is on"),
        pytest.param(NO_HINTS, (PLAIN,), (PLAIN, PLAIN), id="hints off and old had none"),
        pytest.param(NO_HINTS, (PLAIN, ZONED), (ZONED, BOTH), id="hints off and old had some"),
        pytest.param(NO_HINTS, (EMPTY_HINTS,), (ZONED, BOTH), id="empty hints count as hints"),
        pytest.param(NEITHER, (PLAIN,), (PLAIN, PLAIN), id="all off and old had none"),
        pytest.param(NEITHER, (ZONED,), (ZONED, ZONED), id="all off and old had zone hints"),
        pytest.param(NEITHER, (ZONED, NODED), (ZONED, BOTH), id="all off and old had node hints"),
    ],
)
def test_fields_dropped_on_update(
    gates: FeatureGates, old: tuple[Endpoint, ...], want: tuple[Endpoint, ...]
) -> None:
    """An update loses hints whose gate is off, unless the old slice had such hints."""
    new = endpoint_slice(ZONED, BOTH)
    assert drop_disabled_slice_fields(new, endpoint_slice(*old), gates=gates).endpoints == want
    assert prepare_slice_for_update(new, endpoint_slice(*old), gates=gates).endpoints == want


def test_creation_starts_at_generation_one() -> None:
    """A new slice has generation 1, whatever the client said, and no deprecated topology."""
    sent = endpoint_slice(on_node("n1"))
    sent = replace(sent, metadata=replace(sent.metadata, generation=7))
    stored = prepare_slice_for_create(sent, gates=GATES)
    assert stored.metadata == replace(sent.metadata, generation=1)
    assert stored.endpoints == (replace(PLAIN, deprecated_topology=None),)


STORED = endpoint_slice(PLAIN)
STORED = replace(STORED, metadata=replace(STORED.metadata, generation=4))


@pytest.mark.parametrize(
    ("new", "want"),
    [
        pytest.param(endpoint_slice(PLAIN), 4, id="nothing changed"),
        pytest.param(endpoint_slice(PLAIN, annotations={"a": "b"}), 4, id="annotations changed"),
        pytest.param(endpoint_slice(PLAIN, labels={"a": "b"}), 5, id="labels changed"),
        pytest.param(endpoint_slice(ZONED), 5, id="endpoints changed"),
        pytest.param(endpoint_slice(PLAIN, ports=()), 5, id="ports changed"),
        pytest.param(endpoint_slice(PLAIN, address_type="IPv6"), 5, id="address type changed"),
        pytest.param(
            endpoint_slice(replace(PLAIN, deprecated_topology={})), 4, id="empty topology is none"
        ),
    ],
)
def test_generation_on_update(new: EndpointSlice, want: int) -> None:
    """The generation counts changes of labels and content, not of other metadata."""
    prepared = prepare_slice_for_update(new, STORED, gates=GATES)
    assert prepared.metadata == replace(new.metadata, generation=want)


def test_generation_counts_what_was_sent() -> None:
    """A change bumps the generation even when the dropping of fields undoes it."""
    prepared = prepare_slice_for_update(endpoint_slice(ZONED), STORED, gates=NEITHER)
    assert prepared.endpoints == STORED.endpoints
    assert prepared.metadata.generation == 5


OTHER = "10.0.0.2"


@pytest.mark.parametrize(
    ("new", "old", "want"),
    [
        pytest.param(
            (replace(PLAIN, deprecated_topology={"a": "b"}),), None, (PLAIN,), id="create"
        ),
        pytest.param((PLAIN,), None, (PLAIN,), id="create without topology"),
        pytest.param(
            (on_node("n1"),), None, (PLAIN,), id="create takes no node name from the topology"
        ),
        pytest.param(
            (on_node("n1", node_name="n2"),),
            None,
            (endpoint(node_name="n2"),),
            id="create with a node name",
        ),
        pytest.param(
            (on_node("n1"),), (on_node("n1"),), (on_node("n1"),), id="unchanged endpoints stay"
        ),
        pytest.param(
            (replace(PLAIN, deprecated_topology={"a": "b"}),),
            (replace(PLAIN, deprecated_topology={"a": "c"}),),
            (PLAIN,),
            id="changed topology goes",
        ),
        pytest.param(
            (on_node("n1"), endpoint(OTHER)),
            (on_node("n1"),),
            (endpoint(node_name="n1"), endpoint(OTHER)),
            id="an added endpoint moves the node name of the others to its field",
        ),
        pytest.param(
            (on_node("n1", address=OTHER),),
            (on_node("n1"),),
            (endpoint(OTHER, node_name="n1"),),
            id="a node known from another endpoint counts",
        ),
        pytest.param(
            (on_node("n2"),),
            (on_node("n1"),),
            (PLAIN,),
            id="a node that is new in the topology is not taken",
        ),
        pytest.param(
            (on_node("n1", node_name="n3"),),
            (on_node("n1"),),
            (endpoint(node_name="n3"),),
            id="a node name that is set wins",
        ),
        pytest.param(
            (on_node("Bad Node"), PLAIN),
            (on_node("Bad Node"),),
            (PLAIN, PLAIN),
            id="an invalid node name is not taken",
        ),
        pytest.param(
            (on_node(""), PLAIN), (on_node(""),), (PLAIN, PLAIN), id="an empty node name neither"
        ),
        pytest.param(
            (on_node("n1", address=OTHER),),
            (endpoint(node_name="n1"),),
            (endpoint(OTHER),),
            id="a node known only from the field does not count",
        ),
    ],
)
def test_topology_is_dropped(
    new: tuple[Endpoint, ...], old: tuple[Endpoint, ...] | None, want: tuple[Endpoint, ...]
) -> None:
    """Writes by way of v1 clear the deprecated topology and keep known node names."""
    before = None if old is None else endpoint_slice(*old)
    assert drop_deprecated_topology(endpoint_slice(*new), before).endpoints == want


@pytest.mark.parametrize(
    "old",
    [
        pytest.param(None, id="create"),
        pytest.param(endpoint_slice(on_node("n9")), id="update"),
    ],
)
def test_topology_is_kept_by_v1beta1(old: EndpointSlice | None) -> None:
    """Writes by way of v1beta1, where the field was not deprecated, keep it."""
    new = replace(endpoint_slice(on_node("n1")), api_version=V1BETA1)
    assert drop_deprecated_topology(new, old) is new


@pytest.mark.parametrize(
    ("endpoints", "want"),
    [
        pytest.param((), set(), id="no endpoints"),
        pytest.param(
            (PLAIN, replace(PLAIN, deprecated_topology={"a": "b"}), on_node("")),
            set(),
            id="no names",
        ),
        pytest.param(
            (on_node("n1"), on_node("n2", node_name="n3"), on_node("n1")),
            {"n1", "n2"},
            id="each name once, and only from the topology",
        ),
    ],
)
def test_deprecated_node_names(endpoints: tuple[Endpoint, ...], want: set[str]) -> None:
    """Node names are read from the deprecated topology alone."""
    assert deprecated_node_names(endpoint_slice(*endpoints)) == want
    assert deprecated_node_names(None) == set()


FQDN_WARNING = "spec.addressType: FQDN endpoints are deprecated"


@pytest.mark.parametrize(
    ("address_type", "want"),
    [
        pytest.param("FQDN", [FQDN_WARNING], id="FQDN"),
        pytest.param("IPv4", [], id="IPv4"),
        pytest.param("IPv6", [], id="IPv6"),
    ],
)
def test_warnings_about_the_address_type(address_type: str, want: list[str]) -> None:
    """Slices of names are deprecated, which is said once, on creation."""
    new = endpoint_slice(endpoint("a.example"), address_type=address_type, labels={MANAGED: "me"})
    assert slice_warnings_on_create(new) == want
    assert slice_warnings_on_update(new) == []


MANAGED = "endpointslice.kubernetes.io/managed-by"
BADLY_SPELT = (
    endpoint("10.0.0.1"),
    Endpoint(addresses=("10.0.0.2", "010.0.0.3")),
    endpoint("2001:0db8::1"),
)
WANT_BADLY_SPELT = [
    ('endpoints[1].addresses[1]: non-standard IP address "010.0.0.3" is invalid: use "10.0.0.3"'),
    (
        'endpoints[2].addresses[0]: IPv6 address "2001:0db8::1" should be in RFC 5952 canonical '
        'format ("2001:db8::1")'
    ),
]


@pytest.mark.parametrize(
    ("manager", "endpoints", "want"),
    [
        pytest.param("someone", (endpoint("10.0.0.1"),), [], id="well spelt"),
        pytest.param("someone", BADLY_SPELT, WANT_BADLY_SPELT, id="badly spelt"),
        pytest.param(
            "endpointslice-controller.k8s.io", BADLY_SPELT, [], id="EndpointSlice controller"
        ),
        pytest.param(
            "endpointslicemirroring-controller.k8s.io", BADLY_SPELT, [], id="mirroring controller"
        ),
    ],
)
def test_warnings_about_addresses(
    manager: str, endpoints: tuple[Endpoint, ...], want: list[str]
) -> None:
    """Badly spelt addresses are told to everybody but the built-in controllers."""
    new = endpoint_slice(*endpoints, labels={MANAGED: manager})
    assert slice_warnings_on_create(new) == want
    assert slice_warnings_on_update(new) == want


def test_unmanaged_slices_are_warned_about() -> None:
    """A slice without the label of a manager is warned about, after the address type."""
    new = replace(endpoint_slice(endpoint("010.0.0.1")), address_type="FQDN")
    new = replace(new, metadata=replace(new.metadata, labels={}))
    assert slice_warnings_on_create(new) == [
        FQDN_WARNING,
        (
            'endpoints[0].addresses[0]: non-standard IP address "010.0.0.1" is invalid: '
            'use "10.0.0.1"'
        ),
    ]


def test_how_slices_may_be_updated() -> None:
    """Updates need no resourceVersion and create nothing."""
    assert ALLOWS_UNCONDITIONAL_UPDATE is True
    assert ALLOWS_CREATE_ON_UPDATE is False


ENDPOINTS = st.sampled_from([PLAIN, ZONED, NODED, BOTH, EMPTY_HINTS, on_node("n1"), on_node("_")])
SLICES = st.lists(ENDPOINTS, max_size=4).map(lambda found: endpoint_slice(*found))
GATE_SETS = st.sampled_from([GATES, NO_NODE_HINTS, NODE_TOPOLOGY_ONLY, NO_HINTS, NEITHER])


@settings(deadline=None, max_examples=200)
@given(new=SLICES, old=SLICES, gates=GATE_SETS)
def test_preparing_settles(new: EndpointSlice, old: EndpointSlice, gates: FeatureGates) -> None:
    """What was prepared is prepared: doing it again changes nothing, and no endpoint is lost."""
    created = prepare_slice_for_create(new, gates=gates)
    assert prepare_slice_for_create(created, gates=gates) == created
    assert len(created.endpoints) == len(new.endpoints)
    updated = prepare_slice_for_update(new, old, gates=gates)
    assert [e.addresses for e in updated.endpoints] == [e.addresses for e in new.endpoints]
    stored = prepare_slice_for_update(updated, updated, gates=gates)
    assert stored.metadata == updated.metadata
