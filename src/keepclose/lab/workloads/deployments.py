"""What becomes of a Deployment's ReplicaSets: which is made, how large each is, which may go.

A rolling update never lets fewer pods be available than wanted less maxUnavailable, nor has more
than wanted plus maxSurge: the ReplicaSet of the present template grows as far as the surge allows,
then the others shrink as far as availability allows, those of their pods first that are of no use.
One step a call; the change of a ReplicaSet calls for the next. There is no step before every
ReplicaSet has answered to the last one, because until then nobody knows what pods there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.lab.workloads import deployment_status
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.expectations import DOUBT_S, Watermarks, settle_claims, sort_claims
from keepclose.lab.workloads.pod_writes import patch_status
from keepclose.lab.workloads.pods import WorkloadPod, workload_owner_of
from keepclose.lab.workloads.rolling_update import (
    DESIRED_REPLICAS,
    MAX_REPLICAS,
    REVISION,
    Size,
    by_age,
    current_annotations,
    deployment_bounds,
    find_current,
    is_same_template,
    new_replica_set,
    next_revision,
    number_in,
    revision_of,
    size_annotations,
    spread_proportionally,
)
from keepclose.lab.workloads.types import (
    DEPLOYMENTS,
    REPLICA_SETS,
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    reference_to,
)
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName


class DeploymentPlan(msgspec.Struct, frozen=True):
    """What to do for a Deployment, and what to say of it."""

    status: DeploymentStatus
    creation: JsonObject | None = None
    """The ReplicaSet of a new template."""
    sizes: tuple[Size, ...] = ()
    """ReplicaSets that get another size, or another note of the Deployment's."""
    annotations: dict[str, str] = {}
    """What the present ReplicaSet is to be told."""
    current: ReplicaSet | None = None
    """The ReplicaSet of the present template, once there is one."""
    deletions: tuple[ReplicaSet, ...] = ()
    """ReplicaSets that nobody needs to go back to."""
    revision: int = 0
    """The Deployment's revision, 0 while it has none."""
    recheck_s: float | None = None
    """When to look again though nothing changed."""


def plan_deployment(
    deployment: Deployment,
    replica_sets: Sequence[ReplicaSet],
    pods: Sequence[WorkloadPod],
    *,
    now: float,
) -> DeploymentPlan:
    """Return the next step of a Deployment with these ReplicaSets and all of their pods."""
    current = find_current(deployment, replica_sets)
    old = [one for one in by_age(replica_sets) if one is not current]
    status = deployment_status.count_replicas(deployment, replica_sets, current, now=now)
    if deployment.metadata.deletion_timestamp is not None:
        return DeploymentPlan(status, current=current)
    status = deployment_status.note_pause(deployment, status, now=now)
    plan = DeploymentPlan(status, current=current)
    if current is not None:
        annotations = current_annotations(deployment, current, old)
        revision = max(revision_of(current.metadata), next_revision(old))
        plan = msgspec.structs.replace(plan, annotations=annotations, revision=revision)
    if deployment.spec.paused or _was_scaled(deployment, replica_sets):
        sizes = tuple(_scale(deployment, current, old))
        if deployment.spec.paused:
            cleaned = _superfluous(deployment, old)
            return msgspec.structs.replace(plan, sizes=sizes, deletions=cleaned)
        # Where scaling has nothing to say the update goes on.
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
            status = deployment_status.note_new(deployment, status, name, created=False, now=now)
        status = deployment_status.note_progress(deployment, status, current, now=now)
        plan = msgspec.structs.replace(plan, status=status)
    status = deployment_status.note_failures(plan.status, replica_sets, current, now=now)
    is_complete = deployment_status.is_complete(deployment, deployment.status)
    return msgspec.structs.replace(
        plan,
        status=status,
        deletions=_superfluous(deployment, old) if is_complete else (),
        recheck_s=deployment_status.late_in(deployment, status, now=now),
    )


def _roll(
    deployment: Deployment, plan: DeploymentPlan, old: Sequence[ReplicaSet], *, now: float
) -> DeploymentPlan:
    current, wanted = plan.current, deployment.spec.replicas
    bounds = deployment_bounds(deployment)
    if any(map(_lags, old)) or (current and _lags(current)):
        return plan
    have = sum(one.spec.replicas for one in old) + (current.spec.replicas if current else 0)
    room = max(0, wanted + bounds.max_surge - have)
    if current is None:
        return _begin(deployment, plan, old, replicas=min(room, wanted), now=now)
    size = current.spec.replicas
    grown = wanted if size > wanted else size + min(room, wanted - size)
    if grown != size:
        return msgspec.structs.replace(plan, sizes=(Size(current, grown),))
    sizes = _shrink(current, old, have=have, least=wanted - bounds.max_unavailable)
    return msgspec.structs.replace(plan, sizes=tuple(sizes))


