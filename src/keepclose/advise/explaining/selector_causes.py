"""Why a Service selects no Pods, or not this one: the labels that are nearest to its selector.

A selector that matches nothing is mostly a near miss: one value differs, one label is missing, or
the Pods are in another namespace. Which Pods match is the answer of `model.selectors`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from shlex import quote
from typing import Final, NamedTuple

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.mechanism_causes import kubectl_name
from keepclose.advise.explaining.service_facts import ServiceFacts
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workload import Pod

MAX_NEAR_MISSES: Final = 1000
"""How many Pods are compared with a selector that matches none."""
_BLOCKS: Final = CauseWeight.BLOCKS


class _Miss(NamedTuple):
    """How the labels of a Pod differ from a selector."""

    pod: Pod
    differing: tuple[str, ...]
    missing: tuple[str, ...]


def explain_selector(facts: ServiceFacts) -> TrafficCause:
    """Return why the selector matches no Pod: the nearest miss, if any is near."""
    service = facts.service
    selector = service.spec.selector or {}
    namespace = service.metadata.namespace
    shown = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    pods = facts.inventory.pods.get(namespace, ())
    miss = _nearest(pods, selector)
    if miss is not None:
        return _near_miss(miss, service, shown)
    elsewhere = sorted(
        other
        for other, group in facts.inventory.pods.items()
        if other != namespace and any(matches(selector, pod.metadata.labels) for pod in group)
    )
    if elsewhere and selector:
        return TrafficCause(
            TrafficCauseCode.PODS_IN_OTHER_NAMESPACE,
            f"no Pod of namespace {namespace} has {shown}; namespace {elsewhere[0]} has such Pods, "
            "and a Service selects in its own namespace only",
            facts.subject,
            fix=f"kubectl get pods -n {quote(elsewhere[0])} -l {quote(shown)}",
            weight=_BLOCKS,
        )
    return TrafficCause(
        TrafficCauseCode.NO_PODS,
        f"no Pod of namespace {namespace} has {shown or 'any labels'}: none runs, or it has other "
        "labels",
        facts.subject,
        fix=f"kubectl get deployments,statefulsets,pods -n {quote(namespace)} --show-labels",
        weight=_BLOCKS,
    )


def explain_not_selected(pod: Pod, facts: ServiceFacts) -> TrafficCause:
    """Return why the Service does not select a Pod."""
    service = facts.service
    selector = service.spec.selector
    subject = f"Pod {pod.key}"
    if selector is None or service.spec.type == "ExternalName":
        return TrafficCause(
            TrafficCauseCode.POD_NOT_SELECTED,
            "the Service selects no Pods",
            subject,
            weight=_BLOCKS,
        )
    if pod.metadata.namespace != service.metadata.namespace:
        return TrafficCause(
            TrafficCauseCode.PODS_IN_OTHER_NAMESPACE,
            f"it is in namespace {pod.metadata.namespace}, and the Service selects Pods of "
            f"{service.metadata.namespace} only",
            subject,
            weight=_BLOCKS,
        )
    miss = _compare(pod, selector)
    changes = {key: selector[key] for key in (*miss.differing, *miss.missing)}
    words = [
        f"its label {key} is {pod.metadata.labels[key]!r}, the selector asks for {selector[key]!r}"
        for key in miss.differing
    ]
    words += [
        f"it has no label {key}, the selector asks for {selector[key]!r}" for key in miss.missing
    ]
    labels = " ".join(quote(f"{key}={value}") for key, value in changes.items())
    return TrafficCause(
        TrafficCauseCode.POD_NOT_SELECTED,
        "; ".join(words),
        subject,
        fix=f"kubectl label pod {kubectl_pod(pod)} --overwrite {labels}",
        weight=_BLOCKS,
    )


def _nearest(pods: Iterable[Pod], selector: Mapping[str, str]) -> _Miss | None:
    """Return the Pod whose labels differ least from the selector; None if all of them differ."""
    best: _Miss | None = None
    for number, pod in enumerate(pods):
        if number >= MAX_NEAR_MISSES:
            break
        miss = _compare(pod, selector)
        if best is None or _distance(miss, selector) < _distance(best, selector):
            best = miss
    return best if best is not None and _is_near(best, selector) else None


def _compare(pod: Pod, selector: Mapping[str, str]) -> _Miss:
    labels = pod.metadata.labels
    return _Miss(
        pod,
        tuple(key for key in sorted(selector) if key in labels and labels[key] != selector[key]),
        tuple(key for key in sorted(selector) if key not in labels),
    )


def _distance(miss: _Miss, selector: Mapping[str, str]) -> tuple[int, int]:
    labels = miss.pod.metadata.labels
    unlike = sum(
        not get_close_matches(labels[key], [selector[key]], cutoff=0.6) for key in miss.differing
    )
    return len(miss.differing) + len(miss.missing), unlike


def _is_near(miss: _Miss, selector: Mapping[str, str]) -> bool:
    differences, unlike = _distance(miss, selector)
    if differences < len(selector):
        return True
    # Nothing matches: then only values that are spelled alike are near.
    return bool(miss.differing) and unlike < len(miss.differing)


def _near_miss(miss: _Miss, service: Service, shown: str) -> TrafficCause:
    labels = miss.pod.metadata.labels
    pod = f"Pod {miss.pod.metadata.name}"
    if miss.differing:
        key = miss.differing[0]
        changes = {name: labels[name] for name in miss.differing}
        patch = json.dumps({"spec": {"selector": changes}}, separators=(",", ":"))
        return TrafficCause(
            TrafficCauseCode.SELECTOR_VALUE_DIFFERS,
            f"the selector {shown} matches no Pod; {pod} has {key}={labels[key]}",
            f"Service {service.key}",
            fix=f"kubectl patch service {kubectl_name(service)} -p {quote(patch)}",
            weight=_BLOCKS,
        )
    nulls = json.dumps({"spec": {"selector": dict.fromkeys(miss.missing)}}, separators=(",", ":"))
    return TrafficCause(
        TrafficCauseCode.SELECTOR_KEY_MISSING,
        f"the selector {shown} matches no Pod; {pod} has all of it but the label "
        f"{', '.join(miss.missing)}",
        f"Service {service.key}",
        fix=f"kubectl patch service {kubectl_name(service)} -p {quote(nulls)}",
        weight=_BLOCKS,
    )


def kubectl_pod(pod: Pod) -> str:
    """Return namespace and name of a Pod as options of kubectl."""
    return f"-n {quote(pod.metadata.namespace)} {quote(pod.metadata.name)}"
