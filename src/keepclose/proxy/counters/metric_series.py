"""The series of a proxy as Prometheus reads them: names, labels, buckets and help.

Loading the client library of Prometheus takes as long as routing a hundred Services, so only
`metrics` imports this module, when the first page is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from keepclose.proxy.counters.metrics import (
    DOUBLING,
    PROGRAMMING,
    Changes,
    ConnectionCount,
    UnservedCount,
    mode_label,
)

_PREFIX: Final = "kubeproxy_"
_FAMILY: Final = ("ip_family",)


class MetricSeries:
    """The series of one proxy, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown = Changes()
        self._syncs = self._histogram("sync_proxy_rules_duration_seconds", DOUBLING)
        self._full = self._histogram("sync_full_proxy_rules_duration_seconds", DOUBLING)
        self._partial = self._histogram("sync_partial_proxy_rules_duration_seconds", DOUBLING)
        self._programming = self._histogram("network_programming_duration_seconds", PROGRAMMING)
        self._last = self._gauge("sync_proxy_rules_last_timestamp_seconds", _FAMILY)
        self._queued = self._gauge("sync_proxy_rules_last_queued_timestamp_seconds", _FAMILY)
        self._endpoints_pending = self._gauge("sync_proxy_rules_endpoint_changes_pending")
        self._endpoints = self._counter("sync_proxy_rules_endpoint_changes_total")
        self._services_pending = self._gauge("sync_proxy_rules_service_changes_pending")
        self._services = self._counter("sync_proxy_rules_service_changes_total")
        self._no_local = self._gauge(
            "sync_proxy_rules_no_local_endpoints_total", ("traffic_policy", "ip_family")
        )
        self._failures = self._counter("sync_proxy_rules_nftables_sync_failures_total", _FAMILY)
        self._cleanup = self._counter("sync_proxy_rules_nftables_cleanup_failures_total", _FAMILY)
        self._conntrack = self._histogram("conntrack_reconciler_sync_duration_seconds", DOUBLING)
        self._deleted = self._counter("conntrack_reconciler_deleted_entries_total", _FAMILY)
        self._healthz = self._counter("proxy_healthz_total", ("code",))
        self._livez = self._counter("proxy_livez_total", ("code",))
        self._modes = Gauge(
            "keepclose_proxy_service_ports",
            "Service ports by the way in which this node narrows their endpoints.",
            ("mode", "ip_family"),
            registry=self.registry,
        )
        self._fallbacks = Gauge(
            "keepclose_proxy_hints_not_followed",
            "Service ports whose hints this node does not follow, by reason.",
            ("reason", "ip_family"),
            registry=self.registry,
        )
        self._uncounted = Gauge(
            "keepclose_proxy_uncounted_service_ports",
            "Service ports whose connections are not counted, because too many need own chains.",
            _FAMILY,
            registry=self.registry,
        )

    def show_changes(self, changes: Changes) -> None:
        """Show how many changes came, and how many no sync has taken yet."""
        self._services.inc(changes.services - self._shown.services)
        self._endpoints.inc(changes.endpoints - self._shown.endpoints)
        self._services_pending.set(changes.services_pending)
        self._endpoints_pending.set(changes.endpoints_pending)
        self._shown = changes

    def queued(self, family: str, now: float) -> None:
        """Note that a sync was asked for."""
        self._queued.labels(family).set(now)

    def synced(self, family: str, seconds: float, *, is_full: bool) -> None:
        """Note the end of a sync, whether it succeeded or not."""
        self._syncs.labels(family).observe(seconds)
        (self._full if is_full else self._partial).labels(family).observe(seconds)

    def succeeded(
        self,
        family: str,
        *,
        now: float,
        trigger_times: Iterable[float],
        no_local: Mapping[str, int],
        modes: Mapping[str, int],
        fallbacks: Mapping[str, int],
    ) -> None:
        """Note a sync that was written, and what it led to."""
        self._last.labels(family).set(now)
        for time in trigger_times:
            self._programming.labels(family).observe(max(0.0, now - time))
        for direction, count in no_local.items():
            self._no_local.labels(direction, family).set(count)
        # NB: a value that once existed stays, at 0.
        for mode, count in modes.items():
            self._modes.labels(mode_label(mode), family).set(count)
        for reason, count in fallbacks.items():
            self._fallbacks.labels(reason, family).set(count)

    def failed(self, family: str) -> None:
        """Note a sync that could not be written."""
        self._failures.labels(family).inc()

    def cleanup_failed(self, family: str) -> None:
        """Note that what is not needed any more could not be deleted."""
        self._cleanup.labels(family).inc()

    def conntrack_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Note a look through the kernel's connections."""
        self._conntrack.labels(family).observe(seconds)
        self._deleted.labels(family).inc(deleted)

    def answered(self, page: str, code: int) -> None:
        """Count an answer of /healthz or /livez."""
        (self._healthz if page == "healthz" else self._livez).labels(str(code)).inc()

    def count_connections(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        """Show connections as last read from the kernel with every page from now on."""
        self.registry.register(_Connections(counts))

    def count_unserved(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        """Show packets that found no endpoint with every page from now on."""
        self.registry.register(_UnservedPackets(counts))

    def show_uncounted(self, family: str, ports: int) -> None:
        """Show how many service ports are not counted."""
        self._uncounted.labels(family).set(ports)

    def page(self) -> bytes:
        """Return everything in the text format."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            _PREFIX + name, _HELP[name], _FAMILY, buckets=buckets, registry=self.registry
        )

    def _gauge(self, name: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(_PREFIX + name, _HELP[name], labels, registry=self.registry)

    def _counter(self, name: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(_PREFIX + name, _HELP[name], labels, registry=self.registry)


class _Connections(Collector):
    """Hands out counts that are kept elsewhere."""

    def __init__(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the counts as one family of series."""
        family = CounterMetricFamily(
            "keepclose_proxy_connections",
            "New connections led to endpoints, by Service, zone of the endpoint and mode.",
            labels=("namespace", "service", "zone", "mode"),
        )
        for one in self._counts():
            labels = (one.namespace, one.service, one.zone, mode_label(one.mode))
            family.add_metric(labels, float(one.connections))
        return [family]


class _UnservedPackets(Collector):
    """Hands out counts that are kept elsewhere."""

    def __init__(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the counts as one family of series, for Services that have any."""
        family = CounterMetricFamily(
            "keepclose_proxy_unserved_packets",
            "Opening packets that found no endpoint, by Service and what became of them.",
            labels=("namespace", "service", "action"),
        )
        for one in self._counts():
            family.add_metric((one.namespace, one.service, one.action), float(one.packets))
        return [family]


_HELP: Final = {
    "sync_proxy_rules_duration_seconds": "Time of a sync.",
    "sync_full_proxy_rules_duration_seconds": "Time of a sync that compares the whole table.",
    "sync_partial_proxy_rules_duration_seconds": "Time of a sync that writes what changed.",
    "network_programming_duration_seconds": "Time from the change of a pod to its rules.",
    "sync_proxy_rules_last_timestamp_seconds": "When the last sync succeeded.",
    "sync_proxy_rules_last_queued_timestamp_seconds": "When a sync was last asked for.",
    "sync_proxy_rules_endpoint_changes_pending": "Changes of slices that wait for a sync.",
    "sync_proxy_rules_endpoint_changes_total": "Changes of slices.",
    "sync_proxy_rules_service_changes_pending": "Services that wait for a sync.",
    "sync_proxy_rules_service_changes_total": "Changes of Services.",
    "sync_proxy_rules_no_local_endpoints_total": "Ports that drop traffic for want of a "
    "local endpoint.",
    "sync_proxy_rules_nftables_sync_failures_total": "Syncs that could not be written.",
    "sync_proxy_rules_nftables_cleanup_failures_total": "Deletions that could not be written.",
    "conntrack_reconciler_sync_duration_seconds": "Time of a look through all connections.",
    "conntrack_reconciler_deleted_entries_total": "Connections that were forgotten.",
    "proxy_healthz_total": "Answers of /healthz.",
    "proxy_livez_total": "Answers of /livez.",
}
