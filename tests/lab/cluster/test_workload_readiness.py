"""When workloads count as ready."""

from __future__ import annotations

import pytest

from keepclose.model.workloads.types import ready_count


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param((2, 3, 3, 3), 3, id="all new and available"),
        pytest.param((1, 3, 3, 3), None, id="the change was not seen yet"),
        pytest.param((2, 3, 2, 3), None, id="one is old"),
        pytest.param((2, 3, 3, 2), None, id="one is missing"),
        pytest.param((2, 0, 0, 0), None, id="no node wants one yet"),
    ],
)
def test_daemon_sets(status: tuple[int, int, int, int], want: int | None) -> None:
    """A DaemonSet is ready when each node has an available pod of the present template."""
    seen, desired, updated, available = status
    daemons = {
        "kind": "DaemonSet",
        "metadata": {"name": "x", "generation": 2},
        "spec": {},
        "status": {
            "observedGeneration": seen,
            "desiredNumberScheduled": desired,
            "updatedNumberScheduled": updated,
            "numberAvailable": available,
        },
    }
    assert ready_count(daemons) == want


@pytest.mark.parametrize(
    ("status", "want"),
    [
        pytest.param((2, 3, 3, 3), 3, id="all new and available"),
        pytest.param((1, 3, 3, 3), None, id="the change was not seen yet"),
        pytest.param((2, 4, 3, 3), None, id="an old one is left"),
        pytest.param((2, 3, 2, 3), None, id="one is old"),
        pytest.param((2, 3, 3, 2), None, id="one is not available"),
    ],
)
def test_deployments(status: tuple[int, int, int, int], want: int | None) -> None:
    """A Deployment is ready when it has its number of available pods and no others."""
    seen, replicas, updated, available = status
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "x", "generation": 2},
        "spec": {"replicas": 3},
        "status": {
            "observedGeneration": seen,
            "replicas": replicas,
            "updatedReplicas": updated,
            "availableReplicas": available,
        },
    }
    assert ready_count(deployment) == want


@pytest.mark.parametrize(
    ("kind", "spec", "status", "want"),
    [
        pytest.param("Deployment", {}, {}, None, id="nobody has looked at it"),
        pytest.param("DaemonSet", {}, {}, None, id="nobody has looked at the DaemonSet"),
        pytest.param("Deployment", {}, {"observedGeneration": 1}, None, id="one pod by default"),
        pytest.param(
            "Deployment", {"replicas": 0}, {"observedGeneration": 1}, 0, id="none are wanted"
        ),
    ],
)
def test_fields_that_are_not_there(
    kind: str, spec: dict[str, int], status: dict[str, int], want: int | None
) -> None:
    """Numbers that nobody wrote are 0, and the number of pods that is wanted is 1."""
    workload = {"kind": kind, "metadata": {"generation": 1}, "spec": spec, "status": status}
    assert ready_count(workload) == want
