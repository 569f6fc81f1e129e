"""What users are told: events, conditions, and mirrored Endpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.kube.requests import ENDPOINT_SLICES, ENDPOINTS, EVENTS, NAMESPACES, SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import Condition
from keepclose.model.well_known import (
    MANAGED_BY_LABEL,
    MIRRORING_CONTROLLER,
    TOPOLOGY_MODE_ANNOTATION,
)
from keepclose.reconcile.settings import ControllerSettings
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.controllers import World, world

GATES = FeatureGates().with_gates(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
SETTINGS = ControllerSettings(
    plan=PlannerSettings(gates=GATES), slice_delay_s=0.01, retry_delay_s=0.01, most_retries=2
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones of one node each, and a pod on each."""
    async with serving(tmp_path) as api, world(api) as prepared:
        for number in range(3):
            await prepared.add_node(f"n{number}", f"zone-{'abc'[number]}")
            await prepared.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
        yield prepared


MIRRORING = "endpoint-slice-mirroring-controller"


async def events_of(
    cluster: World, component: str = "endpoint-slice-controller"
) -> list[tuple[str, str, str, int]]:
    """Return type, reason, message and count of all events of a component, oldest first."""
    page = await cluster.client.list_all(EVENTS, namespace="default")
    events = [event for event in page.items if event.source.component == component]
    events.sort(key=lambda event: event.metadata.name)
    return [(event.type, event.reason, event.message, event.count) for event in events]


async def conditions_of(cluster: World) -> dict[str, tuple[str, str]]:
    """Return status and reason of the Service's conditions."""
    service = await cluster.client.get(SERVICES, "web", namespace="default")
    return {
        condition.type: (condition.status, condition.reason)
        for condition in service.status.conditions
    }


async def test_a_topology_event_is_told_once(cluster: World) -> None:
    """The same news is not told with every sync; other news is."""
    await cluster.add_service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        await cluster.set_pod("p0", ip="10.0.0.1", ready=False)
        await cluster.settle(controller)
        for label in ("one", "two", "three"):
            await cluster.change(SERVICES, "web", {"metadata": {"labels": {"touched": label}}})
            await cluster.settle(controller)
        await controller._recorder.flush()
        assert await events_of(cluster) == [
            (
                "Normal",
                "TopologyAwareHintsEnabled",
                "Topology Aware Hints has been enabled, addressType: IPv4",
                1,
            ),
            (
                "Warning",
                "TopologyAwareHintsDisabled",
                "Insufficient number of endpoints (2 endpoints, 3 zones), addressType: IPv4",
                1,
            ),
        ]


async def test_a_pod_on_an_unknown_node_is_told_and_mended(cluster: World) -> None:
    """The others are served meanwhile; the pod is when its node appears."""
    await cluster.add_service()
    await cluster.add_pod("p9", "n9", ip="10.0.0.9")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        [endpoint_slice] = await cluster.slices()
        assert [endpoint.addresses[0] for endpoint in endpoint_slice.endpoints] == [
            "10.0.0.1",
            "10.0.0.2",
            "10.0.0.3",
        ]
        await controller._recorder.flush()
        [(kind, reason, message, count)] = await events_of(cluster)
        assert (kind, reason) == ("Warning", "FailedToUpdateEndpointSlices")
        assert message == (
            "Error updating Endpoint Slices for Service default/web: "
            "skipping Pod p9 for Service default/web: Node n9 Not Found"
        )
        assert count == 1 + 2
        await cluster.add_node("n9", "zone-a")
        await cluster.settle(controller)
        assert sum(len(endpoint_slice.endpoints) for endpoint_slice in await cluster.slices()) == 4


async def test_conditions_follow_the_wish_and_the_hints(cluster: World) -> None:
    """Behind the gate a Service says whether its traffic distribution is in force."""
    await cluster.add_service(trafficDistribution="PreferSameZone")
    foreign = {
        "type": "example.dev/Other",
        "status": "Unknown",
        "reason": "Because",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"status": {"conditions": [foreign]}}
    await cluster.client.patch(SERVICES, "web", status, namespace="default", subresource="status")
    other = {"example.dev/Other": ("Unknown", "Because")}
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        assert await conditions_of(cluster) == {
            **other,
            "TrafficDistributionAccepted": ("True", "Accepted"),
            "TrafficDistributionProgrammed": ("True", "HintsPopulated"),
        }
        patches = [request for request in cluster.wire.writes if request.method == "PATCH"]
        assert len(patches) == 1
        await cluster.label_node("n0", None)
        await cluster.settle(controller)
        assert (await conditions_of(cluster))["TrafficDistributionProgrammed"] == (
            "False",
            "MissingTopology",
        )
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert await conditions_of(cluster) == other


async def test_a_failed_write_shows_in_the_conditions(cluster: World) -> None:
    """Hints that could not be written are not said to be programmed."""
    await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        cluster.wire.refused = "PUT"
        await cluster.label_node("n0", "zone-b")
        await cluster.settle(controller)
        assert (await conditions_of(cluster))["TrafficDistributionProgrammed"] == (
            "False",
            "WriteFailed",
        )


