"""The plan for one Service: mechanisms, transitions, and that state changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import Endpoint, EndpointHints, EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.well_known import FOR_REGION_LABEL, FOR_ZONE_LABEL, REGION_LABEL
from keepclose.model.workload import Node, Pod
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import HeuristicRegistry, Matrix, ZoneDemand
from keepclose.routing.local_groups import LOCAL_SHARED
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.strategy import StrategyName
from keepclose.routing.subsets import Approach, SubsetOptions
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.endpoints import EndpointId, endpoint_id
from keepclose.slices.service_planner import ServicePlan, ServicePlanner, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from keepclose.slices.slice_metadata import is_owned_by
from support.builders import endpoint, endpoint_slice, node, pod, service

MODE = "service.kubernetes.io/topology-mode"
SUBSETTING = "endpointslice.kubernetes.io/subsetting"
NODE_TOPOLOGY = "service.kubernetes.io/node-topology"
ALL = FeatureGates(frozenset(Gate)).without(Gate.SERVICE_TOPOLOGY)
Seats = dict[tuple[str, EndpointId], tuple[str, EndpointHints | None, str]]
ZONES = [node("n1", "zone-a"), node("n2", "zone-b"), node("n3", "zone-c")]


def pods_on(**counts: int) -> list[Pod]:
    """Return so many ready pods on each node, n1=2, n2=1, ..."""
    names = [name for name, count in counts.items() for _ in range(count)]
    return [pod(f"p{n:02}", name, ip=f"10.0.0.{n + 1}") for n, name in enumerate(names)]


class World:
    """A Service with its pods and nodes, whose plans are carried out at once.

    Every plan of the kept state is compared with a plan from nothing.
    """

    def __init__(
        self,
        made: Service,
        nodes: list[Node],
        setup: PlannerSettings = PlannerSettings(),  # noqa: B008 - frozen
    ) -> None:
        self.service = made
        self.cluster = ClusterNodes.of(nodes)
        self.settings = setup
        self.pods: dict[NamespacedName, Pod] = {}
        self.slices: list[EndpointSlice] = []
        self.state = ServicePlanner(made, cluster=self.cluster, settings=setup)

    def add(self, *pods: Pod) -> None:
        """Add or change pods."""
        for one in pods:
            self.pods[one.key] = one
            self.state.set_pod(one)

    def drop(self, *names: str) -> None:
        """Remove pods."""
        for name in names:
            key = NamespacedName("default", name)
            self.pods.pop(key, None)
            self.state.drop_pod(key)

    def change(self, made: Service) -> None:
        """Change the Service."""
        self.service = made
        self.state.set_service(made)

    def relabel(self, nodes: list[Node]) -> None:
        """Change the nodes."""
        self.cluster = ClusterNodes.of(nodes)
        self.state.set_cluster(self.cluster)

    def fresh(self) -> ServicePlan:
        """Return the plan from nothing."""
        return plan_service(
            self.service,
            pods=self.pods.values(),
            slices=self.slices,
            cluster=self.cluster,
            settings=self.settings,
        )

    def sync(self) -> ServicePlan:
        """Plan, compare with the plan from nothing, and carry the plan out."""
        plan = self.state.plan()
        assert plan == self.fresh()
        before = {one.metadata.name for one in self.slices}
        seats = self._seats()
        for per_family in plan.plans.values():
            self.slices = apply_plan(self.slices, per_family)
        self.slices = [one for one in self.slices if one not in plan.stray]
        self._check_counts(plan, seats)
        for one in self.slices:
            self.state.observe(one)
        for name in before - {one.metadata.name for one in self.slices}:
            self.state.forget(name)
        return plan

    def _seats(self) -> Seats:
        """Return zone label, hints and zone of every endpoint in a slice of the Service."""
        return {
            (piece.address_type, endpoint_id(one)): (
                piece.metadata.labels.get(FOR_ZONE_LABEL, ""),
                one.hints,
                one.zone or "",
            )
            for piece in self.slices
            if is_owned_by(piece, self.service)
            for one in piece.endpoints
        }

    def _check_counts(
        self,
        plan: ServicePlan,
        before: Seats,
    ) -> None:
        """Compare what a plan says about endpoints with what became of each of them."""
        after = self._seats()
        for family, one in plan.plans.items():
            both = [key for key in before if key in after and key[0] == family]
            users = [(before[key][0] or before[key][2], after[key][0]) for key in both]
            assert one.reallocated == sum(new not in ("", old) for old, new in users)
            assert one.rehinted == sum(before[key][1] != after[key][1] for key in both)

    @property
    def endpoints(self) -> list[Endpoint]:
        """All endpoints as written."""
        return [one for piece in self.slices for one in piece.endpoints]

    def hints(self) -> Counter[tuple[str, str, str]]:
        """Return how many ready endpoints are in a zone, hinted to a zone, hinted to a node."""
        return Counter(
            (
                one.zone or "",
                one.hints.for_zones[0].name if one.hints and one.hints.for_zones else "",
                one.hints.for_nodes[0].name if one.hints and one.hints.for_nodes else "",
            )
            for one in self.endpoints
            if one.is_ready
        )

    def groups(self) -> dict[str, Counter[str]]:
        """Return the endpoints by the zone that their slice is for, and the zone they are in."""
        found: dict[str, Counter[str]] = {}
        for piece in self.slices:
            zone = piece.metadata.labels.get(FOR_ZONE_LABEL, "")
            found.setdefault(zone, Counter()).update(e.zone or "" for e in piece.endpoints)
        return found


def synced(made: Service, setup: PlannerSettings, **counts: int) -> World:
    """Return a world on three zones with so many pods on each node, in sync."""
    world = World(made, ZONES, setup)
    world.add(*pods_on(**counts))
    world.sync()
    return world


@pytest.mark.parametrize(
    ("made", "gates", "want"),
    [
        pytest.param(
            service(traffic_distribution="PreferClose", annotations={MODE: "Disabled"}),
            FeatureGates(),
            {("zone-a", "zone-a", ""): 1, ("zone-b", "zone-b", ""): 3, ("zone-c", "zone-c", ""): 2},
            id="PreferClose with the annotation disabled",
        ),
        pytest.param(
            service(traffic_distribution="PreferClose", annotations={MODE: "Auto"}),
            FeatureGates(),
            {
                ("zone-a", "zone-a", ""): 1,
                ("zone-b", "zone-b", ""): 2,
                ("zone-b", "zone-a", ""): 1,
                ("zone-c", "zone-c", ""): 2,
            },
            id="Auto overrides PreferClose",
        ),
        pytest.param(
            service(),
            FeatureGates(),
            {("zone-a", "", ""): 1, ("zone-b", "", ""): 3, ("zone-c", "", ""): 2},
            id="no wish, no hints",
        ),
        pytest.param(
            service(traffic_distribution="PreferSameNode"),
            FeatureGates(),
            {
                ("zone-a", "zone-a", "n1"): 1,
                ("zone-b", "zone-b", "n2"): 3,
                ("zone-c", "zone-c", "n3"): 2,
            },
            id="PreferSameNode hints zone and node",
        ),
        pytest.param(
            service(traffic_distribution="PreferSameZone"),
            FeatureGates().without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION),
            {("zone-a", "", ""): 1, ("zone-b", "", ""): 3, ("zone-c", "", ""): 2},
            id="PreferSameZone with its gate off",
        ),
        pytest.param(
            service(annotations={MODE: "Node"}),
            FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY),
            {("zone-a", "", "n1"): 1, ("zone-b", "", "n2"): 3, ("zone-c", "", "n3"): 2},
            id="the annotation value Node hints nodes only",
        ),
        pytest.param(
            service(traffic_distribution="PreferSameZone", annotations={NODE_TOPOLOGY: "Enabled"}),
            FeatureGates().with_gates(Gate.NODE_LEVEL_TOPOLOGY),
            {
                ("zone-a", "zone-a", "n1"): 1,
                ("zone-b", "zone-b", "n2"): 3,
                ("zone-c", "zone-c", "n3"): 2,
            },
            id="node topology is laid over PreferSameZone",
        ),
    ],
)
def test_mechanisms_write_their_hints(
    made: Service, gates: FeatureGates, want: dict[tuple[str, str, str], int]
) -> None:
    """Six pods placed 1/3/2 on three equal zones get the hints of the governing mechanism."""
    world = synced(made, PlannerSettings(gates=gates), n1=1, n2=3, n3=2)
    assert world.hints() == want
    assert world.state.plan().is_empty


def test_transitions_of_one_pod_follow_the_service() -> None:
    """Hints come and go with field and annotation, and Auto never falls back to the field."""
    world = World(service(), [node("n1", "zone-a")])
    world.add(pod())
    none, zone, both = ("zone-a", "", ""), ("zone-a", "zone-a", ""), ("zone-a", "zone-a", "n1")
    steps: list[tuple[dict[str, Any], tuple[str, str, str]]] = [
        ({}, none),
        ({"traffic_distribution": "PreferClose"}, zone),
        ({"traffic_distribution": "PreferClose", "annotations": {MODE: "Auto"}}, none),
        ({"traffic_distribution": "PreferClose"}, zone),
        ({}, none),
        ({"traffic_distribution": "PreferSameZone"}, zone),
        ({"traffic_distribution": "PreferSameNode"}, both),
        ({}, none),
    ]
    for changes, want in steps:
        world.change(service(**changes))
        world.sync()
        assert world.hints() == {want: 1}
    world.relabel([node("n1", None)])
    world.change(service(traffic_distribution="PreferSameNode"))
    world.sync()
    assert world.hints() == {("", "", "n1"): 1}


def test_a_gate_that_goes_off_takes_the_hints_along_and_on_brings_them_back() -> None:
    """Rollback and re-enablement of PreferSameTrafficDistribution, as KEP-3015 describes."""
    made = service(traffic_distribution="PreferSameNode")
    on = PlannerSettings()
    off = PlannerSettings(gates=FeatureGates().without(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION))
    world = synced(made, on, n1=1)
    for setup, want in ((off, ("zone-a", "", "")), (on, ("zone-a", "zone-a", "n1"))):
        restarted = World(made, ZONES, setup)
        restarted.slices = world.slices
        for one in world.slices:
            restarted.state.observe(one)
        restarted.add(*world.pods.values())
        restarted.sync()
        assert restarted.hints() == {want: 1}
        world = restarted


def test_a_zone_label_that_changes_moves_endpoints_and_hints() -> None:
    """Relabelling a node rewrites the zone and hints of its pods alone."""
    world = synced(service(traffic_distribution="PreferSameZone"), PlannerSettings(), n1=1, n2=1)
    world.relabel([node("n1", "zone-z"), *ZONES[1:]])
    plan = world.sync()
    assert world.hints() == {("zone-z", "zone-z", ""): 1, ("zone-b", "zone-b", ""): 1}
    assert len(plan.plans["IPv4"].update) == 1


def test_a_node_that_vanishes_drops_its_pods_with_an_error() -> None:
    """A pod on an unknown node is left out and reported; the others stay."""
    world = synced(service(), PlannerSettings(), n1=1, n2=1)
    world.relabel(ZONES[1:])
    plan = world.sync()
    assert plan.errors == ("skipping Pod p00 for Service default/web: Node n1 Not Found",)
    assert [one.zone for one in world.endpoints] == ["zone-b"]


def test_dual_stack_plans_each_family() -> None:
    """A dual-stack Service has slices and events of both families."""
    made = service(
        annotations={MODE: "Auto"},
        cluster_ips=("10.96.0.10", "fd00:96::10"),
        ip_families=("IPv4", "IPv6"),
        ip_family_policy="PreferDualStack",
    )
    world = World(made, ZONES[:2])
    world.add(*(pod(f"p{n}", f"n{n}", ips=(f"10.0.0.{n}", f"fd00::{n}")) for n in (1, 2)))
    plan = world.sync()
    assert sorted(one.address_type for one in world.slices) == ["IPv4", "IPv6"]
    assert [event.message.rpartition(" ")[2] for event in plan.events] == ["IPv4", "IPv6"]
    assert plan.totals == {
        "IPv4": {"zone-a": 1, "zone-b": 1},
        "IPv6": {"zone-a": 1, "zone-b": 1},
    }


def test_a_family_that_goes_takes_its_slices_along() -> None:
    """Slices of an address type that the Service gave up are deleted."""
    made = service(ip_families=("IPv4", "IPv6"), cluster_ips=("10.96.0.10", "fd00::1"))
    world = World(made, ZONES)
    world.add(pod(ips=("10.0.0.1", "fd00::1")))
    world.sync()
    world.change(service())
    assert [one.address_type for one in world.sync().stray] == ["IPv6"]
    assert [one.address_type for one in world.slices] == ["IPv4"]


def test_a_service_without_pods_keeps_a_placeholder() -> None:
    """The last pod's slice becomes the placeholder, and stays it."""
    world = synced(service(), PlannerSettings(), n1=1)
    world.drop("p00")
    world.sync()
    assert [(one.endpoints, one.ports) for one in world.slices] == [((), ())]
    assert world.sync().is_empty


