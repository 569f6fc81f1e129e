"""Small clusters for explanations: three zones, a Service that prefers its zone, and its slices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from keepclose.advise.explaining.explanation import Explanation, explain_service
from keepclose.advise.explaining.pod_paths import Clients, find_clients, find_pod
from keepclose.advise.inventory import Inventory
from keepclose.advise.resolution import resolve_services
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.reported import (
    AwaitedCondition,
    ContainerEnd,
    ContainerWait,
    NodeInfo,
    ReportedCondition,
    ReportedContainer,
    ReportedNode,
    ReportedNodeStatus,
    ReportedPod,
    ReportedPodSpec,
    ReportedPodStatus,
    ReportedState,
)
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.slices.settings import PlannerSettings
from support.builders import node, pod, service

NODES = (node("n1", "zone-a"), node("n2", "zone-b"), node("n3", "zone-c"))
PODS = tuple(pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number}") for number in (1, 2, 3))


def web(**changes: Any) -> Service:
    """Return the Service default/web, which prefers its zone unless a change says otherwise."""
    return service(**{"traffic_distribution": "PreferSameZone", **changes})


def written(*objects: object, settings: PlannerSettings | None = None) -> list[object]:
    """Return the objects with the slices that a controller writes for their only Service."""
    inventory = Inventory.of(objects)
    (resolved,) = resolve_services(inventory, settings=settings or PlannerSettings())
    return [*objects, *resolved.slices]


def healthy(**changes: Any) -> list[object]:
    """Return a cluster whose traffic stays in its zones: three nodes, three Pods, their slices."""
    return written(*NODES, *PODS, web(**changes))


def changed(objects: list[object], *changes: object) -> list[object]:
    """Return the objects with some of them replaced, by kind and name; others are added."""
    names = {(type(each).__name__.removeprefix("Reported"), _name(each)) for each in changes}
    kept = [
        each
        for each in objects
        if (type(each).__name__.removeprefix("Reported"), _name(each)) not in names
    ]
    return [*kept, *changes]


def without(objects: list[object], kind: type, name: str = "") -> list[object]:
    """Return the objects without those of a kind, or without one of them."""
    return [each for each in objects if not (isinstance(each, kind) and name in ("", _name(each)))]


def slices_of(objects: Iterable[object]) -> list[EndpointSlice]:
    """Return the slices among the objects."""
    return [each for each in objects if isinstance(each, EndpointSlice)]


def relabel(endpoint_slice: EndpointSlice, **labels: str | None) -> EndpointSlice:
    """Return a slice with other labels; None removes one. Underscores stand for / and dashes."""
    kept = dict(endpoint_slice.metadata.labels)
    for key, value in labels.items():
        name = {
            "managed_by": "endpointslice.kubernetes.io/managed-by",
            "service": "kubernetes.io/service-name",
        }[key]
        if value is None:
            kept.pop(name, None)
        else:
            kept[name] = value
    return replace(endpoint_slice, metadata=replace(endpoint_slice.metadata, labels=kept))


def reported(
    plain: Pod,
    *,
    gates: tuple[str, ...] = (),
    conditions: dict[str, str] | None = None,
    reason: str = "",
    waiting: str = "",
    ended: int | None = None,
    started: bool | None = None,
    container: str = "app",
    phase: str = "",
) -> ReportedPod:
    """Return a pod with what its kubelet reports; without any of it, with a running container."""
    state = ReportedState(
        ContainerWait(waiting) if waiting else None,
        ContainerEnd(ended, "Error") if ended is not None else None,
    )
    status = plain.status
    known = {each.type: each.status for each in status.conditions} | (conditions or {})
    return ReportedPod(
        metadata=plain.metadata,
        spec=ReportedPodSpec(
            node_name=plain.spec.node_name,
            host_network=plain.spec.host_network,
            containers=plain.spec.containers,
            readiness_gates=tuple(AwaitedCondition(gate) for gate in gates),
        ),
        status=ReportedPodStatus(
            phase=phase or status.phase,
            pod_ip=status.pod_ip,
            pod_ips=status.pod_ips,
            conditions=tuple(ReportedCondition(name, value) for name, value in known.items()),
            reason=reason,
            container_statuses=(
                ReportedContainer(
                    container, ready=bool(gates), started=started, restart_count=0, state=state
                ),
            ),
        ),
    )


def versioned(plain: Node, version: str) -> ReportedNode:
    """Return a node whose kubelet reports a version."""
    status = plain.status
    return ReportedNode(
        metadata=plain.metadata,
        spec=plain.spec,
        status=ReportedNodeStatus(
            allocatable=status.allocatable,
            conditions=status.conditions,
            node_info=NodeInfo(kubelet_version=version),
        ),
    )


def explain(
    objects: list[object],
    *,
    source: str = "",
    target: str = "",
    settings: PlannerSettings | None = None,
    **more: Any,
) -> Explanation:
    """Return the explanation of the only Service among the objects."""
    inventory = Inventory.of(objects)
    (made,) = inventory.services
    clients = Clients()
    if source:
        found = find_clients(inventory, source, made.metadata.namespace)
        assert isinstance(found, Clients), found
        clients = found
    pod_found = find_pod(inventory, target, made.metadata.namespace) if target else None
    assert pod_found is None or isinstance(pod_found, Pod), pod_found
    return explain_service(
        inventory,
        made,
        settings=settings or PlannerSettings(),
        clients=clients,
        target=pod_found,
        **more,
    )


def _name(each: object) -> str:
    return str(each.metadata.name)  # type: ignore[attr-defined]
