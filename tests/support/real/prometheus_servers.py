"""A real Prometheus that scrapes pages of a test every second."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from support.grafana import write_rule_file
from support.real.programs import free_port, program, running, wait_until_answering
from support.real.scraped_pages import Page, serving_pages

PATIENCE = 120.0


class Server:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the series of a query."""
        series: list[dict[str, Any]] = self.get("query", query=query)["result"]
        return series

    def wait_for(self, query: str) -> list[dict[str, Any]]:
        """Return the series of a query once there are some; none after a long time."""
        deadline = time.monotonic() + PATIENCE
        while not (series := self.ask(query)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return series


@contextlib.contextmanager
def scraping(
    directory: Path,
    pages: dict[str, Page],
    *,
    job: dict[str, Any] | None = None,
    labels: dict[str, str] | None = None,
) -> Iterator[Server]:
    """Run a Prometheus with our rules that scrapes these pages every second.

    `job` has what each scrape configuration has besides the page, and `labels` the target's labels
    before relabelling.
    """
    prometheus, port = program("prometheus"), free_port()
    with serving_pages(pages) as address:
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(write_rule_file(directory))],
            "scrape_configs": [
                (job or {})
                | {
                    "job_name": name,
                    "metrics_path": f"/{name}",
                    "static_configs": [
                        {"targets": [address], "labels": {"node": name} | (labels or {})}
                    ],
                }
                for name in pages
            ],
        }
        path = directory / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        arguments = (
            prometheus,
            f"--config.file={path}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        log = directory / "prometheus.log"
        with running(arguments, log) as process:
            url = f"http://127.0.0.1:{port}"
            wait_until_answering(f"{url}/-/ready", process, log)
            yield Server(url)
