"""Requests as values: the path, query and body of every verb of the API, and the kinds they name.

A kind says where it is served and which struct holds it; one that is read untyped has `dict` or
`msgspec.Raw`. Nothing here asks a server which kinds it has. All functions are pure, so that
requests can be tested without a server. A call that could hit another object than it names, such as
a delete without a name, is rejected with a UsageError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from keepclose.kube.errors import UsageError
from keepclose.kube.transport.transport import ApiRequest
from keepclose.model.core_kinds import ConfigMap, Event, Lease, Namespace
from keepclose.model.endpointslice.types import Endpoints, EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod

_T = TypeVar("_T")
_Query = tuple[tuple[str, str], ...]
# An object or a patch: a struct, plain values, or encoded JSON.
Body = msgspec.Struct | Mapping[str, Any] | Sequence[Any] | bytes

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
# Requests metadata alone; servers that cannot leave out the rest send the whole object.
TERSE: Final = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"


@dataclass(frozen=True, slots=True)
class Kind(Generic[_T]):
    """A kind of one API version; the core group is ""."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    struct: type[_T]

    @property
    def api_version(self) -> str:
        """The apiVersion of objects of the kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, an object or a subresource.

        No namespace means all of them; a cluster-scoped kind ignores it.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


NAMESPACES: Final = Kind("", "v1", "namespaces", "Namespace", False, Namespace)
NODES: Final = Kind("", "v1", "nodes", "Node", False, Node)
PODS: Final = Kind("", "v1", "pods", "Pod", True, Pod)
SERVICES: Final = Kind("", "v1", "services", "Service", True, Service)
ENDPOINTS: Final = Kind("", "v1", "endpoints", "Endpoints", True, Endpoints)
EVENTS: Final = Kind("", "v1", "events", "Event", True, Event)
CONFIG_MAPS: Final = Kind("", "v1", "configmaps", "ConfigMap", True, ConfigMap)
ENDPOINT_SLICES: Final = Kind(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", True, EndpointSlice
)
LEASES: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", True, Lease)
# Untyped, because an update must send the whole object.
SECRETS: Final[Kind[dict[str, Any]]] = Kind("", "v1", "secrets", "Secret", True, dict)
MUTATING_WEBHOOKS: Final[Kind[dict[str, Any]]] = Kind(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
    dict,
)


class PatchType(StrEnum):
    """The format of a patch; the value is its media type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


def get_request(
    kind: Kind[Any], name: str, *, namespace: str = "", resource_version: str = ""
) -> ApiRequest:
    """Return the request for one object."""
    path = _object_path(kind, namespace, name)
    return ApiRequest("GET", path, _query(("resourceVersion", resource_version)))


def list_request(
    kind: Kind[Any],
    *,
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    limit: int = 0,
    continue_token: str = "",
    resource_version: str = "",
    resource_version_match: str = "",
) -> ApiRequest:
    """Return the request for a page of a list.

    A continue token contains its version, and the API rejects requests that name both.
    """
    if continue_token:
        resource_version = resource_version_match = ""
    query = _query(
        ("labelSelector", label_selector),
        ("fieldSelector", field_selector),
        ("limit", str(limit) if limit else ""),
        ("continue", continue_token),
        ("resourceVersion", resource_version),
        ("resourceVersionMatch", resource_version_match),
    )
    return ApiRequest("GET", _collection_path(kind, namespace), query)


def watch_request(
    kind: Kind[Any],
    *,
    namespace: str = "",
    label_selector: str = "",
    field_selector: str = "",
    resource_version: str = "",
    timeout_seconds: int | None = None,
    send_initial_events: bool = False,
) -> ApiRequest:
    """Return the request for a watch, always with bookmarks."""
    query = _query(
        ("watch", "true"),
        ("allowWatchBookmarks", "true"),
        ("labelSelector", label_selector),
        ("fieldSelector", field_selector),
        ("resourceVersion", resource_version),
        ("sendInitialEvents", "true" if send_initial_events else ""),
        ("resourceVersionMatch", "NotOlderThan" if send_initial_events else ""),
        ("timeoutSeconds", "" if timeout_seconds is None else str(timeout_seconds)),
    )
    return ApiRequest("GET", _collection_path(kind, namespace), query, streaming=True)


