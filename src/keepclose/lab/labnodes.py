"""The Node objects of a lab, as its kubelets register them.

A node that is there already is brought up to date and heard of again: its own labels, addresses and
conditions are set, the marks of silence go. What people did to it stays: other labels, cordons,
taints, and a zone that the lab was asked to give it. One whose pod ranges differ is made anew,
because these cannot be changed.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock, SystemClock
from keepclose.kube.errors import AlreadyExists, Conflict, NotFound
from keepclose.kube.kinds import NODES as WHOLE_NODES
from keepclose.kube.recorder import format_time
from keepclose.kube.requests import PatchType
from keepclose.lab.nodemarks import NODES as MARKED_NODES
from keepclose.lab.nodemarks import MarkedNode, MarkedStatus, mark_heard, untaint
from keepclose.model.wellknown import ZONE_LABEL
from keepclose.model.workload import StatusCondition
from keepclose.network.addresses import NodeAddresses

JsonObject = dict[str, Any]

REGION_LABEL: Final = "topology.kubernetes.io/region"
REGION: Final = "lab"
KUBELET_VERSION: Final = "v1.36.3+keepclose"
CAPACITY: Final = {"cpu": "4", "memory": "16Gi", "ephemeral-storage": "64Gi", "pods": "250"}
AT_ONCE: Final = 8
_TRIES: Final = 5
_CONDITIONS: Final = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


class LabNode(NamedTuple):
    """A node that the lab wants."""

    name: str
    zone: str
    """"" for none."""
    addresses: NodeAddresses


async def register_nodes(
    client: Client, plan: Sequence[LabNode], *, clock: Clock | None = None
) -> None:
    """Create the Node objects, or bring those that are there up to date; raises KubeError."""
    now = format_time((clock or SystemClock()).now())
    slots = asyncio.Semaphore(AT_ONCE)

    async def register(one: LabNode) -> None:
        async with slots:
            await _register(client, one, now=now)

    results = await asyncio.gather(*(register(one) for one in plan), return_exceptions=True)
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
        REGION_LABEL: REGION,
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
            "osImage": "keepclose lab",
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
