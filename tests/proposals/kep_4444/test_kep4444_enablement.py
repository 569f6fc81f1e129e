"""KEP-4444, Production Readiness: enablement and rollback, rollout planning, deprecations.

The steps by which upgrade and rollback were tried by hand are in the module of the rollout. Not
counted: which tests of Kubernetes there were at which time.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.requests import SERVICES
from keepclose.model.gates import Gate, parse_gates
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.testing.api_server import serving
from support.controllers import QUICK, World, world
from support.live.sights import POST, PUT, hints, quick
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposaldocs import read_page
from support.proposals.proposalscenes import (
    GATES,
    NO_FIELD,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    own_zones,
)
from support.proposals.proposalworlds import add_two_zones

OFF = parse_gates("ServiceTrafficDistribution=false")
SCENE = Scene(THREE_ZONES, UNEVEN)
SYNCS = "endpoint_slice_controller_syncs_total"


def test_the_name_of_the_gate() -> None:
    """The feature gate is named ServiceTrafficDistribution."""
    assert Gate.SERVICE_TRAFFIC_DISTRIBUTION.value == "ServiceTrafficDistribution"
    assert not OFF.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION)


def test_the_controller_depends_on_the_gate() -> None:
    """kube-controller-manager depends on the gate."""
    wanted = asking("PreferClose")
    assert SCENE.hints(SCENE.plan(wanted, gates=GATES)) == own_zones(SCENE)
    assert set(SCENE.hints(SCENE.plan(wanted, gates=OFF)).values()) == {"none"}


def test_the_proxy_depends_on_the_gate() -> None:
    """kube-proxy depends on the gate."""
    wanted = asking("PreferClose")
    plan = SCENE.plan(wanted)
    assert SCENE.routes(plan, wanted, gates=OFF) == SCENE.everywhere()
    assert SCENE.routes(plan, wanted, gates=GATES)["n3"] == {"n3-1"}


async def test_the_api_server_depends_on_the_gate(tmp_path: Path) -> None:
    """kube-apiserver depends on the gate: without it a new Service does not get the field."""
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        assert (await api.post_service(trafficDistribution="PreferClose")).status == 201
        assert await api.distribution() is None


async def test_enabling_changes_no_default_behaviour(two_zones: World) -> None:
    """Enabling the feature changes no default behaviour: plain Services stay as they are."""
    cluster = two_zones
    await cluster.add_service()
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST]
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == []


def test_enabling_does_not_change_annotated_services() -> None:
    """Enabling changes nothing for the annotation, which has precedence over the field."""
    scene = Scene(THREE_ZONES, {"n1": 2, "n3": 2, "n5": 1})
    for value in (None, "PreferClose"):
        wanted = asking(value, mode="Auto")
        on = scene.plan(wanted, gates=GATES)
        assert on.slices == scene.plan(wanted, gates=OFF).slices
        assert scene.routes(on, wanted) == scene.routes(on, wanted, gates=OFF)


async def test_disabling_has_the_field_ignored(two_zones: World) -> None:
    """Disabling the feature means that the field, if set, is ignored."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}


async def test_a_disabled_api_server_drops_new_use(tmp_path: Path) -> None:
    """Rollback is safe for kube-apiserver: an update cannot bring the field to a Service."""
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        await api.post_service()
        reply = await api.patch_service(trafficDistribution="PreferClose")
        assert (reply.status, await api.distribution()) == (200, None)


async def test_a_disabled_api_server_keeps_present_use(tmp_path: Path) -> None:
    """Rollback is safe for kube-apiserver: a Service that has the field keeps it on updates."""
    async with serving(tmp_path) as plain:
        await ProposalApi(plain).post_service(trafficDistribution="PreferClose")
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        assert (await api.label_service(changed="yes")).status == 200
        assert await api.distribution() == "PreferClose"