PREFER = PlannerSettings(gates=ALL)
SUBSETS = service(annotations={SUBSETTING: "Auto"})


def test_subsetting_labels_slices_for_zones_and_writes_no_hints() -> None:
    """Each zone has slices of its own, every endpoint is in one, and no hint is left."""
    world = synced(service(traffic_distribution="PreferSameZone"), PREFER, n1=6, n2=4, n3=4)
    world.change(SUBSETS)
    world.sync()
    assert world.groups() == {
        "zone-a": Counter({"zone-a": 6}),
        "zone-b": Counter({"zone-b": 4}),
        "zone-c": Counter({"zone-c": 4}),
    }
    assert all(one.hints is None for one in world.endpoints)
    assert world.sync().is_empty


def test_leaving_subsetting_removes_labels_in_the_same_sync() -> None:
    """Hints replace labels at once: a Service has one or the other."""
    world = synced(SUBSETS, PREFER, n1=4, n2=4, n3=4)
    assert set(world.groups()) == {"zone-a", "zone-b", "zone-c"}
    world.change(service(traffic_distribution="PreferSameZone"))
    world.sync()
    assert set(world.groups()) == {""}
    assert world.hints() == {(z, z, ""): 4 for z in ("zone-a", "zone-b", "zone-c")}


def test_endpoints_that_come_to_another_subset_are_counted() -> None:
    """A zone that loses pods takes endpoints from others; what comes or goes is not moved."""
    made = service(annotations={SUBSETTING: "Prefer"})
    world = World(made, ZONES, PlannerSettings(gates=ALL))
    world.add(*pods_on(n1=8, n2=8, n3=8))
    assert world.sync().plans["IPv4"].reallocated == 0
    world.drop(*(f"p{number:02}" for number in range(8)))
    plan = world.sync().plans["IPv4"]
    moved = sum(
        one.zone != piece.metadata.labels.get(FOR_ZONE_LABEL)
        for piece in world.slices
        for one in piece.endpoints
    )
    assert (plan.reallocated, plan.removed, moved > 0) == (moved, 8 + moved, True)
    world.change(service())
    assert world.sync().plans["IPv4"].reallocated == 0


