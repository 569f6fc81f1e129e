"""The dashboard and the rules that docs/grafana ships, as the tests read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "docs" / "grafana"
VARIABLES = {
    "$__rate_interval": "1m",
    "$namespace": ".*",
    "$price": "0.02",
    "$asking": "web",
}
"""What Grafana puts in place of the variables of the dashboard, for one choice of them."""


def load_dashboard() -> dict[str, Any]:
    """Return the dashboard."""
    dashboard: dict[str, Any] = json.loads((FOLDER / "keepclose-flows.json").read_text())
    return dashboard


def load_groups() -> list[dict[str, Any]]:
    """Return the groups of the PrometheusRule."""
    groups: list[dict[str, Any]] = yaml.safe_load((FOLDER / "rules.yaml").read_text())["spec"][
        "groups"
    ]
    return groups


def write_rule_file(directory: Path) -> Path:
    """Write the groups as a rule file of Prometheus, which is what the operator makes of them."""
    path = directory / "keepclose-rules.yaml"
    path.write_text(yaml.safe_dump({"groups": load_groups()}))
    return path


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Yield the title of each panel with each of its queries, as Grafana would send it."""
    for panel in load_dashboard()["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


def rule_queries() -> Iterator[tuple[str, str]]:
    """Yield each rule's name with its expression."""
    for group in load_groups():
        for rule in group["rules"]:
            yield rule.get("record") or rule["alert"], rule["expr"]


def load_scrape_jobs() -> dict[str, dict[str, Any]]:
    """Return the scrape configurations of docs/howto/metrics.md by name, the operator's too.

    The PodMonitor is what the operator makes of it, apart from how pods are found: such targets
    have the labels POD_MONITOR_LABELS before they are relabelled.
    """
    page = (FOLDER.parent / "howto" / "metrics.md").read_text()
    blocks = [
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    ]
    jobs = {job["job_name"]: job for block in blocks for job in block.get("scrape_configs", ())}
    [monitor] = [block for block in blocks if block.get("kind") == "PodMonitor"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    jobs["PodMonitor"] = {
        "job_name": "PodMonitor",
        "honor_labels": endpoint.get("honorLabels", False),
        "relabel_configs": [
            {names.get(name, name): value for name, value in rule.items()}
            for rule in endpoint["relabelings"]
        ],
    }
    return jobs


POD_MONITOR_LABELS = {
    "namespace": "kube-system",
    "pod": "keepclose-flows-x",
    "container": "flows",
    "endpoint": "metrics",
}


def metric_names(query: str) -> set[str]:
    """Return the names of our metrics, recorded ones included, in a query."""
    return set(re.findall(r"\bkeepclose[_:][a-z0-9_:]+", query))
