"""What a person sees of Services at a glance, and what another mechanism would do."""

from __future__ import annotations

import msgspec
import pytest

from keepclose.advise.clients import ClientNodes
from keepclose.advise.explaining.explanation import explain_service
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism
from keepclose.advise.overview.service_pages import (
    ClusterFacts,
    ServicePreview,
    build_page,
    preview_mechanism,
)
from keepclose.advise.overview.service_rows import ServiceRow, TrafficState, describe_row
from keepclose.advise.overview.zone_columns import arrange_zones, is_same_for_traffic
from keepclose.advise.resolution import plan_slices, resolve_services
from keepclose.model.gates import Gate
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.routing.port_endpoints import NodeView
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.builders import node, pod, service

ZONES = ("zone-a", "zone-b", "zone-c")
SETTINGS = PlannerSettings()


def facts_of(nodes: tuple[Node, ...], settings: PlannerSettings = SETTINGS) -> ClusterFacts:
    """Return the facts of a cluster of these nodes."""
    clients = ClientNodes(NodeView.of(each) for each in nodes if each.is_ready)
    return ClusterFacts(ClusterNodes.of(nodes), clients, settings)


def cluster(made: Service, *counts: int, is_written: bool = True) -> tuple[Inventory, ClusterFacts]:
    """Return two nodes in each zone with some pods, and the slices as a controller writes them."""
    objects: list[object] = [made]
    for zone, count in zip(ZONES, counts, strict=True):
        objects += [node(f"{zone}-{number}", zone) for number in range(2)]
        objects += [
            pod(
                f"{zone}-pod-{number}",
                f"{zone}-{number % 2}",
                ip=f"10.{ZONES.index(zone)}.0.{number + 1}",
            )
            for number in range(count)
        ]
    inventory = Inventory.of(objects)
    facts = facts_of(inventory.nodes)
    if is_written:
        planned = plan_slices(made, inventory, facts.nodes, SETTINGS)
        inventory = msgspec.structs.replace(inventory, slices={made.key: planned.slices})
    return inventory, facts


def row_of(made: Service, *counts: int, is_written: bool = True) -> ServiceRow:
    """Return the line of a Service."""
    inventory, facts = cluster(made, *counts, is_written=is_written)
    slices = inventory.slices.get(made.key, ())
    return describe_row(made, slices, facts.clients, facts.settings)


@pytest.mark.parametrize(
    ("made", "counts", "want"),
    [
        pytest.param(
            service(traffic_distribution="PreferSameZone"), (1, 1, 1), "in zone", id="each has one"
        ),
        pytest.param(
            service(traffic_distribution="PreferSameZone"),
            (1, 1, 0),
            "falling back",
            id="one lacks",
        ),
        pytest.param(service(), (1, 1, 1), "unhinted", id="nothing is asked for"),
        pytest.param(service(), (0, 0, 0), "empty", id="no endpoint"),
        pytest.param(
            service(cluster_ip="None", cluster_ips=("None",)),
            (1, 1, 1),
            "not routed",
            id="headless",
        ),
        pytest.param(
            service(annotations={"service.kubernetes.io/topology-mode": "Auto"}),
            (4, 2, 1),
            "hinted",
            id="hints that send a part elsewhere",
        ),
        pytest.param(
            service(annotations={"service.kubernetes.io/topology-mode": "Auto"}),
            (1, 1, 0),
            "unhinted",
            id="asked for, and not to be had",
        ),
    ],
)
def test_a_word_says_what_becomes_of_the_traffic(
    made: Service, counts: tuple[int, int, int], want: str
) -> None:
    """The word is about the slices as they are."""
    assert row_of(made, *counts).state == TrafficState(want)


def test_a_service_whose_slices_are_not_written_yet_is_empty() -> None:
    """Pods alone route nothing."""
    row = row_of(service(traffic_distribution="PreferSameZone"), 1, 1, 1, is_written=False)
    assert (row.state, row.ready, row.arcs) == (TrafficState.EMPTY, 0, ())


def test_arcs_are_the_shares_of_all_traffic() -> None:
    """Two nodes of a zone without endpoints use both others alike."""
    row = row_of(service(traffic_distribution="PreferSameZone"), 1, 1, 0)
    assert row.arcs == (
        ("zone-a", "zone-a", 0.333333),
        ("zone-b", "zone-b", 0.333333),
        ("zone-c", "zone-a", 0.166667),
        ("zone-c", "zone-b", 0.166667),
    )
    assert row.in_zone == pytest.approx(2 / 3)


