"""Weights in plans: the same as in the simulator, in one slice, seldom rewritten."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import ZONE_WEIGHTS_ANNOTATION
from keepclose.model.workload import Node, Pod
from keepclose.model.zone_weights import ZoneWeights, read_zone_weights
from keepclose.routing.allocation.weighted import evaluate_weighted, weighted_matrix
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import Allotment, HeuristicRegistry, ZoneDemand
from keepclose.routing.local_groups import LOCAL_OPT, LOCAL_SHARED, LOCAL_WEIGHTED
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.subsets import SubsetOptions
from keepclose.simulate.algorithms import find_algorithm
from keepclose.simulate.evaluation import IN_ZONE, evaluate_groups
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlan, plan_service
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service

GATES = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
HEURISTICS: HeuristicRegistry = {
    "keepclose.dev/Balanced": BALANCED,
    "keepclose.dev/LocalShared": LOCAL_SHARED,
    "keepclose.dev/LocalWeighted": LOCAL_WEIGHTED,
    "keepclose.dev/LocalOpt": LOCAL_OPT,
}
ALGORITHMS = {
    "keepclose.dev/LocalShared": "local-shared",
    "keepclose.dev/LocalWeighted": "local-weighted",
    "keepclose.dev/LocalOpt": "local-opt",
}
SETTINGS = PlannerSettings(gates=GATES, heuristics=HEURISTICS)
ASKED = {"keepclose.dev/weights": "Enabled"}
ZONES = ("zone-a", "zone-b", "zone-c")
COUNTS = st.lists(st.integers(0, 12), min_size=3, max_size=3)
# A whole weight of at most 10,000 is off by at most half of one.
ROUNDING = 0.0007


def nodes_of(numbers: list[int]) -> list[Node]:
    """Return so many nodes of each zone."""
    return [
        node(f"{zone}-{number}", zone)
        for zone, count in zip(ZONES, numbers, strict=True)
        for number in range(count)
    ]


def pods_of(counts: list[int]) -> list[Pod]:
    """Return so many pods of each zone."""
    return [
        pod(f"{zone}-p{number:04}", f"{zone}-0", ip=f"10.{place}.{number >> 8}.{number & 255}")
        for place, (zone, count) in enumerate(zip(ZONES, counts, strict=True))
        for number in range(count)
    ]


def clusters(numbers: list[int], weighted: tuple[str, ...] = ZONES) -> ClusterNodes:
    """Return the nodes, with a node in each zone for its pods; a zone of 0 nodes is not ready."""
    unready = [
        node(f"{zone}-0", zone, ready=False)
        for zone, count in zip(ZONES, numbers, strict=True)
        if not count
    ]
    return ClusterNodes.of([*nodes_of(numbers), *unready], weighted_zones=frozenset(weighted))


def plan_of(
    made: Service,
    cluster: ClusterNodes,
    pods: list[Pod],
    slices: tuple[EndpointSlice, ...] = (),
) -> ServicePlan:
    """Return the plan of a Service."""
    return plan_service(made, pods=pods, slices=slices, cluster=cluster, settings=SETTINGS)


def written_in(plan: ServicePlan) -> ZoneWeights | None:
    """Return the weights in the slices of a plan."""
    return read_zone_weights(plan.slices)


def columns(
    weights: Mapping[str, Mapping[str, int]], counts: list[int]
) -> dict[tuple[str, str], float]:
    """Return the part of the traffic of each zone that goes to each location."""
    parts = {}
    for client, row in weights.items():
        amounts = {
            zone: row.get(zone, 0) * count for zone, count in zip(ZONES, counts, strict=True)
        }
        for zone, amount in amounts.items():
            parts[client, zone] = amount / sum(amounts.values())
    return parts


def columns_of_flows(
    flows: list[float], zones: Sequence[str] = ZONES
) -> dict[tuple[str, str], float]:
    """Return the same from flows between zones."""
    parts = {}
    for client, name in enumerate(zones):
        column = flows[client :: len(zones)]
        if sum(column) > 0.0:
            for zone, flow in zip(zones, column, strict=True):
                parts[name, zone] = flow / sum(column)
    return parts


@settings(max_examples=150)
@given(COUNTS.filter(any), COUNTS.filter(any))
def test_balanced_weights_are_those_of_the_simulator(numbers: list[int], counts: list[int]) -> None:
    """Each cell of what the controller writes is that of the simulator's balanced-weights."""
    made = service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED)
    written = written_in(plan_of(made, clusters(numbers), pods_of(counts)))
    shares = [number / sum(numbers) for number in numbers]
    flows = [0.0] * 9
    weighted_matrix(3, shares, counts, flows)
    assert written is not None
    assert written.hints == 0
    want = columns_of_flows(flows)
    got = columns(written.weights, counts)
    assert got == pytest.approx({**dict.fromkeys(got, 0.0), **want}, abs=ROUNDING)
    assert {zone for zone, _ in got} == {zone for zone, _ in want}
    out = [0.0] * 7
    evaluate_weighted(3, shares, counts, flows, out)
    in_zone = sum(
        share * got.get((zone, zone), 0.0) for zone, share in zip(ZONES, shares, strict=True)
    )
    assert in_zone == pytest.approx(out[0], abs=ROUNDING)


