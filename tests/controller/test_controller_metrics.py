"""What a controller counts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.controller.metrics import METRIC_PREFIX, MIRRORING_PREFIX, ControllerMetrics
from keepclose.controller.service_gauges import desired_slices
from keepclose.kube.work_queue import WorkQueue
from keepclose.model.endpointslice.types import (
    EndpointAddress,
    Endpoints,
    EndpointsPort,
    EndpointSubset,
)
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, ObjectMeta
from keepclose.runtime.workers import Result
from keepclose.slices.mirroring import plan_mirroring
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.testing.fake_clock import FakeClock
from support.builders import node, pod, service

KEY = NamespacedName("default", "web")
NODES = [node(f"n{number}", f"zone-{number % 3}") for number in range(6)]


def _plan(
    *,
    pods: int = 6,
    distribution: str | None = "PreferSameZone",
    annotations: dict[str, str] | None = None,
    deleted: bool = False,
) -> ServicePlan:
    """Return the plan of a new Service with so many pods."""
    wanted = service("web", traffic_distribution=distribution, annotations=annotations or {})
    if deleted:
        stamp = "2026-01-01T00:00:00Z"
        wanted = replace(wanted, metadata=replace(wanted.metadata, deletion_timestamp=stamp))
    made = [
        pod(f"p{number}", f"n{number % 6}", ip=f"10.0.0.{number + 1}") for number in range(pods)
    ]
    gates = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
    return plan_service(
        wanted, pods=made, cluster=ClusterNodes.of(NODES), settings=PlannerSettings(gates=gates)
    )


def _value(metrics: ControllerMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(METRIC_PREFIX + name, labels)


def test_a_sync_is_counted_when_it_has_ended() -> None:
    """Additions count with the plan, changed slices once they are written."""
    metrics = ControllerMetrics(max_endpoints=100)
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
    metrics = ControllerMetrics(max_endpoints=100)
    metrics.planned(KEY, _plan())
    metrics.synced(KEY, result, 0.01)
    labels = {"topology": "Disabled", "traffic_distribution": "PreferSameZone"}
    assert _value(metrics, "syncs_total", result=result.value) == 1
    assert _value(metrics, "endpointslices_changed_per_sync_count", **labels) is None


def test_gauges_follow_the_services() -> None:
    """A Service counts as it is now, and no more when it is gone; its value stays, at 0."""
    metrics = ControllerMetrics(max_endpoints=100)
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
    metrics = ControllerMetrics(max_endpoints=100)
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
    metrics = ControllerMetrics(max_endpoints=100)
    annotations = {"endpointslice.kubernetes.io/subsetting": "Prefer"}
    plan = _plan(pods=12, distribution=None, annotations=annotations)
    metrics.planned(KEY, plan)
    metrics.synced(KEY, Result.SUCCESS, 0.0)
    approach = plan.strategy.approach.value
    count = _value(metrics, "changes_endpointslices_per_sync_count", approach=approach)
    assert count == 1
    assert _value(metrics, "reallocated_endpoints_per_sync_sum") == 0
    moved = {"IPv4": replace(plan.plans["IPv4"], reallocated=3)}
    metrics.planned(KEY, replace(plan, plans=moved))
    metrics.synced(KEY, Result.SUCCESS, 0.0)
    assert _value(metrics, "reallocated_endpoints_per_sync_sum") == 3


def test_churn_of_hints_is_counted_once_written() -> None:
    """Endpoints that get other hints count by mechanism; what was not written does not."""
    metrics = ControllerMetrics(max_endpoints=100)
    plan = _plan()
    again = replace(plan, plans={"IPv4": replace(plan.plans["IPv4"], rehinted=4)})
    for result in (Result.ERROR, Result.SUCCESS, Result.SUCCESS):
        metrics.planned(KEY, again)
        metrics.synced(KEY, result, 0.0)
    labels = {"strategy": "PreferSameZone"}
    assert metrics.registry.get_sample_value("keepclose_hint_changes_total", labels) == 8


def test_slices_that_a_dying_service_does_not_get_count_as_changed() -> None:
    """As in Kubernetes, what was not created because the Service goes is counted all the same."""
    metrics = ControllerMetrics(max_endpoints=100)
    plan = _plan(deleted=True)
    assert (plan.plans["IPv4"].create, plan.plans["IPv4"].withheld) == ((), 1)
    metrics.planned(KEY, plan)
    metrics.synced(KEY, Result.SUCCESS, 0.0)
    labels = {"topology": "Disabled", "traffic_distribution": "PreferSameZone"}
    assert _value(metrics, "endpointslices_changed_per_sync_sum", **labels) == 1


def test_gauges_do_not_wait_for_somebody_to_look() -> None:
    """Plans of many Services are worked off although nobody reads the page."""
    metrics = ControllerMetrics(max_endpoints=100)
    plan = _plan(pods=3)
    for number in range(100):
        metrics.planned(NamespacedName("default", f"s{number}"), plan)
    assert len(metrics._gauges._stored) < 40
    metrics.forgotten(NamespacedName("default", "s99"))
    metrics.forgotten(NamespacedName("default", "s0"))
    assert _value(metrics, "endpoints_desired") == 3 * 98


async def test_queues_are_shown_by_name() -> None:
    """Each queue shows what waits, what runs, and how long that took."""
    metrics, clock = ControllerMetrics(max_endpoints=100), FakeClock()
    queue: WorkQueue[NamespacedName] = WorkQueue(clock)
    metrics.watch_queue("endpoint_slice", queue)

    def shown(name: str) -> float | None:
        labels = {"name": "endpoint_slice"}
        return metrics.registry.get_sample_value(f"workqueue_{name}", labels)

    queue.add(KEY)
    queue.add(NamespacedName("default", "api"))
    assert (shown("depth"), shown("adds_total"), shown("retries_total")) == (2, 2, 0)
    await clock.advance(0.25)
    assert await queue.get() == KEY
    await clock.advance(0.5)
    assert shown("depth") == 1
    assert shown("unfinished_work_seconds") == 0.5
    assert shown("longest_running_processor_seconds") == 0.5
    queue.done(KEY)
    queue.retry(KEY)
    assert (shown("queue_duration_seconds_sum"), shown("queue_duration_seconds_count")) == (0.25, 1)
    assert (shown("work_duration_seconds_sum"), shown("work_duration_seconds_count")) == (0.5, 1)
    assert (shown("retries_total"), shown("unfinished_work_seconds")) == (1, 0)


def test_mirroring_counts_under_its_own_names() -> None:
    """What is mirrored now is in the gauges; what is not mirrored any more is not."""
    metrics = ControllerMetrics(max_endpoints=100, max_per_subset=3)

    def shown(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(MIRRORING_PREFIX + name, labels)

    source = Endpoints(
        metadata=ObjectMeta(name="web", namespace="default"),
        subsets=(
            EndpointSubset(
                addresses=tuple(EndpointAddress(ip=f"192.0.2.{n}") for n in range(5)),
                ports=(EndpointsPort(port=80),),
            ),
        ),
    )
    found = plan_mirroring(source, service("web", selector=None), existing=(), max_per_subset=3)
    metrics.mirroring.mirrored(KEY, found)
    metrics.mirroring.written("create")
    metrics.mirroring.synced(KEY, Result.SUCCESS, 0.25)
    assert shown("endpoints_added_per_sync_sum") == 3
    assert shown("addresses_skipped_per_sync_sum") == 2
    assert shown("endpoints_sync_duration_sum") == 0.25
    assert shown("changes_total", operation="create") == 1
    gauges = ("endpoints_desired", "num_endpoint_slices", "desired_endpoint_slices")
    assert [shown(name) for name in gauges] == [3, 1, 1]
    metrics.mirroring.mirrored(KEY, plan_mirroring(None, None, existing=found.plan.create))
    assert [shown(name) for name in gauges] == [0, 0, 0]
    assert shown("endpoints_added_per_sync_count") == 1
    assert _value(metrics, "changes_total", operation="create") is None


def test_decisions_are_counted_by_reason() -> None:
    """Each plan tells which mechanism governed and why."""
    metrics = ControllerMetrics(max_endpoints=100)
    plan = _plan()
    metrics.planned(KEY, plan)
    for reason in plan.reasons:
        labels = {"strategy": "PreferSameZone", "reason": reason.code.value}
        assert metrics.registry.get_sample_value("keepclose_decisions_total", labels) == 1


def test_perfect_packing() -> None:
    """Slices are counted anew for each set of ports, and there is at least one."""
    plan = _plan(pods=6)
    assert desired_slices((), 100) == 1
    assert desired_slices(plan.slices, 100) == 1
    assert desired_slices(plan.slices, 4) == 2
    assert desired_slices(plan.slices, 6) == 1
