"""The pods of a workload: when one is available, which are deleted first, what a new one has.

A new pod gets the template's labels, annotations and whole spec, and a controller reference to its
workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject, parse_int64
from keepclose.model.timestamps import seconds_of
from keepclose.model.workloads.pods import WorkloadPod, WorkloadPodSpec
from keepclose.model.workloads.types import (
    DaemonSet,
    ReplicaSet,
    owned_by,
)

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASES: Final = {"Pending": 0, "Unknown": 1, "Running": 2}


def available_in(pod: WorkloadPod, *, min_ready_s: int, now: float) -> float | None:
    """Return the seconds until a pod is available: 0 if it is, None if it is not ready.

    Without a time in its condition a pod counts as ready since now.
    """
    ready = pod.status.condition("Ready")
    if ready is None or ready.status != "True":
        return None
    if min_ready_s <= 0:
        return 0.0
    since = seconds_of(ready.last_transition_time)
    return max(0.0, (now if since is None else since) + min_ready_s - now)


def is_pod_available(pod: WorkloadPod, *, min_ready_s: int, now: float) -> bool:
    """Return whether a pod has been ready for minReadySeconds."""
    return available_in(pod, min_ready_s=min_ready_s, now=now) == 0.0


def rank_for_deletion(
    pods: Iterable[WorkloadPod], related: Iterable[WorkloadPod]
) -> list[WorkloadPod]:
    """Return the pods in the order in which a ReplicaSet deletes them, as in Kubernetes.

    First pods without a node, not running, not ready, then those with a low deletion cost, on nodes
    with many related active pods, ready for the shortest time, often restarted, and newest.
    """
    crowds: dict[str, int] = {}
    for pod in related:
        if pod.is_active:
            crowds[pod.spec.node_name] = crowds.get(pod.spec.node_name, 0) + 1

    def rank(pod: WorkloadPod) -> tuple[object, ...]:
        ready = pod.status.condition("Ready")
        ready_since = seconds_of(ready.last_transition_time) if ready else None
        restarts = max(
            (status.restart_count for status in pod.status.container_statuses), default=0
        )
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -crowds.get(pod.spec.node_name, 0),
            -(ready_since or 0.0) if pod.is_ready else 0.0,
            -restarts,
            -(seconds_of(pod.metadata.creation_timestamp) or 0.0),
            pod.metadata.name,
        )

    return sorted(pods, key=rank)


def make_pod(
    owner: ReplicaSet | DaemonSet,
    *,
    name: str,
    labels: Mapping[str, str] | None = None,
    spec: JsonObject | None = None,
) -> JsonObject:
    """Return a pod of the workload's template, with more labels or another spec if given."""
    template = owner.spec.template
    meta = template.get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "generateName": f"{owner.metadata.name}-",
        "namespace": owner.metadata.namespace,
        "labels": {**(meta.get("labels") or {}), **(labels or {})},
        "ownerReferences": [owned_by(owner)],
    }
    for key in ("annotations", "finalizers"):
        if meta.get(key):
            metadata[key] = meta[key]
    return {
        "metadata": metadata,
        "spec": dict(template.get("spec") or {}) if spec is None else spec,
    }


def put_on_node(pod: JsonObject, node: str) -> JsonObject:
    """Return the pod bound to the node, or unchanged without a node."""
    return {**pod, "spec": {**pod["spec"], "nodeName": node}} if node else pod


def read_pod(pod: JsonObject) -> WorkloadPod | None:
    """Return the pod as scheduling sees it, None if it cannot be decoded."""
    decoded = convert_as(WorkloadPod, pod)
    return None if isinstance(decoded, Rejected) else decoded


def read_spec(spec: JsonObject) -> WorkloadPodSpec:
    """Return the spec as scheduling sees it; one that cannot be decoded has no constraints."""
    pod = read_pod({"metadata": {"name": "template"}, "spec": spec})
    return WorkloadPodSpec() if pod is None else pod.spec


def _deletion_cost(pod: WorkloadPod) -> int:
    return parse_int64(pod.metadata.annotations.get(DELETION_COST, "0")) or 0
