"""Which change of a Service, or which feature gate, is worth advising, found by a trial.

A reason says why traffic is not close. Whether the obvious change helps depends on where the
endpoints are: PreferSameZone on nine endpoints in one zone and one in another overloads that one.
So each change is tried on the whole cluster, by the same plan and the same selections as the
resolution itself, and advised only if it keeps more traffic close, no endpoint carries more than
the busiest does now, and no connection fails that succeeds now. Every ready node is assumed to send
the same amount.

A change never widens a traffic policy, never loses client addresses, and never affects endpoints
that the Service's selector does not choose: an ExternalName, a headless Service or one without a
selector gains nothing in the trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    PREFER_CLOSE,
    PREFER_SAME_ZONE,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import Selection
from keepclose.routing.strategy import topology_annotation
from keepclose.slices.settings import PlannerSettings

_MARGIN = 1e-9


class _Change(NamedTuple):
    """A change to try: its command, and the Service and settings that result."""

    command: str
    service: Service
    settings: PlannerSettings


class RoutedTraffic(NamedTuple):
    """Where the traffic of one Service goes when every ready node sends one unit to each port."""

    sent: float
    failed: float
    in_zone: float
    on_node: float
    busiest: float
    """The units that the busiest endpoint of any port gets."""

    def is_better_than(self, other: RoutedTraffic) -> bool:
        """Return whether more traffic is close and nothing is worse."""
        gains = (
            self.in_zone > other.in_zone + _MARGIN,
            self.on_node > other.on_node + _MARGIN and self.in_zone > other.in_zone - _MARGIN,
        )
        harms = (
            self.failed > other.failed + _MARGIN,
            self.busiest > other.busiest * (1 + _MARGIN),
        )
        return any(gains) and not any(harms)


def measure_traffic(selections: Iterable[tuple[NodeView, str, Selection]]) -> RoutedTraffic:
    """Return where the traffic goes; each item is a node, a port, and the node's selection for it.

    No nodes or no ports give zeros.
    """
    sent = failed = in_zone = on_node = 0.0
    loads: dict[tuple[str, str], float] = {}
    for view, port, selection in selections:
        sent += 1
        endpoints = selection.internal.endpoints
        if not endpoints:
            failed += 1
            continue
        weights = sum(endpoint.weight for endpoint in endpoints)
        for endpoint in endpoints:
            part = endpoint.weight / weights
            loads[port, endpoint.key] = loads.get((port, endpoint.key), 0.0) + part
            in_zone += part if view.zone and endpoint.zone == view.zone else 0.0
            on_node += part if endpoint.node_name == view.name else 0.0
    return RoutedTraffic(sent, failed, in_zone, on_node, max(loads.values(), default=0.0))


def find_changes(
    service: Service, reasons: Iterable[Reason], settings: PlannerSettings
) -> Mapping[Reason, _Change]:
    """Return the untried change that may help against each reason; most reasons have none."""
    changes: dict[Reason, _Change] = {}
    for reason in reasons:
        change = _change_for(service, reason, settings)
        if change is not None:
            changes[reason] = change
    return changes


def _change_for(service: Service, reason: Reason, settings: PlannerSettings) -> _Change | None:
    match reason.code:
        case ReasonCode.NOTHING_ASKED:
            return _prefer_zone(service, settings)
        case ReasonCode.VALUE_NOT_SUPPORTED if reason.subject == f"Service {service.key}":
            return _prefer_zone(service, settings)
        case ReasonCode.OVERRIDDEN if reason.subject == f"Service {service.key}":
            return _drop_topology_annotation(service, settings)
        case ReasonCode.GATE_OFF:
            return _enable_gate(service, reason, settings)
        case ReasonCode.NOT_OPTED_IN:
            value = "Enabled" if settings.node_level_mode is NodeLevelMode.MANUAL else "Auto"
            return _annotate(service, NODE_TOPOLOGY_ANNOTATION, value, settings)
        case _:
            return None


def _prefer_zone(service: Service, settings: PlannerSettings) -> _Change | None:
    gates = settings.gates
    if not gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION):
        return None
    has_newer_values = gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
    value = PREFER_SAME_ZONE if has_newer_values else PREFER_CLOSE
    if TRAFFIC_DISTRIBUTION_ANNOTATION in service.metadata.annotations:
        # The annotation wins over the field, so the field alone would change nothing.
        return _annotate(service, TRAFFIC_DISTRIBUTION_ANNOTATION, value, settings)
    patch = f'{{"spec":{{"trafficDistribution":"{value}"}}}}'
    command = f"kubectl patch service {_kubectl_target(service)} -p '{patch}'"
    changed = replace(service, spec=replace(service.spec, traffic_distribution=value))
    return _Change(command, changed, settings)


def _drop_topology_annotation(service: Service, settings: PlannerSettings) -> _Change | None:
    key, value = topology_annotation(service)
    if value is None:
        return None
    command = f"kubectl annotate service {_kubectl_target(service)} {key}-"
    kept = {name: text for name, text in service.metadata.annotations.items() if name != key}
    changed = replace(service, metadata=replace(service.metadata, annotations=kept))
    return _Change(command, changed, settings)


def _enable_gate(service: Service, reason: Reason, settings: PlannerSettings) -> _Change | None:
    for gate in Gate:
        if reason.subject == f"FeatureGate {gate}":
            gates: FeatureGates = settings.gates.with_gates(gate)
            return _Change(f"--feature-gates {gate}=true", service, replace(settings, gates=gates))
    return None


def _annotate(service: Service, key: str, value: str, settings: PlannerSettings) -> _Change:
    command = f"kubectl annotate service {_kubectl_target(service)} --overwrite {key}={value}"
    annotations = {**service.metadata.annotations, key: value}
    changed = replace(service, metadata=replace(service.metadata, annotations=annotations))
    return _Change(command, changed, settings)


def _kubectl_target(service: Service) -> str:
    return f"-n {service.metadata.namespace} {service.metadata.name}"
