"""Scenarios are read strictly: what is wrong is said with the field and a fix."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from keepclose.advise.replaying.mechanisms import choose_mechanisms
from keepclose.advise.replaying.replay import replay_scenario
from keepclose.advise.replaying.replay_start import ReplayObjects
from keepclose.advise.replaying.scenario import (
    AddNodesEvent,
    AutoscaleEvent,
    DrainEvent,
    PodTimes,
    ReplayEvent,
    ReplayScenario,
)
from keepclose.advise.replaying.scenario_reading import read_scenario
from keepclose.cli.options import parse_duration
from support.replays import SETTINGS, THREE, cluster_of, scenario_of

FIELDS = st.sampled_from(
    [
        field.encode_name
        for part in (
            ReplayScenario,
            ReplayEvent,
            PodTimes,
            DrainEvent,
            AutoscaleEvent,
            AddNodesEvent,
        )
        for field in fields(part)
    ]
) | st.text(max_size=3)
ROLLOUT: dict[str, Any] = {"rollout": {}}


@pytest.mark.parametrize(
    ("raw", "field", "message", "fix"),
    [
        pytest.param([], "", "expected a map", "a scenario has the fields events, name", id="list"),
        pytest.param({}, "events", "Required value", "", id="no events"),
        pytest.param({"events": []}, "events", "there are none", "list what happens", id="empty"),
        pytest.param(
            {"event": [ROLLOUT]}, "event", "unknown field", "did you mean events?", id="field"
        ),
        pytest.param(
            {"events": [{"at": 1, "roll_out": {}}]},
            "events[0].roll_out",
            "unknown field",
            "did you mean rollout?",
            id="field of an event",
        ),
        pytest.param(
            {"events": [{"rollout": {"surge": 1}}]},
            "events[0].rollout.surge",
            "unknown field",
            "did you mean maxSurge?",
            id="field of an action",
        ),
        pytest.param(
            {"events": [ROLLOUT], "pods": {"readyAfter": "soon"}},
            "pods.readyAfter",
            'Invalid value: "soon": expected a duration such as 90s or 1m30s',
            "",
            id="duration",
        ),
        pytest.param(
            {"events": [{"at": -1, **ROLLOUT}]},
            "events[0].at",
            "expected a duration",
            "",
            id="negative time",
        ),
        pytest.param(
            {"events": [{"at": "25h", **ROLLOUT}]},
            "events[0].at",
            "no time may be longer than 24h",
            "",
            id="long time",
        ),
        pytest.param(
            {"events": [{"at": float("inf"), **ROLLOUT}]},
            "events[0].at",
            "expected a duration",
            "",
            id="endless time",
        ),
        pytest.param(
            {"events": [{"scale": {"replicas": "3"}}]},
            "events[0].scale.replicas",
            "expected a number, got a string",
            "",
            id="type",
        ),
        pytest.param(
            {"events": [{"scale": {"replicas": 1001}}]},
            "events[0].scale.replicas",
            "1001 is not between 0 and 1,000",
            "write a number of pods",
            id="many replicas",
        ),
        pytest.param(
            {"events": [{"autoscale": {"replicas": [1, -1]}}]},
            "events[0].autoscale.replicas[1]",
            "-1 is not between 0 and 1,000",
            "",
            id="negative replicas",
        ),
        pytest.param(
            {"events": [{"autoscale": {"replicas": [1] * 200, "every": "1h"}}]},
            "events[0].autoscale.every",
            "does not fit",
            "such as 60s",
            id="long autoscaling",
        ),
        pytest.param(
            {"events": [{"autoscale": {"replicas": [1] * 201}}]},
            "events[0].autoscale.replicas",
            "has 201 numbers",
            "",
            id="many steps",
        ),
        pytest.param(
            {"events": [{"at": 1}]},
            "events[0]",
            "needs one thing that happens, has none",
            "one of rollout, scale",
            id="nothing happens",
        ),
        pytest.param(
            {"events": [{"rollout": {}, "scale": {"replicas": 1}}]},
            "events[0]",
            "has rollout and scale",
            "",
            id="two things happen",
        ),
        pytest.param(
            {"events": [ROLLOUT] * 201}, "events", "more than 200", "leave some out", id="events"
        ),
        pytest.param(
            {"events": [{"drain": {}}]},
            "events[0].drain",
            "needs either nodes or a zone",
            "",
            id="drain of nothing",
        ),
        pytest.param(
            {"events": [{"rollout": {"maxSurge": "1/4"}}]},
            "events[0].rollout.maxSurge",
            "expected a number of pods or a percentage",
            "such as 25%",
            id="share",
        ),
        pytest.param(
            {"events": [ROLLOUT], "disruptionBudget": {}},
            "disruptionBudget",
            "needs one of minAvailable and maxUnavailable",
            "",
            id="budget",
        ),
        pytest.param(
            {"events": [ROLLOUT], "clients": {"connectionsPerSecond": 0}},
            "clients.connectionsPerSecond",
            "0 is no rate",
            "",
            id="rate",
        ),
        pytest.param(
            {"events": [ROLLOUT], "clients": {"zones": {"zone-a": -1}}},
            "clients.zones[zone-a]",
            "-1 is no part",
            "",
            id="part",
        ),
        pytest.param(
            {"events": [ROLLOUT], "duration": 0}, "duration", "longer than 0", "", id="no time"
        ),
        pytest.param(
            {"events": [{"at": "2m", **ROLLOUT}], "duration": "1m"},
            "events[0].at",
            "120 s is not before the end, 60 s",
            "make the duration longer",
            id="event after the end",
        ),
        pytest.param(
            {"events": [{"addNodes": {"zone": "zone-a", "count": 501}}]},
            "events[0].addNodes.count",
            "501 is not between 1 and 500",
            "",
            id="many nodes",
        ),
    ],
)
def test_what_is_wrong_with_a_scenario(raw: Any, field: str, message: str, fix: str) -> None:
    """The first problem names the field, what is wrong, and what to write."""
    problems = read_scenario(raw, parse_duration=parse_duration)
    assert isinstance(problems, list)
    assert problems[0].field == field
    assert message in problems[0].message
    assert fix in problems[0].fix


def test_all_problems_are_found_at_once() -> None:
    """Of one sort: unknown fields come first, then values."""
    problems = read_scenario(
        {"events": [{"at": 0}, {"drain": {}}], "duration": 0}, parse_duration=parse_duration
    )
    assert isinstance(problems, list)
    assert [problem.field for problem in problems] == ["duration", "events[0]", "events[1].drain"]


@pytest.mark.parametrize(
    ("raw", "field", "fix"),
    [
        pytest.param(
            {"service": "default/wbe"}, "service", "did you mean default/web?", id="Service"
        ),
        pytest.param({"port": "htp"}, "port", "did you mean http?", id="port"),
        pytest.param(
            {"clients": {"zones": {"zone-d": 1}}},
            "clients.zones[zone-d]",
            "did you mean zone-c or zone-b?",
            id="zone of clients",
        ),
        pytest.param(
            {"events": [{"zoneLoss": {"zone": "a"}}]},
            "events[0].zoneLoss.zone",
            "zones: zone-a, zone-b, zone-c",
            id="zone",
        ),
        pytest.param(
            {"events": [{"drain": {"nodes": ["n1", "n9"]}}]},
            "events[0].drain.nodes[1]",
            "nodes: n1, n2, n3",
            id="node",
        ),
        pytest.param(
            {"events": [{"rollout": {"deployment": "wep"}}]},
            "events[0].rollout.deployment",
            "did you mean web?",
            id="Deployment",
        ),
        pytest.param(
            {"events": [{"addNodes": {"zone": "zone-d", "like": "n7"}}]},
            "events[0].addNodes.like",
            "nodes: n1, n2, n3",
            id="node to copy",
        ),
    ],
)
def test_names_that_the_cluster_does_not_have(raw: Any, field: str, fix: str) -> None:
    """The problem names the field, and what was perhaps meant."""
    problems = _replay({"events": [ROLLOUT], **raw})
    assert isinstance(problems, list)
    assert (problems[0].field, problems[0].fix) == (field, fix)


def test_a_zone_that_an_earlier_event_adds_exists() -> None:
    """A new zone may be lost again."""
    events = [{"addNodes": {"zone": "zone-d"}}, {"at": 5, "zoneLoss": {"zone": "zone-d"}}]
    assert not isinstance(_replay({"events": events}), list)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        pytest.param(
            [{"autoscale": {"replicas": [1000, 0] * 100, "every": 0.1}}],
            "more than 10,000 pods are created in it",
            id="pods",
        ),
        pytest.param(
            [{"drain": {"nodes": ["n1"]}}] * 200, "more than 20,000 things happen in it", id="steps"
        ),
    ],
)
def test_hostile_scenarios_end(events: list[Any], message: str) -> None:
    """What would take too long is a problem."""
    raw = {"events": events, "disruptionBudget": {"maxUnavailable": 0}, "duration": "24h"}
    problems = _replay(raw)
    assert isinstance(problems, list)
    assert problems[0].message == message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_nothing_that_a_file_may_hold_fails(raw: Any) -> None:
    """Any values are a scenario, or have problems that name fields; a scenario can be played."""
    scenario = read_scenario(raw, parse_duration=parse_duration)
    if isinstance(scenario, list):
        assert scenario
        assert all(problem.message for problem in scenario)
        return
    _replay(raw)


def _replay(raw: dict[str, Any]) -> Any:
    objects: ReplayObjects = cluster_of(THREE, ["n1", "n2", "n3"])
    mechanisms = choose_mechanisms(["none"])
    assert isinstance(mechanisms, tuple)
    scenario: ReplayScenario = scenario_of(**raw)
    return replay_scenario(objects, scenario, mechanisms, settings=SETTINGS)
