"""The series of a proxy for Prometheus: names, labels, buckets and help texts.

Loading the client library of Prometheus takes as long as routing a hundred Services, so only
`metrics` imports this module, when it serves the first page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from keepclose.accounting.flow_table import FlowKind
from keepclose.proxy.counters.metrics import (
    DOUBLING,
    PROGRAMMING,
    ChangeTotals,
    ConnectionCount,
    UnservedCount,
    mode_label,
)

_PREFIX: Final = "kubeproxy_"
_FAMILY: Final = ("ip_family",)
_FLOW_LABELS: Final = (
    "kind",
    "namespace",
    "service",
    "port",
    "protocol",
    "client_zone",
    "endpoint_zone",
)

_HELP: Final = {
    "sync_proxy_rules_duration_seconds": "Duration of a sync.",
    "sync_full_proxy_rules_duration_seconds": "Duration of a sync that compares the whole table.",
    "sync_partial_proxy_rules_duration_seconds": "Duration of a sync that writes only changes.",
    "network_programming_duration_seconds": "Time from the change of a pod to its rules.",
    "sync_proxy_rules_last_timestamp_seconds": "Time of the last successful sync.",
    "sync_proxy_rules_last_queued_timestamp_seconds": "Time of the last request of a sync.",
    "sync_proxy_rules_endpoint_changes_pending": "Changes of slices that wait for a sync.",
    "sync_proxy_rules_endpoint_changes_total": "Changes of slices.",
    "sync_proxy_rules_service_changes_pending": "Services that wait for a sync.",
    "sync_proxy_rules_service_changes_total": "Changes of Services.",
    "sync_proxy_rules_no_local_endpoints_total": "Ports that drop traffic because they have no "
    "local endpoint.",
    "sync_proxy_rules_nftables_sync_failures_total": "Syncs that failed.",
    "sync_proxy_rules_nftables_cleanup_failures_total": "Deletions of unused objects that failed.",
    "conntrack_reconciler_sync_duration_seconds": "Duration of a clean-up of flows.",
    "conntrack_reconciler_deleted_entries_total": "Stale flows that were deleted.",
    "proxy_healthz_total": "Responses of /healthz.",
    "proxy_livez_total": "Responses of /livez.",
}


class MetricSeries:
    """The series of one proxy, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._shown = ChangeTotals()
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
            "Service ports by the routing mode of this node.",
            ("mode", "ip_family"),
            registry=self.registry,
        )
        self._fallbacks = Gauge(
            "keepclose_proxy_hints_not_followed",
            "Service ports whose hints this node does not follow, by reason.",
            ("reason", "ip_family"),
            registry=self.registry,
        )

    def show_changes(self, changes: ChangeTotals) -> None:
        """Set the numbers of received changes and of those that wait for a sync."""
        self._services.inc(changes.services - self._shown.services)
        self._endpoints.inc(changes.endpoints - self._shown.endpoints)
        self._services_pending.set(changes.services_pending)
        self._endpoints_pending.set(changes.endpoints_pending)
        self._shown = changes

    def queued(self, family: str, now: float) -> None:
        """Record the request of a sync."""
        self._queued.labels(family).set(now)

    def synced(self, family: str, seconds: float, *, is_full: bool) -> None:
        """Record the duration of a sync, successful or not."""
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
        """Record a successful sync and its results."""
        self._last.labels(family).set(now)
        for time in trigger_times:
            self._programming.labels(family).observe(max(0.0, now - time))
        for direction, count in no_local.items():
            self._no_local.labels(direction, family).set(count)
        # NB: a label value that once existed stays, at 0.
        for mode, count in modes.items():
            self._modes.labels(mode_label(mode), family).set(count)
        for reason, count in fallbacks.items():
            self._fallbacks.labels(reason, family).set(count)

    def failed(self, family: str) -> None:
        """Record a failed sync."""
        self._failures.labels(family).inc()

    def cleanup_failed(self, family: str) -> None:
        """Record a failed deletion of unused objects."""
        self._cleanup.labels(family).inc()

    def conntrack_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Record a clean-up of the kernel's flows."""
        self._conntrack.labels(family).observe(seconds)
        self._deleted.labels(family).inc(deleted)

    def answered(self, page: str, code: int) -> None:
        """Count a response of /healthz or /livez."""
        (self._healthz if page == "healthz" else self._livez).labels(str(code)).inc()

    def count_connections(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        """Add the connections at the last read to all later pages."""
        self.registry.register(_Connections(counts))

    def count_unserved(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        """Add the packets that found no endpoint to all later pages."""
        self.registry.register(_UnservedPackets(counts))

    def page(self) -> bytes:
        """Return the page in the text format of Prometheus."""
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
    """The connections by Service, zones and mode, kept by `connections`."""

    def __init__(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the counts as one family of series."""
        family = CounterMetricFamily(
            "keepclose_flow_connections",
            "New connections, by kind, Service, zone of the client and zone of the endpoint; those "
            "of a proxy have the routing mode of this node.",
            labels=(*_FLOW_LABELS, "mode"),
        )
        for count in self._counts():
            (*flow, mode, connections) = count
            labels = (FlowKind.SERVICE.value, *flow, mode_label(mode))
            family.add_metric(labels, float(connections))
        return [family]


class _UnservedPackets(Collector):
    """The packets without an endpoint by Service and action, kept by `connections`."""

    def __init__(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        """Return the counts as one family of series, for Services that have any."""
        family = CounterMetricFamily(
            "keepclose_proxy_unserved_packets",
            "First packets of connections that found no endpoint, by Service and action.",
            labels=("namespace", "service", "action"),
        )
        for count in self._counts():
            family.add_metric((count.namespace, count.service, count.action), float(count.packets))
        return [family]
