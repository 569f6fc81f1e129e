"""KEP-3015, second draft: Test Plan, Graduation, Upgrade / Downgrade and Version Skew Strategy.

One test a statement. The unit tests that the draft plans for the iptables and ipvs proxiers are
made here for the rules that the nftables proxy writes.

Left out: coverage of other projects' packages, and how likely services flip between states.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from keepclose.kube.requests import SERVICES
from keepclose.model.gates import DEFAULT_GATES, FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.port_endpoints import NodeView
from keepclose.ruleset.tracer import Packet
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.builders import node, pod
from support.controllers import World, world
from support.live.sights import hints, quick
from support.live.traffic import reached
from support.nettopology import NodePlan
from support.packets.tabledbeds import TabledBed, tabled
from support.packets.webobjects import web
from support.proposals.node_level_services import (
    BEFORE,
    DRAFT,
    HINTS,
    NODES,
    ON,
    daemons,
    is_local_first,
    uses_all,
    zone_of,
)
from support.proposals.packet_answers import names_at_cluster_ip
from support.proposals.planned_services import PlannedService, hints_of
from support.ruleset.tracednodes import POD, SETTINGS, follow, load, make_ruleset

SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
MANUAL = {HINTS: "Node"}
WITHOUT_N1 = NODES[1:]
PLAN = (NodePlan("n1", "zone-a", 2), NodePlan("n2", "zone-b", 2))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes of three zones with a pod each, behind a server that knows the draft alone."""
    async with serving(tmp_path, gates=DRAFT) as api, world(api) as found:
        for name in NODES[:3]:
            await found.add_node(name, zone_of(name))
            await found.add_pod(f"p-{name}", name, ip=f"10.0.0.{name[1:]}")
        yield found


def targets(planned: PlannedService, node_name: str) -> set[str]:
    """Return where the rules of a node lead connections of pods to the cluster IP."""
    asked = planned.service
    ruleset = make_ruleset(
        [asked],
        planned.slices,
        settings=replace(SETTINGS, node_name=node_name, service_cidrs=("10.96.0.0/16",)),
        gates=planned.settings.gates,
        node=NodeView(node_name, zone_of(node_name)),
    )
    text, _ = follow(load(ruleset), Packet(POD, asked.spec.cluster_ip, 80))
    return {target.removesuffix(":8080") for target in text.split(", ")}


def test_kep3015_draft2_unit_tests_rules_with_a_local_endpoint() -> None:
    """Test Plan: the proxier generates the expected rules when a local endpoint is available."""
    planned = daemons(annotations=MANUAL)
    (own,) = planned.used("n2")
    assert targets(planned, "n2") == {own}


def test_kep3015_draft2_unit_tests_rules_without_a_local_endpoint() -> None:
    """Test Plan: the proxier generates the expected rules when no local endpoint is available."""
    planned = daemons(annotations=MANUAL, on=WITHOUT_N1)
    assert targets(planned, "n1") == set(hints_of(planned.slices))


def _planned_on(bed: TabledBed, asked: Service, pods: Sequence[str]) -> PlannedService:
    """Return the Service with the slices that the controller writes for these pods of a bed."""
    nodes = [node(one.name, one.zone) for one in bed.bed.nodes]
    planned = PlannedService(asked, nodes, PlannerSettings(gates=ON))
    for name in pods:
        place = bed.pod(name)
        made = pod(name, bed.node_of(name).name, ips=(place.address, place.address6))
        planned.pods[made.key] = made
    planned.sync()
    return planned


def test_kep3015_draft2_e2e_with_a_local_endpoint() -> None:
    """Test Plan: real connections go to the local endpoint when one is available.

    Each pod answers with its name, so that it is seen which one was hit.
    """
    asked = web("web", 10, annotations=MANUAL)
    with tabled(PLAN, gates=ON) as bed:
        bed.write([asked], _planned_on(bed, asked, ["n1-p1", "n2-p1"]).slices)
        assert names_at_cluster_ip(bed, "n1-p2", asked) == {"n1-p1"}
        assert names_at_cluster_ip(bed, "n2-p2", asked) == {"n2-p1"}


def test_kep3015_draft2_e2e_without_a_local_endpoint() -> None:
    """Test Plan: real connections go to remote endpoints when no local one is available."""
    asked = web("web", 10, annotations=MANUAL)
    with tabled(PLAN, gates=ON) as bed:
        bed.write([asked], _planned_on(bed, asked, ["n2-p1", "n2-p2"]).slices)
        assert names_at_cluster_ip(bed, "n1-p2", asked, want=2) == {"n2-p1", "n2-p2"}


def test_kep3015_draft2_alpha_is_behind_a_feature_flag() -> None:
    """Graduation, Alpha: the feature is implemented behind a feature flag, off by default."""
    assert not DEFAULT_GATES.on(Gate.NODE_LEVEL_TOPOLOGY)
    for mode, asked in ((NodeLevelMode.MANUAL, MANUAL), (NodeLevelMode.AUTO, {})):
        assert uses_all(daemons(mode, annotations=asked, gates=BEFORE))
        assert is_local_first(daemons(mode, annotations=asked, gates=DRAFT))


