"""Drains, zone losses, late labels and autoscaling, each by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.workloads.constraints import NodeLabelSelector
from keepclose.model.workloads.disruption_budgets import DisruptionBudgetSpec, PodDisruptionBudget
from support.builders import pod
from support.replays import THREE, cluster_of, events_of, replay_of, run_of, sizes_of

PODS = cluster_of(THREE, ["n1", "n2", "n3"])
QUIET = [{"at": 1, "drain": {"nodes": ["n1"]}}]
SIX = {**THREE, "n4": "zone-a", "n5": "zone-b", "n6": "zone-c"}


def test_a_lost_zone_fails_until_proxies_know() -> None:
    """A third of what the other zones send goes to the dead pod for 51 s, without a mechanism."""
    loss = [{"at": "10s", "zoneLoss": {"zone": "zone-a"}}]
    run = run_of(PODS, "none", events=loss)
    assert run.failed == pytest.approx(51 * 200 / 3 / 3)
    assert run_of(PODS, "PreferSameZone", events=loss).failed == 0.0


def test_clients_of_a_lost_zone_send_nothing() -> None:
    """Two thirds are left; the parts of zones can be given, too."""
    loss = [{"at": "10s", "zoneLoss": {"zone": "zone-a"}}]
    assert run_of(PODS, events=loss).spans[-1].load.sent == pytest.approx(200 / 3)
    run = run_of(
        PODS,
        clients={"connectionsPerSecond": 10, "zones": {"zone-a": 3, "zone-b": 1}},
        events=loss,
    )
    assert [run.spans[0].load.sent, run.spans[-1].load.sent] == pytest.approx([10.0, 2.5])


def test_the_stages_of_a_zone_loss() -> None:
    """Detection, eviction and return at their times; the replacements are elsewhere by then."""
    replay = replay_of(
        PODS,
        events=[
            {
                "at": 10,
                "zoneLoss": {
                    "zone": "zone-a",
                    "lasts": "200s",
                    "detectedAfter": "40s",
                    "evictedAfter": "100s",
                },
            }
        ],
    )
    assert events_of(replay) == [
        (10.0, "zone zone-a is lost"),
        (50.0, "the loss of zone zone-a is detected"),
        (150.0, "the pods of zone zone-a are deleted"),
        (210.0, "zone zone-a is back"),
    ]
    # n1 is back, its pod is not: two pods are in the other zones, the third joined them.
    assert replay.runs[0].spans[-1].load.without_zones == pytest.approx(100 / 3)


def test_pods_that_are_not_evicted_start_again() -> None:
    """A short loss keeps the pods; they are ready again some time after the return."""
    replay = replay_of(
        PODS,
        proxy={"delay": 0},
        events=[{"at": 10, "zoneLoss": {"zone": "zone-a", "lasts": "60s"}}],
    )
    (run,) = replay.runs
    # Until 70 s nothing is sent in zone-a; then its pod needs 10 s.
    falling_back = [(span.start, span.end) for span in run.spans if span.load.without_zones]
    assert falling_back == [(70.0, 80.0)]
    assert (run.failed, run.spans[-1].load.left_zone) == (0.0, 0.0)


def test_a_drain_waits_for_the_budget() -> None:
    """One pod may be missing: the second node waits until the pod of the first is replaced."""
    replay = replay_of(
        cluster_of(SIX, list(SIX)),
        pods={"readyAfter": "20s", "acceptsFor": "3s"},
        disruptionBudget={"maxUnavailable": 1},
        events=[{"at": 10, "drain": {"nodes": ["n2", "n5"], "backAfter": "1m"}}],
    )
    budget = "PodDisruptionBudget disruptionBudget needs 5 healthy pods and has 5"
    assert events_of(replay) == [
        (10.0, "drain of n2, n5 begins"),
        (13.0, "n2 is drained"),
        (13.0, f"n5: an eviction is refused, {budget}"),
        # The replacement is ready at 30 s; kubectl tries at 18, 23, 28 and 33 s.
        (36.0, "n5 is drained"),
        (73.0, "n2 is uncordoned"),
        (96.0, "n5 is uncordoned"),
    ]


def test_a_drain_without_a_budget_does_not_wait() -> None:
    """Both pods of a node are evicted at once."""
    replay = replay_of(
        cluster_of(THREE, ["n1", "n1", "n2", "n3"]),
        pods={"acceptsFor": "2s"},
        events=[{"at": 0, "drain": {"zone": "zone-a"}}],
    )
    assert events_of(replay) == [(0.0, "drain of n1 begins"), (2.0, "n1 is drained")]


def test_a_drain_that_no_budget_allows_ends_with_the_replay() -> None:
    """The eviction is refused for an hour, which is said once."""
    replay = replay_of(
        PODS,
        disruptionBudget={"minAvailable": "100%"},
        events=[{"at": 0, "drain": {"nodes": ["n1"]}}],
    )
    budget = "PodDisruptionBudget disruptionBudget needs 3 healthy pods and has 3"
    assert [note for _, note in events_of(replay)] == [
        "drain of n1 begins",
        f"n1: an eviction is refused, {budget}",
    ]
    assert replay.played.end == 3600.0


def test_two_budgets_refuse_every_eviction() -> None:
    """As the API server does, whatever their numbers are."""
    budgets = tuple(
        PodDisruptionBudget(
            metadata=ObjectMeta(name=name, namespace="default"),
            spec=DisruptionBudgetSpec(min_available=0, selector=NodeLabelSelector()),
        )
        for name in ("one", "two")
    )
    objects = cluster_of(THREE, ["n1", "n2", "n3"])
    replay = replay_of(
        type(objects)(objects.inventory, budgets=budgets),
        duration="1m",
        events=[{"at": 0, "drain": {"nodes": ["n1"]}}],
    )
    assert events_of(replay)[-1][1].endswith(
        "more than one PodDisruptionBudget covers the pod: one, two"
    )


def test_a_missing_zone_label_costs_all_zones_their_hints() -> None:
    """One endpoint without a zone has no hint, so no node follows any, until the label is back."""
    run = run_of(
        PODS,
        proxy={"delay": 0},
        duration="2m",
        events=[{"at": 10, "dropZoneLabels": {"nodes": ["n1"], "lasts": "60s"}}],
    )
    assert run.without_zones_s == 60.0
    assert run.left_zone == pytest.approx(60 * 200 / 3)
    assert (run.writes, run.rehinted, run.flaps) == (2, 2, 1)


def test_nodes_that_join_without_a_label_get_pods_all_the_same() -> None:
    """The next pod goes there; from its readiness until the label no node follows hints."""
    run = run_of(
        cluster_of(THREE, ["n1", "n2", "n3"]),
        proxy={"delay": 0},
        duration="2m",
        events=[
            {"at": 0, "addNodes": {"zone": "zone-c", "zoneLabelAfter": "60s"}},
            {"at": 10, "scale": {"replicas": 4}},
        ],
    )
    spans = [(span.start, span.end) for span in run.spans if span.load.without_zones > 99]
    # Until 20 s only the new node itself knows no zone; the others follow their hints.
    assert spans == [(20.0, 60.0)]
    assert run.spans[0].load.without_zones == pytest.approx(100 / 3)
    assert run.spans[-1].load.without_zones == 0.0


def test_autoscaling_sets_one_number_after_the_other() -> None:
    """Pods come and go with the numbers."""
    replay = replay_of(
        PODS, events=[{"at": 5, "autoscale": {"replicas": [6, 9, 2], "every": "30s"}}]
    )
    assert events_of(replay) == [
        (5.0, "web is scaled from 3 to 6"),
        (35.0, "web is scaled from 6 to 9"),
        (65.0, "web is scaled from 9 to 2"),
    ]
    (run,) = replay.runs
    endpoints = sizes_of(run)
    assert [endpoints[at] for at in (0.0, 15.0, 45.0, 65.0)] == [3, 6, 9, 2]


def test_pods_that_fit_nowhere_wait() -> None:
    """With every node cordoned, the replacement stays pending, which is said."""
    replay = replay_of(
        cluster_of({"n1": "zone-a"}, ["n1"]),
        duration="5m",
        events=[{"at": 10, "drain": {"nodes": ["n1"], "backAfter": "1m"}}],
    )
    notes = [note for _, note in events_of(replay)]
    assert "1 pod waits for a node: 0/1 nodes are available: 1 node(s) were unschedulable." in notes
    (run,) = replay.runs
    # The old pod answers until 15 s; the node is back at 75 s, the new pod ready 10 s later.
    assert run.failed == pytest.approx(100 * (85 + 1 - 15))


def test_pods_that_only_stale_slices_have_are_gone() -> None:
    """As in a plan: among other Pods of the namespace, those that slices alone name are deleted."""
    objects = cluster_of(THREE, ["n1", "n2", "n3"])
    replay = replay_of(objects, events=QUIET, duration="10s")
    slices = {replay.start.service.key: replay.runs[0].slices}
    other = pod("other", "n1", labels={"app": "other"})
    stale = replace(objects.inventory, pods={"default": (other,)}, slices=slices)
    empty = replay_of(replace(objects, inventory=stale), events=QUIET, duration="10s")
    assert not empty.start.pods
    assert any("so they count as deleted" in note for note in empty.start.notes)
    unread = replace(objects.inventory, pods={}, slices=slices)
    assert (
        len(replay_of(replace(objects, inventory=unread), events=QUIET, duration="10s").start.pods)
        == 3
    )


def test_pods_of_a_daemon_set_outlive_the_loss_of_their_zone() -> None:
    """They tolerate lost nodes, so no eviction deletes them, and they start again."""
    objects = cluster_of(THREE, ["n1", "n2", "n3"])
    owner = OwnerReference("apps/v1", "DaemonSet", "web", "u1", controller=True)
    pods = tuple(
        replace(each, metadata=replace(each.metadata, owner_references=(owner,)))
        for each in objects.inventory.pods["default"]
    )
    daemons = replace(objects, inventory=replace(objects.inventory, pods={"default": pods}))
    loss = {"zone": "zone-a", "detectedAfter": "40s", "evictedAfter": "5m", "lasts": "10m"}
    run = run_of(daemons, events=[{"at": 10, "zoneLoss": loss}])
    assert [*sizes_of(run).values()] == [3, 2, 3]
