"""Why a Pod is no ready endpoint of a Service.

Whether a Pod is an endpoint, and ready, is the answer of `slices.endpoints`. Only the reasons are
found here: in the Pod's phase, addresses and conditions, in what its kubelet reports of containers,
and in its Node.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from shlex import quote
from typing import Final

from msgspec.structs import replace

from keepclose.advise.explaining.causes import CauseWeight, TrafficCause, TrafficCauseCode
from keepclose.advise.explaining.mechanism_causes import kubectl_name
from keepclose.advise.explaining.selector_causes import explain_selector, kubectl_pod
from keepclose.advise.explaining.service_facts import ServiceFacts
from keepclose.advise.verification_causes import name_some
from keepclose.model.reported import ReportedContainer, ReportedPod
from keepclose.model.service.types import Service
from keepclose.model.workload import Container, Pod
from keepclose.slices.endpoints import belongs_in_endpoints, build_endpoint, find_port
from keepclose.slices.slice_metadata import address_types

_BLOCKS: Final = CauseWeight.BLOCKS
_OF_PORTS: Final = (TrafficCauseCode.TARGET_PORT_MISSING, TrafficCauseCode.TARGET_PORT_PROTOCOL)


def explain_pods(facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield why Pods are no ready endpoints; alike causes of several Pods are joined.

    As long as another endpoint is ready, these are notes: connections go to that one.
    """
    service = facts.service
    if service.spec.selector is None or service.spec.type == "ExternalName":
        return
    if not facts.knows_pods:
        return
    if not facts.selected:
        if not _has_unknown_pods(facts):
            yield explain_selector(facts)
        return
    causes: dict[TrafficCauseCode, list[tuple[Pod, TrafficCause]]] = {}
    for pod in facts.selected:
        for cause in explain_selected_pod(pod, facts):
            causes.setdefault(cause.code, []).append((pod, cause))
    for code, group in causes.items():
        cause = _join(group, len(facts.selected))
        if cause.weight is _BLOCKS and facts.has_usable_endpoint:
            # A port that no Pod has gets nothing, although other ports have endpoints.
            is_dead = code in _OF_PORTS and len(group) >= len(facts.selected)
            weight = CauseWeight.DEFEATS if is_dead else CauseWeight.NOTE
            cause = replace(cause, weight=weight)
        yield cause


