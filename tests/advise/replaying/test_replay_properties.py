"""What holds for every scenario: repeatable, as the real planner says, and settled in the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.advise.replaying.mechanisms import REPLAY_MECHANISMS, choose_mechanisms
from keepclose.advise.replaying.replay import Replay
from keepclose.advise.replaying.replay_start import ReplayObjects
from keepclose.cli.replay.report import render_markdown, replay_document
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node, Pod
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes
from support.replays import SETTINGS, cluster_of, replay_of

ZONES = ("zone-a", "zone-b", "zone-c")
NAMES = st.sampled_from([mechanism.name for mechanism in REPLAY_MECHANISMS])
TIMES = st.integers(min_value=0, max_value=120)
ZONE = st.sampled_from(ZONES)
SHARES = st.one_of(st.integers(0, 3), st.sampled_from(["0%", "25%", "100%"]))
ACTIONS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {
            "rollout": st.fixed_dictionaries(
                {},
                optional={
                    "maxSurge": SHARES,
                    "maxUnavailable": SHARES,
                    "minReadySeconds": st.just(5),
                },
            )
        }
    ),
    st.fixed_dictionaries({"scale": st.fixed_dictionaries({"replicas": st.integers(0, 12)})}),
    st.fixed_dictionaries(
        {
            "autoscale": st.fixed_dictionaries(
                {
                    "replicas": st.lists(st.integers(0, 12), min_size=1, max_size=4),
                    "every": st.just(17),
                }
            )
        }
    ),
    st.fixed_dictionaries(
        {"drain": st.fixed_dictionaries({"zone": ZONE}, optional={"backAfter": st.integers(0, 60)})}
    ),
    st.fixed_dictionaries(
        {
            "zoneLoss": st.fixed_dictionaries(
                {"zone": ZONE},
                optional={
                    "lasts": st.integers(0, 200),
                    "detectedAfter": st.integers(0, 60),
                    "evictedAfter": st.integers(0, 60),
                },
            )
        }
    ),
    st.fixed_dictionaries(
        {
            "addNodes": st.fixed_dictionaries(
                {"zone": ZONE},
                optional={"zoneLabelAfter": st.integers(0, 90), "count": st.integers(1, 3)},
            )
        }
    ),
    st.fixed_dictionaries(
        {
            "dropZoneLabels": st.fixed_dictionaries(
                {"zone": ZONE}, optional={"lasts": st.integers(0, 90)}
            )
        }
    ),
)
EVENTS = st.lists(
    st.builds(lambda at, action: {"at": at, **action}, TIMES, ACTIONS), min_size=1, max_size=4
)
POD_TIMES = st.fixed_dictionaries(
    {},
    optional={
        "startAfter": st.integers(0, 5),
        "readyAfter": st.integers(0, 20),
        "readySpread": st.integers(0, 10),
        "acceptsFor": st.integers(0, 10),
        "exitsAfter": st.integers(0, 40),
    },
)
SCENARIOS = st.fixed_dictionaries(
    {"events": EVENTS},
    optional={
        "pods": POD_TIMES,
        "controller": st.fixed_dictionaries({"batchPeriod": st.sampled_from([0, "500ms", 7])}),
        "proxy": st.fixed_dictionaries({"delay": st.sampled_from([0, 1, "2500ms"])}),
        "disruptionBudget": st.fixed_dictionaries({"maxUnavailable": st.integers(1, 2)}),
    },
)
CLUSTERS = st.builds(
    lambda zones, placed: cluster_of(
        {f"n{number}": zone for number, zone in enumerate(zones, 1)},
        [f"n{1 + place % len(zones)}" for place in placed],
    ),
    # Every zone of an event has a node.
    st.lists(ZONE, max_size=3).map(lambda more: [*ZONES, *more]),
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
)


@given(CLUSTERS, SCENARIOS, NAMES, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_the_same_seed_gives_the_same_replay(
    objects: ReplayObjects, raw: dict[str, Any], name: str, seed: int
) -> None:
    """Every step, span and write is the same."""
    first = replay_of(objects, name, seed=seed, **raw)
    again = replay_of(objects, name, seed=seed, **raw)
    assert first.played == again.played
    assert first.runs == again.runs
    documents = [msgspec.json.encode(replay_document(each)) for each in (first, again)]
    assert documents[0] == documents[1]
    assert render_markdown(first).isascii()


@given(CLUSTERS, SCENARIOS, NAMES)
@settings(max_examples=100, deadline=None)
def test_every_sync_writes_what_the_planner_says(
    objects: ReplayObjects, raw: dict[str, Any], name: str
) -> None:
    """Also if it knows only the objects of that moment; at the end it has nothing to write."""
    replay = replay_of(objects, name, **raw)
    (run,) = replay.runs
    slices: list[EndpointSlice] = list(run.syncs[0].slices)
    for sync in run.syncs[1:]:
        slices = _write(slices, _plan(replay, name, sync.at, slices))
        assert slices == list(sync.slices)
    assert slices == list(run.slices)
    assert _plan(replay, name, replay.played.end, slices).is_empty


@given(CLUSTERS, SCENARIOS, NAMES)
@settings(max_examples=60, deadline=None)
def test_connections_are_neither_lost_nor_doubled(
    objects: ReplayObjects, raw: dict[str, Any], name: str
) -> None:
    """Spans follow each other to the end, and what fails or leaves its zone was sent."""
    replay = replay_of(objects, name, **raw)
    (run,) = replay.runs
    borders = [(span.start, span.end) for span in run.spans]
    assert borders[0][0] == 0.0
    assert borders[-1][1] == replay.played.end
    assert all(before[1] == after[0] for before, after in pairwise(borders))
    for span in run.spans:
        load = span.load
        assert -1e-9 <= load.failed <= load.sent + 1e-6
        assert load.left_zone + load.failed <= load.sent + 1e-6
        assert load.without_zones <= load.sent + 1e-6
        assert load.busiest >= 1 - 1e-9 or load.failed >= load.sent - 1e-6


def _plan(replay: Replay, name: str, at: float, slices: list[EndpointSlice]) -> ServicePlan:
    pods: dict[NamespacedName, Pod] = {}
    nodes: tuple[Node, ...] = ()
    for step in replay.played.steps:
        if step.at > at:
            break
        for key in step.removed:
            pods.pop(key, None)
        pods.update((pod.key, pod) for pod in step.pods)
        nodes = step.nodes or nodes
    mechanisms = choose_mechanisms([name])
    assert isinstance(mechanisms, tuple)
    service, planner_settings = mechanisms[0].apply(replay.start.service, SETTINGS)
    return plan_service(
        service,
        pods=pods.values(),
        slices=slices,
        cluster=ClusterNodes.of(nodes, weighted_zones=frozenset(n.zone for n in nodes) - {""}),
        settings=planner_settings,
    )


def _write(slices: list[EndpointSlice], plan: ServicePlan) -> list[EndpointSlice]:
    for writes in plan.plans.values():
        slices = apply_plan(slices, writes)
    return slices
