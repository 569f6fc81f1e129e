"""Since which release of Kubernetes a gate exists, is on by default, and is locked.

Only gates of Kubernetes that some decision asks about are listed, as Kubernetes' own versioned
feature specs have them; gates of keepclose belong to no release. A component that emulates an older
release reads its gates from here: a gate that is not there yet is off and cannot be set, one that
is locked cannot be changed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# The release whose behaviour is followed, and the oldest that can be emulated, both 1.NN.
CURRENT_MINOR: Final = 36
OLDEST_MINOR: Final = 29


class GateStage(NamedTuple):
    """What a gate is from one release on."""

    minor: int
    default: bool
    locked: bool = False


HISTORY: Final[dict[str, tuple[GateStage, ...]]] = {
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


class VersionError(ValueError):
    """A version that cannot be emulated; says what would do."""


def parse_emulated_version(text: str) -> int:
    """Return NN of a version such as 1.NN or kube=1.NN; raises VersionError."""
    match = _is_version(text.strip())
    minor = int(match[1]) if match else -1
    if not OLDEST_MINOR <= minor <= CURRENT_MINOR:
        raise VersionError(f"{text!r} must be a version from 1.{OLDEST_MINOR} to 1.{CURRENT_MINOR}")
    return minor


def stage_at(name: str, minor: int) -> GateStage | None:
    """Return what a gate is in a release; None before its first release."""
    reached = [stage for stage in HISTORY[name] if stage.minor <= minor]
    return reached[-1] if reached else None


def refusal_at(name: str, minor: int, *, wanted: bool) -> str:
    """Return why a gate cannot be set in a release, "" when it can; the words are Kubernetes'."""
    if name not in HISTORY:
        return ""
    stage = stage_at(name, minor)
    setting = f"cannot set feature gate {name} to {str(wanted).lower()}, feature is"
    if stage is None:
        return f"{setting} PreAlpha at emulated version 1.{minor}"
    if stage.locked and stage.default is not wanted:
        return f"{setting} locked to {str(stage.default).lower()}"
    return ""
