"""Rules for pods and for the templates of pods, as far as people commonly break them.

Ports, names and addresses that decisions rest on are judged by the model; here stands what only a
server looks at. Values that nothing in this project reads are not judged.
"""

from __future__ import annotations

from typing import Final

from keepclose.apiserver.registry.metadata import beyond_metadata
from keepclose.apiserver.strategies.typed import read_as
from keepclose.model.field_errors import (
    Cause,
    duplicate,
    invalid,
    not_found,
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
from keepclose.model.quantities import millis, quantity_causes
from keepclose.model.workload import NOT_NEGATIVE, Pod, validate_pod

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
DEADLINE_MAX: Final = 2**31 - 1
_BAD_VARIABLE: Final = (
    "a valid environment variable name must consist only of printable ASCII characters other "
    "than '='"
)


def pod_causes(pod: JsonObject) -> list[Cause]:
    """Return what is wrong with a pod apart from its metadata; it must be defaulted."""
    spec = pod.get("spec") or {}
    return _spec_causes(spec, "spec") + beyond_metadata(validate_pod(read_as(Pod, pod)))


def template_causes(template: JsonObject, field: str) -> list[Cause]:
    """Return what is wrong with the template of a pod, which stands at the given field."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    causes = validate_labels(metadata.get("labels") or {}, f"{field}.labels")
    causes += validate_annotations(metadata.get("annotations") or {}, f"{field}.annotations")
    causes += _spec_causes(spec, f"{field}.spec")
    stand_in = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
    for cause in beyond_metadata(validate_pod(read_as(Pod, stand_in))):
        causes.append(Cause(cause.type, f"{field}.{cause.field}", cause.detail, cause.value))
    return causes


def hostname_warnings(new: JsonObject, where: str) -> list[str]:
    """Return a warning when a name that is used in host names is no DNS label."""
    problems = dns1123_label(new["metadata"].get("name", ""))
    if not problems:
        return []
    return [
        (
            f"metadata.name: this is used in {where}, which can result in surprising behavior; "
            f"a DNS label is recommended: [{' '.join(problems)}]"
        )
    ]


def _spec_causes(spec: JsonObject, field: str) -> list[Cause]:
    volumes, causes = _volume_causes(spec.get("volumes") or [], f"{field}.volumes")
    containers = spec.get("containers") or []
    seen: set[str] = set()
    if not containers:
        causes.append(required(f"{field}.containers"))
    for key, some in (("containers", containers), ("initContainers", spec.get("initContainers"))):
        for place, container in enumerate(some or ()):
            causes += _container_causes(container, f"{field}.{key}[{place}]", seen, volumes)
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


def _volume_causes(volumes: list[JsonObject], field: str) -> tuple[set[str], list[Cause]]:
    names: set[str] = set()
    causes: list[Cause] = []
    for place, volume in enumerate(volumes):
        causes += _name_causes(volume.get("name") or "", f"{field}[{place}].name", names)
    return names, causes


def _name_causes(name: str, field: str, seen: set[str]) -> list[Cause]:
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
) -> list[Cause]:
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
    for place, port in enumerate(container.get("ports") or ()):
        number = port.get("hostPort") or 0
        if number:
            causes += [
                invalid(f"{field}.ports[{place}].hostPort", number, text)
                for text in port_number(number)
            ]
    causes += _resource_causes(container.get("resources") or {}, f"{field}.resources")
    for place, variable in enumerate(container.get("env") or ()):
        name = variable.get("name") or ""
        if not name:
            causes.append(required(f"{field}.env[{place}].name"))
        elif "=" in name or not (name.isascii() and name.isprintable()):
            causes.append(invalid(f"{field}.env[{place}].name", name, _BAD_VARIABLE))
    for place, mount in enumerate(container.get("volumeMounts") or ()):
        name = mount.get("name") or ""
        if not name:
            causes.append(required(f"{field}.volumeMounts[{place}].name"))
        if name not in volumes:
            causes.append(not_found(f"{field}.volumeMounts[{place}].name", name))
        if not mount.get("mountPath"):
            causes.append(required(f"{field}.volumeMounts[{place}].mountPath"))
    return causes


def _resource_causes(resources: JsonObject, field: str) -> list[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    causes: list[Cause] = []
    for key, amounts in (("limits", limits), ("requests", requests)):
        for name in sorted(amounts):
            amount, place = amounts[name], f"{field}.{key}[{name}]"
            causes += quantity_causes(place, amount)
            if (millis(amount) or 0) < 0:
                causes.append(invalid(place, amount, NOT_NEGATIVE))
            limit = limits.get(name)
            if key == "limits" or limit is None:
                continue
            if (millis(amount) or 0) > (millis(limit) or 0):
                detail = f"must be less than or equal to {name} limit of {limit}"
                causes.append(invalid(f"{field}.requests", amount, detail))
    return causes
