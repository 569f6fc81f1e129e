"""The Node objects of a lab, as its kubelets register them.

An existing Node is updated and reported as ready again: its own labels, addresses and conditions
are set, and the taints of an unreachable node are removed. Changes by users stay: other labels,
cordons, taints, and a zone from `keepclose lab relabel`. A Node with other pod ranges is deleted
and created again, because these are immutable. Nodes that a larger lab left behind are deleted, and
so are the pods of all deleted nodes. Nodes that are not the lab's are never changed.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.errors import AlreadyExists, Conflict, NotFound
from keepclose.kube.requests import Kind, PatchType
from keepclose.lab.faults.node_status import (
    LIFECYCLE_NODES,
    LifecycleNode,
    ready_status_patch,
    untaint_patch,
)
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.network.addresses import NodeNumbering
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ObjectMeta
from keepclose.model.timestamps import format_event_time
from keepclose.model.well_known import REGION_LABEL, ZONE_LABEL
from keepclose.model.workload import StatusCondition

OS_IMAGE: Final = "keepclose lab"
"""The osImage that identifies a Node of a lab."""
REGION: Final = "lab"
KUBELET_VERSION: Final = "v1.36.3+keepclose"
CAPACITY: Final = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "64Gi", "pods": "110"}
_AT_ONCE: Final = 8
_TRIES: Final = 5
_CONDITIONS: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class LabNode(NamedTuple):
    """A node that a lab should have."""

    name: str
    zone: str
    """"" for none."""
    addresses: NodeNumbering


async def register_nodes(
    client: Client, plan: Sequence[LabNode], *, clock: Clock | None = None
) -> None:
    """Create or update the Node objects; raises KubeError.

    Nodes of an earlier lab that are not in the plan are deleted with their pods.
    """
    now = format_event_time((clock or SystemClock()).now())
    await _remove_old(client, {node.name for node in plan})
    await _do_all(_register(client, node, now=now) for node in plan)


def node_object(node: LabNode, *, now: str) -> JsonObject:
    """Return a Node as it is first registered."""
    ready_patch = ready_status_patch(_with_all_conditions(LifecycleNode()), time=now)
    assert ready_patch is not None  # noqa: S101 - no condition was True before
    return {
        "metadata": {"name": node.name, "labels": _labels(node)},
        "spec": _spec(node),
        "status": {**_status(node), **ready_patch["status"]},
    }


async def _remove_old(client: Client, desired: set[str]) -> None:
    nodes = (await client.list_all(LIFECYCLE_NODES)).items
    old = [
        node.metadata
        for node in nodes
        if node.status.node_info.os_image == OS_IMAGE and node.metadata.name not in desired
    ]
    # NB: nodes are deleted first, so that no new pod is bound to them meanwhile.
    await _do_all(_delete(client, LIFECYCLE_NODES, meta) for meta in old)
    there = desired | {node.metadata.name for node in nodes} - {meta.name for meta in old}
    pods = [
        pod.metadata
        for pod in (await client.list_all(LAB_PODS)).items
        if pod.spec.node_name and pod.spec.node_name not in there
    ]
    await _do_all(_delete(client, LAB_PODS, meta) for meta in pods)


async def _delete(client: Client, kind: Kind[Any], meta: ObjectMeta) -> None:
    # It may be gone, perhaps with another object of its name.
    with suppress(NotFound, Conflict):
        await client.delete(kind, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0)


async def _do_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all coroutines, a few at a time; raises the first error in the end."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def do(work: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await work

    results = await asyncio.gather(*(do(work) for work in works), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _register(client: Client, node: LabNode, *, now: str) -> None:
    with suppress(AlreadyExists):
        await client.create(LIFECYCLE_NODES, node_object(node, now=now))
        return
    stored = await client.get(LIFECYCLE_NODES, node.name)
    if stored.spec.pod_cidrs and stored.spec.pod_cidrs != _ranges(node):
        with suppress(NotFound):
            await client.delete(LIFECYCLE_NODES, node.name, uid=stored.metadata.uid)
        await client.create(LIFECYCLE_NODES, node_object(node, now=now))
        return
    await _update(client, node)
    ready_patch = ready_status_patch(
        _with_all_conditions(await client.get(LIFECYCLE_NODES, node.name)), time=now
    )
    conditions = ready_patch["status"] if ready_patch else {}
    status = _status(node)
    # NB: addresses merge by type, and two of them have the same type.
    status["addresses"] = [{"$patch": "replace"}, *status["addresses"]]
    await client.patch(
        LIFECYCLE_NODES,
        node.name,
        {"status": {**status, **conditions}},
        type=PatchType.STRATEGIC,
        subresource="status",
    )


async def _update(client: Client, node: LabNode) -> None:
    for attempt in range(_TRIES):
        stored = await client.get(LIFECYCLE_NODES, node.name)
        labels: dict[str, str | None] = {ZONE_LABEL: None, **_labels(node)}
        if stored.is_relabelled:
            del labels[ZONE_LABEL]
        untainted: JsonObject = untaint_patch(stored) or {"metadata": {}, "spec": {}}
        patch = {
            "metadata": {**untainted["metadata"], "labels": labels},
            "spec": {**untainted["spec"], **_spec(node)},
        }
        try:
            await client.patch(LIFECYCLE_NODES, node.name, patch)
        except Conflict:
            if attempt == _TRIES - 1:
                raise
        else:
            return


def _spec(node: LabNode) -> JsonObject:
    return {"podCIDR": node.addresses.pod_cidr, "podCIDRs": list(_ranges(node))}


def _ranges(node: LabNode) -> tuple[str, ...]:
    return (node.addresses.pod_cidr, node.addresses.pod_cidr6)


def _labels(node: LabNode) -> dict[str, str | None]:
    zone = {ZONE_LABEL: node.zone} if node.zone else {}
    return {
        "kubernetes.io/hostname": node.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        REGION_LABEL: REGION,
        **zone,
    }


def _status(node: LabNode) -> JsonObject:
    system = platform.uname()
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "addresses": [
            {"type": "InternalIP", "address": node.addresses.address},
            {"type": "InternalIP", "address": node.addresses.address6},
            {"type": "Hostname", "address": node.name},
        ],
        "nodeInfo": {
            "kernelVersion": system.release,
            "osImage": OS_IMAGE,
            "containerRuntimeVersion": "keepclose://1",
            "kubeletVersion": KUBELET_VERSION,
            "operatingSystem": "linux",
            "architecture": _architecture(),
        },
    }


def _architecture() -> str:
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _with_all_conditions(node: LifecycleNode) -> LifecycleNode:
    """Return the node with Unknown for the conditions that it never reported."""
    there = {condition.type for condition in node.status.conditions}
    missing = tuple(
        StatusCondition(type=kind, status="Unknown") for kind in _CONDITIONS if kind not in there
    )
    status = replace(node.status, conditions=(*node.status.conditions, *missing))
    return replace(node, status=status)
