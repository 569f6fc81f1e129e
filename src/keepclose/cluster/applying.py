"""Puts objects of manifests into a cluster, as kubectl apply does with --server-side.

The server is asked which kinds it has, so that anything it serves can be applied.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.errors import ApiError, KubeError, NotFound
from keepclose.kube.requests import NAMESPACES, Kind
from keepclose.model.json_values import JsonObject

MANAGER: Final = "keepclose-up"


class ApplyError(Exception):
    """Why an object cannot be applied: which, what the server says, and of which field.

    `place` is where the field stands in the file that the object is from, "" where that is unknown.
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
        """Make the cluster hold what the object says, in a namespace that exists.

        Raises ApplyError.
        """
        subject = name_object(obj)
        try:
            kind = await self._find_kind(obj)
            meta = obj["metadata"]
            namespace = str(meta.get("namespace") or "default") if kind.namespaced else ""
            if namespace:
                await self._make_namespace(namespace)
            await self._client.apply(
                kind, meta["name"], obj, namespace=namespace, field_manager=MANAGER, force=True
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
                f"{name_object(obj)}: this cluster has no kind {kind} in {api_version}",
                field="kind",
            )
        one = served[kind]
        return Kind(group, version, one.name, kind, one.namespaced, dict)

    async def _list_served(self, group: str, version: str) -> dict[str, _Served]:
        # NB: from a manifest, so that anything may stand there, line ends and "?" included.
        group, version = quote(group, safe=""), quote(version, safe="")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        if path not in self._served:
            try:
                body = await self._client.raw("GET", path)
            except NotFound:
                body = b"{}"
            found = msgspec.json.decode(body, type=_ServedList).resources
            self._served[path] = {one.kind: one for one in found if "/" not in one.name}
        return self._served[path]

    async def _make_namespace(self, name: str) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await self._client.get(NAMESPACES, name)
        except NotFound:
            await self._client.apply(NAMESPACES, name, body, field_manager=MANAGER)


def name_object(obj: JsonObject) -> str:
    """Return what to call an object in a message."""
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
    return f"{obj.get('kind', 'object')} {name}".strip()


def flaw_of(obj: object) -> str:
    """Return why a value of a manifest cannot be applied, or "", before any server sees it."""
    if not isinstance(obj, dict):
        return "expected a Kubernetes object: a map with apiVersion, kind and metadata"
    for field in ("apiVersion", "kind"):
        if not isinstance(obj.get(field), str) or not obj[field]:
            return f"{name_object(obj)}: {field}: Required value"
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or not isinstance(meta.get("name"), str) or not meta["name"]:
        return f"{name_object(obj)}: metadata.name: Required value"
    if not isinstance(meta.get("namespace"), str | None):
        return f"{name_object(obj)}: metadata.namespace: expected a string; put it in quotes"
    return ""