def test_dividing_a_service_moves_no_endpoint_that_stays_in_its_zone() -> None:
    """Twelve endpoints that get slices of their own zones, and leave them, changed no zone."""
    world = synced(service(), PREFER, n1=4, n2=4, n3=4)
    world.change(SUBSETS)
    plan = world.sync().plans["IPv4"]
    assert set(world.groups()) == {"zone-a", "zone-b", "zone-c"}
    assert (plan.added, plan.reallocated) == (12, 0)
    world.change(service())
    plan = world.sync().plans["IPv4"]
    assert set(world.groups()) == {""}
    assert (plan.added, plan.reallocated) == (12, 0)


def test_dividing_a_service_by_region_moves_no_endpoint_that_stays_in_its_region() -> None:
    """The home of an endpoint is the region of its node then, and not its zone."""
    nodes = [
        node("n1", "zone-a", labels={REGION_LABEL: "east"}),
        node("n2", "zone-b", labels={REGION_LABEL: "east"}),
        node("n3", "zone-c", labels={REGION_LABEL: "west"}),
    ]
    world = World(service(), nodes, PlannerSettings(gates=ALL))
    world.add(*pods_on(n1=4, n2=4, n3=4))
    world.sync()
    world.change(service(annotations={SUBSETTING: "RequireRegion"}))
    plan = world.sync().plans["IPv4"]
    regions = {endpoint_slice.metadata.labels[FOR_REGION_LABEL] for endpoint_slice in world.slices}
    assert regions == {"east", "west"}
    assert (plan.added, plan.reallocated) == (12, 0)


