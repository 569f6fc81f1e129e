"""What becomes of a worker thread's call when the task that waits for it is cancelled."""

from __future__ import annotations

import ast
import asyncio
import socket
import threading
from pathlib import Path

import pytest

import keepclose
from keepclose.system.threads import finish_in_thread, finish_task, open_in_thread
from keepclose.testing.api_server import PATIENCE

SOURCE = Path(keepclose.__file__).parent


class GatedMaker:
    """Makes one socket, as soon as it may."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.released = threading.Event()
        self.made: list[socket.socket] = []

    def make(self) -> socket.socket:
        """Make the socket once the gate is open."""
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE)
        self.made.append(socket.socket())
        return self.made[0]

    def release(self, one: socket.socket) -> None:
        """Close the socket and take note of it."""
        one.close()
        self.released.set()

    async def open(self) -> socket.socket:
        """Return the socket as the code under test hands it over."""
        return await open_in_thread(self.make, self.release)


async def test_a_resource_goes_to_the_task_that_waits() -> None:
    """It is open, and released by its owner alone."""
    maker = GatedMaker()
    maker.may_end.set()
    with await maker.open() as one:
        assert one.fileno() >= 0
    assert not maker.released.is_set()


async def test_a_resource_made_after_the_waiter_left_is_released() -> None:
    """The worker thread closes what it made for a cancelled task."""
    maker = GatedMaker()
    waiter = asyncio.create_task(maker.open())
    await asyncio.to_thread(maker.has_begun.wait, PATIENCE)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    maker.may_end.set()
    assert await asyncio.to_thread(maker.released.wait, PATIENCE)
    assert maker.made[0].fileno() == -1


async def test_a_resource_that_a_cancelled_task_never_took_is_released() -> None:
    """It was made, and the task is cancelled before the event loop could hand it over."""
    maker = GatedMaker()
    waiter = asyncio.create_task(maker.open())
    await asyncio.to_thread(maker.has_begun.wait, PATIENCE)
    maker.may_end.set()
    # NB: blocks the event loop on purpose, so that the result is there and not yet delivered.
    while not maker.made:
        threading.Event().wait(0.001)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await asyncio.to_thread(maker.released.wait, PATIENCE)
    assert maker.made[0].fileno() == -1


def test_a_resource_is_released_when_the_event_loop_ends() -> None:
    """A loop that ends cancels all tasks and runs no callbacks, while the thread goes on."""
    maker = GatedMaker()

    async def wait() -> None:
        try:
            await maker.open()
        finally:
            maker.may_end.set()

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(wait())
        await asyncio.to_thread(maker.has_begun.wait, PATIENCE)
        return task

    assert asyncio.run(main()).cancelled()
    assert maker.made[0].fileno() == -1


async def test_a_failure_reaches_the_task_that_waits() -> None:
    """What the thread raises is raised, and nothing is released."""

    def fail() -> socket.socket:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await open_in_thread(fail, socket.socket.close)


@pytest.mark.parametrize("times", [1, 2], ids=["cancelled", "cancelled again"])
async def test_cancellation_waits_for_the_end_of_a_call(times: int) -> None:
    """The call has ended when the task is cancelled, however often it was asked to."""
    has_begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        has_begun.set()
        assert may_end.wait(PATIENCE)
        ended.set()

    waiter = asyncio.create_task(finish_in_thread(work))
    await asyncio.to_thread(has_begun.wait, PATIENCE)
    for _ in range(times):
        waiter.cancel()
        await asyncio.sleep(0)
    assert not waiter.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()


async def test_a_call_returns_or_raises_what_the_thread_does() -> None:
    """Without a cancellation nothing is special."""
    assert await finish_in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await finish_in_thread(lambda: 1 // 0)


async def test_a_failure_of_a_call_whose_waiter_was_cancelled_is_not_reported() -> None:
    """The waiter gets its cancellation, and the failure is dropped."""
    failing = asyncio.get_running_loop().create_future()
    waiter = asyncio.create_task(finish_task(failing))
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.sleep(0)
    failing.set_exception(OSError("too late"))
    with pytest.raises(asyncio.CancelledError):
        await waiter


def test_all_worker_threads_of_the_event_loop_are_started_in_one_module() -> None:
    """No other module drops the result of a thread when its waiter is cancelled."""
    starters = {"to_thread", "run_in_executor"}
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in starters
    }
    assert found == {"system/threads.py"}
