"""Why connections to a Service fail although its rules are right: selector, ports, pods.

Routing explains what follows from endpoints. This module explains missing endpoints and endpoints
that do not answer, from the Service and the pods of its namespace.

Pods that are not ready are explained in one line from their status: scheduler, kubelet and
containers each report a part, the first that keeps the pod unready gives the reason, and pods with
the same reason are counted together. Nothing here calls the API or sends packets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final

from msgspec import UNSET

from keepclose.lab.kubelet.container_modes import NO_IMAGE, ports_of
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service, ServicePort
from keepclose.model.workloads.pods import ContainerStatus, WorkloadPod
from keepclose.routing.conditions import PROGRAMMED
from keepclose.routing.hint_facts import count_ready
from keepclose.routing.port_endpoints import PortEndpoint
from keepclose.routing.reasons import NO_EFFECT_CODES
from keepclose.routing.strategy import HINTING_STRATEGIES, Strategy, StrategyName
from keepclose.slices.endpoints import find_port

_SHOWN: Final = 2


def is_ready(pod: WorkloadPod) -> bool:
    """Return whether a pod is ready to serve."""
    return pod.is_ready and not pod.is_terminating


def explain_unready(pods: Iterable[WorkloadPod]) -> str:
    """Return why pods are not ready, the most frequent reason first; "" if all are."""
    reasons = Counter(explain_pod(pod) for pod in pods if not is_ready(pod))
    shown = reasons.most_common(_SHOWN)
    words = [reason if len(reasons) == 1 else f"{count} {reason}" for reason, count in shown]
    if len(reasons) > _SHOWN:
        words.append(f"{sum(reasons.values()) - sum(count for _, count in shown)} otherwise")
    return ", ".join(words)


def explain_pod(pod: WorkloadPod) -> str:
    """Return why a pod is not ready."""
    if pod.is_terminating:
        return "terminating"
    status = pod.status
    if not pod.spec.node_name:
        scheduled = status.condition("PodScheduled")
        if scheduled is not None and scheduled.message:
            return f"{scheduled.reason} ({scheduled.message.rstrip('.')})"
        return "waiting for a node"
    for container in (*status.init_container_statuses, *status.container_statuses):
        if (reason := _explain_container(container)) and not container.ready:
            return reason
    if pod.has_ended:
        return status.phase
    ready = status.condition("Ready")
    return ready.message or ready.reason if ready is not None else "not started yet"


def find_causes(service: Service, port: ServicePort, pods: Iterable[WorkloadPod]) -> list[str]:
    """Return why a Service's port is not answered, as far as its pods show; [] if they do not.

    The pods are those of the Service's namespace.
    """
    living = [pod for pod in pods if not pod.has_ended]
    selector = service.spec.selector
    if not selector:
        return [
            "the Service has no selector, so its endpoints are those of manually created slices"
        ]
    own = [pod for pod in living if matches(selector, pod.metadata.labels)]
    if not own:
        return [_no_match(service, selector, living)]
    causes = [_wrong_name(port, own), _wrong_number(port, own), _unready(own)]
    return [cause for cause in causes if cause]


def explain_ignored_fields(strategy: Strategy) -> list[str]:
    """Return which fields of a Service have no effect: gates, unknown values, precedence."""
    return [reason.message for reason in strategy.reasons if reason.code in NO_EFFECT_CODES]


def explain_missing_hints(
    service: Service, strategy: Strategy, endpoints: Iterable[PortEndpoint]
) -> str:
    """Return that a mechanism which needs hints has none, "" if there are or none are needed."""
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    if strategy.name not in HINTING_STRATEGIES or not ready:
        return ""
    if any(endpoint.zone_hints or endpoint.node_hints for endpoint in ready):
        return ""
    which = f"none of the {count_ready(len(ready))} has one, so every node uses all of them"
    if len(ready) == 1:
        which = "the only ready endpoint has none, so every node uses it"
    text = f"{strategy.label} works by hints, and {which}"
    if not service.spec.selector:
        text += "; the Service has no selector, so no controller writes hints into its slices"
    return text


def explain_plan(service: Service, strategy: Strategy) -> str:
    """Return what the controller says of the hints and weights of a heuristic, "" if nothing.

    It is the message of the condition: what is written, and what measured the shares of zones.
    """
    if strategy.name is not StrategyName.CUSTOM:
        return ""
    for condition in service.status.conditions:
        if condition.type == PROGRAMMED and condition.status == "True":
            return condition.message
    return ""


def _explain_container(container: ContainerStatus) -> str:
    state = container.state
    if state.waiting is not UNSET:
        detail = container.image if state.waiting.reason in NO_IMAGE else container.name
        kind = "image" if state.waiting.reason in NO_IMAGE else "container"
        return f"{state.waiting.reason} ({kind} {detail})"
    if state.terminated is not UNSET:
        return f"{state.terminated.reason} (container {container.name})"
    return f"running but not ready (container {container.name})"


def _no_match(service: Service, selector: dict[str, str], pods: Sequence[WorkloadPod]) -> str:
    shown = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
    text = f"no pod in namespace {service.metadata.namespace} matches the selector {shown}"
    for key, value in sorted(selector.items()):
        there = sorted({pod.metadata.labels.get(key, "") for pod in pods} - {""})
        near = get_close_matches(value, there, n=1)
        if near and near[0] != value:
            return f"{text}; there are pods with {key}={near[0]}"
    return text


def _wrong_name(port: ServicePort, pods: Sequence[WorkloadPod]) -> str:
    """Return that no pod has the name of a target port, "" if one has."""
    if not isinstance(port.target_port, str):
        return ""
    if any(find_port(port, pod) is not None for pod in pods):
        return ""
    named = {
        f"{named_port.name} ({named_port.container_port}/{named_port.protocol})"
        for pod in pods
        for container in pod.spec.containers
        for named_port in container.ports
        if named_port.name
    }
    has = f"they have {', '.join(sorted(named))}" if named else "they name none"
    return (
        f"no container of {_count(pods)} has a {port.protocol} port named {port.target_port}, the "
        f"targetPort; {has}"
    )


def _wrong_number(port: ServicePort, pods: Sequence[WorkloadPod]) -> str:
    """Return that no pod listens at the target port, "" if one does or none has such a port."""
    numbers = {number for pod in pods if (number := find_port(port, pod)) is not None}
    listening = {
        (open_port.number, open_port.protocol)
        for pod in pods
        for open_port in ports_of(pod.spec.lasting).ports
    }
    if not numbers or not listening:
        return ""
    if any((number, port.protocol) in listening for number in numbers):
        return ""
    shown = ", ".join(f"{number}/{protocol}" for number, protocol in sorted(listening))
    targets = ", ".join(map(str, sorted(numbers)))
    return (
        f"no container of {_count(pods)} listens at targetPort {targets}/{port.protocol}; they "
        f"listen at {shown}"
    )


def _unready(pods: Sequence[WorkloadPod]) -> str:
    if any(is_ready(pod) for pod in pods):
        return ""
    return f"none of {_count(pods)} is ready: {explain_unready(pods)}"


def _count(pods: Sequence[WorkloadPod]) -> str:
    return "the only matching pod" if len(pods) == 1 else f"the {len(pods)} matching pods"
