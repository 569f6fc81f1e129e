"""Clusters of one Service that hypothesis generates: any placement, mechanism, policy and gates."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st

from keepclose.advise.inventory import Inventory
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    MAX_OVERLOAD_ANNOTATION,
    NODE_TOPOLOGY_ANNOTATION,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.balanced import BALANCED
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod, service

ZONES = ("zone-a", "zone-b", "zone-c", "zone-d")
_BALANCED = "keepclose.dev/Balanced"
_GATES = (
    Gate.SERVICE_TRAFFIC_DISTRIBUTION,
    Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
    Gate.TOPOLOGY_AWARE_HINTS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.ENDPOINT_SLICE_SUBSETTING,
    Gate.PREFER_LOCAL_TRAFFIC_POLICY,
    Gate.NODE_LEVEL_TOPOLOGY,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
)
_SPECS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "traffic_distribution": st.sampled_from(
            ["PreferClose", "PreferSameZone", "PreferSameNode", _BALANCED, "x.example/y"]
        ),
        "internal_traffic_policy": st.sampled_from(["Cluster", "Local"]),
        "type": st.sampled_from(["ClusterIP", "NodePort"]),
        "external_traffic_policy": st.sampled_from(["Cluster", "Local"]),
    },
)
_ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        TOPOLOGY_MODE_ANNOTATION: st.sampled_from(["Auto", "Disabled", "Node", "nonsense"]),
        NODE_TOPOLOGY_ANNOTATION: st.sampled_from(["Enabled", "Auto", "Disabled"]),
        SUBSETTING_ANNOTATION: st.sampled_from(["Auto", "Require", "Disabled"]),
        TRAFFIC_DISTRIBUTION_ANNOTATION: st.sampled_from([_BALANCED, "PreferSameZone", "Nearest"]),
        MAX_OVERLOAD_ANNOTATION: st.sampled_from(["0", "0.1", "1", "nonsense"]),
    },
)


class GeneratedCluster(NamedTuple):
    """A cluster of one Service, and the settings of its controller."""

    service: Service
    inventory: Inventory
    settings: PlannerSettings


@st.composite
def clusters(draw: st.DrawFn, *, most_pods: int = 12) -> GeneratedCluster:
    """Draw nodes in up to four zones or in none, and pods of one Service on some of them."""
    placed = st.sampled_from((*ZONES[: draw(st.integers(1, 4))], None))
    zones = draw(st.lists(placed, min_size=1, max_size=8))
    objects: list[object] = [
        node(
            f"n{number}",
            zone,
            cpu=draw(st.sampled_from(["1", "4", "4", "16", None])),
            ready=draw(st.integers(0, 9)) > 0,
        )
        for number, zone in enumerate(zones)
    ]
    for number, home in enumerate(
        draw(st.lists(st.integers(0, len(zones) - 1), max_size=most_pods))
    ):
        state = draw(st.integers(0, 9))
        objects.append(
            pod(
                f"p{number}",
                f"n{home}",
                ip=f"10.0.{home}.{number + 1}",
                ready=state > 0,
                terminating=state == 1,
            )
        )
    spec = draw(_SPECS)
    if spec.get("type") != "NodePort":
        spec.pop("external_traffic_policy", None)
    made = service(annotations=draw(_ANNOTATIONS), **spec)
    gates = FeatureGates().with_gates(*_GATES).without(*draw(st.sets(st.sampled_from(_GATES))))
    heuristics = {}
    if gates.on(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS):
        heuristics = {_BALANCED: BALANCED}
    settings = PlannerSettings(gates=gates, heuristics=heuristics)
    return GeneratedCluster(made, Inventory.of([made, *objects]), settings)
