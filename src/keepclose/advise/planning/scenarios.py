"""What if: the cluster with another mechanism, more pods, a drained node, a zone less or more.

Each function returns the inventory after one change, or raises `ScenarioError` with what to do.
Slices stay as they are written; a plan of the new inventory brings them up to date, as a controller
would. Pods move as `pod_placement` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

from msgspec.structs import replace

from keepclose.accounting.address_book import workload_of
from keepclose.advise.inventory import Inventory, adopt, pods_in_slices
from keepclose.advise.mechanism_changes import (
    Mechanism,
    switch_to,
    why_unadvisable,
    with_mechanism,
)
from keepclose.advise.planning.pod_placement import PodPlacement, all_pods
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName, ObjectMeta, find_similar_names
from keepclose.model.quantities import millis
from keepclose.model.service.types import Service
from keepclose.model.well_known import MANAGED_BY_LABEL, PREFER_CLOSE, ZONE_LABEL
from keepclose.model.workload import Node, NodeStatus, Pod, StatusCondition
from keepclose.slices.settings import PlannerSettings

_MOST_NODES = 10_000
"""The most nodes of an added zone."""
_MOST_REPLICAS = 100_000
_ALIASES = {
    PREFER_CLOSE.lower(): Mechanism.SAME_ZONE,
    "prefersamezone": Mechanism.SAME_ZONE,
}


class ScenarioError(Exception):
    """A scenario that does not fit the cluster: why, and what to do."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class ScenarioNameError(ScenarioError):
    """A name in a scenario that nothing in the cluster has."""


def parse_mechanism(text: str) -> Mechanism:
    """Return the mechanism that a user names, in any case."""
    wanted = text.lower().removeprefix("keepclose.dev/")
    for mechanism in Mechanism:
        if mechanism.value.lower() == wanted:
            return mechanism
    if wanted in _ALIASES:
        return _ALIASES[wanted]
    message = f"{text!r} is no mechanism"
    raise ScenarioError(message, f"known: {', '.join(Mechanism)}")


def set_mechanism(
    inventory: Inventory,
    key: NamespacedName,
    mechanism: Mechanism,
    settings: PlannerSettings,
) -> tuple[Inventory, PlannerSettings]:
    """Return the cluster with another mechanism of a Service, and the gates that it needs."""
    service = _find_service(inventory, key)
    unadvisable = why_unadvisable(service)
    if unadvisable:
        message = f"{key} cannot be switched: {unadvisable}"
        raise ScenarioError(message)
    changed = with_mechanism(mechanism, settings)
    if changed is None:
        message = f"{mechanism} needs feature gates that the gates of topologyKeys exclude"
        raise ScenarioError(message, "name others with --feature-gates")
    change = switch_to(mechanism, service, changed)
    if change is None:
        return inventory, changed
    services = tuple(change.service if each.key == key else each for each in inventory.services)
    return replace(inventory, services=services), changed


def scale_service(inventory: Inventory, key: NamespacedName, replicas: int) -> Inventory:
    """Return the cluster with so many pods behind a Service, spread over zones and nodes."""
    service = _find_service(inventory, key)
    if not 0 <= replicas <= _MOST_REPLICAS:
        message = f"{key}: {replicas:,} is no number of pods from 0 to {_MOST_REPLICAS:,}"
        raise ScenarioError(message)
    inventory = with_pods(inventory)
    pods = [pod for pod in inventory.pods_of(service) if pod.metadata.deletion_timestamp is None]
    if not pods:
        message = f"{key} selects no pod that could be copied"
        raise ScenarioError(message, "add one to the input")
    placement = PodPlacement(inventory.nodes, all_pods(inventory.pods))
    if replicas <= len(pods):
        gone = placement.order_of_removal(pods)[: len(pods) - replicas]
        return _without_pods(inventory, {pod.key for pod in gone})
    peers = Counter(pod.spec.node_name for pod in pods)
    added = [placement.place(pods[0], peers) for _ in range(replicas - len(pods))]
    placed = [pod for pod in added if pod is not None]
    if len(placed) < len(added):
        message = f"{key}: no node takes pods"
        raise ScenarioError(message, "every node is not ready, cordoned or tainted")
    return _with_more_pods(inventory, placed)


def drain_node(inventory: Inventory, name: str) -> Inventory:
    """Return the cluster without a node; its pods run elsewhere, except those of DaemonSets.

    Pods without an owner are gone, as after `kubectl drain --force`.
    """
    if all(node.name != name for node in inventory.nodes):
        message = f"no Node {name}"
        near = find_similar_names(name, (NamespacedName("", node.name) for node in inventory.nodes))
        hints = [each.removeprefix("/") for each in near]
        names = [node.name for node in inventory.nodes]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        fix = f"did you mean {' or '.join(hints)}?" if hints else f"nodes: {shown or 'none'}"
        raise ScenarioNameError(message, fix)
    inventory = with_pods(inventory)
    left, moved = _take_off(inventory, lambda node: node.name == name)
    placement = PodPlacement(left.nodes, all_pods(left.pods))
    workloads = {workload_of(pod) for pod in moved}
    peers: dict[str, Counter[str]] = {workload: Counter() for workload in workloads}
    for pod in all_pods(left.pods):
        if (workload := workload_of(pod)) in peers:
            peers[workload][pod.spec.node_name] += 1
    placed = [
        new
        for pod in moved
        if _is_replaced(pod) and (new := placement.place(pod, peers[workload_of(pod)])) is not None
    ]
    return _with_more_pods(left, placed)


