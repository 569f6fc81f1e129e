"""Makes a ReplicaSet have as many pods as it wants, and writes its status.

New pods come with a node where one fits: the server binds pods only when they are made. A
ReplicaSet whose last writes are not in the cache yet changes nothing; it only reports.

Pods are created in batches of 1, 2, 4 and so on, as in kube-controller-manager, so that a template
that the server refuses costs one request. Before each batch the ReplicaSet is read again, and no
pod is created while `MOST_PENDING` others do not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, NotFound
from keepclose.kube.event_recorder import format_event_time
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.deployment_status import REPLICA_FAILURE
from keepclose.lab.workloads.expectations import Expectations, settle_claims, sort_claims
from keepclose.lab.workloads.pod_writes import NewPod, PodWriter, patch_status
from keepclose.lab.workloads.pods import (
    WORKLOAD_PODS,
    WorkloadPod,
    available_in,
    make_pod,
    name_pod,
    put_on_node,
    rank_for_deletion,
    read_pod,
)
from keepclose.lab.workloads.scheduler import place_pods
from keepclose.lab.workloads.types import (
    REPLICA_SETS,
    ReplicaSet,
    ReplicaSetStatus,
    WorkloadCondition,
)
from keepclose.model.meta import NamespacedName

BURST_REPLICAS: Final = 500
"""How many pods one sync creates or deletes, as in kube-controller-manager: a wish for billions of
pods must neither fill the memory nor keep a smaller wish from being read."""
MOST_PENDING: Final = 500
"""How many pods of the cluster may be Pending, and how many of one ReplicaSet may have ended,
before no more are created: the rest of two billion replicas would fill the API server with pods
that no node has room for."""
CROWDED_RECHECK_S: Final = 2.0
"""When to look again whether pods of others run or are gone."""
_CROWDED: Final = (
    f"no more pods are created while {MOST_PENDING} are Pending or have ended: "
    "scale down, or delete pods"
)


class ReplicaSetPlan(msgspec.Struct, frozen=True):
    """What to do for a ReplicaSet, and what to say of it."""

    status: ReplicaSetStatus
    missing: int = 0
    """How many pods to create now."""
    excess: tuple[WorkloadPod, ...] = ()
    """The pods to delete now."""
    recheck_s: float | None = None
    """When the next pod has been ready for long enough."""


def plan_replica_set(
    replica_set: ReplicaSet,
    pods: Sequence[WorkloadPod],
    *,
    related: Sequence[WorkloadPod] = (),
    failure: WorkloadCondition | None = None,
    now: float,
) -> ReplicaSetPlan:
    """Return what a ReplicaSet with these pods needs.

    Related are the pods of the same Deployment, which make a node crowded. A failure is that of
    the last attempt, None when it went well.
    """
    active = [pod for pod in pods if pod.is_active]
    surplus = len(active) - replica_set.spec.replicas
    if replica_set.metadata.deletion_timestamp is not None:
        surplus = 0
    excess = rank_for_deletion(active, related or active)[: min(BURST_REPLICAS, max(0, surplus))]
    leaving = {pod.uid for pod in excess}
    staying = [pod for pod in active if pod.uid not in leaving]
    least_s = replica_set.spec.min_ready_seconds
    waits = [available_in(pod, min_ready_s=least_s, now=now) for pod in staying]
    labels = ((replica_set.spec.template.get("metadata") or {}).get("labels") or {}).items()
    going = sum(pod.is_terminating and not pod.has_ended for pod in pods)
    status = ReplicaSetStatus(
        observed_generation=replica_set.metadata.generation,
        replicas=len(staying),
        fully_labeled_replicas=sum(labels <= pod.metadata.labels.items() for pod in staying),
        ready_replicas=sum(pod.is_ready for pod in staying),
        available_replicas=sum(wait == 0.0 for wait in waits),
        terminating_replicas=going + len(excess),
        conditions=_conditions(replica_set, failure, now),
    )
    recheck_s = min((wait for wait in waits if wait), default=None)
    return ReplicaSetPlan(status, min(BURST_REPLICAS, max(0, -surplus)), tuple(excess), recheck_s)


def _conditions(
    replica_set: ReplicaSet, failure: WorkloadCondition | None, now: float
) -> tuple[WorkloadCondition, ...]:
    """Return the conditions with the failure, which keeps the time of its first occurrence."""
    before = replica_set.status.conditions
    known = next((one for one in before if one.type == REPLICA_FAILURE), None)
    rest = tuple(one for one in before if one.type != REPLICA_FAILURE)
    if failure is None:
        return rest
    stamped = msgspec.structs.replace(failure, last_transition_time=format_event_time(now))
    return (*rest, known or stamped)


def failure_to_create(message: str) -> WorkloadCondition:
    """Return the condition of a ReplicaSet whose pods the server does not take."""
    return WorkloadCondition(
        type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=message
    )


class ReplicaSetSync:
    """Carries out the plans of ReplicaSets."""

    def __init__(
        self,
        client: Client,
        caches: WorkloadCaches,
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
        """Bring one ReplicaSet forward; return when to look again though nothing changed."""
        replica_set = self._caches.replica_sets.get(key)
        if replica_set is None:
            return None
        # NB: at the same moment as the pods; what is seen later must not count for either.
        wait_s = self._expectations.wait_s(replica_set.metadata.uid)
        orphans = self._caches.orphan_pods(key.namespace)
        owned = self._caches.pods_of(replica_set.metadata.uid)
        claims = sort_claims(replica_set, owned, [pod for pod in orphans if pod.is_active])
        claimed = await settle_claims(self._client, WORKLOAD_PODS, replica_set, claims)
        pods = [self._as_known(pod) for pod in claimed]
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

    def _as_known(self, pod: WorkloadPod) -> WorkloadPod:
        """Return the pod, on its way out if this hand has sent it there."""
        if pod.is_terminating or not self._expectations.is_leaving(pod):
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
        owner = next((one for one in replica_set.metadata.owner_references if one.controller), None)
        if owner is None:
            return self._caches.pods_of(replica_set.metadata.uid)
        return [
            pod
            for one in self._caches.replica_sets_of(owner.uid)
            for pod in self._caches.pods_of(one.metadata.uid)
        ]

    async def _act(self, replica_set: ReplicaSet, plan: ReplicaSetPlan) -> None:
        if plan.missing:
            await self._create_in_batches(replica_set, plan.missing)
        if plan.excess:
            await self._writer.delete(replica_set, plan.excess)

    async def _create_in_batches(self, replica_set: ReplicaSet, missing: int) -> None:
        """Create pods until none is missing, the ReplicaSet changes, or the cluster is crowded."""
        batch = 1
        while self._is_wanted(replica_set):
            number = min(batch, missing, self._room(replica_set))
            if not number:
                return
            await self._writer.create(replica_set, self._new_pods(replica_set, number))
            missing -= number
            batch *= 2

    def _is_wanted(self, replica_set: ReplicaSet) -> bool:
        """Return whether the spec is still the one that the plan was made for.

        A ReplicaSet that changed meanwhile is in the queue again, and gets a plan of its own.
        """
        current = self._caches.replica_sets.get(replica_set.metadata.key)
        return (
            current is not None
            and current.metadata.uid == replica_set.metadata.uid
            and current.metadata.deletion_timestamp == replica_set.metadata.deletion_timestamp
            and current.spec == replica_set.spec
        )

    def _room(self, replica_set: ReplicaSet) -> int:
        """Return how many pods may be created before so many do not run that more would pile up."""
        pending = len(self._caches.pending_pods()) + len(self._expectations.assumed())
        owned = self._caches.pods_of(replica_set.metadata.uid)
        return max(0, MOST_PENDING - max(pending, sum(pod.has_ended for pod in owned)))

    def _new_pods(self, replica_set: ReplicaSet, number: int) -> list[NewPod]:
        """Return pods, with nodes for those that fit somewhere."""
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
