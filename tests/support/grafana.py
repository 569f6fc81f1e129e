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


def metric_names(query: str) -> set[str]:
    """Return the names of our metrics, recorded ones included, in a query."""
    return set(re.findall(r"\bkeepclose[_:][a-z0-9_:]+", query))
