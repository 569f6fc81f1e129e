"""KEP-2004: Observability, Graduation Criteria and Version Skew Strategy, one test a statement.

Left out: drawbacks and alternatives, which compare designs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.requests import SERVICES
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import DEFAULT_GATES, Gate
from keepclose.model.well_known import (
    FOR_ZONE_LABEL,
    SERVICE_NAME_LABEL,
    SUBSETTING_ANNOTATION,
)
from keepclose.routing.port_endpoints import NodeView
from keepclose.testing.api_server import serving
from support.builders import endpoint, endpoint_slice, service
from support.controllers import World, world
from support.live.sights import groups, quick
from support.proposals.planned_services import select_on
from support.proposals.proposalworlds import add_three_zones
from support.proposals.subset_services import SUBSETTING, A, B, C, subsetted

OLD_PROXY = SUBSETTING.without(Gate.ENDPOINT_SLICE_SUBSETTING)
PREFIX = "endpoint_slice_controller_"
APPROACHES = ("Auto", "Require", "Random", None)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones of a node with four pods each, behind a server in this process."""
    async with serving(tmp_path) as api, world(api) as found:
        await add_three_zones(found)
        yield found


class Observed:
    """The metrics of a controller that runs."""

    def __init__(self) -> None:
        self.metrics = ControllerMetrics(max_endpoints=100)

    def value(self, name: str, **labels: str) -> float | None:
        """Return a figure of the EndpointSlice controller."""
        return self.metrics.registry.get_sample_value(PREFIX + name, labels)


async def annotate(cluster: World, value: str) -> None:
    """Set the annotation of the Service."""
    patch = {"metadata": {"annotations": {SUBSETTING_ANNOTATION: value}}}
    await cluster.change(SERVICES, "web", patch)


async def test_kep2004_observability_known_metrics_are_reused(cluster: World) -> None:
    """Observability: metrics of before show the addition and deletion of endpoints."""
    observed = Observed()
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Auto"})
    async with cluster.controlled(quick(SUBSETTING), observer=observed.metrics) as controller:
        await cluster.settle(controller)
        assert observed.value("endpoints_added_per_sync_sum") == 12
        await cluster.end_pod("p0", grace=0)
        await cluster.settle(controller)
        assert observed.value("endpoints_removed_per_sync_sum") == 1


async def test_kep2004_observability_changed_slices_by_approach(cluster: World) -> None:
    """Observability: changes_endpointslices_per_sync counts changed slices by approach."""
    observed = Observed()
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Auto"})
    async with cluster.controlled(quick(SUBSETTING), observer=observed.metrics) as controller:
        await cluster.settle(controller)
        name = "changes_endpointslices_per_sync_sum"
        assert observed.value(name, approach="Prefer") == 3
        await annotate(cluster, "Require")
        await cluster.settle(controller)
        assert observed.value(name, approach="Require") is not None


async def test_kep2004_observability_reallocated_endpoints(cluster: World) -> None:
    """Observability: reallocated_endpoints_per_sync counts endpoints moved to other zones."""
    observed = Observed()
    await cluster.add_service()
    async with cluster.controlled(quick(SUBSETTING), observer=observed.metrics) as controller:
        await cluster.settle(controller)
        await annotate(cluster, "Auto")
        await cluster.settle(controller)
        assert set(groups(await cluster.slices()).values()) == {A, B, C}
        assert observed.value("reallocated_endpoints_per_sync_sum") == 0
        # Zone a gets eight more and gives to the others what they lack.
        for number in range(12, 20):
            await cluster.add_pod(f"p{number}", "n-a", ip=f"10.0.0.{number + 1}")
        for number in (1, 2, 4, 5, 7, 8):
            await cluster.end_pod(f"p{number}", grace=0)
        await cluster.settle(controller)
        slices = await cluster.slices()
        moved = sum(
            endpoint.zone != one.metadata.labels[FOR_ZONE_LABEL]
            for one in slices
            for endpoint in one.endpoints
        )
        assert moved > 0
        assert (observed.value("reallocated_endpoints_per_sync_sum") or 0) >= 1


async def test_kep2004_observability_total_endpoints(cluster: World) -> None:
    """Observability: the number of all endpoints is shown by the metric of before.

    The proposal calls it total_endpoints; Kubernetes has it as endpoints_desired.
    """
    observed = Observed()
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Auto"})
    async with cluster.controlled(quick(SUBSETTING), observer=observed.metrics) as controller:
        await cluster.settle(controller)
        assert observed.value("endpoints_desired") == 12