def explain_selected_pod(pod: Pod, facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield why a selected Pod gets no connections, or only some; nothing if it is an endpoint."""
    if not belongs_in_endpoints(pod):
        yield _no_endpoint(pod)
        return
    service = facts.service
    node = facts.cluster.nodes.get(pod.spec.node_name)
    built = [
        build_endpoint(pod, node=node, service=service, family=family)
        for family in address_types(service)
    ]
    endpoints = [endpoint for endpoint in built if endpoint is not None]
    if not endpoints:
        yield _other_family(pod, facts)
        return
    publishes = service.spec.publish_not_ready_addresses
    if node is None and facts.knows_nodes and not publishes:
        yield TrafficCause(
            TrafficCauseCode.POD_ON_UNKNOWN_NODE,
            f"its node {pod.spec.node_name or '(none)'} does not exist, so the controller skips it",
            f"Pod {pod.key}",
            fix=f"kubectl get node {quote(pod.spec.node_name)}",
            weight=_BLOCKS,
        )
        return
    yield from _ports(pod, facts)
    if pod.is_terminating:
        yield TrafficCause(
            TrafficCauseCode.POD_TERMINATING,
            "it terminates, so it gets new connections only while no endpoint is ready",
            f"Pod {pod.key}",
            weight=_BLOCKS,
        )
    elif not pod.is_ready:
        cause = _not_ready(pod, facts)
        if publishes:
            cause = TrafficCause(
                TrafficCauseCode.PUBLISHES_UNREADY,
                f"{cause.message}, and gets connections all the same, because the Service sets "
                "publishNotReadyAddresses",
                cause.subject,
                fix=f"kubectl patch service {kubectl_name(service)} "
                """-p '{"spec":{"publishNotReadyAddresses":false}}'""",
                weight=CauseWeight.NOTE,
            )
        yield cause
    if pod.spec.host_network:
        yield _host_network(pod, facts)


def _has_unknown_pods(facts: ServiceFacts) -> bool:
    """Return whether slices name Pods of the Service, although the input has none of them."""
    return any(
        endpoint.target_ref is not None for held in facts.written for endpoint in held.endpoints
    )


def _no_endpoint(pod: Pod) -> TrafficCause:
    """Return why a Pod is no endpoint at all: it has finished, or has no address."""
    subject = f"Pod {pod.key}"
    status = pod.status
    if status.phase in ("Succeeded", "Failed"):
        why = ""
        if isinstance(pod, ReportedPod) and pod.status.reason:
            why = f" ({pod.status.reason})"
        return TrafficCause(
            TrafficCauseCode.POD_FINISHED,
            f"its phase is {status.phase}{why}: a Pod that has ended is no endpoint",
            subject,
            fix=f"kubectl describe pod {kubectl_pod(pod)}",
            weight=_BLOCKS,
        )
    if not pod.spec.node_name:
        return TrafficCause(
            TrafficCauseCode.POD_NOT_SCHEDULED,
            f"no node has been chosen for it{_condition_text(pod, 'PodScheduled')}",
            subject,
            fix=f"kubectl describe pod {kubectl_pod(pod)}",
            weight=_BLOCKS,
        )
    waiting = _waiting(pod)
    why = f": {waiting}" if waiting else f", its phase is {status.phase or 'not reported'}"
    return TrafficCause(
        TrafficCauseCode.POD_WITHOUT_ADDRESS,
        f"it has no address yet{why}",
        subject,
        fix=f"kubectl describe pod {kubectl_pod(pod)}",
        weight=_BLOCKS,
    )


def _other_family(pod: Pod, facts: ServiceFacts) -> TrafficCause:
    families = " and ".join(address_types(facts.service))
    addresses = [each.ip for each in pod.status.pod_ips] or [pod.status.pod_ip]
    return TrafficCause(
        TrafficCauseCode.ADDRESS_FAMILY,
        f"the Service has {families} addresses, and the Pod only {', '.join(addresses)}",
        f"Pod {pod.key}",
        fix=f"kubectl patch service {kubectl_name(facts.service)} "
        """-p '{"spec":{"ipFamilyPolicy":"PreferDualStack"}}'""",
        weight=_BLOCKS,
    )


def _ports(pod: Pod, facts: ServiceFacts) -> Iterator[TrafficCause]:
    """Yield the ports of the Service that the Pod lacks, or does not declare."""
    service = facts.service
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    names = sorted({port.name for each in containers for port in each.ports if port.name})
    for index, port in enumerate(service.spec.ports):
        title = port.name or str(port.port)
        protocol = port.protocol or "TCP"
        if find_port(port, pod) is None:
            wanted = str(port.target_port)
            others = _protocols_of(wanted, containers)
            if others:
                yield TrafficCause(
                    TrafficCauseCode.TARGET_PORT_PROTOCOL,
                    f"port {title} has targetPort {wanted!r} by {protocol}, and the container "
                    f"port of that name is {others[0]}",
                    f"Pod {pod.key}",
                    fix=_patch_port(service, index, "protocol", others[0]),
                    weight=_BLOCKS,
                )
                continue
            close = get_close_matches(wanted, names, n=1, cutoff=0.5)
            known = f"; it has {', '.join(names)}" if names else "; no port has a name"
            best = close or (names if len(names) == 1 else [])
            yield TrafficCause(
                TrafficCauseCode.TARGET_PORT_MISSING,
                f"port {title} has targetPort {wanted!r}, and no container port has that name"
                f"{known}",
                f"Pod {pod.key}",
                fix=_patch_port(service, index, "targetPort", best[0])
                if best
                else f"kubectl get pod {kubectl_pod(pod)} -o "
                "jsonpath='{.spec.containers[*].ports}'",
                weight=_BLOCKS,
            )
        elif isinstance(port.target_port, int):
            yield from _undeclared(pod, port.target_port, protocol, title)


def _undeclared(pod: Pod, number: int, protocol: str, title: str) -> Iterator[TrafficCause]:
    """Yield a numeric target port that no container declares, if any are declared."""
    declared = [
        port
        for container in (*pod.spec.containers, *pod.spec.init_containers)
        for port in container.ports
        if (port.protocol or "TCP") == protocol
    ]
    if not declared or any(port.container_port == number for port in declared):
        return
    numbers = ", ".join(str(port.container_port) for port in declared[:5])
    yield TrafficCause(
        TrafficCauseCode.TARGET_PORT_UNDECLARED,
        f"port {title} has targetPort {number}, and the containers declare {numbers}: connections "
        "are refused unless a container listens there without declaring it",
        f"Pod {pod.key}",
        weight=CauseWeight.NOTE,
        is_sure=False,
    )


def _protocols_of(name: str, containers: Iterable[Container]) -> list[str]:
    return [
        port.protocol or "TCP"
        for container in containers
        for port in container.ports
        if port.name == name
    ]


def _patch_port(service: Service, index: int, field: str, value: str) -> str:
    patch = json.dumps(
        [{"op": "replace", "path": f"/spec/ports/{index}/{field}", "value": value}],
        separators=(",", ":"),
    )
    return f"kubectl patch service {kubectl_name(service)} --type json -p {quote(patch)}"


def _not_ready(pod: Pod, facts: ServiceFacts) -> TrafficCause:
    """Return why a Pod with an address is not ready, as far as its objects say."""
    subject = f"Pod {pod.key}"
    describe = f"kubectl describe pod {kubectl_pod(pod)}"
    node = facts.cluster.nodes.get(pod.spec.node_name)
    if node is not None and not node.is_ready:
        return TrafficCause(
            TrafficCauseCode.POD_NODE_NOT_READY,
            f"its node {node.name} is not ready, so it is not either",
            subject,
            fix=f"kubectl describe node {quote(node.name)}",
            weight=_BLOCKS,
        )
    if isinstance(pod, ReportedPod):
        states = {each.type: each.status for each in pod.status.conditions}
        for container in pod.status.container_statuses:
            cause = _container_cause(container, pod)
            if cause is not None:
                return cause
        for gate in pod.spec.readiness_gates:
            if states.get(gate.condition_type) != "True":
                state = states.get(gate.condition_type, "not set")
                return TrafficCause(
                    TrafficCauseCode.READINESS_GATE,
                    f"its readiness gate {gate.condition_type} is {state}; another component sets "
                    "it",
                    subject,
                    fix=f"kubectl get pod {kubectl_pod(pod)} -o jsonpath='{{.status.conditions}}'",
                    weight=_BLOCKS,
                )
    return TrafficCause(
        TrafficCauseCode.POD_NOT_READY,
        f"it is not ready{_condition_text(pod, 'Ready')}",
        subject,
        fix=describe,
        weight=_BLOCKS,
    )


def _container_cause(container: ReportedContainer, pod: Pod) -> TrafficCause | None:
    """Return why a container is not ready; None if it is."""
    subject, name = f"Pod {pod.key}", container.name
    logs = f"kubectl logs {kubectl_pod(pod)} -c {quote(name)}"
    waiting, ended = container.state.waiting, container.state.terminated
    if container.ready:
        return None
    if waiting is not None:
        crashed = waiting.reason == "CrashLoopBackOff"
        return TrafficCause(
            TrafficCauseCode.CONTAINER_WAITING,
            f"its container {name} waits: {waiting.reason or 'no reason given'}",
            subject,
            fix=f"{logs} --previous" if crashed else f"kubectl describe pod {kubectl_pod(pod)}",
            weight=_BLOCKS,
        )
    if ended is not None:
        return TrafficCause(
            TrafficCauseCode.CONTAINER_ENDED,
            f"its container {name} ended with code {ended.exit_code}"
            + (f" ({ended.reason})" if ended.reason else ""),
            subject,
            fix=logs,
            weight=_BLOCKS,
        )
    if container.started is False:
        return TrafficCause(
            TrafficCauseCode.CONTAINER_STARTING,
            f"the startup probe of its container {name} has not succeeded yet",
            subject,
            fix=f"kubectl describe pod {kubectl_pod(pod)}",
            weight=_BLOCKS,
        )
    return TrafficCause(
        TrafficCauseCode.READINESS_PROBE,
        f"its container {name} runs, and its readiness probe fails",
        subject,
        fix=f"kubectl describe pod {kubectl_pod(pod)}",
        weight=_BLOCKS,
    )


def _host_network(pod: Pod, facts: ServiceFacts) -> TrafficCause:
    twins = [
        other.metadata.name
        for other in facts.selected
        if other is not pod
        and other.spec.host_network
        and other.spec.node_name == pod.spec.node_name
    ]
    shared = f", which it shares with {name_some(twins)}: together one endpoint" if twins else ""
    return TrafficCause(
        TrafficCauseCode.HOST_NETWORK,
        f"it uses the network of its node, so its address is that of {pod.spec.node_name}{shared}; "
        "firewalls and network policies for Pods do not apply",
        f"Pod {pod.key}",
        weight=CauseWeight.DEFEATS if twins else CauseWeight.NOTE,
    )


def _waiting(pod: Pod) -> str:
    if not isinstance(pod, ReportedPod):
        return ""
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        if container.state.waiting is not None and container.state.waiting.reason:
            return f"container {container.name} waits: {container.state.waiting.reason}"
    return ""


def _condition_text(pod: Pod, type_: str) -> str:
    """Return what a condition says, in brackets; "" if it says nothing."""
    if not isinstance(pod, ReportedPod):
        return ""
    for condition in pod.status.conditions:
        if condition.type == type_ and condition.status != "True":
            return f" ({condition.message or condition.reason})" if condition.reason else ""
    return ""


def _join(group: list[tuple[Pod, TrafficCause]], selected: int) -> TrafficCause:
    """Return one cause for all Pods with the same one."""
    first = group[0][1]
    name = group[0][0].metadata.name
    if len(group) == 1:
        return replace(first, message=f"{name}: {first.message}")
    names = name_some(pod.metadata.name for pod, _ in group)
    return replace(
        first, message=f"{len(group)} of {selected} Pods ({names}), as {name}: {first.message}"
    )