async def test_without_the_gate_no_status_is_written(cluster: World) -> None:
    """The conditions are nobody's business unless asked for."""
    await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
    service = await cluster.client.get(SERVICES, "web", namespace="default")
    want: tuple[Condition, ...] = ()
    assert service.status.conditions == want


async def test_endpoints_of_a_service_without_selector_are_mirrored(cluster: World) -> None:
    """Mirrored slices follow the Endpoints, and go when the Service gets a selector."""
    await cluster.add_service("ext", selector=None)
    body = {
        "metadata": {"name": "ext"},
        "subsets": [
            {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"name": "http", "port": 8080}]}
        ],
    }
    await cluster.client.create(ENDPOINTS, body, namespace="default")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        [endpoint_slice] = await cluster.slices("ext")
        assert endpoint_slice.metadata.labels[MANAGED_BY_LABEL] == MIRRORING_CONTROLLER
        assert [endpoint.addresses for endpoint in endpoint_slice.endpoints] == [("192.0.2.1",)]
        more = [{"addresses": [{"ip": "192.0.2.2"}], "ports": [{"name": "http", "port": 8080}]}]
        await cluster.change(ENDPOINTS, "ext", {"subsets": more})
        await cluster.settle(controller)
        [endpoint_slice] = await cluster.slices("ext")
        assert [endpoint.addresses for endpoint in endpoint_slice.endpoints] == [("192.0.2.2",)]
        await cluster.change(ENDPOINT_SLICES, endpoint_slice.metadata.name, {"endpoints": []})
        await cluster.settle(controller)
        [endpoint_slice] = await cluster.slices("ext")
        assert [endpoint.addresses for endpoint in endpoint_slice.endpoints] == [("192.0.2.2",)]
        await cluster.change(SERVICES, "ext", {"spec": {"selector": {"app": "web"}}})
        await cluster.settle(controller)
        managers = {
            endpoint_slice.metadata.labels[MANAGED_BY_LABEL]
            for endpoint_slice in await cluster.slices("ext")
        }
        assert managers == {"endpointslice-controller.k8s.io"}


async def test_addresses_that_cannot_be_mirrored_are_told_once(cluster: World) -> None:
    """Endpoints with more addresses than the limit say so on the object, and only when new."""
    await cluster.add_service("ext", selector=None)
    addresses = [{"ip": f"192.0.2.{number}"} for number in range(1, 6)]
    body = {
        "metadata": {"name": "ext"},
        "subsets": [{"addresses": addresses, "ports": [{"name": "http", "port": 8080}]}],
    }
    await cluster.client.create(ENDPOINTS, body, namespace="default")
    settings = replace(SETTINGS, mirroring_max=3)
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        await cluster.change(ENDPOINTS, "ext", {"metadata": {"labels": {"touched": "yes"}}})
        await cluster.settle(controller)
        [endpoint_slice] = await cluster.slices("ext")
        assert (len(endpoint_slice.endpoints), endpoint_slice.metadata.labels["touched"]) == (
            3,
            "yes",
        )
        await controller._mirroring_recorder.flush()
        message = (
            "A max of 3 addresses can be mirrored to EndpointSlices per Endpoints subset. "
            "2 addresses were skipped"
        )
        assert await events_of(cluster, MIRRORING) == [
            ("Warning", "TooManyAddressesToMirror", message, 1)
        ]
        assert await events_of(cluster) == []
        await cluster.remove(ENDPOINTS, "ext")
        await cluster.settle(controller)
        assert await cluster.slices("ext") == []


async def test_a_mirrored_slice_that_cannot_be_written_is_told(cluster: World) -> None:
    """The Endpoints say so, and the next change brings it about."""
    await cluster.add_service("ext", selector=None)
    async with cluster.controlled(SETTINGS) as controller:
        cluster.wire.refused = "POST"
        subset = {"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 8080}]}
        body = {"metadata": {"name": "ext"}, "subsets": [subset]}
        await cluster.client.create(ENDPOINTS, body, namespace="default")
        await cluster.settle(controller)
        await controller._mirroring_recorder.flush()
        [(kind, reason, message, count)] = await events_of(cluster, MIRRORING)
        assert (kind, reason, count) == ("Warning", "FailedToUpdateEndpointSlices", 3)
        assert message == (
            "Error updating Endpoint Slices for Endpoints default/ext: "
            "failed to create EndpointSlice for Endpoints default/ext: "
            "wire: cut before the request was served"
        )
        cluster.wire.refused = ""
        await cluster.change(ENDPOINTS, "ext", {"metadata": {"labels": {"touched": "yes"}}})
        await cluster.settle(controller)
        assert len(await cluster.slices("ext")) == 1


async def test_a_namespace_that_is_going_ends_writes_without_a_word(cluster: World) -> None:
    """A slice that cannot be created any more is no failure."""
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "going"}})
    body = {
        "metadata": {"name": "web", "finalizers": ["example.dev/hold"]},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }
    await cluster.client.create(SERVICES, body, namespace="going")
    await cluster.client.delete(NAMESPACES, "going")
    async with cluster.controlled(SETTINGS) as controller:
        await cluster.settle(controller)
        await controller._recorder.flush()
        page = await cluster.client.list_all(EVENTS)
        assert [event.message for event in page.items] == []
    await cluster.client.patch(
        SERVICES, "web", {"metadata": {"finalizers": None}}, namespace="going"
    )
