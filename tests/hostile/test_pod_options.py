"""Options of a lab's pods: numbers of any length give times and ports that a kubelet can use."""

from __future__ import annotations

import math

import pytest

from keepclose.lab.kubelet.container_modes import ports_of, pre_stop_seconds, seconds_until_ready
from keepclose.model.workloads.pods import ContainerCommand, ContainerSpec, Lifecycle, LifecycleHook


@pytest.mark.parametrize("digits", [6, 400, 5000])
def test_a_port_of_many_digits_is_none(digits: int) -> None:
    """A number beyond all ports is passed over, however long it is."""
    container = ContainerSpec(name="c", args=(f"--port={'9' * digits}", "--http-port=81"))
    assert [port.number for port in ports_of([container]).ports] == [81]


@pytest.mark.parametrize("text", ["1e999", "inf", "9" * 400, "9" * 5000])
def test_a_start_that_never_ends_has_an_end(text: str) -> None:
    """A pod that wants to start for ever is ready at a time that a clock reaches."""
    seconds = seconds_until_ready(ContainerSpec(name="c", args=("slow-start", text)))
    assert seconds is not None
    assert math.isfinite(seconds)
    assert seconds > 10**9


def test_a_start_of_no_number_of_seconds_is_at_once() -> None:
    """What is not a number takes no time."""
    assert seconds_until_ready(ContainerSpec(name="c", args=("slow-start", "nan"))) == 0.0


def test_a_hook_that_sleeps_for_ever_has_an_end() -> None:
    """A preStop hook of endless sleep ends at a time that a clock reaches."""
    hook = LifecycleHook(exec=ContainerCommand(command=("sh", "-c", f"sleep {'9' * 400}")))
    container = ContainerSpec(name="c", lifecycle=Lifecycle(pre_stop=hook))
    assert math.isfinite(pre_stop_seconds(container))
