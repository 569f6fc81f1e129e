"""KEP-2004: Test Plan, one test for each row of its table.

Three zones of equal weight begin to be divided at 9 + 3 endpoints and end at 9 - 3.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keepclose.model.well_known import SUBSETTING_ANNOTATION
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.subsets import Approach, SubsetMode, SubsetOptions
from keepclose.slices.settings import PlannerSettings
from keepclose.testing.api_server import serving
from support.builders import node, pod
from support.controllers import world
from support.live.sights import groups, quick
from support.live.traffic import followed
from support.nettopology import NodePlan
from support.packets.tabledbeds import tabled
from support.packets.webobjects import web
from support.proposals.packet_answers import names_at_cluster_ip
from support.proposals.planned_services import PlannedService, count_reallocated, nodes_in
from support.proposals.subset_services import SUBSETTING, A, B, C, decide, subsetted

ZONES = (A, B, C)


@pytest.mark.parametrize("count", [1, 400])
def test_kep2004_plan_small_and_large_numbers_of_nodes(count: int) -> None:
    """Single Approach Test: with few and with many nodes slices are distributed as expected."""
    planned = subsetted(nodes=nodes_in(a=2 * count, b=count, c=count), a=12, b=12, c=12)
    assert planned.groups() == {A: 18, B: 9, C: 9}


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        pytest.param((8, 8, 8), {A: 8, B: 8, C: 8}, id="evenly spread"),
        pytest.param((20, 3, 1), {A: 8, B: 8, C: 8}, id="unevenly spread"),
        pytest.param((1, 3, 11), {A: 5, B: 5, C: 5}, id="the other way round"),
    ],
)
def test_kep2004_plan_even_and_uneven_endpoints(
    counts: tuple[int, int, int], want: dict[str, int]
) -> None:
    """Single Approach Test: evenly and unevenly spread endpoints are distributed as expected."""
    assert subsetted(counts=dict(zip("abc", counts, strict=True))).groups() == want


def test_kep2004_plan_zones_without_endpoints() -> None:
    """Single Approach Test: zero endpoints in some zones are distributed as expected."""
    assert subsetted(a=12, b=0, c=0).groups() == {A: 4, B: 4, C: 4}
    assert subsetted(a=6, b=6, c=0).groups() == {A: 4, B: 4, C: 4}


@pytest.mark.parametrize("value", ["Nonsense", "AUTO", "Auto "])
def test_kep2004_plan_invalid_annotation(value: str) -> None:
    """Single Approach Test: an invalid annotation means the default approach."""
    assert subsetted(value, a=4, b=4, c=4).groups() == {"": 12}
    by_default = SubsetOptions(default=Approach.PREFER)
    assert subsetted(value, options=by_default, a=4, b=4, c=4).groups() == {A: 4, B: 4, C: 4}


@pytest.mark.parametrize("written", ["many", "", "-3", "0", "nan", "inf"])
def test_kep2004_plan_invalid_starting_threshold(written: str) -> None:
    """Prefer Test: an invalid starting threshold is the default; Prefer starts where it is met."""
    options = SubsetOptions(start_per_zone=written, padding=0)
    below = decide({A: 3, B: 3, C: 2}, options=options)
    met = decide({A: 3, B: 3, C: 3}, options=options)
    assert (below.mode, met.mode) == (SubsetMode.RANDOM, SubsetMode.SUBSETS)
    assert ReasonCode.START_THRESHOLD_INVALID in {reason.code for reason in met.reasons}


def test_kep2004_plan_below_start_and_padding() -> None:
    """Prefer Test: below starting threshold + padding Prefer is not conducted."""
    assert subsetted("Prefer", a=4, b=4, c=3).groups() == {"": 11}


def test_kep2004_plan_above_start_and_padding() -> None:
    """Prefer Test: above starting threshold + padding Prefer works as expected."""
    assert subsetted("Prefer", a=5, b=4, c=4).groups() == {A: 5, B: 4, C: 4}


def test_kep2004_plan_growing_above_the_start_only() -> None:
    """Transition Test: above the start but below start + padding Prefer is not conducted."""
    planned = subsetted("Prefer", a=2, b=2, c=2)
    planned.start("a1", 4)
    assert count_reallocated(planned.sync()) == 0
    assert planned.groups() == {"": 10}


def test_kep2004_plan_growing_above_start_and_padding() -> None:
    """Transition Test: above start + padding the distribution changes from Random to Prefer."""
    planned = subsetted("Prefer", a=2, b=2, c=2)
    for node_name in ("a1", "b1", "c1"):
        planned.start(node_name, 3)
    planned.sync()
    assert planned.groups() == {A: 5, B: 5, C: 5}


def test_kep2004_plan_shrinking_within_the_padding() -> None:
    """Transition Test: below the start but above start - padding it remains Prefer."""
    planned = subsetted("Prefer", a=4, b=4, c=4)
    for node_name, count in (("a1", 1), ("b1", 2), ("c1", 2)):
        planned.stop(node_name, count)
    assert count_reallocated(planned.sync()) == 0
    assert planned.groups() == {A: 3, B: 2, C: 2}


def test_kep2004_plan_shrinking_below_the_padding() -> None:
    """Transition Test: below start - padding the distribution changes from Prefer to Random."""
    planned = subsetted("Prefer", a=4, b=4, c=4)
    for node_name in ("a1", "b1", "c1"):
        planned.stop(node_name, 2)
    planned.stop("a1")
    planned.sync()
    assert planned.groups() == {"": 5}


APPROACHES = {
    "Prefer": {A: 6, B: 4, C: 4},
    "Require": {A: 8, B: 4, C: 2},
    "Random": {"": 14},
}


@pytest.mark.parametrize("first", APPROACHES)
@pytest.mark.parametrize("second", APPROACHES)
def test_kep2004_plan_changing_the_annotation(first: str, second: str) -> None:
    """Transition Test: the distribution changes to another approach with the annotation."""
    planned = subsetted(first, a=8, b=4, c=2)
    assert planned.groups() == APPROACHES[first]
    planned.annotate(SUBSETTING_ANNOTATION, second)
    planned.sync()
    assert planned.groups() == APPROACHES[second]


@pytest.mark.parametrize("value", ["Require", "Prefer"])
def test_kep2004_plan_there_and_back_again(value: str) -> None:
    """Transition Test: from Random to Require or Prefer, and back to Random."""
    planned = subsetted("Random", a=8, b=4, c=2)
    for approach in (value, "Random"):
        planned.annotate(SUBSETTING_ANNOTATION, approach)
        planned.sync()
        assert planned.groups() == APPROACHES[approach]


async def test_kep2004_plan_rolling_update(tmp_path: Path) -> None:
    """Rolling Update Test: all pods are replaced at once; slices end as expected.

    On the way no node is ever without an endpoint.
    """
    async with serving(tmp_path) as api, world(api) as cluster:
        for letter in "abc":
            await cluster.add_node(f"n-{letter}", f"zone-{letter}")
        for number in range(12):
            await cluster.add_pod(
                f"old{number}", f"n-{'abc'[number % 3]}", ip=f"10.0.0.{number + 1}"
            )
        service = await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Prefer"})
        async with cluster.controlled(quick(SUBSETTING)) as controller:
            await cluster.settle(controller)
            async with followed(cluster, service, SUBSETTING) as seen:
                # The corner case: almost all of the new pods are in one zone.
                layout = "a" * 10 + "bc"
                for number, letter in enumerate(layout):
                    await cluster.add_pod(f"new{number}", f"n-{letter}", ip=f"10.0.1.{number + 1}")
                seen.retired |= {f"10.0.0.{number + 1}" for number in range(12)}
                for number in range(12):
                    await cluster.end_pod(f"old{number}", grace=0)
                await cluster.settle(controller)
                slices = await cluster.slices()
                await seen.catch_up(slices)
        assert seen.flaws == []
        placed = groups(slices)
        assert set(placed) == {f"10.0.1.{number + 1}" for number in range(12)}
        counts = {zone: list(placed.values()).count(zone) for zone in ZONES}
        assert all(4 / counts[zone] - 1 < 0.5 for zone in ZONES)


PLAN = tuple(NodePlan(f"n{number + 1}", zone, 4) for number, zone in enumerate(ZONES))


@pytest.mark.parametrize("value", ["Require", "Prefer"])
def test_kep2004_plan_endpoints_are_reachable(value: str) -> None:
    """Traffic Reliability Test: endpoints are reachable from different zones as expected.

    The slices are the controller's, the rules the proxy's, the connections real.
    """
    asked = web("web", 10, annotations={SUBSETTING_ANNOTATION: value})
    nodes = [node(one.name, one.zone) for one in PLAN]
    planned = PlannedService(asked, nodes, PlannerSettings(gates=SUBSETTING))
    with tabled(PLAN, gates=SUBSETTING) as bed:
        for one in bed.bed.nodes:
            for place in one.pods:
                made = pod(place.name, one.name, ips=(place.address, place.address6))
                planned.pods[made.key] = made
        planned.sync()
        bed.write([asked], planned.slices)
        for name in ("n1", "n2", "n3"):
            want = {f"{name}-p{number + 1}" for number in range(4)}
            assert names_at_cluster_ip(bed, name, asked, want=len(want)) == want
