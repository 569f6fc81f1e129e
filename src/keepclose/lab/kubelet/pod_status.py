"""The status that a kubelet reports of a pod, and the patch from the stored status to it.

Conditions, reasons and messages are those of a kubelet: a pod is ready when all its containers are
and every condition named by a readiness gate is True. The time of a condition changes only with its
status; its observedGeneration, and that of the status, follow the pod's metadata.generation.
Conditions of other components are never changed, and PodScheduled is only added if it is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from keepclose.lab.kubelet.container_runtime import ContainerInstance, Moment
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.model.json_values import JsonObject
from keepclose.model.timestamps import format_event_time
from keepclose.model.workload import PodIP
from keepclose.model.workloads.pods import (
    ALWAYS,
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    PodCondition,
    Terminated,
    WorkloadPod,
    WorkloadPodStatus,
)

PENDING: Final = "Pending"
RUNNING: Final = "Running"
SUCCEEDED: Final = "Succeeded"
_FAILED: Final = "Failed"
_READY: Final = "Ready"
CONTAINERS_READY: Final = "ContainersReady"
NETWORK_READY: Final = "PodReadyToStartContainers"
INITIALIZED: Final = "Initialized"
SCHEDULED: Final = "PodScheduled"
_COMPLETED: Final = {SUCCEEDED: "PodCompleted", _FAILED: "PodFailed"}


class _Verdict(NamedTuple):
    """A condition without its time."""

    holds: bool
    reason: str = ""
    message: str = ""


HOLDS: Final = _Verdict(True)


def report_status(
    stored: WorkloadPod,
    *,
    place: PodPlace | None,
    containers: Sequence[ContainerInstance],
    now: Moment,
) -> WorkloadPodStatus:
    """Return the status of a pod; without a place it is Pending.

    The containers are those of `WorkloadPodSpec.lasting`, in that order.
    """
    before = stored.status
    phase = _phase(place, containers)
    statuses = [container.status(now) for container in containers]
    own = statuses[len(stored.spec.sidecars) :]
    started_at = before.start_time or format_event_time(now.wall)
    addresses = place.addresses if place else ()
    hosts = place.host_addresses if place else ()
    return WorkloadPodStatus(
        observed_generation=_observed_generation(stored),
        phase=phase,
        host_ip=hosts[0] if hosts else before.host_ip,
        host_ips=_addresses(hosts) or before.host_ips,
        pod_ip=addresses[0] if addresses else before.pod_ip,
        pod_ips=_addresses(addresses) or before.pod_ips,
        start_time=started_at,
        conditions=_conditions(stored, phase, statuses, has_place=place is not None, now=now),
        init_container_statuses=_init_statuses(stored, statuses, started_at=started_at)
        if place
        else before.init_container_statuses,
        container_statuses=tuple(own),
    )


def status_patch(stored: WorkloadPodStatus, desired: WorkloadPodStatus) -> JsonObject | None:
    """Return the strategic merge patch of the status; None if it is as desired already."""
    patch: JsonObject = {}
    for field in msgspec.structs.fields(WorkloadPodStatus):
        value, before = getattr(desired, field.name), getattr(stored, field.name)
        if value == before:
            continue
        if field.name == "conditions":
            patch[field.encode_name] = [
                _set(condition) for condition in value if condition not in before
            ]
            continue
        plain = msgspec.to_builtins(value)
        if before and field.name in ("pod_ips", "host_ips"):
            # NB: these merge by address, and the former ones would stay.
            plain = [{"$patch": "replace"}, *plain]
        patch[field.encode_name] = plain
    return patch or None


def _set(condition: PodCondition) -> JsonObject:
    # NB: conditions merge, so the fields of a former status must be removed by name.
    return {"reason": None, "message": None, **msgspec.to_builtins(condition)}


def _phase(place: PodPlace | None, containers: Sequence[ContainerInstance]) -> str:
    if place is None:
        return PENDING
    if any(container.lacks_image for container in containers):
        return PENDING
    main = [container for container in containers if container.spec.restart_policy != ALWAYS]
    if not all(container.has_ended for container in main):
        return RUNNING
    return _FAILED if any(container.exit_code for container in main) else SUCCEEDED


def _conditions(
    stored: WorkloadPod,
    phase: str,
    statuses: Iterable[ContainerStatus],
    *,
    has_place: bool,
    now: Moment,
) -> tuple[PodCondition, ...]:
    """Return all conditions of the pod, those of other components unchanged."""
    containers_ready = _containers_ready(phase, statuses)
    verdicts = {
        NETWORK_READY: _Verdict(has_place and phase not in _COMPLETED),
        INITIALIZED: _initialized(stored, phase, has_place=has_place),
        _READY: _ready(stored, containers_ready),
        CONTAINERS_READY: containers_ready,
    }
    before = {condition.type: condition for condition in stored.status.conditions}
    if SCHEDULED not in before:
        verdicts[SCHEDULED] = HOLDS
    changed = {
        name: _condition(
            name, verdict, before.get(name), generation=_observed_generation(stored), now=now
        )
        for name, verdict in verdicts.items()
    }
    return tuple({**before, **changed}.values())


def _observed_generation(stored: WorkloadPod) -> int:
    """Return the generation to report.

    A deletion increments the generation too, but changes nothing else in the status: a terminating
    pod keeps the reported generation, which saves a write for every deleted pod.
    """
    if stored.is_terminating:
        return stored.status.observed_generation
    return stored.metadata.generation


def _condition(
    name: str, verdict: _Verdict, before: PodCondition | None, *, generation: int, now: Moment
) -> PodCondition:
    status = "True" if verdict.holds else "False"
    since = before.last_transition_time if before and before.status == status else None
    return PodCondition(
        type=name,
        status=status,
        last_transition_time=since or format_event_time(now.wall),
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=generation,
    )


def _initialized(stored: WorkloadPod, phase: str, *, has_place: bool) -> _Verdict:
    if phase == SUCCEEDED:
        return _Verdict(True, _COMPLETED[phase])
    waiting = [container.name for container in stored.spec.init_containers]
    if has_place or not waiting:
        return HOLDS
    text = f"containers with incomplete status: [{' '.join(waiting)}]"
    return _Verdict(False, "ContainersNotInitialized", text)


def _containers_ready(phase: str, statuses: Iterable[ContainerStatus]) -> _Verdict:
    if phase in _COMPLETED:
        return _Verdict(False, _COMPLETED[phase])
    unready = [status.name for status in statuses if not status.ready]
    if not unready:
        return HOLDS
    text = f"containers with unready status: [{' '.join(unready)}]"
    return _Verdict(False, "ContainersNotReady", text)


def _ready(stored: WorkloadPod, containers_ready: _Verdict) -> _Verdict:
    if not containers_ready.holds:
        return containers_ready
    lacking = []
    for gate in stored.spec.readiness_gates:
        condition = stored.status.condition(gate.condition_type)
        if condition is None:
            name = gate.condition_type
            lacking.append(
                f'corresponding condition of pod readiness gate "{name}" does not exist.'
            )
        elif condition.status != "True":
            lacking.append(
                f'the status of pod readiness gate "{gate.condition_type}" is not "True",'
                f" but {condition.status}"
            )
    return _Verdict(False, "ReadinessGatesNotReady", ", ".join(lacking)) if lacking else HOLDS


def _init_statuses(
    stored: WorkloadPod, statuses: Sequence[ContainerStatus], *, started_at: str
) -> tuple[ContainerStatus, ...]:
    """Return the status of all init containers; all but the sidecars have completed."""
    by_name = {status.name: status for status in statuses}
    before = {status.name: status for status in stored.status.init_container_statuses}
    return tuple(
        by_name.get(container.name)
        or before.get(container.name)
        or _done(container, stored.uid, at=started_at)
        for container in stored.spec.init_containers
    )


def _done(container: ContainerSpec, pod: str, *, at: str) -> ContainerStatus:
    container_id = f"keepclose://{pod}/{container.name}/0"
    ended = Terminated(0, "Completed", at, at, container_id)
    return ContainerStatus(
        name=container.name,
        image=container.image,
        image_id=container.image,
        container_id=container_id,
        ready=True,
        state=ContainerState(terminated=ended),
    )


def _addresses(addresses: Iterable[str]) -> tuple[PodIP, ...]:
    return tuple(PodIP(address) for address in addresses)
