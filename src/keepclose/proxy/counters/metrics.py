"""The metrics of a proxy, with the names, labels and buckets of kube-proxy's nftables mode.

So existing dashboards work. Our own metrics are service ports by routing mode, ignored hints by
reason, and connections by Service and zones, which the proxy reads from the kernel for each request
of the page; `keepclose flows` gives connections the same name. A series appears with its first
value. Nothing here blocks. The client library of Prometheus is loaded for the first request:
loading takes as long as routing a hundred Services, which must come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from keepclose.routing.topology import RoutingMode

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from keepclose.proxy.counters.metric_series import MetricSeries

DOUBLING: Final = tuple(0.001 * 2**power for power in range(15))
PROGRAMMING: Final = (
    0.25,
    0.5,
    *(float(second) for second in range(1, 60)),
    *(float(second) for second in range(60, 120, 5)),
    *(float(second) for second in range(120, 301, 30)),
)
_EVERYWHERE: Final = "Everywhere"
# With more pending updates the library is loaded without a request.
_MAX_PENDING: Final = 1000


class ConnectionCount(NamedTuple):
    """The number of connections that this node routed to endpoints in one zone."""

    namespace: str
    service: str
    port: str
    """The name of the Service's port, or its number if it has no name."""
    protocol: str
    client_zone: str
    endpoint_zone: str
    mode: str
    connections: int


class UnservedCount(NamedTuple):
    """The number of packets to a Service that found no endpoint, by action: reject or drop."""

    namespace: str
    service: str
    action: str
    packets: int


class ChangeTotals(NamedTuple):
    """The numbers of received changes of Services and slices, and of those that wait for a sync."""

    services: int = 0
    endpoints: int = 0
    services_pending: int = 0
    endpoints_pending: int = 0


class ProxyMetrics:
    """The metrics of one proxy; updates wait until the first request creates the series."""

    def __init__(self) -> None:
        self._updates: list[Callable[[MetricSeries], None]] = []
        self._created: MetricSeries | None = None
        self._services = 0
        self._endpoints = 0
        self._pending = (0, 0)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry with the current series."""
        return self._series().registry

    def service_changed(self) -> None:
        """Count a change of a Service."""
        self._services += 1

    def endpoints_changed(self) -> None:
        """Count a change of a slice."""
        self._endpoints += 1

    def show_pending(self, *, services: int, endpoints: int) -> None:
        """Set the numbers of changes that wait for a sync."""
        self._pending = (services, endpoints)

    def queued(self, family: str, now: float) -> None:
        """Record the request of a sync."""
        self._record(lambda series: series.queued(family, now))

    def synced(self, family: str, seconds: float, *, is_full: bool) -> None:
        """Record the duration of a sync, successful or not."""
        self._record(lambda series: series.synced(family, seconds, is_full=is_full))

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
        # NB: the caller keeps changing the counts, so they are copied now.
        times = tuple(trigger_times)
        counts = dict(no_local), dict(modes), dict(fallbacks)
        self._record(
            lambda series: series.succeeded(
                family,
                now=now,
                trigger_times=times,
                no_local=counts[0],
                modes=counts[1],
                fallbacks=counts[2],
            )
        )

    def failed(self, family: str) -> None:
        """Record a failed sync."""
        self._record(lambda series: series.failed(family))

    def cleanup_failed(self, family: str) -> None:
        """Record a failed deletion of unused objects."""
        self._record(lambda series: series.cleanup_failed(family))

    def conntrack_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Record a clean-up of the kernel's flows."""
        self._record(lambda series: series.conntrack_cleaned(family, seconds, deleted))

    def answered(self, page: str, code: int) -> None:
        """Count a response of /healthz or /livez."""
        self._record(lambda series: series.answered(page, code))

    def count_connections(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        """Add the connections at the last read to all later pages."""
        self._record(lambda series: series.count_connections(counts))

    def count_unserved(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        """Add the packets that found no endpoint to all later pages."""
        self._record(lambda series: series.count_unserved(counts))

    def page(self) -> bytes:
        """Return the page in the text format of Prometheus."""
        return self._series().page()

    def _record(self, update: Callable[[MetricSeries], None]) -> None:
        if self._created is not None:
            update(self._created)
            return
        self._updates.append(update)
        if len(self._updates) > _MAX_PENDING:
            self._series()

    def _series(self) -> MetricSeries:
        if self._created is None:
            from keepclose.proxy.counters.metric_series import MetricSeries  # noqa: PLC0415 - takes long

            self._created = MetricSeries()
            for update in self._updates:
                update(self._created)
            self._updates.clear()
        self._created.show_changes(ChangeTotals(self._services, self._endpoints, *self._pending))
        return self._created


def mode_label(mode: str) -> str:
    """Return the label value of a routing mode."""
    return _EVERYWHERE if mode == RoutingMode.ALL.value else mode
