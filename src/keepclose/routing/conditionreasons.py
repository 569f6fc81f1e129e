"""The reasons that conditions of a Service give."""

from __future__ import annotations

from enum import StrEnum


class ConditionReason(StrEnum):
    """The one-word reasons that conditions give."""

    ACCEPTED = "Accepted"
    UNSUPPORTED_VALUE = "UnsupportedValue"
    FEATURE_DISABLED = "FeatureDisabled"
    OVERRIDDEN_BY_ANNOTATION = "OverriddenByAnnotation"
    NOT_ACCEPTED = "NotAccepted"
    HINTS_POPULATED = "HintsPopulated"
    MISSING_TOPOLOGY = "MissingTopology"
    NO_ENDPOINTS = "NoEndpoints"
    WRITE_FAILED = "WriteFailed"
    FIELD_DROPPED = "FieldDropped"
    CONTENDED = "Contended"
    NOT_ALLOCATED = "NotAllocated"
    HEURISTIC_FAILED = "HeuristicFailed"
    ALL_NODES_ACKNOWLEDGED = "AllNodesAcknowledged"
    PENDING = "Pending"
    PARTIALLY_HONORED = "PartiallyHonored"
    OTHER_PROXY = "OtherProxy"
    HEADLESS = "Headless"
    OVERRIDDEN_BY_POLICY = "OverriddenByPolicy"
