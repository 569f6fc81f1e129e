"""The kinds of workloads and pods that the components of the lab read and write."""

from __future__ import annotations

from typing import Final

from keepclose.kube.requests import Kind
from keepclose.model.json_values import JsonObject
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import DaemonSet, Deployment, ReplicaSet

DEPLOYMENTS: Final = Kind("apps", "v1", "deployments", "Deployment", True, Deployment)
REPLICA_SETS: Final = Kind("apps", "v1", "replicasets", "ReplicaSet", True, ReplicaSet)
DAEMON_SETS: Final = Kind("apps", "v1", "daemonsets", "DaemonSet", True, DaemonSet)
PLAIN_DEPLOYMENTS: Final[Kind[JsonObject]] = Kind(
    "apps", "v1", "deployments", "Deployment", True, dict
)
"""With all fields, undecoded."""
PLAIN_DAEMON_SETS: Final[Kind[JsonObject]] = Kind(
    "apps", "v1", "daemonsets", "DaemonSet", True, dict
)
LAB_PODS: Final = Kind("", "v1", "pods", "Pod", True, WorkloadPod)
