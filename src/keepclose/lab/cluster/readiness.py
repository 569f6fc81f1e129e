"""Applies the objects of manifests, and waits until they work.

Objects are applied as `kubectl apply --server-side` does. The server's discovery decides which
kinds exist, so that anything it serves can be applied. Objects work when the pods of workloads are
ready and every node reaches the Services; both waits have a limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.errors import ApiError, KubeError, NotFound
from keepclose.kube.requests import ENDPOINT_SLICES, NAMESPACES, SERVICES, Kind
from keepclose.lab.access import LabView
from keepclose.lab.kinds import LAB_PODS, PLAIN_DAEMON_SETS, PLAIN_DEPLOYMENTS
from keepclose.lab.traffic.failure_causes import explain_unready, is_ready
from keepclose.model.json_values import JsonObject
from keepclose.model.workloads.constraints import NodeLabelSelector
from keepclose.model.workloads.types import ready_count
from keepclose.system.namespaces import NetworkNamespace
from keepclose.system.threads import open_in_thread

_FIRST_REPORT_S: Final = 3.0
_READY_S: Final = 60.0
_ROUTED_S: Final = 10.0
_SLICES_S: Final = 2.0
_TRY_S: Final = 0.5
_PAUSE_S: Final = 0.03
_KINDS: Final[Mapping[str, Kind[JsonObject]]] = {
    kind.kind: kind for kind in (PLAIN_DEPLOYMENTS, PLAIN_DAEMON_SETS)
}
_MANAGER: Final = "keepclose-up"


class Workloads(NamedTuple):
    """Deployments and DaemonSets: kind, namespace and name."""

    names: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, objects: Iterable[JsonObject]) -> Workloads:
        """Return the workloads among objects."""
        return cls(
            tuple(
                (
                    obj["kind"],
                    obj["metadata"].get("namespace") or "default",
                    obj["metadata"]["name"],
                )
                for obj in objects
                if obj.get("kind") in _KINDS
            )
        )

    async def until_ready(
        self,
        client: Client,
        report: Callable[[str, str, bool | None], None],
        *,
        first_report_s: float = _FIRST_REPORT_S,
        limit_s: float = _READY_S,
    ) -> None:
        """Report each workload by name, with a line and whether it is ready, when its pods are.

        A workload that is not ready after `first_report_s` is reported with what it waits for and
        None, and at the limit with the reason and False.
        """

        async def follow(kind: str, namespace: str, name: str) -> None:
            waiting = asyncio.ensure_future(_until_one_ready(client, _KINDS[kind], namespace, name))
            try:
                for wait_s, is_last in ((first_report_s, False), (limit_s - first_report_s, True)):
                    await asyncio.wait([waiting], timeout=wait_s)
                    if waiting.done():
                        count = waiting.result()
                        report(name, f"{count} pods ready" if count != 1 else "1 pod ready", True)
                        return
                    why = await _explain(client, _KINDS[kind], namespace, name)
                    report(name, why if is_last else f"waiting, {why}", False if is_last else None)
            finally:
                waiting.cancel()

        await asyncio.gather(*(follow(*workload) for workload in self.names))


async def until_routed(lab: LabView, objects: Iterable[JsonObject]) -> None:
    """Wait until every node reaches those Services among objects that have ready pods.

    Returns without an error after a few seconds: `keepclose traffic` shows why a Service cannot be
    reached.
    """
    if lab.underlay is None:
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ROUTED_S):
            for obj in objects:
                if obj.get("kind") == "Service":
                    meta = obj["metadata"]
                    await _until_reached(lab, meta.get("namespace") or "default", meta["name"])


async def until_connected(place: NetworkNamespace, address: str, port: int) -> None:
    """Wait until a connection from a namespace to an address and port succeeds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    while True:
        with (
            contextlib.suppress(OSError),
            await open_in_thread(
                lambda: place.open_socket(family), socket.socket.close
            ) as client_socket,
        ):
            client_socket.setblocking(False)
            async with asyncio.timeout(_TRY_S):
                await loop.sock_connect(client_socket, (address, port))
            return
        # NB: connections are rejected at once while there are no rules.
        await asyncio.sleep(_PAUSE_S)


class ApplyError(Exception):
    """Why an object cannot be applied: the object, the server's message and the field.

    `place` is the position of the field in its manifest, "" if it is unknown.
    """

    def __init__(self, message: str, *, field: str = "", place: str = "") -> None:
        super().__init__(message)
        self.field, self.place = field, place


class _Served(msgspec.Struct):
    name: str
    kind: str
    namespaced: bool


