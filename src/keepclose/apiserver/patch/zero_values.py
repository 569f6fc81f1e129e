"""The zero value that a new object is compared with, and the fields that an endpoint resets.

kube-apiserver compares a created object with the zero value of its Go type. Some fields of that
value are always present, so their containers have no owner. A write does not own the fields that
its endpoint resets: the status at the object itself, everything else at its status subresource.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.patch.field_sets import FieldSet, set_of
from keepclose.apiserver.schema.types import Type, TypeForm
from keepclose.model.json_values import JsonObject

_TEMPLATE: Final[JsonObject] = {"metadata": {}, "spec": {"containers": None}}
# By the published name of the type; the zero values of other types are derived from their fields.
_ZERO_VALUES: Final[dict[str, JsonObject]] = {
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
# Fields of metadata that the status subresource resets, besides all but status and metadata.
_STATUS_RESETS: Final[dict[str, tuple[str, ...]]] = {
    "io.k8s.api.core.v1.Pod": ("metadata.deletionTimestamp", "metadata.ownerReferences"),
    "io.k8s.api.apps.v1.Deployment": ("metadata.labels",),
    "io.k8s.api.networking.v1.ServiceCIDR": ("metadata",),
}


def zero_value_of(object_type: Type) -> JsonObject:
    """Return the zero value of a type; callers must not change it."""
    zero_value = _ZERO_VALUES.get(object_type.name)
    if zero_value is not None:
        return zero_value
    names = ("metadata", "spec", "status")
    fields = object_type.fields
    return {name: {} for name in names if name in fields and fields[name].form is TypeForm.OBJECT}


class Resets:
    """The fields that an endpoint resets: whole top-level fields apart from deeper ones."""

    __slots__ = ("all", "deeper", "top")

    def __init__(self, fields: FieldSet) -> None:
        self.all = fields
        self.top = frozenset(step[2:] for step, below in fields.items() if not below)
        self.deeper: FieldSet = {step: below for step, below in fields.items() if below}


_RESETS: Final[dict[tuple[int, bool], tuple[Type, Resets]]] = {}


def resets_of(
    object_type: Type, subresource: str, ignored: FieldSet | tuple[str, ...] | None
) -> Resets:
    """Return the fields that a write to an endpoint does not set.

    `ignored` is a set or dotted names; None means the default: status on the object itself,
    everything but status and metadata on its status subresource.
    """
    if ignored is not None:
        return Resets(ignored if isinstance(ignored, dict) else set_of(*ignored))
    on_status = subresource == "status"
    cached = _RESETS.get((id(object_type), on_status))
    if cached is not None:
        return cached[1]
    if on_status:
        kept = {"apiVersion", "kind", "metadata", "status"}
        names = [name for name in object_type.fields if name not in kept]
        names += _STATUS_RESETS.get(object_type.name, ())
    else:
        names = ["status"] if "status" in object_type.fields else []
    resets = Resets(set_of(*names))
    _RESETS[id(object_type), on_status] = object_type, resets
    return resets