def test_endpoints_that_get_other_hints_are_counted() -> None:
    """New endpoints are not, nor those whose hints stay."""
    world = World(service(traffic_distribution="PreferSameZone"), ZONES)
    world.add(*pods_on(n1=2, n2=2, n3=2))
    assert world.sync().plans["IPv4"].rehinted == 0
    world.add(pod("p90", "n1", ip="10.0.9.1"))
    assert world.sync().plans["IPv4"].rehinted == 0
    world.relabel([node("n1", "zone-b"), *ZONES[1:]])
    assert world.sync().plans["IPv4"].rehinted == 3
    world.change(service())
    assert world.sync().plans["IPv4"].rehinted == 7


def test_padding_keeps_the_mode_while_pods_come_and_go() -> None:
    """With three zones and padding 3: on at 12 endpoints, off again only at 6."""
    world = World(SUBSETS, ZONES, PREFER)
    modes = []
    for count in (9, 11, 12, 10, 7, 6, 8, 11, 12):
        wanted = {one.key: one for one in pods_on(n1=count)}
        world.drop(*(key.name for key in world.pods.keys() - wanted.keys()))
        world.add(*(one for key, one in wanted.items() if key not in world.pods))
        world.sync()
        modes.append(set(world.groups()) != {""})
    assert modes == [False, False, True, True, True, False, False, False, True]


