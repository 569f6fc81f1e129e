"""Writes of Deployments, ReplicaSets and DaemonSets.

Each has a pod template and a selector that must match the template and never changes. The
generation counts changes of the spec; that of a Deployment counts annotations too, because its
ReplicaSets get them. The limits of rolling updates are numbers or percentages of pods; Deployments
and DaemonSets differ in little but the wording of errors.
"""

from __future__ import annotations

import re
from typing import Any, Final

from keepclose.apiserver.registry.metadata import is_empty, selector_causes, selector_matches
from keepclose.apiserver.registry.pod_templates import (
    default_pod_spec,
    hostname_warnings,
    template_causes,
)
from keepclose.apiserver.registry.strategy import ObjectWrite, PlainStrategy, same
from keepclose.model.field_errors import (
    FieldError,
    forbidden_field,
    invalid,
    not_supported,
    required,
)
from keepclose.model.json_values import INT64_MAX, JsonObject, parse_natural
from keepclose.model.metadata_validation import IMMUTABLE
from keepclose.model.workload import NOT_NEGATIVE

TEMPLATE_GENERATION: Final = "deprecated.daemonset.template.generation"
_TEMPLATE: Final = "spec.template"
_BAD_PERCENT: Final = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)
_is_percent = re.compile("[0-9]+%").fullmatch


def rolling_causes(rolling: JsonObject, field: str, *, daemon: bool) -> list[FieldError]:
    """Return the validation errors of maxUnavailable and maxSurge."""
    causes: list[FieldError] = []
    order = ("maxUnavailable", "maxSurge")
    for key in order:
        causes += _int_or_percent_causes(rolling[key], f"{field}.{key}")
    if daemon:
        for key in order:
            causes += _over_100_percent_causes(rolling[key], f"{field}.{key}")
    unavailable, surge = (_number_of(rolling[key]) for key in order)
    if unavailable == 0 == surge:
        place = f"{field}.maxUnavailable"
        if daemon:
            causes.append(required(place, "cannot be 0 when maxSurge is 0"))
        else:
            detail = "may not be 0 when `maxSurge` is 0"
            causes.append(invalid(place, rolling["maxUnavailable"], detail))
    elif daemon and unavailable and surge:
        detail = "may not be set when maxUnavailable is non-zero"
        causes.append(invalid(f"{field}.maxSurge", rolling["maxSurge"], detail))
    if not daemon:
        causes += _over_100_percent_causes(rolling["maxUnavailable"], f"{field}.maxUnavailable")
    return causes


