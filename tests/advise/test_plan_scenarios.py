"""What if: each change of a cluster, and what does not fit it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism
from keepclose.advise.planning.pod_placement import PodPlacement
from keepclose.advise.planning.scenarios import (
    ScenarioError,
    add_zone,
    drain_node,
    lose_zone,
    parse_mechanism,
    scale_service,
    set_mechanism,
    with_pods,
)
from keepclose.advise.resolution import plan_slices
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.workload import NodeSpec, Pod, Taint
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service

KEY = NamespacedName("default", "web")
OWNED = OwnerReference("apps/v1", "ReplicaSet", "web-1", "u1", True)
DAEMON = OwnerReference("apps/v1", "DaemonSet", "web", "u2", True)


def cluster() -> Inventory:
    """Return two nodes in each of two zones, and pods on the first and the third."""
    return Inventory.of(
        [
            *(node(f"n{number}", "zone-a" if number < 2 else "zone-b") for number in range(4)),
            service(),
            pod("p1", "n0", ip="10.0.0.1", owner=OWNED),
            pod("p2", "n2", ip="10.0.0.2", owner=OWNED),
        ]
    )


def places(inventory: Inventory) -> list[str]:
    """Return the nodes of all pods, sorted."""
    return sorted(each.spec.node_name for each in inventory.pods.get("default", ()))


def test_more_pods_are_spread_over_zones_and_nodes() -> None:
    """Six pods on four nodes in two zones: three in each zone, none idle."""
    scaled = scale_service(cluster(), KEY, 6)
    zones = Counter("a" if name in ("n0", "n1") else "b" for name in places(scaled))
    assert zones == {"a": 3, "b": 3}
    assert {*places(scaled)} == {"n0", "n1", "n2", "n3"}
    addresses = [each.status.pod_ips[0].ip for each in scaled.pods["default"]]
    assert len({*addresses}) == 6


@given(first=st.integers(0, 12), then=st.integers(0, 12))
def test_a_service_has_as_many_pods_as_asked(first: int, then: int) -> None:
    """Up and down again, zones never differ by more than one pod."""
    scaled = scale_service(cluster(), KEY, max(first, 1))
    scaled = scale_service(scaled, KEY, then)
    assert len(places(scaled)) == then
    zones = Counter("a" if name in ("n0", "n1") else "b" for name in places(scaled))
    assert abs(zones["a"] - zones["b"]) <= 1


@given(
    places=st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12),
)
def test_pods_are_removed_from_where_most_of_them_are(places: list[tuple[int, bool]]) -> None:
    """Unready pods go first, then those of the fullest zone, then node, counted each time."""
    inventory = cluster()
    pods = [
        pod(f"q{number}", f"n{home}", ready=ready) for number, (home, ready) in enumerate(places)
    ]
    zones = {each.name: each.zone for each in inventory.nodes}
    order = PodPlacement(inventory.nodes, pods).order_of_removal(pods)
    assert sorted(each.metadata.name for each in order) == sorted(
        each.metadata.name for each in pods
    )
    for number, removed in enumerate(order):
        rest = order[number:]
        by_zone = Counter(zones[each.spec.node_name] for each in rest)
        by_node = Counter(each.spec.node_name for each in rest)

        def rank(each: Pod) -> tuple[bool, int, int]:
            home = each.spec.node_name
            return not each.is_ready, by_zone[zones[home]], by_node[home]  # noqa: B023

        assert rank(removed) == max(map(rank, rest))


def test_a_drained_node_gives_its_pods_to_others() -> None:
    """Owned pods run elsewhere, in the zone with fewest; DaemonSets and bare pods do not."""
    inventory = cluster()
    more = [pod("d", "n0", ip="10.0.0.3", owner=DAEMON), pod("bare", "n0", ip="10.0.0.4")]
    inventory = replace(inventory, pods={"default": (*inventory.pods["default"], *more)})
    drained = drain_node(inventory, "n0")
    assert [each.name for each in drained.nodes] == ["n1", "n2", "n3"]
    assert places(drained) == ["n1", "n2"]


def test_pods_are_not_placed_on_nodes_that_refuse_them() -> None:
    """Cordoned, tainted and unready nodes are skipped; without others that is an error."""
    inventory = cluster()
    repelling = (Taint("dedicated", "x", "NoSchedule"),)
    changed = (
        replace(inventory.nodes[0], spec=NodeSpec(unschedulable=True)),
        replace(inventory.nodes[1], spec=NodeSpec(taints=repelling)),
        node("n2", "zone-b", ready=False),
        inventory.nodes[3],
    )
    inventory = replace(inventory, nodes=changed)
    assert places(scale_service(inventory, KEY, 5)) == ["n0", "n2", "n3", "n3", "n3"]
    with pytest.raises(ScenarioError, match="no node takes pods"):
        scale_service(replace(inventory, nodes=changed[:3]), KEY, 5)


def test_a_lost_zone_takes_its_nodes_and_pods() -> None:
    """Nothing is replaced yet."""
    lost = lose_zone(cluster(), "zone-a")
    assert [each.name for each in lost.nodes] == ["n2", "n3"]
    assert places(lost) == ["n2"]


def test_an_added_zone_is_like_the_others() -> None:
    """As many nodes as the median zone has, of the median CPU, without pods."""
    added = add_zone(cluster(), "zone-c")
    new = [each for each in added.nodes if each.zone == "zone-c"]
    assert [each.status.allocatable["cpu"] for each in new] == ["4000m", "4000m"]
    assert all(each.is_ready for each in new)
    assert len(add_zone(cluster(), "zone-a", 3).nodes) == 7
    assert places(added) == places(cluster())


def test_a_mechanism_is_set_with_the_gates_that_it_needs() -> None:
    """The Service asks for it, and the settings let it govern."""
    inventory, settings = set_mechanism(cluster(), KEY, Mechanism.BALANCED, PlannerSettings())
    (changed,) = inventory.services
    planned = plan_slices(changed, inventory, ClusterNodes.of(inventory.nodes), settings)
    assert planned.strategy.label == "keepclose.dev/Balanced"
    same, _ = set_mechanism(inventory, KEY, Mechanism.BALANCED, settings)
    assert same == inventory


@pytest.mark.parametrize(
    "name", ["preferclose", "PreferSameZone", "keepclose.dev/Balanced", "AUTO"]
)
def test_mechanisms_are_known_by_the_names_that_users_know(name: str) -> None:
    """The case does not matter."""
    assert parse_mechanism(name) in Mechanism


def test_pods_that_only_slices_name_can_move_too() -> None:
    """A dump without Pods is completed from its slices, and what is lost does not come back."""
    inventory = cluster()
    nodes = ClusterNodes.of(inventory.nodes)
    slices = plan_slices(inventory.services[0], inventory, nodes, PlannerSettings()).slices
    dumped = replace(inventory, pods={}, slices={KEY: slices})
    assert places(with_pods(dumped)) == ["n0", "n2"]
    gone = lose_zone(lose_zone(dumped, "zone-a"), "zone-b")
    planned = plan_slices(gone.services[0], gone, ClusterNodes.of(gone.nodes), PlannerSettings())
    assert sum(len(each.endpoints) for each in planned.slices) == 0


def test_pods_of_a_namespace_that_was_not_read_come_from_its_slices() -> None:
    """Pods of one namespace say nothing about another one of which only slices are known."""
    inventory = cluster()
    nodes = ClusterNodes.of(inventory.nodes)
    slices = plan_slices(inventory.services[0], inventory, nodes, PlannerSettings()).slices
    dumped = Inventory.of([*inventory.nodes, service(), pod("x", "n0", namespace="other"), *slices])
    assert places(scale_service(dumped, KEY, 4)) == ["n0", "n1", "n2", "n3"]


def test_pods_that_are_gone_stay_gone_in_the_next_change() -> None:
    """A drained node takes a bare pod; without the other one its slice brings back neither."""
    objects = [node("n0"), node("n2", "zone-b"), service()]
    pods = [pod("p1", "n0", ip="10.0.0.1"), pod("p2", "n2", ip="10.0.0.2")]
    inventory = Inventory.of([*objects, *pods])
    nodes = ClusterNodes.of(inventory.nodes)
    slices = plan_slices(inventory.services[0], inventory, nodes, PlannerSettings()).slices
    empty = scale_service(drain_node(replace(inventory, slices={KEY: slices}), "n0"), KEY, 0)
    planned = plan_slices(empty.services[0], empty, ClusterNodes.of(empty.nodes), PlannerSettings())
    assert sum(len(each.endpoints) for each in planned.slices) == 0


def test_what_does_not_fit_says_what_would() -> None:
    """Unknown names and numbers out of range."""
    for wrong in (
        lambda: drain_node(cluster(), "m1"),
        lambda: lose_zone(cluster(), "zone-z"),
        lambda: scale_service(cluster(), NamespacedName("default", "wab"), 3),
        lambda: parse_mechanism("Near"),
    ):
        with pytest.raises(ScenarioError) as error:
            wrong()
        assert error.value.fix
    only, key = Inventory.of([service("kubernetes")]), NamespacedName("default", "kubernetes")
    with pytest.raises(ScenarioError, match="the API server manages"):
        set_mechanism(only, key, Mechanism.AUTO, PlannerSettings())
