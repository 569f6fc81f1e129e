"""Which mechanism governs a Service."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.gates import FeatureGates, Gate
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.strategy import (
    DistributionVerdict,
    Strategy,
    StrategyName,
    choose_strategy,
    topology_annotation,
    traffic_distribution,
)
from keepclose.routing.subsets import Approach
from support.builders import service

HINTS = "service.kubernetes.io/topology-aware-hints"
MODE = "service.kubernetes.io/topology-mode"
SUBSETTING = "endpointslice.kubernetes.io/subsetting"
OURS = "keepclose.dev/traffic-distribution"
ALL = FeatureGates(frozenset(Gate))
DEFAULT = FeatureGates()


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        pytest.param({}, False, id="no annotation"),
        pytest.param({MODE: "Auto"}, True, id="mode Auto"),
        pytest.param({MODE: "auto"}, True, id="mode auto"),
        pytest.param({HINTS: "Auto"}, True, id="hints Auto"),
        pytest.param({HINTS: "auto"}, True, id="hints auto"),
        pytest.param({MODE: "AUTO"}, False, id="mode AUTO is no value"),
        pytest.param({MODE: "aUto"}, False, id="mode aUto is no value"),
        pytest.param({HINTS: "enabled"}, False, id="hints enabled is no value"),
        pytest.param({MODE: ""}, False, id="empty mode"),
        pytest.param({HINTS: ""}, False, id="empty hints"),
        pytest.param({MODE: "Disabled"}, False, id="mode Disabled"),
        pytest.param({MODE: "disabled"}, False, id="mode disabled"),
        pytest.param({HINTS: "Disabled"}, False, id="hints Disabled"),
        pytest.param({HINTS: "disabled"}, False, id="hints disabled"),
        pytest.param({HINTS: "Disabled", MODE: "Auto"}, False, id="deprecated name wins off"),
        pytest.param({HINTS: "Auto", MODE: "Disabled"}, True, id="deprecated name wins on"),
        pytest.param({HINTS: "", MODE: "Auto"}, False, id="deprecated name wins when empty"),
        pytest.param({HINTS: "Auto", MODE: "Auto"}, True, id="both Auto"),
        pytest.param({"other.io/topology-mode": "Auto"}, False, id="foreign annotation"),
    ],
)
def test_only_auto_switches_the_topology_mode_on(annotations: dict[str, str], want: bool) -> None:
    """Auto and auto switch the mode on, and the deprecated annotation counts when present."""
    chosen = choose_strategy(service(annotations=annotations), gates=DEFAULT)
    assert (chosen.name is StrategyName.AUTO) is want


@pytest.mark.parametrize(
    ("value", "gates", "want_name", "want_verdict"),
    [
        pytest.param(None, DEFAULT, "None", DistributionVerdict.ABSENT, id="absent"),
        pytest.param(
            "PreferClose", DEFAULT, "PreferSameZone", DistributionVerdict.GOVERNS, id="PreferClose"
        ),
        pytest.param(
            "PreferSameZone", DEFAULT, "PreferSameZone", DistributionVerdict.GOVERNS, id="same zone"
        ),
        pytest.param(
            "PreferSameNode", DEFAULT, "PreferSameNode", DistributionVerdict.GOVERNS, id="same node"
        ),
        pytest.param(
            "PreferClose",
            DEFAULT.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
            "PreferSameZone",
            DistributionVerdict.GOVERNS,
            id="PreferClose needs only the first gate",
        ),
        pytest.param(
            "PreferSameZone",
            DEFAULT.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
            "None",
            DistributionVerdict.DISABLED,
            id="same zone with its gate off",
        ),
        pytest.param(
            "PreferSameNode",
            DEFAULT.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
            "None",
            DistributionVerdict.DISABLED,
            id="same node with its gate off",
        ),
        pytest.param(
            "PreferClose",
            DEFAULT.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION),
            "None",
            DistributionVerdict.DISABLED,
            id="field gate off",
        ),
        pytest.param(
            "Random", DEFAULT, "None", DistributionVerdict.UNSUPPORTED, id="unknown value"
        ),
        pytest.param("", DEFAULT, "None", DistributionVerdict.UNSUPPORTED, id="empty value"),
        pytest.param(
            "a.dev/X", DEFAULT, "None", DistributionVerdict.DISABLED, id="custom, gate off"
        ),
        pytest.param(
            "a.dev/X", ALL, "a.dev/X", DistributionVerdict.GOVERNS, id="custom, registered"
        ),
        pytest.param("a.dev/Y", ALL, "None", DistributionVerdict.UNSUPPORTED, id="custom, unknown"),
    ],
)
def test_traffic_distribution_governs_when_its_gates_allow(
    value: str | None, gates: FeatureGates, want_name: str, want_verdict: DistributionVerdict
) -> None:
    """A value counts with its gates on; otherwise it is as good as absent, and we say why."""
    gates = gates.without(Gate.SERVICE_TOPOLOGY)
    chosen = choose_strategy(
        service(traffic_distribution=value), gates=gates, heuristics={"a.dev/X"}
    )
    assert (chosen.label, chosen.distribution) == (want_name, want_verdict)


def full(**changes: Any) -> Strategy:
    """Choose for a Service on which every mechanism is asked for, changed as given."""
    annotations = {SUBSETTING: "Auto", MODE: "Auto"}
    drop = changes.pop("drop", ())
    assert isinstance(drop, tuple)
    for key in drop:
        annotations.pop(key, None)
    keys = changes.pop("topology_keys", ("kubernetes.io/hostname", "*"))
    gates = changes.pop("gates", ALL)
    assert isinstance(gates, FeatureGates)
    made = service(
        annotations=annotations,
        traffic_distribution="PreferSameNode",
        topology_keys=keys,
        **changes,
    )
    return choose_strategy(made, gates=gates)


def test_topology_keys_come_first() -> None:
    """With every mechanism asked for, topologyKeys governs."""
    assert full().name is StrategyName.TOPOLOGY_KEYS


def test_subsetting_comes_second() -> None:
    """Without topologyKeys the subsetting annotation governs."""
    assert full(topology_keys=()).name is StrategyName.SUBSETTING


def test_topology_annotation_comes_third() -> None:
    """Without subsetting the topology annotation governs."""
    assert full(topology_keys=(), drop=(SUBSETTING,)).name is StrategyName.AUTO


def test_traffic_distribution_comes_fourth() -> None:
    """Without annotations the field governs."""
    chosen = full(topology_keys=(), drop=(SUBSETTING, MODE))
    assert (chosen.name, chosen.source) == (StrategyName.SAME_NODE, "spec.trafficDistribution")


@pytest.mark.parametrize(
    ("off", "want"),
    [
        pytest.param((), StrategyName.TOPOLOGY_KEYS, id="all gates on"),
        pytest.param((Gate.SERVICE_TOPOLOGY,), StrategyName.SUBSETTING, id="topologyKeys off"),
        pytest.param(
            (Gate.SERVICE_TOPOLOGY, Gate.TOPOLOGY_AWARE_SUBSETTING),
            StrategyName.AUTO,
            id="subsetting off too",
        ),
        pytest.param(
            (Gate.SERVICE_TOPOLOGY, Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.TOPOLOGY_AWARE_HINTS),
            StrategyName.SAME_NODE,
            id="hints gate off hands control to the field",
        ),
    ],
)
def test_a_gate_that_is_off_hands_control_to_the_next(
    off: tuple[Gate, ...], want: StrategyName
) -> None:
    """A mechanism whose gate is off is passed over, with the gate named as the reason."""
    chosen = full(gates=ALL.without(*off))
    assert chosen.name is want
    named = [reason.subject for reason in chosen.reasons if reason.code is ReasonCode.GATE_OFF]
    assert named == [f"FeatureGate {gate}" for gate in off]


def test_an_overridden_field_says_what_overrides_it() -> None:
    """The annotation wins over the field, and the reason names both."""
    made = service(annotations={MODE: "Auto"}, traffic_distribution="PreferClose")
    chosen = choose_strategy(made, gates=DEFAULT)
    assert chosen.distribution is DistributionVerdict.OVERRIDDEN
    assert chosen.reasons[-1].code is ReasonCode.OVERRIDDEN
    assert chosen.reasons[-1].message == (
        "spec.trafficDistribution: PreferClose is ignored because "
        f"metadata.annotations[{MODE}] takes precedence"
    )
    assert full().reasons[-1].message.endswith("because spec.topologyKeys takes precedence")


@pytest.mark.parametrize("value", ["Disabled", "Other", ""])
def test_a_disabled_topology_annotation_leaves_the_field_in_charge(value: str) -> None:
    """Only Auto overrides trafficDistribution; Disabled and unknown values do not."""
    made = service(annotations={MODE: value}, traffic_distribution="PreferSameZone")
    assert choose_strategy(made, gates=DEFAULT).name is StrategyName.SAME_ZONE


@pytest.mark.parametrize("key", [MODE, HINTS])
def test_node_needs_its_gate_on_either_annotation(key: str) -> None:
    """The value Node means node level with NodeLevelTopology on, else nothing."""
    made = service(annotations={key: "Node"})
    on = choose_strategy(made, gates=DEFAULT.with_gates(Gate.NODE_LEVEL_TOPOLOGY))
    assert on.name is StrategyName.NODE_LEVEL
    assert choose_strategy(made, gates=DEFAULT).name is StrategyName.NONE


@pytest.mark.parametrize(
    ("changes", "want_field"),
    [
        pytest.param({"internal_traffic_policy": "Local"}, "internalTrafficPolicy", id="internal"),
        pytest.param(
            {"type": "NodePort", "external_traffic_policy": "Local"},
            "externalTrafficPolicy",
            id="external",
        ),
        pytest.param(
            {"internal_traffic_policy": "PreferLocal"}, "internalTrafficPolicy", id="prefer local"
        ),
    ],
)
def test_subsetting_does_not_go_with_local_policies(
    changes: dict[str, Any], want_field: str
) -> None:
    """Subsets would hide local endpoints, so a Local policy passes subsetting over."""
    gates = DEFAULT.with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
    chosen = choose_strategy(service(annotations={SUBSETTING: "Auto"}, **changes), gates=gates)
    assert chosen.name is StrategyName.NONE
    assert chosen.reasons[0].code is ReasonCode.SUBSETTING_NEEDS_CLUSTER_POLICY
    assert f"because {want_field} is" in chosen.reasons[0].message


@pytest.mark.parametrize(
    ("annotations", "field", "want"),
    [
        pytest.param({}, None, StrategyName.SUBSETTING, id="no wish: the default applies"),
        pytest.param({SUBSETTING: "Nonsense"}, None, StrategyName.SUBSETTING, id="invalid value"),
        pytest.param({SUBSETTING: ""}, None, StrategyName.SUBSETTING, id="empty value"),
        pytest.param({SUBSETTING: "Disabled"}, None, StrategyName.NONE, id="opted out"),
        pytest.param({SUBSETTING: "Random"}, None, StrategyName.NONE, id="opted out by Random"),
        pytest.param({MODE: "Disabled"}, None, StrategyName.NONE, id="topology disabled"),
        pytest.param({}, "PreferSameZone", StrategyName.SAME_ZONE, id="a field wins"),
    ],
)
def test_default_subsetting_applies_to_services_without_a_wish(
    annotations: dict[str, str], field: str | None, want: StrategyName
) -> None:
    """The controller's default never overrides what a user expressed."""
    chosen = choose_strategy(
        service(annotations=annotations, traffic_distribution=field),
        gates=DEFAULT.with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING),
        default_subsetting=Approach.PREFER,
    )
    assert chosen.name is want
    assert chosen.is_explicit is (want is StrategyName.SAME_ZONE)


