"""KEP-3015, second draft: the Production Readiness Review, one test a statement.

Left out: metrics that are not added, that automatic use is not easily found, what other proxies
have to do, calls to cloud providers, alternatives, and dates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.kube.requests import SERVICES
from keepclose.model.gates import Gate, parse_gates
from keepclose.routing.node_level import NodeLevelMode
from keepclose.testing.api_server import serving
from support.controllers import World, world
from support.live.sights import POST, hints, quick
from support.live.traffic import reached
from support.proposals.api_outages import outlast_outage
from support.proposals.node_level_services import (
    BEFORE,
    DRAFT,
    HINTS,
    NODES,
    OVERLAY,
    daemon_set,
    daemons,
    is_local_first,
    replica_set,
    uses_all,
    zone_of,
)
from support.proposals.planned_services import PlannedService, count_writes, hints_of

MANUAL = {HINTS: "Node"}
WITHOUT_N1 = NODES[1:]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes of three zones with a pod each, behind a server that knows the draft alone."""
    async with serving(tmp_path, gates=DRAFT) as api, world(api) as found:
        for name in NODES[:3]:
            await found.add_node(name, zone_of(name))
            await found.add_pod(f"p-{name}", name, ip=f"10.0.0.{name[1:]}")
        yield found


def test_kep3015_draft2_enablement_the_gate_has_this_name() -> None:
    """Enablement: the feature gate's name is NodeLevelTopology."""
    gates = parse_gates("NodeLevelTopology=true")
    assert gates.on(Gate.NODE_LEVEL_TOPOLOGY)
    assert is_local_first(daemons(annotations=MANUAL, gates=gates))


async def test_kep3015_draft2_enablement_the_apiserver_depends_on_it(tmp_path: Path) -> None:
    """Enablement: kube-apiserver depends on the gate: it stores node hints with it alone."""
    stored = {}
    for word, gates in (("with", DRAFT), ("without", BEFORE)):
        async with serving(tmp_path / word, gates=gates) as api, world(api) as found:
            await found.add_node("n1", "zone-a")
            await found.add_pod("p1", "n1", ip="10.0.0.1")
            await found.add_service(annotations={OVERLAY: "Enabled"})
            async with found.controlled(quick(DRAFT)) as controller:
                await found.settle(controller)
            stored[word] = hints(await found.slices())["10.0.0.1"]
    assert stored["with"] == "on n1"
    assert stored["without"] in ("none", "empty")


def test_kep3015_draft2_enablement_the_controller_manager_depends_on_it() -> None:
    """Enablement: kube-controller-manager depends on the gate: it writes hints with it alone."""
    for mode, asked in ((NodeLevelMode.MANUAL, MANUAL), (NodeLevelMode.AUTO, {})):
        with_gate = daemons(mode, annotations=asked, gates=DRAFT)
        without = daemons(mode, annotations=asked, gates=BEFORE)
        assert all(nodes for _, nodes in hints_of(with_gate.slices).values())
        assert not any(nodes for _, nodes in hints_of(without.slices).values())


def test_kep3015_draft2_enablement_the_proxy_depends_on_it() -> None:
    """Enablement: kube-proxy depends on the gate: it follows hints and annotation with it alone."""
    planned = daemons(annotations=MANUAL, gates=DRAFT)
    assert is_local_first(planned, DRAFT)
    assert uses_all(planned, BEFORE)


def test_kep3015_draft2_enablement_potentially_changes_defaults() -> None:
    """Enablement: default behaviour potentially changes, depending on the approach taken."""
    changed = {}
    for mode in NodeLevelMode:
        planned = daemons(mode, gates=BEFORE)
        planned.settings = replace(planned.settings, gates=DRAFT)
        changed[mode.value] = count_writes(planned.sync()) > 0
    assert changed == {"Manual": False, "SemiAuto": False, "Auto": True}


