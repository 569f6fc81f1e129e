"""What a ReplicaSet makes, gives up and reports."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import DELETION_COST, rank_for_deletion
from keepclose.model.workloads.replica_set_plan import failure_to_create, plan_replica_set
from keepclose.model.workloads.types import ReplicaSetStatus
from support.lab.labobjects import NOW, a_pod, a_replica_set, stamp


def test_counts_and_gaps() -> None:
    """Ended and terminating pods are no replicas, so two are missing of four."""
    pods = [
        a_pod("ready", "n1", ready=True),
        a_pod("young", "n1", ready=True, ready_for_s=3),
        a_pod("going", "n1", ready=True, terminating=True),
        a_pod("failed", "n1", phase="Failed"),
    ]
    replica_set = a_replica_set("rs", 4, generation=7, minReadySeconds=10)
    plan = plan_replica_set(replica_set, pods, now=NOW)
    assert (plan.missing, plan.excess, plan.recheck_s) == (2, (), 7.0)
    assert plan.status == ReplicaSetStatus(
        observed_generation=7,
        replicas=2,
        fully_labeled_replicas=2,
        ready_replicas=2,
        available_replicas=1,
        terminating_replicas=1,
    )


def test_pods_about_to_go_are_no_longer_counted() -> None:
    """The status is that after the surplus was asked to go."""
    pods = [a_pod(name, "n1", ready=True) for name in "abc"]
    plan = plan_replica_set(a_replica_set("rs", 1), pods, now=NOW)
    assert len(plan.excess) == 2
    assert (plan.status.replicas, plan.status.available_replicas) == (1, 1)
    assert plan.status.terminating_replicas == 2


def test_a_replica_set_on_its_way_out_changes_nothing() -> None:
    """Its pods are the garbage collector's."""
    whole = a_replica_set("rs", 3)
    gone = replace(whole, metadata=replace(whole.metadata, deletion_timestamp=stamp()))
    for pods in ([], [a_pod(name) for name in "abcdef"]):
        plan = plan_replica_set(gone, pods, now=NOW)
        assert (plan.missing, plan.excess) == (0, ())


def test_a_failure_is_told_until_it_is_over() -> None:
    """The condition keeps the time at which it began, and goes when pods can be made again."""
    failed = plan_replica_set(
        a_replica_set("rs", 1), [], failure=failure_to_create("no"), now=NOW - 60
    )
    (condition,) = failed.status.conditions
    assert (condition.type, condition.reason, condition.message) == (
        "ReplicaFailure",
        "FailedCreate",
        "no",
    )
    assert condition.last_transition_time == stamp(60)
    again = replace(a_replica_set("rs", 1), status=failed.status)
    still = plan_replica_set(again, [], failure=failure_to_create("no"), now=NOW)
    assert still.status.conditions == (condition,)
    assert plan_replica_set(again, [], now=NOW).status.conditions == ()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(a_pod("b"), a_pod("a", "n1"), id="without a node"),
        pytest.param(a_pod("b", "n1"), a_pod("a", "n1", ready=False), id="pending"),
        pytest.param(a_pod("b", "n1", ready=False), a_pod("a", "n1", ready=True), id="not ready"),
        pytest.param(
            a_pod("b", "n1", ready=True, annotations={DELETION_COST: "-1"}),
            a_pod("a", "n1", ready=True, annotations={DELETION_COST: "dear"}),
            id="cheap",
        ),
        pytest.param(
            a_pod("b", "n1", ready=True, ready_for_s=5),
            a_pod("a", "n1", ready=True, ready_for_s=9),
            id="ready for the shortest time",
        ),
        pytest.param(
            a_pod("b", "n1", ready=True, restarts=3),
            a_pod("a", "n1", ready=True, restarts=1),
            id="often restarted",
        ),
        pytest.param(
            a_pod("b", "n1", ready=True, age_s=1), a_pod("a", "n1", ready=True), id="newest"
        ),
        pytest.param(a_pod("a", "n1"), a_pod("b", "n1"), id="the name at last"),
    ],
)
def test_who_goes_first(first: WorkloadPod, second: WorkloadPod) -> None:
    """Pods of less use go before others."""
    assert rank_for_deletion([second, first], []) == [first, second]


def test_pods_on_crowded_nodes_go_before_others() -> None:
    """A node counts as crowded by all pods of the Deployment, if they are active."""
    alone, crowded = a_pod("a", "n1", ready=True), a_pod("b", "n2", ready=True)
    related = [
        alone,
        crowded,
        a_pod("c", "n2", ready=True),
        *(a_pod(name, "n1", ready=True, terminating=True) for name in "def"),
    ]
    assert rank_for_deletion([alone, crowded], related) == [crowded, alone]
