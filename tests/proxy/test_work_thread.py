"""The thread for calls that block."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keepclose.proxy.nft.work_thread import StuckError, WorkThread
from support.netns import namespaces_or_skip


@contextmanager
def working(thread: WorkThread) -> Iterator[WorkThread]:
    """End the thread after the block."""
    try:
        yield thread
    finally:
        thread.stop()
        assert thread.join(10)


async def test_work_is_done_in_order_off_the_loop() -> None:
    """Results and errors come back from one other thread, in order."""
    with working(WorkThread("t")) as thread:
        calls = [
            thread.run(lambda i=i: (i, threading.get_ident()), limit=5, what="x")  # type: ignore[misc]
            for i in range(5)
        ]
        done = await asyncio.gather(*calls)
        assert [one[0] for one in done] == [0, 1, 2, 3, 4]
        assert len({one[1] for one in done}) == 1
        assert done[0][1] != threading.get_ident()
        with pytest.raises(ValueError, match="bad"):
            await thread.run(lambda: int("bad"), limit=5, what="x")


async def test_a_call_that_hangs_is_told_and_blocks_others_until_it_ends() -> None:
    """Nothing is tried while an old call may still take effect."""
    release = threading.Event()
    with working(WorkThread("t")) as thread:
        with pytest.raises(StuckError, match=r"the first did not come back within 0\.05 s"):
            await thread.run(lambda: release.wait(10), limit=0.05, what="the first")
        with pytest.raises(StuckError, match="the first has not come back yet; the next was not"):
            await thread.run(lambda: 1, limit=5, what="the next")
        release.set()
        for _ in range(3000):
            await asyncio.sleep(0.01)
            try:
                assert await thread.run(lambda: 2, limit=5, what="later") == 2
                break
            except StuckError:
                continue
        else:
            pytest.fail("the thread never recovered")


async def test_the_loop_lives_while_a_call_hangs() -> None:
    """Other tasks go on."""
    release = threading.Event()
    with working(WorkThread("t")) as thread:
        task = asyncio.create_task(thread.run(lambda: release.wait(10), limit=10, what="x"))
        await asyncio.sleep(0)
        release.set()
        assert await task is True


async def test_a_cancelled_call_still_counts_as_running() -> None:
    """Cancelling the wait does not undo the work."""
    release = threading.Event()
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> bool:
        loop.call_soon_threadsafe(started.set)
        return release.wait(10)

    with working(WorkThread("t")) as thread:
        task = asyncio.create_task(thread.run(work, limit=10, what="the first"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(StuckError, match="the first has not come back yet"):
            await thread.run(lambda: 1, limit=5, what="the next")
        release.set()


async def test_work_inside_a_namespace() -> None:
    """The thread is in the namespace, the rest of the process is not."""
    with namespaces_or_skip("a") as [inside]:

        def here() -> int:
            return os.stat("/proc/thread-self/ns/net").st_ino  # noqa: PTH116

        with working(WorkThread("t", namespace=inside.path)) as thread:
            assert await thread.run(here, limit=5, what="x") == inside.path.stat().st_ino
        assert here() != inside.path.stat().st_ino


async def test_no_work_is_done_when_the_namespace_cannot_be_entered(tmp_path: Path) -> None:
    """Work must never happen in the wrong namespace."""
    done: list[int] = []
    with working(WorkThread("t", namespace=tmp_path / "gone")) as thread:
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="gone"):
                await thread.run(lambda: done.append(1), limit=5, what="x")
    assert done == []


def test_a_thread_that_never_worked_ends() -> None:
    """Nothing is started before it is needed."""
    assert WorkThread("t").join(0) is True
