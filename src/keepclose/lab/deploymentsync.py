"""Carries out the next step of a Deployment: makes, sizes and removes its ReplicaSets.

Sizes are written against the version of the ReplicaSet that they were decided on; a step made from
an old view fails with a conflict and is decided anew. The name of a new ReplicaSet follows from the
template, so a second attempt finds the first one's.
"""

from __future__ import annotations

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.lab.ownership import settle_claims, sort_claims
from keepclose.lab.revisions import REVISION, is_same_template, size_annotations
from keepclose.lab.statuspatches import patch_status
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.deployments import DeploymentPlan, plan_deployment
from keepclose.lab.workloads.expectations import DOUBT_S, Watermarks
from keepclose.lab.workloads.pods import controller_of
from keepclose.lab.workloads.rolling_update import Size
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
            owner = controller_of(found.metadata)
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
