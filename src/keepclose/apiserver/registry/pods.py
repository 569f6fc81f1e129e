"""Writes and deletions of Pods.

Few fields of a pod's spec may change: images, a shorter deadline, additional tolerations. A pod on
a node is deleted with a grace period; a pod without a node, or one that has ended, is removed at
once.
"""

from __future__ import annotations

from copy import deepcopy
from difflib import unified_diff
from typing import Final

import msgspec

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.registry.pod_templates import (
    containers_of,
    default_pod,
    default_pod_spec,
    hostname_warnings,
    pod_causes,
    quality_of_service,
    set_admission_defaults,
)
from keepclose.apiserver.registry.strategy import ObjectWrite, PlainStrategy, same
from keepclose.model.field_errors import FieldError, forbidden_field, invalid, required
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import IMMUTABLE
from keepclose.model.workload import Pod, validate_pod

FIXED_SPEC: Final = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_ENDED: Final = ("Succeeded", "Failed")
_GATED: Final = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}


class PodStrategy(PlainStrategy):
    """Strategy of Pods."""

    counts_generations = True
    has_status = True
    returns_deleted = True
    kept_by_status_updates = ("ownerReferences",)

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set the defaults of a pod and make its address fields agree."""
        spec = write.new["spec"] = write.new.get("spec") or {}
        default_pod_spec(spec)
        default_pod(spec)
        status = write.new.get("status") or {}
        _complete_addresses(status)
        for condition in status.get("conditions") or ():
            # An absent time is written as null, and null has a field manager.
            condition.setdefault("lastProbeTime", None)
            condition.setdefault("lastTransitionTime", None)

    def prepare_create(self, write: ObjectWrite) -> None:
        """Make the pod Pending, with what admission adds."""
        super().prepare_create(write)
        spec = write.new["spec"]
        set_admission_defaults(spec)
        status = write.new["status"] = {"phase": "Pending", "qosClass": quality_of_service(spec)}
        if spec.get("schedulingGates"):
            status["conditions"] = [{**_GATED, "lastTransitionTime": write.now}]

    def prepare_update(self, write: ObjectWrite) -> None:
        """Keep the status, or with a status update everything else."""
        if not write.subresource:
            # NB: admission comes first; the fields that it adds again do not count as a change.
            set_admission_defaults(write.new["spec"])
        super().prepare_update(write)
        if write.subresource == "status":
            status, before = write.new.setdefault("status", {}), write.old.get("status") or {}
            _reconcile_addresses(status, before)
            _keep_set_once(status, before)

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the pod, or of what an update changed."""
        if write.is_create:
            return pod_causes(write.new["spec"], write.read_new(Pod))
        return _change_causes(write.new["spec"], write.old["spec"])

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the reported status."""
        causes = beyond_metadata(validate_pod(write.read_new(Pod)))
        # The single address is in the list too, where it is validated.
        address_causes = [cause for cause in causes if cause.field.startswith("status.podIPs")]
        status, before = write.new.get("status") or {}, write.old.get("status") or {}
        return _reported_causes(status, before) + address_causes

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return a warning when the name of a new pod is no good host name."""
        return hostname_warnings(write.new, "the Pod's hostname") if write.is_create else []

    def grace_period(self, stored: JsonObject, asked: int | None) -> int | None:
        """Return the grace period in seconds; 0 for a pod without a node and one that has ended."""
        spec = stored.get("spec") or {}
        period = spec.get("terminationGracePeriodSeconds") or 0 if asked is None else asked
        if not spec.get("nodeName") or (stored.get("status") or {}).get("phase") in _ENDED:
            return 0
        return period if period >= 0 else 1


def _reported_causes(status: JsonObject, before: JsonObject) -> list[FieldError]:
    reported = {
        f"status.conditions[{place}].observedGeneration": condition
        for place, condition in enumerate(status.get("conditions") or ())
    }
    reported["status.observedGeneration"] = status
    causes = [
        invalid(field, value["observedGeneration"], "must be a non-negative integer")
        for field, value in reported.items()
        if (value.get("observedGeneration") or 0) < 0
    ]
    if before.get("qosClass") and status.get("qosClass") != before["qosClass"]:
        causes.append(invalid("status.qosClass", status.get("qosClass"), IMMUTABLE))
    return causes


def _complete_addresses(status: JsonObject) -> None:
    """Fill the empty one of podIP and podIPs from the other."""
    first, addresses = status.get("podIP") or "", status.get("podIPs") or []
    if addresses and not first:
        status["podIP"] = addresses[0].get("ip", "")
    elif first and not addresses:
        status["podIPs"] = [{"ip": first}]


