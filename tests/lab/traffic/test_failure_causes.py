"""What is wrong with a Service or its pods when connections fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.lab.traffic.failure_causes import (
    explain_ignored_fields,
    explain_missing_hints,
    explain_plan,
    find_causes,
)
from keepclose.model.gates import FeatureGates, Gate, parse_gates
from keepclose.model.meta import Condition
from keepclose.model.service.types import Service
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.routing.balanced import BALANCED
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.strategy import choose_strategy

READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
CRASHING = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
}
HTTP = {"name": "http", "containerPort": 8080, "protocol": "TCP"}


def a_service(
    selector: dict[str, str] | None, target: int | str | None = 8080, **spec: Any
) -> Service:
    """Return a Service of one port."""
    ports = [{"port": 80, "protocol": "TCP", "targetPort": target}]
    raw = {
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": selector, "ports": ports, **spec},
    }
    return msgspec.convert(raw, Service)


def a_pod(
    app: str = "web", status: dict[str, Any] = READY, ports: tuple[dict[str, Any], ...] = (HTTP,)
) -> WorkloadPod:
    """Return a pod of one container."""
    raw = {
        "metadata": {"name": "p1", "namespace": "shop", "labels": {"app": app}},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "ports": list(ports)}]},
        "status": status,
    }
    return msgspec.convert(raw, WorkloadPod)


@pytest.mark.parametrize(
    ("service", "pods", "want"),
    [
        pytest.param(a_service({"app": "web"}), [a_pod()], [], id="all is well"),
        pytest.param(
            a_service({"app": "wbe"}),
            [a_pod()],
            ["no pod in namespace shop matches the selector app=wbe; there are pods with app=web"],
            id="a selector with a slip",
        ),
        pytest.param(
            a_service({"app": "web", "tier": "x"}),
            [],
            ["no pod in namespace shop matches the selector app=web,tier=x"],
            id="no pods at all",
        ),
        pytest.param(
            a_service({"app": "web"}),
            [a_pod(status={"phase": "Succeeded"})],
            ["no pod in namespace shop matches the selector app=web"],
            id="pods that ended are none",
        ),
        pytest.param(
            a_service({"app": "web"}, "htpt"),
            [a_pod(), a_pod()],
            [
                (
                    "no container of the 2 matching pods has a TCP port named htpt, the "
                    "targetPort; they have http (8080/TCP)"
                )
            ],
            id="a name that no container has",
        ),
        pytest.param(
            a_service({"app": "web"}, "http"),
            [a_pod(ports=())],
            [
                (
                    "no container of the only matching pod has a TCP port named http, the "
                    "targetPort; they name none"
                )
            ],
            id="containers without names",
        ),
        pytest.param(a_service({"app": "web"}, "http"), [a_pod()], [], id="the right name"),
        pytest.param(
            a_service({"app": "web"}, 9999),
            [a_pod(), a_pod()],
            [
                (
                    "no container of the 2 matching pods listens at targetPort 9999/TCP; they "
                    "listen at 8080/TCP"
                )
            ],
            id="a number at which nothing listens",
        ),
        pytest.param(
            a_service({"app": "web"}, 9376), [a_pod(ports=())], [], id="a port that every pod has"
        ),
        pytest.param(
            a_service({"app": "web"}),
            [a_pod(status=CRASHING), a_pod(status=CRASHING)],
            ["none of the 2 matching pods is ready: CrashLoopBackOff (container main)"],
            id="pods that crash",
        ),
        pytest.param(
            a_service(None),
            [a_pod()],
            ["the Service has no selector, so its endpoints are those of manually created slices"],
            id="no selector",
        ),
    ],
)
def test_causes(service: Service, pods: list[WorkloadPod], want: list[str]) -> None:
    """Each names the field or the pods that are to blame."""
    assert find_causes(service, service.spec.ports[0], pods) == want


@pytest.mark.parametrize(
    ("service", "endpoints", "want"),
    [
        pytest.param(
            a_service({"app": "web"}, trafficDistribution="PreferSameZone"),
            [PortEndpoint("10.0.0.1", 80), PortEndpoint("10.0.0.2", 80)],
            "PreferSameZone works by hints, and none of the 2 ready endpoints has one, so every "
            "node uses all of them",
            id="no hints",
        ),
        pytest.param(
            a_service(None, trafficDistribution="PreferSameZone"),
            [PortEndpoint("10.0.0.1", 80)],
            "PreferSameZone works by hints, and the only ready endpoint has none, so every node "
            "uses it; the Service has no selector, so no controller writes hints into its slices",
            id="slices made by hand",
        ),
        pytest.param(
            a_service({"app": "web"}, trafficDistribution="PreferSameZone"),
            [PortEndpoint("10.0.0.1", 80, zone_hints=("zone-a",))],
            "",
            id="there are hints",
        ),
        pytest.param(
            a_service({"app": "web"}), [PortEndpoint("10.0.0.1", 80)], "", id="none are meant"
        ),
        pytest.param(
            a_service({"app": "web"}, trafficDistribution="PreferSameZone"),
            [PortEndpoint("10.0.0.1", 80, ready=False)],
            "",
            id="nothing is ready",
        ),
    ],
)
def test_missing_hints(service: Service, endpoints: list[PortEndpoint], want: str) -> None:
    """Only a mechanism that works by hints is told to have none."""
    strategy = choose_strategy(service, gates=FeatureGates())
    assert explain_missing_hints(service, strategy, endpoints) == want


@pytest.mark.parametrize(
    ("value", "status", "want"),
    [
        pytest.param("keepclose.dev/Balanced", "True", "all 9 are hinted; measured", id="written"),
        pytest.param("keepclose.dev/Balanced", "False", "", id="not written"),
        pytest.param("PreferSameZone", "True", "", id="no heuristic"),
    ],
)
def test_a_plan_is_explained_by_its_controller(value: str, status: str, want: str) -> None:
    """What is written for a heuristic, and by which demand, is in the condition of the Service."""
    service = a_service({"app": "web"}, trafficDistribution=value)
    condition = Condition(
        "TrafficDistributionProgrammed", status, message="all 9 are hinted; measured"
    )
    service = replace(service, status=replace(service.status, conditions=(condition,)))
    gates = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
    heuristics = {"keepclose.dev/Balanced": BALANCED}
    strategy = choose_strategy(service, gates=gates, heuristics=heuristics)
    assert explain_plan(service, strategy) == want


@pytest.mark.parametrize(
    ("value", "gates", "want"),
    [
        pytest.param("PreferSameZone", "", [], id="it governs"),
        pytest.param(
            "PreferSameZone",
            "ServiceTrafficDistribution=false",
            [
                (
                    "spec.trafficDistribution: PreferSameZone is ignored because feature gate "
                    "ServiceTrafficDistribution is off"
                )
            ],
            id="a gate is off",
        ),
        pytest.param(
            "example.dev/LendOne",
            "TrafficDistributionCustomHeuristics=true",
            [
                (
                    "spec.trafficDistribution: 'example.dev/LendOne' is treated as absent because "
                    "no heuristic of that name is registered"
                )
            ],
            id="a heuristic that is not installed",
        ),
    ],
)
def test_ignored_wishes(value: str, gates: str, want: list[str]) -> None:
    """A field that is set and does not govern is never passed over in silence."""
    service = a_service({"app": "web"}, trafficDistribution=value)
    strategy = choose_strategy(service, gates=parse_gates(gates))
    assert explain_ignored_fields(strategy) == want
