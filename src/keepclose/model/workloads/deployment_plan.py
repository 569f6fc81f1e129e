"""The next step of a Deployment: which ReplicaSet to create, how to scale each, which to delete.

A rolling update never has fewer available pods than replicas less maxUnavailable, nor more pods
than replicas plus maxSurge. The ReplicaSet of the current template is scaled up as far as the surge
allows, then the others are scaled down as far as availability allows, unavailable pods first.
One call plans one step; the change of a ReplicaSet triggers the next. There is no step before every
ReplicaSet has observed its last change, because until then the number of its pods is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from keepclose.model.json_values import JsonObject
from keepclose.model.workloads import deployment_status
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.rolling_update import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    Size,
    by_age,
    current_annotations,
    deployment_bounds,
    find_current,
    new_replica_set,
    next_revision,
    number_in,
    revision_of,
    spread_proportionally,
)
from keepclose.model.workloads.types import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
)


class DeploymentPlan(msgspec.Struct, frozen=True):
    """The next writes for a Deployment, and its status."""

    status: DeploymentStatus
    creation: JsonObject | None = None
    """The ReplicaSet of a new template."""
    sizes: tuple[Size, ...] = ()
    """ReplicaSets to scale, or to annotate with the new size of the Deployment."""
    annotations: dict[str, str] = {}
    """The annotations to set on the current ReplicaSet."""
    current: ReplicaSet | None = None
    """The ReplicaSet of the current template, once it exists."""
    deletions: tuple[ReplicaSet, ...] = ()
    """ReplicaSets beyond the revision history limit."""
    revision: int = 0
    """The Deployment's revision, 0 while it has none."""
    recheck_s: float | None = None
    """After how many seconds to sync again without a change."""


def plan_deployment(
    deployment: Deployment,
    replica_sets: Sequence[ReplicaSet],
    pods: Sequence[WorkloadPod],
    *,
    now: float,
) -> DeploymentPlan:
    """Return the next step of a Deployment with these ReplicaSets and all of their pods."""
    current = find_current(deployment, replica_sets)
    old = [replica_set for replica_set in by_age(replica_sets) if replica_set is not current]
    status = deployment_status.count_replicas(deployment, replica_sets, current, now=now)
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status, current=current)
    status = deployment_status.with_pause(deployment, status, now=now)
    plan = DeploymentPlan(status, current=current)
    if current is not None:
        annotations = current_annotations(deployment, current, old)
        revision = max(revision_of(current.metadata), next_revision(old))
        plan = msgspec.structs.replace(plan, annotations=annotations, revision=revision)
    if deployment.spec.paused or _was_scaled(deployment, replica_sets):
        sizes = tuple(_scale(deployment, current, old))
        if deployment.spec.paused:
            cleaned = _expired(deployment, old)
            return msgspec.structs.replace(plan, sizes=sizes, deletions=cleaned)
        # If scaling changes nothing, the update goes on.
        if sizes:
            return msgspec.structs.replace(plan, sizes=sizes)
    if deployment.spec.strategy.type == "Recreate":
        plan = _recreate(deployment, plan, old, pods, now=now)
    else:
        plan = _roll(deployment, plan, old, now=now)
    if plan.creation is None:
        status = plan.status
        if (
            current is not None
            and deployment_status.condition_of(status, deployment_status.PROGRESSING) is None
        ):
            name = current.metadata.name
            status = deployment_status.with_new_replica_set(
                deployment, status, name, created=False, now=now
            )
        status = deployment_status.with_progress(deployment, status, current, now=now)
        plan = msgspec.structs.replace(plan, status=status)
    status = deployment_status.with_failures(plan.status, replica_sets, current, now=now)
    is_complete = deployment_status.is_complete(deployment, deployment.status)
    return msgspec.structs.replace(
        plan,
        status=status,
        deletions=_expired(deployment, old) if is_complete else (),
        recheck_s=deployment_status.late_in(deployment, status, now=now),
    )


def _roll(
    deployment: Deployment, plan: DeploymentPlan, old: Sequence[ReplicaSet], *, now: float
) -> DeploymentPlan:
    current, desired = plan.current, deployment.spec.replicas
    bounds = deployment_bounds(deployment)
    if any(map(_lags, old)) or (current and _lags(current)):
        return plan
    have = sum(replica_set.spec.replicas for replica_set in old) + (
        current.spec.replicas if current else 0
    )
    room = max(0, desired + bounds.max_surge - have)
    if current is None:
        return _create_current(deployment, plan, old, replicas=min(room, desired), now=now)
    size = current.spec.replicas
    grown = desired if size > desired else size + min(room, desired - size)
    if grown != size:
        return msgspec.structs.replace(plan, sizes=(Size(current, grown),))
    sizes = _shrink(current, old, have=have, least=desired - bounds.max_unavailable)
    return msgspec.structs.replace(plan, sizes=tuple(sizes))


