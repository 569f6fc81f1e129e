"""What work queues have to show, under the names and buckets that client-go gives them.

Depths and ages are read when the page is, so that they cost nothing in between. NB: client-go
counts as a retry every key that is added with a delay; here only those whose work failed count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, repeat
from operator import mul
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keepclose.kube.work_queue import WorkQueue

# NB: multiplied step by step, because then each bound is the same number as client-go's, rounding
# errors and all, and so the same label.
_BUCKETS: Final = tuple(accumulate((10e-9, *repeat(10.0, 9)), mul))
_Queue = WorkQueue[Any]


class QueueMetrics(Collector):
    """The queues of one controller, by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: dict[str, _Queue] = {}
        self._latency = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key stood in line.",
            ("name",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self._work = Histogram(
            "workqueue_work_duration_seconds",
            "How long the work on a key took.",
            ("name",),
            buckets=_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def watch(self, name: str, queue: _Queue) -> None:
        """Show a queue; another one of that name is shown no more."""
        self._queues[name] = queue
        queue.observe(
            on_latency=self._latency.labels(name).observe, on_work=self._work.labels(name).observe
        )

    def collect(self) -> Iterator[Metric]:
        """Return what is read now."""
        yield self._gauge("depth", "Keys that stand in line.", lambda one: one.depth)
        yield self._gauge(
            "unfinished_work_seconds",
            "The time that all keys now worked on have taken together.",
            lambda one: one.unfinished_s,
        )
        yield self._gauge(
            "longest_running_processor_seconds",
            "For how long the slowest worker has been at its key.",
            lambda one: one.longest_running_s,
        )
        yield self._counter("adds", "Keys that came into the line.", lambda one: one.adds)
        yield self._counter(
            "retries", "Keys that came back because their work failed.", lambda one: one.retries
        )

    def _gauge(self, name: str, text: str, read: Callable[[_Queue], float]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"workqueue_{name}", text, labels=("name",))
        for label, queue in self._queues.items():
            family.add_metric((label,), read(queue))
        return family

    def _counter(
        self, name: str, text: str, read: Callable[[_Queue], float]
    ) -> CounterMetricFamily:
        family = CounterMetricFamily(f"workqueue_{name}", text, labels=("name",))
        for label, queue in self._queues.items():
            family.add_metric((label,), read(queue))
        return family
