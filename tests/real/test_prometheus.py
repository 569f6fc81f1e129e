"""A real Prometheus loads the rules, and answers every query of the dashboard."""

from __future__ import annotations

import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from keepclose.accounting.cost import CostGrouping, price_flows
from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowKind, FlowTable
from keepclose.accounting.prices import PRESETS, read_prices
from keepclose.cli.flow_sources import load_flow_table
from keepclose.cli.options import FlowGrouping, FlowOrder
from keepclose.cli.render.flows_table import FlowReading, summarise
from support.grafana import (
    POD_MONITOR_LABELS,
    dashboard_queries,
    load_groups,
    load_scrape_jobs,
    rule_queries,
    write_rule_file,
)
from support.real.programs import program
from support.real.prometheus_servers import PATIENCE, Server, scraping
from support.real.scraped_pages import FLOWS, agent_page, proxy_page

pytestmark = pytest.mark.real

ALERTS = [rule["alert"] for group in load_groups() for rule in group["rules"] if "alert" in rule]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a Prometheus for two agents, one without accounting, and a proxy."""
    pages = {
        "agent": agent_page(accounts=True),
        "blind": agent_page(accounts=False),
        "proxy": proxy_page(),
    }
    with scraping(tmp_path_factory.mktemp("prometheus"), pages) as found:
        yield found


QUERIES = [
    (title, query)
    for title, query in [*dashboard_queries(), *rule_queries()]
    # NB: a rule that looks back a day is judged by promtool alone.
    if " offset " not in query
]


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_every_query_returns_series(server: Server, title: str, query: str) -> None:
    """A panel that stays empty, or an alert that cannot fire, has a wrong name or label."""
    series = server.wait_for(query)
    assert series, title
    assert all(one["value"][1] != "NaN" for one in series)


def test_every_rule_is_healthy(server: Server) -> None:
    """Each rule was evaluated, and none with an error."""
    deadline = time.monotonic() + PATIENCE
    while True:
        groups = server.get("rules")["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        if all(rule["health"] != "unknown" for rule in rules) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert {rule["health"] for rule in rules} == {"ok"}
    assert {rule["name"] for rule in rules} == {name for name, _ in rule_queries()}


def test_connections_of_agents_are_not_counted_again_by_proxies(server: Server) -> None:
    """Where agents run, the recorded rates are theirs alone: 80 of 100 connections cross zones."""
    share = 'keepclose:service_cross_zone_share:ratio5m{service="web"}'
    [series] = server.wait_for(share)
    assert float(series["value"][1]) == pytest.approx(0.8, abs=0.02)


def test_shares_are_those_of_the_command_line(server: Server) -> None:
    """On the same page rules, `flows top` and `cost` give the same part that crosses zones."""
    shares = [
        float(server.wait_for(f"keepclose:flow_{what}_cross_zone_share:ratio5m")[0]["value"][1])
        for what in ("connections", "bytes")
    ]
    page = FlowTable()
    for labels, (connections, size) in FLOWS.items():
        key = FlowKey(FlowKind(labels[0]), *labels[1:])
        page.add(key, FlowCounts(connections, request_bytes=size, response_bytes=size))
    query = urllib.parse.urlencode({"match": 'mode=""'})
    source = f"prometheus+{server.url}?{query}"
    for table in (page, load_flow_table(source)):
        reading = FlowReading(table, None, 0.0, 1)
        total = summarise(reading, FlowGrouping.SERVICE, FlowOrder.CROSS_ZONE).total
        assert shares == pytest.approx(
            [
                total.cross_zone_connections
                / (total.in_zone_connections + total.cross_zone_connections),
                total.cross_zone_bytes / (total.in_zone_bytes + total.cross_zone_bytes),
            ],
            abs=0.01,
        )
        costs = price_flows(
            [table],
            read_prices(yaml.safe_load(PRESETS["aws"]), name="aws"),
            by=CostGrouping.SERVICE,
        ).total
        assert shares[1] == pytest.approx(costs.crossing_bytes / costs.bytes, abs=0.01)


@pytest.mark.parametrize("name", ["keepclose-flows", "PodMonitor"])
def test_scraped_as_the_page_says_flows_keep_their_labels(tmp_path: Path, name: str) -> None:
    """The namespace of a flow is the Service's, although the target has one and other labels."""
    job = load_scrape_jobs()[name]
    job.pop("kubernetes_sd_configs", None)
    discovered = {
        "__meta_kubernetes_pod_container_port_name": "metrics",
        "__meta_kubernetes_pod_node_name": "n1",
    }
    given = POD_MONITOR_LABELS if name == "PodMonitor" else {"namespace": "kube-system"}
    pages = {"agent": agent_page(accounts=True)}
    with scraping(tmp_path, pages, job=job, labels=given | discovered) as found:
        series = found.wait_for("keepclose_flow_connections_total")
        found.wait_for("keepclose:service_cross_zone_share:ratio5m")
        [share] = found.ask('keepclose:service_cross_zone_share:ratio5m{service="web"}')
        table = load_flow_table(f"prometheus+{found.url}")
    labels = [one["metric"] for one in series]
    assert {one["node"] for one in labels} == {"n1"}
    assert {(one["kind"], one.get("namespace")) for one in labels} == {
        (flow[0], flow[1] or None) for flow in FLOWS
    }
    assert not [one for one in labels if "exported_namespace" in one]
    assert share["metric"]["namespace"] == "shop"
    assert {key for key, _ in table} == {FlowKey(FlowKind(flow[0]), *flow[1:]) for flow in FLOWS}


