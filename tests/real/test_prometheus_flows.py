"""Flows that a real Prometheus has scraped, as commands read them."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from keepclose.accounting.flow_table import FlowKey, FlowTable
from keepclose.cli.flow_sources import load_flow_table
from support.real.programs import free_port, program, running, wait_until_answering

pytestmark = pytest.mark.real

PATIENCE = 120.0
LABELS = (
    'kind="service",namespace="shop",service="web",port="http",protocol="TCP",'
    'client_zone="a",endpoint_zone="b"'
)


class Page(BaseHTTPRequestHandler):
    """A page of an agent whose counters grow with each scrape: 10 bytes a connection."""

    scrapes = 0
    first = 0.0

    def do_GET(self) -> None:
        """Answer with the next numbers."""
        type(self).scrapes += 1
        type(self).first = type(self).first or time.time()
        count = 100 * type(self).scrapes
        body = (
            f"keepclose_flow_connections_total{{{LABELS}}} {count}\n"
            f'keepclose_flow_connections_total{{{LABELS},mode="Zone"}} {count}\n'
            f"keepclose_flows_walks_total {count}\n"
            f'keepclose_flow_failed_connections_total{{{LABELS},reason="refused"}} {count // 10}\n'
            f'keepclose_flow_bytes_total{{{LABELS},direction="request"}} {count * 10}\n'
            f'keepclose_flow_bytes_total{{{LABELS},direction="response"}} {count * 30}\n'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_real_prometheus_gives_a_table(tmp_path: Path) -> None:
    """The queries are valid, and connections, failures and bytes keep their proportions."""
    prometheus, port = program("prometheus"), free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as agent:
        thread = threading.Thread(target=agent.serve_forever)
        thread.start()
        config = {
            "global": {"scrape_interval": "1s"},
            "scrape_configs": [
                {
                    "job_name": "flows",
                    "static_configs": [{"targets": [f"127.0.0.1:{agent.server_port}"]}],
                }
            ],
        }
        path, log = tmp_path / "prometheus.yaml", tmp_path / "prometheus.log"
        path.write_text(yaml.safe_dump(config))
        arguments = (
            prometheus,
            f"--config.file={path}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        try:
            with running(arguments, log) as process:
                wait_until_answering(f"http://127.0.0.1:{port}/-/ready", process, log)
                table = _wait_for_flows(f"prometheus+http://127.0.0.1:{port}?window=24h")
        finally:
            agent.shutdown()
            thread.join()
    ((key, counts),) = table
    assert key == FlowKey(
        namespace="shop", service="web", port="http", client_zone="a", endpoint_zone="b"
    )
    assert counts.connections > 0
    # The three queries may see one scrape more than each other.
    assert counts.refused < counts.connections < counts.request_bytes < counts.response_bytes
    assert table.has_bytes
    # Prometheus has run for seconds, not for a day.
    assert 0 < table.seconds < PATIENCE
    assert table.end - Page.first == pytest.approx(table.seconds, abs=2)


def _wait_for_flows(source: str) -> FlowTable:
    deadline = time.monotonic() + PATIENCE
    while True:
        table = load_flow_table(source)
        # An increase needs two scrapes, and the second may come between two queries.
        if table.rows and all(
            counts.connections and counts.refused and counts.response_bytes for _, counts in table
        ):
            return table
        assert time.monotonic() < deadline, table.notes
        time.sleep(0.2)
