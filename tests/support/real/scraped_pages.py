"""Pages of metrics that grow with each scrape, as agents and a proxy would serve them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from keepclose.proxy.counters.metrics import ConnectionCount, ProxyMetrics, UnservedCount
from keepclose.runtime.metrics_text import render_metrics

_FLOW = ("kind", "namespace", "service", "port", "protocol", "client_zone", "endpoint_zone")
FLOWS = {
    ("service", "shop", "web", "http", "TCP", "zone-a", "zone-b"): (80, 10_000_000),
    ("service", "shop", "web", "http", "TCP", "zone-a", "zone-a"): (20, 2_000_000),
    ("service", "shop", "api", "http", "TCP", "zone-b", "zone-b"): (5, 1_000),
    ("service", "shop", "web", "http", "TCP", "(outside)", "zone-a"): (3, 5_000_000),
    ("pod", "", "", "", "TCP", "zone-b", "zone-a"): (10, 3_000_000),
    ("tunnel", "", "", "", "UDP", "zone-a", "zone-b"): (1, 90_000_000),
    ("local", "", "", "", "TCP", "zone-a", "zone-a"): (70, 40_000_000),
}
"""Connections and bytes of each direction that every scrape adds."""


class Page:
    """A page whose counters have grown at each scrape."""

    def __init__(self, render: Callable[[int], bytes]) -> None:
        self._render = render
        self._scrapes = 0
        self._lock = threading.Lock()

    def read(self) -> bytes:
        """Return the page as it is at the next scrape."""
        with self._lock:
            self._scrapes += 1
            return self._render(self._scrapes)


class _Agent(Collector):
    """The series of an agent, with the names that docs/reference/metrics.md lists."""

    def __init__(self, scrapes: int, *, accounts: bool) -> None:
        self._scrapes, self._accounts = scrapes, accounts

    def collect(self) -> Iterator[Metric]:
        """Return all families."""
        connections = CounterMetricFamily("keepclose_flow_connections", "-", labels=_FLOW)
        failed = CounterMetricFamily(
            "keepclose_flow_failed_connections", "-", labels=(*_FLOW, "reason")
        )
        amount = CounterMetricFamily("keepclose_flow_bytes", "-", labels=(*_FLOW, "direction"))
        for labels, (count, size) in FLOWS.items():
            connections.add_metric(labels, count * self._scrapes)
            failed.add_metric((*labels, "refused"), self._scrapes)
            if self._accounts:
                for direction in ("request", "response"):
                    amount.add_metric((*labels, direction), size * self._scrapes)
        yield from (connections, failed, amount)
        for name in ("lost_events", "walks", "gap_seconds", "unobserved_connections", "table_full"):
            yield CounterMetricFamily(f"keepclose_flows_{name}", "-", value=self._scrapes)
        for name in ("open_connections", "waiting_connections"):
            yield GaugeMetricFamily(f"keepclose_flows_{name}", "-", value=7)
        yield GaugeMetricFamily("keepclose_flows_accounting", "-", value=int(self._accounts))


def agent_page(*, accounts: bool) -> Page:
    """Return the page of an agent, on a node whose kernel accounts bytes or does not."""

    def render(scrapes: int) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Agent(scrapes, accounts=accounts))
        return render_metrics(registry)

    return Page(render)


def proxy_page() -> Page:
    """Return the page of a proxy, from its own code."""
    metrics = ProxyMetrics()
    scraped = [0]
    port = ("shop", "web", "http", "TCP", "zone-a")
    metrics.count_connections(
        lambda: [
            ConnectionCount(*port, "zone-a", "PreferSameZone", 3 * scraped[0]),
            ConnectionCount(*port, "zone-b", "PreferSameZone", 9 * scraped[0]),
        ]
    )
    metrics.count_unserved(lambda: [UnservedCount("shop", "web", "reject", scraped[0])])
    metrics.succeeded(
        "IPv4",
        now=1.0,
        trigger_times=(),
        no_local={},
        modes={"": 1},
        fallbacks={"ZoneNotHinted": 2},
    )

    def render(scrapes: int) -> bytes:
        scraped[0] = scrapes
        return metrics.page()

    return Page(render)


@contextlib.contextmanager
def serving_pages(pages: dict[str, Page]) -> Iterator[str]:
    """Serve each page at its path; yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[self.path.strip("/")].read()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
