"""What a controller counts."""

from __future__ import annotations

import pytest

from keepclose.controller.metrics import PREFIX, Metrics, desired_slices
from keepclose.controller.observation import Result
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.slices.servicestate import ServicePlan, plan_service
from keepclose.slices.settings import Cluster, Settings
from keepclose.testing.builders import node, pod, service

KEY = NamespacedName("default", "web")
NODES = [node(f"n{number}", f"zone-{number % 3}") for number in range(6)]


def _plan(
    *,
    pods: int = 6,
    distribution: str | None = "PreferSameZone",
    annotations: dict[str, str] | None = None,
) -> ServicePlan:
    """Return the plan of a new Service with so many pods."""
    wanted = service("web", traffic_distribution=distribution, annotations=annotations or {})
    made = [
        pod(f"p{number}", f"n{number % 6}", ip=f"10.0.0.{number + 1}") for number in range(pods)
    ]
    gates = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
    return plan_service(
        wanted, pods=made, cluster=Cluster.of(NODES), settings=Settings(gates=gates)
    )


def _value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(PREFIX + name, labels)


def test_a_sync_is_counted_when_it_has_ended() -> None:
    """Additions count with the plan, changed slices once they are written."""
    metrics = Metrics(max_endpoints=100)
    metrics.planned(KEY, _plan())
    labels = {"topology": "Disabled", "traffic_distribution": "PreferSameZone"}
    assert _value(metrics, "endpoints_added_per_sync_sum") == 6
    assert _value(metrics, "endpoints_removed_per_sync_sum") == 0
    assert _value(metrics, "endpointslices_changed_per_sync_count", **labels) is None
    metrics.written("create")
    metrics.synced(KEY, Result.SUCCESS, 0.01)
    assert _value(metrics, "endpointslices_changed_per_sync_sum", **labels) == 1
    assert _value(metrics, "changes_total", operation="create") == 1
    assert _value(metrics, "syncs_total", result="success") == 1


@pytest.mark.parametrize("result", [Result.STALE, Result.ERROR])
def test_a_failed_sync_changes_nothing_but_its_own_count(result: Result) -> None:
    """What was not written is not counted as changed."""
    metrics = Metrics(max_endpoints=100)
    metrics.planned(KEY, _plan())
    metrics.synced(KEY, result, 0.01)
    labels = {"topology": "Disabled", "traffic_distribution": "PreferSameZone"}
    assert _value(metrics, "syncs_total", result=result.value) == 1
    assert _value(metrics, "endpointslices_changed_per_sync_count", **labels) is None


def test_gauges_follow_the_services() -> None:
    """A Service counts as it is now, and no more when it is gone; its value stays, at 0."""
    metrics = Metrics(max_endpoints=100)
    other = NamespacedName("default", "api")
    metrics.planned(KEY, _plan(pods=6))
    metrics.planned(other, _plan(pods=3, distribution="PreferSameNode"))
    count = "services_count_by_traffic_distribution"
    assert _value(metrics, "endpoints_desired") == 9
    assert _value(metrics, "num_endpoint_slices") == 2
    assert _value(metrics, count, traffic_distribution="PreferSameZone") == 1
    assert _value(metrics, "endpoints_with_hints", result="PreferSameNode") == 3
    metrics.planned(KEY, _plan(pods=4, distribution=None))
    assert _value(metrics, "endpoints_desired") == 7
    assert _value(metrics, count, traffic_distribution="PreferSameZone") == 0
    metrics.forgotten(KEY)
    metrics.forgotten(other)
    assert _value(metrics, "endpoints_desired") == 0
    assert _value(metrics, "desired_endpoint_slices") == 0
    assert _value(metrics, count, traffic_distribution="PreferSameNode") == 0


def test_a_value_that_does_not_govern_is_counted_nowhere() -> None:
    """Under Auto, and with an unknown value, no Service is counted by its value."""
    metrics = Metrics(max_endpoints=100)
    metrics.planned(KEY, _plan(annotations={"service.kubernetes.io/topology-mode": "Auto"}))
    metrics.planned(NamespacedName("default", "odd"), _plan(distribution="Odd"))
    metrics.synced(KEY, Result.SUCCESS, 0.0)
    count = "services_count_by_traffic_distribution"
    assert _value(metrics, count, traffic_distribution="PreferSameZone") is None
    assert _value(metrics, count, traffic_distribution="Odd") is None
    labels = {"topology": "Auto", "traffic_distribution": ""}
    assert _value(metrics, "endpointslices_changed_per_sync_count", **labels) == 1


def test_subsets_are_counted_by_their_approach() -> None:
    """The metrics of KEP-2004 are there for Services that it governs."""
    metrics = Metrics(max_endpoints=100)
    annotations = {"endpointslice.kubernetes.io/subsetting": "Prefer"}
    plan = _plan(pods=12, distribution=None, annotations=annotations)
    metrics.planned(KEY, plan)
    metrics.synced(KEY, Result.SUCCESS, 0.0)
    approach = plan.strategy.approach.value
    count = _value(metrics, "changes_endpointslices_per_sync_count", approach=approach)
    assert count == 1
    assert _value(metrics, "reallocated_endpoints_per_sync_sum") == 0


def test_decisions_are_counted_by_reason() -> None:
    """Each plan tells which mechanism governed and why."""
    metrics = Metrics(max_endpoints=100)
    plan = _plan()
    metrics.planned(KEY, plan)
    for reason in plan.reasons:
        labels = {"strategy": "PreferSameZone", "reason": reason.code.value}
        assert metrics.registry.get_sample_value("keepclose_decisions_total", labels) == 1


def test_the_page_has_the_upstream_names() -> None:
    """Dashboards that read kube-controller-manager read this too."""
    page = Metrics(max_endpoints=100).page().decode()
    for name in (
        "endpoints_added_per_sync",
        "endpoints_removed_per_sync",
        "endpoints_desired",
        "num_endpoint_slices",
        "desired_endpoint_slices",
        "changes",
        "endpointslices_changed_per_sync",
        "syncs",
        "services_count_by_traffic_distribution",
    ):
        assert f"# HELP {PREFIX}{name}" in page


def test_perfect_packing() -> None:
    """Slices are counted anew for each set of ports, and there is at least one."""
    plan = _plan(pods=6)
    assert desired_slices((), 100) == 1
    assert desired_slices(plan.slices, 100) == 1
    assert desired_slices(plan.slices, 4) == 2
    assert desired_slices(plan.slices, 6) == 1
