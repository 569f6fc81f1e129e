"""How many replicas a workload has, as the Scale (autoscaling/v1) that autoscalers read and write.

A Scale is not stored: it is made from the workload, and writing one changes the workload.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Final

from keepclose.apiserver.registry.resources import Resource
from keepclose.apiserver.status_errors import bad_request, invalid_object
from keepclose.apiserver.strategies.label_selectors import selector_text
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.json_values import JsonObject
from keepclose.model.workload import NOT_NEGATIVE

_SHARED: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(resource: Resource, workload: JsonObject) -> JsonObject:
    """Return the Scale of a stored workload."""
    del resource
    metadata, spec = workload["metadata"], workload.get("spec") or {}
    status: JsonObject = {"replicas": (workload.get("status") or {}).get("replicas", 0)}
    if text := selector_text(spec.get("selector")):
        status["selector"] = text
    replicas = spec.get("replicas", 0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in _SHARED if key in metadata},
        # NB: no replicas is written as no member at all.
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def write_scale(resource: Resource, workload: JsonObject, scale: JsonObject) -> JsonObject:
    """Return the workload as a written Scale wants it; raises a Failure when it cannot.

    The resourceVersion and the uid are the Scale's where it has some, so that a write made from an
    old one is refused like that of the workload itself.
    """
    del resource
    metadata, before = scale.get("metadata") or {}, workload["metadata"]
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if name != before["name"]:
        raise bad_request(
            f"the name of the object ({name or ''}) does not match the name on the URL "
            f"({before['name']})"
        )
    if namespace and namespace != before.get("namespace"):
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if replicas < 0:
        cause = invalid_value("spec.replicas", replicas, NOT_NEGATIVE)
        raise invalid_object("Scale", "autoscaling", before["name"], [cause])
    changed = deepcopy(workload)
    changed["spec"]["replicas"] = replicas
    changed["metadata"].pop("resourceVersion", None)
    for key in ("resourceVersion", "uid"):
        if metadata.get(key):
            changed["metadata"][key] = metadata[key]
    return changed
