"""The scheduling constraints of a pod: node labels, affinity, tolerations and topology spread.

Only the fields that scheduling reads are declared. An operator that Kubernetes does not have
matches nothing; a term without any condition matches no node, as in the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from keepclose.model.meta import ApiStruct
from keepclose.model.workload import Node, Taint

NO_SCHEDULE: Final = "NoSchedule"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NO_EXECUTE: Final = "NoExecute"
_NAME_FIELD: Final = "metadata.name"


class Expression(ApiStruct, frozen=True):
    """One requirement on a label or a field, of a label selector or a node selector."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compares(value)
        return False

    def _compares(self, value: str | None) -> bool:
        try:
            number, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return number > bound if self.operator == "Gt" else number < bound


class NodeLabelSelector(ApiStruct, frozen=True):
    """Required labels and expressions; an empty selector matches all."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector matches an object with these labels."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements on a node that must all be met."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def matches(self, node: Node) -> bool:
        """Return whether the node meets all requirements; without any it does not match."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {_NAME_FIELD: node.name}
        return all(
            expression.matches(node.metadata.labels) for expression in self.match_expressions
        ) and all(field.matches(fields) for field in self.match_fields)


class NodeSelector(ApiStruct, frozen=True):
    """Terms of which one must match."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredTerm(ApiStruct, frozen=True):
    """A term that adds its weight to the score of a node."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(ApiStruct, frozen=True):
    """Which nodes a pod requires, and which it prefers."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(ApiStruct, frozen=True):
    """The affinity of a pod; only node affinity is supported."""

    node_affinity: NodeAffinity | None = None


class Toleration(ApiStruct, frozen=True):
    """A toleration of taints; without a key it matches all keys, without an effect all effects."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether the taint is tolerated."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.operator == "Exists":
            return self.key in ("", taint.key)
        return self.operator in ("", "Equal") and (self.key, self.value) == (taint.key, taint.value)


class SpreadConstraint(ApiStruct, frozen=True):
    """How evenly the selected pods must be spread over the domains of a node label."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: NodeLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()
