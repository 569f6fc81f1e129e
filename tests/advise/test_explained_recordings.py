"""What is explained of clusters whose slices and routes real Kubernetes components decided."""

from __future__ import annotations

import pytest

from keepclose.advise.explaining.causes import TrafficCauseCode
from keepclose.advise.explaining.explanation import Explanation, explain_service
from keepclose.advise.inventory import Inventory, admit_service
from keepclose.model.decoding import convert
from keepclose.model.service.types import Service
from keepclose.slices.settings import PlannerSettings
from support.recordings import (
    CLUSTERS,
    Raw,
    node_manifest,
    pod_manifest,
    service_manifest,
    slice_manifests,
)

WRONGLY_BLAMED = {
    TrafficCauseCode.SLICES_NOT_WRITTEN,
    TrafficCauseCode.SLICES_STALE,
    TrafficCauseCode.SLICES_OF_OTHER_CONTROLLER,
    TrafficCauseCode.SLICES_OF_OLDER_SERVICE,
    TrafficCauseCode.SLICES_WITHOUT_SERVICE,
    TrafficCauseCode.HINTS_NOT_WRITTEN,
    TrafficCauseCode.HINTS_DIFFER,
    TrafficCauseCode.HINTS_LEFT_OVER,
    TrafficCauseCode.HINTS_IGNORED,
    TrafficCauseCode.PORT_NAME_DIFFERS,
}
"""Causes that a cluster whose controller has written everything cannot have."""


def inventory_of(nodes: list[Raw], service: Raw, step: Raw) -> Inventory:
    """Return the objects of a step, with the slices that the real controller wrote."""
    namespace = step["service"]["metadata"]["namespace"]
    manifests = [
        *nodes,
        service_manifest(service, step),
        *(pod_manifest(pod, namespace) for pod in step["pods"]),
        *slice_manifests(step, namespace),
    ]
    objects = [convert(manifest) for manifest in manifests]
    families = Inventory.of(objects).families()
    return Inventory.of(
        admit_service(each, families) if isinstance(each, Service) else each for each in objects
    )


def outcomes(answer: Explanation) -> Raw:
    """Return what every node uses by port and direction, as the recordings have it."""
    return {
        node: {
            port.title: {
                way: {"verdict": outcome.verdict.value}
                if outcome.verdict
                else {"endpoints": sorted(endpoint.shown for endpoint in outcome.endpoints)}
                for way, outcome, is_used in (
                    ("internal", port.selection.internal, True),
                    ("nodePort", port.selection.external, port.port.has_node_port),
                )
                if is_used
            }
            for port in group.ports
        }
        for group in answer.nodes
        for node in group.nodes
    }


@pytest.mark.parametrize("number", range(len(CLUSTERS)))
def test_nodes_use_what_real_proxies_used(number: int) -> None:
    """Every node of every step, and nothing is wrong with slices that a real controller wrote."""
    cluster = CLUSTERS[number]
    nodes = [node_manifest(node) for node in cluster["nodes"]]
    checked = 0
    for service in cluster["services"]:
        for step in service["steps"]:
            inventory = inventory_of(nodes, service, step)
            (made,) = inventory.services
            answer = explain_service(inventory, made, settings=PlannerSettings())
            got = outcomes(answer)
            assert {node: got[node] for node in step["proxy"]} == step["proxy"]
            assert not WRONGLY_BLAMED & {cause.code for cause in answer.causes}, answer.causes
            checked += 1
    assert checked == sum(len(service["steps"]) for service in cluster["services"])
