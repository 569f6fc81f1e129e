"""Patches that make the stored status of a workload what it should be.

Numbers that are 0 are left out, as the API does, and so must be taken away where they are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.lab.workloads.types import DaemonSetStatus, DeploymentStatus, ReplicaSetStatus
from keepclose.model.json_values import JsonObject

Status = DeploymentStatus | ReplicaSetStatus | DaemonSetStatus
# The API shows these even when they are 0.
_ALWAYS: Final = frozenset(
    (
        "currentNumberScheduled",
        "desiredNumberScheduled",
        "numberMisscheduled",
        "numberReady",
        "terminatingReplicas",
    )
)
_ALWAYS_OF_REPLICA_SETS: Final = _ALWAYS | {"replicas"}


def patch_status(stored: Status, wanted: Status) -> JsonObject | None:
    """Return the merge patch of the status, None when it is as wanted already."""
    if stored == wanted:
        return None
    kept = _ALWAYS_OF_REPLICA_SETS if isinstance(wanted, ReplicaSetStatus) else _ALWAYS
    patch: JsonObject = {}
    for field in msgspec.structs.fields(wanted):
        value = getattr(wanted, field.name)
        name = field.encode_name
        if name in kept and value is not None:
            patch[name] = value
        else:
            patch[name] = msgspec.to_builtins(value) if value else None
    return {"status": patch}
