"""Rules about what objects refer to, about Nodes, and about suppressions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from shlex import quote
from typing import Final

from keepclose.advise.linting import rules
from keepclose.advise.linting.context import LintContext, ServiceCase
from keepclose.advise.linting.findings import LintFinding, ObjectName
from keepclose.advise.linting.workload_kinds import LintedWorkload
from keepclose.model.well_known import LINT_ANNOTATION_PREFIX, ZONE_LABEL
from keepclose.model.workload import Container, Pod

_OS_LABEL: Final = "kubernetes.io/os"
_DEFAULT_PROTOCOL: Final = "TCP"


def check_references(case: ServiceCase, context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about what the selector and the ports of a Service refer to."""
    objects, spec = context.objects, case.service.spec
    if spec.selector is None or spec.type == "ExternalName":
        return
    selects = case.workloads or case.pods
    if not selects and (objects.workloads or objects.pods):
        near = _nearest_labels(case, context.workloads_in(case.name.namespace))
        yield rules.SELECTOR_MATCHES_NOTHING.found(
            case.name,
            "spec.selector",
            "matches no pod template and no pod of the input" + (f"; {near}" if near else ""),
            "select the labels of a pod template, or lint all files together",
        )
    for index, port in enumerate(spec.ports):
        target = port.target_port
        if not isinstance(target, str) or not selects:
            continue
        protocol = port.protocol or _DEFAULT_PROTOCOL
        names = _port_names(case, protocol)
        if target not in names:
            close = get_close_matches(target, names, n=1)
            have = ", ".join(sorted(names)[:5]) or "none"
            yield rules.UNKNOWN_TARGET_PORT.found(
                case.name,
                f"spec.ports[{index}].targetPort",
                f"no container has a {protocol} port named {target!r}; there are: {have}",
                f"did you mean {close[0]}?" if close else "name a port of the container",
            )


def check_nodes(context: LintContext) -> Iterator[LintFinding]:
    """Yield the findings about given Nodes."""
    workers = [node for node in context.objects.nodes if not node.is_excluded]
    for node in workers:
        subject = ObjectName.of("Node", node.metadata)
        if not node.zone:
            yield rules.NODE_WITHOUT_ZONE.found(
                subject,
                f"metadata.labels[{ZONE_LABEL}]",
                "not set, so endpoints on the node cannot be hinted",
                f"kubectl label node {quote(node.name)} {ZONE_LABEL}=<zone>",
            )
        if node.metadata.labels.get(_OS_LABEL) == "windows":
            yield rules.WINDOWS_NODE.found(
                subject,
                f"metadata.labels[{_OS_LABEL}]",
                "kube-proxy on Windows ignores hints, so clients here use all endpoints",
            )
    zones = {node.zone for node in workers if node.zone}
    if len(workers) > 1 and len(zones) == 1 and any(each.prefers_zone for each in context.cases):
        (zone,) = zones
        yield rules.ONE_ZONE.found(
            ObjectName.of("Node", workers[0].metadata),
            f"metadata.labels[{ZONE_LABEL}]",
            f"all {len(workers)} nodes are in {zone}, so there is no other zone",
            "check the zone labels of the nodes",
        )


def check_suppressions(
    annotated: Iterable[tuple[ObjectName, dict[str, str]]],
) -> Iterator[LintFinding]:
    """Yield the suppressions that have no effect."""
    for subject, texts in annotated:
        for key, reason in texts.items():
            if not key.startswith(LINT_ANNOTATION_PREFIX):
                continue
            rule = key.removeprefix(LINT_ANNOTATION_PREFIX)
            field = f"metadata.annotations[{key}]"
            if rule not in rules.RULES:
                close = get_close_matches(rule, rules.RULES, n=1, cutoff=0.5)
                yield rules.BAD_SUPPRESSION.found(
                    subject,
                    field,
                    f"there is no rule {rule}",
                    f"did you mean {close[0]}?" if close else "",
                )
            elif not reason.strip():
                yield rules.BAD_SUPPRESSION.found(
                    subject, field, "suppresses nothing without a reason", "write why, as the value"
                )


def _port_names(case: ServiceCase, protocol: str) -> set[str]:
    """Return the names of the ports that the selected pods have."""
    if case.workloads:
        groups: Iterable[Iterable[Container]] = (each.pod.lasting for each in case.workloads)
    else:
        groups = (_containers(pod) for pod in case.pods)
    return {
        port.name
        for containers in groups
        for container in containers
        for port in container.ports
        if port.name and (port.protocol or _DEFAULT_PROTOCOL) == protocol
    }


def _containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.containers
    yield from (each for each in pod.spec.init_containers if each.restart_policy == "Always")


def _nearest_labels(case: ServiceCase, workloads: Iterable[LintedWorkload]) -> str:
    """Return which label of the most similar workload differs, "" if none is similar."""
    selector = case.service.spec.selector or {}
    for workload in workloads:
        wrong = [key for key, value in selector.items() if workload.labels.get(key) != value]
        is_near = len(wrong) < len(selector) or workload.name.name == case.name.name
        if wrong and is_near:
            have = workload.labels.get(wrong[0])
            has = f"has {wrong[0]}={have}" if have is not None else f"has no label {wrong[0]}"
            return f"the template of {workload.name} {has}"
    return ""
