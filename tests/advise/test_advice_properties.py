"""Whatever is advised in any cluster, following it worsens nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.advice import find_advice, overload_bound, recommend
from keepclose.advise.clients import ClientNodes
from keepclose.advise.mechanism_changes import MechanismChange
from keepclose.advise.resolution import measure_slices, plan_slices, resolve_services
from keepclose.advise.routed_traffic import RoutedTraffic
from keepclose.model.service.types import Service
from keepclose.routing.port_endpoints import NodeView, collect_endpoints
from keepclose.routing.selection import select
from keepclose.routing.service_ports import routed_ports
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import address_types
from support.generated_clusters import GeneratedCluster, clusters

EXACT = 1e-9


def traffic_by_hand(
    made: GeneratedCluster, service: Service, settings: PlannerSettings
) -> tuple[RoutedTraffic, dict[str, str]]:
    """Return the figures of a changed Service, node by node, and its policies by port.

    The cluster has the slices of the unchanged Service, as its controller wrote them.
    """
    cluster = ClusterNodes.of(made.inventory.nodes)
    before = plan_slices(made.service, made.inventory, cluster, made.settings)
    written = replace(made.inventory, slices={service.key: before.slices}, services=(service,))
    slices = plan_slices(service, written, cluster, settings).slices
    sent = failed = in_zone = on_node = busiest = 0.0
    policies = {}
    for family in address_types(service):
        endpoints = collect_endpoints(slices, family, gates=settings.gates)
        for port in routed_ports(service, family, gates=settings.gates, assume_allocated=True):
            policies[f"{family} {port.name}"] = f"{port.internal_policy} {port.external_policy}"
            loads: dict[str, float] = {}
            for node in made.inventory.nodes:
                if not node.is_ready:
                    continue
                all_endpoints = endpoints.get(port.key, ())
                view = NodeView.of(node)
                chosen = select(port, all_endpoints, node=view, gates=settings.gates)
                sent += 1
                failed += not chosen.internal.endpoints
                whole = sum(one.weight for one in chosen.internal.endpoints)
                for one in chosen.internal.endpoints:
                    loads[one.key] = loads.get(one.key, 0) + one.weight / whole
                    in_zone += one.weight / whole * (bool(node.zone) and one.zone == node.zone)
                    on_node += one.weight / whole * (one.node_name == node.name)
            ready = sum(one.ready for one in endpoints.get(port.key, ())) or len(loads)
            if loads:
                busiest = max(busiest, max(loads.values()) * ready / sum(loads.values()))
    sent = sent or 1
    return RoutedTraffic(in_zone / sent, on_node / sent, failed / sent, busiest), policies


def is_near(one: RoutedTraffic, other: RoutedTraffic) -> bool:
    """Whether the figures of two measurements are the same."""
    return all(abs(a - b) < EXACT for a, b in zip(one[:4], other[:4], strict=True))


def check_followed(
    made: GeneratedCluster, change: MechanismChange, promised: RoutedTraffic
) -> None:
    """Follow an advice, and check that it keeps its promise and that nothing is worse."""
    before, policies = traffic_by_hand(made, made.service, made.settings)
    after, changed_policies = traffic_by_hand(made, change.service, change.settings)
    assert is_near(after, promised)
    assert after.in_zone >= before.in_zone - EXACT
    assert after.failed <= before.failed + EXACT
    limit = max(1 + overload_bound(made.service), before.busiest)
    assert after.busiest <= limit * (1 + EXACT)
    gains = (
        after.in_zone - before.in_zone,
        after.on_node - before.on_node,
        before.busiest - after.busiest,
    )
    assert max(gains) > EXACT
    assert changed_policies == policies
    spec = made.service.spec
    assert change.service.spec == replace(
        spec, traffic_distribution=change.service.spec.traffic_distribution
    )


@given(made=clusters())
def test_no_advice_of_resolve_worsens_any_figure(made: GeneratedCluster) -> None:
    """In-zone share, failed connections and the busiest endpoint are as promised, and no worse."""
    cluster = ClusterNodes.of(made.inventory.nodes)
    clients = ClientNodes(NodeView.of(node) for node in made.inventory.nodes if node.is_ready)
    planned = plan_slices(made.service, made.inventory, cluster, made.settings)
    bound = overload_bound(made.service)
    written = replace(made.inventory, slices={made.service.key: planned.slices})

    def measure(change: MechanismChange) -> RoutedTraffic:
        trial = plan_slices(change.service, written, cluster, change.settings)
        gates = change.settings.gates
        return measure_slices(change.service, trial.slices, clients, gates=gates, bound=bound)

    now = measure_slices(
        made.service, planned.slices, clients, gates=made.settings.gates, bound=bound
    )
    reasons = (*planned.strategy.reasons, *planned.reasons)
    advice = find_advice(made.service, reasons, made.settings, now=lambda: now, measure=measure)
    recommended = recommend(made.service, made.settings, now=now, measure=measure)
    for each in (*advice.values(), *([recommended] if recommended else [])):
        check_followed(made, each.change, each.then)
    (resolved,) = resolve_services(made.inventory, settings=made.settings)
    shown = {
        reason.fix: reason.effect
        for reason in (*resolved.strategy.reasons, *resolved.reasons)
        if reason.effect
    }
    assert shown == {each.command: each.effect for each in advice.values()}


@given(
    made=clusters(),
    weights=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=8, max_size=8),
)
def test_figures_of_groups_are_those_of_all_nodes(
    made: GeneratedCluster, weights: list[float]
) -> None:
    """Nodes that are measured together get the same endpoints as each by itself would."""
    cluster = ClusterNodes.of(made.inventory.nodes)
    slices = plan_slices(made.service, made.inventory, cluster, made.settings).slices
    by_node = {f"n{number}": weight for number, weight in enumerate(weights)}
    views = [NodeView.of(node) for node in made.inventory.nodes]
    sums = [0.0, 0.0, 0.0]
    whole = 0.0
    for view in views:
        alone = ClientNodes([view], by_node)
        if not len(alone):
            continue
        figures = measure_slices(made.service, slices, alone, gates=made.settings.gates, bound=0.2)
        whole += by_node[view.name]
        for number, figure in enumerate(figures[:3]):
            sums[number] += by_node[view.name] * figure
    together = measure_slices(
        made.service,
        slices,
        ClientNodes(views, by_node),
        gates=made.settings.gates,
        bound=0.2,
    )
    assert all(
        abs(one - other / (whole or 1)) < EXACT
        for one, other in zip(together[:3], sums, strict=True)
    )
