"""The status of a Deployment: its numbers, and the conditions that `kubectl` waits for.

Available is True if enough pods are available. Progressing is refreshed by each progress of the
rollout and turns False after progressDeadlineSeconds without any. Reasons and messages are those of
the Deployment controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from keepclose.model.timestamps import format_event_time, seconds_of
from keepclose.model.workloads.rolling_update import deployment_bounds
from keepclose.model.workloads.types import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    WorkloadCondition,
)

AVAILABLE: Final = "Available"
PROGRESSING: Final = "Progressing"
REPLICA_FAILURE: Final = "ReplicaFailure"
COMPLETE: Final = "NewReplicaSetAvailable"
UPDATED: Final = "ReplicaSetUpdated"
CREATED: Final = "NewReplicaSetCreated"
FOUND: Final = "FoundNewReplicaSet"
_TIMED_OUT: Final = "ProgressDeadlineExceeded"
PAUSED: Final = "DeploymentPaused"
RESUMED: Final = "DeploymentResumed"
_NO_DEADLINE: Final = 2**31 - 1


def count_replicas(
    deployment: Deployment,
    replica_sets: Sequence[ReplicaSet],
    current: ReplicaSet | None,
    *,
    now: float,
) -> DeploymentStatus:
    """Return the sums of the ReplicaSets' statuses, with the condition Available."""
    available = sum(replica_set.status.available_replicas for replica_set in replica_sets)
    desired = sum(replica_set.spec.replicas for replica_set in replica_sets)
    terminating = [replica_set.status.terminating_replicas for replica_set in replica_sets]
    status = DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(replica_set.status.replicas for replica_set in replica_sets),
        updated_replicas=current.status.replicas if current else 0,
        ready_replicas=sum(replica_set.status.ready_replicas for replica_set in replica_sets),
        available_replicas=available,
        unavailable_replicas=max(0, desired - available),
        terminating_replicas=sum(count or 0 for count in terminating),
        collision_count=deployment.status.collision_count,
        conditions=deployment.status.conditions,
    )
    if available >= deployment.spec.replicas - deployment_bounds(deployment).max_unavailable:
        reason, message, value = "MinimumReplicasAvailable", "has", "True"
    else:
        reason, message, value = "MinimumReplicasUnavailable", "does not have", "False"
    condition = WorkloadCondition(
        type=AVAILABLE,
        status=value,
        reason=reason,
        message=f"Deployment {message} minimum availability.",
    )
    return set_condition(status, condition, now=now)


def with_pause(deployment: Deployment, status: DeploymentStatus, *, now: float) -> DeploymentStatus:
    """Return the status with a pause or its end in Progressing, if there is a deadline.

    So a pause does not count against the deadline of a rollout.
    """
    before = condition_of(status, PROGRESSING)
    if not has_deadline(deployment) or (before and before.reason == _TIMED_OUT):
        return status
    was_paused = before is not None and before.reason == PAUSED
    if deployment.spec.paused == was_paused:
        return status
    paused = deployment.spec.paused
    condition = WorkloadCondition(
        type=PROGRESSING,
        status="Unknown",
        reason=PAUSED if paused else RESUMED,
        message=f"Deployment is {'paused' if paused else 'resumed'}",
    )
    return set_condition(status, condition, now=now)


def with_new_replica_set(
    deployment: Deployment, status: DeploymentStatus, name: str, *, created: bool, now: float
) -> DeploymentStatus:
    """Return the status with the ReplicaSet of a new template in Progressing."""
    if not has_deadline(deployment):
        return status
    condition = WorkloadCondition(
        type=PROGRESSING,
        status="True",
        reason=CREATED if created else FOUND,
        message=f'{"Created" if created else "Found"} new replica set "{name}"',
    )
    return set_condition(status, condition, now=now)


