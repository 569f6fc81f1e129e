"""What a proxy counts, under the names that dashboards know."""

from __future__ import annotations

import pytest

from keepclose.proxy.counters.metrics import DOUBLING, PROGRAMMING, ConnectionCount, ProxyMetrics

FAMILY = {"ip_family": "IPv4"}


def value(metrics: ProxyMetrics, name: str, **labels: str) -> float | None:
    """Return the value of a series."""
    return metrics.registry.get_sample_value(name, labels)


def test_buckets() -> None:
    """The buckets are those of kube-proxy."""
    assert (len(DOUBLING), DOUBLING[0], DOUBLING[-1]) == (15, 0.001, 16.384)
    assert (len(PROGRAMMING), PROGRAMMING[:4]) == (80, (0.25, 0.5, 1.0, 2.0))
    assert PROGRAMMING[60:64] == (59.0, 60.0, 65.0, 70.0)
    assert PROGRAMMING[-8:] == (115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sync_proxy_rules_duration_seconds", "histogram"),
        ("sync_full_proxy_rules_duration_seconds", "histogram"),
        ("sync_partial_proxy_rules_duration_seconds", "histogram"),
        ("sync_proxy_rules_last_timestamp_seconds", "gauge"),
        ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge"),
        ("network_programming_duration_seconds", "histogram"),
        ("sync_proxy_rules_endpoint_changes_pending", "gauge"),
        ("sync_proxy_rules_endpoint_changes_total", "counter"),
        ("sync_proxy_rules_service_changes_pending", "gauge"),
        ("sync_proxy_rules_service_changes_total", "counter"),
        ("sync_proxy_rules_no_local_endpoints_total", "gauge"),
        ("sync_proxy_rules_nftables_sync_failures_total", "counter"),
        ("sync_proxy_rules_nftables_cleanup_failures_total", "counter"),
        ("conntrack_reconciler_sync_duration_seconds", "histogram"),
        ("conntrack_reconciler_deleted_entries_total", "counter"),
        ("proxy_healthz_total", "counter"),
        ("proxy_livez_total", "counter"),
    ],
)
def test_names_and_types(name: str, kind: str) -> None:
    """Every metric of kube-proxy's nftables mode has its name and type."""
    assert f"# TYPE kubeproxy_{name} {kind}\n" in ProxyMetrics().page().decode()


def test_a_sync_that_was_written() -> None:
    """Times count for all syncs; the state counts once it is written."""
    metrics = ProxyMetrics()
    metrics.synced("IPv4", 0.003, is_full=True)
    metrics.synced("IPv4", 0.001, is_full=False)
    prefix = "kubeproxy_sync"
    assert value(metrics, f"{prefix}_proxy_rules_duration_seconds_count", **FAMILY) == 2
    assert value(metrics, f"{prefix}_full_proxy_rules_duration_seconds_sum", **FAMILY) == 0.003
    assert value(metrics, f"{prefix}_partial_proxy_rules_duration_seconds_sum", **FAMILY) == 0.001
    metrics.succeeded(
        "IPv4",
        now=100.0,
        trigger_times=(98.0, 120.0),
        no_local={"internal": 2, "external": 0},
        modes={"": 3, "PreferSameZone": 1},
        fallbacks={"ZoneNotHinted": 1},
    )
    assert value(metrics, f"{prefix}_proxy_rules_last_timestamp_seconds", **FAMILY) == 100
    name = "kubeproxy_network_programming_duration_seconds"
    assert value(metrics, f"{name}_count", **FAMILY) == 2
    assert value(metrics, f"{name}_sum", **FAMILY) == 2.0
    name = f"{prefix}_proxy_rules_no_local_endpoints_total"
    assert value(metrics, name, traffic_policy="internal", **FAMILY) == 2
    name = "keepclose_proxy_service_ports"
    assert value(metrics, name, mode="Everywhere", **FAMILY) == 3
    assert value(metrics, name, mode="PreferSameZone", **FAMILY) == 1
    name = "keepclose_proxy_hints_not_followed"
    assert value(metrics, name, reason="ZoneNotHinted", **FAMILY) == 1


def test_counts_of_other_things() -> None:
    """Changes, health answers, flows and connections each have their series."""
    metrics = ProxyMetrics()
    metrics.service_changed()
    metrics.endpoints_changed()
    metrics.show_pending(services=4, endpoints=5)
    metrics.answered("healthz", 503)
    metrics.answered("livez", 200)
    metrics.conntrack_cleaned("IPv4", 0.5, 7)
    metrics.queued("IPv4", 9.0)
    count = ConnectionCount("ns", "web", "http", "TCP", "zone-a", "zone-b", "", 12)
    metrics.count_connections(lambda: [count])
    assert value(metrics, "kubeproxy_sync_proxy_rules_service_changes_total") == 1
    assert value(metrics, "kubeproxy_sync_proxy_rules_endpoint_changes_total") == 1
    assert value(metrics, "kubeproxy_sync_proxy_rules_service_changes_pending") == 4
    assert value(metrics, "kubeproxy_sync_proxy_rules_endpoint_changes_pending") == 5
    assert value(metrics, "kubeproxy_proxy_healthz_total", code="503") == 1
    assert value(metrics, "kubeproxy_proxy_livez_total", code="200") == 1
    assert value(metrics, "kubeproxy_conntrack_reconciler_deleted_entries_total", **FAMILY) == 7
    name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
    assert value(metrics, name, **FAMILY) == 9
    labels = {
        "kind": "service",
        "namespace": "ns",
        "service": "web",
        "port": "http",
        "protocol": "TCP",
        "client_zone": "zone-a",
        "endpoint_zone": "zone-b",
        "mode": "Everywhere",
    }
    assert value(metrics, "keepclose_flow_connections_total", **labels) == 12
