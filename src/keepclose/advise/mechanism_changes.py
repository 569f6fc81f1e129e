"""What makes a mechanism govern a Service: the changed Service, and the command that changes it.

Only what selects the mechanism is changed: spec.trafficDistribution and annotations. Traffic
policies, selectors, ports and everything else stay as they are, so a change can neither open a
Local policy nor lose client addresses. Services whose endpoints or routing belong to others get no
change. Whether a change helps is for `advice` to say.
"""

from __future__ import annotations

from enum import StrEnum
from shlex import quote
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.model.gates import EXCLUSIVE_PAIRS, Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    KUBERNETES_SERVICE,
    NODE_TOPOLOGY_ANNOTATION,
    PREFER_CLOSE,
    PREFER_SAME_NODE,
    PREFER_SAME_ZONE,
    PROXY_NAME_LABEL,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.balanced import BALANCED
from keepclose.routing.node_level import NodeLevelMode
from keepclose.routing.strategy import (
    Strategy,
    StrategyName,
    choose_strategy,
    topology_annotation,
)
from keepclose.slices.settings import PlannerSettings

BALANCED_VALUE: Final = "keepclose.dev/Balanced"
OVERRIDES: Final = (SUBSETTING_ANNOTATION, TOPOLOGY_HINTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATION)
"""The annotations that take precedence over a traffic distribution."""


class Mechanism(StrEnum):
    """The mechanisms that a Service can be switched to."""

    NONE = "none"
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"
    AUTO = "Auto"
    BALANCED = "Balanced"
    SUBSETTING = "subsetting"


_NAMES: Final = {
    Mechanism.NONE: StrategyName.NONE,
    Mechanism.SAME_ZONE: StrategyName.SAME_ZONE,
    Mechanism.SAME_NODE: StrategyName.SAME_NODE,
    Mechanism.AUTO: StrategyName.AUTO,
    Mechanism.BALANCED: StrategyName.CUSTOM,
    Mechanism.SUBSETTING: StrategyName.SUBSETTING,
}
_GATES: Final = {
    Mechanism.NONE: (),
    Mechanism.SAME_ZONE: (Gate.SERVICE_TRAFFIC_DISTRIBUTION,),
    Mechanism.SAME_NODE: (
        Gate.SERVICE_TRAFFIC_DISTRIBUTION,
        Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
    ),
    Mechanism.AUTO: (Gate.TOPOLOGY_AWARE_HINTS,),
    Mechanism.BALANCED: (
        Gate.SERVICE_TRAFFIC_DISTRIBUTION,
        Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    ),
    Mechanism.SUBSETTING: (Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.ENDPOINT_SLICE_SUBSETTING),
}


class MechanismChange(NamedTuple):
    """A change that was not tried yet, and the Service and settings that result from it."""

    mechanism: str
    command: str
    service: Service
    settings: PlannerSettings


def why_unadvisable(service: Service) -> str:
    """Return why no change of the Service is ever advised; "" if one may be."""
    spec = service.spec
    if service.key == KUBERNETES_SERVICE:
        return "the API server manages this Service and its endpoints"
    if spec.type == "ExternalName":
        return "it is only a DNS name"
    if service.is_headless:
        return "it is headless: clients choose among the addresses of its pods themselves"
    if not spec.selector:
        return "it has no selector, so its endpoints are managed by hand"
    if PROXY_NAME_LABEL in service.metadata.labels:
        return "another proxy serves it"
    if service.metadata.deletion_timestamp is not None:
        return "it is being deleted"
    return ""


def missing_gates(mechanism: Mechanism, settings: PlannerSettings) -> tuple[Gate, ...]:
    """Return the feature gates that the mechanism needs and that are off."""
    return tuple(gate for gate in _GATES[mechanism] if not settings.gates.on(gate))


def with_mechanism(mechanism: Mechanism, settings: PlannerSettings) -> PlannerSettings | None:
    """Return the settings under which the mechanism works; None if others exclude its gates.

    The same object if it works already.
    """
    missing = missing_gates(mechanism, settings)
    if mechanism is Mechanism.BALANCED and BALANCED_VALUE not in settings.heuristics:
        settings = replace(settings, heuristics={**settings.heuristics, BALANCED_VALUE: BALANCED})
    if not missing:
        return settings
    gates = settings.gates.with_gates(*missing)
    if any(gates.on(first) and gates.on(second) for first, second in EXCLUSIVE_PAIRS):
        return None
    return replace(settings, gates=gates)


def switch_to(
    mechanism: Mechanism, service: Service, settings: PlannerSettings
) -> MechanismChange | None:
    """Return the smallest change after which the mechanism governs the Service.

    None if it governs already, if a gate that it needs is off, or if something that is no
    preference excludes it: topologyKeys, or a Local policy beside subsetting.
    """
    if why_unadvisable(service) or missing_gates(mechanism, settings):
        return None
    changed = _ask_for(mechanism, service, settings)
    if not is_governed(mechanism, changed, settings):
        changed = _without_annotations(changed, *_overrides_of(mechanism))
        if not is_governed(mechanism, changed, settings):
            return None
    command = change_command(service, changed)
    return MechanismChange(mechanism, command, changed, settings) if command else None


def is_governed(mechanism: Mechanism, service: Service, settings: PlannerSettings) -> bool:
    """Return whether the mechanism governs the Service under these settings."""
    strategy = _strategy_of(service, settings)
    if mechanism is Mechanism.BALANCED and strategy.value != BALANCED_VALUE:
        return False
    return strategy.name is _NAMES[mechanism]