def test_proxies_alone_give_the_share_of_connections(tmp_path: Path) -> None:
    """Without agents three quarters of the connections that the proxy counted cross zones."""
    with scraping(tmp_path, {"proxy": proxy_page()}) as found:
        [series] = found.wait_for("keepclose:flow_connections_cross_zone_share:ratio5m")
        assert float(series["value"][1]) == pytest.approx(0.75)
        panel = dict(dashboard_queries())["Cross-zone share"]
        assert len(found.wait_for(panel)) == 1


def unit_series(name: str, step: float, **labels: str) -> dict[str, str]:
    """Return a series that grows by a step each minute."""
    text = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": f"0+{step}x120"}


def flow(name: str, step: float, client: str, endpoint: str, **more: str) -> dict[str, str]:
    """Return a series of flows of one Service."""
    labels = {"kind": "service", "namespace": "shop", "service": "web"} | more
    return unit_series(name, step, client_zone=client, endpoint_zone=endpoint, **labels)


BYTES, CONNECTIONS = "keepclose_flow_bytes_total", "keepclose_flow_connections_total"
BUSY = [
    flow(BYTES, 3e8, "zone-a", "zone-b", direction="request"),
    flow(BYTES, 3e8, "zone-a", "zone-b", direction="response"),
    flow(BYTES, 2e8, "zone-a", "zone-a", direction="response"),
    flow(BYTES, 9e9, "(outside)", "zone-a", direction="response"),
    flow(BYTES, 9e9, "zone-a", "zone-b", direction="response", kind="tunnel"),
    flow(BYTES, 9e9, "zone-a", "zone-a", direction="response", kind="local"),
]
CASES: dict[str, tuple[list[dict[str, str]], dict[str, float], set[str]]] = {
    "bytes between two zones are three quarters of those of known zones": (
        BUSY,
        {
            "keepclose:flow_bytes_cross_zone_share:ratio5m": 0.75,
            "sum(keepclose:flow_bytes_cross_zone:rate5m)": 1e7,
            "sum(keepclose:flow_cost_per_hour:rate5m)": 0.72,
        },
        {"CrossZoneTrafficHigh"},
    ),
    "traffic within one zone has the share 0": (
        [flow(BYTES, 6e8, "zone-a", "zone-a", direction="request")],
        {"keepclose:flow_bytes_cross_zone_share:ratio5m": 0.0},
        set(),
    ),
    "little traffic raises no alert": (
        [flow(BYTES, 6e5, "zone-a", "zone-b", direction="request")],
        {"keepclose:flow_bytes_cross_zone_share:ratio5m": 1.0},
        set(),
    ),
    "agents count where both do": (
        [
            flow(CONNECTIONS, 60, "zone-a", "zone-a"),
            flow(CONNECTIONS, 60, "zone-a", "zone-b", mode="Everywhere"),
        ],
        {
            "sum(keepclose:flow_connections:rate5m)": 1.0,
            "keepclose:service_cross_zone_share:ratio5m": 0.0,
        },
        set(),
    ),
    "a Service whose hints are followed should not cross zones": (
        [
            flow(CONNECTIONS, 60, "zone-a", "zone-b", mode="PreferSameZone"),
            flow(CONNECTIONS, 20, "zone-a", "zone-a", mode="PreferSameZone"),
        ],
        {"keepclose:service_cross_zone_share:ratio5m": 0.75},
        {"CrossZoneDespiteHints"},
    ),
    "hints that a node does not follow": (
        [
            {
                "series": 'keepclose_proxy_hints_not_followed{instance="n1",reason="X"}',
                "values": "2x120",
            }
        ],
        {},
        {"HintsNotHonoured"},
    ),
    "an agent that loses events, without accounting": (
        [
            unit_series("keepclose_flows_lost_events_total", 5, instance="n1"),
            {"series": 'keepclose_flows_accounting{instance="n1"}', "values": "0x120"},
        ],
        {},
        {"FlowsLostEvents", "FlowsAccountingOff"},
    ),
    "a healthy agent": (
        [
            unit_series("keepclose_flows_lost_events_total", 0, instance="n1"),
            {"series": 'keepclose_flows_accounting{instance="n1"}', "values": "1x120"},
        ],
        {},
        set(),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rules_give_these_values_and_alerts(tmp_path: Path, case: str) -> None:
    """Unit series of two hours, evaluated by promtool."""
    series, values, alerts = CASES[case]
    check_rules(tmp_path, series, values, alerts, at="90m")


DAY = 1440
CHANGES: dict[str, tuple[str, str, set[str]]] = {
    "from its zone to another": (
        f"0+60x{DAY} {60 * DAY}x239",
        f"0x{DAY} 0+60x239",
        {"CrossZoneShareRose"},
    ),
    "from its zone to another, with few connections": (
        f"0+2x{DAY} {2 * DAY}x239",
        f"0x{DAY} 0+2x239",
        set(),
    ),
    "across zones all the time": (f"0x{DAY + 240}", f"0+60x{DAY + 240}", set()),
    "within its zone all the time": (f"0+60x{DAY + 240}", f"0x{DAY + 240}", set()),
}
"""Values of connections within a zone and between two, with a change after a day."""


@pytest.mark.parametrize("case", CHANGES)
def test_a_share_that_rose_raises_an_alert(tmp_path: Path, case: str) -> None:
    """Agents alone show that connections left their zone since the day before."""
    within, between, alerts = CHANGES[case]
    series = [
        flow(CONNECTIONS, 0, "zone-a", "zone-a") | {"values": within},
        flow(CONNECTIONS, 0, "zone-a", "zone-b") | {"values": between},
    ]
    check_rules(tmp_path, series, {}, alerts, at=f"{DAY + 180}m")


def check_rules(
    directory: Path,
    series: list[dict[str, str]],
    values: dict[str, float],
    alerts: set[str],
    *,
    at: str,
) -> None:
    """Assert which alerts fire at a time, and what some queries return then."""
    promtool = program("promtool")
    rules = write_rule_file(directory)
    checks = [
        {"expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})', "eval_time": at}
        | {"exp_samples": [{"labels": "{}", "value": 1}] if name in alerts else []}
        for name in dict.fromkeys(ALERTS)
    ]
    checks += [
        {
            "expr": f"round(sum({query}), 0.0001)",
            "eval_time": at,
            "exp_samples": [{"labels": "{}", "value": value}],
        }
        for query, value in values.items()
    ]
    path = directory / "test.yaml"
    test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
    for command in (("check", "rules", rules), ("test", "rules", path)):
        done = subprocess.run([promtool, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
