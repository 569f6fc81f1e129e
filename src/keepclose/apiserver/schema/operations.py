"""Every operation on every resource, as both versions of OpenAPI list them.

kubectl reads two things here: that PATCH of a kind takes `dryRun` and `fieldValidation`, and which
kind a path belongs to. Everything else is for users and code generators.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from keepclose.apiserver.resources import BINDINGS, SERVED, Resource
from keepclose.apiserver.schema.types import META

STATUS: Final = META + "Status"
PATCH: Final = META + "Patch"
DELETE_OPTIONS: Final = META + "DeleteOptions"
PATCH_TYPES: Final = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
# Name of a query parameter: its JSON type and its meaning.
PARAMETERS: Final = {
    "allowWatchBookmarks": ("boolean", "Whether a watch may send bookmarks."),
    "continue": ("string", "The token that the previous page of a list ended with."),
    "dryRun": ("string", "All: do everything but store the result."),
    "fieldManager": ("string", "The name under which managedFields records the changed fields."),
    "fieldSelector": ("string", "Which objects, by the values of their fields."),
    "fieldValidation": (
        "string",
        "How unknown and duplicate fields are treated: Ignore, Warn (the default) or Strict.",
    ),
    "force": ("boolean", "Whether an apply takes over fields that other managers own."),
    "gracePeriodSeconds": ("integer", "After how many seconds the object is deleted."),
    "labelSelector": ("string", "Which objects, by their labels."),
    "limit": ("integer", "How many objects a page of a list has at most."),
    "orphanDependents": (
        "boolean",
        "Whether dependents are orphaned; propagationPolicy replaces it.",
    ),
    "propagationPolicy": (
        "string",
        "How dependents are treated: Orphan, Background or Foreground.",
    ),
    "resourceVersion": ("string", "The version to read, or to watch from."),
    "resourceVersionMatch": (
        "string",
        "How resourceVersion is interpreted: Exact or NotOlderThan.",
    ),
    "sendInitialEvents": ("boolean", "Whether a watch begins with the existing objects."),
    "timeoutSeconds": ("integer", "After how many seconds a list or a watch ends."),
    "watch": ("boolean", "Changes as they happen instead of a list."),
}
PATH_PARAMETERS: Final = {
    "name": "The name of the object.",
    "namespace": "The namespace of the object.",
}
_SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
_WRITE: Final = ("dryRun", "fieldManager", "fieldValidation")
_DELETE: Final = ("dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy")
_LIST: Final = (
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
)
_VERBS: Final = {
    "get": ("get", "read", "Read"),
    "put": ("put", "replace", "Replace"),
    "patch": ("patch", "patch", "Change a part of"),
    "delete": ("delete", "delete", "Delete"),
}
_BY_METHOD: Final = {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}


class ApiOperation(msgspec.Struct, frozen=True):
    """One method of one path."""

    path: str
    method: str
    # As the extension x-kubernetes-action names it.
    action: str
    id: str
    tag: str
    description: str
    group: str
    version: str
    kind: str
    # Names of definitions; "" where there is no body.
    body: str = ""
    answer: str = ""
    query: tuple[str, ...] = ()


def resource_operations(resource: Resource) -> Iterator[ApiOperation]:
    """Yield the operations on one resource and its subresources, path by path."""
    collection, item = _paths(resource)
    yield from _collection_operations(resource, collection)
    yield from _item_operations(resource, item)
    for name in resource.subresources:
        yield from _subresource_operations(resource, f"{item}/{name}", name)


def group_path(resource: Resource) -> str:
    """Return the path of a resource's group and version, as the OpenAPI index names it."""
    return f"apis/{resource.api_version}" if resource.group else f"api/{resource.version}"


def group_paths() -> dict[str, list[Resource]]:
    """Return the resources of each group and version that is served."""
    by_path: dict[str, list[Resource]] = {}
    for resource in SERVED:
        by_path.setdefault(group_path(resource), []).append(resource)
    return by_path


def _paths(resource: Resource) -> tuple[str, str]:
    prefix = f"/{group_path(resource)}"
    scope = "/namespaces/{namespace}" if resource.namespaced else ""
    collection = f"{prefix}{scope}/{resource.plural}"
    return collection, collection + "/{name}"


