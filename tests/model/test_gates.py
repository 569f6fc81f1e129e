"""Tests of feature gates."""

from __future__ import annotations

import pytest

from keepclose.model.gates import (
    EXCLUSIVE_PAIRS,
    ON_BY_DEFAULT,
    FeatureGates,
    Gate,
    GateError,
    parse_gates,
)


@pytest.mark.parametrize(
    ("gate", "want_on"),
    [
        pytest.param(Gate.SERVICE_TRAFFIC_DISTRIBUTION, True, id="traffic distribution is on"),
        pytest.param(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION, True, id="same zone and node are on"),
        pytest.param(Gate.TOPOLOGY_AWARE_HINTS, True, id="hints are on"),
        pytest.param(Gate.SERVICE_INTERNAL_TRAFFIC_POLICY, True, id="internal policy is on"),
        pytest.param(Gate.PROXY_TERMINATING_ENDPOINTS, True, id="terminating fallback is on"),
        pytest.param(
            Gate.ENDPOINT_SLICE_TERMINATING_CONDITION, True, id="terminating condition is on"
        ),
        pytest.param(Gate.STRICT_IP_CIDR_VALIDATION, True, id="strict addresses are on"),
        pytest.param(Gate.RELAXED_SERVICE_NAME_VALIDATION, True, id="relaxed names are on"),
        pytest.param(Gate.TOPOLOGY_AWARE_SUBSETTING, False, id="subsetting is off"),
        pytest.param(Gate.ENDPOINT_SLICE_SUBSETTING, False, id="slice subsetting is off"),
        pytest.param(Gate.PREFER_LOCAL_TRAFFIC_POLICY, False, id="prefer local is off"),
        pytest.param(Gate.NODE_LEVEL_TOPOLOGY, False, id="node level is off"),
        pytest.param(Gate.SERVICE_TOPOLOGY, False, id="topology keys are off"),
        pytest.param(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS, False, id="status is off"),
        pytest.param(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS, False, id="heuristics are off"),
    ],
)
def test_default_of_gate(gate: Gate, *, want_on: bool) -> None:
    """What has long been in Kubernetes is on by default, what was only proposed is off."""
    assert FeatureGates().on(gate) is want_on


def test_no_text_gives_the_defaults() -> None:
    """The empty text changes nothing."""
    assert parse_gates("") == parse_gates(" , ") == FeatureGates(ON_BY_DEFAULT)


@pytest.mark.parametrize(
    ("text", "want_gates"),
    [
        pytest.param(
            "NodeLevelTopology=true",
            FeatureGates(ON_BY_DEFAULT | {Gate.NODE_LEVEL_TOPOLOGY}),
            id="one is switched on",
        ),
        pytest.param(
            "TopologyAwareHints=false",
            FeatureGates(ON_BY_DEFAULT - {Gate.TOPOLOGY_AWARE_HINTS}),
            id="one is switched off",
        ),
        pytest.param(
            " NodeLevelTopology = T , TopologyAwareHints=0,",
            FeatureGates(
                (ON_BY_DEFAULT | {Gate.NODE_LEVEL_TOPOLOGY}) - {Gate.TOPOLOGY_AWARE_HINTS}
            ),
            id="blanks and short values are fine",
        ),
        pytest.param(
            "NodeLevelTopology=true,NodeLevelTopology=false",
            FeatureGates(ON_BY_DEFAULT),
            id="the last word counts",
        ),
        pytest.param(
            "ServiceTopology=true,TopologyAwareHints=false",
            FeatureGates((ON_BY_DEFAULT | {Gate.SERVICE_TOPOLOGY}) - {Gate.TOPOLOGY_AWARE_HINTS}),
            id="a pair is fine when one of it is off",
        ),
    ],
)
def test_gates_are_parsed(text: str, want_gates: FeatureGates) -> None:
    """A text switches gates on and off, starting from the defaults."""
    assert parse_gates(text) == want_gates


@pytest.mark.parametrize(
    ("text", "want_message"),
    [
        pytest.param("Nope=true", "unknown feature gate 'Nope'; known: ServiceTraffic", id="name"),
        pytest.param("AllAlpha=true", "unknown feature gate 'AllAlpha'", id="group"),
        pytest.param(
            "NodeLevelTopology=yes",
            "feature gate NodeLevelTopology: 'yes' must be true or false",
            id="value",
        ),
        pytest.param(
            "NodeLevelTopology",
            "feature gate NodeLevelTopology: '' must be true or false",
            id="no value",
        ),
        pytest.param(
            "ServiceTopology=true",
            "feature gates TopologyAwareHints and ServiceTopology exclude each other; "
            "add TopologyAwareHints=false or ServiceTopology=false",
            id="hints beside topology keys",
        ),
        pytest.param(
            "ServiceTopology=true,TopologyAwareHints=false,TopologyAwareSubsetting=true",
            "feature gates TopologyAwareSubsetting and ServiceTopology exclude each other; "
            "add TopologyAwareSubsetting=false or ServiceTopology=false",
            id="subsetting beside topology keys",
        ),
    ],
)
def test_bad_gates_are_refused(text: str, want_message: str) -> None:
    """A text that cannot be followed is refused with the part that is wrong."""
    with pytest.raises(GateError) as refused:
        parse_gates(text)

    assert str(refused.value).startswith(want_message)


@pytest.mark.parametrize(("one", "other"), EXCLUSIVE_PAIRS)
def test_excluded_pair_can_be_allowed(one: Gate, other: Gate) -> None:
    """Both mechanisms of a pair can be on when that is asked for explicitly."""
    gates = parse_gates(f"{one}=true,{other}=true", allow_incompatible=True)

    assert gates.on(one)
    assert gates.on(other)


def test_gates_are_values() -> None:
    """Switching gates gives new gates and leaves the old ones alone."""
    before = FeatureGates()
    after = before.with_gates(Gate.NODE_LEVEL_TOPOLOGY).without(Gate.TOPOLOGY_AWARE_HINTS)

    assert before == FeatureGates(ON_BY_DEFAULT)
    assert after.enabled == (ON_BY_DEFAULT | {Gate.NODE_LEVEL_TOPOLOGY}) - {
        Gate.TOPOLOGY_AWARE_HINTS
    }


def test_other_gates_to_begin_with() -> None:
    """What the text does not name stays as it was given."""
    given = FeatureGates(frozenset({Gate.NODE_LEVEL_TOPOLOGY, Gate.TOPOLOGY_AWARE_HINTS}))
    got = parse_gates("TopologyAwareHints=false,ServiceTopology=true", defaults=given)
    assert got.enabled == {Gate.NODE_LEVEL_TOPOLOGY, Gate.SERVICE_TOPOLOGY}
