"""The pages of how-tos can be scraped as the page about metrics says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from keepclose.demand.agent_pages import AGENT_LABEL
from support.grafana import load_scrape_jobs

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGE = (HOWTO / "metrics.md").read_text()
REFERENCE = (HOWTO.parent / "reference" / "metrics.md").read_text()


def relabel(labels: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, str]:
    """Return the labels of a target after rules that replace or keep, as Prometheus has them."""
    found = dict(labels)
    for rule in rules:
        action = rule.get("action", "replace")
        value = ";".join(found.get(one, "") for one in rule["source_labels"])
        match = re.fullmatch(rule.get("regex", "(.*)"), value)
        if action == "keep":
            assert match is not None, value
            continue
        assert action == "replace"
        if match is not None:
            made = match.expand(rule.get("replacement", "$1").replace("$", "\\"))
            found.pop(rule["target_label"], None)
            if made:
                found[rule["target_label"]] = made
    return {name: value for name, value in found.items() if not name.startswith("__meta_")}


def test_the_scrape_configuration_makes_the_labels_of_the_query() -> None:
    """Targets get the port of the proxy and the name of their Node; zones are the proxy's."""
    job = load_scrape_jobs()["keepclose-proxy"]
    assert job["kubernetes_sd_configs"] == [{"role": "node"}]
    # NB: what the role node offers, with every letter that a label cannot have replaced.
    discovered = {
        "__address__": "10.0.0.7:10250",
        "__meta_kubernetes_node_name": "n1",
    }
    assert relabel(discovered, job["relabel_configs"]) == {
        "__address__": "10.0.0.7:10249",
        "node": "n1",
    }
    queries = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    wanted = {name for query in queries for name in re.findall(r'(\w+)!?[=~]"', query)}
    exporters = re.findall(r"`keepclose_flow_connections_total` \| counter \| (.*?) \|", REFERENCE)
    assert len(exporters) == 2
    for exported in exporters:
        assert wanted <= set(re.findall(r"`(\w+)`", exported))
    assert wanted == {"client_zone", "endpoint_zone"}


def test_the_scrape_configuration_finds_the_agents() -> None:
    """The job selects the pods of the DaemonSet at their port, and keeps the labels of flows."""
    job = load_scrape_jobs()["keepclose-flows"]
    assert job["honor_labels"] is True
    [discovery] = job["kubernetes_sd_configs"]
    assert discovery == {"role": "pod", "selectors": [{"role": "pod", "label": AGENT_LABEL}]}
    [agents] = [
        one
        for one in yaml.safe_load_all((HOWTO / "flows.yaml").read_text())
        if one["kind"] == "DaemonSet"
    ]
    [container] = agents["spec"]["template"]["spec"]["containers"]
    [port] = container["ports"]
    discovered = {
        "__address__": f"10.0.0.7:{port['containerPort']}",
        "__meta_kubernetes_pod_container_port_name": port["name"],
        "__meta_kubernetes_pod_node_name": "n1",
    }
    assert relabel(discovered, job["relabel_configs"]) == {
        "__address__": "10.0.0.7:10247",
        "node": "n1",
    }


def test_the_page_has_every_default_address() -> None:
    """Each program that serves metrics has a row with the port and the option of its reference."""
    for program, option, port in (
        ("controller", "--metrics-address", 10260),
        ("proxy", "--metrics-bind-address", 10249),
        ("flows agent", "--metrics-bind-address", 10247),
    ):
        [row] = re.findall(rf"^\| {program} \|.*$", PAGE, re.MULTILINE)
        assert f"127.0.0.1:{port}/metrics" in row
        assert f"`{option}`" in row


def test_manifests_serve_metrics_where_others_can_read_them() -> None:
    """Every controller of the how-tos listens on the address of its pod, at a named port."""
    for name in ("controller.yaml", "webhook.yaml"):
        documents = [one for one in yaml.safe_load_all((HOWTO / name).read_text()) if one]
        [deployment] = [one for one in documents if one["kind"] == "Deployment"]
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        [option] = [one for one in container["command"] if one.startswith("--metrics-address=")]
        host, _, port = option.partition("=")[2].rpartition(":")
        assert host == "0.0.0.0", name  # noqa: S104
        assert int(port) in [one["containerPort"] for one in container["ports"]], name
