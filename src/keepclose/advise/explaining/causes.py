"""What can be to blame for the traffic of a Service, and how much it matters.

A cause names its evidence, the object concerned, and the smallest fix. It is sure if the objects
show it; it is probable if something that no object shows, such as the settings of a proxy, decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec


class TrafficCauseCode(StrEnum):
    """What keeps traffic from going, or from going where a Service asks."""

    # The kind of Service.
    EXTERNAL_NAME = "ExternalName"
    HEADLESS = "Headless"
    NO_SELECTOR = "NoSelector"
    SERVED_BY_OTHER_PROXY = "ServedByOtherProxy"

    # Which mechanism governs.
    NOTHING_ASKED = "NothingAsked"
    ANNOTATION_OVER_FIELD = "AnnotationOverField"
    GATE_OFF = "GateOff"
    VALUE_NOT_SUPPORTED = "ValueNotSupported"
    TOPOLOGY_DISABLED = "TopologyDisabled"
    SETTING_INVALID = "SettingInvalid"
    POLICY_EXCLUDES_SUBSETTING = "PolicyExcludesSubsetting"
    POLICY_OVER_HINTS = "PolicyOverHints"
    SESSION_AFFINITY = "SessionAffinity"

    # Which Pods are endpoints.
    SELECTOR_VALUE_DIFFERS = "SelectorValueDiffers"
    SELECTOR_KEY_MISSING = "SelectorKeyMissing"
    PODS_IN_OTHER_NAMESPACE = "PodsInOtherNamespace"
    NO_PODS = "NoPods"
    POD_NOT_SELECTED = "PodNotSelected"
    POD_TERMINATING = "PodTerminating"
    POD_FINISHED = "PodFinished"
    POD_NOT_SCHEDULED = "PodNotScheduled"
    POD_WITHOUT_ADDRESS = "PodWithoutAddress"
    POD_ON_UNKNOWN_NODE = "PodOnUnknownNode"
    HOST_NETWORK = "HostNetwork"
    ADDRESS_FAMILY = "AddressFamily"
    READINESS_GATE = "ReadinessGate"
    CONTAINER_WAITING = "ContainerWaiting"
    CONTAINER_ENDED = "ContainerEnded"
    CONTAINER_STARTING = "ContainerStarting"
    READINESS_PROBE = "ReadinessProbe"
    POD_NODE_NOT_READY = "PodNodeNotReady"
    POD_NOT_READY = "PodNotReady"
    PUBLISHES_UNREADY = "PublishesUnready"
    ONLY_TERMINATING = "OnlyTerminating"
    NO_READY_ENDPOINT = "NoReadyEndpoint"

    # Ports.
    TARGET_PORT_MISSING = "TargetPortMissing"
    TARGET_PORT_PROTOCOL = "TargetPortProtocol"
    TARGET_PORT_UNDECLARED = "TargetPortUndeclared"
    PORT_NAME_DIFFERS = "PortNameDiffers"

    # EndpointSlices.
    SLICES_NOT_WRITTEN = "SlicesNotWritten"
    SLICES_STALE = "SlicesStale"
    SLICES_OF_OTHER_CONTROLLER = "SlicesOfOtherController"
    SLICES_WITHOUT_SERVICE = "SlicesWithoutService"
    SLICES_OF_OLDER_SERVICE = "SlicesOfOlderService"

    # Hints.
    HINTS_NOT_WRITTEN = "HintsNotWritten"
    HINTS_DIFFER = "HintsDiffer"
    HINTS_LEFT_OVER = "HintsLeftOver"
    HINTS_IGNORED = "HintsIgnored"
    ENDPOINT_WITHOUT_HINT = "EndpointWithoutHint"
    ENDPOINT_WITHOUT_ZONE = "EndpointWithoutZone"
    NODE_INFO_MISSING = "NodeInfoMissing"
    SINGLE_ZONE = "SingleZone"
    TOO_FEW_ENDPOINTS = "TooFewEndpoints"
    ZONE_OVERLOADED = "ZoneOverloaded"
    SUBSETS_NOT_BUILT = "SubsetsNotBuilt"
    HEURISTIC_WITHOUT_ANSWER = "HeuristicWithoutAnswer"

    # Nodes and zones.
    NODE_WITHOUT_ZONE = "NodeWithoutZone"
    NODE_NOT_READY = "NodeNotReady"
    NODES_NOT_COUNTED = "NodesNotCounted"
    ZONE_WITHOUT_ENDPOINT = "ZoneWithoutEndpoint"
    ZONE_UNREADY = "ZoneUnready"
    ZONE_CORDONED = "ZoneCordoned"
    ZONE_TAINTED = "ZoneTainted"
    NO_LOCAL_ENDPOINT = "NoLocalEndpoint"
    TOPOLOGY_KEYS_UNMATCHED = "TopologyKeysUnmatched"

    # Data plane.
    PROXY_TOO_OLD = "ProxyTooOld"
    PROXY_REFUSES_HINTS = "ProxyRefusesHints"
    PROXY_BEHIND = "ProxyBehind"
    OTHER_DATA_PLANE = "OtherDataPlane"

    # One client and one Pod.
    CLOSER_ENDPOINTS = "CloserEndpoints"


class CauseWeight(StrEnum):
    """What a cause does to the traffic in question."""

    BLOCKS = "blocks"
    """Connections get no endpoint, or not the Pod in question."""
    DEFEATS = "defeats"
    """Connections arrive, and not as the Service asks."""
    NOTE = "note"
    """Traffic is as asked, or this changes only a part of it by design."""


WEIGHT_ORDER: Final = tuple(CauseWeight)


class TrafficCause(msgspec.Struct, frozen=True):
    """A cause: its code, the evidence, the object concerned, and the smallest fix.

    `fix` is a command to paste if one exists, else a short imperative sentence, or "".
    """

    code: TrafficCauseCode
    message: str
    subject: str = ""
    fix: str = ""
    effect: str = ""
    """What becomes of the traffic by the fix, in figures, if it was tried."""
    weight: CauseWeight = CauseWeight.DEFEATS
    is_sure: bool = True
    """Whether the objects show it; False if something outside of them may say otherwise."""


def order_causes(causes: Iterable[TrafficCause]) -> tuple[TrafficCause, ...]:
    """Return the causes once each, those that do most to the traffic first."""
    once: dict[tuple[str, str, str], TrafficCause] = {}
    for cause in causes:
        key = (cause.code, cause.subject, cause.message)
        once.setdefault(key, cause)
    return tuple(
        sorted(
            once.values(), key=lambda cause: (WEIGHT_ORDER.index(cause.weight), not cause.is_sure)
        )
    )


def weighs(causes: Iterable[TrafficCause], weight: CauseWeight) -> bool:
    """Return whether a cause of this weight is among them."""
    return any(cause.weight is weight for cause in causes)
