"""Rules about the settings of one Service: values, annotations, and settings that exclude others.

Which setting governs, and which has no effect, is what `choose_strategy` and the planner say in
their reasons.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from shlex import quote
from typing import Final

from keepclose.advise.inventory import Inventory
from keepclose.advise.linting import rules
from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import LintFinding
from keepclose.advise.resolution import plan_slices
from keepclose.model import well_known
from keepclose.model.well_known import (
    NODE_TOPOLOGY_ANNOTATION,
    PREFER_CLOSE,
    PREFER_SAME_ZONE,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_HINTS_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)
from keepclose.routing.reasons import WARNING_CODES, ReasonCode
from keepclose.routing.service_ports import TrafficPolicy, traffic_policies
from keepclose.routing.strategy import (
    DISTRIBUTION_FIELD,
    StrategyName,
    annotation_path,
    topology_annotation,
    traffic_distribution,
)
from keepclose.routing.subsets import Approach, parse_annotation

_TARGET_TYPE_ANNOTATIONS: Final = {
    "service.beta.kubernetes.io/aws-load-balancer-nlb-target-type": "ip",
    "service.beta.kubernetes.io/aws-load-balancer-type": "nlb-ip",
}
"""Annotations, and their values, with which a load balancer sends traffic to pods directly."""
_TRAFFIC_ANNOTATIONS: Final = tuple(
    value
    for name, value in vars(well_known).items()
    if name.endswith("_ANNOTATION")
    and value.startswith(
        ("keepclose.dev/", "service.kubernetes.io/", "endpointslice.kubernetes.io/")
    )
)
_MISSPELLED: Final = 3
"""How many characters a misspelled name may have more or less."""
_OFF: Final = ("", "Disabled", "disabled")


def check_settings(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about the settings of a Service."""
    for error in case.errors:
        yield rules.REJECTED_SERVICE.found(case.name, error.field, error.body)
    yield from _check_deprecated(case)
    yield from _check_annotations(case, context)
    yield from _check_without_effect(case)
    yield from _check_combinations(case)
    yield from _check_external_local(case, context)


def _check_deprecated(case: ServiceCase) -> Iterator[LintFinding]:
    path, value = traffic_distribution(case.service)
    if value == PREFER_CLOSE:
        yield rules.DEPRECATED_PREFER_CLOSE.found(
            case.name,
            path,
            f"{PREFER_CLOSE} is the deprecated name of {PREFER_SAME_ZONE}",
            f"write {PREFER_SAME_ZONE}",
        )
    if TOPOLOGY_HINTS_ANNOTATION in case.service.metadata.annotations:
        yield rules.DEPRECATED_HINTS_ANNOTATION.found(
            case.name,
            annotation_path(TOPOLOGY_HINTS_ANNOTATION),
            f"deprecated; {TOPOLOGY_MODE_ANNOTATION} replaces it",
            f"rename it to {TOPOLOGY_MODE_ANNOTATION}, or use {DISTRIBUTION_FIELD}",
        )


