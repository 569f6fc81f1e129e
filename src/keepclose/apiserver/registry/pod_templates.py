"""Defaults and validation of pods and of pod templates, as far as users commonly break the rules.

A template gets fewer defaults than a pod: the additional ones are not part of a workload's spec and
would make the workload look changed. The model validates the ports, names and addresses that
routing decisions use; this module validates what only an API server reads. Fields that no part of
this project reads are not validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.registry.strategy import read_as
from keepclose.model.field_errors import (
    FieldError,
    duplicate,
    invalid,
    missing_reference,
    not_supported,
    required,
)
from keepclose.model.json_values import JsonObject
from keepclose.model.metadata_validation import (
    dns1123_label,
    dns1123_subdomain,
    port_number,
    validate_annotations,
    validate_labels,
)
from keepclose.model.quantities import millis, quantity_errors
from keepclose.model.workload import NOT_NEGATIVE, Pod, validate_pod

GRACE_PERIOD: Final = 30
_MODE: Final = 0o644
# Admission adds these tolerations to every pod that does not say how long it stays on a lost node.
_LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_NODE_SECONDS: Final = 300
RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
DEADLINE_MAX: Final = 2**31 - 1
_BAD_VARIABLE: Final = (
    "a valid environment variable name must consist only of printable ASCII characters other "
    "than '='"
)


def default_pod_spec(spec: JsonObject) -> None:
    """Set the defaults that pods and pod templates share."""
    spec["restartPolicy"] = spec.get("restartPolicy") or "Always"
    spec["dnsPolicy"] = spec.get("dnsPolicy") or "ClusterFirst"
    spec["schedulerName"] = spec.get("schedulerName") or "default-scheduler"
    if spec.get("terminationGracePeriodSeconds") is None:
        spec["terminationGracePeriodSeconds"] = GRACE_PERIOD
    if spec.get("securityContext") is None:
        spec["securityContext"] = {}
    if spec.get("serviceAccountName"):
        # The older name of the field, which clients still read.
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
    elif spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    for container in containers_of(spec):
        _default_container(container)
    for volume in spec.get("volumes") or ():
        _default_volume(volume)


def default_pod(spec: JsonObject) -> None:
    """Set the defaults that only a pod gets; call it after `default_pod_spec`."""
    for container in containers_of(spec):
        resources = container["resources"]
        limits = resources.get("limits") or {}
        if limits:
            resources["requests"] = {**limits, **(resources.get("requests") or {})}
        if spec.get("hostNetwork"):
            for port in container.get("ports") or ():
                port["hostPort"] = port.get("hostPort") or port.get("containerPort", 0)
    if spec.get("enableServiceLinks") is None:
        spec["enableServiceLinks"] = True
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1


def set_admission_defaults(spec: JsonObject) -> None:
    """Set what admission adds to a pod; no field manager owns these fields."""
    if spec.get("priority") is None:
        spec["priority"] = 0
    spec["preemptionPolicy"] = spec.get("preemptionPolicy") or "PreemptLowerPriority"
    _tolerate_lost_nodes(spec)


def containers_of(spec: JsonObject) -> Iterator[JsonObject]:
    """Yield all containers of a pod, init containers first."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def quality_of_service(spec: JsonObject) -> str:
    """Return the QoS class of a pod, by the requests and limits of its containers."""
    resources_of_containers: list[tuple[JsonObject, JsonObject]] = []
    for container in containers_of(spec):
        resources = container.get("resources") or {}
        resources_of_containers.append(
            (_amounts(resources.get("requests")), _amounts(resources.get("limits")))
        )
    if not any(requests or limits for requests, limits in resources_of_containers):
        return "BestEffort"
    is_guaranteed = all(
        limits.keys() == {"cpu", "memory"} and all(requests.get(k) == v for k, v in limits.items())
        for requests, limits in resources_of_containers
    )
    return "Guaranteed" if is_guaranteed else "Burstable"


