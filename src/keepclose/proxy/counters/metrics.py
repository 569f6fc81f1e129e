"""What a proxy counts, under the names, labels and buckets of kube-proxy's nftables mode.

So existing dashboards work. Ours begin with `keepclose_proxy_`: service ports by routing mode,
hints that are not followed by reason, and connections by Service and zone, which are read from the
kernel when a page is asked for. A series appears once there is something to say. Nothing here
blocks, and the client library of Prometheus is loaded when the first page is asked for: that takes
as long as routing a hundred Services, which should come first.
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
# So many notes are kept before the library is loaded after all.
_MOST_NOTES: Final = 1000


class ConnectionCount(NamedTuple):
    """How many connections this node has led to endpoints in one zone."""

    namespace: str
    service: str
    zone: str
    mode: str
    connections: int


class UnservedCount(NamedTuple):
    """How many packets to a Service found no endpoint on this node, and were refused or dropped."""

    namespace: str
    service: str
    action: str
    packets: int


class Changes(NamedTuple):
    """How many changes of Services and slices came, and how many of them wait for a sync."""

    services: int = 0
    endpoints: int = 0
    services_pending: int = 0
    endpoints_pending: int = 0


class ProxyMetrics:
    """The metrics of one proxy; notes are taken at once and turned into series when needed."""

    def __init__(self) -> None:
        self._notes: list[Callable[[MetricSeries], None]] = []
        self._made: MetricSeries | None = None
        self._services = 0
        self._endpoints = 0
        self._pending = (0, 0)

    @property
    def registry(self) -> CollectorRegistry:
        """The series as they are now."""
        return self._series().registry

    def service_changed(self) -> None:
        """Count an event of a Service."""
        self._services += 1

    def endpoints_changed(self) -> None:
        """Count an event of a slice."""
        self._endpoints += 1

    def show_pending(self, *, services: int, endpoints: int) -> None:
        """Show how many changes no sync has taken yet."""
        self._pending = (services, endpoints)

    def queued(self, family: str, now: float) -> None:
        """Note that a sync was asked for."""
        self._note(lambda series: series.queued(family, now))

    def synced(self, family: str, seconds: float, *, is_full: bool) -> None:
        """Note the end of a sync, whether it succeeded or not."""
        self._note(lambda series: series.synced(family, seconds, is_full=is_full))

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
        # NB: the sums are kept up to date by their owner, so they are read now.
        times = tuple(trigger_times)
        counts = dict(no_local), dict(modes), dict(fallbacks)
        self._note(
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
        """Note a sync that could not be written."""
        self._note(lambda series: series.failed(family))

    def cleanup_failed(self, family: str) -> None:
        """Note that what is not needed any more could not be deleted."""
        self._note(lambda series: series.cleanup_failed(family))

    def conntrack_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Note a look through the kernel's connections."""
        self._note(lambda series: series.conntrack_cleaned(family, seconds, deleted))

    def answered(self, page: str, code: int) -> None:
        """Count an answer of /healthz or /livez."""
        self._note(lambda series: series.answered(page, code))

    def count_connections(self, counts: Callable[[], Iterable[ConnectionCount]]) -> None:
        """Show connections as last read from the kernel with every page from now on."""
        self._note(lambda series: series.count_connections(counts))

    def count_unserved(self, counts: Callable[[], Iterable[UnservedCount]]) -> None:
        """Show packets that found no endpoint with every page from now on."""
        self._note(lambda series: series.count_unserved(counts))

    def show_uncounted(self, family: str, ports: int) -> None:
        """Show how many service ports are not counted."""
        self._note(lambda series: series.show_uncounted(family, ports))

    def page(self) -> bytes:
        """Return everything in the text format."""
        return self._series().page()

    def _note(self, note: Callable[[MetricSeries], None]) -> None:
        if self._made is not None:
            note(self._made)
            return
        self._notes.append(note)
        if len(self._notes) > _MOST_NOTES:
            self._series()

    def _series(self) -> MetricSeries:
        if self._made is None:
            from keepclose.proxy.counters.metric_series import MetricSeries  # noqa: PLC0415 - takes long

            self._made = MetricSeries()
            for note in self._notes:
                note(self._made)
            self._notes.clear()
        self._made.show_changes(Changes(self._services, self._endpoints, *self._pending))
        return self._made


def mode_label(mode: str) -> str:
    """Return the name under which a routing mode is counted."""
    return _EVERYWHERE if mode == RoutingMode.ALL.value else mode
