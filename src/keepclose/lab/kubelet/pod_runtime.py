"""One pod on its node: its place, its listener and its containers, from first to last.

Holds what is true of the pod here and now. Time moves it; it says itself when it changes next, and
what is to be reported of it. It writes nothing, and it asks the network for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from keepclose.kube.cache import is_older
from keepclose.lab.kubelet.container_modes import INVALID_NAME, PULL_BACK_OFF, pre_stop_seconds
from keepclose.lab.kubelet.container_runtime import ContainerLife, Moment
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.lab.kubelet.pod_servers import PodListener
from keepclose.lab.kubelet.pod_specs import KubeletPod, KubeletStatus
from keepclose.lab.kubelet.pod_status import report_status

NEVER: Final = "Never"
_FIRST_RETRY_S: Final = 0.5
LAST_RETRY_S: Final = 60.0
_MOST_DOUBLINGS: Final = 10


class Happening(NamedTuple):
    """Something that people are told of a container."""

    container: str
    severity: str
    reason: str
    message: str


class PodLife:
    """A pod that was given to a node; it waits until it has a place."""

    def __init__(self, pod: KubeletPod, now: Moment) -> None:
        """Hold the pod; what an earlier kubelet reported of its containers counts as a restart."""
        meta = pod.metadata
        self.key, self.uid, self.node = pod.key, pod.uid, pod.spec.node_name
        self.on_host = pod.spec.host_network
        self.place: PodPlace | None = None
        self.listener: PodListener | None = None
        self.ends_at: float | None = None
        """When the pod is to stop, once it was asked to."""
        self._refusals = 0
        self._held_until = 0.0
        self._restarts = pod.spec.restart_policy != NEVER
        self._stored = pod
        name = f"{meta.name}_{meta.namespace}({meta.uid})"
        status = pod.status
        before = {
            one.name: one for one in (*status.init_container_statuses, *status.container_statuses)
        }
        self._containers = [
            ContainerLife(one, pod=name, uid=self.uid, before=before.get(one.name), now=now)
            for one in pod.spec.lasting
        ]
        self._name = name

    def begin(
        self, place: PodPlace, listener: PodListener | None, now: Moment
    ) -> Iterator[Happening]:
        """Take the place and start all containers; yield what happens on the way."""
        self.place, self.listener = place, listener
        for one in self._containers:
            one.start(now)
            yield from _beginning(one)

    def hold(self, now: Moment) -> None:
        """Wait for the next attempt, because the pod was refused a place; longer each time."""
        doublings = min(self._refusals, _MOST_DOUBLINGS)
        self._refusals += 1
        self._held_until = now.monotonic + min(LAST_RETRY_S, _FIRST_RETRY_S * 2**doublings)

    def may_begin(self, now: Moment) -> bool:
        """Return whether the pod waits for a place and may be given one now."""
        return self.place is None and now.monotonic >= self._held_until

    def move(self, now: Moment) -> Iterator[Happening]:
        """Let happen what is due by now."""
        for one in self._containers:
            if one.must_crash(now):
                one.crash(now, again=self._restarts)
                name = one.spec.name
                text = f"Back-off restarting failed container {name} in pod {self._name}"
                if self._restarts:
                    yield Happening(name, "Warning", "BackOff", text)
            elif one.must_start(now):
                one.start(now)
                yield from _beginning(one)

    def end(self, pod: KubeletPod, now: Moment, *, linger_s: float) -> Iterator[Happening]:
        """Note that the pod is to end within the grace that it was given, which may get shorter.

        It serves on while its hooks sleep and a little longer; if nothing runs it ends at once.
        """
        grace_s = float(pod.metadata.deletion_grace_period_seconds or 0)
        running = [one for one in self._containers if one.is_running]
        if self.ends_at is None:
            hooks_s = max((pre_stop_seconds(one.spec) for one in running), default=0.0)
            wanted_s = hooks_s + linger_s if running else 0.0
            self.ends_at = now.monotonic + min(wanted_s, grace_s)
            for one in running:
                name = one.spec.name
                yield Happening(name, "Normal", "Killing", f"Stopping container {name}")
        self.ends_at = min(self.ends_at, now.monotonic + grace_s)

    def must_stop(self, now: Moment) -> bool:
        """Return whether the pod was asked to end and its time is over."""
        return self.ends_at is not None and now.monotonic >= self.ends_at

    def stop(self, now: Moment) -> None:
        """End all containers and stop listening; once more is fine."""
        self.close()
        for one in self._containers:
            one.stop(now)

    def close(self) -> None:
        """Stop listening."""
        if self.listener is not None:
            self.listener.close()
            self.listener = None

    def due_in(self, now: Moment) -> float | None:
        """Return the seconds until something changes by itself, None when nothing will."""
        if self.place is None:
            return max(0.0, self._held_until - now.monotonic)
        waits = [one.due_in(now) for one in self._containers]
        if self.ends_at is not None:
            waits.append(max(0.0, self.ends_at - now.monotonic))
        return min((one for one in waits if one is not None), default=None)

    def note_stored(self, pod: KubeletPod) -> KubeletPod:
        """Take note of the pod as the server has it; return the newest that is known."""
        if not is_older(pod.metadata.resource_version, self._stored.metadata.resource_version):
            self._stored = pod
        return self._stored

    def status(self, stored: KubeletPod, now: Moment) -> KubeletStatus:
        """Return what is to be reported of the pod."""
        return report_status(stored, place=self.place, containers=self._containers, now=now)


def _beginning(container: ContainerLife) -> Iterator[Happening]:
    """Yield what people are told of an attempt to start a container."""
    name, image = container.spec.name, container.spec.image
    state = container.image_state
    if state is None:
        yield Happening(name, "Normal", "Started", f"Started container {name}")
        return
    if state.reason == PULL_BACK_OFF:
        yield Happening(name, "Normal", "BackOff", f'Back-off pulling image "{image}"')
    else:
        reason = "InspectFailed" if state.reason == INVALID_NAME else "Failed"
        yield Happening(name, "Warning", reason, state.message)
    yield Happening(name, "Warning", "Failed", f"Error: {state.reason}")