def _shrink(current: ReplicaSet, old: Sequence[ReplicaSet], *, have: int, least: int) -> list[Size]:
    """Return smaller sizes for old ReplicaSets, without harm to availability."""
    spare = have - least - (current.spec.replicas - _available(current))
    left = {one.metadata.name: one.spec.replicas for one in old}
    if spare <= 0:
        return []
    for one in old:
        useless = min(spare, one.spec.replicas - _available(one))
        left[one.metadata.name] -= useless
        spare -= useless
    # What is still spare now is so in available pods.
    for one in old:
        if spare <= 0:
            break
        taken = min(spare, left[one.metadata.name])
        left[one.metadata.name] -= taken
        spare -= taken
    return [
        Size(one, left[one.metadata.name])
        for one in old
        if left[one.metadata.name] != one.spec.replicas
    ]


def _recreate(
    deployment: Deployment,
    plan: DeploymentPlan,
    old: Sequence[ReplicaSet],
    pods: Sequence[WorkloadPod],
    *,
    now: float,
) -> DeploymentPlan:
    ending = tuple(Size(one, 0) for one in old if one.is_active)
    if ending:
        return msgspec.structs.replace(plan, sizes=ending)
    current, wanted = plan.current, deployment.spec.replicas
    own = current.metadata.uid if current else ""
    # Even those on their way out must be gone before the first new one comes.
    if any(not pod.has_ended and pod.controller and pod.controller.uid != own for pod in pods):
        return plan
    if current is None:
        return _begin(deployment, plan, old, replicas=wanted, now=now)
    if current.spec.replicas != wanted:
        return msgspec.structs.replace(plan, sizes=(Size(current, wanted),))
    return plan


