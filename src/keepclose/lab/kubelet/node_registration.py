"""The Node objects of a lab, as its kubelets register them.

A node that is there already is brought up to date and heard of again: its own labels, addresses and
conditions are set, the marks of silence go. What people did to it stays: other labels, cordons,
taints, and a zone that the lab was asked to give it. One whose pod ranges differ is made anew,
because these cannot be changed. Nodes that a larger lab left behind go, and as in every cluster the
pods of nodes that are no more; nodes of others stay.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.errors import AlreadyExists, Conflict, NotFound
from keepclose.kube.event_recorder import format_event_time
from keepclose.kube.requests import NODES as WHOLE_NODES
from keepclose.kube.requests import Kind, PatchType
from keepclose.lab.faults.node_status import PLAIN_NODES as MARKED_NODES
from keepclose.lab.faults.node_status import MarkedNode, MarkedStatus, mark_heard, untaint
from keepclose.lab.network.addresses import NodeNumbering
from keepclose.lab.workloads.pods import WORKLOAD_PODS
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import Frozen, ObjectMeta
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import StatusCondition

OS_IMAGE: Final = "keepclose lab"
"""What nodes of a lab report; by it they are known again."""
_REGION_LABEL: Final = "topology.kubernetes.io/region"
REGION: Final = "lab"
KUBELET_VERSION: Final = "v1.36.3+keepclose"
CAPACITY: Final = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "64Gi", "pods": "110"}
_AT_ONCE: Final = 8
_TRIES: Final = 5
_CONDITIONS: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class _NodeInfo(Frozen, frozen=True):
    os_image: str = ""


class _InformedStatus(Frozen, frozen=True):
    node_info: _NodeInfo = _NodeInfo()


class _InformedNode(Frozen, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _InformedStatus = _InformedStatus()


_INFORMED_NODES: Final = Kind("", "v1", "nodes", "Node", False, _InformedNode)


class LabNode(NamedTuple):
    """A node that the lab wants."""

    name: str
    zone: str
    """"" for none."""
    addresses: NodeNumbering


async def register_nodes(
    client: Client, plan: Sequence[LabNode], *, clock: Clock | None = None
) -> None:
    """Create the Node objects, or bring those that are there up to date; raises KubeError.

    Nodes of an earlier lab that are not in the plan are deleted with their pods.
    """
    now = format_event_time((clock or SystemClock()).now())
    await _remove_old(client, {one.name for one in plan})
    await _do_all(_register(client, one, now=now) for one in plan)


async def _remove_old(client: Client, wanted: set[str]) -> None:
    nodes = (await client.list_all(_INFORMED_NODES)).items
    old = [
        one.metadata
        for one in nodes
        if one.status.node_info.os_image == OS_IMAGE and one.metadata.name not in wanted
    ]
    # NB: nodes go first, so that nothing new is placed there while their pods go.
    await _do_all(_delete(client, _INFORMED_NODES, one) for one in old)
    there = wanted | {one.metadata.name for one in nodes} - {one.name for one in old}
    pods = [
        pod.metadata
        for pod in (await client.list_all(WORKLOAD_PODS)).items
        if pod.spec.node_name and pod.spec.node_name not in there
    ]
    await _do_all(_delete(client, WORKLOAD_PODS, one) for one in pods)


async def _delete(client: Client, kind: Kind[Any], one: ObjectMeta) -> None:
    # It may be gone, perhaps with another one in its place.
    with suppress(NotFound, Conflict):
        await client.delete(kind, one.name, namespace=one.namespace, uid=one.uid, grace_period=0)


async def _do_all(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it, a few at a time; raises the first error in the end."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def do(work: Coroutine[Any, Any, None]) -> None:
        async with slots:
            await work

    results = await asyncio.gather(*(do(one) for one in works), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _register(client: Client, one: LabNode, *, now: str) -> None:
    with suppress(AlreadyExists):
        await client.create(WHOLE_NODES, node_object(one, now=now))
        return
    found = await client.get(WHOLE_NODES, one.name)
    if found.spec.pod_cidrs and found.spec.pod_cidrs != _ranges(one):
        with suppress(NotFound):
            await client.delete(WHOLE_NODES, one.name, uid=found.metadata.uid)
        await client.create(WHOLE_NODES, node_object(one, now=now))
        return
    await _update(client, one)
    heard = mark_heard(_with_all_conditions(await client.get(MARKED_NODES, one.name)), time=now)
    conditions = heard["status"] if heard else {}
    status = _status(one)
    # NB: addresses merge by type, of which two have the same.
    status["addresses"] = [{"$patch": "replace"}, *status["addresses"]]
    await client.patch(
        MARKED_NODES,
        one.name,
        {"status": {**status, **conditions}},
        type=PatchType.STRATEGIC,
        subresource="status",
    )


async def _update(client: Client, one: LabNode) -> None:
    for attempt in range(_TRIES):
        node = await client.get(MARKED_NODES, one.name)
        labels: dict[str, str | None] = {ZONE_LABEL: None, **_labels(one)}
        if node.is_relabelled:
            del labels[ZONE_LABEL]
        freed: JsonObject = untaint(node) or {"metadata": {}, "spec": {}}
        patch = {
            "metadata": {**freed["metadata"], "labels": labels},
            "spec": {**freed["spec"], **_spec(one)},
        }
        try:
            await client.patch(MARKED_NODES, one.name, patch)
        except Conflict:
            if attempt == _TRIES - 1:
                raise
        else:
            return


def node_object(one: LabNode, *, now: str) -> JsonObject:
    """Return a node as it is first registered."""
    heard = mark_heard(_with_all_conditions(MarkedNode()), time=now)
    assert heard is not None  # noqa: S101 - nothing was heard before
    return {
        "metadata": {"name": one.name, "labels": _labels(one)},
        "spec": _spec(one),
        "status": {**_status(one), **heard["status"]},
    }


def _spec(one: LabNode) -> JsonObject:
    return {"podCIDR": one.addresses.pod_cidr, "podCIDRs": list(_ranges(one))}


def _ranges(one: LabNode) -> tuple[str, ...]:
    return (one.addresses.pod_cidr, one.addresses.pod_cidr6)


def _labels(one: LabNode) -> dict[str, str | None]:
    zone = {ZONE_LABEL: one.zone} if one.zone else {}
    return {
        "kubernetes.io/hostname": one.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        _REGION_LABEL: REGION,
        **zone,
    }


def _status(one: LabNode) -> JsonObject:
    system = platform.uname()
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "addresses": [
            {"type": "InternalIP", "address": one.addresses.address},
            {"type": "InternalIP", "address": one.addresses.address6},
            {"type": "Hostname", "address": one.name},
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


def _with_all_conditions(node: MarkedNode) -> MarkedNode:
    """Return the node with Unknown for the conditions that it never reported."""
    there = {one.type for one in node.status.conditions}
    missing = tuple(
        StatusCondition(type=kind, status="Unknown") for kind in _CONDITIONS if kind not in there
    )
    status = MarkedStatus((*node.status.conditions, *missing))
    return msgspec.structs.replace(node, status=status)