def _reconcile_addresses(status: JsonObject, before: JsonObject) -> None:
    """Make podIP and podIPs agree; a changed podIP wins over the list."""
    first, addresses = status.get("podIP") or "", status.get("podIPs") or []
    if first and (not addresses or addresses[0].get("ip") != first):
        if first == before.get("podIP") and addresses:
            status["podIP"] = addresses[0].get("ip", "")
        else:
            status["podIPs"] = [{"ip": first}]
    elif addresses and not first:
        status["podIP"] = addresses[0].get("ip", "")


def _keep_set_once(status: JsonObject, before: JsonObject) -> None:
    """Keep what a status update cannot remove: the QoS class and observed generations."""
    if not status.get("qosClass") and before.get("qosClass"):
        status["qosClass"] = before["qosClass"]
    _keep_observed_generation(status, before)
    # Several conditions may have one type; they are paired in their order.
    stored: dict[str, list[JsonObject]] = {}
    for condition in before.get("conditions") or ():
        stored.setdefault(condition.get("type", ""), []).append(condition)
    for condition in status.get("conditions") or ():
        same_type = stored.get(condition.get("type", ""))
        if same_type:
            _keep_observed_generation(condition, same_type.pop(0))


def _keep_observed_generation(new: JsonObject, old: JsonObject) -> None:
    if not new.get("observedGeneration") and old.get("observedGeneration"):
        new["observedGeneration"] = old["observedGeneration"]


def _change_causes(spec: JsonObject, before: JsonObject) -> list[FieldError]:
    for key in ("containers", "initContainers"):
        if len(spec.get(key) or ()) != len(before.get(key) or ()):
            return [forbidden_field(f"spec.{key}", "pod updates may not add or remove containers")]
    causes: list[FieldError] = []
    for key in ("containers", "initContainers"):
        causes += [
            required(f"spec.{key}[{index}].image")
            for index, container in enumerate(spec.get(key) or ())
            if not container.get("image")
        ]
    causes += _deadline_causes(spec, before)
    causes += _toleration_causes(spec.get("tolerations") or [], before.get("tolerations") or [])
    causes += _gate_causes(spec.get("schedulingGates") or [], before.get("schedulingGates") or [])
    changed, fixed = _fixed_part(spec), _fixed_part(before)
    for container, stored in zip(containers_of(changed), containers_of(fixed), strict=True):
        container["image"] = stored.get("image", "")
    if (before.get("terminationGracePeriodSeconds") or 0) < 0:
        changed["terminationGracePeriodSeconds"] = before["terminationGracePeriodSeconds"]
    if not same(changed, fixed):
        causes.append(forbidden_field("spec", f"{FIXED_SPEC}\n{_difference(fixed, changed)}"))
    return causes


def _fixed_part(spec: JsonObject) -> JsonObject:
    copy = deepcopy(spec)
    for key in ("activeDeadlineSeconds", "schedulingGates", "tolerations"):
        copy.pop(key, None)
    return copy


def _toleration_causes(now: list[JsonObject], before: list[JsonObject]) -> list[FieldError]:
    without_seconds = list(map(_without_seconds, now))
    if all(_without_seconds(toleration) in without_seconds for toleration in before):
        return []
    detail = "existing toleration can not be modified except its tolerationSeconds"
    return [forbidden_field("spec.tolerations", detail)]


def _gate_causes(now: list[JsonObject], before: list[JsonObject]) -> list[FieldError]:
    stored_names = [gate.get("name") for gate in before]
    return [
        forbidden_field(
            f"spec.schedulingGates[{index}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name', '')}'",
        )
        for index, gate in enumerate(now)
        if gate.get("name") not in stored_names
    ]


def _deadline_causes(spec: JsonObject, before: JsonObject) -> list[FieldError]:
    field, was = "spec.activeDeadlineSeconds", before.get("activeDeadlineSeconds")
    now = spec.get("activeDeadlineSeconds")
    if now is None:
        if was is None:
            return []
        return [invalid(field, None, "must not update from a positive integer to nil value")]
    if not 1 <= now < 2**31:
        return [invalid(field, now, f"must be between 1 and {2**31 - 1}, inclusive")]
    if was is not None and was < now:
        return [invalid(field, now, "must be less than or equal to previous value")]
    return []


def _without_seconds(toleration: JsonObject) -> JsonObject:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _difference(before: JsonObject, after: JsonObject) -> str:
    """Return the lines that differ, with three around each, as upstream shows them."""
    old, new = (
        msgspec.json.format(msgspec.json.encode(spec, order="sorted"), indent=1)
        .decode()
        .splitlines()
        for spec in (before, after)
    )
    return "".join(f"{line}\n" for line in list(unified_diff(old, new, lineterm=""))[2:])
