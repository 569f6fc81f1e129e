"""The subresources: Bindings and Scales, and the requests that need running containers.

A scheduler assigns a node to a pending pod by a Binding. The Binding is not stored; the pod gets
its node, annotations and labels, and the topology labels of the node. A pod is assigned once: a
second Binding, one for another pod of that name, or one for a pod that is terminating or has a
scheduling gate is a conflict. As in kube-apiserver, a Binding neither changes the generation nor
owns fields.

Autoscalers read and write the replicas of a workload as a Scale (autoscaling/v1). A Scale is not
stored: it is derived from the workload, and writing one changes the workload.

Logs, exec, attach and port-forward need running containers, which this server does not have: a pod
of a lab is a network namespace with a listener. The errors name the alternative; kubectl shows them
as they are. Only containers that have ended and left a message have a log.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Final

import msgspec

from keepclose.apiserver.registry.metadata import selector_text
from keepclose.apiserver.resources import BINDINGS, BY_KIND, Resource
from keepclose.apiserver.serving.object_meta import assign_namespace
from keepclose.apiserver.serving.options import RequestTarget
from keepclose.apiserver.serving.writing import timestamp
from keepclose.apiserver.status_errors import (
    StatusError,
    bad_request,
    conflict,
    invalid_object,
    not_found,
)
from keepclose.apiserver.storage.entries import ObjectStore
from keepclose.model.field_errors import FieldError, not_supported, render_value, required
from keepclose.model.field_errors import invalid as invalid_value
from keepclose.model.json_values import JsonObject
from keepclose.model.workload import NOT_NEGATIVE

SUCCESS: Final[JsonObject] = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Success",
    "code": 201,
}
_PODS: Final = BY_KIND["v1", "Pod"]
_NODES: Final = BY_KIND["v1", "Node"]
_TARGET_KIND: Final = "Node"
_SCHEDULED: Final = "PodScheduled"
_TOPOLOGY_LABELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_SCALE_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_NO_CONTAINERS: Final = "no containers run here, pods of a keepclose lab are network namespaces"
_match_container_path = re.compile(
    r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/(log|exec|attach|portforward|proxy)(?:/|$)"
).match


def bind_pod(
    store: ObjectStore, target: RequestTarget, binding: JsonObject, *, dry_run: bool = False
) -> None:
    """Assign the pod to the node that a checked Binding names. Raises StatusError.

    The target is the subresource `binding` of the pod, or the bindings of a namespace, where the
    name of the pod is that of the Binding.
    """
    metadata, node_reference = binding["metadata"], binding.get("target") or {}
    assign_namespace(store, target, metadata)
    labels = dict(metadata.get("labels") or {})
    if target.resource is BINDINGS:
        # NB: here kube-apiserver replaces the uid of the Binding and does not check it.
        metadata.pop("uid", None)
        name = metadata.get("name") or ""
    else:
        name = target.name
        labels |= _topology_labels_of(store, node_reference)
    if name != (metadata.get("name") or ""):
        raise bad_request("name in URL does not match name in Binding object")
    _check_node_reference(node_reference)
    _check_segment(name)
    entry = store.get(_PODS.store, target.namespace, name)
    if entry is None:
        raise not_found(_PODS.plural, _PODS.group, name)
    pod: JsonObject = msgspec.json.decode(entry.data)
    _check_pod(pod, metadata)
    _assign(
        pod, node_reference["name"], annotations=metadata.get("annotations") or {}, labels=labels
    )
    if not dry_run:
        store.update(_PODS.store, pod, expected=entry.version)


def _topology_labels_of(store: ObjectStore, node_reference: JsonObject) -> dict[str, str]:
    """Return the topology labels of the node; {} if it does not exist."""
    if node_reference.get("kind") != _TARGET_KIND:
        return {}
    entry = store.get(_NODES.store, "", node_reference.get("name") or "")
    if entry is None:
        return {}
    labels = msgspec.json.decode(entry.data)["metadata"].get("labels") or {}
    return {key: labels[key] for key in _TOPOLOGY_LABELS if key in labels}


def _check_node_reference(node_reference: JsonObject) -> None:
    causes: list[FieldError] = []
    if node_reference.get("kind") not in (None, "", _TARGET_KIND):
        causes.append(
            not_supported("target.kind", node_reference["kind"], (_TARGET_KIND, "<empty>"))
        )
    if not node_reference.get("name"):
        causes.append(required("target.name"))
    if causes:
        texts = ", ".join(map(str, causes))
        # NB: kube-apiserver answers an invalid Binding with 500.
        raise StatusError(500, "", texts if len(causes) == 1 else f"[{texts}]")


def _check_segment(name: str) -> None:
    """Reject a name that cannot be a path segment."""
    if not name:
        raise bad_request("Name parameter required.")
    problems = [f"may not contain '{character}'" for character in ("/", "%") if character in name]
    if name in (".", ".."):
        problems = [f"may not be '{name}'"]
    if problems:
        raise bad_request(f"Name parameter invalid: {render_value(name)}: {';'.join(problems)}")


def _check_pod(pod: JsonObject, binding_metadata: JsonObject) -> None:
    stored, spec = pod["metadata"], pod["spec"]
    name = stored["name"]
    for key, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if binding_metadata.get(key) and binding_metadata[key] != stored[key]:
            why = (
                f"Precondition failed: {title} in precondition: {binding_metadata[key]}, "
                f"{title} in object meta: {stored[key]}"
            )
            raise conflict(_PODS.plural, _PODS.group, name, why)
    if stored.get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
    elif spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    elif spec.get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
    else:
        return
    raise conflict(f"{_PODS.plural}/binding", _PODS.group, name, why)


def _assign(
    pod: JsonObject, node: str, *, annotations: dict[str, str], labels: dict[str, str]
) -> None:
    metadata = pod["metadata"]
    for key, added in (("annotations", annotations), ("labels", labels)):
        if added:
            metadata[key] = (metadata.get(key) or {}) | added
    pod["spec"]["nodeName"] = node
    status: JsonObject = pod.setdefault("status", {})
    # The nomination ends with the assignment.
    status.pop("nominatedNodeName", None)
    conditions: list[JsonObject] = status.get("conditions") or []
    positions = (
        position for position, current in enumerate(conditions) if current.get("type") == _SCHEDULED
    )
    index = next(positions, None)
    before = {} if index is None else conditions[index]
    since = before.get("lastTransitionTime") if before.get("status") == "True" else None
    condition = {
        "type": _SCHEDULED,
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": since or timestamp(),
    }
    if index is None:
        conditions.append(condition)
    else:
        conditions[index] = condition
    status["conditions"] = conditions


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
        "metadata": {key: metadata[key] for key in _SCALE_METADATA if key in metadata},
        # NB: kube-apiserver omits replicas of 0.
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def write_scale(resource: Resource, workload: JsonObject, scale: JsonObject) -> JsonObject:
    """Return the workload with the replicas of a written Scale. Raises StatusError.

    The workload takes the resourceVersion and the uid of the Scale, so that a write based on an
    old version is rejected like that of the workload itself.
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