def test_lazy_rebalance_touches_one_slice() -> None:
    """While no zone is overloaded, a new pod goes to its own zone's slice and nothing moves."""
    world = synced(SUBSETS, PREFER, n1=5, n2=5, n3=5)
    world.add(pod("new", "n1", ip="10.0.9.9"))
    plan = world.sync()
    assert plan.reasons[0].code is ReasonCode.SUBSETS_KEPT
    assert [len(one.endpoints) for one in plan.plans["IPv4"].update] == [6]


def test_a_zone_that_loses_its_pods_is_served_by_others() -> None:
    """When a group runs dry, the groups are made anew and no zone is left without endpoints."""
    world = synced(SUBSETS, PREFER, n1=6, n2=6, n3=6)
    world.drop(*(f"p{n:02}" for n in range(6)))
    world.sync()
    groups = world.groups()
    assert set(groups) == {"zone-a", "zone-b", "zone-c"}
    assert sum(groups["zone-a"].values()) >= 3
    assert sum(sum(group.values()) for group in groups.values()) == 12


def test_pods_that_are_not_ready_wait_at_home() -> None:
    """A pod that is not ready joins its own zone's group and does not count for the balance."""
    world = synced(SUBSETS, PREFER, n1=4, n2=4, n3=4)
    world.add(pod("late", "n2", ip="10.0.9.9", ready=False))
    world.sync()
    assert world.groups()["zone-b"]["zone-b"] == 5


def test_default_subsetting_applies_without_annotation() -> None:
    """The controller-wide default divides Services that say nothing."""
    setup = PlannerSettings(gates=ALL, subsets=SubsetOptions(default=Approach.PREFER))
    world = synced(service(), setup, n1=4, n2=4, n3=4)
    assert set(world.groups()) == {"zone-a", "zone-b", "zone-c"}


