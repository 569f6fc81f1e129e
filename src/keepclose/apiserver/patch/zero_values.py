"""What a new object is compared with, and what an endpoint does not write.

A real server compares a created object with an empty one of its Go type. Some fields of that are
there from the start, so their containers belong to no one. What an endpoint resets - the status
on the object itself, the rest on its status - belongs to nobody who writes there.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.patch.field_sets import FieldSet, set_of
from keepclose.apiserver.schema.types import Type, TypeForm
from keepclose.model.json_values import JsonObject

_TEMPLATE: Final[JsonObject] = {"metadata": {}, "spec": {"containers": None}}

# By the published name of the type; the others are derived from their fields.
_BLANKS: Final[dict[str, JsonObject]] = {
    "io.k8s.api.core.v1.Node": {
        "metadata": {},
        "spec": {},
        "status": {
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 0}},
            "nodeInfo": dict.fromkeys(
                (
                    "architecture",
                    "bootID",
                    "containerRuntimeVersion",
                    "kernelVersion",
                    "kubeProxyVersion",
                    "kubeletVersion",
                    "machineID",
                    "operatingSystem",
                    "osImage",
                    "systemUUID",
                ),
                "",
            ),
        },
    },
    "io.k8s.api.core.v1.Pod": {"metadata": {}, "spec": {"containers": None}, "status": {}},
    "io.k8s.api.core.v1.Service": {"metadata": {}, "spec": {}, "status": {"loadBalancer": {}}},
    "io.k8s.api.core.v1.Event": {
        "metadata": {},
        "eventTime": None,
        "firstTimestamp": None,
        "involvedObject": {},
        "lastTimestamp": None,
        "reportingComponent": "",
        "reportingInstance": "",
        "source": {},
    },
    "io.k8s.api.apps.v1.Deployment": {
        "metadata": {},
        "spec": {"selector": None, "strategy": {}, "template": _TEMPLATE},
        "status": {},
    },
    "io.k8s.api.apps.v1.ReplicaSet": {
        "metadata": {},
        "spec": {"selector": None, "template": _TEMPLATE},
        "status": {"replicas": 0},
    },
    "io.k8s.api.apps.v1.DaemonSet": {
        "metadata": {},
        "spec": {"selector": None, "template": _TEMPLATE, "updateStrategy": {}},
        "status": {
            "currentNumberScheduled": 0,
            "desiredNumberScheduled": 0,
            "numberMisscheduled": 0,
            "numberReady": 0,
        },
    },
    "io.k8s.api.discovery.v1.EndpointSlice": {
        "metadata": {},
        "addressType": "",
        "endpoints": None,
        "ports": None,
    },
    "io.k8s.api.events.v1.Event": {
        "metadata": {},
        "deprecatedFirstTimestamp": None,
        "deprecatedLastTimestamp": None,
        "deprecatedSource": {},
        "eventTime": None,
        "regarding": {},
    },
}

# Beyond everything but status and metadata.
_STATUS_RESETS: Final[dict[str, tuple[str, ...]]] = {
    "io.k8s.api.core.v1.Pod": ("metadata.deletionTimestamp", "metadata.ownerReferences"),
    "io.k8s.api.apps.v1.Deployment": ("metadata.labels",),
    "io.k8s.api.networking.v1.ServiceCIDR": ("metadata",),
}


def blank_of(described: Type) -> JsonObject:
    """Return the empty object of a type, not to be changed."""
    known = _BLANKS.get(described.name)
    if known is not None:
        return known
    named = ("metadata", "spec", "status")
    fields = described.fields
    return {name: {} for name in named if name in fields and fields[name].form is TypeForm.OBJECT}


class Resets:
    """Fields that do not count at an endpoint: whole top-level ones apart from deeper ones."""

    __slots__ = ("all", "deeper", "top")

    def __init__(self, fields: FieldSet) -> None:
        self.all = fields
        self.top = frozenset(step[2:] for step, below in fields.items() if not below)
        self.deeper: FieldSet = {step: below for step, below in fields.items() if below}


_RESETS: Final[dict[tuple[int, bool], tuple[Type, Resets]]] = {}


def resets_of(
    described: Type, subresource: str, ignored: FieldSet | tuple[str, ...] | None
) -> Resets:
    """Return what a write to an endpoint does not set.

    `ignored` is a set or names with dots; None means what is usual: status on the object itself,
    everything but status and metadata on its status.
    """
    if ignored is not None:
        return Resets(ignored if isinstance(ignored, dict) else set_of(*ignored))
    on_status = subresource == "status"
    known = _RESETS.get((id(described), on_status))
    if known is not None:
        return known[1]
    if on_status:
        kept = {"apiVersion", "kind", "metadata", "status"}
        names = [name for name in described.fields if name not in kept]
        names += _STATUS_RESETS.get(described.name, ())
    else:
        names = ["status"] if "status" in described.fields else []
    resets = Resets(set_of(*names))
    _RESETS[id(described), on_status] = described, resets
    return resets
