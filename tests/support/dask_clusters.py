"""Dask schedulers and workers on loopback, each a process of its own that a test may kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

WITHIN_S: Final = 300.0
"""How long a sweep may take to begin or to end on a busy machine."""

_SCHEDULER = """
import asyncio, sys
{before}
from distributed import Scheduler

async def main():
    async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
        print(scheduler.address, flush=True)
        await scheduler.finished()

asyncio.run(main())
"""
_WORKER = """
import asyncio, sys
{before}
from distributed import Worker

async def main():
    async with Worker(
        sys.argv[1], nthreads=1, host="127.0.0.1", dashboard=False, local_directory=sys.argv[2]
    ) as worker:
        print(worker.address, flush=True)
        await worker.finished()

asyncio.run(main())
"""
_OTHER_VERSION = """
import distributed.versions as versions
installed = versions.version
versions.version = lambda name: "2020.1" if name == "{package}" else installed(name)
"""
_OTHER_CODE = """
import keepclose.simulate.sweep_task as sweep_task
sweep_task._digest_code = lambda: "0123456789ab"
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    """Return when it is so; fail when it is not in time."""
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end
        # NB: tasks of another process tell no event.
        time.sleep(0.05)


class DaskProcess:
    """A scheduler or a worker, and the address at which it is ready."""

    def __init__(self, program: str, *arguments: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._popen.stdout is not None
        self.address = self._popen.stdout.readline().strip()
        assert self.address

    def pause(self) -> None:
        """Let the process stand still; its connections stay open and say nothing."""
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a process go on that stands still."""
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once, as the kernel does when memory runs out."""
        self._popen.kill()
        self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


@contextmanager
def started_scheduler(*, other_version_of: str = "") -> Iterator[DaskProcess]:
    """Start a scheduler; it may claim another version of a package."""
    before = _OTHER_VERSION.format(package=other_version_of) if other_version_of else ""
    scheduler = DaskProcess(_SCHEDULER.format(before=before))
    try:
        yield scheduler
    finally:
        scheduler.kill()


@contextmanager
def started_worker(
    scheduler: DaskProcess, folder: Path, *, has_other_code: bool = False
) -> Iterator[DaskProcess]:
    """Start a worker with one thread, which may claim other code of keepclose."""
    before = _OTHER_CODE if has_other_code else ""
    worker = DaskProcess(_WORKER.format(before=before), scheduler.address, str(folder))
    try:
        yield worker
    finally:
        worker.kill()
