"""KEP-3015, Upgrade / Downgrade and Version Skew Strategy, Enablement, Rollout and Rollback.

A component from before the proposal is one with its gate off. Not counted: that releases keep a
feature off for one version, and that no metric informs a rollback. Deprecations: see the proposal.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from keepclose.kube.requests import PODS, SERVICES
from keepclose.model.gates import DEFAULT_GATES, Gate, parse_gates
from keepclose.routing.service_ports import routed_ports
from keepclose.routing.strategy import DistributionVerdict
from keepclose.testing.api_server import serving
from support.controllers import World, world
from support.live.sights import hints, quick
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposaldocs import DISTRIBUTION_PAGE, read_section
from support.proposals.proposalscenes import (
    GATES,
    NO_FIELD,
    NO_SAME_NODE,
    THREE_ZONES,
    UNEVEN,
    Scene,
    asking,
    own_nodes,
)

OFF = parse_gates("PreferSameTrafficDistribution=false")
NEW_VALUES = ("PreferSameZone", "PreferSameNode")
SCENE = Scene(THREE_ZONES, UNEVEN)
NODE_HINTS = {"forZones": [{"name": "zone-a"}], "forNodes": [{"name": "n1"}]}
ZONE_HINTS = {"forZones": [{"name": "zone-a"}]}


async def build(cluster: World, value: str | None) -> None:
    """Add a node with a pod, and a Service with this value."""
    await cluster.add_node("n1", "zone-a")
    await cluster.add_pod("p1", "n1", ip="10.0.0.1")
    await cluster.add_service(trafficDistribution=value)


@pytest.mark.parametrize("value", [None, "PreferClose"])
async def test_upgrade_has_nothing_to_do(cluster: World, value: str | None) -> None:
    """On upgrade no Service uses the new values, so there is nothing to do."""
    await build(cluster, value)
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == []


@pytest.mark.parametrize("value", NEW_VALUES)
def test_downgrade_treats_values_as_absent(value: str) -> None:
    """On downgrade the controller treats the unrecognized value as if there were none."""
    plan = SCENE.plan(asking(value), gates=OFF)
    assert plan.slices == SCENE.plan(asking(None), gates=OFF).slices
    assert plan.strategy.distribution is not DistributionVerdict.GOVERNS


@pytest.mark.parametrize("value", NEW_VALUES)
async def test_downgrade_removes_hints(cluster: World, value: str) -> None:
    """On downgrade the controller removes the hints from the slices."""
    await build(cluster, value)
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices())["10.0.0.1"] != "none"
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none"}


@pytest.mark.parametrize("value", NEW_VALUES)
def test_downgrade_falls_back_to_default_distribution(value: str) -> None:
    """On downgrade the Service falls back to default traffic distribution."""
    slices = SCENE.plan(asking(value)).slices
    down = SCENE.plan(asking(value), slices=slices, gates=OFF)
    assert SCENE.routes(down, gates=OFF) == SCENE.everywhere()


async def test_upgrade_again_brings_hints_back(cluster: World) -> None:
    """When they upgrade again and the value is still set, the hints are added again."""
    await build(cluster, "PreferSameNode")
    found = []
    for gates in (GATES, OFF, GATES):
        async with cluster.controlled(quick(gates)) as controller:
            await cluster.settle(controller)
            found.append(hints(await cluster.slices())["10.0.0.1"])
    assert found == ["zone-a on n1", "none", "zone-a on n1"]


async def test_skew_an_old_controller_does_not_recognize_the_values(cluster: World) -> None:
    """New API server, old controller: the values can be set, and are not recognized."""
    await build(cluster, "PreferSameNode")
    found = await cluster.client.get(SERVICES, "web", namespace=cluster.namespace)
    assert found.spec.traffic_distribution == "PreferSameNode"
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none"}


def test_skew_the_gate_is_on_by_default_now() -> None:
    """In beta and later the feature is enabled by default."""
    assert DEFAULT_GATES.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)


def test_skew_prefer_same_zone_works_with_an_old_proxy() -> None:
    """New controller, old proxy: PreferSameZone still works fine."""
    wanted = asking("PreferSameZone")
    assert SCENE.routed(wanted, proxy=NO_SAME_NODE) == SCENE.routed(wanted)


def test_skew_the_proxy_does_not_look_at_the_value() -> None:
    """The proxy does not look at the actual value, only at the hints."""
    for gates in (GATES, NO_SAME_NODE):
        ports = {
            routed_ports(asking(value), "IPv4", gates=gates)
            for value in (None, "PreferClose", *NEW_VALUES)
        }
        assert len(ports) == 1


async def test_skew_hints_are_the_same_as_with_prefer_close(cluster: World) -> None:
    """The hints of PreferSameZone are those of PreferClose: a change of names writes nothing."""
    await build(cluster, "PreferClose")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        cluster.wire.take()
        patch = {"spec": {"trafficDistribution": "PreferSameZone"}}
        await cluster.change(SERVICES, "web", patch)
        await cluster.settle(controller)
        assert (hints(await cluster.slices()), cluster.wire.take()) == ({"10.0.0.1": "zone-a"}, [])


def test_skew_an_old_proxy_cannot_prefer_the_node() -> None:
    """New controller, old proxy: the proxy does not know forNodes, so no node is preferred."""
    routes = SCENE.routed(asking("PreferSameNode"), proxy=NO_SAME_NODE)
    assert routes["n1"] == {"n1-1", "n1-2", "n2-1"}


def test_skew_an_old_proxy_falls_back_to_the_zone() -> None:
    """New controller, old proxy: in a multi-zone cluster it falls back to the same zone."""
    routes = SCENE.routed(asking("PreferSameNode"), proxy=NO_SAME_NODE)
    assert routes == SCENE.routed(asking("PreferSameZone"))


def test_skew_without_zones_an_old_proxy_uses_all() -> None:
    """That fallback needs zones: without them an old proxy uses all endpoints."""
    scene = Scene({"n1": None, "n2": None}, {"n1": 1, "n2": 1})
    wanted = asking("PreferSameNode")
    assert scene.routed(wanted) == {"n1": {"n1-1"}, "n2": {"n2-1"}}
    assert scene.routed(wanted, proxy=NO_SAME_NODE) == scene.everywhere()


def test_skew_docs_warn_of_skewed_clusters() -> None:
    """Users should not depend on PreferSameNode until their cluster is non-skewed: docs say so."""
    text = read_section(DISTRIBUTION_PAGE, "What it is for, and what it risks")
    assert "`PreferSameNode` needs proxies on the nodes that know node hints" in text
    assert "do not depend on it" in text


def test_the_name_of_the_gate() -> None:
    """The feature gate is named PreferSameTrafficDistribution."""
    assert not OFF.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    assert DEFAULT_GATES.enabled - OFF.enabled == {"PreferSameTrafficDistribution"}


async def test_the_api_server_depends_on_the_gate(tmp_path: Path) -> None:
    """kube-apiserver depends on the gate."""
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        for value in NEW_VALUES:
            assert (await api.post_service(trafficDistribution=value)).status == 422


def test_the_controller_depends_on_the_gate() -> None:
    """kube-controller-manager depends on the gate."""
    wanted = asking("PreferSameNode")
    assert SCENE.hints(SCENE.plan(wanted)) == own_nodes(SCENE)
    assert set(SCENE.hints(SCENE.plan(wanted, gates=OFF)).values()) == {"none"}


def test_the_proxy_depends_on_the_gate() -> None:
    """kube-proxy depends on the gate."""
    plan = SCENE.plan(asking("PreferSameNode"))
    assert SCENE.routes(plan)["n2"] == {"n2-1"}
    assert SCENE.routes(plan, gates=OFF)["n2"] == {"n1-1", "n1-2", "n2-1"}


@pytest.mark.parametrize("value", [None, "PreferClose"])
def test_enabling_changes_no_default_behaviour(value: str | None) -> None:
    """Enabling the feature changes no default behaviour."""
    wanted = asking(value)
    assert SCENE.plan(wanted).slices == SCENE.plan(wanted, gates=OFF).slices
    assert SCENE.routed(wanted) == SCENE.routed(wanted, controller=OFF, proxy=OFF)


async def test_the_feature_can_be_disabled_again(tmp_path: Path) -> None:
    """The feature can be disabled once it has been enabled: stored Services stay writable."""
    async with serving(tmp_path) as plain:
        await ProposalApi(plain).post_service(trafficDistribution="PreferSameNode")
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        assert await api.distribution() == "PreferSameNode"
        assert (await api.label_service(changed="yes")).status == 200
        assert (await api.patch_service(trafficDistribution=None)).status == 200
        assert await api.distribution() is None


def test_enabled_again_it_works_again() -> None:
    """If the feature is enabled again it starts working again."""
    wanted = asking("PreferSameNode")
    slices = SCENE.plan(wanted).slices
    down = SCENE.plan(wanted, slices=slices, gates=OFF).slices
    again = SCENE.plan(wanted, slices=down)
    assert SCENE.routes(again) == SCENE.routed(wanted)
    assert SCENE.hints(again) == own_nodes(SCENE)


async def test_for_nodes_is_dropped_from_existing_slices(tmp_path: Path) -> None:
    """With the gate disabled forNodes is dropped from existing objects on update.

    That is, from those that do not use it yet; those that do keep it until their writer removes it.
    """
    async with serving(tmp_path) as plain:
        await ProposalApi(plain).post_slice(hints=ZONE_HINTS)
    async with serving(tmp_path, gates=OFF) as plain:
        api = ProposalApi(plain)
        reply = await api.put_slice(hints=NODE_HINTS)
        assert (reply.status, await api.hints()) == (200, ZONE_HINTS)


def test_an_initial_rollout_cannot_fail() -> None:
    """An initial rollout has no impact on running workloads, in whatever order it goes."""
    for value, mode in itertools.product((None, "PreferClose"), (None, "Auto")):
        wanted = asking(value, mode=mode)
        want = SCENE.routed(wanted, controller=OFF, proxy=OFF)
        for controller, proxy in itertools.product((GATES, OFF), repeat=2):
            assert SCENE.routed(wanted, controller=controller, proxy=proxy) == want


def test_a_rollback_has_a_reasonable_fallback() -> None:
    """A rollback has reasonable fallback behaviour: every node always has endpoints."""
    for value in NEW_VALUES:
        for controller, proxy in itertools.product((GATES, OFF, NO_FIELD), repeat=2):
            routes = SCENE.routed(asking(value), controller=controller, proxy=proxy)
            assert all(routes.values())


async def test_a_re_rollout_updates_existing_services(cluster: World) -> None:
    """A re-rollout updates the behaviour of existing Services in the expected way."""
    await build(cluster, "PreferSameNode")
    async with cluster.controlled(quick(OFF)) as controller:
        await cluster.settle(controller)
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "zone-a on n1"}


async def test_users_can_stop_using_the_feature(cluster: World) -> None:
    """The feature is opt-in: individual users can simply stop using it."""
    await build(cluster, "PreferSameNode")
    async with cluster.controlled() as controller:
        await cluster.settle(controller)
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none"}


# What was tried by hand. A controller that starts looks at every Service, so here hints go and
# return with its start; what the proposal saw before the first change of an endpoint is what the
# API server has stored.


async def test_by_hand_enabled_slices_have_node_hints(tmp_path: Path) -> None:
    """By hand: gate on, a Service with PreferSameNode and a pod: the slice has forNodes."""
    async with serving(tmp_path) as plain, world(plain) as cluster:
        await build(cluster, "PreferSameNode")
        async with cluster.controlled(quick(GATES)) as controller:
            await cluster.settle(controller)
            assert hints(await cluster.slices()) == {"10.0.0.1": "zone-a on n1"}


async def test_by_hand_disabled_slices_still_have_node_hints(tmp_path: Path) -> None:
    """By hand: gate off, API server restarted: the slice still contains the forNodes hint."""
    await test_by_hand_enabled_slices_have_node_hints(tmp_path)
    async with serving(tmp_path, gates=OFF) as plain, world(plain) as cluster:
        assert hints(await cluster.slices()) == {"10.0.0.1": "zone-a on n1"}


async def test_by_hand_disabled_another_pod_removes_node_hints(tmp_path: Path) -> None:
    """By hand: gate off, another pod: the slice is rewritten with no forNodes, for either."""
    await test_by_hand_enabled_slices_have_node_hints(tmp_path)
    async with serving(tmp_path, gates=OFF) as plain, world(plain) as cluster:
        async with cluster.controlled(quick(OFF)) as controller:
            await cluster.add_pod("p2", "n1", ip="10.0.0.2")
            await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "none", "10.0.0.2": "none"}


async def test_by_hand_enabled_again_slices_still_have_no_node_hints(tmp_path: Path) -> None:
    """By hand: gate on again, API server restarted: the slice still contains no forNodes."""
    await test_by_hand_disabled_another_pod_removes_node_hints(tmp_path)
    async with serving(tmp_path) as plain, world(plain) as cluster:
        assert hints(await cluster.slices()) == {"10.0.0.1": "none", "10.0.0.2": "none"}


async def test_by_hand_enabled_again_a_change_brings_node_hints(tmp_path: Path) -> None:
    """By hand: gate on again, one pod deleted: the remaining endpoint has a forNodes hint."""
    await test_by_hand_disabled_another_pod_removes_node_hints(tmp_path)
    async with serving(tmp_path) as plain, world(plain) as cluster:
        async with cluster.controlled(quick(GATES)) as controller:
            await cluster.remove(PODS, "p1")
            await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.2": "zone-a on n1"}