@pytest.mark.parametrize("value", ALGORITHMS)
@settings(max_examples=150)
@given(numbers=COUNTS.filter(any), counts=COUNTS.filter(any))
def test_local_weights_are_those_of_the_simulator(
    value: str, numbers: list[int], counts: list[int]
) -> None:
    """What goes from zone to zone, and what stays, is what the simulator evaluates."""
    plan = plan_of(service(traffic_distribution=value), clusters(numbers), pods_of(counts))
    written = written_in(plan)
    algorithm = find_algorithm(ALGORITHMS[value])
    # A zone without nodes and endpoints is no zone of the cluster.
    known = [place for place in range(3) if numbers[place] or counts[place]]
    zones = len(known)
    shares = [numbers[place] / sum(numbers) for place in known]
    present = [counts[place] for place in known]
    comp, weight = [0] * 33, [0.0] * 33
    ints, floats, out = [0] * 999, [0.0] * 999, [0.0] * 7
    groups = algorithm.bindings["allocate_row"](
        zones, shares, present, algorithm.threshold, algorithm.start, comp, weight, ints, floats
    )
    if groups == 0:
        assert written is None
        assert ReasonCode.DOWNGRADED in {reason.code for reason in plan.reasons}
        return
    flows = [
        sum(comp[g * zones + location] * weight[g * zones + client] for g in range(groups))
        for location in range(zones)
        for client in range(zones)
    ]
    names = [ZONES[place] for place in known]
    want = {
        (client, zone): part
        for (client, zone), part in columns_of_flows(flows, names).items()
        if numbers[ZONES.index(client)]
    }
    assert written is not None
    got = columns(written.weights, counts)
    assert got == pytest.approx({**dict.fromkeys(got, 0.0), **want}, abs=ROUNDING)
    if evaluate_groups(zones, shares, present, groups, comp, weight, out):
        in_zone = sum(
            share * got.get((zone, zone), 0.0) for zone, share in zip(names, shares, strict=True)
        )
        assert in_zone == pytest.approx(out[IN_ZONE], abs=ROUNDING)


@pytest.mark.parametrize("by_annotation", [True, False])
def test_local_shared_keeps_the_threshold_of_subsetting(*, by_annotation: bool) -> None:
    """The annotation of a Service or the option says which overload no zone may reach."""
    cluster, pods = clusters([5, 3, 2]), pods_of([3, 6, 2])
    key = "keepclose.dev/subsetting-overload-threshold"
    made = service(
        traffic_distribution="keepclose.dev/LocalShared",
        annotations={key: "0.05"} if by_annotation else {},
    )
    limits = SubsetOptions() if by_annotation else SubsetOptions(overload_threshold=0.05)
    strict = replace(SETTINGS, subsets=limits)
    plan = plan_service(made, pods=pods, cluster=cluster, settings=strict)
    usual = plan_of(service(traffic_distribution="keepclose.dev/LocalShared"), cluster, pods)
    assert written_in(plan) != written_in(usual)
    odd = service(traffic_distribution="keepclose.dev/LocalShared", annotations={key: "much"})
    plan = plan_of(odd, cluster, pods)
    assert written_in(plan) == written_in(usual)
    assert ReasonCode.OVERLOAD_THRESHOLD_INVALID in {reason.code for reason in plan.reasons}


def test_local_shared_is_said_by_hints_too() -> None:
    """A group that two zones share is hinted for both, on nodes that follow no weights."""
    answer = LOCAL_SHARED.allocate(ZoneDemand({"a": 0.5, "b": 0.3, "c": 0.2}, {"b": 3}, {}))
    assert isinstance(answer, Allotment)
    assert answer.matrix == {"b": {"a,c": 2, "b": 1}}


