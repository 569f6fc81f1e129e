"""What a ReplicaSet needs: how many pods to create, which to delete, and its status.

Pods that ended or are being deleted are no replicas, and the status leaves out the pods that the
plan deletes: write it after the deletions, so that a Deployment never counts on a deleted pod. The
order of deletions is Kubernetes'; see `replica_pods.rank_for_deletion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.deployment_status import REPLICA_FAILURE
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import (
    available_in,
    rank_for_deletion,
)
from keepclose.model.workloads.types import ReplicaSet, ReplicaSetStatus, WorkloadCondition

BURST_REPLICAS: Final = 500
"""How many pods one sync creates or deletes, as in kube-controller-manager: a spec with billions of
replicas must neither fill the memory nor delay the sync of a smaller spec."""


class ReplicaSetPlan(msgspec.Struct, frozen=True):
    """The next writes for a ReplicaSet, and its status."""

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

    Related are the pods of the same Deployment, which count for the order of deletions. The failure
    is that of the last attempt, None if it succeeded.
    """
    active = [pod for pod in pods if pod.is_active]
    surplus = len(active) - replica_set.spec.replicas
    if replica_set.metadata.deletion_timestamp is not None:
        surplus = 0
    excess: list[WorkloadPod] = []
    if surplus > 0:
        excess = rank_for_deletion(active, related or active)[: min(BURST_REPLICAS, surplus)]
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


def failure_to_create(message: str) -> WorkloadCondition:
    """Return the condition of a ReplicaSet whose pods the API server rejects."""
    return WorkloadCondition(
        type=REPLICA_FAILURE, status="True", reason="FailedCreate", message=message
    )


def _conditions(
    replica_set: ReplicaSet, failure: WorkloadCondition | None, now: float
) -> tuple[WorkloadCondition, ...]:
    """Return the conditions with the failure, which keeps the time of its first occurrence."""
    before = replica_set.status.conditions
    stored = next((condition for condition in before if condition.type == REPLICA_FAILURE), None)
    rest = tuple(condition for condition in before if condition.type != REPLICA_FAILURE)
    if failure is None:
        return rest
    stamped = msgspec.structs.replace(failure, last_transition_time=format_event_time(now))
    return (*rest, stored or stamped)