def log_target(path: str) -> RequestTarget | None:
    """Return the pod whose log a path names; None for other paths."""
    match = _match_container_path(path)
    if match is None or match[3] != "log":
        return None
    return RequestTarget(_PODS, match[1], match[2], "log")


def read_log(store: ObjectStore, target: RequestTarget, container: str) -> bytes | None:
    """Return what a container of a pod logged; None if none of its containers kept a log.

    The kubelets of a lab report the log of a container that has ended as its termination message.
    """
    entry = store.get(_PODS.store, target.namespace, target.name)
    if entry is None:
        return None
    statuses = (msgspec.json.decode(entry.data).get("status") or {}).get("containerStatuses") or ()
    logs = {
        status.get("name"): ended["message"]
        for status in statuses
        if "message" in (ended := (status.get("state") or {}).get("terminated") or {})
    }
    text = logs.get(container or next(iter(logs), ""))
    return None if text is None else str(text).encode()


def container_request_error(path: str) -> str:
    """Return why a request for a running container is rejected; "" for other requests."""
    match = _match_container_path(path)
    if match is None:
        return ""
    namespace, pod, subresource = match.groups()
    alternative = f"use: keepclose lab exec {pod} -- COMMAND"
    if subresource == "log":
        alternative = f"see what its kubelet did with: kubectl describe pod -n {namespace} {pod}"
    elif subresource in ("portforward", "proxy"):
        alternative = (
            f"reach its address with: keepclose lab exec outside -- COMMAND, or {alternative[5:]}"
        )
    return f"pods/{subresource} is not served: {_NO_CONTAINERS}; {alternative}"


def reject_container_request(path: str) -> None:
    """Raise StatusError when the request needs a running container."""
    why = container_request_error(path)
    if why:
        raise StatusError(501, "NotImplemented", why, details={})