async def test_kep3015_draft2_rollback_reverts_to_cluster_semantics(cluster: World) -> None:
    """Enablement: once disabled, services just revert back to ordinary Cluster semantics."""
    service = await cluster.add_service(annotations={OVERLAY: "Enabled"})
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
    async with cluster.controlled(quick(BEFORE)) as controller:
        await cluster.settle(controller)
    assert set(hints(await cluster.slices()).values()) == {"none"}
    found = await reached(cluster, service, BEFORE)
    assert {len(addresses) for addresses in found.values()} == {3}


async def test_kep3015_draft2_reenabling_it_starts_working_again(cluster: World) -> None:
    """Enablement: when the feature is reenabled, it starts working again."""
    service = await cluster.add_service(annotations={OVERLAY: "Enabled"})
    for gates in (DRAFT, BEFORE, DRAFT):
        async with cluster.controlled(quick(gates)) as controller:
            await cluster.settle(controller)
    assert await reached(cluster, service, DRAFT) == {
        name: {f"10.0.0.{name[1:]}"} for name in NODES[:3]
    }


def _rolled_out(planned: PlannedService) -> PlannedService:
    """Return the Service after the gate was turned on in all components."""
    planned.settings = replace(planned.settings, gates=DRAFT)
    planned.sync()
    return planned


def test_kep3015_draft2_rollout_automatic_affects_existing_services() -> None:
    """Rollout: Automatic affects existing services, such as a DNS DaemonSet, that qualify."""
    dns = daemons(NodeLevelMode.AUTO, gates=BEFORE, owner=daemon_set("coredns"))
    web = daemons(NodeLevelMode.AUTO, gates=BEFORE, owner=replica_set("web"))
    assert uses_all(dns)
    assert is_local_first(_rolled_out(dns))
    assert uses_all(_rolled_out(web))


def _hops(planned: PlannedService) -> float:
    """Return the part of connections that leave their node, over all nodes."""
    parts = []
    for name in NODES:
        endpoints = planned.select(name).internal.endpoints
        parts.append(sum(one.node_name != name for one in endpoints) / len(endpoints))
    return sum(parts) / len(parts)


def test_kep3015_draft2_rollout_affects_services_in_a_positive_way() -> None:
    """Rollout: working correctly, it affects services in a positive way: no one's path grows."""
    before = daemons(NodeLevelMode.AUTO, gates=BEFORE, on=WITHOUT_N1)
    hops = _hops(before)
    assert _hops(_rolled_out(before)) < hops


def test_kep3015_draft2_rollout_manual_has_no_effect() -> None:
    """Rollout: with the Manual semantics rolling out the feature has no effect at all."""
    planned = daemons(NodeLevelMode.MANUAL, gates=BEFORE)
    before = planned.slices
    planned.settings = replace(planned.settings, gates=DRAFT)
    assert count_writes(planned.sync()) == 0
    assert planned.slices == before
    assert uses_all(planned)


async def test_kep3015_draft2_rollout_removes_nothing(cluster: World) -> None:
    """Rollout: nothing is removed: other values of the annotation and the policies go on."""
    await cluster.add_service(annotations={HINTS: "Auto"})
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
        want = {f"10.0.0.{name[1:]}": zone_of(name) for name in NODES[:3]}
        assert hints(await cluster.slices()) == want


async def test_kep3015_draft2_monitoring_manual_services_are_annotated(cluster: World) -> None:
    """Monitoring: with Manual, services annotated to use the feature can be found."""
    await cluster.add_service(annotations=MANUAL)
    await cluster.add_service("other")
    services = (await cluster.client.list_all(SERVICES)).items
    users = [one.metadata.name for one in services if one.metadata.annotations.get(HINTS) == "Node"]
    assert users == ["web"]


def test_kep3015_draft2_monitoring_services_are_not_broken() -> None:
    """Monitoring: users know that it has not broken anything because services are not broken."""
    for on in (NODES, WITHOUT_N1, ("n3",)):
        planned = daemons(annotations=MANUAL, on=on)
        assert all(planned.used(name) for name in NODES)