async def test_kep3015_draft2_alpha_api_enablement(tmp_path: Path) -> None:
    """Graduation, Alpha: the API knows the field of the hints with the gate alone."""
    body = {
        "metadata": {"name": "web-1"},
        "addressType": "IPv4",
        "endpoints": [
            {"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "n1"}]}},
        ],
    }
    async with serving(tmp_path / "with", gates=DRAFT) as api:
        created = await api.create(SLICES, body)
        assert created["endpoints"][0]["hints"] == {"forNodes": [{"name": "n1"}]}
    async with serving(tmp_path / "without", gates=BEFORE) as api:
        created = await api.create(SLICES, body)
        assert "forNodes" not in created["endpoints"][0]["hints"]


def test_kep3015_draft2_upgrade_automatic_changes_services() -> None:
    """Upgrade: with Automatic, services with Cluster semantics now get node-level topology."""
    planned = daemons(NodeLevelMode.AUTO, gates=BEFORE)
    assert uses_all(planned, DRAFT)
    planned.settings = replace(planned.settings, gates=DRAFT)
    planned.sync()
    assert is_local_first(planned, DRAFT)


def test_kep3015_draft2_upgrade_automatic_is_a_safe_change() -> None:
    """Upgrade: the change is safe: no node loses its endpoints by it."""
    planned = daemons(NodeLevelMode.AUTO, gates=BEFORE, on=WITHOUT_N1)
    planned.settings = replace(planned.settings, gates=DRAFT)
    planned.sync()
    assert all(planned.used(name, DRAFT) for name in NODES)


def test_kep3015_draft2_downgrade_of_the_controller_manager() -> None:
    """Downgrade: without an aware kube-controller-manager services fall back to Cluster."""
    planned = daemons(NodeLevelMode.AUTO, gates=DRAFT)
    assert is_local_first(planned, DRAFT)
    planned.settings = replace(planned.settings, gates=BEFORE)
    planned.sync()
    assert uses_all(planned, DRAFT)


def test_kep3015_draft2_downgrade_of_the_proxy() -> None:
    """Downgrade: a kube-proxy that is not aware of the hints falls back to Cluster semantics."""
    for mode, asked in ((NodeLevelMode.MANUAL, MANUAL), (NodeLevelMode.AUTO, {})):
        planned = daemons(mode, annotations=asked, gates=DRAFT)
        assert is_local_first(planned, DRAFT)
        assert uses_all(planned, BEFORE)


def test_kep3015_draft2_downgrade_functions_correctly() -> None:
    """Downgrade: the result is less efficient, but still functions correctly."""
    planned = daemons(annotations=MANUAL, gates=DRAFT, on=WITHOUT_N1)
    for name in NODES:
        assert planned.used(name, BEFORE) >= planned.used(name, DRAFT)
        assert planned.used(name, BEFORE)


@pytest.mark.parametrize(
    ("controller", "proxy"),
    [
        pytest.param(BEFORE, DRAFT, id="old controller, new proxy"),
        pytest.param(DRAFT, BEFORE, id="new controller, old proxy"),
    ],
)
def test_kep3015_draft2_skew_falls_back_to_cluster(
    controller: FeatureGates, proxy: FeatureGates
) -> None:
    """Version Skew: for the most part node-level topology does not happen then."""
    assert uses_all(daemons(NodeLevelMode.AUTO, gates=controller), proxy)


async def test_kep3015_draft2_skew_an_old_apiserver_drops_the_field(tmp_path: Path) -> None:
    """Version Skew: an old kube-apiserver stores no hint, so the service falls back to Cluster."""
    async with serving(tmp_path, gates=BEFORE) as api, world(api) as cluster:
        for name in NODES[:3]:
            await cluster.add_node(name, zone_of(name))
            await cluster.add_pod(f"p-{name}", name, ip=f"10.0.0.{name[1:]}")
        service = await cluster.add_service(
            annotations={"service.kubernetes.io/node-topology": "Enabled"}
        )
        async with cluster.controlled(quick(DRAFT)) as controller:
            await cluster.settle(controller)
        found = await reached(cluster, service, DRAFT)
        assert {len(addresses) for addresses in found.values()} == {3}


async def test_kep3015_draft2_skew_a_service_may_get_stuck(cluster: World) -> None:
    """Version Skew: while the controller does not look, the hints stay in the EndpointSlices."""
    service = await cluster.add_service(annotations=MANUAL)
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
    want = {f"10.0.0.{name[1:]}": f"on {name}" for name in NODES[:3]}
    await cluster.change(SERVICES, "web", {"metadata": {"annotations": {HINTS: None}}})
    assert hints(await cluster.slices()) == want
    assert await reached(cluster, service, DRAFT) == {
        name: {f"10.0.0.{name[1:]}"} for name in NODES[:3]
    }


def test_kep3015_draft2_skew_stuck_services_do_not_break() -> None:
    """Version Skew: at worst endpoints are used in an unbalanced way; the service never breaks."""
    planned = daemons(NodeLevelMode.AUTO, gates=DRAFT)
    stuck = list(planned.slices)
    # Pods of n1 and n2 go, and the hints of the others stay as they were.
    planned.slices = [
        replace(
            one,
            endpoints=tuple(e for e in one.endpoints if e.node_name not in ("n1", "n2")),
        )
        for one in stuck
    ]
    for name in NODES:
        used = planned.nodes_used(name, DRAFT)
        assert used == ({name} if name not in ("n1", "n2") else {"n3", "n4", "n5", "n6"})


async def test_kep3015_draft2_skew_is_resolved_eventually(cluster: World) -> None:
    """Version Skew: when it gets resolved, the controller checks the service again."""
    await cluster.add_service(annotations=MANUAL)
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
    await cluster.change(SERVICES, "web", {"metadata": {"annotations": {HINTS: None}}})
    async with cluster.controlled(quick(DRAFT)) as controller:
        await cluster.settle(controller)
        assert set(hints(await cluster.slices()).values()) == {"none"}
