"""Tables of pods, and of Deployments, ReplicaSets and DaemonSets with desired and existing pods.

The status is found in the order of kube-apiserver: the phase, then the first init container that is
not done ("Init:0/1", "Init:Error"), then the containers from last to first ("CrashLoopBackOff",
"Completed"), and last that the pod is being deleted ("Terminating"). Restarts are those of the
containers that run now: init containers count while they run, and after that only if they are
sidecars (restartPolicy Always).
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from keepclose.apiserver.printing.cells import (
    AGE,
    NAME,
    NONE,
    Cells,
    Printer,
    TableColumn,
    age,
    age_since,
    is_set,
    list_at,
    number_at,
    object_at,
    object_name,
    pairs_at,
    parse_creation_time,
    show_labels,
    show_selector,
    text_at,
    value_at,
    whole_number,
    wide,
)
from keepclose.model.json_values import JsonObject

_TEMPLATE: Final = (
    wide("Containers", "Names of the containers in the pod template."),
    wide("Images", "Images of the containers in the pod template."),
    wide("Selector", "Labels of the pods that belong to it."),
)
_COMPLETED_MESSAGES: Final = {
    "Succeeded": "The pod has completed successfully.",
    "Failed": "The pod failed.",
}


def _deployment_cells(item: JsonObject, now: float) -> Cells:
    # NB: a selector without requirements stays empty here, and an invalid one is "<invalid>".
    selector = show_selector(item, "spec", "selector")
    return [
        object_name(item),
        f"{number_at(item, 'status', 'readyReplicas')}/{_replicas(item)}",
        number_at(item, "status", "updatedReplicas"),
        number_at(item, "status", "availableReplicas"),
        age(item, now),
        *_containers(item),
        "<invalid>" if selector is None else selector,
    ]


def _replica_set_cells(item: JsonObject, now: float) -> Cells:
    return [
        object_name(item),
        _replicas(item),
        number_at(item, "status", "replicas"),
        number_at(item, "status", "readyReplicas"),
        age(item, now),
        *_containers(item),
        _selector(item),
    ]


def _daemon_set_cells(item: JsonObject, now: float) -> Cells:
    return [
        object_name(item),
        number_at(item, "status", "desiredNumberScheduled"),
        number_at(item, "status", "currentNumberScheduled"),
        number_at(item, "status", "numberReady"),
        number_at(item, "status", "updatedNumberScheduled"),
        number_at(item, "status", "numberAvailable"),
        show_labels(pairs_at(item, "spec", "template", "spec", "nodeSelector")),
        age(item, now),
        *_containers(item),
        _selector(item),
    ]


def _replicas(item: JsonObject) -> int:
    return number_at(item, "spec", "replicas", default=1)


def _containers(item: JsonObject) -> tuple[str, str]:
    containers = list_at(item, "spec", "template", "spec", "containers")
    return (
        ",".join(text_at(container, "name") for container in containers),
        ",".join(text_at(container, "image") for container in containers),
    )


def _selector(item: JsonObject) -> str:
    selector = show_selector(item, "spec", "selector")
    return "<error>" if selector is None else selector or NONE


DEPLOYMENT: Final = Printer(
    columns=(
        NAME,
        TableColumn("Ready", "Ready pods of the desired ones."),
        TableColumn("Up-to-date", "Pods created from the current template."),
        TableColumn("Available", "Pods that have been ready for long enough."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_deployment_cells,
)
REPLICA_SET: Final = Printer(
    columns=(
        NAME,
        whole_number("Desired", "Desired pods."),
        whole_number("Current", "Pods that exist."),
        whole_number("Ready", "Pods that are ready."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_replica_set_cells,
)
DAEMON_SET: Final = Printer(
    columns=(
        NAME,
        whole_number("Desired", "Nodes that should run the pod."),
        whole_number("Current", "Nodes that run the pod and should."),
        whole_number("Ready", "Nodes on which the pod is ready."),
        whole_number("Up-to-date", "Nodes whose pod was created from the current template."),
        whole_number("Available", "Nodes whose pod has been ready for long enough."),
        TableColumn("Node Selector", "Labels of the nodes that run the pod."),
        AGE,
        *_TEMPLATE,
    ),
    cells=_daemon_set_cells,
)


class _Restarts:
    """How often containers restarted, and when the last restart was."""

    def __init__(self) -> None:
        self.count = 0
        self.last: datetime | None = None

    def add(self, status: object) -> None:
        """Add the restarts of a container."""
        self.count += number_at(status, "restartCount")
        ended = parse_creation_time(value_at(status, "lastState", "terminated", "finishedAt"))
        if ended is not None and (self.last is None or ended > self.last):
            self.last = ended

    def show(self, now: float) -> str:
        """Return the count, and how long ago the last restart was."""
        if self.count and self.last is not None:
            return f"{self.count} ({age_since(self.last, now)} ago)"
        return str(self.count)


class _InitProgress(NamedTuple):
    """The progress of the init containers; `blocked_by` is empty when all are done."""

    blocked_by: str
    ready: int
    restarts: _Restarts
    sidecar_restarts: _Restarts


class _ContainerStatus(NamedTuple):
    """The status of the containers."""

    word: str
    ready: int


def _cells(pod: JsonObject, now: float) -> Cells:
    sidecars = _sidecars(pod)
    start = _init_status(pod, sidecars)
    word, ready, restarts = start.blocked_by or _phase(pod), start.ready, start.restarts
    if not start.blocked_by or _first_condition(pod, "Initialized") == "True":
        restarts = start.sidecar_restarts
        running = _container_status(pod, word, restarts)
        word, ready = running.word, ready + running.ready
    total = len(list_at(pod, "spec", "containers")) + sum(sidecars.values())
    return [
        object_name(pod),
        f"{ready}/{total}",
        _deletion_status(pod, word),
        restarts.show(now),
        age(pod, now),
        _pod_ip(pod) or NONE,
        text_at(pod, "spec", "nodeName") or NONE,
        text_at(pod, "status", "nominatedNodeName") or NONE,
        _readiness_gates(pod),
    ]


def _phase(pod: JsonObject) -> str:
    for condition in list_at(pod, "status", "conditions"):
        kind, reason = text_at(condition, "type"), text_at(condition, "reason")
        if kind == "PodScheduled" and reason == "SchedulingGated":
            return reason
    return text_at(pod, "status", "reason") or text_at(pod, "status", "phase")


def _sidecars(pod: JsonObject) -> dict[str, bool]:
    return {
        text_at(container, "name"): text_at(container, "restartPolicy") == "Always"
        for container in list_at(pod, "spec", "initContainers")
    }


def _init_status(pod: JsonObject, sidecars: dict[str, bool]) -> _InitProgress:
    ready, restarts, sidecar_restarts = 0, _Restarts(), _Restarts()
    total = len(list_at(pod, "spec", "initContainers"))
    blocked_by = ""
    for done, status in enumerate(list_at(pod, "status", "initContainerStatuses")):
        restarts.add(status)
        is_sidecar = sidecars.get(text_at(status, "name"), False)
        if is_sidecar:
            sidecar_restarts.add(status)
        ended = object_at(status, "state", "terminated")
        if ended is not None and number_at(ended, "exitCode") == 0:
            continue
        if is_sidecar and is_set(status, "started"):
            ready += is_set(status, "ready")
            continue
        waiting = text_at(status, "state", "waiting", "reason")
        if ended is not None:
            blocked_by = f"Init:{_termination_reason(ended)}"
        elif waiting not in ("", "PodInitializing"):
            blocked_by = f"Init:{waiting}"
        else:
            blocked_by = f"Init:{done}/{total}"
        break
    return _InitProgress(blocked_by, ready, restarts, sidecar_restarts)


def _container_status(pod: JsonObject, word: str, restarts: _Restarts) -> _ContainerStatus:
    ready, failure = 0, ""
    for status in reversed(list_at(pod, "status", "containerStatuses")):
        restarts.add(status)
        waiting = text_at(status, "state", "waiting", "reason")
        ended = object_at(status, "state", "terminated")
        if waiting:
            word = waiting
        elif ended is not None:
            word = _termination_reason(ended)
            if number_at(ended, "exitCode") != 0:
                failure = word
        elif is_set(status, "ready") and object_at(status, "state", "running") is not None:
            ready += 1
    if word == "Completed":
        if ready and _has_ready_condition(pod):
            word = "Running"
        elif failure:
            word = failure
        elif ready:
            word = "NotReady"
    return _ContainerStatus(word, ready)


def _termination_reason(ended: JsonObject) -> str:
    signal = number_at(ended, "signal")
    code = f"Signal:{signal}" if signal else f"ExitCode:{number_at(ended, 'exitCode')}"
    return text_at(ended, "reason") or code


def _deletion_status(pod: JsonObject, word: str) -> str:
    if not value_at(pod, "metadata", "deletionTimestamp"):
        return word
    if text_at(pod, "status", "reason") == "NodeLost":
        return "Unknown"
    return word if text_at(pod, "status", "phase") in ("Succeeded", "Failed") else "Terminating"


def _pod_ip(pod: JsonObject) -> str:
    # NB: podIP wins where it differs from podIPs.
    first = next(iter(list_at(pod, "status", "podIPs")), None)
    return text_at(pod, "status", "podIP") or text_at(first, "ip")


def _readiness_gates(pod: JsonObject) -> str:
    gates = [text_at(gate, "conditionType") for gate in list_at(pod, "spec", "readinessGates")]
    passed = sum(_first_condition(pod, gate) == "True" for gate in gates)
    return f"{passed}/{len(gates)}" if gates else NONE


def _first_condition(pod: JsonObject, kind: str) -> str:
    for condition in list_at(pod, "status", "conditions"):
        if text_at(condition, "type") == kind:
            return text_at(condition, "status")
    return ""


def _has_ready_condition(pod: JsonObject) -> bool:
    return any(
        text_at(condition, "type") == "Ready" and text_at(condition, "status") == "True"
        for condition in list_at(pod, "status", "conditions")
    )


def _conditions(pod: JsonObject) -> list[JsonObject]:
    phase = text_at(pod, "status", "phase")
    if phase not in _COMPLETED_MESSAGES:
        return []
    message = _COMPLETED_MESSAGES[phase]
    return [{"type": "Completed", "status": "True", "reason": phase, "message": message}]


POD: Final = Printer(
    columns=(
        NAME,
        TableColumn("Ready", "Ready containers of all containers."),
        TableColumn("Status", "The status of the pod, in one word."),
        TableColumn("Restarts", "How often containers restarted, and when the last restart was."),
        AGE,
        wide("IP", "First address of the pod."),
        wide("Node", "Node on which the pod runs."),
        wide("Nominated Node", "Node on which pods are preempted for the pod."),
        wide("Readiness Gates", "Readiness gates that are true, of all."),
    ),
    cells=_cells,
    conditions=_conditions,
)
