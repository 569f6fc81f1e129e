"""What becomes of a Node when it is written.

A node may bring its status when it is created. What it can give is what it has unless it says
less. Its range of pod addresses and its provider's name stay once they are set.
"""

from __future__ import annotations

from typing import Any, Final

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.registry.strategy import Context
from keepclose.apiserver.strategies.plain import PlainStrategy, keep_all_but_status
from keepclose.apiserver.strategies.typed import read_as
from keepclose.model.addresses import cidr_causes, family_of
from keepclose.model.field_errors import (
    Cause,
    CauseType,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from keepclose.model.gates import Gate
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import label_value, qualified_name
from keepclose.model.workload import Node, validate_node

TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE_INFO: Final = (
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
)


class NodeStrategy(PlainStrategy):
    """Machines."""

    has_status = True

    def prepare_create(self, new: JsonObject, context: Context) -> None:
        """Set defaults; a new node may bring its status."""
        del context
        new.setdefault("spec", {})
        new["status"] = new.get("status") or {}
        self.set_defaults(new)
        _set_status_defaults(new["status"])

    def prepare_update(
        self, new: JsonObject, old: JsonObject, context: Context, *, subresource: str = ""
    ) -> None:
        """Keep the status, or with a status update everything else."""
        super().prepare_update(new, old, context, subresource=subresource)
        if subresource == "status":
            keep_all_but_status(new, old)
            new["status"] = new.get("status") or {}
            _set_status_defaults(new["status"])

    def set_defaults(self, new: JsonObject) -> None:
        """Make the two fields for ranges of pod addresses agree."""
        spec = new.get("spec") or {}
        first, ranges = spec.get("podCIDR"), spec.get("podCIDRs")
        if first and (not ranges or ranges[0] != first):
            # The single range wins over a list that begins with another one.
            spec["podCIDRs"] = [first]
        elif ranges and not first:
            spec["podCIDR"] = ranges[0]

    def causes(self, new: JsonObject, old: JsonObject | None, context: Context) -> list[Cause]:
        """Return what is wrong with the node."""
        spec: JsonObject = new.get("spec") or {}
        causes = _taint_causes(spec.get("taints") or [])
        causes += beyond_metadata(validate_node(read_as(Node, new)))
        strict = context.gates.on(Gate.STRICT_IP_CIDR_VALIDATION)
        causes += _range_causes(spec.get("podCIDRs") or [], strict=strict)
        return causes if old is None else causes + _change_causes(spec, old.get("spec") or {})

    def status_causes(self, new: JsonObject, old: JsonObject, context: Context) -> list[Cause]:
        """Return what is wrong with what the node reports."""
        del old, context
        causes = beyond_metadata(validate_node(read_as(Node, new)))
        seen: set[frozenset[tuple[str, Any]]] = set()
        for place, address in enumerate(new["status"].get("addresses") or ()):
            members = frozenset(address.items())
            if members in seen:
                shown = {"Type": address.get("type", ""), "Address": address.get("address", "")}
                causes.append(duplicate(f"status.addresses[{place}]", shown))
            seen.add(members)
        return causes


def _set_status_defaults(status: JsonObject) -> None:
    if status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    info = status.setdefault("nodeInfo", {})
    for key in _NODE_INFO:
        info.setdefault(key, "")


def _taint_causes(taints: list[JsonObject]) -> list[Cause]:
    causes: list[Cause] = []
    seen: set[tuple[Any, Any]] = set()
    for place, taint in enumerate(taints):
        # NB: the path is upstream's, although taints stand in the spec.
        field = f"metadata.taints[{place}]"
        key, value, effect = (taint.get(name, "") for name in ("key", "value", "effect"))
        causes += [invalid(f"{field}.key", key, text) for text in qualified_name(key)]
        causes += [invalid(f"{field}.value", value, text) for text in label_value(value)]
        if not effect:
            causes.append(required(f"{field}.effect"))
        elif effect not in TAINT_EFFECTS:
            causes.append(not_supported(f"{field}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            shown = {"Key": key, "Value": value, "Effect": effect, "TimeAdded": None}
            detail = "taints must be unique by key and effect pair"
            causes.append(Cause(CauseType.DUPLICATE, field, detail, shown))
        seen.add((key, effect))
    return causes


def _range_causes(ranges: list[str], *, strict: bool) -> list[Cause]:
    field = "spec.podCIDRs"
    causes: list[Cause] = []
    for place, one in enumerate(ranges):
        causes += cidr_causes(f"{field}[{place}]", one, strict=strict)
    families = {family_of(one.partition("/")[0]) for one in ranges}
    if len(ranges) > 1 and (len(families) < 2 or len(ranges) > 2):
        detail = "may specify no more than one CIDR for each IP family"
        causes.append(invalid(field, ranges, detail))
    return causes


def _change_causes(spec: JsonObject, before: JsonObject) -> list[Cause]:
    causes: list[Cause] = []
    for key, name in (("podCIDRs", "podCIDR"), ("providerID", "providerID")):
        if before.get(key) and spec.get(key) != before[key]:
            detail = f'node updates may not change {name} except from "" to valid'
            causes.append(forbidden(f"spec.{key}", detail))
    return causes
