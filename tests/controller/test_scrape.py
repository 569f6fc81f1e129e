"""The page of metrics as Prometheus reads it from a controller that has worked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.requests import ENDPOINTS
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import SUBSETTING_ANNOTATION, TOPOLOGY_MODE_ANNOTATION
from keepclose.reconcile.instrumentation import describe_plan
from keepclose.runtime.metrics_text import render_metrics
from keepclose.runtime.pages import controller_pages
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.controllers import QUICK, world

DOUBLING = (*(str(2**power) for power in range(1, 16)), "+Inf")
DEFAULT = (*"0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10".split(), "+Inf")  # noqa: SIM905
TENFOLD = (
    *("1e-08", "1e-07", "1e-06", "9.999999999999999e-06", "9.999999999999999e-05"),
    *("0.001", "0.01", "0.1", "1", "10", "+Inf"),
)
DURATIONS = (
    *("0.001", "0.002", "0.004", "0.008", "0.016", "0.032", "0.064", "0.128", "0.256", "0.512"),
    *("1.024", "2.048", "4.096", "8.192", "16.384", "+Inf"),
)
REACH = ("0.001", "0.0025", *DEFAULT[:-1], "30", "60", "+Inf")
NONE: tuple[str, ...] = ()


class Family(NamedTuple):
    """Type, names of labels and bounds of buckets of one metric."""

    type: str
    labels: tuple[str, ...]
    buckets: tuple[str, ...]


OURS, MIRRORING = "endpoint_slice_controller_", "endpoint_slice_mirroring_controller_"
WANT = {
    f"{OURS}endpoints_added_per_sync": Family("histogram", NONE, DOUBLING),
    f"{OURS}endpoints_removed_per_sync": Family("histogram", NONE, DOUBLING),
    f"{OURS}endpoints_desired": Family("gauge", NONE, NONE),
    f"{OURS}num_endpoint_slices": Family("gauge", NONE, NONE),
    f"{OURS}desired_endpoint_slices": Family("gauge", NONE, NONE),
    f"{OURS}changes": Family("counter", ("operation",), NONE),
    f"{OURS}endpointslices_changed_per_sync": Family(
        "histogram", ("topology", "traffic_distribution"), DEFAULT
    ),
    f"{OURS}syncs": Family("counter", ("result",), NONE),
    f"{OURS}services_count_by_traffic_distribution": Family(
        "gauge", ("traffic_distribution",), NONE
    ),
    f"{OURS}changes_endpointslices_per_sync": Family("histogram", ("approach",), DEFAULT),
    f"{OURS}reallocated_endpoints_per_sync": Family("histogram", NONE, DOUBLING),
    f"{OURS}endpoints_with_hints": Family("gauge", ("result",), NONE),
    f"{MIRRORING}endpoints_added_per_sync": Family("histogram", NONE, DOUBLING),
    f"{MIRRORING}endpoints_updated_per_sync": Family("histogram", NONE, DOUBLING),
    f"{MIRRORING}endpoints_removed_per_sync": Family("histogram", NONE, DOUBLING),
    f"{MIRRORING}addresses_skipped_per_sync": Family("histogram", NONE, DOUBLING),
    f"{MIRRORING}endpoints_sync_duration": Family("histogram", NONE, DURATIONS),
    f"{MIRRORING}endpoints_desired": Family("gauge", NONE, NONE),
    f"{MIRRORING}num_endpoint_slices": Family("gauge", NONE, NONE),
    f"{MIRRORING}desired_endpoint_slices": Family("gauge", NONE, NONE),
    f"{MIRRORING}changes": Family("counter", ("operation",), NONE),
    "keepclose_contended_services": Family("gauge", NONE, NONE),
    "keepclose_contended_syncs_total": Family("counter", NONE, NONE),
    "workqueue_depth": Family("gauge", ("name",), NONE),
    "workqueue_adds_total": Family("counter", ("name",), NONE),
    "workqueue_queue_duration_seconds": Family("histogram", ("name",), TENFOLD),
    "workqueue_work_duration_seconds": Family("histogram", ("name",), TENFOLD),
    "workqueue_unfinished_work_seconds": Family("gauge", ("name",), NONE),
    "workqueue_longest_running_processor_seconds": Family("gauge", ("name",), NONE),
    "workqueue_retries_total": Family("counter", ("name",), NONE),
    "keepclose_sync_seconds": Family("histogram", NONE, DEFAULT),
    "keepclose_decisions_total": Family("counter", ("reason", "strategy"), NONE),
    "keepclose_hint_changes_total": Family("counter", ("strategy",), NONE),
    "keepclose_heuristic_failures_total": Family("counter", ("cause", "heuristic"), NONE),
    "keepclose_pod_change_to_write_seconds": Family("histogram", NONE, REACH),
}
_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def samples_of(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the values by name and labels."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            match = _SAMPLE.fullmatch(line)
            assert match is not None, line
            name, labels, value = match.groups()
            found[name, tuple(_LABEL.findall(labels or ""))] = float(value)
    return found


def families_of(page: str) -> Iterator[tuple[str, Family]]:
    """Yield what each family of the page looks like, from its samples."""
    samples = samples_of(page)
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE):
        shown = f"{name}_bucket" if kind == "histogram" else name
        labels = {
            tuple(key for key, _ in pairs if key != "le")
            for found, pairs in samples
            if found == shown
        }
        bounds = [dict(pairs)["le"] for found, pairs in samples if found == f"{name}_bucket"]
        assert len(labels) == 1, f"{name} has no sample, or samples of different labels"
        yield name, Family(kind, labels.pop(), tuple(dict.fromkeys(bounds)))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page of a controller that has kept one Service of each kind."""
    return asyncio.run(_scrape(tmp_path_factory.mktemp("data")))