def test_default_subsetting_needs_its_gate_and_cluster_policy() -> None:
    """With the gate off, or a Local policy, the default does not apply."""
    off = choose_strategy(service(), gates=DEFAULT, default_subsetting=Approach.PREFER)
    local = choose_strategy(
        service(internal_traffic_policy="Local"),
        gates=DEFAULT.with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING),
        default_subsetting=Approach.PREFER,
    )
    assert (off.name, local.name) == (StrategyName.NONE, StrategyName.NONE)


def test_our_annotation_wins_over_the_field() -> None:
    """On an API server that refuses a value, the annotation says it and wins."""
    made = service(annotations={OURS: "PreferSameNode"}, traffic_distribution="PreferClose")
    chosen = choose_strategy(made, gates=DEFAULT)
    assert chosen.name is StrategyName.SAME_NODE
    assert chosen.source == f"metadata.annotations[{OURS}]"


def test_require_is_told_apart_from_prefer() -> None:
    """The approach travels with the strategy."""
    gates = DEFAULT.with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
    made = service(annotations={SUBSETTING: "Require"})
    assert choose_strategy(made, gates=gates).approach is Approach.REQUIRE


def test_configuration_alone_advises_no_other_mechanism() -> None:
    """Where endpoints are is unknown here, so no reason advises to change the Service."""
    gates = DEFAULT.without(Gate.TOPOLOGY_AWARE_HINTS)
    asked = [
        service(),
        service(annotations={MODE: "Auto"}),
        service(annotations={MODE: "On"}),
        service(annotations={MODE: "Auto"}, traffic_distribution="PreferClose"),
        service(traffic_distribution="example.com/Nearest"),
    ]
    for made in asked:
        for chosen in (choose_strategy(made, gates=DEFAULT), choose_strategy(made, gates=gates)):
            assert chosen.reasons
            assert [reason.fix for reason in chosen.reasons if reason.fix] == []