def _shrink(current: ReplicaSet, old: Sequence[ReplicaSet], *, have: int, least: int) -> list[Size]:
    """Return smaller sizes for old ReplicaSets that keep enough pods available."""
    spare = have - least - (current.spec.replicas - _available(current))
    left = {replica_set.metadata.name: replica_set.spec.replicas for replica_set in old}
    if spare <= 0:
        return []
    for replica_set in old:
        useless = min(spare, replica_set.spec.replicas - _available(replica_set))
        left[replica_set.metadata.name] -= useless
        spare -= useless
    # The rest is taken from available pods.
    for replica_set in old:
        if spare <= 0:
            break
        taken = min(spare, left[replica_set.metadata.name])
        left[replica_set.metadata.name] -= taken
        spare -= taken
    return [
        Size(replica_set, left[replica_set.metadata.name])
        for replica_set in old
        if left[replica_set.metadata.name] != replica_set.spec.replicas
    ]


def _recreate(
    deployment: Deployment,
    plan: DeploymentPlan,
    old: Sequence[ReplicaSet],
    pods: Sequence[WorkloadPod],
    *,
    now: float,
) -> DeploymentPlan:
    ending = tuple(Size(replica_set, 0) for replica_set in old if replica_set.is_active)
    if ending:
        return msgspec.structs.replace(plan, sizes=ending)
    current, desired = plan.current, deployment.spec.replicas
    own = current.metadata.uid if current else ""
    # Even terminating pods must be gone before the first new pod is created.
    if any(not pod.has_ended and pod.controller and pod.controller.uid != own for pod in pods):
        return plan
    if current is None:
        return _create_current(deployment, plan, old, replicas=desired, now=now)
    if current.spec.replicas != desired:
        return msgspec.structs.replace(plan, sizes=(Size(current, desired),))
    return plan


def _create_current(
    deployment: Deployment,
    plan: DeploymentPlan,
    old: Sequence[ReplicaSet],
    *,
    replicas: int,
    now: float,
) -> DeploymentPlan:
    revision = next_revision(old)
    creation = new_replica_set(deployment, replicas=replicas, revision=revision)
    name = creation["metadata"]["name"]
    status = deployment_status.with_new_replica_set(
        deployment, plan.status, name, created=True, now=now
    )
    return msgspec.structs.replace(plan, creation=creation, revision=revision, status=status)


def _was_scaled(deployment: Deployment, replica_sets: Sequence[ReplicaSet]) -> bool:
    """Return whether an active ReplicaSet was sized for another size of the Deployment."""
    return any(
        replica_set.is_active
        and DESIRED_REPLICAS in replica_set.metadata.annotations
        and number_in(replica_set.metadata, DESIRED_REPLICAS) != deployment.spec.replicas
        for replica_set in replica_sets
    )


def _scale(
    deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet]
) -> list[Size]:
    """Return the sizes after the Deployment was scaled, or while it is paused."""
    every = [*old, *([current] if current else [])]
    active = [replica_set for replica_set in every if replica_set.is_active]
    desired = deployment.spec.replicas
    if len(active) <= 1:
        target = active[0] if active else current or (old[-1] if old else None)
        return [] if target is None or target.spec.replicas == desired else [Size(target, desired)]
    if current is not None and _is_saturated(current, desired):
        return [Size(replica_set, 0) for replica_set in old if replica_set.is_active]
    if deployment.spec.strategy.type != "RollingUpdate":
        return []
    most = {
        replica_set.metadata.name: number_in(replica_set.metadata, MAX_REPLICAS)
        for replica_set in active
    }
    # All are annotated with the new size, also those that keep theirs.
    return spread_proportionally(deployment, active, most)


def _is_saturated(current: ReplicaSet, desired: int) -> bool:
    return (
        current.spec.replicas == current.status.available_replicas == desired
        and number_in(current.metadata, DESIRED_REPLICAS) == desired
    )


def _expired(deployment: Deployment, old: Sequence[ReplicaSet]) -> tuple[ReplicaSet, ...]:
    """Return the oldest revisions beyond the history limit, if they have no pods."""
    limit = deployment.spec.revision_history_limit
    alive = [replica_set for replica_set in old if replica_set.metadata.deletion_timestamp is None]
    if limit is None or len(alive) <= limit:
        return ()
    oldest = sorted(alive, key=lambda replica_set: revision_of(replica_set.metadata))[
        : len(alive) - limit
    ]
    return tuple(
        replica_set
        for replica_set in oldest
        if not replica_set.is_active
        and replica_set.status.replicas == 0
        and replica_set.metadata.generation <= replica_set.status.observed_generation
    )


def _lags(replica_set: ReplicaSet) -> bool:
    """Return whether the status is of an earlier generation."""
    return replica_set.status.observed_generation < replica_set.metadata.generation


def _available(replica_set: ReplicaSet) -> int:
    return min(replica_set.spec.replicas, replica_set.status.available_replicas)
