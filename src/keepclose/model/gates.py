"""Feature gates under the names of the proposals, and their stages in the releases of Kubernetes.

A set of gates is a value: it is parsed once at start and passed to every decision. Pairs that the
proposals exclude are rejected, because two mechanisms would claim the same Service.

The history lists only gates of Kubernetes that a decision depends on, as in Kubernetes' own
versioned feature specs; gates of keepclose belong to no release. A component that emulates an older
release takes its gates from it: a gate that the release lacks is off and cannot be set, and a
locked gate cannot be changed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

# The release whose behaviour is followed, and the oldest that can be emulated, both 1.NN.
CURRENT_MINOR: Final = 36
OLDEST_MINOR: Final = 29


class Gate(StrEnum):
    """Every gate that a decision depends on."""

    SERVICE_TRAFFIC_DISTRIBUTION = "ServiceTrafficDistribution"
    PREFER_SAME_TRAFFIC_DISTRIBUTION = "PreferSameTrafficDistribution"
    TOPOLOGY_AWARE_HINTS = "TopologyAwareHints"
    SERVICE_INTERNAL_TRAFFIC_POLICY = "ServiceInternalTrafficPolicy"
    PROXY_TERMINATING_ENDPOINTS = "ProxyTerminatingEndpoints"
    ENDPOINT_SLICE_TERMINATING_CONDITION = "EndpointSliceTerminatingCondition"
    STRICT_IP_CIDR_VALIDATION = "StrictIPCIDRValidation"
    RELAXED_SERVICE_NAME_VALIDATION = "RelaxedServiceNameValidation"
    ALLOW_SERVICE_EXTERNAL_IPS = "AllowServiceExternalIPs"
    TOPOLOGY_AWARE_SUBSETTING = "TopologyAwareSubsetting"
    ENDPOINT_SLICE_SUBSETTING = "EndpointSliceSubsetting"
    PREFER_LOCAL_TRAFFIC_POLICY = "PreferLocalTrafficPolicy"
    NODE_LEVEL_TOPOLOGY = "NodeLevelTopology"
    SERVICE_TOPOLOGY = "ServiceTopology"
    SERVICE_TRAFFIC_DISTRIBUTION_STATUS = "ServiceTrafficDistributionStatus"
    TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS = "TrafficDistributionCustomHeuristics"


ON_BY_DEFAULT = frozenset(
    {
        Gate.SERVICE_TRAFFIC_DISTRIBUTION,
        Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION,
        Gate.TOPOLOGY_AWARE_HINTS,
        Gate.SERVICE_INTERNAL_TRAFFIC_POLICY,
        Gate.PROXY_TERMINATING_ENDPOINTS,
        Gate.ENDPOINT_SLICE_TERMINATING_CONDITION,
        Gate.STRICT_IP_CIDR_VALIDATION,
        Gate.RELAXED_SERVICE_NAME_VALIDATION,
        Gate.ALLOW_SERVICE_EXTERNAL_IPS,
    }
)
# Both succeeded ServiceTopology (topologyKeys), and their KEPs exclude running beside it.
EXCLUSIVE_PAIRS = (
    (Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.SERVICE_TOPOLOGY),
    (Gate.TOPOLOGY_AWARE_HINTS, Gate.SERVICE_TOPOLOGY),
)
_TRUE = frozenset({"true", "True", "TRUE", "t", "T", "1"})
_FALSE = frozenset({"false", "False", "FALSE", "f", "F", "0"})


class GateStage(NamedTuple):
    """The default and lock of a gate from one release on."""

    minor: int
    default: bool
    locked: bool = False


_HISTORY: Final[dict[str, tuple[GateStage, ...]]] = {
    "EndpointSliceTerminatingCondition": (GateStage(26, default=True, locked=True),),
    "ServiceInternalTrafficPolicy": (GateStage(26, default=True, locked=True),),
    "ProxyTerminatingEndpoints": (GateStage(28, default=True, locked=True),),
    "TopologyAwareHints": (
        GateStage(24, default=True),
        GateStage(33, default=True, locked=True),
    ),
    "ServiceTrafficDistribution": (
        GateStage(30, default=False),
        GateStage(31, default=True),
        GateStage(33, default=True, locked=True),
    ),
    "PreferSameTrafficDistribution": (
        GateStage(33, default=False),
        GateStage(34, default=True),
        GateStage(35, default=True, locked=True),
    ),
    "StrictIPCIDRValidation": (GateStage(33, default=False), GateStage(36, default=True)),
    "RelaxedServiceNameValidation": (GateStage(34, default=False), GateStage(36, default=True)),
    "AllowServiceExternalIPs": (GateStage(0, default=True),),
}
_is_version = re.compile(r"(?:kube=)?1\.(0|[1-9][0-9]{0,2})").fullmatch


class FeatureGates(msgspec.Struct, frozen=True):
    """The set of gates that are on."""

    enabled: frozenset[Gate] = ON_BY_DEFAULT
    # NN of the emulated release 1.NN, whose gates may be locked or unknown. With None no release is
    # emulated, and every gate can be set.
    emulated_minor: int | None = None

    def on(self, gate: Gate) -> bool:
        """Return whether the gate is on."""
        return gate in self.enabled

    def with_gates(self, *on: Gate) -> FeatureGates:
        """Return these gates with the given ones switched on."""
        return FeatureGates(self.enabled | set(on), self.emulated_minor)

    def without(self, *off: Gate) -> FeatureGates:
        """Return these gates with the given ones switched off."""
        return FeatureGates(self.enabled - set(off), self.emulated_minor)

    def knows_since(self, minor: int) -> bool:
        """Return whether features of release 1.NN exist; not if an older release is emulated."""
        return self.emulated_minor is None or self.emulated_minor >= minor


DEFAULT_GATES = FeatureGates()


def gates_at(minor: int) -> FeatureGates:
    """Return the gates that are on by default in a release; gates of keepclose are off."""
    stages = {gate: stage_at(gate, minor) for gate in Gate if gate in _HISTORY}
    on = frozenset(gate for gate, stage in stages.items() if stage is not None and stage.default)
    return FeatureGates(on, minor)


class GateError(ValueError):
    """An invalid --feature-gates text; the message names the part and the valid values."""


def parse_gates(
    text: str, *, defaults: FeatureGates = DEFAULT_GATES, allow_incompatible: bool = False
) -> FeatureGates:
    """Return the gates for a text such as "A=true,B=false"; the empty text gives the defaults.

    Groups such as `AllAlpha` do not exist. Raises GateError for unknown names, invalid values and
    excluded pairs; the latter can be allowed for tests of both mechanisms in one process. If the
    defaults emulate a release, gates that it locks or lacks are rejected too.
    """
    enabled = set(defaults.enabled)
    names = {gate.value: gate for gate in Gate}
    for part in map(str.strip, text.split(",")):
        if not part:
            continue
        name, separator, value = part.partition("=")
        gate = names.get(name.strip())
        if gate is None:
            raise GateError(f"unknown feature gate {name.strip()!r}; known: {', '.join(names)}")
        if not separator or value.strip() not in _TRUE | _FALSE:
            raise GateError(f"feature gate {gate}: {value.strip()!r} must be true or false")
        is_on = value.strip() in _TRUE
        if defaults.emulated_minor is not None and (
            refusal := refusal_at(gate, defaults.emulated_minor, value=is_on)
        ):
            raise GateError(refusal)
        if is_on:
            enabled.add(gate)
        else:
            enabled.discard(gate)
    if not allow_incompatible:
        for first, second in EXCLUSIVE_PAIRS:
            if first in enabled and second in enabled:
                raise GateError(
                    f"feature gates {first} and {second} exclude each other; "
                    f"add {first}=false or {second}=false"
                )
    return FeatureGates(frozenset(enabled), defaults.emulated_minor)


class VersionError(ValueError):
    """A version that cannot be emulated; the message names the valid range."""


def parse_emulated_version(text: str) -> int:
    """Return NN of a version such as 1.NN or kube=1.NN; raises VersionError."""
    match = _is_version(text.strip())
    minor = int(match[1]) if match else -1
    if not OLDEST_MINOR <= minor <= CURRENT_MINOR:
        raise VersionError(f"{text!r} must be a version from 1.{OLDEST_MINOR} to 1.{CURRENT_MINOR}")
    return minor


def stage_at(name: str, minor: int) -> GateStage | None:
    """Return the stage of a gate in a release; None before its first release."""
    reached = [stage for stage in _HISTORY[name] if stage.minor <= minor]
    return reached[-1] if reached else None


def refusal_at(name: str, minor: int, *, value: bool) -> str:
    """Return why a gate cannot be set in a release, "" if it can; worded as in Kubernetes."""
    if name not in _HISTORY:
        return ""
    stage = stage_at(name, minor)
    setting = f"cannot set feature gate {name} to {str(value).lower()}, feature is"
    if stage is None:
        return f"{setting} PreAlpha at emulated version 1.{minor}"
    if stage.locked and stage.default is not value:
        return f"{setting} locked to {str(stage.default).lower()}"
    return ""