async def _scrape(directory: Path) -> str:
    gates = FeatureGates().with_gates(Gate.TOPOLOGY_AWARE_SUBSETTING)
    settings = replace(QUICK, plan=PlannerSettings(gates=gates), mirroring_max=2)
    metrics = ControllerMetrics(max_endpoints=settings.plan.max_endpoints, max_per_subset=2)
    async with serving(directory) as api, world(api) as cluster:
        for number in range(3):
            await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
        for number in range(12):
            await cluster.add_pod(f"p{number}", f"n{number % 3}", ip=f"10.0.0.{number + 1}")
        await cluster.add_service("zone", trafficDistribution="PreferSameZone")
        await cluster.add_service("auto", annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})
        await cluster.add_service("sub", annotations={SUBSETTING_ANNOTATION: "Prefer"})
        await cluster.add_service("ext", selector=None)
        addresses = [{"ip": f"192.0.2.{number}"} for number in range(3)]
        subset = {"addresses": addresses, "ports": [{"port": 80}]}
        await cluster.client.create(
            ENDPOINTS, {"metadata": {"name": "ext"}, "subsets": [subset]}, namespace="default"
        )
        async with cluster.controlled(settings, observer=metrics) as controller:
            await cluster.settle(controller)
            # NB: an endpoint that is not ready has no hints.
            await cluster.set_pod("p0", ip="10.0.0.1", ready=False)
            await cluster.settle(controller)
            # A heuristic that fails would fail syncs too; its Services are tried elsewhere.
            metrics._failures.labels("example.dev/Broken", "Raised").inc()
            pages = controller_pages(
                metrics=metrics.page,
                is_ready=lambda: True,
                explain=lambda key: describe_plan(controller.explain(key)),
            )
            url = f"http://127.0.0.1:{await pages.start('127.0.0.1', 0)}/metrics"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                text = await answer.text()
            await pages.stop()
    return text


def test_every_metric_has_its_name_type_labels_and_buckets(page: str) -> None:
    """Dashboards that read kube-controller-manager read this; there is nothing else on the page."""
    assert dict(families_of(page)) == WANT


