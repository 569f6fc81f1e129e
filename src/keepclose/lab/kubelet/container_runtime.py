"""One container of a pod from start to end, by the clock alone.

A container that crashes ends after a second, backs off, and is started again. The backoff doubles
from one second to a minute, where a kubelet's doubles from ten seconds to five minutes. An image
that cannot be pulled has the same backoff.
Nothing here waits or writes: the owner of a container advances it when a change is due.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from keepclose.lab.kubelet.container_modes import (
    INVALID_NAME,
    NO_IMAGE,
    PULL_BACK_OFF,
    ContainerMode,
    ImageError,
    find_image_error,
    mode_of,
    seconds_until_ready,
)
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.pods import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    Running,
    Terminated,
    Waiting,
)

CRASH_S: Final = 1.0
PULL_S: Final = 1.0
"""For how long ErrImagePull shows before ImagePullBackOff."""
FIRST_BACK_OFF_S: Final = 1.0
LAST_BACK_OFF_S: Final = 60.0
CRASH_LOOP: Final = "CrashLoopBackOff"
CREATING: Final = Waiting("ContainerCreating")
_NEVER_STARTED: Final = (CREATING.reason, *NO_IMAGE)
_LOST: Final = 255
_MAX_DOUBLINGS: Final = 10


class Moment(NamedTuple):
    """One point in time on both clocks."""

    monotonic: float
    wall: float


class ContainerInstance:
    """A container on its node; it is ContainerCreating until `start`."""

    def __init__(
        self,
        spec: ContainerSpec,
        *,
        pod: str,
        uid: str,
        before: ContainerStatus | None,
        now: Moment,
    ) -> None:
        """Take the spec; `before` is the status that an earlier kubelet reported.

        The pod is named as in messages, the uid is the pod's.
        """
        self.spec = spec
        self._pod, self._uid = pod, uid
        self._mode = mode_of(spec)
        self._image_error = find_image_error(spec.image)
        self._ready_after_s = seconds_until_ready(spec)
        self._restarts = -1
        self._crashes = 0
        self._state = ContainerState(waiting=CREATING)
        self._last = ContainerState()
        self._ready_at: float | None = None
        self._due_at: float | None = None
        if before is not None and (_was_started(before) or before.restart_count):
            self._restarts = before.restart_count
            self._last = _ending_of(before, now)

    @property
    def is_running(self) -> bool:
        """Whether the container runs."""
        return self._state.running is not UNSET

    @property
    def lacks_image(self) -> bool:
        """Whether the container cannot be started because it has no image."""
        return self.image_state is not None

    @property
    def image_state(self) -> Waiting | None:
        """Why the container has no image, None if it has one or was never started."""
        waiting = self._state.waiting
        if waiting is UNSET or waiting.reason not in NO_IMAGE:
            return None
        return waiting

    @property
    def has_ended(self) -> bool:
        """Whether the container ended and will not be started again."""
        return self._state.terminated is not UNSET

    @property
    def exit_code(self) -> int:
        """The exit code of the container; 0 if it has not ended."""
        ended = self._state.terminated
        return 0 if ended is UNSET else ended.exit_code

    @property
    def back_off_s(self) -> float:
        """The backoff after the last crash."""
        doublings = min(max(0, self._crashes - 1), _MAX_DOUBLINGS)
        return float(min(LAST_BACK_OFF_S, FIRST_BACK_OFF_S * 2**doublings))

    def start(self, now: Moment) -> None:
        """Start the container, or back off if its image cannot be pulled."""
        if self._image_error is not None:
            self._wait_for_image(self._image_error, now)
            return
        self._restarts += 1
        self._state = ContainerState(running=Running(format_event_time(now.wall)))
        after_s = self._ready_after_s
        self._ready_at = None if after_s is None else now.monotonic + after_s
        self._due_at = (
            now.monotonic + CRASH_S if self._mode is ContainerMode.CRASH else self._ready_at
        )

    def _wait_for_image(self, error: ImageError, now: Moment) -> None:
        """Enter ErrImagePull, or after it ImagePullBackOff."""
        before = self.image_state
        self._due_at = None
        if error.reason == INVALID_NAME:
            self._state = ContainerState(waiting=Waiting(*error))
        elif before is None or before.reason == PULL_BACK_OFF:
            self._state = ContainerState(waiting=Waiting(*error))
            self._due_at = now.monotonic + PULL_S
        else:
            self._crashes += 1
            text = f'Back-off pulling image "{self.spec.image}": {error.reason}: {error.message}'
            self._state = ContainerState(waiting=Waiting(PULL_BACK_OFF, text))
            self._due_at = now.monotonic + self.back_off_s

    def crash(self, now: Moment, *, again: bool) -> None:
        """End the container by its own failure; with `again` it backs off and is restarted."""
        ended = self._end(1, "Error", now)
        self._crashes += 1
        self._due_at = None
        if not again:
            self._state = ContainerState(terminated=ended)
            return
        self._last = ContainerState(terminated=ended)
        text = f"back-off {self.back_off_s:g}s restarting failed container={self.spec.name}"
        self._state = ContainerState(waiting=Waiting(CRASH_LOOP, f"{text} pod={self._pod}"))
        self._due_at = now.monotonic + self.back_off_s

    def finish(self, log: str, now: Moment) -> None:
        """End the container because it is done; its log is the termination message."""
        self._due_at = None
        self._state = ContainerState(
            terminated=replace(self._end(0, "Completed", now), message=log)
        )

    def stop(self, now: Moment) -> None:
        """End the container because its pod terminates."""
        self._due_at = None
        if self.is_running:
            self._state = ContainerState(terminated=self._end(0, "Completed", now))
        elif self._last.terminated is not UNSET:
            self._state, self._last = self._last, ContainerState()

    def must_crash(self, now: Moment) -> bool:
        """Return whether the container's crash is due."""
        return self.is_running and self._mode is ContainerMode.CRASH and self.due_in(now) == 0.0

    def must_start(self, now: Moment) -> bool:
        """Return whether the container's backoff is over."""
        return self._state.waiting is not UNSET and self.due_in(now) == 0.0

    def due_in(self, now: Moment) -> float | None:
        """Return the seconds until the container changes by itself, None if it will not.

        0 means that the change is due.
        """
        if self._due_at is None:
            return None
        left = self._due_at - now.monotonic
        if left <= 0 and self.is_running and self._mode is not ContainerMode.CRASH:
            return None
        return max(0.0, left)

    def is_ready(self, now: Moment) -> bool:
        """Return whether the container is ready."""
        return self.is_running and self._ready_at is not None and now.monotonic >= self._ready_at

    def status(self, now: Moment) -> ContainerStatus:
        """Return the container status to report."""
        was_started = self._state.waiting != CREATING and not self.lacks_image
        return ContainerStatus(
            name=self.spec.name,
            image=self.spec.image,
            image_id=self.spec.image if was_started else "",
            container_id=self._id if was_started else UNSET,
            ready=self.is_ready(now),
            started=self.is_running,
            restart_count=max(0, self._restarts),
            state=self._state,
            last_state=self._last,
        )

    @property
    def _id(self) -> str:
        return f"keepclose://{self._uid}/{self.spec.name}/{self._restarts}"

    def _end(self, code: int, reason: str, now: Moment) -> Terminated:
        running = self._state.running
        started_at = None if running is UNSET else running.started_at
        return Terminated(code, reason, started_at, format_event_time(now.wall), self._id)


def _was_started(before: ContainerStatus) -> bool:
    waiting = before.state.waiting
    return waiting is UNSET or waiting.reason not in _NEVER_STARTED


def _ending_of(before: ContainerStatus, now: Moment) -> ContainerState:
    """Return how a container ended that an earlier kubelet started."""
    if before.state.terminated is not UNSET:
        return ContainerState(terminated=before.state.terminated)
    if before.state.running is UNSET:
        return before.last_state
    started_at = before.state.running.started_at
    container_id = "" if before.container_id is UNSET else before.container_id
    ended_at = format_event_time(now.wall)
    return ContainerState(
        terminated=Terminated(_LOST, "Unknown", started_at, ended_at, container_id)
    )