def _begin(
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
    status = deployment_status.note_new(deployment, plan.status, name, created=True, now=now)
    return msgspec.structs.replace(plan, creation=creation, revision=revision, status=status)


def _was_scaled(deployment: Deployment, replica_sets: Sequence[ReplicaSet]) -> bool:
    """Return whether an active ReplicaSet was made for another size of the Deployment."""
    return any(
        one.is_active
        and DESIRED_REPLICAS in one.metadata.annotations
        and number_in(one.metadata, DESIRED_REPLICAS) != deployment.spec.replicas
        for one in replica_sets
    )


def _scale(
    deployment: Deployment, current: ReplicaSet | None, old: Sequence[ReplicaSet]
) -> list[Size]:
    """Return the sizes after the Deployment got another one, or while it is paused."""
    every = [*old, *([current] if current else [])]
    active = [one for one in every if one.is_active]
    wanted = deployment.spec.replicas
    if len(active) <= 1:
        target = active[0] if active else current or (old[-1] if old else None)
        return [] if target is None or target.spec.replicas == wanted else [Size(target, wanted)]
    if current is not None and _is_saturated(current, wanted):
        return [Size(one, 0) for one in old if one.is_active]
    if deployment.spec.strategy.type != "RollingUpdate":
        return []
    most = {one.metadata.name: number_in(one.metadata, MAX_REPLICAS) for one in active}
    # All are told the new size, also those that stay as they are.
    return spread_proportionally(deployment, active, most)


def _is_saturated(current: ReplicaSet, wanted: int) -> bool:
    return (
        current.spec.replicas == current.status.available_replicas == wanted
        and number_in(current.metadata, DESIRED_REPLICAS) == wanted
    )


def _superfluous(deployment: Deployment, old: Sequence[ReplicaSet]) -> tuple[ReplicaSet, ...]:
    """Return the oldest revisions beyond those to be kept, if they are empty."""
    limit = deployment.spec.revision_history_limit
    alive = [one for one in old if one.metadata.deletion_timestamp is None]
    if limit is None or len(alive) <= limit:
        return ()
    oldest = sorted(alive, key=lambda one: revision_of(one.metadata))[: len(alive) - limit]
    return tuple(
        one
        for one in oldest
        if not one.is_active
        and one.status.replicas == 0
        and one.metadata.generation <= one.status.observed_generation
    )


def _lags(replica_set: ReplicaSet) -> bool:
    """Return whether the status is about an earlier size."""
    return replica_set.status.observed_generation < replica_set.metadata.generation


def _available(replica_set: ReplicaSet) -> int:
    return min(replica_set.spec.replicas, replica_set.status.available_replicas)


class DeploymentSync:
    """Carries out the plans of Deployments."""

    def __init__(
        self, client: Client, caches: WorkloadCaches, *, clock: Clock, recorder: EventRecorder
    ) -> None:
        self._client, self._caches = client, caches
        self._clock, self._recorder = clock, recorder
        self._watermarks = Watermarks(clock, caches.replica_sets)

    async def sync(self, key: NamespacedName) -> float | None:
        """Bring one Deployment forward; return when to look again though nothing changed."""
        deployment = self._caches.deployments.get(key)
        if deployment is None:
            return None
        if self._watermarks.lags(deployment.metadata.uid):
            # What is on its way brings the key back; this is for what never comes.
            return DOUBT_S
        claims = sort_claims(
            deployment,
            self._caches.replica_sets_of(deployment.metadata.uid),
            self._caches.orphan_replica_sets(key.namespace),
        )
        replica_sets = await settle_claims(self._client, REPLICA_SETS, deployment, claims)
        pods = [pod for one in replica_sets for pod in self._caches.pods_of(one.metadata.uid)]
        plan = plan_deployment(deployment, replica_sets, pods, now=self._clock.now())
        if plan.creation is not None and not await self._create(deployment, plan.creation):
            return await self._note_collision(deployment)
        await self._resize(deployment, plan)
        for one in plan.deletions:
            await self._delete(one)
        await self._write_status(deployment, plan.status, revision=plan.revision)
        return plan.recheck_s

    async def _create(self, deployment: Deployment, body: JsonObject) -> bool:
        """Create a ReplicaSet, or return False when its name is another one's."""
        namespace, name = deployment.metadata.namespace, body["metadata"]["name"]
        try:
            made = await self._client.create(REPLICA_SETS, body, namespace=namespace)
        except AlreadyExists:
            found = await self._client.get(REPLICA_SETS, name, namespace=namespace)
            owner = workload_owner_of(found.metadata)
            return (
                owner is not None
                and owner.uid == deployment.metadata.uid
                and is_same_template(found.spec.template, deployment.spec.template)
            )
        except ApiError as error:
            message = f'Failed to create new replica set "{name}": {error}'
            self._tell(deployment, message, severity="Warning", reason="ReplicaSetCreateError")
            raise
        self._watermarks.note(deployment.metadata.uid, made.metadata)
        replicas = body["spec"]["replicas"]
        if replicas:
            self._tell(deployment, f"Scaled up replica set {name} from 0 to {replicas}")
        return True

    async def _resize(self, deployment: Deployment, plan: DeploymentPlan) -> None:
        """Write sizes, and what the present ReplicaSet is to be told."""
        sizes = {one.replica_set.metadata.name: one for one in plan.sizes}
        current = plan.current
        if current is not None and (
            plan.annotations or current.spec.min_ready_seconds != deployment.spec.min_ready_seconds
        ):
            kept = Size(current, current.spec.replicas)
            sizes.setdefault(current.metadata.name, kept)
        for name, (one, replicas) in sizes.items():
            annotations: dict[str, str] = {}
            # Only a size tells a ReplicaSet for which Deployment's it was made.
            if any(size.replica_set is one for size in plan.sizes):
                annotations |= size_annotations(deployment)
            spec: JsonObject = {"replicas": replicas}
            if one is current:
                annotations |= plan.annotations
                spec["minReadySeconds"] = deployment.spec.min_ready_seconds
            await self._patch(deployment, one, annotations, spec)
            before = one.spec.replicas
            if before != replicas:
                way = "up" if before < replicas else "down"
                text = f"Scaled {way} replica set {name} from {before} to {replicas}"
                self._tell(deployment, text)

    async def _patch(
        self,
        deployment: Deployment,
        replica_set: ReplicaSet,
        annotations: dict[str, str],
        spec: JsonObject,
    ) -> None:
        meta = replica_set.metadata
        known, least = meta.annotations, replica_set.spec.min_ready_seconds
        if (
            spec["replicas"] == replica_set.spec.replicas
            and spec.get("minReadySeconds", least) == least
            and all(known.get(key) == value for key, value in annotations.items())
        ):
            return
        patch = {
            "metadata": {"resourceVersion": meta.resource_version, "annotations": annotations},
            "spec": spec,
        }
        made = await self._client.patch(REPLICA_SETS, meta.name, patch, namespace=meta.namespace)
        self._watermarks.note(deployment.metadata.uid, made.metadata)

    async def _delete(self, replica_set: ReplicaSet) -> None:
        meta = replica_set.metadata
        try:
            await self._client.delete(
                REPLICA_SETS,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                propagation="Background",
            )
        except (NotFound, Conflict):
            return

    async def _note_collision(self, deployment: Deployment) -> float:
        """Count a hash that is taken, so that the next one differs."""
        count = (deployment.status.collision_count or 0) + 1
        status = msgspec.structs.replace(deployment.status, collision_count=count)
        await self._write_status(deployment, status)
        return 1.0

    async def _write_status(
        self, deployment: Deployment, status: DeploymentStatus, *, revision: int = 0
    ) -> None:
        meta = deployment.metadata
        patch = patch_status(deployment.status, status) or {}
        if revision and meta.annotations.get(REVISION) != str(revision):
            # NB: together with the status this is no new generation.
            patch["metadata"] = {"annotations": {REVISION: str(revision)}}
        if not patch:
            return
        try:
            await self._client.patch(
                DEPLOYMENTS, meta.name, patch, namespace=meta.namespace, subresource="status"
            )
        except NotFound:
            return

    def _tell(
        self,
        deployment: Deployment,
        message: str,
        *,
        severity: str = "Normal",
        reason: str = "ScalingReplicaSet",
    ) -> None:
        self._recorder.record(reference_to(deployment), severity, reason, message)