def create_request(
    kind: Kind[Any],
    obj: Body,
    *,
    namespace: str = "",
    field_manager: str = "",
    dry_run: bool = False,
) -> ApiRequest:
    """Return the request that creates an object; the object may name its namespace."""
    path = _collection_path(kind, namespace or identity(obj).namespace, needed=True)
    query = _query(("fieldManager", field_manager), ("dryRun", "All" if dry_run else ""))
    return ApiRequest("POST", path, query, {"Content-Type": JSON}, _encode(kind, obj))


def replace_request(
    kind: Kind[Any],
    obj: Body,
    *,
    subresource: str = "",
    field_manager: str = "",
    dry_run: bool = False,
) -> ApiRequest:
    """Return the request that replaces the object of the same name."""
    namespace, name = identity(obj)
    path = _object_path(kind, namespace, name, subresource)
    query = _query(("fieldManager", field_manager), ("dryRun", "All" if dry_run else ""))
    return ApiRequest("PUT", path, query, {"Content-Type": JSON}, _encode(kind, obj))


def patch_request(
    kind: Kind[Any],
    name: str,
    patch: Body,
    *,
    namespace: str = "",
    media_type: str = PatchType.MERGE,
    subresource: str = "",
    field_manager: str = "",
    force: bool = False,
    dry_run: bool = False,
) -> ApiRequest:
    """Return the request that changes parts of an object, or applies one."""
    path = _object_path(kind, namespace, name, subresource)
    query = _query(
        ("fieldManager", field_manager),
        ("force", "true" if force else ""),
        ("dryRun", "All" if dry_run else ""),
    )
    body = _encode(kind if media_type == APPLY else None, patch)
    return ApiRequest("PATCH", path, query, {"Content-Type": str(media_type)}, body)


def delete_request(
    kind: Kind[Any],
    name: str,
    *,
    namespace: str = "",
    preconditions: Mapping[str, str],
    grace_period: int | None = None,
    propagation: str = "",
) -> ApiRequest:
    """Return the request that deletes an object if the preconditions hold."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if preconditions:
        options["preconditions"] = preconditions
    if grace_period is not None:
        options["gracePeriodSeconds"] = grace_period
    if propagation:
        options["propagationPolicy"] = propagation
    path = _object_path(kind, namespace, name)
    return ApiRequest("DELETE", path, (), {"Content-Type": JSON}, _encode(None, options))


def _query(*pairs: tuple[str, str]) -> _Query:
    return tuple(pair for pair in pairs if pair[1])


def _collection_path(kind: Kind[Any], namespace: str, *, needed: bool = False) -> str:
    if needed and kind.namespaced and not namespace:
        raise UsageError(f"{kind}: an object needs a namespace")
    _check_segment(namespace)
    return kind.path(namespace)


def _object_path(kind: Kind[Any], namespace: str, name: str, subresource: str = "") -> str:
    if not name:
        # NB: without a name this would be the path of the collection, and DELETE would empty it.
        raise UsageError(f"{kind}: an object needs a name")
    _check_segment(name)
    _collection_path(kind, namespace, needed=True)
    return kind.path(namespace, name, subresource)


def _check_segment(text: str) -> None:
    """Reject what the API rejects as a segment of a path: it could name another object."""
    if text in (".", "..") or "/" in text or "%" in text:
        raise UsageError(
            f'{text!r} cannot be a name: it may not be "." or "..", nor hold "/" or "%"'
        )


def identity(obj: Body) -> NamespacedName:
    """Return the namespace and name of an object, "" for a missing one."""
    if isinstance(obj, bytes):
        obj = msgspec.json.decode(obj)
    if isinstance(obj, msgspec.Struct):
        metadata = getattr(obj, "metadata", None)
        return NamespacedName(getattr(metadata, "namespace", ""), getattr(metadata, "name", ""))
    plain = obj.get("metadata") if isinstance(obj, Mapping) else None
    plain = plain if isinstance(plain, Mapping) else {}
    return NamespacedName(plain.get("namespace") or "", plain.get("name") or "")


def _encode(kind: Kind[Any] | None, body: Body) -> bytes:
    """Return a body as JSON; plain objects get the apiVersion and kind that the API requires."""
    if isinstance(body, bytes):
        return body
    if kind is not None and isinstance(body, Mapping):
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
    return msgspec.json.encode(body)
