"""KEP-2004: Configuration, Interoperability, Feature Gate, Controller Configuration and Notes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keepclose.cli.main import app
from keepclose.model.gates import DEFAULT_GATES, Gate, GateError, parse_gates
from keepclose.model.well_known import SUBSETTING_ANNOTATION
from keepclose.routing.strategy import StrategyName, choose_strategy
from keepclose.routing.subsets import Approach, SubsetOptions
from keepclose.testing.api_server import serving
from support.builders import node, service
from support.controllers import World, world
from support.live.sights import groups, quick
from support.proposals.planned_services import nodes_in
from support.proposals.proposalworlds import add_three_zones
from support.proposals.subset_services import SUBSETTING, A, B, C, decide, sizes, subsetted

BOTH_GATES = parse_gates(
    "TopologyAwareSubsetting=true,EndpointSliceSubsetting=true,ServiceTopology=true",
    allow_incompatible=True,
)
SERVICES = "/api/v1/namespaces/default/services"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Three zones of a node with four pods each, behind a server in this process."""
    async with serving(tmp_path) as api, world(api) as found:
        await add_three_zones(found)
        yield found


@pytest.mark.parametrize(
    ("key", "want"),
    [
        pytest.param("endpointslice.kubernetes.io/subsetting", {A: 4, B: 4, C: 4}, id="the key"),
        pytest.param("service.kubernetes.io/subsetting", {"": 12}, id="a similar key"),
    ],
)
def test_kep2004_configuration_the_annotation_has_this_key(key: str, want: dict[str, int]) -> None:
    """Configuration: the annotation is endpointslice.kubernetes.io/subsetting."""
    planned = subsetted(None, a=4, b=4, c=4)
    planned.annotate(key, "Auto")
    planned.sync()
    assert planned.groups() == want


async def test_kep2004_configuration_the_annotation_is_a_hint(tmp_path: Path) -> None:
    """Configuration: the annotation is a hint for the controller; the API takes any value."""
    async with serving(tmp_path) as api:
        for number, value in enumerate(("Auto", "", "no such approach")):
            metadata = {"name": f"s{number}", "annotations": {SUBSETTING_ANNOTATION: value}}
            created = await api.create(
                SERVICES, {"metadata": metadata, "spec": {"ports": [{"port": 80}]}}
            )
            assert created["metadata"]["annotations"][SUBSETTING_ANNOTATION] == value


def test_kep2004_configuration_auto_keeps_traffic_in_zone() -> None:
    """Configuration: Auto keeps traffic in zone while each zone has enough endpoints."""
    planned = subsetted("Auto", a=5, b=5, c=4)
    for name, zone in (("a1", A), ("b1", B), ("c1", C)):
        assert planned.zones_used(name) == {zone}


def test_kep2004_configuration_auto_leads_to_other_zones_otherwise() -> None:
    """Configuration: a zone without enough endpoints has its traffic routed to other zones."""
    planned = subsetted("Auto", a=8, b=8, c=0)
    assert planned.zones_used("a1") == {A}
    assert planned.zones_used("b1") == {B}
    assert planned.zones_used("c1") == {A, B}


def test_kep2004_configuration_unspecified_means_no_subsetting() -> None:
    """Configuration: without the annotation the controller behaves as it already does."""
    planned, plain = (subsetted(None, gates=g, a=4, b=4, c=4) for g in (SUBSETTING, DEFAULT_GATES))
    assert planned.slices == plain.slices
    assert planned.groups() == {"": 12}


def test_kep2004_configuration_empty_means_no_subsetting() -> None:
    """Configuration: with an empty annotation the controller behaves as it already does."""
    assert subsetted("", a=4, b=4, c=4).slices == subsetted(None, a=4, b=4, c=4).slices


def test_kep2004_interoperability_topology_keys_take_precedence() -> None:
    """Interoperability: with both set on a Service, topologyKeys are given precedence."""
    asked = service(
        annotations={SUBSETTING_ANNOTATION: "Auto"},
        topology_keys=("topology.kubernetes.io/zone",),
    )
    strategy = choose_strategy(asked, gates=BOTH_GATES)
    assert strategy.name is StrategyName.TOPOLOGY_KEYS
    without_keys = service(annotations={SUBSETTING_ANNOTATION: "Auto"})
    assert choose_strategy(without_keys, gates=BOTH_GATES).name is StrategyName.SUBSETTING