def daemon(name: str, node_name: str, ip: str, uid: str = "u1") -> Pod:
    """Return a pod of a DaemonSet."""
    owner = OwnerReference(
        api_version="apps/v1", kind="DaemonSet", name="dns", uid=uid, controller=True
    )
    return pod(name, node_name, ip=ip, owner=owner)


def test_a_daemon_set_is_found_and_hinted_by_node() -> None:
    """In mode Auto a Service with one pod of one DaemonSet on each node gets node hints."""
    setup = PlannerSettings(gates=ALL, node_level_mode=NodeLevelMode.AUTO)
    world = World(service(), ZONES, setup)
    world.add(*(daemon(f"d{n}", f"n{n}", f"10.0.0.{n}") for n in (1, 2, 3)))
    plan = world.sync()
    assert (plan.strategy.name, plan.strategy.source) == (StrategyName.NODE_LEVEL, "detection")
    assert world.hints() == {
        ("zone-a", "", "n1"): 1,
        ("zone-b", "", "n2"): 1,
        ("zone-c", "", "n3"): 1,
    }
    world.drop("d1", "d2")
    world.sync()
    assert world.hints() == {("zone-c", "", "n3"): 1}
    world.add(pod("stranger", "n1", ip="10.0.0.9"))
    world.sync()
    assert set(world.hints()) == {("zone-a", "", ""), ("zone-c", "", "")}


def test_detection_keeps_out_where_the_user_spoke() -> None:
    """A topology annotation, also one that disables, is respected by mode Auto."""
    setup = PlannerSettings(gates=ALL, node_level_mode=NodeLevelMode.AUTO)
    world = World(service(annotations={MODE: "Disabled"}), ZONES, setup)
    world.add(*(daemon(f"d{n}", f"n{n}", f"10.0.0.{n}") for n in (1, 2, 3)))
    world.sync()
    assert all(one.hints is None for one in world.endpoints)


class Shift:
    """A heuristic that lets every zone be served by the next one."""

    def allocate(self, demand: ZoneDemand) -> Matrix:
        """Return the shifted diagonal."""
        zones = sorted(demand.endpoints)
        return {
            zone: {zones[(n + 1) % len(zones)]: demand.endpoints[zone]}
            for n, zone in enumerate(zones)
        }


CUSTOM = PlannerSettings(gates=ALL, heuristics={"test.dev/Shift": Shift()})


def test_a_custom_heuristic_decides_the_hints() -> None:
    """A registered <domain>/<name> value is applied."""
    world = synced(service(traffic_distribution="test.dev/Shift"), CUSTOM, n1=1, n2=1)
    assert world.hints() == {("zone-a", "zone-b", ""): 1, ("zone-b", "zone-a", ""): 1}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["keepclose.dev/Balanced", "keepclose.dev/LocalShared"]),
    st.lists(st.tuples(st.integers(0, 14), st.integers(0, 3)), max_size=25),
)
def test_weights_are_kept_up_to_date_as_planned_from_nothing(
    value: str, steps: list[tuple[int, int]]
) -> None:
    """However pods come and go, the kept plan is that from nothing, and a second one is empty."""
    heuristics: HeuristicRegistry = {
        "keepclose.dev/Balanced": BALANCED,
        "keepclose.dev/LocalShared": LOCAL_SHARED,
    }
    setup = PlannerSettings(gates=ALL, heuristics=heuristics, max_endpoints=3)
    made = service(traffic_distribution=value, annotations={"keepclose.dev/weights": "Enabled"})
    world = World(made, ZONES, setup)
    for number, place in steps:
        if place:
            world.add(pod(f"p{number:02}", f"n{place}", ip=f"10.0.{place}.{number + 1}"))
        else:
            world.drop(f"p{number:02}")
        world.sync()
        assert world.state.plan().is_empty
        holders = [
            each
            for each in world.slices
            if "keepclose.dev/zone-weights" in each.metadata.annotations
        ]
        assert len(holders) <= 1


