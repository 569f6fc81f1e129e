"""What lint says of counts and placements is what the planner and the scheduler do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory
from keepclose.advise.linting.context import LintContext, LintedObjects, LintLimits
from keepclose.advise.linting.placements import ModelPods, seeded
from keepclose.advise.linting.promises import ServicePromise, place_in_zones, spread_over_zones
from keepclose.advise.linting.rollouts import play_rollouts
from keepclose.advise.linting.workload_kinds import LintedWorkload, view_workload
from keepclose.advise.resolution import plan_slices
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.field_errors import FieldError
from keepclose.model.workload import Node
from keepclose.model.workloads.types import Deployment
from keepclose.slices.settings import PlannerSettings
from support import builders
from support.lint_cases import Change, manifests

SETTINGS = PlannerSettings()
AUTO = {"service.kubernetes.io/topology-mode": "Auto"}
NODES_BY_ZONE = st.lists(st.integers(1, 5), min_size=2, max_size=4)


def nodes_of(sizes: list[int]) -> tuple[Node, ...]:
    """Return as many nodes for each zone."""
    return tuple(
        builders.node(
            f"n{zone}-{number}",
            f"zone-{zone}",
            labels={"kubernetes.io/hostname": f"n{zone}-{number}"},
        )
        for zone, size in enumerate(sizes)
        for number in range(size)
    )


def context_of(nodes: tuple[Node, ...], **service: Any) -> LintContext:
    """Return the context of one Service on these nodes."""
    objects = LintedObjects(services=(builders.service(**service),), nodes=nodes)
    return LintContext(objects, settings=SETTINGS, limits=LintLimits(), assumed_zones=3)


def workload(*changes: Change) -> LintedWorkload:
    """Return the Deployment of the manifests."""
    decoded = convert_as(Deployment, manifests(*changes)["deployment"])
    assert not isinstance(decoded, Rejected)
    viewed = view_workload(decoded)
    assert not isinstance(viewed, FieldError)
    return viewed


@settings(max_examples=60, deadline=None)
@given(sizes=NODES_BY_ZONE, count=st.integers(1, 20))
def test_counts_lose_hints_as_the_planner_plans_them(sizes: list[int], count: int) -> None:
    """For any zones and any number of ready pods under topology mode Auto."""
    context = context_of(nodes_of(sizes), annotations=AUTO)
    (case,) = context.cases
    placed = spread_over_zones(count, context)
    assert sum(placed.values()) == count
    pods = tuple(
        builders.pod(f"p{node}-{number}", node, ip=f"10.0.{index}.{number + 1}")
        for index, (node, pods_there) in enumerate(placed.items())
        for number in range(pods_there)
    )
    planned = plan_slices(
        case.service, Inventory(pods={"default": pods}), context.cluster, SETTINGS
    )
    endpoints = [each for item in planned.slices for each in item.endpoints]
    assert len(endpoints) == count
    has_hints = all(endpoint.hints is not None for endpoint in endpoints)
    assert ServicePromise(case, context).loses_hints(count) is not has_hints


@settings(max_examples=60, deadline=None)
@given(sizes=NODES_BY_ZONE, count=st.integers(1, 40))
def test_an_even_spread_is_even(sizes: list[int], count: int) -> None:
    """Zones differ by one pod at most, and so do nodes of a zone."""
    context = context_of(nodes_of(sizes))
    placed = spread_over_zones(count, context)
    by_zone: Counter[str] = Counter(dict.fromkeys(context.zones, 0))
    for node, number in placed.items():
        by_zone[context.zone_of[node]] += number
    assert max(by_zone.values()) - min(by_zone.values()) <= 1
    for zone in context.zones:
        pods = [placed.get(node, 0) for node, at in context.zone_of.items() if at == zone]
        assert max(pods) - min(pods) <= 1


@settings(max_examples=40, deadline=None)
@given(sizes=NODES_BY_ZONE, replicas=st.integers(1, 12), max_load=st.floats(1.05, 2.0))
def test_advised_numbers_keep_the_load(sizes: list[int], replicas: int, max_load: float) -> None:
    """Measured again, each advised number and division stays within the load."""
    linted = workload(("deployment", "spec/replicas", replicas))
    service = builders.service(namespace="shop", traffic_distribution="PreferSameZone")
    objects = LintedObjects(services=(service,), workloads=(linted,), nodes=nodes_of(sizes))
    context = LintContext(objects, settings=SETTINGS, limits=LintLimits(), assumed_zones=3)
    promise = ServicePromise(context.cases[0], context)
    advice = promise.advise_replicas(max_load)
    assert advice is not None
    for count in advice.within_load:
        assert count >= replicas
        assert promise.measure(spread_over_zones(count, context)).busiest <= max_load + 1e-6
    if advice.by_zone:
        placed = place_in_zones(advice.by_zone, context)
        assert sum(placed.values()) >= replicas
        assert set(advice.by_zone) == set(context.zones)
        assert promise.measure(placed).busiest <= max_load + 1e-6


def test_zones_of_different_size_get_pods_by_their_nodes() -> None:
    """Four, two and two nodes: an even spread overloads the first zone, whatever the number."""
    linted = workload(("deployment", "spec/replicas", 3))
    service = builders.service(namespace="shop", traffic_distribution="PreferSameZone")
    objects = LintedObjects(services=(service,), workloads=(linted,), nodes=nodes_of([4, 2, 2]))
    context = LintContext(objects, settings=SETTINGS, limits=LintLimits(), assumed_zones=3)
    advice = ServicePromise(context.cases[0], context).advise_replicas(1.1)
    assert advice is not None
    assert advice.within_load == ()
    assert advice.by_zone == {"zone-0": 2, "zone-1": 1, "zone-2": 1}


@settings(max_examples=40, deadline=None)
@given(sizes=NODES_BY_ZONE, count=st.integers(1, 12), seed=st.integers(0, 1 << 30))
def test_pods_are_placed_within_their_constraints(sizes: list[int], count: int, seed: int) -> None:
    """After each pod no zone has over maxSkew pods more than another, whatever the seed."""
    nodes = nodes_of(sizes)
    model = ModelPods(workload(), nodes, random=seeded(seed), has_given_nodes=True)
    for _ in range(count):
        pod = model.add(labels={"pod-template-hash": "x"})
        counts = model.ready_by_zone()
        zones = {node.zone for node in nodes}
        assert max(counts.values()) - min(counts.get(zone, 0) for zone in zones) <= 1
        if not pod.spec.node_name:
            break


@pytest.mark.parametrize(("unavailable", "surge"), [(0, 1), (1, 0), ("25%", "25%"), (2, 3)])
def test_rollouts_keep_the_bounds_of_their_deployment(
    unavailable: int | str, surge: int | str
) -> None:
    """Ready pods never fall below replicas less maxUnavailable, and all rollouts end."""
    rolling = {"maxUnavailable": unavailable, "maxSurge": surge}
    strategy = {"type": "RollingUpdate", "rollingUpdate": rolling}
    deployment = workload(("deployment", "spec/strategy", strategy))
    least = 9 - {0: 0, 1: 1, "25%": 2, 2: 2}[unavailable]
    seen: set[int] = set()

    def watch(ready_by_zone: Any) -> bool:
        seen.add(sum(ready_by_zone.values()))
        return True

    share = play_rollouts(deployment, nodes_of([9, 9, 9]), watch, runs=8, has_given_nodes=True)
    assert share is not None
    assert (share.kept, share.played, share.stuck) == (8, 8, 0)
    assert min(seen) == least
    assert max(seen) <= 9 + {1: 1, 0: 0, "25%": 3, 3: 3}[surge]


def test_a_rollout_without_room_is_stuck() -> None:
    """A pod for each node and none to spare: the surplus pod finds no node."""
    crowded = replace(workload(), is_one_per_node=True)
    share = play_rollouts(
        crowded, nodes_of([3, 3, 3]), lambda _: True, runs=4, has_given_nodes=True
    )
    assert share is not None
    assert share.stuck == 4


def test_large_deployments_are_not_played() -> None:
    """A billion replicas cost nothing."""
    huge = workload(("deployment", "spec/replicas", 2**31 - 1))
    nodes = nodes_of([1, 1])
    assert play_rollouts(huge, nodes, lambda _: True, has_given_nodes=True) is None


def test_a_drained_node_without_clients_leaves_the_clients_of_its_zone() -> None:
    """Clients run on workers, so a zone is only without clients if its last worker is drained."""
    control_plane = {"node-role.kubernetes.io/control-plane": ""}
    nodes = (
        builders.node("n1", "zone-a"),
        builders.node("cp", "zone-a", labels=control_plane),
        builders.node("n2", "zone-b"),
    )
    context = context_of(nodes, traffic_distribution="PreferSameZone")
    promise = ServicePromise(context.cases[0], context)
    assert not promise.keeps({"zone-b": 1}, drained="cp")
    assert promise.keeps({"zone-b": 1}, drained="n1")
