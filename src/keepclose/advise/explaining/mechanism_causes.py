"""Causes in the Service itself: its kind, the mechanism that governs, and what overrides what.

An annotation overrides the field, an older mechanism the newer, and a traffic policy both. Which of
them governs is decided by `routing.strategy` and `routing.service_ports`; the reasons say why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from shlex import quote
from typing import Final

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.service_facts import ServiceFacts
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    PREFER_CLOSE,
    PREFER_SAME_NODE,
    PREFER_SAME_ZONE,
    PROXY_NAME_LABEL,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.conditions import ConditionReason, find_obstacle
from keepclose.routing.reasons import WARNING_CODES, Reason, ReasonCode
from keepclose.routing.service_ports import DEFAULT_AFFINITY_SECONDS
from keepclose.routing.strategy import (
    DISTRIBUTION_FIELD,
    DistributionVerdict,
    StrategyName,
    annotation_path,
    topology_annotation,
)

_DISABLED: Final = ("", "Disabled", "disabled")
"""Values of the topology annotation that ask for no mode."""
_KNOWN_VALUES: Final = (PREFER_CLOSE, PREFER_SAME_ZONE, PREFER_SAME_NODE)
_OF_STRATEGY: Final = {
    ReasonCode.OVERRIDDEN: (TrafficCauseCode.ANNOTATION_OVER_FIELD, CauseWeight.DEFEATS),
    ReasonCode.GATE_OFF: (TrafficCauseCode.GATE_OFF, CauseWeight.DEFEATS),
    ReasonCode.VALUE_NOT_SUPPORTED: (
        TrafficCauseCode.VALUE_NOT_SUPPORTED,
        CauseWeight.DEFEATS,
    ),
    ReasonCode.TOPOLOGY_DISABLED: (TrafficCauseCode.TOPOLOGY_DISABLED, CauseWeight.NOTE),
    ReasonCode.SUBSETTING_NEEDS_CLUSTER_POLICY: (
        TrafficCauseCode.POLICY_EXCLUDES_SUBSETTING,
        CauseWeight.DEFEATS,
    ),
    ReasonCode.NOTHING_ASKED: (TrafficCauseCode.NOTHING_ASKED, CauseWeight.NOTE),
}
_OF_PLAN: Final = {
    ReasonCode.ENDPOINT_WITHOUT_ZONE: TrafficCauseCode.ENDPOINT_WITHOUT_ZONE,
    ReasonCode.ENDPOINT_WITHOUT_NODE: TrafficCauseCode.ENDPOINT_WITHOUT_HINT,
    ReasonCode.INSUFFICIENT_NODE_INFO: TrafficCauseCode.NODE_INFO_MISSING,
    ReasonCode.NODES_IN_ONE_ZONE: TrafficCauseCode.SINGLE_ZONE,
    ReasonCode.TOO_FEW_ENDPOINTS: TrafficCauseCode.TOO_FEW_ENDPOINTS,
    ReasonCode.OVERLOAD_BOUND: TrafficCauseCode.ZONE_OVERLOADED,
    ReasonCode.NO_ZONES: TrafficCauseCode.NODE_INFO_MISSING,
    ReasonCode.HEURISTIC_FAILED: TrafficCauseCode.HEURISTIC_WITHOUT_ANSWER,
    ReasonCode.HEURISTIC_PENDING: TrafficCauseCode.HEURISTIC_WITHOUT_ANSWER,
    ReasonCode.BELOW_START: TrafficCauseCode.SUBSETS_NOT_BUILT,
    ReasonCode.PADDING_HOLDS_RANDOM: TrafficCauseCode.SUBSETS_NOT_BUILT,
    ReasonCode.DOWNGRADED: TrafficCauseCode.SUBSETS_NOT_BUILT,
}


def explain_kind(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield why nodes do not route the Service, or route it by hand-written slices."""
    service = facts.service
    meta, spec = service.metadata, service.spec
    if spec.type == "ExternalName":
        yield TrafficCause(
            TrafficCauseCode.EXTERNAL_NAME,
            f"an ExternalName Service is only a DNS name, {spec.external_name or '(none)'}: "
            "no node routes it, and Pods are never its endpoints",
            facts.subject,
            weight=CauseWeight.NOTE,
        )
        return
    other = meta.labels.get(PROXY_NAME_LABEL)
    if other is not None:
        yield TrafficCause(
            TrafficCauseCode.SERVED_BY_OTHER_PROXY,
            f"the label {PROXY_NAME_LABEL}={other} gives the Service to another proxy: kube-proxy "
            "and keepclose proxy do not route it",
            facts.subject,
            fix=f"kubectl label service {kubectl_name(service)} {PROXY_NAME_LABEL}-",
            # NB: that other proxy may do as the Service asks.
            is_sure=False,
        )
    elif service.is_headless:
        asks = facts.planned.strategy.name is not StrategyName.NONE
        effect = f", so {facts.planned.strategy.label} has no effect" if asks else ""
        yield TrafficCause(
            TrafficCauseCode.HEADLESS,
            "the Service is headless (clusterIP: None): DNS gives all ready Pods to clients, which "
            f"choose themselves{effect}",
            facts.subject,
            weight=CauseWeight.DEFEATS if asks else CauseWeight.NOTE,
        )
    if spec.selector is None:
        yield TrafficCause(
            TrafficCauseCode.NO_SELECTOR,
            "the Service has no selector: its endpoints are written by hand, and no Pod is "
            "selected",
            facts.subject,
            weight=CauseWeight.NOTE if facts.slices else CauseWeight.BLOCKS,
        )