def test_insufficient_node_information_names_the_node() -> None:
    """Under Auto the reasons lead to the node without CPU."""
    world = World(service(annotations={MODE: "Auto"}), [*ZONES[:2], node("n3", cpu=None)])
    world.add(*pods_on(n1=1, n2=1))
    reasons = world.sync().reasons
    assert [reason.subject for reason in reasons] == ["", "Node n3"]


def test_conditions_need_their_gate() -> None:
    """Conditions appear only with ServiceTrafficDistributionStatus on."""
    made = service(traffic_distribution="PreferSameZone")
    assert synced(made, PlannerSettings(), n1=1).state.plan().conditions == ()
    conditions = synced(made, PREFER, n1=1).state.plan().conditions
    assert [(c.type, c.status) for c in conditions] == [
        ("TrafficDistributionAccepted", "True"),
        ("TrafficDistributionProgrammed", "True"),
    ]


class CountedEndpoints(tuple[Endpoint, ...]):
    """The endpoints of a slice, with the number of those that were read."""

    __slots__ = ()
    read: ClassVar[list[Endpoint]] = []

    def __iter__(self) -> Iterator[Endpoint]:
        """Yield each endpoint, and record it."""
        for item in super().__iter__():
            self.read.append(item)
            yield item


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_changed_pod_costs_the_same_with_conditions_however_many_endpoints_there_are(
    count: int,
) -> None:
    """No endpoint of a slice that stays is read again, though the conditions count them all."""
    pods = [
        pod(f"p{n:05}", f"n{n % 3 + 1}", ip=f"10.0.{n // 250}.{n % 250 + 1}") for n in range(count)
    ]
    made = service(traffic_distribution="PreferSameZone")
    planner = ServicePlanner(
        made, cluster=ClusterNodes.of(ZONES), settings=PlannerSettings(gates=ALL)
    )
    for ready in pods:
        planner.set_pod(ready)
    for piece in apply_plan([], planner.plan().plans["IPv4"]):
        planner.observe(replace(piece, endpoints=CountedEndpoints(piece.endpoints)))
    assert planner.plan().conditions[1].message == f"all {count} ready endpoints are hinted"
    CountedEndpoints.read.clear()
    planner.set_pod(pod("p00000", "n1", ip="10.0.0.1", ready=False))
    plan = planner.plan()
    assert plan.conditions[1].message == f"all {count - 1} ready endpoints are hinted"
    assert (len(plan.plans["IPv4"].update), len(CountedEndpoints.read)) == (1, 0)


def test_a_known_memory_of_hints_silences_the_event() -> None:
    """A caller that remembers hints of Auto says so; else the slices tell."""
    world = World(service(annotations={MODE: "Auto"}), ZONES[:2])
    world.add(*pods_on(n1=1, n2=1))
    assert len(world.state.plan().events) == 1
    assert world.state.plan(populated=True).events == ()
    world.sync()
    assert world.state.plan().events == ()
    assert len(world.state.plan(populated=False).events) == 1


def test_slices_of_an_older_service_are_replaced() -> None:
    """A slice owned by another uid is deleted, not adopted."""
    world = World(service(), ZONES)
    foreign = endpoint_slice(endpoint("10.0.0.1", pod_name="p1"), owner_uid="other")
    world.slices = [foreign]
    world.state.observe(foreign)
    world.add(pod())
    plan = world.sync()
    assert plan.plans["IPv4"].delete == (foreign,)
    assert len(world.slices) == 1