async def test_enabling_again_is_like_enabling_first(two_zones: World) -> None:
    """Enabling the feature again is equivalent to enabling it for the first time."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    found = []
    for gates in (OFF, GATES, OFF, GATES):
        async with cluster.controlled(quick(gates)) as controller:
            await cluster.settle(controller)
            found.append(hints(await cluster.slices()))
    assert found[:2] == found[2:]
    assert found[1] == {"10.0.0.1": "zone-a", "10.0.0.2": "zone-b"}


async def test_the_switch_of_the_gate_itself(tmp_path: Path) -> None:
    """Objects that were written with the field survive the switch of the gate, off and on."""
    async with serving(tmp_path) as plain, world(plain) as cluster:
        await add_two_zones(cluster)
        await cluster.add_service(trafficDistribution="PreferClose")
    for gates, want in ((GATES, "zone-a"), (OFF, "none"), (GATES, "zone-a")):
        async with serving(tmp_path, gates=gates) as plain, world(plain) as cluster:
            async with cluster.controlled(quick(gates)) as controller:
                await cluster.settle(controller)
                assert hints(await cluster.slices())["10.0.0.1"] == want
            assert await ProposalApi(plain).distribution() == "PreferClose"


def test_partial_rollouts_lose_no_traffic() -> None:
    """Partial rollouts and rollbacks are handled as skew: every node always has endpoints."""
    everything = SCENE.everywhere()
    for value, mode in itertools.product((None, "PreferClose"), (None, "Auto")):
        wanted = asking(value, mode=mode)
        for controller, proxy in itertools.product((GATES, OFF, NO_FIELD), repeat=2):
            routes = SCENE.routed(wanted, controller=controller, proxy=proxy)
            assert all(routes.values())
            if OFF.enabled in (controller.enabled, proxy.enabled):
                assert routes == everything


async def test_running_workloads_are_not_affected(two_zones: World) -> None:
    """Running workloads are not affected otherwise than without the feature: same endpoints."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    addresses = []
    for gates in (GATES, OFF, GATES):
        async with cluster.controlled(quick(gates)) as controller:
            await cluster.settle(controller)
            [piece] = await cluster.slices()
            addresses.append([(one.addresses, one.conditions) for one in piece.endpoints])
            assert set(cluster.wire.take()) <= {POST, PUT}
    assert addresses[0] == addresses[1] == addresses[2]


async def test_syncs_are_counted_by_success_and_failure(two_zones: World) -> None:
    """The metric endpoint_slice_controller_syncs tracks successes and failures."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    metrics = ControllerMetrics(max_endpoints=100)
    settings = replace(QUICK, most_retries=2)
    async with cluster.controlled(settings, observer=metrics) as controller:
        await cluster.settle(controller)
        assert metrics.registry.get_sample_value(SYNCS, {"result": "error"}) is None
        cluster.wire.refused = "PUT"
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
    assert (metrics.registry.get_sample_value(SYNCS, {"result": "error"}) or 0) >= 1
    assert (metrics.registry.get_sample_value(SYNCS, {"result": "success"}) or 0) >= 1
    assert b"endpoint_slice_controller_syncs{" in metrics.page()


def test_more_failures_are_a_signal_for_rollback() -> None:
    """A relative increase of failed syncs is documented as a signal for rollback."""
    text = read_page("howto/metrics.md")
    line = next(part for part in text.split("| `") if "endpoint_slice_controller_syncs" in part)
    assert 'result="error"' in line
    assert "roll back" in line


def test_the_annotation_goes_on_working() -> None:
    """The functionality of the annotation persists."""
    scene = Scene(THREE_ZONES, {"n1": 2, "n3": 2, "n5": 1})
    assert scene.routed(asking(None, mode="Auto"))["n5"] == {"n5-1"}


@pytest.mark.parametrize("value", ["PreferClose", "PreferSameZone", "PreferSameNode"])
def test_the_annotation_gets_no_new_heuristics(value: str) -> None:
    """The annotation supports no new heuristics, only Auto and Disabled."""
    plan = SCENE.plan(asking(None, mode=value))
    assert set(SCENE.hints(plan).values()) == {"none"}


async def test_the_annotation_takes_precedence_while_it_is_there(two_zones: World) -> None:
    """The annotation has precedence over the field as long as it is there, and no longer."""
    cluster = two_zones
    await cluster.add_pod("p3", "n2", ip="10.0.0.3")
    await cluster.add_pod("p4", "n2", ip="10.0.0.4")
    await cluster.add_service(
        annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"}, trafficDistribution="PreferClose"
    )
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        assert list(hints(await cluster.slices()).values()).count("zone-a") == 2
        patch = {"metadata": {"annotations": {TOPOLOGY_MODE_ANNOTATION: None}}}
        await cluster.change(SERVICES, "web", patch)
        await cluster.settle(controller)
        assert list(hints(await cluster.slices()).values()).count("zone-a") == 1