def with_progress(
    deployment: Deployment, status: DeploymentStatus, current: ReplicaSet | None, *, now: float
) -> DeploymentStatus:
    """Return the status with Progressing according to the change since the stored status."""
    if not has_deadline(deployment):
        rest = tuple(condition for condition in status.conditions if condition.type != PROGRESSING)
        return replace(status, conditions=rest)
    before = condition_of(status, PROGRESSING)
    if before and before.reason == COMPLETE and status.replicas == status.updated_replicas:
        return status
    subject = f'Deployment "{deployment.metadata.name}"'
    if current is not None:
        subject = f'ReplicaSet "{current.metadata.name}"'
    if is_complete(deployment, status):
        value, reason, message = "True", COMPLETE, "has successfully progressed."
    elif _has_moved(deployment.status, status):
        value, reason, message = "True", UPDATED, "is progressing."
        # NB: the update time changes with each progress, also with the same reason.
        rest = tuple(condition for condition in status.conditions if condition.type != PROGRESSING)
        since = before.last_transition_time if before and before.status == "True" else None
        condition = WorkloadCondition(
            type=PROGRESSING,
            status=value,
            reason=reason,
            message=f"{subject} {message}",
            last_update_time=format_event_time(now),
            last_transition_time=since or format_event_time(now),
        )
        return replace(status, conditions=(*rest, condition))
    elif _is_late(deployment, before, now):
        value, reason, message = "False", _TIMED_OUT, "has timed out progressing."
    else:
        return status
    condition = WorkloadCondition(
        type=PROGRESSING, status=value, reason=reason, message=f"{subject} {message}"
    )
    return set_condition(status, condition, now=now)


def with_failures(
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    current: ReplicaSet | None,
    *,
    now: float,
) -> DeploymentStatus:
    """Return the status with a ReplicaFailure of a ReplicaSet, the current one's first."""
    ordered = ([current] if current else []) + list(replica_sets)
    failures = [
        c
        for replica_set in ordered
        for c in replica_set.status.conditions
        if c.type == REPLICA_FAILURE
    ]
    if failures:
        return set_condition(status, failures[0], now=now)
    rest = tuple(condition for condition in status.conditions if condition.type != REPLICA_FAILURE)
    return replace(status, conditions=rest)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Return whether exactly the desired pods exist, of the current template and available."""
    counts = (status.updated_replicas, status.replicas, status.available_replicas)
    return (
        all(count == deployment.spec.replicas for count in counts)
        and status.observed_generation >= deployment.metadata.generation
    )


def late_in(deployment: Deployment, status: DeploymentStatus, *, now: float) -> float | None:
    """Return the seconds until the deadline without progress, None if it cannot be exceeded."""
    progressing = condition_of(status, PROGRESSING)
    if not has_deadline(deployment) or progressing is None or is_complete(deployment, status):
        return None
    since = seconds_of(progressing.last_update_time)
    if progressing.reason in (_TIMED_OUT, COMPLETE, PAUSED) or since is None:
        return None
    # Times of the API are whole seconds.
    return max(0.0, since + (deployment.spec.progress_deadline_seconds or 0) - now) + 1.0


def has_deadline(deployment: Deployment) -> bool:
    """Return whether the Deployment has a progress deadline."""
    return deployment.spec.progress_deadline_seconds not in (None, _NO_DEADLINE)


def condition_of(status: DeploymentStatus, type: str) -> WorkloadCondition | None:  # noqa: A002
    """Return the condition of that type."""
    return next((condition for condition in status.conditions if condition.type == type), None)


def set_condition(
    status: DeploymentStatus, condition: WorkloadCondition, *, now: float
) -> DeploymentStatus:
    """Return the status with the condition; one with the same status and reason is unchanged."""
    before = condition_of(status, condition.type)
    if before and (before.status, before.reason) == (condition.status, condition.reason):
        return status
    stamp = format_event_time(now)
    since = before.last_transition_time if before and before.status == condition.status else stamp
    fresh = replace(condition, last_update_time=stamp, last_transition_time=since)
    rest = tuple(other for other in status.conditions if other.type != condition.type)
    return replace(status, conditions=(*rest, fresh))


def _has_moved(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    return (
        after.updated_replicas > before.updated_replicas
        or after.replicas - after.updated_replicas < before.replicas - before.updated_replicas
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )


def _is_late(deployment: Deployment, progressing: WorkloadCondition | None, now: float) -> bool:
    if progressing is None or progressing.reason == COMPLETE:
        return False
    since = seconds_of(progressing.last_update_time)
    deadline = deployment.spec.progress_deadline_seconds or 0
    return progressing.reason == _TIMED_OUT or (since is not None and since + deadline < now)
