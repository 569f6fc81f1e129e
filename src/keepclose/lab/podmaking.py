"""The pods that workloads make from their templates.

A pod gets the template's labels, annotations and whole spec, and a reference to the workload that
controls it. Names are made here and not by the server, so that a request whose answer was lost can
be told from one that never came.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from keepclose.lab.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.lab.workloads.pods import PodSpec, WorkloadPod
from keepclose.lab.workloads.types import DaemonSet, ReplicaSet, owned_by
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_LENGTH: Final = 5
# As of the server, so that a name with its suffix is still one.
_PREFIX_LENGTH: Final = 63 - _SUFFIX_LENGTH - 1
# Daemons stay on nodes that others leave or avoid.
_DAEMON_TOLERATIONS: Final = (
    ("not-ready", NO_EXECUTE),
    ("unreachable", NO_EXECUTE),
    ("disk-pressure", NO_SCHEDULE),
    ("memory-pressure", NO_SCHEDULE),
    ("pid-pressure", NO_SCHEDULE),
    ("unschedulable", NO_SCHEDULE),
)
_HOST_TOLERATION: Final = ("network-unavailable", NO_SCHEDULE)


def name_pod(owner: str, random: Random) -> str:
    """Return a name for a pod of a workload."""
    suffix = "".join(random.choices(_LETTERS, k=_SUFFIX_LENGTH))
    return f"{owner[:_PREFIX_LENGTH]}-{suffix}"


def make_pod(
    owner: ReplicaSet | DaemonSet,
    *,
    name: str,
    labels: Mapping[str, str] | None = None,
    spec: JsonObject | None = None,
) -> JsonObject:
    """Return a pod of the workload's template with more labels, or with another spec."""
    template = owner.spec.template
    meta = template.get("metadata") or {}
    metadata: JsonObject = {
        "name": name,
        "generateName": f"{owner.metadata.name}-",
        "namespace": owner.metadata.namespace,
        "labels": {**(meta.get("labels") or {}), **(labels or {})},
        "ownerReferences": [owned_by(owner)],
    }
    for key in ("annotations", "finalizers"):
        if meta.get(key):
            metadata[key] = meta[key]
    return {
        "metadata": metadata,
        "spec": dict(template.get("spec") or {}) if spec is None else spec,
    }


def put_on_node(pod: JsonObject, node: str) -> JsonObject:
    """Return the pod bound to the node; without a node it waits for one."""
    return {**pod, "spec": {**pod["spec"], "nodeName": node}} if node else pod


def daemon_spec(template: JsonObject) -> JsonObject:
    """Return the spec of a daemon's pod: the template's, and more tolerations."""
    spec: JsonObject = dict(template.get("spec") or {})
    given: list[Any] = list(spec.get("tolerations") or ())
    added = (*_DAEMON_TOLERATIONS, *((_HOST_TOLERATION,) if spec.get("hostNetwork") else ()))
    for word, effect in added:
        toleration = {
            "key": f"node.kubernetes.io/{word}",
            "operator": "Exists",
            "effect": effect,
        }
        if toleration not in given:
            given.append(toleration)
    return {**spec, "tolerations": given}


def read_pod(pod: JsonObject) -> WorkloadPod | None:
    """Return the pod as scheduling sees it, None when it cannot be read."""
    found = convert_as(WorkloadPod, pod)
    return None if isinstance(found, Rejected) else found


def read_spec(spec: JsonObject) -> PodSpec:
    """Return the spec as scheduling sees it; one that cannot be read asks for nothing."""
    found = read_pod({"metadata": {"name": "template"}, "spec": spec})
    return PodSpec() if found is None else found.spec
