"""The Deployment controller: carries out the steps that `model.workloads.deployment_plan` plans.

Sizes are written with the resourceVersion that they were decided on, so a step from a stale cache
fails with a conflict and is requeued. The name of a new ReplicaSet follows from the template, so a
second attempt finds the first one's.
"""

from __future__ import annotations

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import DEPLOYMENTS, REPLICA_SETS
from keepclose.lab.workloads.expectations import UNCERTAIN_S, Watermarks, settle_claims, sort_claims
from keepclose.lab.workloads.pods import patch_status
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.deployment_plan import DeploymentPlan, plan_deployment
from keepclose.model.workloads.rolling_update import (
    REVISION,
    Size,
    is_same_template,
    size_annotations,
)
from keepclose.model.workloads.types import (
    Deployment,
    DeploymentStatus,
    ReplicaSet,
    reference_to,
    workload_owner_of,
)


class DeploymentSync:
    """Carries out the plans of Deployments."""

    def __init__(
        self, client: Client, caches: LabCaches, *, clock: Clock, recorder: EventRecorder
    ) -> None:
        self._client, self._caches = client, caches
        self._clock, self._recorder = clock, recorder
        self._watermarks = Watermarks(clock, caches.replica_sets)

    async def sync(self, key: NamespacedName) -> float | None:
        """Sync a Deployment; return the seconds after which to sync it again without a change."""
        deployment = self._caches.deployments.get(key)
        if deployment is None:
            return None
        if self._watermarks.lags(deployment.metadata.uid):
            # The event of the write requeues the key; this is for an event that never comes.
            return UNCERTAIN_S
        claims = sort_claims(
            deployment,
            self._caches.replica_sets_of(deployment.metadata.uid),
            self._caches.orphan_replica_sets(key.namespace),
        )
        replica_sets = await settle_claims(self._client, REPLICA_SETS, deployment, claims)
        pods = [
            pod
            for replica_set in replica_sets
            for pod in self._caches.pods_of(replica_set.metadata.uid)
        ]
        plan = plan_deployment(deployment, replica_sets, pods, now=self._clock.now())
        if plan.creation is not None and not await self._create(deployment, plan.creation):
            return await self._record_collision(deployment)
        await self._resize(deployment, plan)
        for replica_set in plan.deletions:
            await self._delete(replica_set)
        await self._write_status(deployment, plan.status, revision=plan.revision)
        return plan.recheck_s

    async def _create(self, deployment: Deployment, body: JsonObject) -> bool:
        """Create a ReplicaSet, or return False if another one has its name."""
        namespace, name = deployment.metadata.namespace, body["metadata"]["name"]
        try:
            created = await self._client.create(REPLICA_SETS, body, namespace=namespace)
        except AlreadyExists:
            existing = await self._client.get(REPLICA_SETS, name, namespace=namespace)
            owner = workload_owner_of(existing.metadata)
            return (
                owner is not None
                and owner.uid == deployment.metadata.uid
                and is_same_template(existing.spec.template, deployment.spec.template)
            )
        except ApiError as error:
            message = f'Failed to create new replica set "{name}": {error}'
            self._record_event(
                deployment, message, severity="Warning", reason="ReplicaSetCreateError"
            )
            raise
        self._watermarks.record(deployment.metadata.uid, created.metadata)
        replicas = body["spec"]["replicas"]
        if replicas:
            self._record_event(deployment, f"Scaled up replica set {name} from 0 to {replicas}")
        return True

    async def _resize(self, deployment: Deployment, plan: DeploymentPlan) -> None:
        """Write sizes, and the annotations of the current ReplicaSet."""
        sizes = {size.replica_set.metadata.name: size for size in plan.sizes}
        current = plan.current
        if current is not None and (
            plan.annotations or current.spec.min_ready_seconds != deployment.spec.min_ready_seconds
        ):
            kept = Size(current, current.spec.replicas)
            sizes.setdefault(current.metadata.name, kept)
        for name, (replica_set, replicas) in sizes.items():
            annotations: dict[str, str] = {}
            # Only a planned size updates the annotations of the Deployment's size.
            if any(size.replica_set is replica_set for size in plan.sizes):
                annotations |= size_annotations(deployment)
            spec: JsonObject = {"replicas": replicas}
            if replica_set is current:
                annotations |= plan.annotations
                spec["minReadySeconds"] = deployment.spec.min_ready_seconds
            await self._patch(deployment, replica_set, annotations, spec)
            before = replica_set.spec.replicas
            if before != replicas:
                direction = "up" if before < replicas else "down"
                text = f"Scaled {direction} replica set {name} from {before} to {replicas}"
                self._record_event(deployment, text)

    async def _patch(
        self,
        deployment: Deployment,
        replica_set: ReplicaSet,
        annotations: dict[str, str],
        spec: JsonObject,
    ) -> None:
        meta = replica_set.metadata
        annotated, least = meta.annotations, replica_set.spec.min_ready_seconds
        if (
            spec["replicas"] == replica_set.spec.replicas
            and spec.get("minReadySeconds", least) == least
            and all(annotated.get(key) == value for key, value in annotations.items())
        ):
            return
        patch = {
            "metadata": {"resourceVersion": meta.resource_version, "annotations": annotations},
            "spec": spec,
        }
        patched = await self._client.patch(REPLICA_SETS, meta.name, patch, namespace=meta.namespace)
        self._watermarks.record(deployment.metadata.uid, patched.metadata)

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

    async def _record_collision(self, deployment: Deployment) -> float:
        """Count a collision of the template hash, so that the next hash differs."""
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
            # NB: written with the status, the annotation makes no new generation.
            patch["metadata"] = {"annotations": {REVISION: str(revision)}}
        if not patch:
            return
        try:
            await self._client.patch(
                DEPLOYMENTS, meta.name, patch, namespace=meta.namespace, subresource="status"
            )
        except NotFound:
            return

    def _record_event(
        self,
        deployment: Deployment,
        message: str,
        *,
        severity: str = "Normal",
        reason: str = "ScalingReplicaSet",
    ) -> None:
        self._recorder.record(reference_to(deployment), severity, reason, message)
