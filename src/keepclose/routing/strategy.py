"""Which mechanism governs a Service: precedence among five proposals, by configuration alone.

An explicit setting beats a default, and among explicit settings the older mechanism beats the
newer: topologyKeys, the subsetting annotation, the topology annotation, trafficDistribution, and
last the default of the controller. This satisfies KEP-2004, KEP-2433 and KEP-4444 at once. A
mechanism that was chosen but cannot be satisfied yields plain routing. It never falls through to
the next one, because users would not see which mechanism they got.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
    PREFER_CLOSE,
    PREFER_SAME_NODE,
    PREFER_SAME_ZONE,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.subsets import Approach, Level, parse_annotation, parse_level

DISTRIBUTION_FIELD = "spec.trafficDistribution"
CONTROLLER_DEFAULT = "controller default"


class StrategyName(StrEnum):
    """The mechanisms; `Strategy.label` names a custom heuristic by its value."""

    NONE = "None"
    TOPOLOGY_KEYS = "TopologyKeys"
    SUBSETTING = "Subsetting"
    AUTO = "Auto"
    NODE_LEVEL = "NodeLevel"
    SAME_ZONE = "PreferSameZone"
    SAME_NODE = "PreferSameNode"
    CUSTOM = "Custom"


HINTING_STRATEGIES: Final = frozenset(
    {StrategyName.AUTO, StrategyName.SAME_ZONE, StrategyName.SAME_NODE, StrategyName.CUSTOM}
)
"""The mechanisms that set hints on endpoints."""


class DistributionVerdict(StrEnum):
    """The status of the trafficDistribution value of a Service."""

    ABSENT = "Absent"
    GOVERNS = "Governs"
    OVERRIDDEN = "Overridden"
    UNSUPPORTED = "Unsupported"
    DISABLED = "Disabled"


class Strategy(msgspec.Struct, frozen=True):
    """The mechanism that governs, the field that selects it, and the reasons."""

    name: StrategyName
    source: str
    value: str
    reasons: tuple[Reason, ...]
    distribution: DistributionVerdict
    approach: Approach = Approach.RANDOM
    level: Level = Level.ZONE
    """What subsetting divides by."""

    @property
    def label(self) -> str:
        """The name for display; for a custom heuristic it is the value."""
        return self.value if self.name is StrategyName.CUSTOM else self.name.value

    @property
    def is_explicit(self) -> bool:
        """Whether the Service selects this mechanism, not the default of the controller."""
        return self.name is not StrategyName.NONE and self.source != CONTROLLER_DEFAULT


def annotation_path(key: str) -> str:
    """Return the field path of an annotation."""
    return f"metadata.annotations[{key}]"


def topology_annotation(service: Service) -> tuple[str, str | None]:
    """Return the topology annotation that counts and its value; None if neither is set.

    The deprecated name takes precedence if present, even if it is empty.
    """
    annotations = service.metadata.annotations
    for key in (TOPOLOGY_HINTS_ANNOTATION, TOPOLOGY_MODE_ANNOTATION):
        if key in annotations:
            return key, annotations[key]
    return TOPOLOGY_MODE_ANNOTATION, None


def traffic_distribution(service: Service) -> tuple[str, str | None]:
    """Return the path and value of the requested traffic distribution; None if there is none.

    The keepclose annotation takes precedence over the field: it exists for API servers that reject
    the value.
    """
    value = service.metadata.annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION)
    if value is not None:
        return annotation_path(TRAFFIC_DISTRIBUTION_ANNOTATION), value
    return DISTRIBUTION_FIELD, service.spec.traffic_distribution


def choose_strategy(
    service: Service,
    *,
    gates: FeatureGates,
    default_subsetting: Approach = Approach.RANDOM,
    heuristics: Collection[str] = frozenset(),
) -> Strategy:
    """Return the mechanism that governs the Service; NONE if nothing is configured.

    `heuristics` holds the registered values of the form <domain>/<name>.
    """
    reasons: list[Reason] = []
    chosen = (
        _by_topology_keys(service, gates, reasons)
        or _by_subsetting(service, gates, reasons)
        or _by_topology_annotation(service, gates, reasons)
    )
    path, value = traffic_distribution(service)
    if chosen is not None:
        verdict = DistributionVerdict.ABSENT if value is None else DistributionVerdict.OVERRIDDEN
        if value is not None:
            reasons.append(
                Reason(
                    ReasonCode.OVERRIDDEN,
                    f"{path}: {value} is ignored because {chosen.source} takes precedence",
                    subject=f"Service {service.key}",
                )
            )
        return msgspec.structs.replace(chosen, reasons=tuple(reasons), distribution=verdict)
    name, verdict = _by_distribution(service, gates, heuristics, reasons)
    if name is not None:
        return Strategy(name, path, value or "", tuple(reasons), verdict)
    subsetting = _by_default_subsetting(service, default_subsetting, gates, reasons)
    if subsetting is not None:
        return msgspec.structs.replace(subsetting, reasons=tuple(reasons), distribution=verdict)
    if not reasons:
        reasons.append(
            Reason(
                ReasonCode.NOTHING_ASKED,
                "no mechanism was asked for, so every node uses all endpoints",
            )
        )
    return Strategy(StrategyName.NONE, "", "", tuple(reasons), verdict)


def _chosen(name: StrategyName, source: str, value: str) -> Strategy:
    return Strategy(name, source, value, (), DistributionVerdict.ABSENT)


def _by_topology_keys(
    service: Service, gates: FeatureGates, reasons: list[Reason]
) -> Strategy | None:
    keys = service.spec.topology_keys
    if not keys:
        return None
    if not gates.on(Gate.SERVICE_TOPOLOGY):
        reasons.append(_gate_off("spec.topologyKeys", Gate.SERVICE_TOPOLOGY))
        return None
    reasons.append(
        Reason(ReasonCode.TOPOLOGY_KEYS_GOVERN, f"spec.topologyKeys: {', '.join(keys)} governs")
    )
    return _chosen(StrategyName.TOPOLOGY_KEYS, "spec.topologyKeys", ",".join(keys))


def _by_subsetting(service: Service, gates: FeatureGates, reasons: list[Reason]) -> Strategy | None:
    value = service.metadata.annotations.get(SUBSETTING_ANNOTATION)
    approach = parse_annotation(value)
    if approach not in (Approach.PREFER, Approach.REQUIRE):
        return None
    source = annotation_path(SUBSETTING_ANNOTATION)
    if not gates.on(Gate.TOPOLOGY_AWARE_SUBSETTING):
        reasons.append(_gate_off(source, Gate.TOPOLOGY_AWARE_SUBSETTING))
        return None
    if not _allows_subsetting(service, source, reasons):
        return None
    reasons.append(Reason(ReasonCode.SUBSETTING_GOVERNS, f"{source}: {value} governs"))
    return msgspec.structs.replace(
        _chosen(StrategyName.SUBSETTING, source, value or ""),
        approach=approach,
        level=parse_level(value),
    )


def _by_default_subsetting(
    service: Service, default: Approach, gates: FeatureGates, reasons: list[Reason]
) -> Strategy | None:
    value = service.metadata.annotations.get(SUBSETTING_ANNOTATION)
    opted_out = parse_annotation(value) is Approach.RANDOM
    topology = topology_annotation(service)[1]
    if default not in (Approach.PREFER, Approach.REQUIRE) or opted_out or topology is not None:
        # A topology annotation, even Disabled, is an explicit setting.
        return None
    if not gates.on(Gate.TOPOLOGY_AWARE_SUBSETTING):
        return None
    if not _allows_subsetting(service, CONTROLLER_DEFAULT, reasons):
        return None
    reasons.append(
        Reason(
            ReasonCode.CONTROLLER_DEFAULT_GOVERNS,
            f"the controller subsets Services that select no mechanism ({default})",
        )
    )
    return msgspec.structs.replace(
        _chosen(StrategyName.SUBSETTING, CONTROLLER_DEFAULT, default.value), approach=default
    )


def _allows_subsetting(service: Service, source: str, reasons: list[Reason]) -> bool:
    # Labelled slices hide endpoints from nodes of other zones, even endpoints that a Local policy
    # needs, so the two exclude each other.
    annotations = service.metadata.annotations
    policies = {
        "internalTrafficPolicy": annotations.get(
            INTERNAL_POLICY_ANNOTATION, service.spec.internal_traffic_policy
        ),
        "externalTrafficPolicy": annotations.get(
            EXTERNAL_POLICY_ANNOTATION, service.spec.external_traffic_policy
        ),
    }
    for field, policy in policies.items():
        if policy in ("Local", "PreferLocal"):
            reasons.append(
                Reason(
                    ReasonCode.SUBSETTING_NEEDS_CLUSTER_POLICY,
                    f"{source} is ignored because {field} is {policy}, "
                    "and subsets would hide local endpoints",
                    subject=f"Service {service.key}",
                )
            )
            return False
    return True


def _by_topology_annotation(
    service: Service, gates: FeatureGates, reasons: list[Reason]
) -> Strategy | None:
    key, value = topology_annotation(service)
    if value is None:
        return None
    source = annotation_path(key)
    mode = {
        "Auto": (StrategyName.AUTO, Gate.TOPOLOGY_AWARE_HINTS),
        "auto": (StrategyName.AUTO, Gate.TOPOLOGY_AWARE_HINTS),
        "Node": (StrategyName.NODE_LEVEL, Gate.NODE_LEVEL_TOPOLOGY),
    }.get(value)
    if mode is None:
        reasons.append(
            Reason(
                ReasonCode.TOPOLOGY_DISABLED,
                f"{source}: {value!r} means no topology mode"
                + ("" if value in ("", "Disabled", "disabled") else "; only Auto switches one on"),
            )
        )
        return None
    name, gate = mode
    if not gates.on(gate):
        reasons.append(_gate_off(f"{source}: {value}", gate))
        return None
    reasons.append(Reason(ReasonCode.TOPOLOGY_ANNOTATION_GOVERNS, f"{source}: {value} governs"))
    return _chosen(name, source, value)


def _by_distribution(
    service: Service,
    gates: FeatureGates,
    heuristics: Collection[str],
    reasons: list[Reason],
) -> tuple[StrategyName | None, DistributionVerdict]:
    path, value = traffic_distribution(service)
    if value is None:
        return None, DistributionVerdict.ABSENT
    if not gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION):
        reasons.append(_gate_off(f"{path}: {value}", Gate.SERVICE_TRAFFIC_DISTRIBUTION))
        return None, DistributionVerdict.DISABLED
    name: StrategyName | None = None
    gate: Gate | None = None
    if value == PREFER_CLOSE:
        name = StrategyName.SAME_ZONE
    elif value in (PREFER_SAME_ZONE, PREFER_SAME_NODE):
        same_zone = value == PREFER_SAME_ZONE
        name = StrategyName.SAME_ZONE if same_zone else StrategyName.SAME_NODE
        gate = Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION
    elif "/" in value:
        name = StrategyName.CUSTOM if value in heuristics else None
        gate = Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
    if gate is not None and not gates.on(gate):
        reasons.append(_gate_off(f"{path}: {value}", gate))
        return None, DistributionVerdict.DISABLED
    if name is None:
        cause, fix = "it is unknown", ""
        if "/" in value:
            installed = ", ".join(sorted(heuristics)) or "none"
            cause = "no heuristic of that name is registered"
            fix = f"install the package that provides it; installed: {installed}"
        reasons.append(
            Reason(
                ReasonCode.VALUE_NOT_SUPPORTED,
                f"{path}: {value!r} is treated as absent because {cause}",
                subject=f"Service {service.key}",
                fix=fix,
            )
        )
        return None, DistributionVerdict.UNSUPPORTED
    reasons.append(Reason(ReasonCode.TRAFFIC_DISTRIBUTION_GOVERNS, f"{path}: {value} governs"))
    return name, DistributionVerdict.GOVERNS


def _gate_off(setting: str, gate: Gate) -> Reason:
    return Reason(
        ReasonCode.GATE_OFF,
        f"{setting} is ignored because feature gate {gate} is off",
        subject=f"FeatureGate {gate}",
    )
