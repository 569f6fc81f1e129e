"""Writing EndpointSlices: generations, dropped hints, rules."""

from __future__ import annotations

from copy import deepcopy

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.json_values import JsonObject
from support.kinds import Kinds, raw

HINTED = {
    "addresses": ["10.0.0.1"],
    "conditions": {},
    "hints": {"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}], "future": 1},
}
NO_NODES = FeatureGates().without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)


@pytest.fixture
def kinds() -> Kinds:
    """Return strategies over a small cluster of one family."""
    return Kinds()


def test_a_new_slice_is_completed(kinds: Kinds) -> None:
    """Ports get a name and a protocol, and what may be empty is written."""
    new = raw(
        "EndpointSlice",
        addressType="IPv4",
        endpoints=[{"addresses": ["10.0.0.1"], "deprecatedTopology": {"a": "b"}, "future": 1}],
        ports=[{"port": 80}],
    )
    got = kinds.write(new)
    assert got.causes == []
    assert got.object["metadata"]["generation"] == 1
    assert got.object["endpoints"] == [{"addresses": ["10.0.0.1"], "conditions": {}, "future": 1}]
    assert got.object["ports"] == [{"port": 80, "name": "", "protocol": "TCP"}]
    empty = kinds.write(raw("EndpointSlice", addressType="IPv4")).object
    assert (empty["endpoints"], empty["ports"]) == ([], [])


@pytest.mark.parametrize(
    ("change", "want_generation"),
    [
        pytest.param({"metadata": {"annotations": {"a": "b"}}}, 1, id="annotations do not count"),
        pytest.param({"metadata": {"labels": {"a": "b"}}}, 2, id="labels count"),
        pytest.param({"ports": [{"port": 81}]}, 2, id="ports count"),
        pytest.param({"endpoints": [{"addresses": ["10.0.0.2"]}]}, 2, id="endpoints count"),
        pytest.param({"metadata": {"generation": 9}}, 1, id="clients do not set it"),
    ],
)
def test_the_generation_counts_changes(
    kinds: Kinds, change: JsonObject, want_generation: int
) -> None:
    """One more with every change of labels or contents."""
    members: JsonObject = {"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": []}
    old = kinds.write(raw("EndpointSlice", **members)).object
    new = raw("EndpointSlice", **{**members, **change})
    assert kinds.write(new, old).object["metadata"]["generation"] == want_generation


@pytest.mark.parametrize(
    ("gates", "want_hints"),
    [
        pytest.param(FeatureGates(), HINTED["hints"], id="kept with their gates"),
        pytest.param(
            NO_NODES, {"forZones": [{"name": "a"}], "future": 1}, id="nodes dropped without theirs"
        ),
        pytest.param(
            NO_NODES.without(Gate.TOPOLOGY_AWARE_HINTS), None, id="all dropped without theirs"
        ),
    ],
)
def test_hints_follow_their_gates(
    kinds: Kinds, gates: FeatureGates, want_hints: JsonObject | None
) -> None:
    """Hints whose gate is off are not stored, unless the stored slice has some."""
    new = raw("EndpointSlice", addressType="IPv4", endpoints=[HINTED], ports=[])
    (endpoint,) = kinds.write(new, gates=gates).object["endpoints"]
    assert endpoint.get("hints") == want_hints
    old = kinds.write(new).object
    (endpoint,) = kinds.write(deepcopy(old), old, gates=gates).object["endpoints"]
    assert endpoint["hints"] == HINTED["hints"]


def test_rules_and_warnings_are_those_of_the_model(kinds: Kinds) -> None:
    """Bad slices are refused with every cause, odd ones accepted with a warning."""
    bad = raw("EndpointSlice", endpoints=[{"addresses": []}], ports=[{"name": "x"}, {"name": "x"}])
    assert kinds.write(bad).causes == [
        "addressType: Required value",
        'ports[1].name: Duplicate value: "x"',
        "endpoints[0].addresses: Required value: must contain at least 1 address",
    ]
    old = kinds.write(raw("EndpointSlice", addressType="FQDN"))
    assert old.warnings == ["spec.addressType: FQDN endpoints are deprecated"]
    changed = kinds.write(raw("EndpointSlice", addressType="IPv6"), old.object)
    assert changed.causes == ['addressType: Invalid value: "IPv6": field is immutable']
    odd = raw("EndpointSlice", addressType="IPv4", endpoints=[{"addresses": ["10.0.0.01"]}])
    lenient = FeatureGates().without(Gate.STRICT_IP_CIDR_VALIDATION)
    stored = kinds.write(odd, gates=lenient).object
    assert kinds.write(stored, stored, gates=lenient).warnings == [
        (
            'endpoints[0].addresses[0]: non-standard IP address "10.0.0.01" is '
            'invalid: use "10.0.0.1"'
        )
    ]
