"""A Binding gives a node to a pod that waits for one; it is how schedulers write.

Nothing of the Binding is stored but what goes to the pod: the node, annotations, labels, and those
labels of the node that say where it is. The pod gets the node once: a second Binding, one for
another pod of that name, or one for a pod that is leaving or held back by a gate is a conflict. As
in kube-apiserver a Binding is no change of the pod's spec: it counts no generation and owns no
field.
"""

from __future__ import annotations

from typing import Final

import msgspec

from keepclose.apiserver.registry.resources import BINDINGS, BY_KIND
from keepclose.apiserver.serving.object_meta import settle_namespace
from keepclose.apiserver.serving.targets import Target
from keepclose.apiserver.serving.writing import timestamp
from keepclose.apiserver.status_errors import Failure, bad_request, conflict, not_found
from keepclose.apiserver.storage.access import ObjectStore
from keepclose.model.field_errors import Cause, not_supported, render_value, required
from keepclose.model.json_values import JsonObject

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


def bind_pod(
    store: ObjectStore, target: Target, binding: JsonObject, *, dry_run: bool = False
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
    causes: list[Cause] = []
    if aim.get("kind") not in (None, "", _TARGET_KIND):
        causes.append(not_supported("target.kind", aim["kind"], (_TARGET_KIND, "<empty>")))
    if not aim.get("name"):
        causes.append(required("target.name"))
    if causes:
        texts = ", ".join(map(str, causes))
        # NB: kube-apiserver takes what is wrong with a Binding for a fault of its own.
        raise Failure(500, "", texts if len(causes) == 1 else f"[{texts}]")


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