def explain_mechanism(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield which settings have no effect, or another one than they seem to have."""
    if facts.service.spec.type == "ExternalName":
        return
    for reason in facts.planned.strategy.reasons:
        yield from _of_strategy(reason, facts)
    yield from _annotation_over_field(facts)
    yield from _policy_over_hints(facts)
    yield from _affinity(facts)


def find_plan_causes(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield why the controller gives no hints, or no subsets, although a mechanism governs."""
    reasons = facts.planned.reasons
    named = {reason.code for reason in reasons if reason.subject}
    for reason in reasons:
        code = _OF_PLAN.get(reason.code)
        weight = CauseWeight.DEFEATS
        if reason.code in WARNING_CODES and code is None:
            code = TrafficCauseCode.SETTING_INVALID
        if code is None or (reason.code in named and not reason.subject):
            # What names its object says more than the sum of it.
            continue
        if code is TrafficCauseCode.TOO_FEW_ENDPOINTS and not facts.ready_endpoints():
            # The Pods are to blame.
            continue
        if code is TrafficCauseCode.SUBSETS_NOT_BUILT:
            # Below a threshold nothing is to be divided, as the Service's limits say.
            weight = CauseWeight.NOTE
        fix = reason.fix
        if code is TrafficCauseCode.ZONE_OVERLOADED and _has_hints(facts):
            weight = CauseWeight.NOTE
        yield TrafficCause(
            code, reason.message, reason.subject or facts.subject, fix, reason.effect, weight
        )


def kubectl_name(service: Service) -> str:
    """Return namespace and name of a Service as options of kubectl."""
    return f"-n {quote(service.metadata.namespace)} {quote(service.metadata.name)}"


def has_preference(facts: ServiceFacts) -> bool:
    """Return whether a mechanism governs that prefers some endpoints to others."""
    return facts.planned.strategy.name is not StrategyName.NONE


def _has_hints(facts: ServiceFacts) -> bool:
    return any(
        endpoint.hints is not None for held in facts.planned.slices for endpoint in held.endpoints
    )


def _of_strategy(reason: Reason, facts: ServiceFacts) -> Iterable[TrafficCause]:
    if reason.code not in _OF_STRATEGY:
        return
    if reason.code is ReasonCode.NOTHING_ASKED and not reason.fix:
        # Only a change that helps is worth a note.
        return
    code, weight = _OF_STRATEGY[reason.code]
    message, fix = reason.message, reason.fix
    if reason.code is ReasonCode.TOPOLOGY_DISABLED:
        if topology_annotation(facts.service)[1] in _DISABLED:
            return
        weight = CauseWeight.NOTE if has_preference(facts) else CauseWeight.DEFEATS
    if reason.code is ReasonCode.GATE_OFF and not fix:
        gate = reason.subject.removeprefix("FeatureGate ")
        fix = f"run controller and proxies with --feature-gates {gate}=true"
    if reason.code is ReasonCode.VALUE_NOT_SUPPORTED:
        message, fix = _unsupported(message, fix, facts)
    yield TrafficCause(code, message, reason.subject or facts.subject, fix, reason.effect, weight)


def _unsupported(message: str, fix: str, facts: ServiceFacts) -> tuple[str, str]:
    """Return message and fix for an unknown value; a near miss is named."""
    annotations = facts.service.metadata.annotations
    value = annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION)
    is_annotation = value is not None
    value = value or facts.service.spec.traffic_distribution or ""
    known = (*_KNOWN_VALUES, *sorted(facts.settings.heuristics))
    by_case = {name.casefold(): name for name in known}
    close = get_close_matches(value.casefold(), by_case, n=1, cutoff=0.75)
    if not close:
        return message, fix
    right = by_case[close[0]]
    name = kubectl_name(facts.service)
    command = (
        f"""kubectl patch service {name} -p '{{"spec":{{"trafficDistribution":"{right}"}}}}'"""
    )
    if is_annotation:
        command = (
            f"kubectl annotate service {name} --overwrite {TRAFFIC_DISTRIBUTION_ANNOTATION}={right}"
        )
    return f"{message}; did you mean {right}?", command