def drop_topology_annotation(service: Service, settings: PlannerSettings) -> MechanismChange | None:
    """Return the change that removes the topology annotation; None if there is none."""
    key, value = topology_annotation(service)
    if value is None or why_unadvisable(service):
        return None
    changed = _without_annotations(service, key)
    label = _strategy_of(changed, settings).label
    return MechanismChange(label, change_command(service, changed), changed, settings)


def opt_into_node_level(service: Service, settings: PlannerSettings) -> MechanismChange | None:
    """Return the change by which the Service opts into node-level topology."""
    if why_unadvisable(service):
        return None
    value = "Enabled" if settings.node_level_mode is NodeLevelMode.MANUAL else "Auto"
    changed = _with_annotation(service, NODE_TOPOLOGY_ANNOTATION, value)
    return MechanismChange(
        StrategyName.NODE_LEVEL, change_command(service, changed), changed, settings
    )


def enable_gate(service: Service, gate: Gate, settings: PlannerSettings) -> MechanismChange | None:
    """Return the change that switches a feature gate on; the Service stays as it is."""
    if why_unadvisable(service):
        return None
    enabled = replace(settings, gates=settings.gates.with_gates(gate))
    if any(
        enabled.gates.on(first) and enabled.gates.on(second) for first, second in EXCLUSIVE_PAIRS
    ):
        return None
    label = _strategy_of(service, enabled).label
    return MechanismChange(label, f"--feature-gates {gate}=true", service, enabled)


def change_command(service: Service, changed: Service) -> str:
    """Return the kubectl command for what differs; "" if nothing does."""
    patch = change_patch(service, changed)
    meta = service.metadata
    target = f"-n {quote(meta.namespace)} {quote(meta.name)}"
    annotations = _changed_annotations(service, changed)
    if "spec" not in patch:
        if not annotations:
            return ""
        settings = [
            f"{key}-" if text is None else f"{key}={quote(text)}"
            for key, text in annotations.items()
        ]
        overwrite = "--overwrite " if any(annotations.values()) else ""
        return f"kubectl annotate service {target} {overwrite}{' '.join(settings)}"
    text = msgspec.json.encode(patch).decode()
    return f"kubectl patch service {target} -p {quote(text)}"


def change_patch(service: Service, changed: Service) -> JsonObject:
    """Return the merge patch for what differs in annotations and distribution; {} if nothing."""
    patch: JsonObject = {}
    if annotations := _changed_annotations(service, changed):
        patch["metadata"] = {"annotations": annotations}
    value = changed.spec.traffic_distribution
    if value != service.spec.traffic_distribution:
        patch["spec"] = {"trafficDistribution": value}
    return patch


def _changed_annotations(service: Service, changed: Service) -> dict[str, str | None]:
    before, after = service.metadata.annotations, changed.metadata.annotations
    return {
        key: after.get(key)
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def _ask_for(mechanism: Mechanism, service: Service, settings: PlannerSettings) -> Service:
    annotations = service.metadata.annotations
    match mechanism:
        case Mechanism.AUTO:
            return _with_annotation(service, topology_annotation(service)[0], "Auto")
        case Mechanism.SUBSETTING:
            return _with_annotation(service, SUBSETTING_ANNOTATION, "Auto")
        case Mechanism.BALANCED:
            return _with_annotation(service, TRAFFIC_DISTRIBUTION_ANNOTATION, BALANCED_VALUE)
        case Mechanism.NONE:
            plain = _without_annotations(service, TRAFFIC_DISTRIBUTION_ANNOTATION)
            return replace(plain, spec=replace(plain.spec, traffic_distribution=None))
        case Mechanism.SAME_ZONE | Mechanism.SAME_NODE:
            has_newer = settings.gates.on(Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION)
            value = PREFER_SAME_NODE
            known = [PREFER_SAME_NODE]
            if mechanism is Mechanism.SAME_ZONE:
                value = PREFER_SAME_ZONE if has_newer else PREFER_CLOSE
                known = [value, PREFER_CLOSE]
            if TRAFFIC_DISTRIBUTION_ANNOTATION in annotations:
                # The annotation wins over the field, so the field alone would change nothing.
                if annotations[TRAFFIC_DISTRIBUTION_ANNOTATION] in known:
                    return service
                return _with_annotation(service, TRAFFIC_DISTRIBUTION_ANNOTATION, value)
            if service.spec.traffic_distribution in known:
                return service
            return replace(service, spec=replace(service.spec, traffic_distribution=value))


def _strategy_of(service: Service, settings: PlannerSettings) -> Strategy:
    return choose_strategy(
        service,
        gates=settings.gates,
        default_subsetting=settings.subsets.default,
        heuristics=settings.heuristics,
    )


def _overrides_of(mechanism: Mechanism) -> tuple[str, ...]:
    """Return the annotations that may take precedence over the mechanism."""
    if mechanism is Mechanism.AUTO:
        return (SUBSETTING_ANNOTATION,)
    return () if mechanism is Mechanism.SUBSETTING else OVERRIDES


def _with_annotation(service: Service, key: str, value: str) -> Service:
    annotations = {**service.metadata.annotations, key: value}
    return replace(service, metadata=replace(service.metadata, annotations=annotations))


def _without_annotations(service: Service, *keys: str) -> Service:
    annotations = service.metadata.annotations
    if not any(key in annotations for key in keys):
        return service
    kept = {name: text for name, text in annotations.items() if name not in keys}
    return replace(service, metadata=replace(service.metadata, annotations=kept))
