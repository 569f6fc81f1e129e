"""Metrics in the text format of Prometheus, under exactly the names that Kubernetes uses.

Some counters of Kubernetes do not end in `_total`, which the library adds to every counter; it is
removed where dashboards do not know it. Bounds of buckets are labels, so they are formatted as Go
does. Creation times of series are left out: Kubernetes exports none.

Work queues have the names and buckets of client-go. Depths and ages are read on a scrape, so that
they cost nothing in between. NB: client-go counts every key that is added with a delay as a retry;
here only keys whose work failed count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import accumulate, repeat
from operator import mul
from typing import Any, Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from keepclose.kube.work_queue import WorkQueue

_TOTAL: Final = "_total"
_CREATED: Final = "_created"
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
# NB: multiplied step by step, so that each bound has the rounding errors, and so the label, of
# client-go.
_BUCKETS: Final = tuple(accumulate((10e-9, *repeat(10.0, 9)), mul))
_Queue = WorkQueue[Any]


def render_metrics(registry: CollectorRegistry, *, bare: Collection[str] = ()) -> bytes:
    """Return all families of a registry; counters named in `bare` have no suffix `_total`."""
    lines: list[str] = []
    for family in registry.collect():
        suffix = _TOTAL if family.type == "counter" and family.name not in bare else ""
        name = family.name + suffix
        lines += [f"# HELP {name} {_one_line(family)}", f"# TYPE {name} {family.type}"]
        for sample in family.samples:
            if sample.name != family.name + _CREATED:
                shown = family.name if sample.name == family.name + _TOTAL else sample.name
                lines.append(_line(name if shown == family.name else shown, sample))
    return "".join([f"{line}\n" for line in lines]).encode()


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(
        [
            f'{key}="{(_short(text) if key == "le" else text).translate(_ESCAPES)}"'
            for key, text in sorted(sample.labels.items())
        ]
    )
    shown = f"{{{labels}}}" if labels else ""
    return f"{name}{shown} {_short(repr(sample.value))}"


def _short(number: str) -> str:
    """Return a number as Go formats it, "2" and not "2.0"."""
    return number.removesuffix(".0")


def _one_line(family: Metric) -> str:
    return family.documentation.replace("\\", r"\\").replace("\n", r"\n")


class QueueMetrics(Collector):
    """The metrics of the work queues of one controller, by name."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._queues: dict[str, _Queue] = {}
        self._latency = Histogram(
            "workqueue_queue_duration_seconds",
            "How long a key was queued.",
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
        """Export a queue, in place of another one of that name."""
        self._queues[name] = queue
        queue.observe(
            on_latency=self._latency.labels(name).observe, on_work=self._work.labels(name).observe
        )

    def collect(self) -> Iterator[Metric]:
        """Return the present values of all queues."""
        yield self._gauge("depth", "Keys that are queued.", lambda queue: queue.depth)
        yield self._gauge(
            "unfinished_work_seconds",
            "The total time that workers have had their present keys.",
            lambda queue: queue.unfinished_s,
        )
        yield self._gauge(
            "longest_running_processor_seconds",
            "How long the slowest worker has had its key.",
            lambda queue: queue.longest_running_s,
        )
        yield self._counter("adds", "Keys that were queued.", lambda queue: queue.adds)
        yield self._counter(
            "retries",
            "Keys that were requeued because their work failed.",
            lambda queue: queue.retries,
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
