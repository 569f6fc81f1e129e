"""The kinds that lint reads besides Services, Pods and Nodes, and one view of all workloads.

Deployments, ReplicaSets, StatefulSets and DaemonSets differ in where they say how many pods run and
how these are replaced; rules read a `LintedWorkload`. Only the fields that rules read are decoded.
Nothing here raises: a field of a wrong type gives a field error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.advise.linting.findings import ObjectName
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.field_errors import FieldError
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ApiStruct, ObjectMeta
from keepclose.model.well_known import HOSTNAME_LABEL, ZONE_LABEL
from keepclose.model.workloads.constraints import Affinity, NodeLabelSelector, NodeSelectorTerm
from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget
from keepclose.model.workloads.pods import WorkloadPodSpec
from keepclose.model.workloads.types import (
    DaemonSet,
    Deployment,
    ReplicaSet,
    RolloutStrategy,
)

TEMPLATE_FIELD: Final = "spec.template"


class StatefulSetSpec(ApiStruct, frozen=True):
    """The spec of a StatefulSet."""

    replicas: int = 1
    selector: NodeLabelSelector | None = None
    template: JsonObject = {}
    update_strategy: RolloutStrategy = RolloutStrategy()


class StatefulSet(ApiStruct, frozen=True, omit_defaults=False):
    """A StatefulSet, with the fields that rules read."""

    api_version: str = "apps/v1"
    kind: str = "StatefulSet"
    metadata: ObjectMeta = ObjectMeta()
    spec: StatefulSetSpec = StatefulSetSpec()


class ScaleTarget(ApiStruct, frozen=True):
    """The workload that an autoscaler scales."""

    kind: str = ""
    name: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name."""
        return self.kind, self.name


class AutoscalerSpec(ApiStruct, frozen=True):
    """The bounds of an autoscaler."""

    scale_target_ref: ScaleTarget = ScaleTarget()
    min_replicas: int | None = None
    max_replicas: int = 0


class Autoscaler(ApiStruct, frozen=True, omit_defaults=False):
    """A HorizontalPodAutoscaler."""

    api_version: str = "autoscaling/v2"
    kind: str = "HorizontalPodAutoscaler"
    metadata: ObjectMeta = ObjectMeta()
    spec: AutoscalerSpec = AutoscalerSpec()

    @property
    def least(self) -> int:
        """The least number of replicas; the API's default is 1."""
        return 1 if self.spec.min_replicas is None else self.spec.min_replicas


LintedKind = Deployment | ReplicaSet | StatefulSet | DaemonSet | PodDisruptionBudget | Autoscaler

LINTED_KINDS: Final[dict[tuple[str, str], type[LintedKind]]] = {
    ("apps/v1", "Deployment"): Deployment,
    ("apps/v1", "ReplicaSet"): ReplicaSet,
    ("apps/v1", "StatefulSet"): StatefulSet,
    ("apps/v1", "DaemonSet"): DaemonSet,
    ("policy/v1", "PodDisruptionBudget"): PodDisruptionBudget,
    ("autoscaling/v2", "HorizontalPodAutoscaler"): Autoscaler,
}
"""By apiVersion and kind, the structs that decode manifests."""


class _AffinityTerm(ApiStruct, frozen=True):
    """Pods that must not share a domain with this one."""

    label_selector: NodeLabelSelector | None = None
    topology_key: str = ""


class _AntiAffinity(ApiStruct, frozen=True):
    """The required terms of a pod's anti-affinity."""

    required: tuple[_AffinityTerm, ...] = msgspec.field(
        default=(), name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class _PodRelations(ApiStruct, frozen=True):
    """The part of an affinity that is about other pods."""

    pod_anti_affinity: _AntiAffinity | None = None


class _AffinityPart(ApiStruct, frozen=True):
    """The part of a pod spec that the scheduler of the lab does not know."""

    affinity: _PodRelations | None = None


class _Template(ApiStruct, frozen=True):
    """A pod template."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadPodSpec = WorkloadPodSpec()


class LintedWorkload(msgspec.Struct, frozen=True):
    """A workload as rules read it; `replicas` is None where every node runs a pod."""

    name: ObjectName
    source: Deployment | ReplicaSet | StatefulSet | DaemonSet
    labels: dict[str, str]
    pod: WorkloadPodSpec
    replicas: int | None
    is_one_per_node: bool
    """No two of its pods may share a node."""

    @property
    def zones(self) -> frozenset[str]:
        """The zones that its pods are bound to; empty if they may run in any zone."""
        pinned = self.pod.node_selector.get(ZONE_LABEL)
        if pinned is not None:
            return frozenset({pinned})
        terms = zone_terms(self.pod.affinity)
        if not terms or not all(term.match_expressions for term in terms):
            return frozenset()
        return frozenset(
            value for term in terms for each in term.match_expressions for value in each.values
        )

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of the workload itself."""
        return self.source.metadata.annotations


def zone_terms(affinity: Affinity | None) -> tuple[NodeSelectorTerm, ...]:
    """Return the required node terms of an affinity with only their lists of zones."""
    node_affinity = affinity.node_affinity if affinity else None
    if node_affinity is None or node_affinity.required is None:
        return ()
    return tuple(
        NodeSelectorTerm(
            match_expressions=tuple(
                each
                for each in term.match_expressions
                if each.key == ZONE_LABEL and each.operator == "In"
            )
        )
        for term in node_affinity.required.node_selector_terms
    )


def view_workload(
    source: Deployment | ReplicaSet | StatefulSet | DaemonSet,
) -> LintedWorkload | FieldError:
    """Return the view of a workload, or the first field of its template that cannot be read."""
    template = convert_as(_Template, source.spec.template)
    if isinstance(template, Rejected):
        cause = template.cause
        field = f"{TEMPLATE_FIELD}.{cause.field}" if cause.field != "object" else TEMPLATE_FIELD
        return replace(cause, field=field)
    relations = convert_as(_AffinityPart, source.spec.template.get("spec") or {})
    is_daemon = isinstance(source, DaemonSet)
    return LintedWorkload(
        ObjectName.of(source.kind, source.metadata),
        source,
        template.metadata.labels,
        template.spec,
        None if isinstance(source, DaemonSet) else max(0, source.spec.replicas),
        is_daemon
        or _repels_itself(
            relations if isinstance(relations, _AffinityPart) else _AffinityPart(),
            template.metadata.labels,
        ),
    )


def _repels_itself(part: _AffinityPart, labels: Mapping[str, str]) -> bool:
    anti_affinity = part.affinity.pod_anti_affinity if part.affinity else None
    return anti_affinity is not None and any(
        term.topology_key == HOSTNAME_LABEL
        and term.label_selector is not None
        and term.label_selector.matches(labels)
        for term in anti_affinity.required
    )
