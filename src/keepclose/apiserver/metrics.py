"""The metrics of the server, under the names of kube-apiserver where it has them.

Labelled children are looked up once and cached: a request costs two additions.

`LoopMeter` measures how long the event loop is held at a time, in CPU time of its thread. A late
timer means that a request held the loop, or that the machine has other work. CPU time separates the
two: between two beats an idle loop uses almost none, whatever else runs, and a request that holds
the loop shows with all its CPU time. Beats run only while there are requests, so that an idle
server sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from keepclose.apiserver.http.connection_table import ConnectionTable
from keepclose.apiserver.resources import RESOURCES
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.storage.store import Store

BEAT_SECONDS: Final = 0.01
# How many beats follow a request, because watchers receive its change later.
REST_BEATS: Final = 100
_BUCKETS: Final = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30,
    45, 60,
)  # fmt: skip
_BUSY_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LABELS: Final = ("verb", "group", "version", "resource", "subresource", "scope")
_LONG_RUNNING: Final = frozenset({"watch"})

# Plural, group, subresource, and whether the request has a name and a namespace.
_Kind = tuple[str, str, str, bool, bool] | None


class LoopMeter:
    """Observes the CPU time between two beats of the running event loop."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        """Report each observation to the function."""
        self._observe = observe
        self._left = 0
        self._since = 0.0

    @property
    def beating(self) -> bool:
        """Whether the event loop is observed at present."""
        return self._left > 0

    def wake(self) -> None:
        """Begin to observe, or continue for the full number of beats."""
        if self._left == 0:
            self._since = time.thread_time()
            asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)
        self._left = REST_BEATS

    def _beat(self) -> None:
        now = time.thread_time()
        self._observe(now - self._since)
        self._since = now
        self._left -= 1
        if self._left:
            asyncio.get_running_loop().call_later(BEAT_SECONDS, self._beat)


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, store: Store) -> None:
        """Register all metrics but those of connections."""
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "apiserver_request",
            "Requests by verb, resource and code.",
            (*_LABELS, "code"),
            registry=self.registry,
        )
        self._durations = Histogram(
            "apiserver_request_duration_seconds",
            "Time to answer, watches left out.",
            _LABELS,
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._watches = Gauge(
            "apiserver_longrunning_requests",
            "Watches that are open.",
            _LABELS,
            registry=self.registry,
        )
        busy = Histogram(
            "apiserver_loop_busy_seconds",
            "CPU time for which the event loop was held, looked at every 10 ms.",
            buckets=_BUSY_BUCKETS,
            registry=self.registry,
        )
        self.loop_meter = LoopMeter(busy.observe)
        self.registry.register(_StoredObjects(store))
        self._children: dict[tuple[str, _Kind, int], tuple[Counter, Histogram | None]] = {}

    def count(self, verb: str, target: RequestTarget | None, code: int, seconds: float) -> None:
        """Record an answered request."""
        # NB: the key holds no names, or the table would grow with the cluster.
        key = (verb, _kind_of(target), code)
        children = self._children.get(key)
        if children is None:
            labels = _labels(verb, target)
            timed = None if verb in _LONG_RUNNING else self._durations.labels(*labels)
            children = (self._requests.labels(*labels, str(code)), timed)
            self._children[key] = children
        children[0].inc()
        if children[1] is not None:
            children[1].observe(seconds)

    def watch_started(self, target: RequestTarget) -> Callable[[], None]:
        """Record the start of a watch; the caller calls the returned function at its end."""
        gauge = self._watches.labels(*_labels("watch", target))
        gauge.inc()
        return gauge.dec

    def follow(self, table: ConnectionTable) -> None:
        """Register the metrics of the connections of a server."""
        self.registry.register(_Connections(table))

    def page(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def _kind_of(target: RequestTarget | None) -> _Kind:
    if target is None:
        return None
    # NB: hashing a whole Resource for every request would cost more than counting it.
    resource = target.resource
    named, scoped = bool(target.name), bool(target.namespace)
    return (resource.plural, resource.group, target.subresource, named, scoped)


def _labels(verb: str, target: RequestTarget | None) -> tuple[str, ...]:
    if target is None:
        return (verb.upper(), "", "", "", "", "")
    scope = "resource" if target.name else "namespace" if target.namespace else "cluster"
    resource = target.resource
    verb_label = verb.upper()
    return (
        verb_label, resource.group, resource.version, resource.plural, target.subresource, scope
    )  # fmt: skip


class _StoredObjects(Collector):
    """Counts stored objects when the metrics are read."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def collect(self) -> list[Metric]:
        """Return the gauge of objects by kind."""
        family = GaugeMetricFamily(
            "apiserver_resource_objects", "Stored objects by kind.", labels=("group", "resource")
        )
        for resource in RESOURCES:
            if not resource.stored_as:
                count = self._store.count(resource.store)
                family.add_metric((resource.group, resource.plural), count)
        return [family]


class _Connections(Collector):
    """Counts connections when the metrics are read."""

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table

    def collect(self) -> list[Metric]:
        """Return the gauge of open connections and the counter of dropped ones by reason."""
        opened = GaugeMetricFamily(
            "apiserver_open_connections",
            "Open connections, by whether valid credentials came on them.",
            labels=("authenticated",),
        )
        unauthenticated = self._table.unauthenticated
        opened.add_metric(("true",), len(self._table) - unauthenticated)
        opened.add_metric(("false",), unauthenticated)
        dropped = CounterMetricFamily(
            "apiserver_dropped_connections",
            "Connections that the server closed or refused to stay within its limits.",
            labels=("reason",),
        )
        for reason, count in self._table.dropped.items():
            dropped.add_metric((reason,), count)
        return [opened, dropped]
