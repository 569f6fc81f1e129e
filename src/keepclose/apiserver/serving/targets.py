"""What a request is about: a kind, a namespace, a name, a subresource, and the verb.

Follows the paths of the Kubernetes API: `/api/v1/...` for the core group, `/apis/<group>/<version>`
for the others, with the namespace before the resource.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keepclose.apiserver.registry.resources import (
    BINDINGS,
    BY_PATH,
    SUBRESOURCE_VERBS,
    USUAL_SUBRESOURCE_VERBS,
    Resource,
)

READING: Final = frozenset({"get", "list", "watch"})
_COLLECTION_VERBS: Final = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS: Final = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Target(NamedTuple):
    """The object or the collection that a path names."""

    resource: Resource
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def is_collection(self) -> bool:
        """Whether no single object is named."""
        return not self.name


def parse_path(path: str) -> Target | None:
    """Return what the path names, or None where no resource is behind it."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and (group, version, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, version, rest[0]))
    if resource is None or len(rest) > 3 or "" in rest:
        return None
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        return None
    if namespace and not resource.namespaced:
        return None
    if name and resource.namespaced and not namespace:
        return None
    # There is nothing to read of these, so no object has a path, nor have those of all namespaces.
    if resource is BINDINGS and (name or not namespace):
        return None
    return Target(resource, namespace, name, subresource)


def verb_of(method: str, target: Target, *, watch: bool) -> str | None:
    """Return the Kubernetes verb of a request, or None where the resource has no such verb."""
    if target.is_collection:
        verb = "watch" if watch and method == "GET" else _COLLECTION_VERBS.get(method)
        # Over all namespaces there is only reading.
        if target.resource.namespaced and not target.namespace and verb not in READING:
            return None
    else:
        verb = _OBJECT_VERBS.get(method)
    if target.subresource:
        # What is posted below an object is created there.
        verb = "create" if method == "POST" else verb
        allowed = SUBRESOURCE_VERBS.get(target.subresource, USUAL_SUBRESOURCE_VERBS)
        return verb if verb in allowed else None
    return verb if verb in target.resource.verbs else None
