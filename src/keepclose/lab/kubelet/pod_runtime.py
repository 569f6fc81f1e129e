"""One pod on its node, from start to end: its addresses, its listener and its containers.

It holds the actual state of the pod. The clock advances it; it returns when the next change is due
and which status and events to report. It never writes to the API and never calls the network.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Final, NamedTuple

from keepclose.kube.cache import is_older
from keepclose.lab.kubelet.container_modes import (
    INVALID_NAME,
    PULL_BACK_OFF,
    ContainerMode,
    mode_of,
    pre_stop_seconds,
)
from keepclose.lab.kubelet.container_runtime import ContainerInstance, Moment
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.lab.kubelet.pod_servers import PodListener
from keepclose.lab.kubelet.pod_status import report_status
from keepclose.lab.kubelet.probes import LabProbe
from keepclose.model.workloads.pods import WorkloadPod, WorkloadPodStatus

NEVER: Final = "Never"
_FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0
_MAX_DOUBLINGS: Final = 10


class ContainerEvent(NamedTuple):
    """An event about a container."""

    container: str
    severity: str
    reason: str
    message: str


class PodInstance:
    """A pod that is bound to a node; it is Pending until it has a place."""

    def __init__(self, pod: WorkloadPod, now: Moment) -> None:
        """Take the pod; a container that an earlier kubelet reported counts as restarted."""
        meta = pod.metadata
        self.key, self.uid, self.node = pod.key, pod.uid, pod.spec.node_name
        self.on_host = pod.spec.host_network
        self.place: PodPlace | None = None
        self.listener: PodListener | None = None
        self.ends_at: float | None = None
        """When a terminating pod stops."""
        self._failures = 0
        self._retry_at = 0.0
        self._restarts = pod.spec.restart_policy != NEVER
        self._stored = pod
        self.stopped = Event()
        """Set when the pod is torn down, for work in threads."""
        name = f"{meta.name}_{meta.namespace}({meta.uid})"
        status = pod.status
        before = {
            container.name: container
            for container in (*status.init_container_statuses, *status.container_statuses)
        }
        self._containers = [
            ContainerInstance(spec, pod=name, uid=self.uid, before=before.get(spec.name), now=now)
            for spec in pod.spec.lasting
        ]
        self._name = name

    def start(
        self, place: PodPlace, listener: PodListener | None, now: Moment
    ) -> Iterator[ContainerEvent]:
        """Take the place and start all containers; yield the events."""
        self.place, self.listener = place, listener
        for container in self._containers:
            container.start(now)
            yield from _start_events(container)

    def back_off(self, now: Moment) -> None:
        """Back off after the network has failed, longer each time."""
        doublings = min(self._failures, _MAX_DOUBLINGS)
        self._failures += 1
        self._retry_at = now.monotonic + min(LAST_RETRY_S, _FIRST_RETRY_S * 2**doublings)

    def may_start(self, now: Moment) -> bool:
        """Return whether the pod has no place and its backoff is over."""
        return self.place is None and now.monotonic >= self._retry_at

    def move(self, now: Moment) -> Iterator[ContainerEvent]:
        """Apply all changes that are due; yield the events."""
        for container in self._containers:
            if container.must_crash(now):
                container.crash(now, again=self._restarts)
                name = container.spec.name
                text = f"Back-off restarting failed container {name} in pod {self._name}"
                if self._restarts:
                    yield ContainerEvent(name, "Warning", "BackOff", text)
            elif container.must_start(now):
                container.start(now)
                yield from _start_events(container)

    def probes(self) -> Iterator[tuple[str, LabProbe]]:
        """Yield the containers that probe a Service, with what they connect to."""
        for container in self._containers:
            if container.is_running and mode_of(container.spec) is ContainerMode.PROBE:
                yield container.spec.name, LabProbe.of(container.spec)

    def finish(self, name: str, log: str, now: Moment) -> None:
        """End a container that is done."""
        for container in self._containers:
            if container.spec.name == name and container.is_running:
                container.finish(log, now)

    def end(self, pod: WorkloadPod, now: Moment, *, linger_s: float) -> Iterator[ContainerEvent]:
        """Set when the pod stops, within its grace period, which may become shorter.

        It serves while its hooks sleep and a little longer; if no container runs it stops at once.
        """
        grace_s = float(pod.metadata.deletion_grace_period_seconds or 0)
        running = [container for container in self._containers if container.is_running]
        if self.ends_at is None:
            hooks_s = max((pre_stop_seconds(container.spec) for container in running), default=0.0)
            stop_s = hooks_s + linger_s if running else 0.0
            self.ends_at = now.monotonic + min(stop_s, grace_s)
            for container in running:
                name = container.spec.name
                yield ContainerEvent(name, "Normal", "Killing", f"Stopping container {name}")
        self.ends_at = min(self.ends_at, now.monotonic + grace_s)

    def must_stop(self, now: Moment) -> bool:
        """Return whether the pod is terminating and its time is over."""
        return self.ends_at is not None and now.monotonic >= self.ends_at

    def stop(self, now: Moment) -> None:
        """End all containers and stop listening; idempotent."""
        self.close()
        for container in self._containers:
            container.stop(now)

    def close(self) -> None:
        """Stop listening and connecting."""
        self.stopped.set()
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def due_in(self, now: Moment) -> float | None:
        """Return the seconds until a change is due, None if none will be."""
        if self.place is None:
            return max(0.0, self._retry_at - now.monotonic)
        waits = [container.due_in(now) for container in self._containers]
        if self.ends_at is not None:
            waits.append(max(0.0, self.ends_at - now.monotonic))
        return min((wait for wait in waits if wait is not None), default=None)

    def record_stored(self, pod: WorkloadPod) -> WorkloadPod:
        """Record the pod as the server has it; return the newest version seen."""
        if not is_older(pod.metadata.resource_version, self._stored.metadata.resource_version):
            self._stored = pod
        return self._stored

    def status(self, stored: WorkloadPod, now: Moment) -> WorkloadPodStatus:
        """Return the status to report."""
        return report_status(stored, place=self.place, containers=self._containers, now=now)


def _start_events(container: ContainerInstance) -> Iterator[ContainerEvent]:
    """Yield the events of an attempt to start a container."""
    name, image = container.spec.name, container.spec.image
    state = container.image_state
    if state is None:
        yield ContainerEvent(name, "Normal", "Started", f"Started container {name}")
        return
    if state.reason == PULL_BACK_OFF:
        yield ContainerEvent(name, "Normal", "BackOff", f'Back-off pulling image "{image}"')
    else:
        reason = "InspectFailed" if state.reason == INVALID_NAME else "Failed"
        yield ContainerEvent(name, "Warning", reason, state.message)
    yield ContainerEvent(name, "Warning", "Failed", f"Error: {state.reason}")
