"""The ReplicaSet controller: carries out the plans of `model.workloads.replica_set_plan`.

New pods are created with a node if one fits, which saves a binding. A ReplicaSet whose last writes
are not in the cache yet creates and deletes nothing; it only writes its status.

Pods are created in batches of 1, 2, 4 and so on, as in kube-controller-manager, so that a template
that the server refuses costs one request. Before each batch the ReplicaSet is read again, and no
pod is created while `MAX_PENDING` others do not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, NotFound
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS, REPLICA_SETS
from keepclose.lab.workloads.expectations import Expectations, settle_claims, sort_claims
from keepclose.lab.workloads.pods import NewPod, PodWriter, name_pod, patch_status
from keepclose.model.meta import NamespacedName
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.placement import place_pods
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import (
    make_pod,
    put_on_node,
    read_pod,
)
from keepclose.model.workloads.replica_set_plan import (
    ReplicaSetPlan,
    failure_to_create,
    plan_replica_set,
)
from keepclose.model.workloads.types import ReplicaSet

MAX_PENDING: Final = 500
"""How many pods of the cluster may be Pending, and how many of one ReplicaSet may have ended,
before no more are created: the rest of two billion replicas would fill the API server with pods
that fit on no node."""
CROWDED_RECHECK_S: Final = 2.0
"""After how many seconds to count Pending pods again."""
_CROWDED: Final = (
    f"no more pods are created while {MAX_PENDING} are Pending or have ended: "
    "scale down, or delete pods"
)


class ReplicaSetSync:
    """Carries out the plans of ReplicaSets."""

    def __init__(
        self,
        client: Client,
        caches: LabCaches,
        *,
        expectations: Expectations,
        writer: PodWriter,
        clock: Clock,
        random: Random,
    ) -> None:
        self._client, self._caches = client, caches
        self._expectations, self._writer = expectations, writer
        self._clock, self._random = clock, random

    async def sync(self, key: NamespacedName) -> float | None:
        """Sync a ReplicaSet; return the seconds after which to sync it again without a change."""
        replica_set = self._caches.replica_sets.get(key)
        if replica_set is None:
            return None
        # NB: read at the same moment as the pods, so that both are of the same state.
        wait_s = self._expectations.wait_s(replica_set.metadata.uid)
        orphans = self._caches.orphan_pods(key.namespace)
        owned = self._caches.pods_of(replica_set.metadata.uid)
        claims = sort_claims(replica_set, owned, [pod for pod in orphans if pod.is_active])
        claimed = await settle_claims(self._client, LAB_PODS, replica_set, claims)
        pods = [self._as_deleted(pod) for pod in claimed]
        plan = self._plan(replica_set, pods)
        failed: ApiError | None = None
        crowded_s: float | None = None
        if plan.missing and not self._room(replica_set):
            crowded_s = CROWDED_RECHECK_S
            plan = replace(self._plan(replica_set, pods, failure=_CROWDED), missing=0)
        if wait_s is None:
            try:
                await self._act(replica_set, plan)
            except ApiError as error:
                failed = error
                plan = self._plan(replica_set, pods, failure=str(error))
        await self._write_status(replica_set, plan)
        if failed is not None:
            raise failed
        waits = (wait_s, plan.recheck_s, crowded_s)
        return min((wait for wait in waits if wait is not None), default=None)

    def _as_deleted(self, pod: WorkloadPod) -> WorkloadPod:
        """Return the pod, as terminating if this controller has deleted it."""
        if pod.is_terminating or not self._expectations.is_being_deleted(pod):
            return pod
        leaving = replace(pod.metadata, deletion_timestamp=format_event_time(self._clock.now()))
        return replace(pod, metadata=leaving)

    def _plan(
        self,
        replica_set: ReplicaSet,
        pods: Sequence[WorkloadPod],
        *,
        failure: str = "",
    ) -> ReplicaSetPlan:
        return plan_replica_set(
            replica_set,
            pods,
            related=self._related(replica_set),
            failure=failure_to_create(failure) if failure else None,
            now=self._clock.now(),
        )

    def _related(self, replica_set: ReplicaSet) -> list[WorkloadPod]:
        """Return the pods of all ReplicaSets of the same Deployment."""
        owner = next(
            (
                reference
                for reference in replica_set.metadata.owner_references
                if reference.controller
            ),
            None,
        )
        if owner is None:
            return self._caches.pods_of(replica_set.metadata.uid)
        return [
            pod
            for sibling in self._caches.replica_sets_of(owner.uid)
            for pod in self._caches.pods_of(sibling.metadata.uid)
        ]

    async def _act(self, replica_set: ReplicaSet, plan: ReplicaSetPlan) -> None:
        if plan.missing:
            await self._create_in_batches(replica_set, plan.missing)
        if plan.excess:
            await self._writer.delete(replica_set, plan.excess)

    async def _create_in_batches(self, replica_set: ReplicaSet, missing: int) -> None:
        """Create pods until none is missing, the ReplicaSet changes, or the cluster is crowded."""
        batch = 1
        while self._is_unchanged(replica_set):
            number = min(batch, missing, self._room(replica_set))
            if not number:
                return
            await self._writer.create(replica_set, self._new_pods(replica_set, number))
            missing -= number
            batch *= 2

    def _is_unchanged(self, replica_set: ReplicaSet) -> bool:
        """Return whether the spec is still the one of the plan.

        A ReplicaSet that changed meanwhile is in the queue again, and gets another plan.
        """
        current = self._caches.replica_sets.get(replica_set.metadata.key)
        return (
            current is not None
            and current.metadata.uid == replica_set.metadata.uid
            and current.metadata.deletion_timestamp == replica_set.metadata.deletion_timestamp
            and current.spec == replica_set.spec
        )

    def _room(self, replica_set: ReplicaSet) -> int:
        """Return how many pods may be created before `MAX_PENDING` are Pending or have ended."""
        pending = len(self._caches.pending_pods()) + len(self._expectations.assumed())
        owned = self._caches.pods_of(replica_set.metadata.uid)
        return max(0, MAX_PENDING - max(pending, sum(pod.has_ended for pod in owned)))

    def _new_pods(self, replica_set: ReplicaSet, number: int) -> list[NewPod]:
        """Return new pods, bound to a node if one fits."""
        bodies = {}
        for _ in range(number):
            name = name_pod(replica_set.metadata.name, self._random)
            bodies[name] = make_pod(replica_set, name=name)
        pods = [pod for pod in map(read_pod, bodies.values()) if pod is not None]
        placed = place_pods(
            [pod for pod in pods if pod.awaits_node],
            nodes=self._caches.nodes.all(),
            pods=[*self._caches.pods.all(), *self._expectations.assumed()],
        )
        for place in placed:
            name = place.pod.metadata.name
            bodies[name] = put_on_node(bodies[name], place.node)
        return [NewPod(body, read_pod(body) or WorkloadPod()) for body in bodies.values()]

    async def _write_status(self, replica_set: ReplicaSet, plan: ReplicaSetPlan) -> None:
        patch = patch_status(replica_set.status, plan.status)
        if patch is None:
            return
        meta = replica_set.metadata
        try:
            await self._client.patch(
                REPLICA_SETS, meta.name, patch, namespace=meta.namespace, subresource="status"
            )
        except NotFound:
            return
