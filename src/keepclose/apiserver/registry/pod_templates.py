"""What a pod, or the template of one, gets where its writer said nothing.

Templates get less than pods: what a pod gets beyond that is not part of what a workload wants, and
would make it look changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from keepclose.model.json_values import JsonObject
from keepclose.model.quantities import millis

GRACE_PERIOD: Final = 30
_MODE: Final = 0o644
# What the server adds to every pod that does not say how long it stays on a node that is lost.
_LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LOST_NODE_SECONDS: Final = 300


def default_pod_spec(spec: JsonObject) -> None:
    """Set what both a pod and a template get."""
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
    """Set what a pod gets beyond a template; call it after `default_pod_spec`."""
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


def admit_pod(spec: JsonObject) -> None:
    """Set what the admission of a cluster adds to a pod; its writer does not own that."""
    if spec.get("priority") is None:
        spec["priority"] = 0
    spec["preemptionPolicy"] = spec.get("preemptionPolicy") or "PreemptLowerPriority"
    _tolerate_lost_nodes(spec)


def containers_of(spec: JsonObject) -> Iterator[JsonObject]:
    """Yield all containers of a pod, those that run first before the others."""
    yield from spec.get("initContainers") or ()
    yield from spec.get("containers") or ()


def quality_of_service(spec: JsonObject) -> str:
    """Return how a pod is treated when a node runs short, by what its containers ask for."""
    wanted: list[tuple[JsonObject, JsonObject]] = []
    for container in containers_of(spec):
        resources = container.get("resources") or {}
        wanted.append((_amounts(resources.get("requests")), _amounts(resources.get("limits"))))
    if not any(requests or limits for requests, limits in wanted):
        return "BestEffort"
    whole = all(
        limits.keys() == {"cpu", "memory"} and all(requests.get(k) == v for k, v in limits.items())
        for requests, limits in wanted
    )
    return "Guaranteed" if whole else "Burstable"


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
    """Return that an image which may change under its name is to be fetched every time."""
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
        if not any(_tolerates(one, taint) for one in tolerations)
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: JsonObject, taint: str) -> bool:
    return toleration.get("key", "") in ("", taint) and toleration.get("effect", "") in (
        "",
        "NoExecute",
    )