def pod_causes(spec: JsonObject, pod: Pod) -> list[FieldError]:
    """Return the validation errors of a defaulted pod and its raw spec, apart from the metadata."""
    return _spec_causes(spec, "spec") + beyond_metadata(validate_pod(pod))


def template_causes(template: JsonObject, field: str) -> list[FieldError]:
    """Return the validation errors of a pod template; `field` is its path."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    causes = validate_labels(metadata.get("labels") or {}, f"{field}.labels")
    causes += validate_annotations(metadata.get("annotations") or {}, f"{field}.annotations")
    causes += _spec_causes(spec, f"{field}.spec")
    stand_in = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    for cause in beyond_metadata(validate_pod(read_as(Pod, stand_in))):
        causes.append(FieldError(cause.type, f"{field}.{cause.field}", cause.detail, cause.value))
    return causes


def hostname_warnings(new: JsonObject, where: str) -> list[str]:
    """Return a warning when a name that becomes part of host names is no DNS label."""
    problems = dns1123_label(new["metadata"].get("name", ""))
    if not problems:
        return []
    return [
        (
            f"metadata.name: this is used in {where}, which can result in surprising behavior; "
            f"a DNS label is recommended: [{' '.join(problems)}]"
        )
    ]


def _amounts(resources: JsonObject | None) -> JsonObject:
    return {
        name: amount
        for name, text in (resources or {}).items()
        if name in ("cpu", "memory") and (amount := millis(text))
    }


def _default_container(container: JsonObject) -> None:
    if container.get("resources") is None:
        container["resources"] = {}
    container["terminationMessagePath"] = (
        container.get("terminationMessagePath") or "/dev/termination-log"
    )
    container["terminationMessagePolicy"] = container.get("terminationMessagePolicy") or "File"
    if not container.get("imagePullPolicy"):
        container["imagePullPolicy"] = _pull_policy(container.get("image") or "")
    for port in container.get("ports") or ():
        port["protocol"] = port.get("protocol") or "TCP"
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference["apiVersion"] = reference.get("apiVersion") or "v1"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name) is not None:
            _default_probe(container[name])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict):
            _default_http_get(hook.get("httpGet"))


def _pull_policy(image: str) -> str:
    """Return Always for an image whose tag may move, else IfNotPresent."""
    if not image or "@" in image:
        return "IfNotPresent"
    tag = image.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: JsonObject) -> None:
    for key, value in (
        ("timeoutSeconds", 1),
        ("periodSeconds", 10),
        ("successThreshold", 1),
        ("failureThreshold", 3),
    ):
        probe[key] = probe.get(key) or value
    _default_http_get(probe.get("httpGet"))
    if probe.get("grpc") is not None:
        probe["grpc"].setdefault("service", "")


def _default_http_get(action: JsonObject | None) -> None:
    if action is not None:
        action["path"] = action.get("path") or "/"
        action["scheme"] = action.get("scheme") or "HTTP"


def _default_volume(volume: JsonObject) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    for key in ("secret", "configMap", "downwardAPI", "projected"):
        if volume.get(key) is not None:
            volume[key].setdefault("defaultMode", _MODE)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")


def _tolerate_lost_nodes(spec: JsonObject) -> None:
    tolerations = spec.get("tolerations") or []
    added = [
        {
            "key": taint,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_NODE_SECONDS,
        }
        for taint in _LOST_NODE_TAINTS
        if not any(_tolerates(toleration, taint) for toleration in tolerations)
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: JsonObject, taint: str) -> bool:
    return toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in (
        "",
        "NoExecute",
    )


def _spec_causes(spec: JsonObject, field: str) -> list[FieldError]:
    volumes, causes = _volume_causes(spec.get("volumes") or [], f"{field}.volumes")
    containers = spec.get("containers") or []
    seen: set[str] = set()
    if not containers:
        causes.append(required(f"{field}.containers"))
    for key, group in (("containers", containers), ("initContainers", spec.get("initContainers"))):
        for index, container in enumerate(group or ()):
            causes += _container_causes(container, f"{field}.{key}[{index}]", seen, volumes)
    for key, supported in (("restartPolicy", RESTART_POLICIES), ("dnsPolicy", DNS_POLICIES)):
        if spec.get(key) not in supported:
            causes.append(not_supported(f"{field}.{key}", spec.get(key, ""), supported))
    causes += validate_labels(spec.get("nodeSelector") or {}, f"{field}.nodeSelector")
    account = spec.get("serviceAccountName")
    if account:
        causes += [
            invalid(f"{field}.serviceAccountName", account, text)
            for text in dns1123_subdomain(account)
        ]
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= DEADLINE_MAX:
        detail = f"must be between 1 and {DEADLINE_MAX}, inclusive"
        causes.append(invalid(f"{field}.activeDeadlineSeconds", deadline, detail))
    return causes


def _volume_causes(volumes: list[JsonObject], field: str) -> tuple[set[str], list[FieldError]]:
    names: set[str] = set()
    causes: list[FieldError] = []
    for index, volume in enumerate(volumes):
        causes += _name_causes(volume.get("name") or "", f"{field}[{index}].name", names)
    return names, causes


def _name_causes(name: str, field: str, seen: set[str]) -> list[FieldError]:
    if not name:
        return [required(field)]
    if messages := dns1123_label(name):
        return [invalid(field, name, text) for text in messages]
    if name in seen:
        return [duplicate(field, name)]
    seen.add(name)
    return []


def _container_causes(
    container: JsonObject, field: str, seen: set[str], volumes: set[str]
) -> list[FieldError]:
    causes = _name_causes(container.get("name") or "", f"{field}.name", seen)
    image = container.get("image") or ""
    if not image:
        causes.append(required(f"{field}.image"))
    elif image != image.strip():
        detail = "must not have leading or trailing whitespace"
        causes.append(invalid(f"{field}.image", image, detail))
    policy = container.get("imagePullPolicy")
    if policy not in PULL_POLICIES:
        causes.append(not_supported(f"{field}.imagePullPolicy", policy, PULL_POLICIES))
    for index, port in enumerate(container.get("ports") or ()):
        number = port.get("hostPort") or 0
        if number:
            causes += [
                invalid(f"{field}.ports[{index}].hostPort", number, text)
                for text in port_number(number)
            ]
    causes += _resource_causes(container.get("resources") or {}, f"{field}.resources")
    for index, variable in enumerate(container.get("env") or ()):
        name = variable.get("name") or ""
        if not name:
            causes.append(required(f"{field}.env[{index}].name"))
        elif "=" in name or not (name.isascii() and name.isprintable()):
            causes.append(invalid(f"{field}.env[{index}].name", name, _BAD_VARIABLE))
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        name = mount.get("name") or ""
        if not name:
            causes.append(required(f"{field}.volumeMounts[{index}].name"))
        if name not in volumes:
            causes.append(missing_reference(f"{field}.volumeMounts[{index}].name", name))
        if not mount.get("mountPath"):
            causes.append(required(f"{field}.volumeMounts[{index}].mountPath"))
    return causes


def _resource_causes(resources: JsonObject, field: str) -> list[FieldError]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[FieldError] = []
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name in sorted(amounts):
            amount, place = amounts[name], f"{field}.{key}[{name}]"
            causes += quantity_errors(place, amount)
            if (millis(amount) or 0) < 0:
                causes.append(invalid(place, amount, NOT_NEGATIVE))
            limit = limits.get(name)
            if key == "limits" or limit is None:
                continue
            if (millis(amount) or 0) > (millis(limit) or 0):
                detail = f"must be less than or equal to {name} limit of {limit}"
                causes.append(invalid(f"{field}.requests", amount, detail))
    return causes
