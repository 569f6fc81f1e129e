"""How far a Deployment is: the numbers of its status and the conditions that `kubectl` waits for.

Available says whether enough pods are there. Progressing says whether the rollout moves: it is
refreshed by each sign of progress and turns False when there was none for the time of
progressDeadlineSeconds. The words are those of the Deployment controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from keepclose.kube.event_recorder import format_event_time
from keepclose.lab.workloads.pods import seconds_of
from keepclose.lab.workloads.rolling_update import deployment_bounds
from keepclose.lab.workloads.types import (
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
    """Return the status as the ReplicaSets' own add up to, with Available judged anew."""
    available = sum(one.status.available_replicas for one in replica_sets)
    wanted = sum(one.spec.replicas for one in replica_sets)
    terminating = [one.status.terminating_replicas for one in replica_sets]
    status = DeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(one.status.replicas for one in replica_sets),
        updated_replicas=current.status.replicas if current else 0,
        ready_replicas=sum(one.status.ready_replicas for one in replica_sets),
        available_replicas=available,
        unavailable_replicas=max(0, wanted - available),
        terminating_replicas=sum(one or 0 for one in terminating),
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


def note_pause(deployment: Deployment, status: DeploymentStatus, *, now: float) -> DeploymentStatus:
    """Return the status with the beginning or the end of a pause told, if there is a deadline.

    So the time of a pause is not held against a rollout that goes on after it.
    """
    known = condition_of(status, PROGRESSING)
    if not has_deadline(deployment) or (known and known.reason == _TIMED_OUT):
        return status
    was_paused = known is not None and known.reason == PAUSED
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


def note_new(
    deployment: Deployment, status: DeploymentStatus, name: str, *, created: bool, now: float
) -> DeploymentStatus:
    """Return the status with the ReplicaSet of a new template told."""
    if not has_deadline(deployment):
        return status
    condition = WorkloadCondition(
        type=PROGRESSING,
        status="True",
        reason=CREATED if created else FOUND,
        message=f'{"Created" if created else "Found"} new replica set "{name}"',
    )
    return set_condition(status, condition, now=now)


def note_progress(
    deployment: Deployment, status: DeploymentStatus, current: ReplicaSet | None, *, now: float
) -> DeploymentStatus:
    """Return the status with Progressing as the change since the last status has it."""
    if not has_deadline(deployment):
        rest = tuple(one for one in status.conditions if one.type != PROGRESSING)
        return replace(status, conditions=rest)
    known = condition_of(status, PROGRESSING)
    if known and known.reason == COMPLETE and status.replicas == status.updated_replicas:
        return status
    subject = f'Deployment "{deployment.metadata.name}"'
    if current is not None:
        subject = f'ReplicaSet "{current.metadata.name}"'
    if is_complete(deployment, status):
        value, reason, message = "True", COMPLETE, "has successfully progressed."
    elif _has_moved(deployment.status, status):
        value, reason, message = "True", UPDATED, "is progressing."
        # NB: the same reason again still says that something moved just now.
        rest = tuple(one for one in status.conditions if one.type != PROGRESSING)
        since = known.last_transition_time if known and known.status == "True" else None
        condition = WorkloadCondition(
            type=PROGRESSING,
            status=value,
            reason=reason,
            message=f"{subject} {message}",
            last_update_time=format_event_time(now),
            last_transition_time=since or format_event_time(now),
        )
        return replace(status, conditions=(*rest, condition))
    elif _is_late(deployment, known, now):
        value, reason, message = "False", _TIMED_OUT, "has timed out progressing."
    else:
        return status
    condition = WorkloadCondition(
        type=PROGRESSING, status=value, reason=reason, message=f"{subject} {message}"
    )
    return set_condition(status, condition, now=now)


def note_failures(
    status: DeploymentStatus,
    replica_sets: Sequence[ReplicaSet],
    current: ReplicaSet | None,
    *,
    now: float,
) -> DeploymentStatus:
    """Return the status with the failure of a ReplicaSet to make its pods, the present's first."""
    ordered = ([current] if current else []) + list(replica_sets)
    found = [c for one in ordered for c in one.status.conditions if c.type == REPLICA_FAILURE]
    if found:
        return set_condition(status, found[0], now=now)
    rest = tuple(one for one in status.conditions if one.type != REPLICA_FAILURE)
    return replace(status, conditions=rest)


def is_complete(deployment: Deployment, status: DeploymentStatus) -> bool:
    """Return whether all pods, and no others, are of the present template and available."""
    counts = (status.updated_replicas, status.replicas, status.available_replicas)
    return (
        all(count == deployment.spec.replicas for count in counts)
        and status.observed_generation >= deployment.metadata.generation
    )


def late_in(deployment: Deployment, status: DeploymentStatus, *, now: float) -> float | None:
    """Return in how many seconds the rollout is late if nothing moves; None when it cannot be."""
    known = condition_of(status, PROGRESSING)
    if not has_deadline(deployment) or known is None or is_complete(deployment, status):
        return None
    since = seconds_of(known.last_update_time)
    if known.reason in (_TIMED_OUT, COMPLETE, PAUSED) or since is None:
        return None
    # Times of the API are whole seconds.
    return max(0.0, since + (deployment.spec.progress_deadline_seconds or 0) - now) + 1.0


def has_deadline(deployment: Deployment) -> bool:
    """Return whether somebody wants to know that a rollout is stuck."""
    return deployment.spec.progress_deadline_seconds not in (None, _NO_DEADLINE)


def condition_of(status: DeploymentStatus, type: str) -> WorkloadCondition | None:  # noqa: A002
    """Return the condition of that type."""
    return next((one for one in status.conditions if one.type == type), None)


def set_condition(
    status: DeploymentStatus, condition: WorkloadCondition, *, now: float
) -> DeploymentStatus:
    """Return the status with the condition; one with the same status and reason stays as it is."""
    known = condition_of(status, condition.type)
    if known and (known.status, known.reason) == (condition.status, condition.reason):
        return status
    stamp = format_event_time(now)
    since = known.last_transition_time if known and known.status == condition.status else stamp
    fresh = replace(condition, last_update_time=stamp, last_transition_time=since)
    rest = tuple(one for one in status.conditions if one.type != condition.type)
    return replace(status, conditions=(*rest, fresh))


def _has_moved(before: DeploymentStatus, after: DeploymentStatus) -> bool:
    return (
        after.updated_replicas > before.updated_replicas
        or after.replicas - after.updated_replicas < before.replicas - before.updated_replicas
        or after.ready_replicas > before.ready_replicas
        or after.available_replicas > before.available_replicas
    )


def _is_late(deployment: Deployment, known: WorkloadCondition | None, now: float) -> bool:
    if known is None or known.reason == COMPLETE:
        return False
    since = seconds_of(known.last_update_time)
    deadline = deployment.spec.progress_deadline_seconds or 0
    return known.reason == _TIMED_OUT or (since is not None and since + deadline < now)
