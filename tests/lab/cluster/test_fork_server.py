"""Programs that are kept running by a process that makes processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from support.commands.upcommands import is_zombie

_SCRIPT = """
import asyncio, json, os, sys
from pathlib import Path
from keepclose.cli.startup import log_to_standard_error
from keepclose.lab.cluster.process_keeper import ProcessKeeper
from keepclose.lab.cluster.fork_server import ForkServer
from keepclose.lab.cluster.programs import ApiServerProgram, ControllerProgram, ProgramError
from keepclose.lab.cluster.programs import LAB_GATES

directory, port = Path(sys.argv[1]), int(sys.argv[2])
fork_server = ForkServer.open(log_to_standard_error)

async def main():
    keeper = ProcessKeeper(fork_server, directory)
    server = ApiServerProgram(str(directory / "data"), port, LAB_GATES)
    try:
        ready = await keeper.start(server)
    except ProgramError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    await keeper.start(ControllerProgram(str(directory / "data/controller.kubeconfig"), LAB_GATES))
    print(json.dumps({"url": ready.url, "fork_server": fork_server.pid}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await keeper.stop_all()

asyncio.run(main())
fork_server.close()
print(json.dumps({"ended": True}), flush=True)
"""


class Kept:
    """A process that keeps two programs running."""

    def __init__(self, directory: Path, port: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(directory), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def read(self) -> dict[str, object]:
        """Return the next thing it says."""
        assert self.process.stdout is not None
        found: dict[str, object] = json.loads(self.process.stdout.readline())
        return found


@contextlib.contextmanager
def keeping(directory: Path, port: int = 0) -> Iterator[Kept]:
    """Run it for the block."""
    kept = Kept(directory, port)
    try:
        yield kept
    finally:
        kept.process.kill()
        kept.process.communicate()


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has made."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def exists(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody asked about does not."""
    try:
        return not is_zombie(pid)
    except OSError:
        return False


def until_gone(pids: list[int]) -> None:
    """Return when none of the processes exists; fail after a while."""
    end = time.monotonic() + 60
    while any(exists(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_programs_start_and_stop(tmp_path: Path) -> None:
    """Both say that they work, and are gone after the stop."""
    with keeping(tmp_path) as kept:
        said = kept.read()
        assert str(said["url"]).startswith("https://127.0.0.1:")
        pid = int(str(said["fork_server"]))
        children = children_of(pid)
        assert len(children) == 2
        assert kept.process.stdin is not None
        kept.process.stdin.write(b"\n")
        kept.process.stdin.flush()
        assert kept.read() == {"ended": True}
        until_gone([pid, *children])


def test_whoever_kills_the_first_process_ends_all(tmp_path: Path) -> None:
    """Nothing survives it, although nobody could clean up."""
    with keeping(tmp_path) as kept:
        pid = int(str(kept.read()["fork_server"]))
        children = children_of(pid)
        os.kill(kept.process.pid, signal.SIGKILL)
        until_gone([*children, pid])


def test_a_program_that_is_killed_comes_back(tmp_path: Path) -> None:
    """As another process, while the others stay."""
    with keeping(tmp_path) as kept:
        pid = int(str(kept.read()["fork_server"]))
        first, second = children_of(pid)
        os.kill(second, signal.SIGKILL)
        until_gone([second])
        end = time.monotonic() + 60
        while len(children_of(pid)) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert first in children_of(pid)


def test_a_nursery_that_is_killed_ends_its_children(tmp_path: Path) -> None:
    """And whoever has it goes on to its end, without them."""
    with keeping(tmp_path) as kept:
        pid = int(str(kept.read()["fork_server"]))
        children = children_of(pid)
        os.kill(pid, signal.SIGKILL)
        until_gone(children)
        assert kept.process.stdin is not None
        kept.process.stdin.write(b"\n")
        kept.process.stdin.flush()
        assert kept.read() == {"ended": True}


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    """In the words of the program itself, and nothing keeps running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with keeping(tmp_path, port) as kept:
            want = f"cannot listen at 127.0.0.1 port {port}: Address already in use"
            assert str(kept.read()["error"]).startswith(want)
            assert kept.read() == {"ended": True}
            assert kept.process.wait(20) == 0