def test_balanced_writes_weights_only_where_asked() -> None:
    """Without the annotation there are hints alone; local values bring weights."""
    cluster, pods = clusters([5, 3, 2]), pods_of([3, 6, 2])
    plain = service(traffic_distribution="keepclose.dev/Balanced")
    assert written_in(plan_of(plain, cluster, pods)) is None
    local = service(traffic_distribution="keepclose.dev/LocalOpt")
    assert written_in(plan_of(local, cluster, pods)) is not None
    refused = service(
        traffic_distribution="keepclose.dev/LocalOpt",
        annotations={"keepclose.dev/weights": "Disabled"},
    )
    assert written_in(plan_of(refused, cluster, pods)) is None


class Halves:
    """A heuristic by others: own zones by hints, half of the traffic of zone-a elsewhere."""

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Mapping[str, int]]] = []

    def allocate(self, demand: ZoneDemand) -> Allotment:
        """Return hints and weights."""
        self.seen.append(demand.written_weights)
        matrix = {zone: {zone: number} for zone, number in demand.endpoints.items()}
        return Allotment(matrix, weights={"zone-a": {"zone-a": 1, "zone-b": 1}})


def test_a_heuristic_by_others_may_give_weights() -> None:
    """They are written unless the Service refuses, and the next question holds them."""
    halves = Halves()
    asked = PlannerSettings(gates=GATES, heuristics={"a.dev/Halves": halves})
    cluster, pods = clusters([1, 1, 1]), pods_of([2, 2, 2])
    made = service(traffic_distribution="a.dev/Halves")
    plan = plan_service(made, pods=pods, cluster=cluster, settings=asked)
    assert written_in(plan) == ZoneWeights(weights={"zone-a": {"zone-a": 1, "zone-b": 1}})
    again = plan_service(made, pods=pods, slices=stored((), plan), cluster=cluster, settings=asked)
    assert again.is_empty
    assert halves.seen == [{}, {"zone-a": {"zone-a": 1, "zone-b": 1}}]
    refusing = service(
        traffic_distribution="a.dev/Halves", annotations={"keepclose.dev/weights": "Disabled"}
    )
    plan = plan_service(refusing, pods=pods, cluster=cluster, settings=asked)
    assert written_in(plan) is None


def test_an_invalid_request_leaves_the_default() -> None:
    """A value that is neither Enabled nor Disabled gives a reason, which becomes an Event."""
    odd = service(
        traffic_distribution="keepclose.dev/Balanced",
        annotations={"keepclose.dev/weights": "on"},
    )
    plan = plan_of(odd, clusters([5, 3, 2]), pods_of([3, 6, 2]))
    assert written_in(plan) is None
    assert ReasonCode.WEIGHTS_INVALID in {reason.code for reason in plan.reasons}


def test_the_hints_are_those_of_nodes_without_weights() -> None:
    """Weights change no hint, so that other nodes balance as they did."""
    cluster, pods = clusters([5, 3, 2]), pods_of([3, 6, 2])
    bare = plan_of(service(traffic_distribution="keepclose.dev/Balanced"), cluster, pods)
    both = plan_of(
        service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED), cluster, pods
    )
    assert [each.endpoints for each in both.slices] == [each.endpoints for each in bare.slices]


def test_the_page_shows_what_is_written() -> None:
    """The annotation on the page about Balanced is that of its example, where all nodes follow."""
    made = service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED)
    plan = plan_of(made, clusters([5, 3, 2]), pods_of([3, 6, 2]))
    (endpoint_slice,) = plan.slices
    text = endpoint_slice.metadata.annotations[ZONE_WEIGHTS_ANNOTATION]
    page = Path(__file__).parents[2] / "docs" / "background" / "balanced.md"
    assert f"{ZONE_WEIGHTS_ANNOTATION}: '{text}'" in page.read_text(encoding="utf-8")


def test_endpoints_that_all_zones_share_are_hinted_for_all() -> None:
    """Where Balanced would set no hints, weights have hints for all zones beside them."""
    made = service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED)
    plan = plan_of(made, clusters([1, 1, 1]), pods_of([0, 0, 1]))
    (hints,) = [each.hints for endpoint_slice in plan.slices for each in endpoint_slice.endpoints]
    assert hints is not None
    assert [hint.name for hint in hints.for_zones] == list(ZONES)
    assert written_in(plan) is not None


def test_a_preference_for_locality_comes_before_weights() -> None:
    """If hints keep more in the zone, a Service that asks for locality gets no weights."""
    made = service(
        traffic_distribution="keepclose.dev/Balanced",
        annotations={**ASKED, "keepclose.dev/balanced-objective": "Locality"},
    )
    plan = plan_of(made, clusters([5, 3, 2]), pods_of([3, 6, 2]))
    assert written_in(plan) is None
    assert ReasonCode.WEIGHTS_WITHHELD in {reason.code for reason in plan.reasons}


