"""Rows that people look at most, told in full."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.apiserver.printing.table import make_table
from keepclose.apiserver.resources import BY_KIND

NOW = 1_800_000_000.0
MINUTE_AGO = "2027-01-15T07:59:00Z"


def cells(api_version: str, kind: str, item: dict[str, Any]) -> list[str | int]:
    """Return the cells of a named object that was made a minute ago."""
    metadata = {"name": "web", "creationTimestamp": MINUTE_AGO, **item.pop("metadata", {})}
    resource = BY_KIND[(api_version, kind)]
    row = make_table(resource, [{"metadata": metadata, **item}], now=NOW)["rows"][0]
    found: list[str | int] = row["cells"]
    return found


def container(state: dict[str, Any], **status: Any) -> dict[str, Any]:
    """Return the status of a container."""
    return {"name": "main", "restartCount": 0, "state": state, **status}


@pytest.mark.parametrize(
    ("status", "want_ready", "want_status", "want_restarts"),
    [
        pytest.param({"phase": "Pending"}, "0/1", "Pending", "0", id="not placed yet"),
        pytest.param(
            {"phase": "Running", "containerStatuses": [container({"running": {}}, ready=True)]},
            "1/1",
            "Running",
            "0",
            id="running",
        ),
        pytest.param(
            {
                "phase": "Running",
                "containerStatuses": [
                    container(
                        {"waiting": {"reason": "CrashLoopBackOff"}},
                        restartCount=4,
                        lastState={"terminated": {"finishedAt": "2027-01-15T07:54:50Z"}},
                    )
                ],
            },
            "0/1",
            "CrashLoopBackOff",
            "4 (5m10s ago)",
            id="failing again and again",
        ),
        pytest.param(
            {"phase": "Pending", "initContainerStatuses": [container({"running": {}})]},
            "0/1",
            "Init:0/1",
            "0",
            id="initialising",
        ),
        pytest.param({"phase": "Failed", "reason": "Evicted"}, "0/1", "Evicted", "0", id="evicted"),
        pytest.param({}, "0/1", "", "0", id="without a phase"),
    ],
)
def test_a_pod_tells_how_it_is(
    status: dict[str, Any], want_ready: str, want_status: str, want_restarts: str
) -> None:
    """Ready containers, one word, and restarts with the age of the last."""
    spec = {"containers": [{"name": "main"}], "initContainers": [{"name": "first"}]}
    none = "<none>"
    want = ["web", want_ready, want_status, want_restarts, "60s", none, none, none, none]
    assert cells("v1", "Pod", {"spec": spec, "status": status}) == want


def test_a_pod_that_is_deleted_is_terminating_until_it_is_done() -> None:
    """Deletion hides how the pod is, unless it has ended."""
    gone = {"deletionTimestamp": MINUTE_AGO}
    running = cells("v1", "Pod", {"metadata": gone, "status": {"phase": "Running"}})
    ended = cells("v1", "Pod", {"metadata": gone, "status": {"phase": "Succeeded"}})
    assert (running[2], ended[2]) == ("Terminating", "Succeeded")


@pytest.mark.parametrize(
    ("spec", "status", "want_cells"),
    [
        pytest.param(
            {
                "type": "NodePort",
                "clusterIPs": ["10.96.0.9"],
                "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}],
            },
            {},
            ["NodePort", "10.96.0.9", "<none>", "80:30080/TCP,53/UDP", "60s", "<none>"],
            id="node port",
        ),
        pytest.param(
            {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "selector": {"b": "2", "a": "1"}},
            {},
            ["LoadBalancer", "10.96.0.9", "<pending>", "<none>", "60s", "a=1,b=2"],
            id="load balancer without address",
        ),
        pytest.param(
            {"type": "LoadBalancer", "externalIPs": ["192.0.2.7"]},
            {"loadBalancer": {"ingress": [{"hostname": "lb.example"}, {"ip": "192.0.2.1"}]}},
            ["LoadBalancer", "<none>", "192.0.2.1,lb.example,192.0.2.7", "<none>", "60s", "<none>"],
            id="load balancer with addresses",
        ),
        pytest.param(
            {"type": "ExternalName", "externalName": "db.example"},
            {},
            ["ExternalName", "<none>", "db.example", "<none>", "60s", "<none>"],
            id="alias",
        ),
    ],
)
def test_a_service_tells_where_it_is_reached(
    spec: dict[str, Any], status: dict[str, Any], want_cells: list[str]
) -> None:
    """Addresses inside and outside, and ports with their node ports."""
    assert cells("v1", "Service", {"spec": spec, "status": status}) == ["web", *want_cells]


@pytest.mark.parametrize(
    ("count", "want_shown"),
    [
        pytest.param(0, "<unset>", id="none"),
        pytest.param(3, "10.0.0.1,10.0.0.2,10.0.0.3", id="as many as fit"),
        pytest.param(5, "10.0.0.1,10.0.0.2,10.0.0.3 + 2 more...", id="more than fit"),
    ],
)
def test_a_slice_shows_three_endpoints(count: int, want_shown: str) -> None:
    """The first three addresses stand for all, with the number of the others."""
    endpoints = [{"addresses": [f"10.0.0.{index + 1}"]} for index in range(count)]
    item = {"addressType": "IPv4", "ports": [{"port": 80}], "endpoints": endpoints}
    want = ["web", "IPv4", "80", want_shown, "60s"]
    assert cells("discovery.k8s.io/v1", "EndpointSlice", item) == want


def test_a_node_tells_whether_it_takes_pods() -> None:
    """Readiness, what the node is for, and its addresses."""
    item = {
        "metadata": {"labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"},
        },
    }
    unknown = "<unknown>"
    want_seen = ["web", "Ready,SchedulingDisabled", "worker", "60s", "v1.36.3"]
    want_wide = ["192.0.2.1", "<none>", unknown, unknown, unknown]
    assert cells("v1", "Node", item) == [*want_seen, *want_wide]
