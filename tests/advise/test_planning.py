"""Plans: figures are those of a resolution, advice is safe, and Services are ranked by gain."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.accounting.flow_table import FlowCounts, FlowKey, FlowTable
from keepclose.accounting.prices import PRESETS, PriceTable, read_prices
from keepclose.advise.advice import overload_bound
from keepclose.advise.clients import ClientNodes
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism, switch_to, with_mechanism
from keepclose.advise.planning.client_weights import (
    ClientBasis,
    ServiceVolumes,
    distribute_clients,
)
from keepclose.advise.planning.comparison import ScenarioRow
from keepclose.advise.planning.mechanism_trials import AS_IS, BY_DEMAND, ServiceTrials
from keepclose.advise.planning.service_plans import ClusterPlan, PlannedService, plan_cluster
from keepclose.advise.planning.traffic_costs import CostModel
from keepclose.advise.resolution import (
    ResolvedService,
    measure_slices,
    plan_slices,
    resolve_services,
)
from keepclose.advise.service_objects import PodIndex, gather_objects
from keepclose.cli.manifests.yaml_tree import Unreadable, build_value, compose_tree
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.routing.balanced import BALANCED
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.reasons import ReasonCode
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service
from support.generated_clusters import GeneratedCluster, clusters

ZONES = ("zone-a", "zone-b", "zone-c")
KEY = NamespacedName("default", "web")


def cluster_of(*counts: int, name: str = "web", nodes: int = 2, **spec: Any) -> list[object]:
    """Return nodes in three zones, and a Service with so many pods in each zone."""
    objects: list[object] = [service(name, selector={"app": name}, **spec)]
    for zone, count in zip(ZONES, counts, strict=True):
        objects += [node(f"{zone}-{number}", zone) for number in range(nodes)]
        objects += [
            pod(
                f"{name}-{zone}-{number}",
                f"{zone}-{number % nodes}",
                ip=f"10.{ZONES.index(zone)}.{len(name)}.{number + 1}",
                labels={"app": name},
            )
            for number in range(count)
        ]
    return objects


def plan_of(
    inventory: Inventory,
    *,
    settings: PlannerSettings | None = None,
    flows: FlowTable | None = None,
    prices: PriceTable | None = None,
) -> ClusterPlan:
    """Return the plan of a cluster, by its flows if there are some, else by nodes."""
    volumes = None if flows is None else ServiceVolumes(flows)
    basis = ClientBasis.NODES if flows is None else ClientBasis.FLOWS
    clients = distribute_clients(inventory, basis, volumes=volumes)
    assert clients is not None
    return plan_cluster(
        inventory,
        settings=settings or PlannerSettings(),
        clients=clients,
        volumes=volumes,
        costs=CostModel(volumes=volumes, prices=prices, services=len(inventory.services)),
    )


def planned(*counts: int, **spec: Any) -> PlannedService:
    """Return the plan of the only Service of a cluster."""
    (only,) = plan_of(Inventory.of(cluster_of(*counts, **spec))).services
    return only


def resolution_after(
    made: GeneratedCluster, mechanism: Mechanism
) -> tuple[ResolvedService, PlannerSettings] | None:
    """Return what a resolution says after the Service was switched; None if it cannot be."""
    settings = with_mechanism(mechanism, made.settings)
    change = None if settings is None else switch_to(mechanism, made.service, settings)
    if settings is None or change is None:
        return None
    cluster = ClusterNodes.of(made.inventory.nodes)
    before = plan_slices(made.service, made.inventory, cluster, made.settings)
    written = replace(made.inventory, slices={made.service.key: before.slices})
    return plan_slices(change.service, written, cluster, settings), settings


@given(made=clusters())
def test_figures_of_trials_are_those_of_a_resolution(made: GeneratedCluster) -> None:
    """One planner that tries all mechanisms finds what a controller would plan for each."""
    cluster = ClusterNodes.of(made.inventory.nodes)
    clients = ClientNodes(NodeView.of(each) for each in made.inventory.nodes if each.is_ready)
    objects = gather_objects(made.service, made.inventory, made.settings.managed_by)
    trials = ServiceTrials(made.service, objects, cluster, made.settings, clients)
    bound = overload_bound(made.service)
    as_is = plan_slices(made.service, made.inventory, cluster, made.settings)
    assert trials.slices == as_is.slices
    assert trials.strategy == as_is.strategy
    assert trials.traffic == measure_slices(
        made.service, as_is.slices, clients, gates=made.settings.gates, bound=bound
    )
    tried = {each.figures.mechanism: each for each in trials.try_all()}
    for mechanism in Mechanism:
        expected = resolution_after(made, mechanism)
        if expected is None or mechanism not in tried:
            assert mechanism not in tried or expected is not None
            continue
        resolved, settings = expected
        want = measure_slices(
            resolved.service, resolved.slices, clients, gates=settings.gates, bound=bound
        )
        trial = tried[mechanism]
        assert trial.traffic[:4] == pytest.approx(want[:4], abs=1e-9)
        assert trial.figures.slices == len(resolved.slices)
        changed = sum(
            old != new
            for old, new in zip(
                sorted(as_is.slices, key=lambda each: each.metadata.name),
                sorted(resolved.slices, key=lambda each: each.metadata.name),
                strict=False,
            )
        )
        if not trial.figures.writes:
            assert changed == 0


@given(made=clusters())
def test_recommendations_of_plans_worsen_nothing(made: GeneratedCluster) -> None:
    """What is recommended never has a worse figure than the Service as it is."""
    assume(any(each.is_ready for each in made.inventory.nodes))
    (only,) = plan_of(made.inventory, settings=made.settings).services
    if not only.recommended:
        assert only.reason
        assert not only.command
        assert only.gain == 0
        return
    now, then = only.now, only.then
    assert only.command
    assert then.mechanism == only.recommended
    assert not then.needs
    assert then.in_zone >= now.in_zone - 1e-9
    assert then.failed <= now.failed + 1e-9
    assert then.overloaded <= now.overloaded
    assert then.busiest <= max(only.bound, now.busiest) * (1 + 1e-9)
    assert then.in_zone > now.in_zone or (now.overloaded and not then.overloaded)


@given(made=clusters())
def test_plan_and_resolve_advise_the_same(made: GeneratedCluster) -> None:
    """What a resolution advises a Service that asks for nothing is the plan's recommendation."""
    assume(any(each.is_ready for each in made.inventory.nodes))
    (resolved,) = resolve_services(made.inventory, settings=made.settings)
    asked = [
        reason for reason in resolved.strategy.reasons if reason.code is ReasonCode.NOTHING_ASKED
    ]
    if asked:
        (only,) = plan_of(made.inventory, settings=made.settings).services
        assert (asked[0].fix, asked[0].effect) == (only.command, only.effect)


