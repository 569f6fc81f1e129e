"""The state that a replay starts from: the Service, its nodes, pods and workloads.

Objects of the input come in as they are. Names that a scenario uses are checked against them. Pods
belong to their Deployment if the input has it. Otherwise a Deployment is assumed that has as many
replicas as there are pods and a template like the first of them, and a note says so. Pods of a
DaemonSet stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.advise.inventory import Inventory
from keepclose.advise.replaying.scenario import (
    AddNodesEvent,
    AutoscaleEvent,
    DrainEvent,
    DropZoneLabelsEvent,
    ReplayAction,
    ReplayScenario,
    RolloutEvent,
    ScaleEvent,
    ZoneLossEvent,
)
from keepclose.advise.replaying.scenario_reading import ScenarioProblem, suggest_name
from keepclose.advise.replaying.start_workloads import StartWorkload, find_workloads
from keepclose.advise.service_objects import gather_objects
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName, find_similar_names
from keepclose.model.service.types import Service
from keepclose.model.timestamps import seconds_of
from keepclose.model.workload import Node, Pod
from keepclose.model.workloads.constraints import NodeLabelSelector
from keepclose.model.workloads.disruption_budgets import DisruptionBudgetSpec, PodDisruptionBudget
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import Deployment, ReplicaSet
from keepclose.slices.settings import PlannerSettings

_DEFAULT_EPOCH: Final = 1_700_000_000.0
_AFTER_INPUT_S: Final = 3600.0
"""A replay starts this long after the newest time in the input, so that all of it has settled."""
_SCENARIO_BUDGET: Final = "disruptionBudget"


class ReplayObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster that a replay reads."""

    inventory: Inventory
    deployments: tuple[Deployment, ...] = ()
    replica_sets: tuple[ReplicaSet, ...] = ()
    budgets: tuple[PodDisruptionBudget, ...] = ()


class ReplayStart(msgspec.Struct, frozen=True):
    """The objects of one Service at the start of a replay."""

    service: Service
    nodes: tuple[Node, ...]
    pods: tuple[WorkloadPod, ...]
    """The pods that the Service selects, with owners among the workloads."""
    other_pods: tuple[WorkloadPod, ...]
    """All other pods of the input, which stay where they are."""
    workloads: tuple[StartWorkload, ...]
    budgets: tuple[PodDisruptionBudget, ...]
    slices: tuple[EndpointSlice, ...]
    """The slices that the controller manages."""
    foreign_slices: tuple[EndpointSlice, ...]
    epoch: float
    """The time at the start, in seconds since 1970."""
    notes: tuple[str, ...] = ()


def begin_replay(
    objects: ReplayObjects, scenario: ReplayScenario, settings: PlannerSettings
) -> ReplayStart | list[ScenarioProblem]:
    """Return the start of a scenario, or every name in it that the input does not have."""
    inventory = objects.inventory
    service = _find_service(inventory, scenario.service)
    if isinstance(service, ScenarioProblem):
        return [service]
    present = gather_objects(service, inventory, settings.managed_by)
    missing = () if present.pods else present.missing
    workloads = find_workloads(
        service,
        [_identified(as_workload_pod(pod)) for pod in present.pods],
        deployments=objects.deployments,
        replica_sets=objects.replica_sets,
    )
    start = ReplayStart(
        service=service,
        nodes=inventory.nodes,
        pods=workloads.pods,
        other_pods=tuple(_other_pods(inventory, present.pods)),
        workloads=workloads.workloads,
        budgets=_budgets(service, objects.budgets, scenario),
        slices=present.ours,
        foreign_slices=present.foreign,
        epoch=_epoch(workloads.pods),
        # NB: where their pods come from the slices, the gap of the input says so.
        notes=(*(each.message for each in missing), *workloads.notes),
    )
    return list(_check_names(start, scenario)) or start


def as_workload_pod(pod: Pod) -> WorkloadPod:
    """Return a pod with the fields that scheduling reads; those that it lacks have defaults."""
    if isinstance(pod, WorkloadPod):
        return pod
    return msgspec.convert(msgspec.to_builtins(pod), WorkloadPod)


def zones_of_nodes(nodes: Iterable[Node]) -> list[str]:
    """Return the zones of nodes in order, without the empty one."""
    return sorted({node.zone for node in nodes} - {""})


def _find_service(inventory: Inventory, name: str) -> Service | ScenarioProblem:
    known = [service for service in inventory.services if service.spec.selector]
    shown = [str(service.key) for service in known]
    if not name:
        if len(known) == 1:
            return known[0]
        message = f"names no Service, and the input has {len(known):,} with a selector"
        return ScenarioProblem("service", message, suggest_name("", shown, what="Services"))
    namespace, _, plain = name.rpartition("/")
    key = NamespacedName(namespace or "default", plain)
    service = next((each for each in inventory.services if each.key == key), None)
    if service is None:
        near = find_similar_names(key.name, [each.key for each in known])
        fix = f"did you mean {' or '.join(near)}?" if near else ""
        fix = fix or suggest_name("", shown, what="Services")
        return ScenarioProblem("service", f"no Service {key} in the input", fix, name)
    if service.spec.type == "ExternalName" or not service.spec.selector or service.is_headless:
        return ScenarioProblem(
            "service",
            f"Service {key} has no pods that nodes route to: it is headless, external or has no "
            "selector",
            suggest_name("", shown, what="Services"),
            name,
        )
    return service


