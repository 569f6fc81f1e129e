"""When what was applied works: pods are ready, and every node reaches the Services."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from keepclose.kube.client import Client
from keepclose.kube.kinds import ENDPOINT_SLICES, SERVICES, Kind
from keepclose.lab.view import LabView
from keepclose.network.namespaces import Namespace

JsonObject = dict[str, Any]
_READY_S: Final = 60.0
_ROUTED_S: Final = 10.0
_SLICES_S: Final = 2.0
_TRY_S: Final = 0.5
_PAUSE_S: Final = 0.03
_KINDS: Final[Mapping[str, Kind[JsonObject]]] = {
    "Deployment": Kind("apps", "v1", "deployments", "Deployment", True, dict),
    "DaemonSet": Kind("apps", "v1", "daemonsets", "DaemonSet", True, dict),
}


class Workloads(NamedTuple):
    """Deployments and DaemonSets: kind, namespace and name."""

    names: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, objects: Iterable[JsonObject]) -> Workloads:
        """Return those among objects."""
        return cls(
            tuple(
                (
                    one["kind"],
                    one["metadata"].get("namespace") or "default",
                    one["metadata"]["name"],
                )
                for one in objects
                if one.get("kind") in _KINDS
            )
        )

    async def until_ready(self, client: Client) -> dict[str, str]:
        """Return a line for each when its pods are ready, or after a minute how many are."""
        lines: dict[str, str] = {}
        for kind, namespace, name in self.names:
            try:
                async with asyncio.timeout(_READY_S):
                    count = await _until_one_ready(client, _KINDS[kind], namespace, name)
            except TimeoutError:
                lines[name] = f"not all pods are ready yet: kubectl get pods -n {namespace}"
            else:
                lines[name] = f"{count} pods ready" if count != 1 else "1 pod ready"
        return lines


async def _until_one_ready(
    client: Client, kind: Kind[JsonObject], namespace: str, name: str
) -> int:
    async with client.watch(
        kind, namespace=namespace, field_selector=f"metadata.name={name}"
    ) as events:
        async for event in events:
            ready = _ready_count(event.object)
            if ready is not None:
                return ready
    return 0


def _ready_count(workload: JsonObject | None) -> int | None:
    """Return how many pods are ready when all are, else None."""
    if workload is None:
        return None
    meta, status = workload["metadata"], workload.get("status", {})
    if status.get("observedGeneration", 0) < meta.get("generation", 0):
        return None
    if workload["kind"] == "DaemonSet":
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        updated = status.get("updatedNumberScheduled", 0)
    else:
        wanted, ready = workload["spec"].get("replicas", 1), status.get("readyReplicas", 0)
        updated = status.get("updatedReplicas", 0)
    is_done: bool = ready >= wanted and updated >= wanted
    return int(ready) if is_done else None


async def until_routed(lab: LabView, objects: Iterable[JsonObject]) -> None:
    """Return when every node reaches the Services among objects that have ready pods.

    Gives up in silence after a few seconds: what keeps a Service from being reached shows when
    somebody uses it.
    """
    if lab.underlay is None:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ROUTED_S):
            for one in objects:
                if one.get("kind") == "Service":
                    meta = one["metadata"]
                    await _until_reached(lab, meta.get("namespace") or "default", meta["name"])


async def _until_reached(lab: LabView, namespace: str, name: str) -> None:
    service = await lab.client.get(SERVICES, name, namespace=namespace)
    ports = [port for port in service.spec.ports if port.protocol == "TCP"]
    address = service.spec.cluster_ip
    if not ports or not address or address == "None" or not await _has_ready(lab, namespace, name):
        return
    assert lab.underlay is not None  # noqa: S101 - looked at by the caller
    places = [node.client.namespace for node in lab.underlay.nodes.values()]
    await asyncio.gather(*(_until_connected(place, address, ports[0].port) for place in places))


async def _has_ready(lab: LabView, namespace: str, name: str) -> bool:
    selector = f"kubernetes.io/service-name={name}"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(_SLICES_S),
            lab.client.watch(
                ENDPOINT_SLICES, namespace=namespace, label_selector=selector
            ) as events,
        ):
            async for event in events:
                if event.object and any(one.conditions.ready for one in event.object.endpoints):
                    return True
    return False


async def _until_connected(place: Namespace, address: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    while True:
        with (
            contextlib.suppress(OSError),
            await asyncio.to_thread(place.open_socket, family) as one,
        ):
            one.setblocking(False)
            async with asyncio.timeout(_TRY_S):
                await loop.sock_connect(one, (address, port))
            return
        # NB: a refusal comes at once as long as there are no rules.
        await asyncio.sleep(_PAUSE_S)
