"""When what was applied works: pods are ready, and every node reaches the Services."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from keepclose.kube.client import Client
from keepclose.kube.kinds import ENDPOINT_SLICES, SERVICES, Kind
from keepclose.lab.view import LabView
from keepclose.lab.workloadreadiness import ready_count
from keepclose.lab.workloads import PLAIN_DAEMON_SETS, PLAIN_DEPLOYMENTS, JsonObject
from keepclose.network.namespaces import Namespace
from keepclose.network.workerthreads import open_in_thread

_READY_S: Final = 60.0
_ROUTED_S: Final = 10.0
_SLICES_S: Final = 2.0
_TRY_S: Final = 0.5
_PAUSE_S: Final = 0.03
_KINDS: Final[Mapping[str, Kind[JsonObject]]] = {
    one.kind: one for one in (PLAIN_DEPLOYMENTS, PLAIN_DAEMON_SETS)
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

    async def until_ready(self, client: Client, tell: Callable[[str, str, bool], None]) -> None:
        """Tell of each by name, with a line and whether it is well, when its pods are ready.

        Those that are not after a minute are told of then.
        """

        async def follow(kind: str, namespace: str, name: str) -> None:
            try:
                async with asyncio.timeout(_READY_S):
                    count = await _until_one_ready(client, _KINDS[kind], namespace, name)
            except TimeoutError:
                tell(name, f"not all pods are ready: kubectl get pods -n {namespace}", False)
            else:
                tell(name, f"{count} pods ready" if count != 1 else "1 pod ready", True)

        await asyncio.gather(*(follow(*one) for one in self.names))


async def _until_one_ready(
    client: Client, kind: Kind[JsonObject], namespace: str, name: str
) -> int:
    async with client.watch(
        kind, namespace=namespace, field_selector=f"metadata.name={name}"
    ) as events:
        async for event in events:
            ready = ready_count(event.object) if event.object is not None else None
            if ready is not None:
                return ready
    return 0


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
    await asyncio.gather(*(until_connected(place, address, ports[0].port) for place in places))


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


async def until_connected(place: Namespace, address: str, port: int) -> None:
    """Return when a connection from a namespace to an address and port succeeds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    while True:
        with (
            contextlib.suppress(OSError),
            await open_in_thread(lambda: place.open_socket(family), socket.socket.close) as one,
        ):
            one.setblocking(False)
            async with asyncio.timeout(_TRY_S):
                await loop.sock_connect(one, (address, port))
            return
        # NB: a refusal comes at once as long as there are no rules.
        await asyncio.sleep(_PAUSE_S)
