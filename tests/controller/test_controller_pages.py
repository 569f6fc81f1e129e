"""What a controller shows over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from keepclose.controller.process import serve_controller
from keepclose.kube.auth.kubeconfig import load_kubeconfig
from keepclose.kube.clock import SystemClock
from keepclose.model.meta import NamespacedName
from keepclose.reconcile.instrumentation import describe_plan
from keepclose.reconcile.settings import ControllerSettings
from keepclose.runtime.pages import ListenAddress, controller_pages
from keepclose.runtime.program import ReadyMessage
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.builders import node, pod, service

PLAN = plan_service(
    service("web", traffic_distribution="PreferSameZone"),
    pods=[pod("p1", "n1", ip="10.0.0.1")],
    cluster=ClusterNodes.of([node("n1", "zone-a")]),
    settings=PlannerSettings(),
)


class Running:
    """Pages on a port, of a controller that can be made ready."""

    def __init__(self) -> None:
        self.ready = False
        self.url = ""

    def explain(self, key: NamespacedName) -> ServicePlan | None:
        """Know one Service."""
        return PLAN if key == NamespacedName("default", "web") else None


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Serve the pages."""
    state = Running()
    pages = controller_pages(
        metrics=lambda: b"a 1\n",
        is_ready=lambda: state.ready,
        explain=lambda key: describe_plan(state.explain(key)),
    )
    state.url = f"http://127.0.0.1:{await pages.start('127.0.0.1', 0)}"
    yield state
    await pages.stop()


async def _get(running: Running, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(running.url + path) as answer:
        return answer.status, await answer.text()


async def test_health_metrics_and_readiness(running: Running) -> None:
    """A controller is healthy from the start and ready when its caches are complete."""
    assert await _get(running, "/healthz") == (200, "ok")
    assert await _get(running, "/metrics") == (200, "a 1\n")
    assert await _get(running, "/readyz") == (503, "the caches are not complete yet")
    running.ready = True
    assert await _get(running, "/readyz") == (200, "ok")


async def test_a_decision_can_be_asked_for(running: Running) -> None:
    """The page of a Service says what governs it and why; an unknown one is not there."""
    status, text = await _get(running, "/debug/services/default/web")
    assert status == 200
    assert '"name": "PreferSameZone"' in text
    status, text = await _get(running, "/debug/services/default/none")
    assert (status, text) == (404, "Service default/none is not known, or has no selector")


def test_a_plan_is_described_with_its_reasons() -> None:
    """Mechanism, source, reasons and what would be written."""
    found = describe_plan(PLAN)
    assert found is not None
    assert found["strategy"] == {"name": "PreferSameZone", "source": "spec.trafficDistribution"}
    assert [one["code"] for one in found["reasons"]] == [
        reason.code.value for reason in (*PLAN.strategy.reasons, *PLAN.reasons)
    ]
    writes = {"create": 1, "update": 0, "delete": 0, "unchanged": 0}
    assert found["writes"] == {"IPv4": writes}
    assert found["endpoints"] == 1


async def test_a_whole_controller_tells_of_itself(tmp_path: Path) -> None:
    """Started as a process is, it becomes ready, counts its syncs and explains a decision."""
    wanted = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"port": 80}],
            "trafficDistribution": "PreferSameZone",
        },
    }
    told: asyncio.Queue[ReadyMessage] = asyncio.Queue()
    async with serving(tmp_path / "data") as api:
        await api.create("/api/v1/namespaces/default/services", wanted)
        running = asyncio.ensure_future(
            serve_controller(
                ControllerSettings(),
                load_kubeconfig(tmp_path / "data" / "controller.kubeconfig"),
                leader_elect=True,
                clock=SystemClock(),
                listening=ListenAddress("127.0.0.1", 0),
                on_ready=told.put_nowait,
            )
        )
        state = Running()
        state.url = (await told.get()).pages
        success = 'endpoint_slice_controller_syncs{result="success"} 1\n'
        async with asyncio.timeout(PATIENCE):
            while success not in (await _get(state, "/metrics"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert await _get(state, "/readyz") == (200, "ok")
        status, text = await _get(state, "/debug/services/default/web")
        assert status == 200
        assert '"source": "spec.trafficDistribution"' in text
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