def test_kep3015_draft2_monitoring_rules_show_whether_it_works() -> None:
    """Monitoring: the rules that the proxy generates show the optimization, and why."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1)
    local, fallen = planned.select("n2"), planned.select("n1")
    assert {one.node_name for one in local.reachable} == {"n2"}
    assert len(fallen.reachable) == len(WITHOUT_N1)
    assert "NodeLevel" in {reason.code.value for reason in local.reasons}


def test_kep3015_draft2_slo_as_reliable_as_without() -> None:
    """SLOs: services using node-level topology are as reliable as services not using it."""
    for on in (NODES, WITHOUT_N1, ("n3",)):
        asked, plain = daemons(annotations=MANUAL, on=on), daemons(on=on)
        for name in NODES:
            assert bool(asked.used(name)) == bool(plain.used(name)) is True


def test_kep3015_draft2_slo_lower_latency() -> None:
    """SLOs: services using node-level topology have lower latency: fewer connections hop."""
    for on in (NODES, WITHOUT_N1, ("n3", "n4")):
        assert _hops(daemons(annotations=MANUAL, on=on)) < _hops(daemons(on=on))


async def test_kep3015_draft2_scalability_no_new_api_calls(cluster: World) -> None:
    """Scalability: no new API calls: the slice comes with its hints in one write."""
    await cluster.add_service(annotations=MANUAL)
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST]
        assert set(hints(await cluster.slices()).values()) == {f"on {name}" for name in NODES[:3]}


async def test_kep3015_draft2_scalability_no_new_api_types(tmp_path: Path) -> None:
    """Scalability: enabling it introduces no new API types."""
    documents = []
    for word, gates in (("with", DRAFT), ("without", BEFORE)):
        async with serving(tmp_path / word, gates=gates) as api:
            paths = ("/api/v1", "/apis", "/apis/discovery.k8s.io/v1")
            documents.append([await api.get(path) for path in paths])
    assert documents[0] == documents[1]


def test_kep3015_draft2_scalability_the_field_is_unset_in_most_slices() -> None:
    """Scalability: a field is added to EndpointSliceHints, unset in most EndpointSlices."""
    others = (
        daemons(),
        daemons(NodeLevelMode.AUTO, owner=replica_set()),
        daemons(gates=DRAFT, traffic_distribution="PreferSameZone"),
        daemons(annotations={HINTS: "Auto"}),
    )
    for planned in others:
        assert not any(nodes for _, nodes in hints_of(planned.slices).values())
    asked = daemons(annotations=MANUAL)
    assert all(nodes for _, nodes in hints_of(asked.slices).values())


def test_kep3015_draft2_scalability_dns_answers_faster() -> None:
    """Scalability: the average DNS response time decreases: no request leaves its node."""
    assert _hops(daemons(NodeLevelMode.AUTO)) == 0
    assert _hops(daemons()) == pytest.approx(5 / 6)


def test_kep3015_draft2_scalability_less_network_is_used() -> None:
    """Scalability: network usage decreases as most DNS traffic is kept local.

    Also when a node lacks its DNS pod, only that node's requests cross the network.
    """
    assert _hops(daemons(NodeLevelMode.AUTO, on=WITHOUT_N1)) == pytest.approx(1 / 6)


def test_kep3015_draft2_troubleshooting_never_slower() -> None:
    """Troubleshooting: if node-level topology makes a service slower, that is a bug.

    On no node do more connections leave for another node or another zone than without it.
    """
    for on in (NODES, WITHOUT_N1, ("n3", "n4"), ("n5",)):
        asked, plain = daemons(annotations=MANUAL, on=on), daemons(on=on)
        for name in NODES:
            assert asked.used(name) <= plain.used(name)
            if name in on:
                assert asked.nodes_used(name) == {name}


async def test_kep3015_draft2_troubleshooting_the_api_server_is_unavailable() -> None:
    """Troubleshooting: without the API server the proxy goes on as without the feature."""
    for mode, count in ((NodeLevelMode.AUTO, 1), (NodeLevelMode.MANUAL, len(NODES))):
        planned = daemons(mode)
        found = await outlast_outage(
            planned.service, planned.slices, zone=zone_of("n1"), gates=planned.settings.gates
        )
        want = planned.used("n1")
        assert len(want) == count
        assert found == (want, want, [])
