"""Metrics as text, the way Prometheus reads it, under exactly the names that Kubernetes has.

Counters of Kubernetes' EndpointSlice controllers do not end in `_total`, which the library adds to
every counter; on the page it is left away where dashboards do not know it. Bounds of buckets are
labels, so they are written as Go writes them. The times at which series began are left out:
Kubernetes shows none.
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
# NB: multiplied step by step, because then each bound is the same number as client-go's, rounding
# errors and all, and so the same label.
_BUCKETS: Final = tuple(accumulate((10e-9, *repeat(10.0, 9)), mul))
_Queue = WorkQueue[Any]


def render_metrics(registry: CollectorRegistry, *, bare: Collection[str] = ()) -> bytes:
    """Return all families of a registry; counters named in `bare` go without `_total`."""
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
    """Return a number as Go writes it, "2" and not "2.0"."""
    return number.removesuffix(".0")


def _one_line(family: Metric) -> str:
    return family.documentation.replace("\\", r"\\").replace("\n", r"\n")


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