class WorkloadStrategy(PlainStrategy):
    """Strategy that all workloads share."""

    counts_generations = True
    has_status = True
    # Numbers of the spec and of the status that may not be negative.
    amounts: tuple[str, ...] = ()
    status_amounts: tuple[str, ...] = ()
    # Whether a create warns when the name makes no good host names.
    warns_of_names = True

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set the defaults of the template and the spec."""
        spec = write.new["spec"] = write.new.get("spec") or {}
        template = spec["template"] = spec.get("template") or {}
        template["metadata"] = template.get("metadata") or {}
        template["spec"] = template.get("spec") or {}
        default_pod_spec(template["spec"])

    def causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the spec; the selector is immutable."""
        spec = write.new["spec"]
        causes = _negative_causes(spec, "spec", self.amounts) + self.selector_and_template(spec)
        causes += self.strategy_causes(spec)
        selector = spec.get("selector")
        if not write.is_create and not same(selector, write.old["spec"].get("selector")):
            causes.append(invalid("spec.selector", selector, IMMUTABLE))
        return causes

    def selector_and_template(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the selector, the template, or both together."""
        selector, causes = spec.get("selector"), []
        if selector is None:
            causes.append(required("spec.selector"))
        else:
            invalid_parts = selector_causes(selector, "spec.selector")
            causes += invalid_parts
            if is_empty(selector):
                detail = "empty selector is invalid for deployment"
                causes.append(invalid("spec.selector", selector, detail))
            elif invalid_parts:
                causes.append(invalid("spec.selector", selector, "invalid label selector"))
                return causes
        return causes + self.template_and_policy(spec)

    def warnings(self, write: ObjectWrite) -> list[str]:
        """Return a warning when the name of a new workload makes no good host names."""
        if not write.is_create or not self.warns_of_names:
            return []
        return hostname_warnings(write.new, "Pod names and hostnames")

    def template_and_policy(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the template; the selector must be valid."""
        selector, template = spec.get("selector"), spec["template"]
        labels = template["metadata"].get("labels")
        causes: list[FieldError] = []
        if not selector_matches(selector, labels or {}):
            detail = "`selector` does not match template `labels`"
            causes.append(invalid(f"{_TEMPLATE}.metadata.labels", labels, detail))
        causes += template_causes(template, _TEMPLATE)
        policy = template["spec"].get("restartPolicy")
        if policy != "Always":
            causes.append(not_supported(f"{_TEMPLATE}.spec.restartPolicy", policy, ("Always",)))
        if template["spec"].get("activeDeadlineSeconds") is not None:
            kind = "DaemonSet" if self.resource.kind == "DaemonSet" else "ReplicaSet"
            detail = f"activeDeadlineSeconds in {kind} is not Supported"
            causes.append(forbidden_field(f"{_TEMPLATE}.spec.activeDeadlineSeconds", detail))
        return causes

    def strategy_causes(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the update strategy."""
        del spec
        return []

    def status_causes(self, write: ObjectWrite) -> list[FieldError]:
        """Return the validation errors of the numbers in the status."""
        status, before = write.new.get("status") or {}, write.old.get("status") or {}
        causes = _negative_causes(status, "status", self.status_amounts)
        total, ready = status.get("replicas", 0), status.get("readyReplicas", 0)
        if "replicas" in self.status_amounts:
            for key in (
                "fullyLabeledReplicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
            ):
                count = status.get(key, 0)
                if key in self.status_amounts and count > total:
                    detail = "cannot be greater than status.replicas"
                    causes.append(invalid(f"status.{key}", count, detail))
            available = status.get("availableReplicas", 0)
            if available > ready:
                detail = "cannot be greater than readyReplicas"
                causes.append(invalid("status.availableReplicas", available, detail))
        if "collisionCount" in self.status_amounts and before.get("collisionCount") is not None:
            count = status.get("collisionCount") or 0
            if count < before["collisionCount"]:
                causes.append(invalid("status.collisionCount", count, "cannot be decremented"))
        return causes


class DeploymentStrategy(WorkloadStrategy):
    """Strategy of Deployments."""

    kept_by_status_updates = ("labels",)
    amounts = ("replicas",)
    status_amounts = (
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    )

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set one replica, and rolling updates of 25 %."""
        super().set_defaults(write)
        spec = write.new["spec"]
        strategy = spec["strategy"] = spec.get("strategy") or {}
        strategy["type"] = strategy.get("type") or "RollingUpdate"
        if strategy["type"] == "RollingUpdate":
            rolling = strategy["rollingUpdate"] = strategy.get("rollingUpdate") or {}
            _default(rolling, maxUnavailable="25%", maxSurge="25%")
        _default(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)

    def is_new_generation(self, write: ObjectWrite) -> bool:
        """Return whether the spec or an annotation changed."""
        return super().is_new_generation(write) or not same(
            write.new["metadata"].get("annotations"), write.old["metadata"].get("annotations")
        )

    def strategy_causes(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the update strategy and the deadlines."""
        strategy = spec["strategy"]
        rolling = strategy.get("rollingUpdate")
        causes: list[FieldError] = []
        if strategy["type"] == "Recreate":
            if rolling is not None:
                detail = "may not be specified when strategy `type` is 'Recreate'"
                causes.append(forbidden_field("spec.strategy.rollingUpdate", detail))
        elif strategy["type"] == "RollingUpdate":
            causes += rolling_causes(rolling or {}, "spec.strategy.rollingUpdate", daemon=False)
        else:
            shown = {"Type": strategy["type"], "RollingUpdate": _shown(rolling)}
            causes.append(not_supported("spec.strategy", shown, ("Recreate", "RollingUpdate")))
        for key in ("minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"):
            causes += _negative_causes(spec, "spec", (key,))
        deadline = spec["progressDeadlineSeconds"]
        if deadline <= spec.get("minReadySeconds", 0):
            detail = "must be greater than minReadySeconds"
            causes.append(invalid("spec.progressDeadlineSeconds", deadline, detail))
        return causes


class ReplicaSetStrategy(WorkloadStrategy):
    """Strategy of ReplicaSets."""

    amounts = ("replicas", "minReadySeconds")
    status_amounts = (
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    )

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set one replica."""
        super().set_defaults(write)
        _default(write.new["spec"], replicas=1)

    def first_status(self) -> JsonObject:
        """Return a status of no replicas."""
        return {"replicas": 0}


class DaemonSetStrategy(WorkloadStrategy):
    """Strategy of DaemonSets."""

    warns_of_names = False
    status_amounts = (
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    )

    def set_defaults(self, write: ObjectWrite) -> None:
        """Set rolling updates of one pod at a time."""
        super().set_defaults(write)
        spec = write.new["spec"]
        strategy = spec["updateStrategy"] = spec.get("updateStrategy") or {}
        strategy["type"] = strategy.get("type") or "RollingUpdate"
        if strategy["type"] == "RollingUpdate":
            rolling = strategy["rollingUpdate"] = strategy.get("rollingUpdate") or {}
            _default(rolling, maxUnavailable=1, maxSurge=0)
        _default(spec, revisionHistoryLimit=10)
        if TEMPLATE_GENERATION not in (write.new["metadata"].get("annotations") or {}):
            _annotate(write.new, "0")

    def first_status(self) -> JsonObject:
        """Return a status of no pods."""
        return dict.fromkeys(self.status_amounts[:4], 0)

    def prepare_create(self, write: ObjectWrite) -> None:
        """Set the first generation of the template."""
        super().prepare_create(write)
        _annotate(write.new, "1")

    def prepare_update(self, write: ObjectWrite) -> None:
        """Count the generations of the template."""
        super().prepare_update(write)
        counted = (write.old["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "0")
        changed = not same(write.new["spec"].get("template"), write.old["spec"].get("template"))
        generation = parse_natural(counted)
        text = str(generation + 1) if changed and generation is not None else counted
        _annotate(write.new, text)

    def selector_and_template(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the selector, the template, or both together."""
        selector, causes = spec.get("selector"), []
        if selector is not None:
            causes += selector_causes(selector, "spec.selector")
        if causes:
            return causes + template_causes(spec["template"], _TEMPLATE)
        template_errors = self.template_and_policy(spec)
        if selector is not None and is_empty(selector):
            detail = "empty selector is invalid for daemonset"
            template_errors.insert(0, invalid("spec.selector", selector, detail))
        return template_errors

    def strategy_causes(self, spec: JsonObject) -> list[FieldError]:
        """Return the validation errors of the update strategy."""
        causes = _negative_causes(spec, "spec", ("minReadySeconds",))
        strategy = spec["updateStrategy"]
        rolling = strategy.get("rollingUpdate")
        if strategy["type"] == "RollingUpdate":
            field = "spec.updateStrategy.rollingUpdate"
            causes += rolling_causes(rolling or {}, field, daemon=True)
        elif strategy["type"] != "OnDelete":
            shown = {"Type": strategy["type"], "RollingUpdate": _shown(rolling)}
            supported = ("RollingUpdate", "OnDelete")
            causes.append(not_supported("spec.updateStrategy", shown, supported))
        return causes + _negative_causes(spec, "spec", ("revisionHistoryLimit",))


def _int_or_percent_causes(value: int | str, field: str) -> list[FieldError]:
    if isinstance(value, str):
        return [] if _is_percent(value) else [invalid(field, value, _BAD_PERCENT)]
    return [invalid(field, value, NOT_NEGATIVE)] if value < 0 else []


def _over_100_percent_causes(value: int | str, field: str) -> list[FieldError]:
    if isinstance(value, str) and _is_percent(value) and _percent(value) > 100:
        return [invalid(field, value, "must not be greater than 100%")]
    return []


def _number_of(value: int | str) -> int:
    if isinstance(value, str):
        return _percent(value) if _is_percent(value) else 0
    return value


def _percent(text: str) -> int:
    """Return the number before the percent sign; more than 64 bits count as the largest int64."""
    number = parse_natural(text[:-1])
    return INT64_MAX if number is None else number


def _default(values: JsonObject, **defaults: Any) -> None:
    for key, value in defaults.items():
        if values.get(key) is None:
            values[key] = value


def _shown(rolling: JsonObject | None) -> JsonObject | None:
    # NB: causes show the field names of the Go types.
    if rolling is None:
        return None
    members = (("MaxUnavailable", "maxUnavailable"), ("MaxSurge", "maxSurge"))
    return {shown: rolling.get(key, 0) for shown, key in members}


def _annotate(new: JsonObject, generation: str) -> None:
    annotations = new["metadata"].get("annotations") or {}
    new["metadata"]["annotations"] = {**annotations, TEMPLATE_GENERATION: generation}


def _negative_causes(values: JsonObject, field: str, keys: tuple[str, ...]) -> list[FieldError]:
    return [
        invalid(f"{field}.{key}", values[key], NOT_NEGATIVE)
        for key in keys
        if (values.get(key) or 0) < 0
    ]
