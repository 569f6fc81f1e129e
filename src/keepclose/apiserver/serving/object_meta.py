"""The metadata of written objects: names, namespaces, owner references and versions.

As in kube-apiserver, the metadata of a body is checked against the path of the request and against
the stored object. The errors and warnings are those of kube-apiserver, word by word.
"""

from __future__ import annotations

import json
import secrets
from typing import Any, Final

import msgspec

from keepclose.apiserver.registry.deletion import reject_new_content
from keepclose.apiserver.registry.strategy import KindStrategy
from keepclose.apiserver.resources import Resource
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.status_errors import (
    already_exists,
    bad_request,
    conflict,
    invalid_object,
    not_found,
    stale,
)
from keepclose.apiserver.storage.entries import ObjectStore
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import path_segment

# The alphabet of Kubernetes: no vowels and look-alikes, so that no words arise by accident.
_SUFFIX_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
_BASE_MAX: Final = 63 - _SUFFIX_LENGTH
_ATTEMPTS: Final = 8
_DUPLICATE_OWNERS: Final = (
    ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in "
    "1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate "
    "UID(s) observed: "
)


def assign_namespace(store: ObjectStore, target: RequestTarget, metadata: JsonObject) -> None:
    """Set the namespace of a new object, which must exist and not be terminating."""
    resource = target.resource
    if not resource.namespaced:
        metadata.pop("namespace", None)
        return
    if metadata.get("namespace") not in (None, "", target.namespace):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    metadata["namespace"] = target.namespace
    entry = store.get("namespaces", "", target.namespace)
    if entry is None:
        raise not_found("namespaces", "", target.namespace)
    if b'"deletionTimestamp"' in entry.data:
        name = str(metadata.get("name") or "")
        reject_new_content(resource, name, msgspec.json.decode(entry.data))


def generate_name(store: ObjectStore, target: RequestTarget, base: str) -> str:
    """Return an unused name that begins with the base."""
    for _ in range(_ATTEMPTS):
        suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
        name = base[:_BASE_MAX] + suffix
        if store.get(target.resource.store, target.namespace, name) is None:
            return name
    raise already_exists(target.resource.plural, target.resource.group, base)


def check_name(target: RequestTarget, metadata: JsonObject) -> None:
    """Reject an object whose name or namespace is not that of the path."""
    name = metadata.get("name")
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: name must be "
            "provided"
        )
    if name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    namespace = metadata.get("namespace")
    if target.namespace and namespace and namespace != target.namespace:
        raise bad_request(
            f"the namespace of the object ({namespace}) does not match the namespace on the "
            f"request ({target.namespace})"
        )


def check_path_name(target: RequestTarget) -> None:
    """Reject a path whose name cannot be that of an object."""
    problems = path_segment(target.name)
    if problems:
        quoted = json.dumps(target.name, ensure_ascii=False)
        raise bad_request(f"Name parameter invalid: {quoted}: {', '.join(problems)}")


def drop_duplicate_owners(metadata: JsonObject) -> list[str]:
    """Drop duplicate owner references; return the warnings for the client."""
    kept: dict[frozenset[tuple[str, Any]], JsonObject] = {}
    duplicates: list[str] = []
    for reference in metadata.get("ownerReferences") or ():
        # NB: the type is checked before, so all members are scalars.
        members = frozenset(reference.items())
        if members in kept:
            duplicates.append(str(reference.get("uid", "")))
        else:
            kept[members] = reference
    if not duplicates:
        return []
    metadata["ownerReferences"] = list(kept.values())
    return [_DUPLICATE_OWNERS + ", ".join(duplicates)]


def check_versions(
    resource: Resource, metadata: JsonObject, before: JsonObject, strategy: KindStrategy
) -> None:
    """Reject an update based on another version or on another object of the name.

    `before` is the metadata of the stored object.
    """
    name, uid = before["name"], metadata.get("uid")
    if uid and uid != before["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
        )
        raise conflict(resource.plural, resource.group, name, why)
    version = metadata.get("resourceVersion")
    if version in (None, "", "0"):
        if not strategy.allows_unconditional_update:
            cause = invalid_value("metadata.resourceVersion", 0, "must be specified for an update")
            raise invalid_object(resource.plural, resource.group, name, [cause])
    elif version != before["resourceVersion"]:
        raise stale(resource.plural, resource.group, name)