def _identified(pod: WorkloadPod) -> WorkloadPod:
    """Return the pod with a uid, which manifests written by hand do not have."""
    meta = pod.metadata
    return pod if meta.uid else replace(pod, metadata=replace(meta, uid=f"uid-{meta.name}"))


def _other_pods(inventory: Inventory, selected: Sequence[Pod]) -> Iterator[WorkloadPod]:
    keys = {pod.key for pod in selected}
    for pods in inventory.pods.values():
        for pod in pods:
            if pod.key not in keys and pod.spec.node_name:
                yield as_workload_pod(pod)


def _budgets(
    service: Service, budgets: Sequence[PodDisruptionBudget], scenario: ReplayScenario
) -> tuple[PodDisruptionBudget, ...]:
    numbers = scenario.disruption_budget
    if numbers is None:
        return tuple(budgets)
    meta = replace(service.metadata, name=_SCENARIO_BUDGET)
    spec = DisruptionBudgetSpec(
        min_available=numbers.min_available,
        max_unavailable=numbers.max_unavailable,
        selector=NodeLabelSelector(match_labels=dict(service.spec.selector or {})),
    )
    return (PodDisruptionBudget(metadata=meta, spec=spec),)


def _epoch(pods: Iterable[WorkloadPod]) -> float:
    times = [_DEFAULT_EPOCH]
    for pod in pods:
        times.append(seconds_of(pod.metadata.creation_timestamp) or 0.0)
        times += [seconds_of(each.last_transition_time) or 0.0 for each in pod.status.conditions]
    return max(times) + _AFTER_INPUT_S


def _check_names(start: ReplayStart, scenario: ReplayScenario) -> Iterator[ScenarioProblem]:
    zones = zones_of_nodes(start.nodes)
    if not start.nodes:
        yield ScenarioProblem("", "the input has no Nodes", "add them to the files")
    ports = [port.name or "" for port in start.service.spec.ports]
    if scenario.port and scenario.port not in ports:
        fix = suggest_name(scenario.port, ports, what="ports")
        yield ScenarioProblem("port", f"no port {scenario.port}", fix, scenario.port)
    for zone in scenario.clients.zones:
        if zone not in zones:
            fix = suggest_name(zone, zones, what="zones")
            yield ScenarioProblem(f"clients.zones[{zone}]", "no node is in this zone", fix, zone)
    added: list[str] = []
    for index, event in enumerate(scenario.events):
        for name, action in event.actions.items():
            path = f"events[{index}].{name}"
            yield from _check_action_names(action, path, start, [*zones, *added])
            if isinstance(action, AddNodesEvent):
                added.append(action.zone)


def _check_action_names(
    action: ReplayAction, path: str, start: ReplayStart, zones: list[str]
) -> Iterator[ScenarioProblem]:
    nodes = [node.name for node in start.nodes]
    match action:
        case RolloutEvent() | ScaleEvent() | AutoscaleEvent():
            names = [workload.deployment.metadata.name for workload in start.workloads]
            if action.deployment and action.deployment not in names:
                fix = suggest_name(action.deployment, names, what="Deployments")
                message = f"no Deployment {action.deployment} has pods of the Service"
                yield ScenarioProblem(f"{path}.deployment", message, fix, action.deployment)
            elif not action.deployment and len(names) != 1:
                message = f"names no Deployment, and the Service has pods of {len(names):,}"
                fix = suggest_name("", names, what="Deployments")
                yield ScenarioProblem(path, message, fix)
        case DrainEvent() | DropZoneLabelsEvent():
            for place, node in enumerate(action.nodes):
                if node not in nodes:
                    fix = suggest_name(node, nodes, what="nodes")
                    yield ScenarioProblem(f"{path}.nodes[{place}]", f"no Node {node}", fix, node)
            if action.zone and action.zone not in zones:
                yield _unknown_zone(f"{path}.zone", action.zone, zones)
        case ZoneLossEvent(zone=zone) if zone not in zones:
            yield _unknown_zone(f"{path}.zone", zone, zones)
        case AddNodesEvent():
            if not action.zone:
                yield ScenarioProblem(f"{path}.zone", "must not be empty", "name the nodes' zone")
            if action.like and action.like not in nodes:
                fix = suggest_name(action.like, nodes, what="nodes")
                yield ScenarioProblem(f"{path}.like", f"no Node {action.like}", fix, action.like)
        case _:
            pass


def _unknown_zone(path: str, zone: str, zones: list[str]) -> ScenarioProblem:
    fix = suggest_name(zone, zones, what="zones")
    return ScenarioProblem(path, f"no node is in zone {zone}", fix, zone)