class _ServedList(msgspec.Struct):
    resources: list[_Served] = []


class Applier:
    """Applies objects one after the other."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._served: dict[str, dict[str, _Served]] = {}

    async def apply(self, obj: JsonObject) -> None:
        """Apply an object, after creating its namespace if need be; raises ApplyError."""
        subject = _name_object(obj)
        try:
            kind = await self._find_kind(obj)
            meta = obj["metadata"]
            namespace = str(meta.get("namespace") or "default") if kind.namespaced else ""
            if namespace:
                await self._ensure_namespace(namespace)
            await self._client.apply(
                kind, meta["name"], obj, namespace=namespace, field_manager=_MANAGER, force=True
            )
        except KubeError as error:
            causes = error.causes if isinstance(error, ApiError) else []
            field = causes[0].field if causes else ""
            raise ApplyError(f"{subject}: {error}", field=field) from error

    async def _find_kind(self, obj: JsonObject) -> Kind[dict[str, Any]]:
        api_version, kind = str(obj.get("apiVersion")), str(obj.get("kind"))
        group, _, version = api_version.rpartition("/")
        served = await self._list_served(group, version)
        if kind not in served:
            raise ApplyError(
                f"{_name_object(obj)}: this cluster has no kind {kind} in {api_version}",
                field="kind",
            )
        resource = served[kind]
        return Kind(group, version, resource.name, kind, resource.namespaced, dict)

    async def _list_served(self, group: str, version: str) -> dict[str, _Served]:
        # NB: these come from a manifest and may contain anything, line ends and "?" included.
        group, version = quote(group, safe=""), quote(version, safe="")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        if path not in self._served:
            try:
                body = await self._client.raw("GET", path)
            except NotFound:
                body = b"{}"
            resources = msgspec.json.decode(body, type=_ServedList).resources
            self._served[path] = {
                resource.kind: resource for resource in resources if "/" not in resource.name
            }
        return self._served[path]

    async def _ensure_namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await self._client.get(NAMESPACES, name)
        except NotFound:
            await self._client.apply(NAMESPACES, name, body, field_manager=_MANAGER)


def find_manifest_error(obj: object) -> str:
    """Return why a value of a manifest cannot be applied, or "", without asking a server."""
    if not isinstance(obj, dict):
        return "expected a Kubernetes object: a map with apiVersion, kind and metadata"
    for field in ("apiVersion", "kind"):
        if not isinstance(obj.get(field), str) or not obj[field]:
            return f"{_name_object(obj)}: {field}: Required value"
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
        return f"{_name_object(obj)}: metadata.name: Required value"
    if not isinstance(meta.get("namespace"), str | None):
        return f"{_name_object(obj)}: metadata.namespace: expected a string; put it in quotes"
    return ""


async def _explain(client: Client, kind: Kind[JsonObject], namespace: str, name: str) -> str:
    """Return how many pods of a workload are ready, and why the others are not."""
    try:
        workload = await client.get(kind, name, namespace=namespace)
        pods = (await client.list_all(LAB_PODS, namespace=namespace)).items
    except KubeError as error:
        return f"its state is unknown: {error}"
    selector = msgspec.convert(workload["spec"].get("selector") or {}, NodeLabelSelector)
    own = [pod for pod in pods if selector.matches(pod.metadata.labels)]
    ready = sum(is_ready(pod) for pod in own)
    status = workload.get("status", {})
    desired = status.get("desiredNumberScheduled", workload["spec"].get("replicas", len(own)))
    why = explain_unready(own)
    if not own:
        conditions = status.get("conditions", ())
        failures = [
            condition for condition in conditions if condition.get("type") == "ReplicaFailure"
        ]
        why = failures[0].get("message", "") if failures else "there are none yet"
    counted = f"{ready} of {desired} pods ready"
    return f"{counted}: {why}" if why else counted


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


async def _until_reached(lab: LabView, namespace: str, name: str) -> None:
    service = await lab.client.get(SERVICES, name, namespace=namespace)
    ports = [port for port in service.spec.ports if port.protocol == "TCP"]
    address = service.spec.cluster_ip
    if not ports or not address or address == "None" or not await _has_ready(lab, namespace, name):
        return
    assert lab.underlay is not None  # noqa: S101 - checked by the caller
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
                if event.object and any(
                    endpoint.conditions.ready for endpoint in event.object.endpoints
                ):
                    return True
    return False


def _name_object(obj: JsonObject) -> str:
    """Return the name of an object in messages."""
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
    return f"{obj.get('kind', 'object')} {name}".strip()
