"""What a pod asks of the node it runs on: labels, affinity, tolerated taints, ports, even spread.

Only the fields that scheduling reads are declared. An operator that Kubernetes does not know
matches nothing; a term without any condition matches no node, as in the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from keepclose.model.meta import Frozen
from keepclose.model.workload import Node, Taint

NO_SCHEDULE: Final = "NoSchedule"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
NO_EXECUTE: Final = "NoExecute"
_NAME_FIELD: Final = "metadata.name"


class Expression(Frozen, frozen=True):
    """One condition on a label or a field, as selectors of labels and of nodes write it."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels fulfil the condition."""
        found = labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
            case "Gt" | "Lt":
                return self._compares(found)
        return False

    def _compares(self, found: str | None) -> bool:
        try:
            value, bound = int(found or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return value > bound if self.operator == "Gt" else value < bound


class NodeLabelSelector(Frozen, frozen=True):
    """Labels that must be there and conditions that must hold; an empty one selects all."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[Expression, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector takes an object with these labels."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            one.matches(labels) for one in self.match_expressions
        )


class NodeSelectorTerm(Frozen, frozen=True):
    """Conditions on a node that must all hold."""

    match_expressions: tuple[Expression, ...] = ()
    match_fields: tuple[Expression, ...] = ()

    def matches(self, node: Node) -> bool:
        """Return whether the node fulfils all conditions; without any it does not."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {_NAME_FIELD: node.name}
        return all(one.matches(node.metadata.labels) for one in self.match_expressions) and all(
            one.matches(fields) for one in self.match_fields
        )


class NodeSelector(Frozen, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class PreferredTerm(Frozen, frozen=True):
    """A term that makes a node better by its weight."""

    weight: int = 0
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Frozen, frozen=True):
    """Which nodes a pod needs, and which it likes."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: tuple[PreferredTerm, ...] = msgspec.field(
        default=(), name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Frozen, frozen=True):
    """To what a pod wants to be near; only nodes count here."""

    node_affinity: NodeAffinity | None = None


class Toleration(Frozen, frozen=True):
    """A taint that does not keep a pod away; no key tolerates every taint, no effect every one."""

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


class SpreadConstraint(Frozen, frozen=True):
    """How evenly the pods that it selects must lie over the domains of a label of nodes."""

    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: NodeLabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: tuple[str, ...] = ()