def test_a_slice_that_is_being_deleted_is_as_good_as_gone() -> None:
    """A deletion timestamp on a slice means that its endpoints need another one."""
    world = synced(service(), PlannerSettings(), n1=1)
    meta = replace(world.slices[0].metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    world.state.observe(replace(world.slices[0], metadata=meta))
    assert len(world.state.plan().plans["IPv4"].create) == 1


MADE = [
    service(),
    service(traffic_distribution="PreferSameZone"),
    service(traffic_distribution="PreferSameNode", labels={"team": "x"}),
    service(annotations={MODE: "Auto"}),
    service(annotations={MODE: "Node"}),
    SUBSETS,
    service(annotations={SUBSETTING: "Require"}),
    service(traffic_distribution="test.dev/Shift"),
    service(publish_not_ready_addresses=True, annotations={NODE_TOPOLOGY: "Auto"}),
]
CLUSTERS = [ZONES, ZONES[:2], [*ZONES[:2], node("n3", "zone-a")], [ZONES[0], node("n2", None)]]


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_a_kept_state_plans_as_a_fresh_one_does(data: st.DataObject) -> None:
    """Whatever happens in whatever order, the kept state and a plan from nothing agree.

    Also every plan, carried out, leaves nothing to do, and each pod that belongs in the slices is
    in exactly one of them.
    """
    setup = replace(
        CUSTOM, max_endpoints=data.draw(st.integers(1, 4)), node_level_mode=NodeLevelMode.AUTO
    )
    world = World(data.draw(st.sampled_from(MADE)), ZONES, setup)
    names = st.integers(0, 25)
    for _ in range(data.draw(st.integers(1, 10))):
        match data.draw(st.sampled_from(["add", "add", "add", "drop", "service", "nodes", "none"])):
            case "add":
                for number in data.draw(st.lists(names, max_size=14)):
                    ready, gone = data.draw(
                        st.sampled_from([(True, False), (False, False), (True, True)])
                    )
                    world.add(
                        pod(
                            f"p{number:02}",
                            data.draw(st.sampled_from(["n1", "n2", "n3"])),
                            ip=f"10.0.0.{number + 1}",
                            ready=ready,
                            terminating=gone,
                        )
                    )
            case "drop":
                world.drop(*(f"p{n:02}" for n in data.draw(st.lists(names, max_size=14))))
            case "service":
                world.change(data.draw(st.sampled_from(MADE)))
            case "nodes":
                world.relabel(data.draw(st.sampled_from(CLUSTERS)))
            case _:
                pass
        if data.draw(st.booleans()):
            world.sync()
            assert world.sync().is_empty
            present = {n for n, one in world.cluster.nodes.items()}
            publish = world.service.spec.publish_not_ready_addresses
            want = sorted(
                key.name
                for key, one in world.pods.items()
                if publish or one.spec.node_name in present
            )
            got = sorted(one.target_ref.name for one in world.endpoints if one.target_ref)
            assert got == want


def test_a_rolling_update_settles_and_moves_little() -> None:
    """An aggressive rolling update under subsetting ends balanced and writes few slices a step.

    A third of the pods goes at a time, terminating first, while new ones come up not ready and
    turn ready later. No zone is ever without endpoints while it lasts.
    """
    world = synced(SUBSETS, PREFER, n1=6, n2=6, n3=6)
    olds = sorted(key.name for key in world.pods)
    writes = []
    for number in range(0, 18, 6):
        batch = olds[number : number + 6]
        hosts = [world.pods[NamespacedName("default", name)].spec.node_name for name in batch]
        fresh = [
            (f"new{number + n:02}", host, f"10.0.1.{number + n + 1}")
            for n, host in enumerate(hosts)
        ]
        phases = (
            [pod(name, host, ip=ip, ready=False) for name, host, ip in fresh],
            [pod(name, host, ip=ip) for name, host, ip in fresh],
            [
                pod(
                    name,
                    host,
                    ip=world.pods[NamespacedName("default", name)].status.pod_ip,
                    terminating=True,
                )
                for name, host in zip(batch, hosts, strict=True)
            ],
        )
        for phase in phases:
            world.add(*phase)
            plan = world.sync().plans["IPv4"]
            writes.append(len(plan.create) + len(plan.update) + len(plan.delete))
            ready = {
                piece.metadata.labels.get(FOR_ZONE_LABEL)
                for piece in world.slices
                if any(one.is_ready for one in piece.endpoints)
            }
            assert ready == {"zone-a", "zone-b", "zone-c"}
        world.drop(*batch)
        world.sync()
    assert {zone: sum(group.values()) for zone, group in world.groups().items()} == {
        "zone-a": 6,
        "zone-b": 6,
        "zone-c": 6,
    }
    assert max(writes) <= 3