def _collection_operations(resource: Resource, path: str) -> Iterator[ApiOperation]:
    scoped = _scoped(resource)
    items = f"{resource.definition}List"
    if "list" in resource.verbs:
        yield _operation(
            resource,
            path,
            "get",
            action="list",
            verb="list",
            text="List",
            answer=items,
            query=_LIST,
        )
    if "create" in resource.verbs:
        yield _operation(
            resource,
            path,
            "post",
            action="post",
            verb="create",
            text="Create",
            body=resource.definition,
            answer=resource.definition,
            query=_WRITE,
        )
    if "deletecollection" in resource.verbs:
        yield _operation(
            resource,
            path,
            "delete",
            action="deletecollection",
            verb="delete",
            noun=f"Collection{scoped}",
            text="Delete every",
            body=DELETE_OPTIONS,
            answer=STATUS,
            query=(*_DELETE, *_LIST[1:]),
        )
    if resource.namespaced and "list" in resource.verbs:
        yield _operation(
            resource,
            f"/{group_path(resource)}/{resource.plural}",
            "get",
            action="list",
            verb="list",
            noun=f"{resource.kind}ForAllNamespaces",
            text="List in all namespaces",
            answer=items,
            query=_LIST,
        )


def _item_operations(resource: Resource, path: str) -> Iterator[ApiOperation]:
    for method, (action, verb, text) in _VERBS.items():
        if _BY_METHOD[method] in resource.verbs:
            yield _operation(
                resource,
                path,
                method,
                action=action,
                verb=verb,
                text=text,
                body=_body(method, resource.definition),
                answer=STATUS if method == "delete" else resource.definition,
                query=_query(method),
            )


def _subresource_operations(resource: Resource, path: str, name: str) -> Iterator[ApiOperation]:
    noun = f"{_scoped(resource)}{name.capitalize()}"
    definition, group_version_kind = (
        resource.definition,
        (resource.group, resource.version, resource.kind),
    )
    if name == "scale":
        definition, group_version_kind = _SCALE, ("autoscaling", "v1", "Scale")
    if name == "binding":
        yield _operation(
            resource,
            path,
            "post",
            action="post",
            verb="create",
            noun=noun,
            text="Bind",
            body=BINDINGS.definition,
            answer=BINDINGS.definition,
            query=_WRITE,
            group_version_kind=(BINDINGS.group, BINDINGS.version, BINDINGS.kind),
        )
        return
    for method in ("put",) if name == "finalize" else ("get", "put", "patch"):
        action, verb, text = _VERBS[method]
        yield _operation(
            resource,
            path,
            method,
            action=action,
            verb=verb,
            noun=noun,
            text=f"{text} the {name} of",
            body=_body(method, definition),
            answer=definition,
            query=_query(method),
            group_version_kind=group_version_kind,
        )


def _operation(
    resource: Resource,
    path: str,
    method: str,
    *,
    action: str,
    verb: str,
    text: str,
    noun: str = "",
    body: str = "",
    answer: str = "",
    query: tuple[str, ...] = (),
    group_version_kind: tuple[str, str, str] | None = None,
) -> ApiOperation:
    group_name = (resource.group.partition(".")[0] or "core").capitalize()
    group, version, kind = group_version_kind or (resource.group, resource.version, resource.kind)
    return ApiOperation(
        path=path,
        method=method,
        action=action,
        id=f"{verb}{group_name}{resource.version.capitalize()}{noun or _scoped(resource)}",
        tag=f"{group_name.lower()}_{resource.version}",
        description=f"{text} {resource.kind}",
        group=group,
        version=version,
        kind=kind,
        body=body,
        answer=answer,
        query=query,
    )


def _scoped(resource: Resource) -> str:
    return f"Namespaced{resource.kind}" if resource.namespaced else resource.kind


def _body(method: str, definition: str) -> str:
    return {"get": "", "patch": PATCH, "delete": DELETE_OPTIONS}.get(method, definition)


def _query(method: str) -> tuple[str, ...]:
    return {
        "get": (),
        "put": _WRITE,
        "patch": (*_WRITE, "force"),
        "delete": _DELETE,
    }[method]
