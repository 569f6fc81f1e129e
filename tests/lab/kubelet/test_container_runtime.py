"""Containers by the clock alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from keepclose.lab.kubelet.container_runtime import ContainerInstance, Moment
from keepclose.model.workloads.pods import (
    ContainerSpec,
    ContainerState,
    ContainerStatus,
    Running,
    Terminated,
    Waiting,
)

STARTED = "2023-11-14T22:13:20Z"


def at(seconds: float) -> Moment:
    """Return a moment after the start."""
    return Moment(100.0 + seconds, 1_700_000_000.0 + seconds)


def an_instance(before: ContainerStatus | None = None, **parts: Any) -> ContainerInstance:
    """Return a container that was not started yet."""
    spec = msgspec.convert({"name": "main", "image": "web", **parts}, ContainerSpec)
    return ContainerInstance(spec, pod="web_default(u1)", uid="u1", before=before, now=at(0))


def test_a_container_waits_until_it_is_started() -> None:
    """Before its start it is being created, has no identity, and nothing is due."""
    life = an_instance()
    status = life.status(at(0))
    assert status.state == ContainerState(waiting=Waiting("ContainerCreating"))
    assert (status.container_id, status.image_id, status.restart_count) == (UNSET, "", 0)
    assert (life.due_in(at(0)), life.is_running, life.has_ended) == (None, False, False)


def test_a_container_is_ready_when_its_time_has_come() -> None:
    """The time until then is told, and nothing is due afterwards."""
    life = an_instance(args=["slow-start", "3"])
    life.start(at(0))
    assert (life.is_ready(at(2)), life.due_in(at(2))) == (False, 1.0)
    assert (life.is_ready(at(3)), life.due_in(at(3))) == (True, None)
    assert life.status(at(3)) == ContainerStatus(
        name="main",
        image="web",
        image_id="web",
        container_id="keepclose://u1/main/0",
        ready=True,
        started=True,
        restart_count=0,
        state=ContainerState(running=Running(STARTED)),
    )


def test_waits_between_crashes_double_up_to_a_minute() -> None:
    """A second, two, four and so on, never more than sixty."""
    life = an_instance(image="crash")
    now = 0.0
    waits = []
    for _ in range(9):
        life.start(at(now))
        assert not life.must_crash(at(now + 0.9))
        now += 1
        assert life.must_crash(at(now))
        life.crash(at(now), again=True)
        waits.append(life.due_in(at(now)))
        assert not life.must_start(at(now))
        now += waits[-1] or 0.0
        assert life.must_start(at(now))
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert life.status(at(now)).restart_count == 8


def test_a_crash_that_is_final_ends_the_container() -> None:
    """Nothing is due any more, and the exit code tells why."""
    life = an_instance(image="crash")
    life.start(at(0))
    life.crash(at(1), again=False)
    assert (life.has_ended, life.exit_code, life.due_in(at(1))) == (True, 1, None)


def test_a_stopped_container_completed() -> None:
    """A container that runs is stopped with 0, one that waits keeps the code of its crash."""
    life = an_instance()
    life.start(at(0))
    life.stop(at(9))
    want_end = Terminated(0, "Completed", STARTED, "2023-11-14T22:13:29Z", "keepclose://u1/main/0")
    assert life.status(at(9)).state == ContainerState(terminated=want_end)
    life.stop(at(10))
    assert life.status(at(10)).state == ContainerState(terminated=want_end)
    crashed = an_instance(image="crash")
    crashed.start(at(0))
    crashed.crash(at(1), again=True)
    crashed.stop(at(1))
    assert (crashed.has_ended, crashed.exit_code) == (True, 1)
    unborn = an_instance()
    unborn.stop(at(1))
    assert not unborn.has_ended


LOST = Terminated(255, "Unknown", "2023-11-14T20:00:00Z", STARTED, "old")
CRASHED = Terminated(1, "Error", "2023-11-14T20:00:00Z", "2023-11-14T20:00:01Z", "old")


@pytest.mark.parametrize(
    ("before", "want_restarts", "want_last"),
    [
        pytest.param(
            ContainerStatus(
                container_id="old",
                restart_count=2,
                state=ContainerState(running=Running("2023-11-14T20:00:00Z")),
            ),
            3,
            ContainerState(terminated=LOST),
            id="one that ran was lost",
        ),
        pytest.param(
            ContainerStatus(
                restart_count=4,
                state=ContainerState(waiting=Waiting("CrashLoopBackOff", "so")),
                last_state=ContainerState(terminated=CRASHED),
            ),
            5,
            ContainerState(terminated=CRASHED),
            id="one that waited crashed before",
        ),
        pytest.param(
            ContainerStatus(state=ContainerState(terminated=CRASHED)),
            1,
            ContainerState(terminated=CRASHED),
            id="one that ended",
        ),
        pytest.param(
            ContainerStatus(state=ContainerState(waiting=Waiting("ContainerCreating"))),
            0,
            ContainerState(),
            id="one that never ran is no restart",
        ),
    ],
)
def test_a_container_of_an_earlier_kubelet_is_restarted(
    before: ContainerStatus, want_restarts: int, want_last: ContainerState
) -> None:
    """The count goes up, and how the former one ended is remembered."""
    life = an_instance(before)
    life.start(at(0))
    status = life.status(at(0))
    assert (status.restart_count, status.last_state) == (want_restarts, want_last)


def test_a_container_without_an_image_tries_again_after_growing_waits() -> None:
    """Each attempt shows for a second, then the back-off, and nothing ever runs."""
    life = an_instance(image="nginx:1.161")
    life.start(at(0))
    seen = []
    moment = 0.0
    for _ in range(6):
        status = life.status(at(moment))
        assert status.state.waiting is not UNSET
        due_s = life.due_in(at(moment))
        assert due_s is not None
        seen.append((status.state.waiting.reason, due_s))
        assert (status.image_id, status.container_id, status.restart_count) == ("", UNSET, 0)
        assert not life.is_running
        moment += due_s
        assert life.must_start(at(moment))
        life.start(at(moment))
    assert seen == [
        ("ErrImagePull", 1.0),
        ("ImagePullBackOff", 1.0),
        ("ErrImagePull", 1.0),
        ("ImagePullBackOff", 2.0),
        ("ErrImagePull", 1.0),
        ("ImagePullBackOff", 4.0),
    ]


def test_an_invalid_name_is_not_tried_again() -> None:
    """It will not get better."""
    life = an_instance(image="Web")
    life.start(at(0))
    waiting = life.status(at(0)).state.waiting
    assert waiting is not UNSET
    assert waiting.reason == "InvalidImageName"
    assert (life.due_in(at(0)), life.must_start(at(100))) == (None, False)


def test_a_container_that_waited_for_its_image_was_never_started() -> None:
    """The next kubelet counts no restart of it."""
    before = an_instance(image="nginx:1.161")
    before.start(at(0))
    life = an_instance(before.status(at(0)), image="web")
    life.start(at(1))
    status = life.status(at(1))
    assert (status.restart_count, status.last_state) == (0, ContainerState())
