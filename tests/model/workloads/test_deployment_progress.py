"""The conditions of Deployments that people and `kubectl rollout status` wait for."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.workloads.deployment_plan import plan_deployment
from keepclose.model.workloads.deployment_status import condition_of
from keepclose.model.workloads.types import DeploymentStatus, ReplicaSet
from support.lab.labobjects import NOW, a_deployment, a_replica_set, stamp


def progressing(reason: str, *, ago_s: float, status: str = "True") -> dict[str, Any]:
    """Return a status whose rollout last moved some time ago."""
    condition = {
        "type": "Progressing",
        "status": status,
        "reason": reason,
        "message": "",
        "lastUpdateTime": stamp(ago_s),
        "lastTransitionTime": stamp(ago_s),
    }
    return {"conditions": [condition]}


def status_after(
    replica_set: ReplicaSet, status: dict[str, Any], **spec: Any
) -> tuple[DeploymentStatus, float | None]:
    """Return the status of a Deployment of three after the next step, and when to look again."""
    plan = plan_deployment(a_deployment(3, status=status, **spec), [replica_set], [], now=NOW)
    return plan.status, plan.recheck_s


def test_numbers_add_up() -> None:
    """The numbers of all ReplicaSets are the Deployment's."""
    old = a_replica_set("old", 2, image="web:0", available=1, status={"terminatingReplicas": 1})
    new = a_replica_set("new", 2, available=0, status={"replicas": 1, "readyReplicas": 1})
    status = plan_deployment(a_deployment(3, generation=4), [old, new], [], now=NOW).status
    assert (status.observed_generation, status.replicas, status.updated_replicas) == (4, 3, 1)
    assert (status.ready_replicas, status.available_replicas) == (2, 1)
    assert (status.unavailable_replicas, status.terminating_replicas) == (3, 1)


@pytest.mark.parametrize(
    ("available", "want"),
    [
        pytest.param(
            3,
            ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
            id="all there",
        ),
        pytest.param(
            2,
            (
                "False",
                "MinimumReplicasUnavailable",
                "Deployment does not have minimum availability.",
            ),
            id="a quarter of three is none",
        ),
    ],
)
def test_availability(available: int, want: tuple[str, str, str]) -> None:
    """Available says whether no more are missing than may be."""
    status, _ = status_after(a_replica_set("new", 3, available=available), {})
    found = condition_of(status, "Available")
    assert found is not None
    assert (found.status, found.reason, found.message) == want


@pytest.mark.parametrize(
    ("available", "before", "want", "want_recheck_s"),
    [
        pytest.param(
            3,
            progressing("ReplicaSetUpdated", ago_s=5),
            ("True", "NewReplicaSetAvailable", 'ReplicaSet "new" has successfully progressed.'),
            None,
            id="complete",
        ),
        pytest.param(
            1,
            progressing("NewReplicaSetCreated", ago_s=5),
            ("True", "ReplicaSetUpdated", 'ReplicaSet "new" is progressing.'),
            601.0,
            id="more of them than before",
        ),
        pytest.param(
            0,
            progressing("NewReplicaSetCreated", ago_s=601) | {"replicas": 3, "updatedReplicas": 3},
            (
                "False",
                "ProgressDeadlineExceeded",
                'ReplicaSet "new" has timed out progressing.',
            ),
            None,
            id="too long without a sign",
        ),
        pytest.param(
            0,
            progressing("NewReplicaSetCreated", ago_s=500) | {"replicas": 3, "updatedReplicas": 3},
            ("True", "NewReplicaSetCreated", ""),
            101.0,
            id="not yet too long",
        ),
        pytest.param(
            2,
            progressing("NewReplicaSetAvailable", ago_s=9000),
            ("True", "NewReplicaSetAvailable", ""),
            None,
            id="a pod lost after the end is no lack of progress",
        ),
        pytest.param(
            0,
            {"replicas": 3, "updatedReplicas": 3},
            ("True", "FoundNewReplicaSet", 'Found new replica set "new"'),
            601.0,
            id="nothing was said so far",
        ),
    ],
)
def test_progress(
    available: int,
    before: dict[str, Any],
    want: tuple[str, str, str],
    want_recheck_s: float | None,
) -> None:
    """Progressing says whether the rollout ended, moves, or is stuck."""
    status, recheck_s = status_after(a_replica_set("new", 3, available=available), before)
    found = condition_of(status, "Progressing")
    assert found is not None
    assert (found.status, found.reason, found.message) == want
    assert recheck_s == want_recheck_s


def test_progress_refreshes_its_time_only() -> None:
    """While it goes on, the time of the last sign moves and that of the beginning stays."""
    before = progressing("ReplicaSetUpdated", ago_s=50)
    status, _ = status_after(a_replica_set("new", 3, available=1), before)
    found = condition_of(status, "Progressing")
    assert found is not None
    assert (found.last_update_time, found.last_transition_time) == (stamp(), stamp(50))


@pytest.mark.parametrize(
    ("paused", "before", "want"),
    [
        pytest.param(
            True,
            progressing("ReplicaSetUpdated", ago_s=5),
            ("Unknown", "DeploymentPaused", "Deployment is paused"),
            id="paused",
        ),
        pytest.param(
            True,
            progressing("ProgressDeadlineExceeded", ago_s=5, status="False"),
            ("False", "ProgressDeadlineExceeded", ""),
            id="what was stuck stays so",
        ),
        pytest.param(
            False,
            progressing("DeploymentPaused", ago_s=9000, status="Unknown")
            | {"replicas": 3, "updatedReplicas": 3},
            ("Unknown", "DeploymentResumed", "Deployment is resumed"),
            id="resumed",
        ),
    ],
)
def test_pauses(paused: bool, before: dict[str, Any], want: tuple[str, str, str]) -> None:
    """A pause is told, and its time is not held against the rollout."""
    replica_set = a_replica_set("new", 3, available=0)
    status, _ = status_after(replica_set, before, paused=paused)
    found = condition_of(status, "Progressing")
    assert found is not None
    assert (found.status, found.reason, found.message) == want


def test_without_a_deadline_nobody_asks() -> None:
    """Progressing goes where there is no deadline."""
    before = progressing("ReplicaSetUpdated", ago_s=5)
    status, recheck_s = status_after(a_replica_set("new", 3), before, progressDeadlineSeconds=None)
    assert condition_of(status, "Progressing") is None
    assert recheck_s is None


def test_failures_of_replica_sets_are_passed_on() -> None:
    """A ReplicaSet that cannot make its pods shows at the Deployment, until it can."""
    failing = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": "no",
    }
    broken = a_replica_set("new", 3, available=0, status={"conditions": [failing]})
    status, _ = status_after(broken, {})
    found = condition_of(status, "ReplicaFailure")
    assert found is not None
    assert (found.reason, found.message) == ("FailedCreate", "no")
    after, _ = status_after(a_replica_set("new", 3), {"conditions": [failing]})
    assert condition_of(after, "ReplicaFailure") is None