@given(made=clusters(), selector=st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")))
def test_the_index_of_pods_finds_what_a_scan_finds(
    made: GeneratedCluster, selector: dict[str, str]
) -> None:
    """Any selector, also the empty one, chooses the same pods in the same order."""
    pods = [
        pod(f"q{number}", labels={"a": "xy"[number % 2], "b": "xy"[number // 2 % 2]})
        for number in range(8)
    ]
    inventory = Inventory.of([*made.inventory.nodes, *pods])
    chosen = service(selector=selector)
    assert PodIndex(inventory).pods_of(chosen) == inventory.pods_of(chosen)


def test_every_mechanism_is_shown_with_its_figures() -> None:
    """As is, and all that could govern instead, with what they need."""
    figures = {each.mechanism: each for each in planned(3, 3, 3).mechanisms}
    assert [*figures] == [
        AS_IS,
        "PreferSameZone",
        "PreferSameNode",
        "Auto",
        "Balanced",
        "subsetting",
    ]
    zone = figures["PreferSameZone"]
    assert (zone.in_zone, zone.busiest, zone.overloaded) == pytest.approx((1, 1, 0))
    assert (zone.slices, zone.writes, zone.hints_changed) == (1, 1, 9)
    assert figures["PreferSameNode"].busiest == pytest.approx(1.5)
    assert figures["PreferSameNode"].overloaded == 3
    assert figures["Balanced"].needs == (
        "--feature-gates TrafficDistributionCustomHeuristics=true",
    )


def test_the_mechanism_that_only_helps_is_recommended() -> None:
    """An even placement is told to prefer its zone, with the effect and the command."""
    only = planned(2, 2, 2)
    assert only.recommended == "PreferSameZone"
    assert only.effect == "in zone 33 -> 100 %, busiest 1.00x"
    assert only.reason == "keeps 100 % of the traffic in its zone, the busiest endpoint gets 1.00x"
    assert "kubectl patch service -n default web" in only.command


def test_a_closer_mechanism_that_overloads_is_named_as_the_reason() -> None:
    """Auto is taken where PreferSameZone would overload, and the reason says so."""
    only = planned(9, 1, 0)
    assert only.recommended == "Auto"
    assert "gives it 3.67x" in only.reason


def test_an_endpoint_above_the_bound_is_relieved_if_that_costs_nothing() -> None:
    """PreferSameZone with nothing in one zone overloads; Auto keeps as much close and does not."""
    only = planned(2, 1, 0, traffic_distribution="PreferSameZone")
    assert only.now.overloaded
    assert only.recommended == "Auto"
    assert only.then.in_zone >= only.now.in_zone
    assert not only.then.overloaded


def test_an_overload_that_costs_closeness_is_only_described() -> None:
    """What would lower the share in the zone is a trade, and never recommended."""
    only = planned(4, 4, 1, traffic_distribution="PreferSameZone")
    assert not only.recommended
    assert only.reason.startswith("the busiest endpoint gets 3.00x, beyond 1.2x; ")
    assert "in its zone" in only.reason


@pytest.mark.parametrize(
    ("counts", "spec", "reason"),
    [
        pytest.param((2, 2, 2), {"traffic_distribution": "PreferSameZone"}, "all traffic stays"),
        pytest.param((0, 0, 0), {}, "no ready endpoint serves it"),
        pytest.param((1, 0, 0), {}, "it has one ready endpoint"),
        pytest.param((2, 2, 2), {"internal_traffic_policy": "Local"}, "internalTrafficPolicy"),
        pytest.param((2, 0, 0), {}, "no mechanism keeps more"),
        pytest.param((3, 1, 1), {}, "PreferSameZone would keep 100 %"),
        pytest.param((2, 2, 2), {"selector": None}, "it has no selector"),
        pytest.param((2, 2, 2), {"cluster_ip": "None", "cluster_ips": ("None",)}, "it is headless"),
    ],
)
def test_a_service_is_left_alone_with_the_reason(
    counts: tuple[int, int, int], spec: dict[str, Any], reason: str
) -> None:
    """Each kind of Service that nothing helps says why."""
    objects = cluster_of(*counts)
    first = objects[0]
    assert isinstance(first, type(service()))
    objects[0] = replace(first, spec=replace(first.spec, **spec))
    (only,) = plan_of(Inventory.of(objects)).services
    assert not only.recommended
    assert only.reason.startswith(reason)


def test_the_service_of_the_api_server_does_not_count() -> None:
    """Every cluster has it; `resolve` leaves it out of its mean too."""
    alone = cluster_of(2, 2, 2, traffic_distribution="PreferSameZone")
    others = [
        service("kubernetes", selector={"app": "apiserver"}),
        pod("apiserver", f"{ZONES[0]}-0", ip="192.0.2.1", labels={"app": "apiserver"}),
    ]
    plan = plan_of(Inventory.of([*alone, *others]))
    [own] = [each for each in plan.services if each.key == "default/kubernetes"]
    assert (own.ready, own.weight) == (1, 0.0)
    assert plan.totals.services == 2
    assert plan.totals.in_zone == pytest.approx(1.0)


def test_what_a_missing_gate_would_give_is_named() -> None:
    """Balanced is better than nothing here; its gate is off, so it is named and not recommended."""
    only = planned(5, 1, 1, annotations={TOPOLOGY_MODE_ANNOTATION: "Disabled"})
    balanced = next(each for each in only.mechanisms if each.mechanism == "Balanced")
    assert balanced.needs
    gates = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
    settings = PlannerSettings(gates=gates, heuristics={"keepclose.dev/Balanced": BALANCED})
    (on,) = plan_of(Inventory.of(cluster_of(5, 1, 1)), settings=settings).services
    assert not next(each for each in on.mechanisms if each.mechanism == "Balanced").needs


def flows_of(
    *zones: tuple[str, str, int], name: str = "web", seconds: float = 86_400.0
) -> FlowTable:
    """Return flows of a day: from zone, to zone, bytes."""
    table = FlowTable(start=1_000_000.0, end=1_000_000.0 + seconds)
    for source, target, number in zones:
        key = FlowKey(
            namespace="default",
            service=name,
            port="http",
            client_zone=source,
            endpoint_zone=target,
        )
        table.add(key, FlowCounts(connections=number // 1000, request_bytes=number))
    return table


def aws_prices() -> PriceTable:
    """Return the preset of AWS: 0.01 USD for a GB out and as much for a GB in."""
    tree = compose_tree(PRESETS["aws"])
    assert tree is not None
    assert not isinstance(tree, Unreadable)
    return read_prices(build_value(tree), name="aws")


def test_money_is_that_of_bytes_by_zones() -> None:
    """All clients are in zone-a and use all zones: two thirds of a GB a day cross at 0.02 USD."""
    gigabyte = 1_000_000_000
    flows = flows_of(("zone-a", "zone-a", gigabyte))
    plan = plan_of(Inventory.of(cluster_of(3, 3, 3)), flows=flows, prices=aws_prices())
    days = 730 / 24
    assert plan.totals.cost == pytest.approx(days * 2 / 3 * 0.02)
    assert plan.totals.currency == "USD"
    assert plan.totals.bytes_a_month == pytest.approx(days * gigabyte)


def test_services_are_ranked_by_what_they_save() -> None:
    """Traffic decides, not the share alone: the busy Service comes first."""
    flows = flows_of(*[(zone, zone, 1_000_000_000) for zone in ZONES], name="busy")
    flows.merge(flows_of(*[(zone, zone, 1_000_000) for zone in ZONES], name="calm"))
    nodes = cluster_of(0, 0, 0)[1:]
    objects = [*cluster_of(2, 2, 2, name="calm"), *cluster_of(2, 2, 2, name="busy")]
    inventory = Inventory.of([*nodes, *(each for each in objects if each not in nodes)])
    plan = plan_of(inventory, flows=flows, prices=aws_prices())
    assert [each.name for each in plan.services] == ["busy", "calm"]
    first = plan.services[0]
    assert first.saved > plan.services[1].saved > 0
    assert plan.totals.possible_cost == pytest.approx(0)
    assert plan.totals.in_zone == pytest.approx(1 / 3)
    assert plan.totals.possible_in_zone == pytest.approx(1)


def test_balanced_by_demand_follows_the_flows() -> None:
    """Clients are in one zone; hints by CPU overload its endpoints, those by demand do not."""
    flows = flows_of(("zone-a", "zone-b", 9_000_000), ("zone-b", "zone-b", 1_000_000))
    (only,) = plan_of(Inventory.of(cluster_of(4, 4, 4)), flows=flows).services
    figures = {each.mechanism: each for each in only.mechanisms}
    assert figures[BY_DEMAND].busiest < figures["Balanced"].busiest
    assert any("--demand" in need for need in figures[BY_DEMAND].needs)


def test_clients_are_where_they_are_said_to_be() -> None:
    """Each basis weighs nodes as its name says, and the words name it."""
    owner = OwnerReference("apps/v1", "ReplicaSet", "front-abc", "u", True)
    front = pod(
        "front",
        "zone-a-1",
        ip="10.9.0.1",
        labels={"app": "front", "pod-template-hash": "abc"},
        owner=owner,
    )
    objects = [*cluster_of(1, 2, 0), node("big", "zone-c", cpu="32"), front]
    inventory = Inventory.of([*objects, node("down", "zone-c", ready=False)])

    def weights(basis: ClientBasis, workload: str = "") -> dict[str, float]:
        found = distribute_clients(inventory, basis, workload=workload)
        assert found is not None
        assert found.words
        return found.of(KEY).by_zone()

    assert weights(ClientBasis.NODES) == {"zone-a": 2, "zone-b": 2, "zone-c": 3}
    assert weights(ClientBasis.PODS) == {"zone-a": 2, "zone-b": 2}
    assert weights(ClientBasis.CPU) == {"zone-a": 8000, "zone-b": 8000, "zone-c": 40000}
    assert weights(ClientBasis.WORKLOAD, "default/front") == {"zone-a": 1}
    assert distribute_clients(inventory, ClientBasis.WORKLOAD, workload="default/no") is None
    assert distribute_clients(inventory, ClientBasis.FLOWS) is None


def test_a_service_without_flows_is_routed_all_the_same() -> None:
    """It counts nothing in sums by traffic, and is a Service that nodes route."""
    plan = plan_of(
        Inventory.of(cluster_of(2, 2, 2)), flows=flows_of(("zone-a", "zone-a", 1), name="x")
    )
    assert (plan.totals.routed, plan.services[0].weight) == (1, 0)


def test_a_scenario_that_only_costs_more_changes_a_service() -> None:
    """Endpoints in another zone may be as far away, and dearer."""
    row = ScenarioRow("default/web", (3, 3), (0, 0), (0, 0), (0, 0), (1, 1), (5.0, 9.0))
    assert row.is_changed
    assert not replace(row, cost=(5.0, 5.0)).is_changed
    assert not replace(row, cost=(None, None)).is_changed
