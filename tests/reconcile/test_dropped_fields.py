"""A server that does not keep what is written: no endless writes, and conditions that say so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.kube.cache import Cache
from keepclose.kube.requests import ENDPOINTS, SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.reconcile.dropped_fields import SliceGuard
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import PATIENCE, serving
from support.builders import endpoint_slice
from support.controllers import QUICK, World, world

PROGRAMMED = "TrafficDistributionProgrammed"
GATES = FeatureGates().with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
SETTINGS = replace(QUICK, plan=PlannerSettings(gates=GATES))
NO_NODE_HINTS = GATES.without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
DROPPED = (
    "the API server does not keep endpoints[].hints.forNodes as written; feature gate "
    "PreferSameTrafficDistribution is probably off there"
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Two zones with a pod in each, and a Service that prefers the node of its clients."""
    async with serving(tmp_path, gates=GATES) as api, world(api) as prepared:
        for number, zone in enumerate(("zone-a", "zone-b")):
            await prepared.add_node(f"n{number}", zone)
            await prepared.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
        await prepared.add_service(trafficDistribution="PreferSameNode")
        yield prepared


async def programmed(cluster: World) -> Condition:
    """Return the condition of the Service."""
    return next(
        condition for condition in await cluster.conditions() if condition.type == PROGRAMMED
    )


async def sync_often(cluster: World, controller: Controller) -> None:
    """Sync the Service ten times, as changes of its status and of nodes would."""
    for _ in range(10):
        for key in controller.caches.services:
            for part in controller.parts:
                part.queue.add(key)
        await cluster.settle(controller)


async def test_a_dropped_field_is_written_once_and_told(cluster: World) -> None:
    """Without its gate the server drops forNodes: one write, and Programmed is False."""
    cluster.api.server.writer.gates = NO_NODE_HINTS
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == ["POST endpointslices", "PATCH services/status"]
        condition = await programmed(cluster)
        assert (condition.status, condition.reason, condition.message) == (
            "False",
            "FieldDropped",
            DROPPED,
        )
        await sync_often(cluster, controller)
        assert cluster.wire.take() == []
        [stored] = await cluster.slices()
        assert stored.metadata.generation == 1


async def test_other_changes_of_the_slice_are_written_all_the_same(cluster: World) -> None:
    """A pod that is not ready any more costs one write, whatever the server drops of it."""
    cluster.api.server.writer.gates = NO_NODE_HINTS
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        await cluster.set_pod("p1", ip="10.0.0.2", ready=False)
        await cluster.settle(controller)
        assert cluster.wire.take() == ["PUT endpointslices"]
        [stored] = await cluster.slices()
        assert [endpoint.is_ready for endpoint in stored.endpoints] == [True, False]
        assert (await programmed(cluster)).reason == "FieldDropped"


async def test_a_running_controller_is_told_by_the_watch(cluster: World) -> None:
    """A gate that goes off while the controller runs is noticed at the next write."""
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert (await programmed(cluster)).status == "True"

        def drop_node_hints(body: dict[str, Any]) -> None:
            for endpoint in body.get("endpoints", ()):
                endpoint.get("hints", {}).pop("forNodes", None)

        cluster.wire.take()
        cluster.wire.alter = drop_node_hints
        await cluster.set_pod("p1", ip="10.0.0.2", ready=False)
        await cluster.settle(controller)
        await sync_often(cluster, controller)
        writes = cluster.wire.take()
        assert writes.count("PUT endpointslices") == 1
        assert (await programmed(cluster)).reason == "FieldDropped"


async def test_a_server_that_keeps_the_field_again_is_noticed(cluster: World) -> None:
    """The server is asked by dry runs now and then; its yes has all slices written."""
    cluster.api.server.writer.gates = NO_NODE_HINTS
    settings = replace(SETTINGS, recheck_s=(0.05, 0.05))
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        [stored] = await cluster.slices()
        assert stored.metadata.generation == 1
        cluster.api.server.writer.gates = GATES
        async with asyncio.timeout(PATIENCE):
            while (await programmed(cluster)).status != "True":  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        [stored] = await cluster.slices()
        assert all(
            endpoint.hints is not None and endpoint.hints.for_nodes for endpoint in stored.endpoints
        )
        asked = [request for request in cluster.wire.writes if ("dryRun", "All") in request.query]
        assert asked
        assert len(controller.services.writer.guard) == 0


async def test_after_an_outage_fields_are_rechecked_before_conditions_are_written(
    cluster: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Conditions report dropped fields; recoveries of several watches at once count as one."""
    settings = replace(SETTINGS, recheck_s=(3600.0, 3600.0))
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        services, steps, released = controller.services, list[str](), asyncio.Event()
        recheck, release = services.writer.guard.recheck, services.release_conditions

        async def record_recheck() -> None:
            await recheck()
            steps.append("rechecked")

        def record_release() -> None:
            release()
            steps.append("released")
            released.set()

        monkeypatch.setattr(services.writer.guard, "recheck", record_recheck)
        monkeypatch.setattr(services, "release_conditions", record_release)
        for reflector in controller.reflectors:
            reflector.failure_log.on_recovery()
        async with asyncio.timeout(PATIENCE):
            await released.wait()
        await cluster.settle(controller)
        assert steps == ["rechecked", "released"]


async def test_mirrored_slices_are_not_written_for_ever(cluster: World) -> None:
    """A field that is dropped from a mirrored slice is sent once."""

    def drop_hostnames(body: dict[str, Any]) -> None:
        for endpoint in body.get("endpoints", ()):
            endpoint.pop("hostname", None)

    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        cluster.wire.alter = drop_hostnames
        await cluster.add_service("plain", selector=None)
        await cluster.client.create(
            ENDPOINTS,
            {
                "metadata": {"name": "plain"},
                "subsets": [
                    {
                        "addresses": [{"ip": "10.7.0.1", "hostname": "one"}],
                        "ports": [{"name": "http", "port": 80}],
                    }
                ],
            },
            namespace=cluster.namespace,
        )
        await cluster.settle(controller)
        await sync_often(cluster, controller)
        # NB: a create is known to be altered only once the watch has told of it.
        assert cluster.wire.take() == ["POST endpointslices"]


async def test_conditions_that_the_server_alters_are_sent_once(cluster: World) -> None:
    """A server that changes a condition gets it once for each thing that there is to say."""

    def shorten(body: dict[str, Any]) -> None:
        for condition in body.get("status", {}).get("conditions", ()):
            condition["message"] = ""

    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        cluster.wire.alter = shorten
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": "PreferSameZone"}})
        await cluster.settle(controller)
        await sync_often(cluster, controller)
        assert cluster.wire.take() == ["PUT endpointslices", "PATCH services/status"]


def test_labels_of_ever_other_names_fill_no_memory() -> None:
    """A webhook that marks each write with another label is told of, and then forgotten."""

    async def keep(sent: EndpointSlice, _present: EndpointSlice) -> EndpointSlice:
        return sent

    guard = SliceGuard(Cache(), managed_by="keepclose", try_write=keep, on_due=lambda _key: None)
    sent = endpoint_slice()
    for number in range(2000):
        labels = {**sent.metadata.labels, f"mark-{number}": "x"}
        guard.record(sent, replace(sent, metadata=replace(sent.metadata, labels=labels)))
    assert len(guard) == 1
    assert len(guard._logged) <= 100
