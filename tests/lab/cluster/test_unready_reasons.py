"""Why pods are not ready."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.lab.traffic.failure_causes import explain_pod, explain_unready
from keepclose.model.workloads.pods import WorkloadPod

READY: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
UNREADY = {"type": "Ready", "status": "False", "message": "containers with unready status: [main]"}


def a_pod(node: str = "n1", *, terminating: bool = False, **status: Any) -> WorkloadPod:
    """Return a pod with a status."""
    meta = {"name": "p1", "deletionTimestamp": "2026-01-01T00:00:00Z" if terminating else None}
    raw = {"metadata": meta, "spec": {"nodeName": node}, "status": status}
    return msgspec.convert(raw, WorkloadPod)


def container(**state: Any) -> dict[str, Any]:
    """Return the status of a container."""
    return {"name": "main", "image": "nginx:1.161", "state": state}


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(
            a_pod(
                "",
                conditions=[
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/6 nodes are available: 6 Insufficient cpu.",
                    }
                ],
            ),
            "Unschedulable (0/6 nodes are available: 6 Insufficient cpu)",
            id="no node takes it",
        ),
        pytest.param(a_pod(""), "waiting for a node", id="not looked at by the scheduler"),
        pytest.param(
            a_pod(containerStatuses=[container(waiting={"reason": "ImagePullBackOff"})]),
            "ImagePullBackOff (image nginx:1.161)",
            id="no image",
        ),
        pytest.param(
            a_pod(containerStatuses=[container(waiting={"reason": "CrashLoopBackOff"})]),
            "CrashLoopBackOff (container main)",
            id="crashes",
        ),
        pytest.param(
            a_pod(containerStatuses=[container(running={})], conditions=[UNREADY]),
            "running but not ready (container main)",
            id="runs and does not serve",
        ),
        pytest.param(
            a_pod(containerStatuses=[container(terminated={"reason": "Error"})], phase="Failed"),
            "Error (container main)",
            id="ended",
        ),
        pytest.param(
            a_pod(
                containerStatuses=[{**container(running={}), "ready": True}], conditions=[UNREADY]
            ),
            "containers with unready status: [main]",
            id="only the condition says so",
        ),
        pytest.param(a_pod(), "not started yet", id="nothing was reported"),
        pytest.param(a_pod(terminating=True, **READY), "terminating", id="is to go"),
    ],
)
def test_what_keeps_a_pod_back(pod: WorkloadPod, want: str) -> None:
    """The first component that holds the pod up speaks."""
    assert explain_pod(pod) == want


def test_pods_that_wait_for_the_same_are_counted() -> None:
    """The most frequent reasons come first, and a long list ends."""
    crash = a_pod(containerStatuses=[container(waiting={"reason": "CrashLoopBackOff"})])
    image = a_pod(containerStatuses=[container(waiting={"reason": "ErrImagePull"})])
    assert explain_unready([a_pod(**READY)]) == ""
    assert explain_unready([crash, crash]) == "CrashLoopBackOff (container main)"
    assert explain_unready([image, crash, crash, a_pod(**READY)]) == (
        "2 CrashLoopBackOff (container main), 1 ErrImagePull (image nginx:1.161)"
    )
    assert explain_unready([image, crash, crash, image, a_pod(), a_pod("")]).endswith(
        ", 2 otherwise"
    )
