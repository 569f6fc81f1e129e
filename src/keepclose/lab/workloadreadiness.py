"""When a Deployment or a DaemonSet is done: all its pods are of the present template and available.

The rule is that of `kubectl rollout status`, but for a DaemonSet that no node wants yet: it is not
done, because its first pods may be about to come.
"""

from __future__ import annotations

from keepclose.model.json_values import JsonObject


def ready_count(workload: JsonObject) -> int | None:
    """Return how many pods a workload has once all of them are ready, None before.

    A Deployment that wants no pods is ready with 0.
    """
    meta, status = workload["metadata"], workload.get("status", {})
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        return None
    wanted: int
    numbers: tuple[str, ...]
    if workload["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        numbers = ("updatedNumberScheduled", "numberAvailable")
        is_wanted = wanted > 0
    else:
        wanted = workload["spec"].get("replicas", 1)
        # NB: the first of them counts old pods too.
        numbers = ("replicas", "updatedReplicas", "availableReplicas")
        is_wanted = True
    is_done = is_wanted and all(status.get(name, 0) == wanted for name in numbers)
    return wanted if is_done else None