def test_kep2004_interoperability_the_annotation_is_ignored() -> None:
    """Interoperability: beside topologyKeys the annotation is ignored, so nothing is divided."""
    planned = subsetted("Auto", gates=BOTH_GATES, a=4, b=4, c=4)
    assert planned.groups() == {A: 4, B: 4, C: 4}
    planned.specify(topology_keys=("topology.kubernetes.io/zone",))
    planned.sync()
    assert planned.groups() == {"": 12}
    assert planned.zones_used("b1") == {B}


def test_kep2004_feature_gate_guards_it() -> None:
    """Feature Gate: the functionality is guarded by TopologyAwareSubsetting, off by default."""
    assert not DEFAULT_GATES.on(Gate.TOPOLOGY_AWARE_SUBSETTING)
    without = SUBSETTING.without(Gate.TOPOLOGY_AWARE_SUBSETTING)
    assert subsetted("Auto", gates=without, a=4, b=4, c=4).groups() == {"": 12}
    assert subsetted("Auto", a=4, b=4, c=4).groups() == {A: 4, B: 4, C: 4}


def test_kep2004_feature_gate_excludes_service_topology() -> None:
    """Feature Gate: it should not be enabled if the ServiceTopology gate is enabled."""
    text = "TopologyAwareSubsetting=true,ServiceTopology=true,TopologyAwareHints=false"
    with pytest.raises(GateError, match="TopologyAwareSubsetting and ServiceTopology exclude"):
        parse_gates(text)
    result = CliRunner().invoke(app, ["controller", f"--feature-gates={text}"])
    assert result.exit_code != 0
    assert "exclude each other" in result.output


async def test_kep2004_controller_configuration_has_a_default(cluster: World) -> None:
    """Controller Configuration: a global default decides for Services without an annotation."""
    await cluster.add_service()
    async with cluster.controlled(quick(SUBSETTING)) as controller:
        await cluster.settle(controller)
        assert set(groups(await cluster.slices()).values()) == {""}
    settings = quick(SUBSETTING, subsets=SubsetOptions(default=Approach.PREFER))
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        assert set(groups(await cluster.slices()).values()) == {A, B, C}


async def test_kep2004_controller_configuration_yields_to_the_service(cluster: World) -> None:
    """Controller Configuration: the Service-level annotation is followed, not the default."""
    await cluster.add_service(annotations={SUBSETTING_ANNOTATION: "Disabled"})
    settings = quick(SUBSETTING, subsets=SubsetOptions(default=Approach.PREFER))
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        assert set(groups(await cluster.slices()).values()) == {""}


@pytest.mark.parametrize("zones", [2, 3, 4])
def test_kep2004_notes_the_start_is_three_times_the_zones(zones: int) -> None:
    """Notes: the starting threshold is 3x the number of zones; padding of 3 comes on top."""
    letters = "abcd"[:zones]
    nodes = nodes_in(**dict.fromkeys(letters, 1))
    padded = 3 * zones + 3
    for total, is_divided in ((padded - 1, False), (padded, True)):
        counts = dict.fromkeys(letters, total // zones)
        counts["a"] += total - sum(counts.values())
        assert (set(subsetted(nodes=nodes, counts=counts).groups()) != {""}) == is_divided


def test_kep2004_notes_a_start_may_be_specified() -> None:
    """Notes: a parameter for the Auto approach allows to specify a starting threshold."""
    options = SubsetOptions(start_per_zone=2, padding=0)
    assert sizes(decide({A: 2, B: 2, C: 2}, options=options)) == {A: 2, B: 2, C: 2}
    assert sizes(decide({A: 2, B: 2, C: 1}, options=options)) == {}


def test_kep2004_notes_pods_may_have_no_topology() -> None:
    """Notes: Pods may exist without topology information, and are distributed to zones then."""
    nodes = [*nodes_in(a=1, b=1, c=1), node("x1", None)]
    planned = subsetted(nodes=nodes, a=4, b=4, c=4, x=3)
    homes = [group for zone, group in planned.placement().values() if not zone]
    assert sorted(homes) == [A, B, C]


def test_kep2004_notes_the_highest_need_comes_first() -> None:
    """Notes: need is the difference between expected and actual endpoints in the zone."""
    decision = decide({A: 7, B: 4, C: 2, "": 2})
    # Of 15 endpoints each zone expects 5: zone-c lacks 3, then 2, and zone-b lacks 1.
    assert decision.target[""] == {C: 2}
    # Where zone-a sends half of the traffic, it expects 8 of 16 and lacks as many as the others.
    shares = {A: 0.5, B: 0.25, C: 0.25}
    assert decide({A: 5, B: 4, C: 4, "": 3}, shares=shares).target[""] == {A: 3}
