"""How many pods a ReplicaSet lacks, which of its pods go, and what its status says.

Pods that ended or were asked to go are no replicas, and the status leaves out those that are about
to be: write it after they were, so that a Deployment never counts on a pod that goes. Which go
first is Kubernetes' order; see `pods.rank_for_deletion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from keepclose.kube.event_recorder import format_time
from keepclose.lab.workloads.deployment_status import REPLICA_FAILURE
from keepclose.lab.workloads.pods import WorkloadPod, available_in, rank_for_deletion
from keepclose.lab.workloads.types import ReplicaSet, ReplicaSetStatus, WorkloadCondition

BURST_REPLICAS: Final = 500
"""How many pods one sync creates or deletes, as in kube-controller-manager: a wish for billions of
pods must neither fill the memory nor keep a smaller wish from being read."""


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
    stamped = msgspec.structs.replace(failure, last_transition_time=format_time(now))
    return (*rest, known or stamped)


def failure_to_create(message: str) -> WorkloadCondition:
    """Return the condition of a ReplicaSet whose pods the server does not take."""
    return WorkloadCondition(
        type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=message
    )