def _check_annotations(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    annotations = case.service.metadata.annotations
    for key in annotations:
        if not any(abs(len(key) - len(known)) <= _MISSPELLED for known in _TRAFFIC_ANNOTATIONS):
            continue
        close = get_close_matches(key, _TRAFFIC_ANNOTATIONS, n=1, cutoff=0.9)
        if close and close[0] != key and key not in _TRAFFIC_ANNOTATIONS:
            yield rules.MISSPELLED_ANNOTATION.found(
                case.name,
                annotation_path(key),
                f"the annotation has no meaning; {close[0]} has",
                f"rename it to {close[0]}",
            )
    key, mode = topology_annotation(case.service)
    if mode is not None and mode not in (*_OFF, "Auto", "auto", "Node"):
        yield rules.UNKNOWN_VALUE.found(
            case.name, annotation_path(key), f"{mode!r} switches nothing on", "write Auto"
        )
    subsetting = annotations.get(SUBSETTING_ANNOTATION)
    if subsetting is not None and parse_annotation(subsetting) is Approach.DEFAULT:
        yield rules.UNKNOWN_VALUE.found(
            case.name,
            annotation_path(SUBSETTING_ANNOTATION),
            f"{subsetting!r} has no meaning",
            "write Auto, Prefer, Require, PreferRegion, RequireRegion, Disabled or Random",
        )
    node_topology = annotations.get(NODE_TOPOLOGY_ANNOTATION)
    if node_topology is not None and node_topology not in ("Enabled", "Auto", "Disabled"):
        yield rules.UNKNOWN_VALUE.found(
            case.name,
            annotation_path(NODE_TOPOLOGY_ANNOTATION),
            f"{node_topology!r} has no meaning",
            "write Enabled, Auto or Disabled",
        )
    if case.errors:
        return
    planned = plan_slices(case.service, Inventory(), context.cluster, context.settings)
    for reason in planned.reasons:
        if reason.code in WARNING_CODES:
            yield rules.UNKNOWN_VALUE.found(
                case.name, "metadata.annotations", reason.message, reason.fix
            )


def _check_without_effect(case: ServiceCase) -> Iterator[LintFinding]:
    asks = case.strategy.is_explicit
    if asks and not case.has_endpoints_of_pods:
        spec = case.service.spec
        what = "a Service without a selector has no hints but those written by hand"
        if spec.type == "ExternalName":
            what = "an ExternalName Service is only a DNS name"
        elif case.service.is_headless:
            what = "no proxy routes a headless Service: clients choose among the pods themselves"
        yield rules.TOPOLOGY_WITHOUT_EFFECT.found(
            case.name, case.strategy_field, what, "remove the setting"
        )
    if asks and case.is_local and case.has_endpoints_of_pods:
        yield rules.LOCAL_IGNORES_TOPOLOGY.found(
            case.name,
            "spec.internalTrafficPolicy",
            f"with Local, {case.strategy_field} has no effect on traffic inside the cluster",
            "remove the preference, unless clients outside the cluster need it",
        )
    for reason in case.strategy.reasons:
        if reason.code is ReasonCode.GATE_OFF:
            gate = reason.subject.removeprefix("FeatureGate ")
            field = reason.message.partition(" is ignored ")[0].partition(": ")[0]
            yield rules.FEATURE_GATE_OFF.found(
                case.name, field, reason.message, f"--feature-gates {quote(gate)}=true"
            )
        elif reason.code is ReasonCode.VALUE_NOT_SUPPORTED and not case.errors:
            field = traffic_distribution(case.service)[0]
            yield rules.UNKNOWN_VALUE.found(case.name, field, reason.message, reason.fix)
        elif reason.code is ReasonCode.OVERRIDDEN:
            yield rules.ANNOTATION_OVERRIDES.found(
                case.name, traffic_distribution(case.service)[0], reason.message, "remove one"
            )


def _check_combinations(case: ServiceCase) -> Iterator[LintFinding]:
    service = case.service
    annotations = service.metadata.annotations
    for reason in case.strategy.reasons:
        if reason.code is ReasonCode.SUBSETTING_NEEDS_CLUSTER_POLICY:
            yield rules.SUBSETTING_COMBINED.found(
                case.name, annotation_path(SUBSETTING_ANNOTATION), reason.message, "remove one"
            )
    subsetting = parse_annotation(annotations.get(SUBSETTING_ANNOTATION))
    mode = topology_annotation(service)[1]
    if subsetting in (Approach.PREFER, Approach.REQUIRE) and mode in ("Auto", "auto", "Node"):
        yield rules.SUBSETTING_COMBINED.found(
            case.name,
            annotation_path(SUBSETTING_ANNOTATION),
            f"{topology_annotation(service)[0]} is set too, and one of them has no effect",
            "remove one",
        )
    if service.spec.session_affinity == "ClientIP" and case.prefers_zone:
        yield rules.SESSION_AFFINITY.found(
            case.name,
            "spec.sessionAffinity",
            "a client keeps its endpoint even if a closer one becomes ready",
            "remove the affinity unless the application needs it",
        )
    for key, value in _TARGET_TYPE_ANNOTATIONS.items():
        if annotations.get(key) == value and case.strategy.name is not StrategyName.NONE:
            yield rules.LOAD_BALANCER_BYPASSES.found(
                case.name,
                annotation_path(key),
                f"the load balancer sends traffic to pods, and {case.strategy_field} does not "
                "affect it",
            )


def _check_external_local(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    _, external = traffic_policies(case.service, context.settings.gates)
    if external is not TrafficPolicy.LOCAL or not case.workloads:
        return
    if any(workload.replicas is None for workload in case.workloads):
        return
    pods = sum(map(context.replicas_of, case.workloads))
    nodes = sum(context.nodes_by_zone.values())
    if not context.has_given_nodes:
        yield rules.EXTERNAL_LOCAL_DROPS.found(
            case.name,
            "spec.externalTrafficPolicy",
            f"nodes without one of the {pods} pods drop traffic from outside",
            "run a DaemonSet, or use Cluster if the addresses of clients do not matter",
        )
    elif pods < nodes:
        yield rules.EXTERNAL_LOCAL_DROPS.found(
            case.name,
            "spec.externalTrafficPolicy",
            f"at least {nodes - pods} of {nodes} nodes have none of the {pods} pods and drop "
            "traffic from outside",
            "run a DaemonSet or as many replicas as nodes, or use Cluster if the addresses of "
            "clients do not matter",
        )
