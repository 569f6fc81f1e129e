"""In any cluster, the page, the line and the preview of a Service agree with each other."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.clients import ClientNodes
from keepclose.advise.mechanism_changes import Mechanism
from keepclose.advise.overview.service_pages import (
    ClusterFacts,
    ServicePreview,
    ServiceTraffic,
    build_page,
    preview_mechanism,
)
from keepclose.advise.overview.service_rows import TrafficState, describe_row
from keepclose.advise.resolution import plan_slices
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.strategy import StrategyName
from keepclose.slices.settings import ClusterNodes
from support.generated_clusters import GeneratedCluster, clusters

ABOUT = 1e-4


def check_traffic(traffic: ServiceTraffic) -> None:
    """Check that arcs, groups and endpoints are about the same traffic."""
    answered = sum(share for _, _, share in traffic.arcs)
    assert sum(endpoint.load for endpoint in traffic.endpoints) == pytest.approx(
        answered, abs=ABOUT
    )
    assert answered + traffic.failed in (pytest.approx(1, abs=ABOUT), 0)
    near = sum(share for client, endpoint, share in traffic.arcs if client and client == endpoint)
    assert near == pytest.approx(traffic.in_zone, abs=ABOUT)
    assert near == pytest.approx(
        sum(endpoint.load * endpoint.near for endpoint in traffic.endpoints), abs=ABOUT
    )
    for group in traffic.groups:
        assert sum(share for _, share in group.shares) <= 1 + ABOUT


@given(made=clusters(), mechanism=st.sampled_from(Mechanism), is_written=st.booleans())
def test_what_is_shown_of_a_service_agrees(
    *, made: GeneratedCluster, mechanism: Mechanism, is_written: bool
) -> None:
    """Whether the slices are written or not, and whatever is previewed."""
    nodes = made.inventory.nodes
    facts = ClusterFacts(
        ClusterNodes.of(nodes),
        ClientNodes(NodeView.of(node) for node in nodes if node.is_ready),
        made.settings,
    )
    inventory = made.inventory
    if is_written:
        planned = plan_slices(made.service, inventory, facts.nodes, made.settings)
        inventory = replace(inventory, slices={made.service.key: planned.slices})
    slices = inventory.slices.get(made.service.key, ())
    row = describe_row(made.service, slices, facts.clients, made.settings)
    page = build_page(made.service, inventory, facts)
    assert (row.state, row.arcs) == (page.state, page.traffic.arcs)
    assert page.mechanism in (row.mechanism, StrategyName.NODE_LEVEL.value)
    assert row.state is not TrafficState.UNKNOWN
    if is_written:
        assert page.pending == ""
    check_traffic(page.traffic)
    preview = preview_mechanism(made.service, mechanism, inventory, facts)
    if isinstance(preview, ServicePreview):
        check_traffic(preview.traffic)
        assert not (preview.harm and preview.is_gain)
    else:
        assert preview
    assert msgspec.json.decode(msgspec.json.encode((row, page)))
