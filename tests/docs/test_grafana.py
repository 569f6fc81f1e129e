"""The dashboard and the rules name metrics that exist, and each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from keepclose.accounting.flow_table import UNSUMMED_KINDS
from support.commands.commandlines import find_calls, find_mistake
from support.grafana import (
    FOLDER,
    dashboard_queries,
    load_dashboard,
    load_groups,
    metric_names,
    rule_queries,
)

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "metrics.md").read_text()
PAGE = (DOCS / "howto" / "grafana.md").read_text()
ALERTS = {
    "CrossZoneTrafficHigh",
    "CrossZoneShareRose",
    "FlowsLostEvents",
    "FlowsAccountingOff",
    "HintsNotHonoured",
    "CrossZoneDespiteHints",
}


def test_every_metric_is_recorded_or_in_the_reference() -> None:
    """A query with a name that nothing exports or records would show an empty panel for ever."""
    queries = [*dashboard_queries(), *rule_queries()]
    used = {name for _, query in queries for name in metric_names(query)}
    recorded = {
        rule["record"] for group in load_groups() for rule in group["rules"] if "record" in rule
    }
    exported = set(re.findall(r"^\| `(keepclose_\w+)` \|", REFERENCE, re.MULTILINE))
    if "keepclose_flow_bytes_total" not in exported:
        pytest.skip("the reference lacks the metrics of keepclose flows")
    assert used - recorded - exported == set()
    assert {name for name in used if ":" in name} == recorded


def test_shares_are_of_the_kinds_that_commands_sum_up() -> None:
    """Every query of an agent's flows leaves out what `flows top` and `cost` leave out."""
    left_out = "|".join(UNSUMMED_KINDS)
    counted = "keepclose_flow_(?:connections|failed_connections|bytes)_total"
    for name, query in [*dashboard_queries(), *rule_queries()]:
        for selector in re.findall(rf"(?:rate|increase)\({counted}(?:{{(.*?)}})?\[", query):
            # NB: a proxy counts connections to Services alone.
            if 'mode!=""' not in selector:
                assert f'kind!~"{left_out}"' in selector, name


def test_annotations_name_commands_that_exist() -> None:
    """An alert that fires tells its reader what to type."""
    calls = [
        call
        for group in load_groups()
        for rule in group["rules"]
        for text in rule.get("annotations", {}).values()
        for call in find_calls(text)
    ]
    assert len(calls) >= 3
    for call in calls:
        assert (find_mistake(call), call) == (None, call)


def test_the_rules_are_a_prometheus_rule() -> None:
    """The operator loads the file as it is; every alert says what it means and what to do."""
    resource = yaml.safe_load((FOLDER / "rules.yaml").read_text())
    assert (resource["apiVersion"], resource["kind"]) == (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
    )
    alerts = [rule for group in load_groups() for rule in group["rules"] if "alert" in rule]
    assert {rule["alert"] for rule in alerts} == ALERTS
    for rule in alerts:
        assert rule["labels"]["severity"] == "warning"
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_dashboard_can_be_imported() -> None:
    """It has no identity of one Grafana, and every panel asks the chosen data source."""
    dashboard = load_dashboard()
    assert (dashboard["id"], dashboard["uid"]) == (None, "keepclose-flows")
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels:
        if panel["type"] != "row":
            assert panel["description"]
            assert [panel["datasource"], *(one["datasource"] for one in panel["targets"])] == [
                source
            ] * (1 + len(panel["targets"]))
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    used = {
        name
        for panel in panels
        for target in panel.get("targets", ())
        for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert used - {"__rate_interval"} == variables - {"datasource"}


def test_panels_do_not_overlap() -> None:
    """Each cell of the grid belongs to one panel at most."""
    taken: dict[tuple[int, int], str] = {}
    for panel in load_dashboard()["panels"]:
        at = panel["gridPos"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, (panel["title"], taken[x, y])
                taken[x, y] = panel["title"]
                assert x < 24


def test_the_page_describes_every_alert_and_panel() -> None:
    """A user finds each alert and each group of panels in the how-to."""
    missing = [name for name in ALERTS if f"`{name}`" not in PAGE]
    missing += [
        panel["title"]
        for panel in load_dashboard()["panels"]
        if panel["type"] == "row" and panel["title"] not in PAGE
    ]
    assert missing == []


def test_the_page_says_which_alerts_need_the_proxy() -> None:
    """Alerts that select series of `keepclose proxy` never fire beside kube-proxy."""
    proxy = {
        rule["alert"]
        for group in load_groups()
        for rule in group["rules"]
        if "alert" in rule and re.search(r'keepclose_proxy_|mode!=""', rule["expr"])
    }
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.partition("## Alerts")[2], re.MULTILINE)
    assert {name for name, needs in rows if needs == "`keepclose proxy`"} == proxy
    assert {name for name, _ in rows} == ALERTS
