"""Scenarios: what happens to pods and nodes, step by step."""

from __future__ import annotations

from collections import Counter

import pytest

from keepclose.simulate.mechanisms import (
    SCENARIOS,
    EventKind,
    Scenario,
    ScenarioEvent,
    ScenarioStep,
    play,
)


def scenario(*events: ScenarioEvent, endpoints: int = 12, zones: int = 3) -> Scenario:
    """Return a scenario on zones of two nodes each."""
    names = "abcdef"[:zones]
    return Scenario("test", "", {f"zone-{name}": 2 for name in names}, endpoints, events)


def count_pods(steps: tuple[ScenarioStep, ...]) -> list[int]:
    """Return how many pods there are after each step."""
    counts = []
    known: set[object] = set()
    for step in steps:
        assert known.issuperset(step.removed)
        known -= set(step.removed)
        assert known.isdisjoint(one.key for one in step.added)
        known |= {one.key for one in step.added}
        counts.append(len(known))
    return counts


@pytest.mark.parametrize(
    ("event", "want"),
    [
        pytest.param(ScenarioEvent(EventKind.SCALE_UP, 3), [12, 15], id="scaling up adds at once"),
        pytest.param(
            ScenarioEvent(EventKind.SCALE_DOWN, 5), [12, 7], id="scaling down removes at once"
        ),
        pytest.param(ScenarioEvent(EventKind.SCALE_DOWN, 50), [12, 0], id="nothing below none"),
        pytest.param(
            ScenarioEvent(EventKind.ROLLING_UPDATE),
            [12, 15, 12, 15, 12, 15, 12, 15, 12],
            id="a rollout surges by a quarter and then removes as many",
        ),
        pytest.param(ScenarioEvent(EventKind.NODE_RETURN), [12, 12], id="nothing was lost"),
    ],
)
def test_pods_after_each_step(event: ScenarioEvent, want: list[int]) -> None:
    """Each event comes down to steps with a known number of pods."""
    assert count_pods(play(scenario(event), 1)) == want


def test_a_rollout_leaves_no_old_pod() -> None:
    """Every pod of the start is removed, each once."""
    first, *rest = play(scenario(ScenarioEvent(EventKind.ROLLING_UPDATE)), 1)
    gone = Counter(key for step in rest for key in step.removed)
    assert gone == Counter(one.key for one in first.added)


def test_a_lost_zone_takes_its_pods_along_and_comes_back_empty() -> None:
    """Its nodes are gone, its pods start elsewhere, and stay there when the nodes return."""
    start, loss, restart, back = play(
        scenario(ScenarioEvent(EventKind.ZONE_LOSS), ScenarioEvent(EventKind.ZONE_RETURN)), 3
    )
    (lost,) = {one.zone for one in start.nodes} - {one.zone for one in loss.nodes}
    on_lost = {one.key for one in start.added if one.spec.node_name.startswith(lost)}
    assert set(loss.removed) == on_lost
    assert len(restart.added) == len(on_lost) > 0
    assert all(not one.spec.node_name.startswith(lost) for one in restart.added)
    assert back == ScenarioStep(EventKind.ZONE_RETURN, start.nodes)


def test_lost_nodes_are_as_many_as_asked() -> None:
    """A node loss strikes single nodes, not a zone."""
    _, loss, *_ = play(scenario(ScenarioEvent(EventKind.NODE_LOSS, 2)), 1)
    assert len(loss.nodes) == 4


def test_a_cluster_that_loses_everything_has_no_pods() -> None:
    """Without nodes nothing can be scheduled, and nothing fails."""
    steps = play(
        scenario(ScenarioEvent(EventKind.ZONE_LOSS), ScenarioEvent(EventKind.SCALE_UP, 4), zones=1),
        1,
    )
    assert count_pods(steps) == [12, 0, 0, 0]


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_seed_decides(name: str) -> None:
    """The same seed plays the same, another one differently; the number of events is the same."""
    one = SCENARIOS[name]
    assert play(one, 5) == play(one, 5)
    assert play(one, 5) != play(one, 6)
    assert len(play(one, 5)[0].added) == one.endpoints