def test_lookups_name_the_field_that_counts() -> None:
    """The two look-ups return the path or key together with the value."""
    assert topology_annotation(service()) == (MODE, None)
    assert traffic_distribution(service()) == ("spec.trafficDistribution", None)


@settings(max_examples=100, deadline=None)
@given(
    value=st.none() | st.text(max_size=20),
    topology=st.none() | st.text(max_size=10),
    subsetting=st.none() | st.text(max_size=10),
    gates=st.frozensets(st.sampled_from(list(Gate))),
)
def test_every_service_gets_an_answer_with_a_reason(
    value: str | None, topology: str | None, subsetting: str | None, gates: frozenset[Gate]
) -> None:
    """Whatever stands in the fields, one mechanism is chosen and at least one reason given."""
    annotations = {
        key: text for key, text in ((MODE, topology), (SUBSETTING, subsetting)) if text is not None
    }
    made = service(annotations=annotations, traffic_distribution=value)
    chosen = choose_strategy(made, gates=FeatureGates(gates))
    assert chosen.reasons
    assert (chosen.name is StrategyName.NONE) == (chosen.source == "")


@pytest.mark.parametrize(
    ("heuristics", "installed"), [((), "none"), (("b.dev/X", "a.dev/X"), "a.dev/X, b.dev/X")]
)
def test_a_heuristic_that_is_missing_can_be_installed(
    heuristics: tuple[str, ...], installed: str
) -> None:
    """The fix names those that are installed."""
    strategy = choose_strategy(
        service(traffic_distribution="a.dev/Y"), gates=ALL, heuristics=frozenset(heuristics)
    )
    want = f"install the package that provides it; installed: {installed}"
    assert [reason.fix for reason in strategy.reasons] == [want]