def test_one_slice_holds_the_weights_and_stale_ones_go() -> None:
    """The holder stays the same; copies by hand and weights that are not asked for are removed."""
    asking = service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED)
    cluster, pods = clusters([5, 3, 2]), pods_of([100, 100, 100])
    slices = stored((), plan_of(asking, cluster, pods))
    holders = [each for each in slices if ZONE_WEIGHTS_ANNOTATION in each.metadata.annotations]
    assert (len(slices), len(holders)) == (3, 1)
    assert plan_of(asking, cluster, pods, slices).is_empty
    # Somebody copies other weights to another slice.
    (holder,) = holders
    other = next(each for each in slices if each is not holder)
    other.metadata.annotations[ZONE_WEIGHTS_ANNOTATION] = '{"weights":{"zone-a":{"zone-a":1}}}'
    repaired = stored(slices, plan_of(asking, cluster, pods, slices))
    assert read_zone_weights(repaired) is not None
    assert not read_zone_weights(repaired).problem  # type: ignore[union-attr]
    for made in (
        service(traffic_distribution="keepclose.dev/Balanced"),
        service(traffic_distribution="PreferSameZone"),
        service(),
    ):
        left = stored(repaired, plan_of(made, cluster, pods, repaired))
        assert read_zone_weights(left) is None
        assert plan_of(made, cluster, pods, left).is_empty


def test_weights_move_to_a_slice_that_stays() -> None:
    """When the slice that holds the weights goes, another one takes them in the same plan."""
    asking = service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED)
    cluster = clusters([5, 3, 2])
    slices = stored((), plan_of(asking, cluster, pods_of([100, 100, 100])))
    holder = next(e for e in slices if ZONE_WEIGHTS_ANNOTATION in e.metadata.annotations)
    gone = {each.target_ref.name for each in holder.endpoints if each.target_ref is not None}
    left = [each for each in pods_of([100, 100, 100]) if each.metadata.name not in gone]
    after = stored(slices, plan_of(asking, cluster, left, slices))
    assert holder.metadata.name not in {each.metadata.name for each in after}
    assert read_zone_weights(after) is not None


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        pytest.param([340, 330, 330], 2, id="1,000 endpoints"),
        pytest.param([20, 20, 20], 15, id="60 endpoints"),
        pytest.param([4, 4, 4], 120, id="12 endpoints"),
    ],
)
def test_what_is_written_is_small_and_seldom_rewritten(counts: list[int], most: int) -> None:
    """Three zones take under 200 bytes; of 200 changes of pods, few change the weights."""
    services = {
        "weights": service(traffic_distribution="keepclose.dev/Balanced", annotations=ASKED),
        "hints": service(traffic_distribution="keepclose.dev/Balanced"),
    }
    cluster = clusters([5, 3, 2])
    pods = {each.key: each for each in pods_of(counts)}
    rng = random.Random(7)
    slices = {
        name: stored((), plan_of(made, cluster, list(pods.values())))
        for name, made in services.items()
    }
    texts = [each.metadata.annotations.get(ZONE_WEIGHTS_ANNOTATION) for each in slices["weights"]]
    (text,) = [text for text in texts if text is not None]
    assert len(text) < 200
    writes: Counter[str] = Counter()
    changes = 0
    for step in range(200):
        if step % 2:
            del pods[rng.choice(sorted(pods))]
        else:
            zone = rng.choice(ZONES)
            ip = f"10.9.0.{step + 1}"
            added = pod(f"{zone}-n{step:04}", f"{zone}-0", ip=ip)
            pods[added.key] = added
        for name, made in services.items():
            plan = plan_of(made, cluster, list(pods.values()), slices[name])
            before = read_zone_weights(slices[name])
            slices[name] = stored(slices[name], plan)
            changes += read_zone_weights(slices[name]) != before
            for each in plan.plans.values():
                writes[name] += len(each.create) + len(each.update) + len(each.delete)
    assert changes <= most
    # Weights change with pods, so they go into a slice that is written anyway, or cost one write.
    assert writes["weights"] <= writes["hints"] + changes


def stored(slices: tuple[EndpointSlice, ...], plan: ServicePlan) -> tuple[EndpointSlice, ...]:
    """Return the slices after the writes of a plan."""
    after = list(slices)
    for per_family in plan.plans.values():
        after = apply_plan(after, per_family)
    return tuple(after)