def test_a_page_has_reasons_advice_and_loads() -> None:
    """The advice is that of resolve, with its effect."""
    made = service()
    inventory, facts = cluster(made, 2, 2, 2)
    page = build_page(made, inventory, facts)
    (resolved,) = resolve_services(inventory, settings=SETTINGS)
    explained = explain_service(inventory, made, settings=SETTINGS)
    assert page.flow is explained.flow
    assert [(cause.message, cause.fix, cause.effect) for cause in page.causes] == [
        (cause.message, cause.fix, cause.effect) for cause in explained.causes
    ]
    said = {cause.message for cause in page.causes}
    assert said | {reason.message for reason in page.reasons} >= {
        each.message for each in (*resolved.strategy.reasons, *resolved.reasons)
    }
    effects = [cause.effect for cause in page.causes] + [each.effect for each in page.reasons]
    assert "in zone 33 -> 100 %, busiest 1.00x" in effects
    assert page.pending == ""
    assert sum(endpoint.load for endpoint in page.traffic.endpoints) == pytest.approx(1)
    assert {round(endpoint.near, 3) for endpoint in page.traffic.endpoints} == {0.333}
    assert [group.zone for group in page.traffic.groups] == list(ZONES)


def test_a_page_says_what_a_controller_would_still_change() -> None:
    """The slices have no hints yet."""
    made = service()
    inventory, facts = cluster(made, 2, 2, 2)
    asks = service(traffic_distribution="PreferSameZone")
    page = build_page(asks, inventory, facts)
    assert page.state is TrafficState.UNHINTED
    assert page.pending == "in zone 33 -> 100 %, busiest 1.00x"


def test_a_preview_is_what_a_switch_leads_to() -> None:
    """It says effect, command and new shares, and changes nothing of the input."""
    made = service()
    inventory, facts = cluster(made, 2, 2, 2)
    before = msgspec.json.encode(inventory.slices[made.key])
    preview = preview_mechanism(made, Mechanism.SAME_ZONE, inventory, facts)
    assert isinstance(preview, ServicePreview)
    assert preview.effect == "in zone 33 -> 100 %, busiest 1.00x"
    assert preview.command.startswith("kubectl patch service -n default web")
    assert (preview.harm, preview.is_gain, preview.gates) == ("", True, ())
    assert {pair[:2] for pair in preview.traffic.arcs} == {(zone, zone) for zone in ZONES}
    assert msgspec.json.encode(inventory.slices[made.key]) == before


def test_a_preview_names_harm_and_missing_gates() -> None:
    """PreferSameZone would send a third of all traffic to one pod; Balanced has a gate."""
    made = service()
    inventory, facts = cluster(made, 9, 1, 0)
    preview = preview_mechanism(made, Mechanism.SAME_ZONE, inventory, facts)
    assert isinstance(preview, ServicePreview)
    assert preview.harm.startswith("the busiest endpoint would")
    assert not preview.is_gain
    balanced = preview_mechanism(made, Mechanism.BALANCED, inventory, facts)
    assert isinstance(balanced, ServicePreview)
    assert balanced.gates == (Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS.value,)


def test_a_preview_of_what_governs_already_has_no_command() -> None:
    """There is nothing to run."""
    made = service(traffic_distribution="PreferSameZone")
    inventory, facts = cluster(made, 1, 1, 1)
    preview = preview_mechanism(made, Mechanism.SAME_ZONE, inventory, facts)
    assert isinstance(preview, ServicePreview)
    assert (preview.command, preview.effect) == ("", "in zone 100 %, busiest 1.00x")


def test_services_of_others_have_no_preview() -> None:
    """The reason is said instead."""
    made = service(selector=None)
    inventory, facts = cluster(made, 1, 1, 1)
    assert (
        preview_mechanism(made, Mechanism.AUTO, inventory, facts)
        == build_page(made, inventory, facts).fixed
    )
    assert build_page(made, inventory, facts).choices == ()


def test_names_that_would_deceive_are_escaped() -> None:
    """A zone with a control character or a reversed direction is one visible line."""
    made = service(traffic_distribution="PreferSameZone")
    facts = facts_of((node("n\x1b1", "zone\u202ea"), node("n2", None)))
    (column, without) = arrange_zones((node("n\x1b1", "zone\u202ea"), node("n2", None)))
    assert (column.zone, column.nodes[0].name) == (r"zone\u202ea", r"n\x1b1")
    assert without.zone == ""
    assert describe_row(made, (), facts.clients, SETTINGS).state is TrafficState.EMPTY


def test_only_what_matters_for_traffic_is_a_change_of_a_node() -> None:
    """A report of the kubelet alone is none; readiness, labels and CPU are."""
    before = node("n1")
    touched = msgspec.structs.replace(
        before, metadata=msgspec.structs.replace(before.metadata, resource_version="9")
    )
    assert is_same_for_traffic(before, touched)
    for after in (node("n1", "zone-b"), node("n1", ready=False), node("n1", cpu="8")):
        assert not is_same_for_traffic(before, after)
