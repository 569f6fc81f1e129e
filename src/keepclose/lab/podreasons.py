"""Why pods are not ready, in one line, from what their status says.

The scheduler, the kubelet and its containers each say their part; the first that keeps a pod back
speaks for it, and pods that wait for the same are counted together. Nothing here asks the API.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from msgspec import UNSET

from keepclose.lab.images import NO_IMAGE
from keepclose.lab.kubelet.pod_specs import ContainerStatus, KubeletPod

_SHOWN: Final = 2


def is_ready(pod: KubeletPod) -> bool:
    """Return whether a pod is ready to serve."""
    ready = pod.status.condition("Ready")
    return ready is not None and ready.status == "True" and not pod.is_terminating


def explain_unready(pods: Iterable[KubeletPod]) -> str:
    """Return what keeps pods from being ready, the most frequent first; "" when all are."""
    reasons = Counter(explain_pod(pod) for pod in pods if not is_ready(pod))
    shown = reasons.most_common(_SHOWN)
    words = [reason if len(reasons) == 1 else f"{count} {reason}" for reason, count in shown]
    if len(reasons) > _SHOWN:
        words.append(f"{sum(reasons.values()) - sum(count for _, count in shown)} otherwise")
    return ", ".join(words)


def explain_pod(pod: KubeletPod) -> str:
    """Return what keeps one pod from being ready."""
    if pod.is_terminating:
        return "terminating"
    status = pod.status
    if not pod.spec.node_name:
        scheduled = status.condition("PodScheduled")
        if scheduled is not None and scheduled.message:
            return f"{scheduled.reason} ({scheduled.message.rstrip('.')})"
        return "waiting for a node"
    for container in (*status.init_container_statuses, *status.container_statuses):
        if (reason := _explain_container(container)) and not container.ready:
            return reason
    if pod.has_ended:
        return status.phase
    ready = status.condition("Ready")
    return ready.message or ready.reason if ready is not None else "not started yet"


def _explain_container(container: ContainerStatus) -> str:
    state = container.state
    if state.waiting is not UNSET:
        detail = container.image if state.waiting.reason in NO_IMAGE else container.name
        kind = "image" if state.waiting.reason in NO_IMAGE else "container"
        return f"{state.waiting.reason} ({kind} {detail})"
    if state.terminated is not UNSET:
        return f"{state.terminated.reason} (container {container.name})"
    return f"running but not ready (container {container.name})"
