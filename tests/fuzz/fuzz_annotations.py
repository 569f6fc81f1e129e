"""What people write into a Service to choose its routing: any text gives an answer with reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from fuzzbounds import require

from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import resolve_services
from keepclose.cli.render.resolve import resolved_document
from keepclose.heuristics.discovery import find_heuristics
from keepclose.model import well_known
from keepclose.model.gates import FeatureGates, Gate
from keepclose.slices.settings import PlannerSettings
from support import builders

MUTATES_JSON = True
_GATES = FeatureGates().with_gates(
    Gate.PREFER_LOCAL_TRAFFIC_POLICY,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS,
)
_SETTINGS = (
    PlannerSettings(gates=_GATES, heuristics=find_heuristics(_GATES)),
    PlannerSettings(gates=_GATES.with_gates(Gate.NODE_LEVEL_TOPOLOGY)),
    PlannerSettings(gates=FeatureGates().with_gates(Gate.SERVICE_TOPOLOGY)),
)
_NODES = tuple(builders.node(f"n{number}", zone=f"zone-{number % 3}") for number in range(6))
_PODS = tuple(
    builders.pod(f"p{number}", f"n{number % 6}", ip=f"10.0.0.{number + 1}") for number in range(8)
)


class _Asked(msgspec.Struct):
    annotations: dict[str, str] = {}
    distribution: str | None = None
    keys: tuple[str, ...] = ()
    policy: str = "Cluster"
    weights: str = ""
    zone_weights: str = ""


def seeds() -> Iterator[bytes]:
    """Yield every annotation with a value that it may have."""
    values = {
        well_known.TOPOLOGY_MODE_ANNOTATION: "Auto",
        well_known.TOPOLOGY_HINTS_ANNOTATION: "auto",
        well_known.SUBSETTING_ANNOTATION: "Prefer",
        well_known.STARTING_THRESHOLD_ANNOTATION: "2",
        well_known.PADDING_ANNOTATION: "1",
        well_known.OVERLOAD_THRESHOLD_ANNOTATION: "0.5",
        well_known.MAX_OVERLOAD_ANNOTATION: "20%",
        well_known.OBJECTIVE_ANNOTATION: "Locality",
        well_known.MIN_IN_ZONE_ANNOTATION: "0.6",
        well_known.NODE_TOPOLOGY_ANNOTATION: "Enabled",
        well_known.WEIGHTS_ANNOTATION: "Enabled",
        well_known.TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced",
        well_known.INTERNAL_POLICY_ANNOTATION: "PreferLocal",
        well_known.EXTERNAL_POLICY_ANNOTATION: "Local",
    }
    asked: list[dict[str, Any]] = [{"annotations": {key: text}} for key, text in values.items()]
    subsets = (
        well_known.SUBSETTING_ANNOTATION,
        well_known.STARTING_THRESHOLD_ANNOTATION,
        well_known.PADDING_ANNOTATION,
        well_known.OVERLOAD_THRESHOLD_ANNOTATION,
    )
    asked.append({"annotations": {key: values[key] for key in subsets}})
    limits = (
        well_known.TRAFFIC_DISTRIBUTION_ANNOTATION,
        well_known.MAX_OVERLOAD_ANNOTATION,
        well_known.OBJECTIVE_ANNOTATION,
        well_known.MIN_IN_ZONE_ANNOTATION,
        well_known.WEIGHTS_ANNOTATION,
    )
    asked.append({"annotations": {key: values[key] for key in limits}})
    asked += [{"distribution": value} for value in ("PreferSameZone", "PreferSameNode", "a.b/C")]
    asked += [{"keys": ["kubernetes.io/hostname", "*"]}, {"weights": "[1, 2, 3]"}]
    written = '{"hints":250,"weights":{"zone-0":{"zone-1":7},"zone-1":{"zone-1":1000}}}'
    asked.append({"distribution": "a.b/C", "zone_weights": written})
    for one in asked:
        yield b"\n" + msgspec.json.encode(one)


def check(data: bytes) -> None:
    """Resolve a Service that asks for it, with and without slices of its own."""
    try:
        asked = msgspec.json.decode(data.partition(b"\n")[2], type=_Asked)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    service = builders.service(
        annotations=asked.annotations,
        traffic_distribution=asked.distribution,
        topology_keys=asked.keys,
        internal_traffic_policy=asked.policy,
    )
    endpoints = (
        builders.endpoint(f"10.0.0.{number + 1}", zone="zone-1", for_zones=("zone-1",))
        for number in range(3)
    )
    weights = {
        well_known.ENDPOINT_WEIGHTS_ANNOTATION: asked.weights,
        well_known.ZONE_WEIGHTS_ANNOTATION: asked.zone_weights,
    }
    by_hand = builders.endpoint_slice(*endpoints, annotations=weights)
    for settings in _SETTINGS:
        for inventory in (
            Inventory.of((service, *_NODES, *_PODS)),
            Inventory.of((service, *_NODES, by_hand)),
        ):
            (answer,) = resolve_services(inventory, settings=settings)
            for reason in answer.reasons:
                require(str(reason.message), "a reason without words")
            msgspec.json.encode(resolved_document((answer,)))