VALUES: list[tuple[str, dict[str, str], float]] = [
    (f"{OURS}endpoints_added_per_sync_sum", {}, 36),
    (f"{OURS}endpoints_removed_per_sync_sum", {}, 0),
    (f"{OURS}endpoints_desired", {}, 36),
    (f"{OURS}num_endpoint_slices", {}, 5),
    (f"{OURS}desired_endpoint_slices", {}, 3),
    (f"{OURS}changes", {"operation": "create"}, 5),
    (f"{OURS}changes", {"operation": "update"}, 3),
    (
        f"{OURS}services_count_by_traffic_distribution",
        {"traffic_distribution": "PreferSameZone"},
        1,
    ),
    (f"{OURS}endpoints_with_hints", {"result": "PreferSameZone"}, 11),
    (f"{OURS}changes_endpointslices_per_sync_sum", {"approach": "Prefer"}, 4),
    (f"{OURS}reallocated_endpoints_per_sync_sum", {}, 0),
    (f"{MIRRORING}endpoints_added_per_sync_sum", {}, 2),
    (f"{MIRRORING}endpoints_updated_per_sync_sum", {}, 0),
    (f"{MIRRORING}endpoints_removed_per_sync_sum", {}, 0),
    (f"{MIRRORING}addresses_skipped_per_sync_sum", {}, 1),
    (f"{MIRRORING}endpoints_desired", {}, 2),
    (f"{MIRRORING}num_endpoint_slices", {}, 1),
    (f"{MIRRORING}desired_endpoint_slices", {}, 1),
    (f"{MIRRORING}changes", {"operation": "create"}, 1),
    ("workqueue_depth", {"name": "endpoint_slice"}, 0),
    ("workqueue_retries_total", {"name": "endpoint_slice"}, 0),
    ("workqueue_unfinished_work_seconds", {"name": "endpoint_slice"}, 0),
    ("workqueue_longest_running_processor_seconds", {"name": "endpoint_slice_mirroring"}, 0),
    ("keepclose_hint_changes_total", {"strategy": "PreferSameZone"}, 1),
]


def test_what_was_done_is_what_is_counted(page: str) -> None:
    """The figures are those of the Services that were kept."""
    want = {(name, tuple(labels.items())): value for name, labels, value in VALUES}
    samples = samples_of(page)
    assert {key: samples.get(key) for key in want} == want
    results = {labels for name, labels in samples if name == f"{OURS}syncs"}
    assert results == {(("result", "success"),)}
    # NB: pods that were there before the controller count where it heard of their Services first.
    assert 3 <= samples["keepclose_pod_change_to_write_seconds_count", ()] <= 6


def test_queues_count_every_key(page: str) -> None:
    """Each key that came into the line was taken out of it, and worked on."""
    samples = samples_of(page)
    for queue in ("endpoint_slice", "endpoint_slice_mirroring"):
        labels = (("name", queue),)
        adds = samples["workqueue_adds_total", labels]
        assert adds > 0
        assert samples["workqueue_queue_duration_seconds_count", labels] == adds
        assert samples["workqueue_work_duration_seconds_count", labels] == adds


def test_the_text_format() -> None:
    """Numbers are short, texts are escaped, and only named counters lose their ending."""
    registry = CollectorRegistry()
    for name in ("a_changes", "b_changes"):
        Counter(name, f"Help of {name}.", ("why",), registry=registry).labels('a"b\\c\nd').inc(2)
    Gauge("c", "Two\nlines \\.", registry=registry).set(0.25)
    assert render_metrics(registry, bare=("a_changes",)).decode() == (
        "# HELP a_changes Help of a_changes.\n"
        "# TYPE a_changes counter\n"
        'a_changes{why="a\\"b\\\\c\\nd"} 2\n'
        "# HELP b_changes_total Help of b_changes.\n"
        "# TYPE b_changes_total counter\n"
        'b_changes_total{why="a\\"b\\\\c\\nd"} 2\n'
        "# HELP c Two\\nlines \\\\.\n"
        "# TYPE c gauge\n"
        "c 0.25\n"
    )
