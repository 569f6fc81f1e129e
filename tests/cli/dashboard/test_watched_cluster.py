"""What the dashboard follows of a cluster, also where a part of it fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from keepclose.cli.dashboard.feed import Feed
from keepclose.cli.dashboard.watched_cluster import STATUS_TOPIC, WatchedCluster
from keepclose.kube.auth.kubeconfig import load_connection_settings
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import connect
from keepclose.kube.errors import Unauthorized
from keepclose.kube.transport.retries import Retries
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.heuristics import HeuristicRegistry
from keepclose.runtime.program import Parts
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, Served, serving
from support.dashboards import SERVICE_PATH, SLICE_PATH, create_zones, service_object, slice_object


class FaultyRegistry(dict[str, object]):
    """Heuristics that cannot be asked for."""

    def __contains__(self, key: object) -> bool:
        raise LookupError("of this registry")


@asynccontextmanager
async def watching(
    api: Served, settings: PlannerSettings, *, token: str = ""
) -> AsyncIterator[tuple[WatchedCluster, Feed, Parts]]:
    """Follow a cluster with the rights of a token for the time of the block."""
    connection = load_connection_settings(api.server.kubeconfig)
    user = msgspec.structs.replace(connection.user, token=token or api.token, token_file="")
    clock, feed = SystemClock(), Feed()
    made = msgspec.structs.replace(connection, user=user)
    async with connect(made, clock=clock, retries=Retries(max_elapsed=0.0)) as client:
        cluster = WatchedCluster("test", settings, feed=feed, clock=clock)
        parts = Parts((cluster.run(client),))
        try:
            yield cluster, feed, parts
        finally:
            await parts.stop()


async def test_a_service_that_cannot_be_described_does_not_hide_others(tmp_path: Path) -> None:
    """Its row says so, and the failure is logged."""
    registry: HeuristicRegistry = FaultyRegistry()  # type: ignore[assignment]
    gates = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
    settings = PlannerSettings(gates=gates, heuristics=registry)
    async with serving(tmp_path, gates=gates) as api:
        await create_zones(api)
        value = "example.com/nearest"
        odd = service_object("odd")
        odd["metadata"]["annotations"] = {"keepclose.dev/traffic-distribution": value}
        await api.create(SERVICE_PATH, odd)
        await api.create(SERVICE_PATH, service_object("web"))
        await api.create(SLICE_PATH, slice_object("web-1", {"10.0.0.1": "zone-a!"}))
        with capture_logs() as logs:
            async with watching(api, settings) as (
                cluster,
                feed,
                parts,
            ):
                async with asyncio.timeout(PATIENCE):
                    await parts.until(cluster.complete.wait())
        states = {
            name: msgspec.json.decode(feed.find("services", name) or b"")["row"]["state"]
            for name in ("default/odd", "default/web")
        }
        assert states == {"default/odd": "unknown", "default/web": "unhinted"}
        assert [log["service"] for log in logs if log["event"] == "Service not described"] == [
            "default/odd"
        ]


async def test_without_rights_to_services_it_ends(tmp_path: Path) -> None:
    """Nothing could be shown, and waiting would not change that."""
    async with serving(tmp_path) as api:
        await create_zones(api, ("zone-a",))
        settings = PlannerSettings()
        async with watching(api, settings, token="another") as (cluster, _, parts):  # noqa: S106 - no secret
            with pytest.raises(Unauthorized):
                async with asyncio.timeout(PATIENCE):
                    await parts.until(cluster.complete.wait())


async def test_without_rights_to_events_the_rest_is_shown(tmp_path: Path) -> None:
    """The status says what is missing, and pages are complete."""
    async with serving(tmp_path, nodes=("zone-a-1",)) as api:
        await create_zones(api)
        await api.create(SERVICE_PATH, service_object("web"))
        settings = PlannerSettings()
        token = api.token_of("node-zone-a-1")
        async with watching(api, settings, token=token) as (cluster, feed, parts):
            async with asyncio.timeout(PATIENCE):
                await parts.until(cluster.complete.wait())
                stream = feed.open_stream()
                while b"cannot be read" not in bytes(feed.find(STATUS_TOPIC, "") or b""):
                    await parts.until(stream.until_changed(PATIENCE))
                    stream.take()
            page = await cluster.read_page(NamespacedName("default", "web"))
        assert page is not None
        assert page.mechanism == "None"
