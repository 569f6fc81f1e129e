"""A Binding gives a node to a pod that waits for one; it is how schedulers write.

Nothing of the Binding is stored but what goes to the pod: the node, annotations, labels, and those
labels of the node that say where it is. The pod gets the node once: a second Binding, one for
another pod of that name, or one for a pod that is leaving or held back by a gate is a conflict. As
in kube-apiserver a Binding is no change of the pod's spec: it counts no generation and owns no
field.
"""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Final

import msgspec

from keepclose.apiserver.registry.metadata import selector_text
from keepclose.apiserver.resources import BINDINGS, BY_KIND, Resource
from keepclose.apiserver.serving.object_meta import settle_namespace
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
_PLACES: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
_SHARED: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_NO_CONTAINERS: Final = "no containers run here, pods of a keepclose lab are network namespaces"
_find = re.compile(
    r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/(log|exec|attach|portforward|proxy)(?:/|$)"
).match


def bind_pod(
    store: ObjectStore, target: RequestTarget, binding: JsonObject, *, dry_run: bool = False
) -> None:
    """Give the pod the node that a checked Binding names; raises a Failure where it cannot.

    The target is the pod's own `binding`, or the bindings of a namespace, where the name of the pod
    is that of the Binding.
    """
    metadata, aim = binding["metadata"], binding.get("target") or {}
    settle_namespace(store, target, metadata)
    labels = dict(metadata.get("labels") or {})
    if target.resource is BINDINGS:
        # NB: here a uid is taken for one that the server is to give, and is not looked at.
        metadata.pop("uid", None)
        name = metadata.get("name") or ""
    else:
        name = target.name
        labels |= _places_of(store, aim)
    if name != (metadata.get("name") or ""):
        raise bad_request("name in URL does not match name in Binding object")
    _check_aim(aim)
    _check_segment(name)
    entry = store.get(_PODS.store, target.namespace, name)
    if entry is None:
        raise not_found(_PODS.plural, _PODS.group, name)
    pod: JsonObject = msgspec.json.decode(entry.data)
    _check_pod(pod, metadata)
    _assign(pod, aim["name"], annotations=metadata.get("annotations") or {}, labels=labels)
    if not dry_run:
        store.update(_PODS.store, pod, expected=entry.version)


def _places_of(store: ObjectStore, aim: JsonObject) -> dict[str, str]:
    """Return the labels of the node that say where it is; of a node that is not there none."""
    if aim.get("kind") != _TARGET_KIND:
        return {}
    entry = store.get(_NODES.store, "", aim.get("name") or "")
    if entry is None:
        return {}
    labels = msgspec.json.decode(entry.data)["metadata"].get("labels") or {}
    return {key: labels[key] for key in _PLACES if key in labels}


def _check_aim(aim: JsonObject) -> None:
    causes: list[FieldError] = []
    if aim.get("kind") not in (None, "", _TARGET_KIND):
        causes.append(not_supported("target.kind", aim["kind"], (_TARGET_KIND, "<empty>")))
    if not aim.get("name"):
        causes.append(required("target.name"))
    if causes:
        texts = ", ".join(map(str, causes))
        # NB: kube-apiserver takes what is wrong with a Binding for a fault of its own.
        raise StatusError(500, "", texts if len(causes) == 1 else f"[{texts}]")


def _check_segment(name: str) -> None:
    """Refuse a name that could not stand in a path."""
    if not name:
        raise bad_request("Name parameter required.")
    problems = [f"may not contain '{one}'" for one in ("/", "%") if one in name]
    if name in (".", ".."):
        problems = [f"may not be '{name}'"]
    if problems:
        raise bad_request(f"Name parameter invalid: {render_value(name)}: {';'.join(problems)}")


def _check_pod(pod: JsonObject, wanted: JsonObject) -> None:
    stored, spec = pod["metadata"], pod["spec"]
    name = stored["name"]
    for key, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(key) and wanted[key] != stored[key]:
            why = (
                f"Precondition failed: {title} in precondition: {wanted[key]}, "
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
    for key, given in (("annotations", annotations), ("labels", labels)):
        if given:
            metadata[key] = (metadata.get(key) or {}) | given
    pod["spec"]["nodeName"] = node
    status: JsonObject = pod.setdefault("status", {})
    # The hint has come true, or not; either way it is over.
    status.pop("nominatedNodeName", None)
    conditions: list[JsonObject] = status.get("conditions") or []
    places = (place for place, one in enumerate(conditions) if one.get("type") == _SCHEDULED)
    found = next(places, None)
    before = {} if found is None else conditions[found]
    since = before.get("lastTransitionTime") if before.get("status") == "True" else None
    condition = {
        "type": _SCHEDULED,
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": since or timestamp(),
    }
    if found is None:
        conditions.append(condition)
    else:
        conditions[found] = condition
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


def refusal_of(path: str) -> str:
    """Return why a request for a running container is refused; "" when it is about none."""
    match = _find(path)
    if match is None:
        return ""
    namespace, pod, subresource = match.groups()
    instead = f"use: keepclose lab exec {pod} -- COMMAND"
    if subresource == "log":
        instead = f"see what its kubelet did with: kubectl describe pod -n {namespace} {pod}"
    elif subresource in ("portforward", "proxy"):
        instead = f"reach its address with: keepclose lab exec outside -- COMMAND, or {instead[5:]}"
    return f"pods/{subresource} is not served: {_NO_CONTAINERS}; {instead}"


def refuse_container_request(path: str) -> None:
    """Raise a Failure when the request needs a running container."""
    why = refusal_of(path)
    if why:
        raise StatusError(501, "NotImplemented", why, details={})
