"""The tour: what is waited for, what is seen, and what is told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.requests import SERVICES
from keepclose.lab.cluster.control import ControlServer, ReportProgress
from keepclose.lab.cluster.programs import LAB_GATES
from keepclose.lab.cluster.tour import Forecast, StepResult, Tour, TourError, forecast
from keepclose.lab.cluster.tour_steps import (
    TOUR_STEPS,
    ExpectedEndpoints,
    LabRequest,
    TourChange,
    TourStep,
    distribute,
)
from keepclose.lab.traffic.report import Busiest, TrafficReport, TrafficRow
from keepclose.model.endpointslice.types import Endpoint
from keepclose.routing.reasons import Reason, ReasonCode
from support.builders import endpoint, endpoint_slice, node, service
from support.server_processes import embedded_server

NODES = [node("n1", zone="zone-a"), node("n2", zone="zone-a"), node("n3", zone="zone-b")]


def placed(name: str, zone: str, number: int, *, on_node: bool = False) -> Endpoint:
    """Return an endpoint on a node, hinted for its zone and perhaps its node."""
    return endpoint(
        f"10.0.0.{number}",
        zone=zone,
        node_name=name,
        pod_name=f"p{number}",
        for_zones=(zone,),
        for_nodes=(name,) if on_node else (),
    )


def test_where_connections_would_go() -> None:
    """Every zone counts the same, and its nodes share what it sends."""
    wish = service(traffic_distribution="PreferSameZone")
    pieces = [endpoint_slice(placed("n1", "zone-a", 1), placed("n3", "zone-b", 2))]
    found = forecast(wish, pieces, NODES, gates=LAB_GATES)
    assert found == Forecast(
        {"zone-a": {"zone-a": 1.0}, "zone-b": {"zone-b": 1.0}}, 1.0, 0.75, 1.0, "zone-b"
    )


def test_where_connections_would_go_without_hints_for_a_zone() -> None:
    """Who has nothing near uses all endpoints."""
    wish = service(traffic_distribution="PreferSameZone")
    pieces = [endpoint_slice(placed("n1", "zone-a", 1), placed("n2", "zone-a", 2, on_node=False))]
    found = forecast(wish, pieces, NODES, gates=LAB_GATES)
    assert found.shares == {"zone-a": {"zone-a": 1.0}, "zone-b": {"zone-a": 1.0}}
    assert (found.in_zone, found.on_node, found.busiest) == (0.5, 0.25, 1.0)


def report(*, failed: int = 0, times: float = 1.5) -> TrafficReport:
    """Return a report of a run."""
    return TrafficReport(
        service="default/demo-svc",
        port="80/TCP",
        address="10.96.0.10:80",
        via="cluster-ip",
        mechanism="PreferSameZone",
        seconds=0.1,
        connections=900,
        failed=failed,
        failures={"refused": failed} if failed else {},
        as_expected=True,
        zones=("zone-a",),
        nodes=("n1",),
        rows=(),
        sources=(),
        in_zone=0.834,
        on_node=0.25,
        endpoints=5,
        busiest=Busiest("p1", "n5", "zone-c", times),
        notes=(),
    )


STORY = TourStep(
    "All words",
    (),
    ExpectedEndpoints({}),
    ("{reason}; {in_zone} {on_node} {busiest} {place} {before}", "{failed}; {field}"),
)
WHY = (Reason(ReasonCode.GATE_OFF, "the gate is off"),)


@pytest.mark.parametrize(
    ("traffic", "want", "is_fine"),
    [
        pytest.param(
            report(),
            ("the gate is off; 83 % 25 % 1.50x zone-c 2.00x", "no connection fails; PreferClose"),
            True,
            id="measured",
        ),
        pytest.param(
            report(failed=7),
            ("the gate is off; 83 % 25 % 1.50x zone-c 2.00x", "7 connections fail; PreferClose"),
            False,
            id="with failures",
        ),
        pytest.param(
            Forecast({}, 0.5, 1.0, 1.25, "zone-b"),
            ("the gate is off; 50 % 100 % 1.25x zone-b 2.00x", "no connection fails; PreferClose"),
            True,
            id="expected",
        ),
    ],
)
def test_the_story_of_a_step(
    traffic: TrafficReport | Forecast, want: tuple[str, ...], is_fine: bool
) -> None:
    """Lines are filled with what was seen."""
    wish = service(traffic_distribution="PreferClose")
    sight = StepResult(STORY, (), wish, WHY, traffic, report(times=2.0))
    assert sight.story == want
    assert sight.is_fine is is_fine


def test_every_story_can_be_told() -> None:
    """No step asks for a figure that does not exist, and none is longer than three lines."""
    for step in TOUR_STEPS:
        sight = StepResult(step, (), service(), WHY, report(), report())
        assert 2 <= len(sight.story) <= 3
        assert not any("{" in line for line in sight.story)


def test_what_does_not_come_true_is_told(tmp_path: Path) -> None:
    """Hints that do not come, objects that are not there and a lab that does not answer."""
    with embedded_server(tmp_path / "data") as server:
        tour = Tour(server.directory, has_packets=False, timeout_s=0.3)
        with pytest.raises(TourError) as late:
            tour.take(TourStep("late", (), ExpectedEndpoints({"zone-a": 2}), ()))
        with pytest.raises(TourError, match='services "demo-svc" not found') as missing:
            tour.take(TourStep("missing", (distribute(None),), ExpectedEndpoints({}), ()))
        with pytest.raises(TourError, match="no cluster runs in") as silent:
            tour.take(
                TourStep(
                    "silent", (TourChange("", LabRequest("heal", {})),), ExpectedEndpoints({}), ()
                )
            )
    assert str(late.value) == (
        "the endpoints of demo-svc are not as they should be after 0.3 s: "
        "pods are in no zone, not in zone-a (2)"
    )
    assert (late.value.code, missing.value.code, silent.value.code) == (1, 4, 4)


async def test_runs_during_which_nodes_follow_a_change_are_repeated(tmp_path: Path) -> None:
    """They prove nothing of where connections go afterwards."""
    settled = Busiest("p1", "n5", "zone-c", 1.5, expected=1.4)
    late = Busiest("p1", "n5", "zone-c", 1.9, expected=1.4, is_beyond_chance=True)
    row = TrafficRow(
        source="zone-a",
        connections=300,
        answered={"zone-a": 221, "zone-b": 59, "zone-c": 20},
        expected={"zone-a": 1 / 2, "zone-b": 1 / 3, "zone-c": 1 / 6},
        failures={},
        expected_failures={},
        fault="",
        reasons=(),
    )
    runs = [
        report(),
        msgspec.structs.replace(report(), busiest=late),
        msgspec.structs.replace(report(), busiest=settled, rows=(row,)),
        msgspec.structs.replace(report(), busiest=settled),
    ]

    async def traffic(_params: dict[str, Any], _tell: ReportProgress) -> dict[str, Any]:
        run: dict[str, Any] = msgspec.to_builtins(runs.pop(0))
        return run

    async def gates(_params: dict[str, Any], _tell: ReportProgress) -> dict[str, Any]:
        return {"gates": {"controller": []}}

    with embedded_server(tmp_path / "data") as server:
        settings = load_connection_settings(server.kubeconfig)
        async with connect(settings, clock=SystemClock(), user_agent="test") as client:
            await client.create(SERVICES, service(name="demo-svc"), namespace="default")
        handlers = {"traffic": traffic, "gates": gates}
        control = ControlServer(server.directory / "lab.sock", handlers)
        await control.start()
        try:
            tour = Tour(server.directory, has_packets=True)
            sight = await asyncio.to_thread(
                tour.take, TourStep("change", (), ExpectedEndpoints({}), ())
            )
        finally:
            await control.stop()
    assert isinstance(sight.traffic, TrafficReport)
    assert sight.traffic.busiest == settled
    assert runs == []
