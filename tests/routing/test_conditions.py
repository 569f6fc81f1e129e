"""Status conditions about a Service's trafficDistribution."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.acknowledgements import HintLevel
from keepclose.model.endpointslice.types import Endpoint, EndpointConditions
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.service.types import Service
from keepclose.routing.conditions import (
    Acknowledgements,
    NodeSample,
    find_obstacle,
    merge_conditions,
    service_conditions,
)
from keepclose.routing.hint_facts import hint_levels, slice_facts
from keepclose.routing.hints import SliceSet
from keepclose.routing.strategy import choose_strategy
from keepclose.routing.topology import followed_levels
from support.builders import endpoint, endpoint_slice, service

GATES = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
MODE = "service.kubernetes.io/topology-mode"
HINTED = endpoint("10.0.0.1", zone="a", node_name="n1", for_zones=("a",), for_nodes=("n1",))
ZONE_ONLY = endpoint("10.0.0.2", zone="a", for_zones=("a",))
BARE = endpoint("10.0.0.3", node_name="n9")


def told(
    value: str | None,
    *endpoints: Endpoint,
    gates: FeatureGates = GATES,
    annotations: dict[str, str] | None = None,
    write_failed: str = "",
) -> list[tuple[str, str, str]]:
    """Return (type, status, reason) of the conditions for a value and the hinted endpoints."""
    made = service(traffic_distribution=value, annotations=annotations)
    strategy = choose_strategy(made, gates=gates, heuristics={"a.dev/X"})
    slices = SliceSet(unchanged=(endpoint_slice(*endpoints),))
    conditions = service_conditions(strategy, slices, write_failed=write_failed)
    return [(c.type.removeprefix("TrafficDistribution"), c.status, c.reason) for c in conditions]


ACCEPTED = ("Accepted", "True", "Accepted")


@pytest.mark.parametrize(
    ("value", "endpoints", "want"),
    [
        pytest.param(None, (HINTED,), [], id="nothing asked, nothing said"),
        pytest.param(
            "PreferSameZone",
            (ZONE_ONLY, endpoint("10.0.0.9", ready=False)),
            [ACCEPTED, ("Programmed", "True", "HintsPopulated")],
            id="all ready endpoints hinted",
        ),
        pytest.param(
            "PreferSameNode",
            (HINTED,),
            [ACCEPTED, ("Programmed", "True", "HintsPopulated")],
            id="zone and node hinted",
        ),
        pytest.param(
            "PreferSameNode",
            (HINTED, ZONE_ONLY),
            [ACCEPTED, ("Programmed", "False", "MissingTopology")],
            id="a node hint is missing",
        ),
        pytest.param(
            "PreferClose",
            (ZONE_ONLY, BARE),
            [ACCEPTED, ("Programmed", "False", "MissingTopology")],
            id="a zone hint is missing",
        ),
        pytest.param(
            "PreferClose", (), [ACCEPTED, ("Programmed", "False", "NoEndpoints")], id="empty"
        ),
        pytest.param(
            "Nonsense",
            (ZONE_ONLY,),
            [("Accepted", "False", "UnsupportedValue"), ("Programmed", "False", "NotAccepted")],
            id="unknown value",
        ),
        pytest.param(
            "b.dev/Y",
            (ZONE_ONLY,),
            [("Accepted", "False", "UnsupportedValue"), ("Programmed", "False", "NotAccepted")],
            id="foreign domain",
        ),
        pytest.param(
            "a.dev/X",
            (BARE,),
            [ACCEPTED, ("Programmed", "False", "NotAllocated")],
            id="the heuristic refused",
        ),
    ],
)
def test_conditions_tell_what_became_of_the_value(
    value: str | None, endpoints: tuple[Endpoint, ...], want: list[tuple[str, str, str]]
) -> None:
    """Accepted judges the value, Programmed the hints on ready endpoints."""
    assert told(value, *endpoints) == want


def test_a_gate_that_is_off_is_not_the_users_fault() -> None:
    """A known value behind a gate that is off is FeatureDisabled, not UnsupportedValue."""
    off = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    assert told("PreferSameNode", HINTED, gates=off)[0] == ("Accepted", "False", "FeatureDisabled")


def test_an_overridden_value_is_accepted_but_not_programmed() -> None:
    """The annotation's hints are not the field's."""
    got = told("PreferSameZone", ZONE_ONLY, annotations={MODE: "Auto"})
    assert got == [ACCEPTED, ("Programmed", "False", "OverriddenByAnnotation")]


def test_a_failed_write_is_not_programmed() -> None:
    """When slices could not be written, the condition carries the error."""
    got = told("PreferSameZone", ZONE_ONLY, write_failed="conflict")
    assert got[1] == ("Programmed", "False", "WriteFailed")


@pytest.mark.parametrize(
    ("acks", "want_status", "want_reason"),
    [
        pytest.param(Acknowledgements(3, 3, 3), "True", "AllNodesAcknowledged", id="all"),
        pytest.param(Acknowledgements(3, 2, 2), "Unknown", "Pending", id="one has not answered"),
        pytest.param(Acknowledgements(3, 3, 2), "False", "PartiallyHonored", id="one cannot"),
        pytest.param(Acknowledgements(0, 0, 0), "Unknown", "Pending", id="there is no node"),
    ],
)
def test_honored_counts_nodes(acks: Acknowledgements, want_status: str, want_reason: str) -> None:
    """Honored is true when every node has answered and uses the hints."""
    strategy = choose_strategy(service(traffic_distribution="PreferClose"), gates=GATES)
    conditions = service_conditions(
        strategy, SliceSet(unchanged=(endpoint_slice(ZONE_ONLY),)), acknowledgements=acks
    )
    assert (conditions[2].type, conditions[2].status, conditions[2].reason) == (
        "TrafficDistributionHonored",
        want_status,
        want_reason,
    )


def test_messages_of_honored_name_few_nodes() -> None:
    """An answer that changes neither status nor the few named changes no message."""
    strategy = choose_strategy(service(traffic_distribution="PreferClose"), gates=GATES)
    slices = SliceSet(unchanged=(endpoint_slice(ZONE_ONLY),))

    def message(acks: Acknowledgements) -> str:
        return service_conditions(strategy, slices, acknowledgements=acks)[2].message

    pending = "not all ready nodes have answered for the hints as written"
    all_of_them = "all ready nodes use the hints as written"
    assert [message(Acknowledgements(9, n, n)) for n in (0, 1, 8)] == [pending] * 3
    assert [message(Acknowledgements(n, n, n)) for n in (1, 9)] == [all_of_them] * 2
    named = ("n1", "n2", "n3")
    silent = "no answer for the hints as written from nodes n1, n2, n3"
    for count, others in (
        (3, ""),
        (5, " and 2 more"),
        (13, " and more than 9 others"),
        (99, " and more than 9 others"),
        (5003, " and more than 999 others"),
    ):
        acks = Acknowledgements(9000, 1, 1, silent=NodeSample(count, named))
        assert message(acks) == silent + others
    refusing = NodeSample(2, ("n1 (ZoneNotHinted)", "n2 (NodeWithoutZone)"))
    assert message(Acknowledgements(9, 9, 7, refusing=refusing)) == (
        "the hints are not used on nodes n1 (ZoneNotHinted), n2 (NodeWithoutZone)"
    )


@pytest.mark.parametrize("answered", [0, 3])
def test_nodes_that_do_not_go_by_such_hints_decide_at_once(answered: int) -> None:
    """Whatever other nodes say, the hints are not honoured everywhere."""
    strategy = choose_strategy(service(traffic_distribution="PreferSameNode"), gates=GATES)
    acks = Acknowledgements(
        3, answered, answered, unable=NodeSample(1, ("n7",)), lacking=HintLevel.NODES
    )
    [*_, honored] = service_conditions(
        strategy, SliceSet(unchanged=(endpoint_slice(HINTED),)), acknowledgements=acks
    )
    assert (honored.status, honored.reason) == ("False", "PartiallyHonored")
    assert honored.message == (
        "proxies do not follow hints forNodes, probably with feature gate "
        "PreferSameTrafficDistribution off, on nodes n7"
    )


@pytest.mark.parametrize(
    ("made", "want"),
    [
        pytest.param(service(), None, id="hints govern"),
        pytest.param(service(external_traffic_policy="Local"), None, id="only from outside"),
        pytest.param(
            service(labels={"service.kubernetes.io/service-proxy-name": ""}),
            ("Unknown", "OtherProxy"),
            id="another proxy, be its name empty",
        ),
        pytest.param(service(cluster_ip="None"), ("False", "Headless"), id="headless"),
        pytest.param(
            service(internal_traffic_policy="Local"), ("False", "OverriddenByPolicy"), id="policy"
        ),
    ],
)
def test_what_hints_do_not_govern_is_not_honoured(
    made: Service, want: tuple[str, str] | None
) -> None:
    """Nodes are not asked about traffic that hints do not lead."""
    found = find_obstacle(made, gates=GATES)
    assert (None if found is None else found[:2]) == want


@pytest.mark.parametrize(
    ("off", "want"),
    [
        pytest.param((), {HintLevel.ZONES, HintLevel.NODES}, id="all on"),
        pytest.param(
            (Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,), {HintLevel.ZONES}, id="no node hints"
        ),
        pytest.param((Gate.SERVICE_TRAFFIC_DISTRIBUTION,), set(), id="no hints"),
    ],
)
def test_gates_say_which_hints_a_node_goes_by(off: tuple[Gate, ...], want: set[HintLevel]) -> None:
    """The rule that selects endpoints is the one that a node states."""
    assert followed_levels(FeatureGates().without(*off)) == want


def test_levels_of_hints_are_those_of_all_endpoints() -> None:
    """An endpoint without a node has zone hints alone, beside others that have both."""
    assert hint_levels([endpoint_slice(BARE)]) == set()
    assert hint_levels([endpoint_slice(BARE, ZONE_ONLY)]) == {HintLevel.ZONES}
    assert hint_levels([endpoint_slice(ZONE_ONLY, HINTED)]) == {
        HintLevel.ZONES,
        HintLevel.NODES,
    }


@pytest.mark.parametrize("ready", [True, False])
@pytest.mark.parametrize("endpoints", [(), (BARE,), (BARE, ZONE_ONLY), (ZONE_ONLY, HINTED)])
def test_facts_have_the_levels_of_all_endpoints(
    endpoints: tuple[Endpoint, ...], *, ready: bool
) -> None:
    """Endpoints that are not ready count as well."""
    conditions = EndpointConditions(ready=ready)
    hinted = endpoint_slice(*(replace(endpoint, conditions=conditions) for endpoint in endpoints))
    assert slice_facts(hinted).levels == hint_levels([hinted])


def test_nothing_is_honoured_where_nothing_is_programmed() -> None:
    """Without hints there is nothing that nodes could honour."""
    acks = Acknowledgements(3, 3, 3)
    strategy = choose_strategy(service(traffic_distribution="PreferClose"), gates=GATES)
    conditions = service_conditions(
        strategy, SliceSet(), acknowledgements=acks, prefix="keepclose.dev/"
    )
    assert [(one.type, one.reason) for one in conditions] == [
        ("keepclose.dev/TrafficDistributionAccepted", "Accepted"),
        ("keepclose.dev/TrafficDistributionProgrammed", "NoEndpoints"),
    ]


def test_honored_has_the_prefix_too() -> None:
    """Honored stands under the domain of the implementation, and counts Programmed under it."""
    strategy = choose_strategy(service(traffic_distribution="PreferClose"), gates=GATES)
    slices = SliceSet(unchanged=(endpoint_slice(ZONE_ONLY),))
    conditions = service_conditions(
        strategy, slices, acknowledgements=Acknowledgements(1, 1, 1), prefix="keepclose.dev/"
    )
    assert conditions[2].type == "keepclose.dev/TrafficDistributionHonored"


def test_another_implementation_prefixes_its_types() -> None:
    """Beside the EndpointSlice controller, condition types carry our domain."""
    strategy = choose_strategy(service(traffic_distribution="PreferClose"), gates=GATES)
    conditions = service_conditions(strategy, SliceSet(), prefix="keepclose.dev/")
    assert [c.type for c in conditions] == [
        "keepclose.dev/TrafficDistributionAccepted",
        "keepclose.dev/TrafficDistributionProgrammed",
    ]


OLD = Condition(
    type="TrafficDistributionAccepted",
    status="True",
    reason="Accepted",
    message="x",
    last_transition_time="t0",
)
FOREIGN = Condition(type="example.com/Other", status="True", last_transition_time="t0")


def test_an_unchanged_condition_keeps_its_time() -> None:
    """Nothing to say anew leaves the conditions equal, so that nothing is written."""
    wanted = (Condition(type=OLD.type, status="True", reason="Accepted", message="x"),)
    assert merge_conditions((FOREIGN, OLD), wanted, now="t1") == (FOREIGN, OLD)


def test_a_changed_status_moves_the_time_and_a_changed_message_does_not() -> None:
    """The transition time tells since when the status holds."""
    flipped = merge_conditions((OLD,), (Condition(type=OLD.type, status="False"),), now="t1")
    reworded = merge_conditions(
        (OLD,), (Condition(type=OLD.type, status="True", message="y"),), now="t1"
    )
    assert flipped[0].last_transition_time == "t1"
    assert (reworded[0].last_transition_time, reworded[0].message) == ("t0", "y")


def test_conditions_go_when_the_field_goes() -> None:
    """Our conditions are removed with the value, foreign ones stay."""
    assert merge_conditions((FOREIGN, OLD), (), now="t1") == (FOREIGN,)


def test_new_conditions_are_appended() -> None:
    """A condition that was not there starts now."""
    new = Condition(type="TrafficDistributionProgrammed", status="True")
    merged = merge_conditions((FOREIGN,), (new,), now="t1")
    assert [(c.type, c.last_transition_time) for c in merged] == [
        ("example.com/Other", "t0"),
        ("TrafficDistributionProgrammed", "t1"),
    ]