async def test_kep2004_observability_the_subsystem(cluster: World) -> None:
    """Observability: the subsystem of the metrics is endpoint_slice_controller, both histograms."""
    observed = Observed()
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Auto"})
    async with cluster.controlled(quick(SUBSETTING), observer=observed.metrics) as controller:
        await cluster.settle(controller)
    kinds = {family.name: family.type for family in observed.metrics.registry.collect()}
    for name in ("changes_endpointslices_per_sync", "reallocated_endpoints_per_sync"):
        assert kinds[f"endpoint_slice_controller_{name}"] == "histogram"


async def test_kep2004_graduation_no_new_fields(cluster: World) -> None:
    """Graduation Criteria: the change kicks in without any new fields being added to slices."""
    await cluster.add_service()
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    fields = []
    async with cluster.controlled(quick(SUBSETTING)) as controller:
        for value in ("Random", "Auto"):
            await annotate(cluster, value)
            await cluster.settle(controller)
            items = (await cluster.api.get(path))["items"]
            fields.append(
                {
                    key
                    for item in items
                    for part in (item, *item["endpoints"])
                    for key in part
                    if item["metadata"]["labels"].get(SERVICE_NAME_LABEL) == "web"
                }
            )
        assert set(groups(await cluster.slices()).values()) == {A, B, C}
    assert fields[0] == fields[1]


def test_kep2004_version_skew_old_controller() -> None:
    """Version Skew 1: a controller that does not label slices leaves proxies with all of them."""
    planned = subsetted("Auto", gates=DEFAULT_GATES, a=4, b=4, c=4)
    assert planned.groups() == {"": 12}
    assert all(len(planned.used(name, SUBSETTING)) == 12 for name in ("a1", "b1", "c1"))


def test_kep2004_version_skew_same_zone_or_no_label() -> None:
    """Version Skew 1: kube-proxy consumes slices of its zone and those with no zone label."""
    slices = [
        endpoint_slice(endpoint("10.0.0.1"), name="web-1"),
        endpoint_slice(endpoint("10.0.0.2"), name="web-2", labels={FOR_ZONE_LABEL: A}),
        endpoint_slice(endpoint("10.0.0.3"), name="web-3", labels={FOR_ZONE_LABEL: B}),
    ]
    found = select_on(service(), slices, NodeView("n1", A), SUBSETTING).internal.endpoints
    assert [one.address for one in found] == ["10.0.0.1", "10.0.0.2"]


def test_kep2004_version_skew_old_proxy() -> None:
    """Version Skew 2: a proxy that does not know the labels continues to consume all slices."""
    planned = subsetted("Auto", a=4, b=4, c=4)
    assert planned.groups() == {A: 4, B: 4, C: 4}
    assert all(len(planned.used(name, OLD_PROXY)) == 12 for name in ("a1", "b1", "c1"))


@pytest.mark.parametrize("value", ["Auto", "Prefer", "Require", "RequireZone"])
def test_kep2004_version_skew_ends_random_whatever_is_set(value: str) -> None:
    """Version Skew: each scenario ends up as Random whatever the annotation says."""
    old_controller = subsetted(value, gates=DEFAULT_GATES, a=9, b=4, c=1)
    old_proxy = subsetted(value, a=9, b=4, c=1)
    for name in ("a1", "b1", "c1"):
        assert len(old_controller.used(name, SUBSETTING)) == 14
        assert len(old_proxy.used(name, OLD_PROXY)) == 14


async def test_kep2004_version_skew_endpoints_are_listed_by_service_name(cluster: World) -> None:
    """Version Skew: all endpoints are listed by the kubernetes.io/service-name label."""
    await cluster.add_service()
    path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
    async with cluster.controlled(quick(SUBSETTING)) as controller:
        for value in ("Auto", "Require", "Random"):
            await annotate(cluster, value)
            await cluster.settle(controller)
            found = await cluster.api.get(f"{path}?labelSelector=kubernetes.io/service-name%3Dweb")
            listed = [one["addresses"][0] for item in found["items"] for one in item["endpoints"]]
            assert sorted(listed) == sorted(f"10.0.0.{number + 1}" for number in range(12))


def test_kep2004_version_skew_approaches_group_differently() -> None:
    """Version Skew: each approach may group endpoints differently, but lists all of them."""

    def listed(slices: list[EndpointSlice]) -> list[str]:
        return sorted(one.addresses[0] for piece in slices for one in piece.endpoints)

    planned = {value: subsetted(value, a=9, b=4, c=1) for value in APPROACHES}
    assert len({tuple(listed(one.slices)) for one in planned.values()}) == 1
    combinations = {value: one.groups() for value, one in planned.items()}
    assert combinations == {
        "Auto": {A: 6, B: 4, C: 4},
        "Require": {A: 9, B: 4, C: 1},
        "Random": {"": 14},
        None: {"": 14},
    }
