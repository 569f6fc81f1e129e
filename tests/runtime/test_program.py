"""A program: its parts, the signals that stop it, and parts that are restarted."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from keepclose.runtime.program import Parts, beside, keep_running, run_parts, run_program
from keepclose.testing.api_server import PATIENCE


class Recorded:
    """Parts that record their start and their end."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    async def run(self, name: str) -> None:
        """Run until cancelled, and take a few turns to stop."""
        self.steps.append(f"{name} starts")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            self.steps.append(f"{name} ends")

    async def fail(self, gate: asyncio.Event) -> None:
        """Fail once the gate is open."""
        await gate.wait()
        raise ValueError("broken")


async def test_parts_stop_in_reverse_one_after_the_other() -> None:
    """The first part is there until all others have ended."""
    recorded = Recorded()
    parts = Parts(recorded.run(name) for name in ("a", "b", "c"))
    await asyncio.sleep(0)
    await parts.stop()
    assert recorded.steps == [
        *("a starts", "b starts", "c starts"),
        *("c ends", "b ends", "a ends"),
    ]
    await parts.stop()


async def test_the_first_failure_stops_all_parts() -> None:
    """Its error is raised, after the other parts have ended."""
    recorded = Recorded()
    gate = asyncio.Event()
    running = asyncio.create_task(run_parts((recorded.run("a"), recorded.fail(gate))))
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match="broken"):
            await running
    assert recorded.steps == ["a starts", "a ends"]


async def test_parts_that_end_by_themselves_are_done() -> None:
    """A part that returns is no failure, and with the last one all are done."""
    async with asyncio.timeout(PATIENCE):
        await run_parts((asyncio.sleep(0), asyncio.sleep(0)))


async def test_waiting_beside_parts() -> None:
    """What is awaited gives its result, unless a part fails before; then it is cancelled."""
    recorded = Recorded()
    gate = asyncio.Event()
    parts = Parts((recorded.fail(gate), asyncio.sleep(0)))
    assert await parts.until(asyncio.sleep(0, "result")) == "result"
    waiting = asyncio.create_task(parts.until(recorded.run("main")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match="broken"):
            await waiting
    assert recorded.steps == ["main starts", "main ends"]
    await parts.stop()


async def test_an_endless_part_that_ends_has_failed() -> None:
    """Whether it returns or is cancelled; without that a program would go on without it."""
    parts = Parts((asyncio.sleep(0),), are_endless=True)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="a part of the program ended"):
            await parts.until(asyncio.get_running_loop().create_future())
    await parts.stop()


async def test_the_cancellation_of_a_part_is_not_that_of_the_program() -> None:
    """It is an error, which a program reports."""

    async def cancel() -> None:
        raise asyncio.CancelledError

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(RuntimeError, match="was cancelled"):
            await run_parts((cancel(),))


async def test_an_error_while_stopping_is_retrieved() -> None:
    """What is awaited may fail while it is cancelled; the error of the part is raised."""
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: reported.append(context))

    async def fail_when_cancelled() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError as error:
            raise KeyError from error

    opened = asyncio.Event()
    opened.set()
    parts = Parts((Recorded().fail(opened),))
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ValueError, match="broken"):
            await parts.until(fail_when_cancelled())
    await parts.stop()
    gc.collect()
    assert reported == []


async def test_an_error_of_a_part_that_stops_is_logged() -> None:
    """The log names the part and has its error; the parts before it stop as well."""
    recorded = Recorded()

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("broken")

    parts = Parts((recorded.run("a"), fail_when_cancelled()))
    await asyncio.sleep(0)
    with capture_logs() as logs:
        await parts.stop()
    assert [(line["log_level"], line["event"]) for line in logs] == [("error", "part failed")]
    assert logs[0]["part"].endswith("fail_when_cancelled")
    assert repr(logs[0]["exc_info"]) == "ValueError('broken')"
    assert recorded.steps == ["a starts", "a ends"]


async def test_an_error_is_raised_or_logged_but_not_both() -> None:
    """Of two parts that fail at once the error of one is raised, that of the other is logged."""
    gate = asyncio.Event()
    gate.set()
    recorded = Recorded()
    with capture_logs() as logs, pytest.raises(ValueError, match="broken"):
        await run_parts((recorded.fail(gate),))
    assert logs == []
    with capture_logs() as logs, pytest.raises(ValueError, match="broken") as raised:
        await run_parts((recorded.fail(gate), recorded.fail(gate)))
    assert [line["event"] for line in logs] == ["part failed"]
    assert isinstance(logs[0]["exc_info"], ValueError)
    assert logs[0]["exc_info"] is not raised.value


async def test_a_coroutine_beside_a_block_ends_with_it() -> None:
    """Also when the block raises; an error of the coroutine is logged and not raised."""
    recorded = Recorded()

    async def fail_beside() -> None:
        async with beside(recorded.run("a")):
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await fail_beside()
    opened = asyncio.Event()
    opened.set()
    with capture_logs() as logs:
        async with beside(recorded.fail(opened)):
            await asyncio.sleep(0)
    assert [line["event"] for line in logs] == ["part failed"]
    assert recorded.steps == ["a starts", "a ends"]


async def test_a_part_that_fails_is_restarted() -> None:
    """It runs again after each error, until it returns."""
    runs: list[int] = []

    async def run() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise OSError("disk full")

    async with asyncio.timeout(PATIENCE):
        await keep_running(run, what="part", after_s=0.0)
    assert runs == [0, 1, 2]


@pytest.mark.parametrize("stop_within_s", [None, 60.0])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_a_program(number: signal.Signals, stop_within_s: float | None) -> None:
    """The program is cancelled and ends in its own order; a second signal changes nothing."""
    steps: list[str] = []

    async def work() -> None:
        os.kill(os.getpid(), number)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if stop_within_s is not None:
                os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)
            steps.append("stopped")

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        run_program(work(), stop_within_s=stop_within_s)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert steps == ["stopped"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_kernel_ends_a_program_that_does_not_stop() -> None:
    """Work that holds the event loop cannot outlive its time."""
    script = (
        "import os, signal, time\n"
        "from keepclose.runtime.program import run_program\n"
        "async def work():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    while True: time.sleep(0.01)\n"
        "run_program(work(), stop_within_s=0.2)\n"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, check=False)
    assert ended.returncode == -signal.SIGALRM
    assert time.monotonic() - began > 0.2
