"""Which evictions PodDisruptionBudgets allow, by the rules of Kubernetes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.model.workloads.disruption_budgets import (
    PodDisruptionBudget,
    desired_healthy,
    eviction_refusal,
)
from keepclose.model.workloads.pods import WorkloadPod
from support.lab.labobjects import LABELS, a_pod


def budget(name: str = "web", **spec: Any) -> PodDisruptionBudget:
    """Return a budget of the pods of the builders, unless the spec has another selector."""
    raw = {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": LABELS}, **spec},
    }
    return msgspec.convert(raw, PodDisruptionBudget)


READY = [a_pod(f"p{number}", "n1", ready=True) for number in range(4)]
UNREADY = a_pod("slow", "n1", ready=False)
GOING = a_pod("going", "n1", ready=True, terminating=True)


@pytest.mark.parametrize(
    ("spec", "pods", "replicas", "want"),
    [
        pytest.param({"maxUnavailable": 1}, 4, 5, 4, id="a number counts from the replicas"),
        pytest.param({"maxUnavailable": "25%"}, 4, 5, 3, id="a percentage rounds up"),
        pytest.param({"maxUnavailable": 9}, 4, 4, 0, id="never less than none"),
        pytest.param({"minAvailable": 3}, 1, 1, 3, id="a minimum stays, whatever there is"),
        pytest.param({"minAvailable": "50%"}, 5, 5, 3, id="a minimum in percent rounds up"),
        pytest.param({}, 4, 4, 4, id="neither permits nothing"),
    ],
)
def test_how_many_must_stay(spec: dict[str, Any], pods: int, replicas: int, want: int) -> None:
    """By one of the two numbers."""
    assert desired_healthy(budget(**spec), pods=pods, replicas=replicas) == want


def refusal(pod: WorkloadPod, *budgets: PodDisruptionBudget, pods: list[WorkloadPod]) -> str:
    """Return why the pod may not be evicted among these."""
    return eviction_refusal(pod, budgets, pods=pods, replicas=4)


def test_an_eviction_needs_a_healthy_pod_to_spare() -> None:
    """Four are healthy and three must be; with one of them unready there is none to spare."""
    one = budget(maxUnavailable=1)
    assert refusal(READY[0], one, pods=READY) == ""
    assert refusal(READY[0], one, pods=[*READY[:3], UNREADY]) == (
        "PodDisruptionBudget web needs 3 healthy pods and has 3"
    )
    assert refusal(READY[0], one, pods=[*READY[:3], GOING]) != ""


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(a_pod("new", "n1"), id="pending"),
        pytest.param(GOING, id="being deleted"),
        pytest.param(a_pod("done", "n1", ready=False, phase="Succeeded"), id="ended"),
        pytest.param(a_pod("other", "n1", ready=True, labels={"app": "x"}), id="not covered"),
        pytest.param(a_pod("far", "n1", ready=True, namespace="far"), id="of another namespace"),
    ],
)
def test_pods_that_need_no_budget(pod: WorkloadPod) -> None:
    """They are evicted although no healthy pod is to spare."""
    assert refusal(pod, budget(minAvailable=9), pods=[*READY, pod]) == ""


def test_unready_pods() -> None:
    """They may go if the others are enough, and with AlwaysAllow in any case."""
    pods = [*READY[:3], UNREADY]
    assert refusal(UNREADY, budget(minAvailable=3), pods=pods) == ""
    assert refusal(UNREADY, budget(minAvailable=4), pods=pods) != ""
    always = budget(minAvailable=4, unhealthyPodEvictionPolicy="AlwaysAllow")
    assert refusal(UNREADY, always, pods=pods) == ""


def test_a_budget_without_numbers_refuses() -> None:
    """The disruption controller expects no pods then, and permits no disruption."""
    assert refusal(READY[0], budget(), pods=READY) != ""


def test_selectors() -> None:
    """Without a selector a budget covers nothing, with an empty one everything."""
    assert refusal(READY[0], budget(minAvailable=9, selector=None), pods=READY) == ""
    assert refusal(READY[0], budget(minAvailable=9, selector={}), pods=READY) != ""


def test_two_budgets_refuse() -> None:
    """Even if each would allow it."""
    both = [budget("b", minAvailable=0), budget("a", minAvailable=0)]
    assert refusal(READY[0], *both, pods=READY) == (
        "more than one PodDisruptionBudget covers the pod: a, b"
    )
