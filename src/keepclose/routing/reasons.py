"""The closed vocabulary of reasons.

Every decision returns the reasons that led to it. Events, conditions, tables and JSON render
reasons; no other text of keepclose explains a decision. `TopologyEvent` is what the owner of a
Service sees when topology hints are added or removed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec


class ReasonCode(StrEnum):
    """What was decided, or what prevented it."""

    # Which mechanism governs a Service.
    NOTHING_ASKED = "NothingAsked"
    TOPOLOGY_KEYS_GOVERN = "TopologyKeysGovern"
    SUBSETTING_GOVERNS = "SubsettingGoverns"
    TOPOLOGY_ANNOTATION_GOVERNS = "TopologyAnnotationGoverns"
    TRAFFIC_DISTRIBUTION_GOVERNS = "TrafficDistributionGoverns"
    CONTROLLER_DEFAULT_GOVERNS = "ControllerDefaultGoverns"
    NODE_LEVEL_DETECTED = "NodeLevelDetected"
    NODE_HINTS_ADDED = "NodeHintsAdded"
    OVERRIDDEN = "Overridden"
    GATE_OFF = "GateOff"
    VALUE_NOT_SUPPORTED = "ValueNotSupported"
    TOPOLOGY_DISABLED = "TopologyDisabled"
    SUBSETTING_NEEDS_CLUSTER_POLICY = "SubsettingNeedsClusterPolicy"
    NO_SELECTOR = "NoSelector"
    EXTERNAL_NAME = "ExternalName"
    PODS_MISSING = "PodsMissing"

    # Hints on endpoints.
    HINTS_POPULATED = "HintsPopulated"
    NO_READY_ENDPOINTS = "NoReadyEndpoints"
    ENDPOINT_WITHOUT_ZONE = "EndpointWithoutZone"
    ENDPOINT_WITHOUT_NODE = "EndpointWithoutNode"

    # Proportional allocation (Auto).
    INSUFFICIENT_NODE_INFO = "InsufficientNodeInfo"
    NODES_IN_ONE_ZONE = "NodesReadyInOneZoneOnly"
    TOO_FEW_ENDPOINTS = "InsufficientNumberOfEndpoints"
    OVERLOAD_BOUND = "MinAllocationExceedsOverloadThreshold"
    ALLOCATED = "Allocated"
    BOUND_RELAXED = "BoundRelaxed"

    # Third-party heuristics.
    HEURISTIC_FAILED = "HeuristicFailed"
    HEURISTIC_PENDING = "HeuristicPending"

    # Subsetting.
    BELOW_START = "BelowStartingThreshold"
    PADDING_HOLDS_RANDOM = "PaddingHoldsRandom"
    PADDING_HOLDS_SUBSETS = "PaddingHoldsSubsets"
    SUBSETS_BALANCED = "SubsetsBalanced"
    SUBSETS_KEPT = "SubsetsKept"
    SUBSETS_BY_ZONE = "SubsetsByZone"
    DOWNGRADED = "DowngradedToRandom"
    PLACED_BY_NEED = "PlacedByNeed"
    NO_ZONES = "NoZones"
    SHARE_BY_NODES = "ShareByNodeCount"
    START_THRESHOLD_INVALID = "StartingThresholdInvalid"
    OVERLOAD_THRESHOLD_INVALID = "OverloadThresholdInvalid"
    PADDING_INVALID = "PaddingInvalid"
    SUBSETS_NOT_ASKED = "SubsetsNotAsked"

    # Balanced.
    MAX_OVERLOAD_INVALID = "MaxOverloadInvalid"
    OBJECTIVE_INVALID = "ObjectiveInvalid"
    MIN_IN_ZONE_INVALID = "MinInZoneInvalid"
    MIN_IN_ZONE_UNREACHABLE = "MinInZoneUnreachable"

    # Written weights.
    WEIGHTS_WRITTEN = "WeightsWritten"
    WEIGHTS_WITHHELD = "WeightsWithheld"
    WEIGHTS_INVALID = "WeightsInvalid"

    # Measured demand.
    SHARES_MEASURED = "SharesMeasured"
    SHARES_BY_CPU = "SharesByCpu"
    SHARES_STALE = "SharesStale"
    SAMPLE_REJECTED = "SampleRejected"
    DEMAND_ZONE_UNKNOWN = "DemandZoneUnknown"
    DEMAND_INVALID = "DemandInvalid"

    # Node-level detection.
    ONE_DAEMON_SET = "OneDaemonSet"
    NOT_ONE_DAEMON_SET = "NotOneDaemonSet"
    TOO_MANY_NODES_MISSING = "TooManyNodesMissing"
    HYSTERESIS_HOLDS = "HysteresisHolds"
    NOT_OPTED_IN = "NotOptedIn"

    # What one node uses for one service port.
    SAME_NODE = "SameNode"
    SAME_ZONE = "SameZone"
    NODE_LEVEL = "NodeLevel"
    NODE_HINT_MISSING = "NodeHintMissing"
    NODE_NOT_HINTED = "NodeNotHinted"
    ZONE_HINT_MISSING = "ZoneHintMissing"
    ZONE_NOT_HINTED = "ZoneNotHinted"
    NODE_WITHOUT_ZONE = "NodeWithoutZone"
    NODE_WITHOUT_REGION = "NodeWithoutRegion"
    HINTS_IGNORED = "HintsIgnored"
    ALL_ENDPOINTS = "AllEndpoints"
    TERMINATING_FALLBACK = "TerminatingFallback"
    NO_ENDPOINTS = "NoEndpoints"
    LOCAL_POLICY = "LocalPolicy"
    NO_LOCAL_ENDPOINT = "NoLocalEndpoint"
    LOCAL_PREFERRED = "LocalPreferred"
    LOCAL_FELL_BACK = "LocalFellBack"
    SLICES_FOR_ZONE = "SlicesForZone"
    SLICES_NOT_FOR_US = "SlicesNotForUs"
    TOPOLOGY_KEY_MATCHED = "TopologyKeyMatched"
    TOPOLOGY_KEYS_UNMATCHED = "TopologyKeysUnmatched"
    WEIGHTED = "Weighted"
    WEIGHTS_IGNORED = "WeightsIgnored"


VISIBLE_IN_SELECTION: Final = frozenset(
    {
        ReasonCode.SAME_ZONE,
        ReasonCode.SAME_NODE,
        ReasonCode.NODE_LEVEL,
        ReasonCode.ALL_ENDPOINTS,
        ReasonCode.SLICES_FOR_ZONE,
        ReasonCode.LOCAL_POLICY,
        ReasonCode.LOCAL_PREFERRED,
    }
)
"""Codes that a reader of the selected endpoints can see from the selection itself."""

NO_EFFECT_CODES: Final = frozenset(
    {ReasonCode.GATE_OFF, ReasonCode.VALUE_NOT_SUPPORTED, ReasonCode.OVERRIDDEN}
)
"""Codes of fields and annotations that have no effect on a Service."""

WARNING_CODES: Final = frozenset(
    {
        ReasonCode.HEURISTIC_FAILED,
        ReasonCode.START_THRESHOLD_INVALID,
        ReasonCode.OVERLOAD_THRESHOLD_INVALID,
        ReasonCode.PADDING_INVALID,
        ReasonCode.MAX_OVERLOAD_INVALID,
        ReasonCode.OBJECTIVE_INVALID,
        ReasonCode.MIN_IN_ZONE_INVALID,
        ReasonCode.WEIGHTS_INVALID,
        ReasonCode.DEMAND_INVALID,
    }
)
"""Codes that the owner of a Service must fix; a controller reports them in a Warning Event."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why something was decided: a message, the object concerned, and the smallest fix.

    `subject` is "<Kind> <name>", such as "Node n3" or "Endpoint 10.0.0.7". `fix` is a command if
    one exists, else one short imperative sentence; "" if nothing is to be fixed. A fix only carries
    out what the Service already asks for. It never advises another mechanism, a wider policy or the
    loss of client addresses: only a trial on the whole cluster shows whether such a change does
    harm, see `advise`.
    """

    code: ReasonCode
    message: str
    subject: str = ""
    fix: str = ""
    effect: str = ""
    """What the fix does to the traffic, such as "in zone 33 -> 100 %", if it was tried."""


class TopologyEvent(msgspec.Struct, frozen=True):
    """An event on a Service: type Normal or Warning, a CamelCase reason, and a text.

    `address_type` is that of the slices concerned; "" for an event about all of them.
    """

    type: str
    reason: str
    text: str
    address_type: str = ""

    @property
    def message(self) -> str:
        """The text, with the address type as the EndpointSlice controller of Kubernetes adds it."""
        return f"{self.text}, addressType: {self.address_type}" if self.address_type else self.text
