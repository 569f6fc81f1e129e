"""Short builders of workloads and their pods, from what the API would show."""

from __future__ import annotations

from typing import Any

import msgspec

from keepclose.model.timestamps import format_event_time
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import DaemonSet, Deployment, ReplicaSet

NOW = 1_700_000_000.0
LABELS = {"app": "web"}


def stamp(seconds_ago: float = 0.0) -> str:
    """Return a time of the API."""
    return format_event_time(NOW - seconds_ago)


def template(image: str = "web:1", **spec: Any) -> dict[str, Any]:
    """Return a template of pods."""
    return {
        "metadata": {"labels": dict(LABELS)},
        "spec": {"containers": [{"name": "main", "image": image}], **spec},
    }


def a_node(
    name: str,
    zone: str = "zone-a",
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    **spec: Any,
) -> Node:
    """Return a node."""
    status = {
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        "allocatable": allocatable or {},
    }
    raw = {
        "metadata": {"name": name, "labels": {ZONE_LABEL: zone, **(labels or {})}},
        "spec": spec,
        "status": status,
    }
    return msgspec.convert(raw, Node)


def a_pod(
    name: str,
    node: str = "",
    *,
    owner: str = "",
    ready: bool | None = None,
    ready_for_s: float = 100.0,
    age_s: float = 1000.0,
    terminating: bool = False,
    phase: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    namespace: str = "default",
    restarts: int = 0,
    **spec: Any,
) -> WorkloadPod:
    """Return a pod; without a word on ready it is pending, and owners are known by their uid."""
    conditions = []
    if ready is not None:
        conditions.append(
            {
                "type": "Ready",
                "status": "True" if ready else "False",
                "lastTransitionTime": stamp(ready_for_s),
            }
        )
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner}
    raw = {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "creationTimestamp": stamp(age_s),
            "deletionTimestamp": stamp() if terminating else None,
            "labels": LABELS if labels is None else labels,
            "annotations": annotations or {},
            "ownerReferences": [{**reference, "controller": True}] if owner else [],
        },
        "spec": {"nodeName": node, **spec},
        "status": {
            "phase": phase or ("Pending" if ready is None else "Running"),
            "conditions": conditions,
            "containerStatuses": [{"restartCount": restarts}],
        },
    }
    return msgspec.convert(raw, WorkloadPod)


def a_deployment(
    replicas: int = 3,
    *,
    image: str = "web:1",
    surge: int | str = "25%",
    unavailable: int | str = "25%",
    annotations: dict[str, str] | None = None,
    status: dict[str, Any] | None = None,
    generation: int = 1,
    **spec: Any,
) -> Deployment:
    """Return a Deployment."""
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    raw = {
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "uid-web",
            "generation": generation,
            "annotations": annotations or {},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": template(image),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 10,
            **spec,
        },
        "status": status or {},
    }
    return msgspec.convert(raw, Deployment)


def a_replica_set(
    name: str,
    replicas: int,
    *,
    image: str = "web:1",
    available: int | None = None,
    age_s: float = 1000.0,
    annotations: dict[str, str] | None = None,
    generation: int = 1,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> ReplicaSet:
    """Return a ReplicaSet whose pods are all there, and available as told."""
    up = replicas if available is None else available
    counted = {
        "observedGeneration": generation,
        "replicas": replicas,
        "readyReplicas": up,
        "availableReplicas": up,
    }
    raw = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "generation": generation,
            "creationTimestamp": stamp(age_s),
            "annotations": annotations or {},
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": LABELS},
            "template": template(image),
            **spec,
        },
        "status": {**counted, **(status or {})},
    }
    return msgspec.convert(raw, ReplicaSet)


def a_daemon_set(
    *,
    image: str = "web:1",
    surge: int | str = 0,
    unavailable: int | str = 1,
    kind: str = "RollingUpdate",
    min_ready: int = 0,
    generation: int = 1,
    **spec: Any,
) -> DaemonSet:
    """Return a DaemonSet; the spec is that of its pods."""
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    raw = {
        "metadata": {
            "name": "collector",
            "namespace": "default",
            "uid": "uid-collector",
            "generation": generation,
        },
        "spec": {
            "selector": {"matchLabels": LABELS},
            "template": template(image, **spec),
            "updateStrategy": {"type": kind, "rollingUpdate": rolling},
            "minReadySeconds": min_ready,
        },
    }
    return msgspec.convert(raw, DaemonSet)
