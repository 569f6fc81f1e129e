"""Which nodes may select otherwise than others of their zone: all others select the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keepclose.advise.resolution import plan_slices
from keepclose.model.gates import Gate
from keepclose.model.well_known import HOSTNAME_LABEL, REGION_LABEL, ZONE_LABEL
from keepclose.routing.port_endpoints import NodeView, collect_endpoints, labels_by_node
from keepclose.routing.selection import Outcome, find_distinguished_nodes, select
from keepclose.routing.service_ports import routed_ports
from keepclose.slices.settings import ClusterNodes
from keepclose.slices.slice_metadata import address_types
from support.generated_clusters import GeneratedCluster, clusters

KEYS = st.lists(st.sampled_from([HOSTNAME_LABEL, ZONE_LABEL, REGION_LABEL, "rack", "*"]))


@given(made=clusters(), keys=KEYS, regions=st.booleans())
def test_nodes_that_are_not_distinguished_select_the_same(
    made: GeneratedCluster, keys: list[str], *, regions: bool
) -> None:
    """By hints, policies, node level, slice labels and topologyKeys, inside and from outside."""
    gates = made.settings.gates
    service = made.service
    nodes = made.inventory.nodes
    if keys:
        excluded = (Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.TOPOLOGY_AWARE_HINTS)
        gates = gates.without(*excluded).with_gates(Gate.SERVICE_TOPOLOGY)
        # "*" must be the last key.
        kept = tuple(dict.fromkeys(key for key in keys if key != "*"))
        service = replace(service, spec=replace(service.spec, topology_keys=(*kept, "*")))
    if regions:
        nodes = tuple(
            replace(
                node,
                metadata=replace(
                    node.metadata,
                    labels={**node.metadata.labels, REGION_LABEL: f"r{number % 2}", "rack": "1"},
                ),
            )
            for number, node in enumerate(nodes)
        )
    settings = replace(made.settings, gates=gates)
    slices = plan_slices(service, made.inventory, ClusterNodes.of(nodes), settings).slices
    labels = labels_by_node(nodes)
    for family in address_types(service):
        endpoints_by_port = collect_endpoints(slices, family, gates=gates)
        for port in routed_ports(service, family, gates=gates, assume_allocated=True):
            endpoints = endpoints_by_port.get(port.key, ())
            apart = find_distinguished_nodes(port, endpoints)
            selected: dict[tuple[str, str], tuple[Outcome, Outcome]] = {}
            for node in nodes:
                view = NodeView.of(node, labels)
                if apart is None or view.name in apart:
                    continue
                chosen = select(port, endpoints, node=view, gates=gates)
                outcomes = chosen.internal, chosen.external
                known = selected.setdefault((view.zone, view.region), outcomes)
                assert known == outcomes