def lose_zone(inventory: Inventory, zone: str) -> Inventory:
    """Return the cluster without the nodes of a zone and their pods, before any is replaced."""
    zones = sorted({node.zone for node in inventory.nodes if node.zone})
    if zone not in zones:
        message = f"no node is in zone {zone}"
        raise ScenarioNameError(message, f"zones: {', '.join(zones) or 'none'}")
    return _take_off(with_pods(inventory), lambda node: node.zone == zone)[0]


def add_zone(inventory: Inventory, zone: str, nodes: int | None = None) -> Inventory:
    """Return the cluster with another zone; without a number it has as many nodes as others.

    Its nodes have the CPU of the median node and no pods.
    """
    present: dict[str, int] = {}
    for node in inventory.nodes:
        present[node.zone] = present.get(node.zone, 0) + 1
    if nodes is None:
        nodes = max(1, round(median(present.values()))) if present else 1
    if not 1 <= nodes <= _MOST_NODES:
        message = f"{nodes:,} is no number of nodes from 1 to {_MOST_NODES:,}"
        raise ScenarioError(message)
    cpus = [
        cpu
        for node in inventory.nodes
        if (text := node.status.allocatable.get("cpu")) is not None
        and (cpu := millis(text)) is not None
    ]
    allocatable: dict[str, str | int | float] = {"cpu": f"{round(median(cpus))}m"} if cpus else {}
    names = {node.name for node in inventory.nodes}
    added: list[Node] = []
    number = 0
    while len(added) < nodes:
        number += 1
        if (name := f"{zone}-if-{number}") not in names:
            added.append(
                Node(
                    metadata=ObjectMeta(name=name, labels={ZONE_LABEL: zone}),
                    status=NodeStatus(
                        allocatable=allocatable, conditions=(StatusCondition("Ready", "True"),)
                    ),
                )
            )
    return replace(inventory, nodes=(*inventory.nodes, *added))


def with_pods(inventory: Inventory) -> Inventory:
    """Return the cluster with the pods that slices name, in namespaces without any pod.

    A namespace without pods was not read, see `gather_objects`.
    """
    found: dict[NamespacedName, Pod] = {}
    for service in inventory.services:
        if not service.spec.selector or service.metadata.namespace in inventory.pods:
            continue
        slices = [
            adopt(each, service)
            for each in inventory.slices.get(service.key, ())
            if MANAGED_BY_LABEL in each.metadata.labels
        ]
        for pod in pods_in_slices(service, slices):
            known = found.get(pod.key, pod)
            labels = {**known.metadata.labels, **pod.metadata.labels}
            found[pod.key] = replace(known, metadata=replace(known.metadata, labels=labels))
    return _with_more_pods(inventory, found.values())


def _find_service(inventory: Inventory, key: NamespacedName) -> Service:
    for service in inventory.services:
        if service.key == key:
            return service
    near = find_similar_names(key.name, (service.key for service in inventory.services))
    message = f"no Service {key}"
    raise ScenarioNameError(message, f"did you mean {' or '.join(near)}?" if near else "")


def _take_off(inventory: Inventory, is_gone: Callable[[Node], bool]) -> tuple[Inventory, list[Pod]]:
    """Return the cluster without nodes and their pods, and these pods."""
    names = {node.name for node in inventory.nodes if is_gone(node)}
    gone = [pod for pod in all_pods(inventory.pods) if pod.spec.node_name in names]
    left = _without_pods(inventory, {pod.key for pod in gone})
    kept = tuple(node for node in inventory.nodes if node.name not in names)
    return replace(left, nodes=kept), gone


def _without_pods(inventory: Inventory, keys: set[NamespacedName]) -> Inventory:
    pods = {
        namespace: tuple(pod for pod in group if pod.key not in keys)
        for namespace, group in inventory.pods.items()
    }
    emptied = {namespace for namespace, group in pods.items() if not group}
    slices = {
        # NB: slices of a namespace without pods would bring back the pods that they name.
        key: tuple(each for each in group if not _names_pods(each))
        if key.namespace in emptied
        else group
        for key, group in inventory.slices.items()
    }
    return replace(inventory, pods=pods, slices=slices)


def _names_pods(endpoint_slice: EndpointSlice) -> bool:
    return any(
        endpoint.target_ref is not None and endpoint.target_ref.kind == "Pod"
        for endpoint in endpoint_slice.endpoints
    )


def _with_more_pods(inventory: Inventory, added: Iterable[Pod]) -> Inventory:
    pods = dict(inventory.pods)
    for pod in added:
        namespace = pod.metadata.namespace
        pods[namespace] = (*pods.get(namespace, ()), pod)
    return replace(inventory, pods=pods)


def _is_replaced(pod: Pod) -> bool:
    """Return whether something makes the pod again, and on another node."""
    return any(
        owner.controller and owner.kind != "DaemonSet" for owner in pod.metadata.owner_references
    )
