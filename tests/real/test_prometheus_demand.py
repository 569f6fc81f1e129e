"""The ready queries for demand, asked of a real Prometheus that scrapes made-up series."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepclose.demand.prometheus_queries import READY_QUERIES, find_query
from keepclose.demand.sources import DemandReading, PrometheusSource
from keepclose.model.meta import NamespacedName
from support.real.prometheus_servers import PATIENCE, Server, scraping
from support.real.scraped_pages import Page

pytestmark = pytest.mark.real

WEB = NamespacedName("shop", "web")
NODES = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
RATES = {"n1": 70, "n2": 20, "n3": 10}
_FLOW = 'namespace="shop",service="web",port="http",protocol="TCP",endpoint_zone="zone-a"'


def made_up(scrapes: int) -> bytes:
    """Return series of flow agents, a proxy, sidecars and Hubble: 70, 20 and 10 each second."""
    lines = []
    for number, (node, zone) in enumerate(NODES.items()):
        client = f'namespace="clients",pod="client-{number}"'
        count = RATES[node] * scrapes
        flow = f'kind="service",{_FLOW},client_zone="{zone}"'
        to_web = 'destination_service_namespace="shop",destination_service_name="web"'
        to_linkerd = 'dst_namespace="shop",dst_service="web"'
        forwarded = (
            f'namespace="kube-system",pod="cilium-{number}",'
            f'verdict="FORWARDED",source_namespace="clients",source_pod="client-{number}",'
            'destination_namespace="shop",destination_workload="web"'
        )
        lines += [
            f"keepclose_flow_connections_total{{{flow}}} {count}",
            f'keepclose_flow_connections_total{{{flow},mode="Zone"}} {count}',
            f'istio_requests_total{{{client},reporter="source",{to_web}}} {count}',
            f'istio_requests_total{{{client},reporter="destination",{to_web}}} {9 * count}',
            f'response_total{{{client},direction="outbound",{to_linkerd}}} {count}',
            f'response_total{{{client},direction="inbound"}} {9 * count}',
            f"hubble_flows_processed_total{{{forwarded}}} {count}",
            f'kube_pod_info{{{client},node="{node}",uid="u{number}"}} 1',
        ]
    return ("\n".join(lines) + "\n").encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a Prometheus that keeps the labels of the page."""
    directory: Path = tmp_path_factory.mktemp("demand")
    with scraping(directory, {"page": Page(made_up)}, job={"honor_labels": True}) as found:
        yield found


@pytest.mark.parametrize("name", list(READY_QUERIES))
def test_a_ready_query_measures_the_zones_of_clients(server: Server, name: str) -> None:
    """The rates of the zones are in the proportion of the series."""
    assert server.wait_for(READY_QUERIES[name].text), f"{name} finds no series"
    source = PrometheusSource(server.url, find_query(name, {}), zones=lambda: NODES)
    reading: DemandReading = asyncio.run(asyncio.wait_for(source.read(), PATIENCE))
    assert list(reading.rates) == [WEB]
    rates = reading.rates[WEB]
    total = sum(rates.values())
    shares = {zone: rate / total for zone, rate in rates.items()}
    assert shares == pytest.approx({"zone-a": 0.7, "zone-b": 0.2, "zone-c": 0.1}, abs=0.02)


def test_a_query_of_ones_own_names_its_labels(server: Server) -> None:
    """Any query works whose answer has labels for Service and zone."""
    query = find_query(
        'sum by (dst_namespace, dst_service, pod) (response_total{direction="outbound"})',
        {"namespace": "dst_namespace", "service": "dst_service", "zone": "pod"},
    )
    assert server.wait_for(query.text)
    source = PrometheusSource(server.url, query, zones=dict)
    reading = asyncio.run(asyncio.wait_for(source.read(), PATIENCE))
    assert set(reading.rates[WEB]) == {"client-0", "client-1", "client-2"}
