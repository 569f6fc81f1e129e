"""Rollouts, by hand: three pods and three client nodes in three zones, 100 connections a second."""

from __future__ import annotations

import pytest

from support.replays import THREE, cluster_of, events_of, replay_of, run_of

PODS = cluster_of(THREE, ["n1", "n2", "n3"])
ROLLOUT = {"at": "10s", "rollout": {"maxSurge": 0, "maxUnavailable": 1}}


def test_a_rollout_without_surge_under_prefer_same_zone() -> None:
    """Each zone in turn has no ready pod for 10 s: a third of the connections leave their zone."""
    run = run_of(PODS, proxy={"delay": 0}, events=[ROLLOUT])
    spans = [(span.start, span.end, round(span.load.left_zone, 3)) for span in run.spans]
    # The three reasons for it differ: zone-a, zone-b and zone-c.
    assert spans == [
        (0.0, 10.0, 0.0),
        (10.0, 20.0, 33.333),
        (20.0, 30.0, 33.333),
        (30.0, 40.0, 33.333),
        (40.0, 100.0, 0.0),
    ]
    assert run.without_zones_s == 30.0
    assert run.left_zone == pytest.approx(1000.0)
    assert run.sent == pytest.approx(10_000.0)
    assert run.failed == 0.0
    # The two pods that are left share evenly: 33.3 of their zone, and half of 33.3.
    assert run.peak == pytest.approx(1.0)
    assert (run.flaps, run.rehinted) == (0, 0)
    # For each pod: it ends and the next one begins, that has an address, the old one is gone.
    assert [sync.at for sync in run.syncs if sync.writes] == [
        10.0,
        11.0,
        15.0,
        20.0,
        21.0,
        25.0,
        30.0,
        31.0,
        35.0,
        40.0,
    ]
    assert run.writes == 10
    assert "zone-a" in run.why


def test_the_account_of_a_rollout() -> None:
    """It begins when asked and is complete when the last new pod is ready."""
    replay = replay_of(PODS, proxy={"delay": 0}, events=[ROLLOUT])
    assert events_of(replay) == [
        (10.0, "rollout of web begins"),
        (40.0, "rollout of web is complete"),
    ]
    assert replay.played.end == 100.0
    assert [pod.spec.node_name for step in replay.played.steps for pod in step.pods][-1] == "n3"


def test_pods_that_end_at_once_cost_the_connections_until_proxies_know() -> None:
    """For a second after each deletion, nodes route to a pod that is gone."""
    run = run_of(PODS, pods={"acceptsFor": 0}, proxy={"delay": "1s"}, events=[ROLLOUT])
    failed = {span.start: round(span.load.failed, 2) for span in run.spans if span.load.failed}
    # zone-a has web-1 alone; then zone-a falls back to both others, so web-2 has half of it more.
    assert failed == {10.0: 33.33, 20.0: 50.0, 30.0: 50.0}
    assert run.failed == pytest.approx(400 / 3)
    assert run.writes == 7


def test_a_surge_keeps_every_zone() -> None:
    """With a surge of one, the new pod of a zone is ready before the old one is deleted."""
    run = run_of(
        PODS,
        proxy={"delay": 0},
        events=[{"at": 10, "rollout": {"maxSurge": 3, "maxUnavailable": 0}}],
    )
    assert (run.without_zones_s, run.failed, run.left_zone) == (0.0, 0.0, 0.0)
    assert run.peak == pytest.approx(1.0)


def test_without_a_mechanism_two_thirds_leave_their_zone() -> None:
    """Every endpoint gets the same, before, during and after the rollout."""
    run = run_of(PODS, "none", proxy={"delay": 0}, events=[ROLLOUT])
    assert run.without_zones_s == 100.0
    assert run.left_zone == pytest.approx(10_000 * 2 / 3)
    assert run.peak == pytest.approx(1.0)


def test_min_ready_seconds_hold_a_rollout_back() -> None:
    """A pod counts as available only after it has been ready for that long."""
    replay = replay_of(
        PODS,
        proxy={"delay": 0},
        events=[{"at": 0, "rollout": {"maxSurge": 0, "maxUnavailable": 1, "minReadySeconds": 20}}],
    )
    # 10 s to be ready and 20 s to be available, three times.
    assert events_of(replay)[-1] == (90.0, "rollout of web is complete")


def test_batched_changes_are_written_once() -> None:
    """With a batch period the address of the new pod and its predecessor's end are one write."""
    run = run_of(PODS, proxy={"delay": 0}, controller={"batchPeriod": "6s"}, events=[ROLLOUT])
    # From 10 s on: 16 (10, 11 and 15), 26, 36 and 46.
    assert [sync.at for sync in run.syncs if sync.writes] == [16.0, 26.0, 36.0, 46.0]


def test_a_spread_of_ready_times_is_drawn_by_the_seed() -> None:
    """The same seed gives the same times, another seed others, all within the spread."""
    times = [
        [
            step.at
            for step in replay_of(
                PODS, seed=seed, pods={"readySpread": "10s"}, events=[ROLLOUT]
            ).played.steps
        ]
        for seed in (1, 1, 2)
    ]
    assert times[0] == times[1] != times[2]
    assert 40.0 <= times[0][-1] <= 70.0