def _annotation_over_field(facts: ServiceFacts) -> Iterator[TrafficCause]:
    field = facts.service.spec.traffic_distribution
    value = facts.service.metadata.annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION)
    if field is None or value in (None, field):
        return
    if facts.planned.strategy.distribution is DistributionVerdict.OVERRIDDEN:
        return
    path = annotation_path(TRAFFIC_DISTRIBUTION_ANNOTATION)
    yield TrafficCause(
        TrafficCauseCode.ANNOTATION_OVER_FIELD,
        f"{DISTRIBUTION_FIELD}: {field} is ignored because {path}: {value} takes precedence",
        facts.subject,
        weight=CauseWeight.NOTE,
    )


def _policy_over_hints(facts: ServiceFacts) -> Iterator[TrafficCause]:
    obstacle = find_obstacle(facts.service, gates=facts.settings.gates)
    if obstacle is None or obstacle.reason is not ConditionReason.OVERRIDDEN_BY_POLICY:
        return
    if has_preference(facts):
        yield TrafficCause(
            TrafficCauseCode.POLICY_OVER_HINTS,
            f"{obstacle.message}, so {facts.planned.strategy.label} has no effect on it",
            facts.subject,
            weight=CauseWeight.NOTE,
        )


def _affinity(facts: ServiceFacts) -> Iterator[TrafficCause]:
    spec = facts.service.spec
    if spec.session_affinity != "ClientIP" or facts.service.is_headless:
        return
    config = spec.session_affinity_config
    seconds = DEFAULT_AFFINITY_SECONDS
    if config is not None and config.client_ip is not None and config.client_ip.timeout_seconds:
        seconds = config.client_ip.timeout_seconds
    yield TrafficCause(
        TrafficCauseCode.SESSION_AFFINITY,
        f"sessionAffinity ClientIP keeps each client at its endpoint until it pauses for "
        f"{seconds:,} s: new endpoints and hints reach it only then",
        facts.subject,
        fix=f"kubectl patch service {kubectl_name(facts.service)} "
        """-p '{"spec":{"sessionAffinity":"None"}}'""",
        weight=CauseWeight.NOTE,
    )
