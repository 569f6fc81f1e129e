"""`keepclose up` as people run it: processes, and what must be left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keepclose.lab.cluster.control import call_lab
from keepclose.lab.network.privilege import why_no_packets
from keepclose.system.namespaces import create_network_namespace

SECONDS = 240
SMALL = ("--zones", "2", "--nodes-per-zone", "1", "--port", "0")


class Finished(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


class Ground(NamedTuple):
    """A directory to start clusters in, and perhaps another way to run commands."""

    directory: Path
    before: tuple[str, ...] = ()
    env: dict[str, str] | None = None

    def command(self, *arguments: str) -> list[str]:
        """Return a command line for keepclose."""
        return [*self.before, sys.executable, "-m", "keepclose", *arguments]

    def run(self, *arguments: str, text: str = "") -> Finished:
        """Run a command to its end; the directory is told by the environment."""
        return self._run(arguments, text, self.environment)

    def run_plainly(self, *arguments: str) -> Finished:
        """Run a command that finds the directory by itself."""
        return self._run(arguments, "", self.env or {})

    def _run(self, arguments: tuple[str, ...], text: str, env: dict[str, str]) -> Finished:
        done = subprocess.run(
            self.command(*arguments),
            input=text,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=env,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        """What commands see."""
        found = dict(os.environ if self.env is None else self.env)
        return {**found, "KEEPCLOSE_DATA_DIR": str(self.directory), "COLUMNS": "100"}

    def up(self, *options: str) -> Finished:
        """Start a small cluster and return when it is ready."""
        done = self.run("up", "--detach", *SMALL, *options)
        assert done.code == 0, done
        return done

    def traffic(self, *options: str) -> dict[str, Any]:
        """Return what connections to the demo did."""
        done = self.run("traffic", "demo-svc", "--connections", "60", "-o", "json", *options)
        assert done.code in (0, 1), done
        found: dict[str, Any] = json.loads(done.out)
        return found

    @property
    def state(self) -> dict[str, Any]:
        """What the running cluster says of itself."""
        found: dict[str, Any] = json.loads((self.directory / "lab.json").read_text())
        return found

    def processes(self) -> list[int]:
        """Return all processes of clusters in the directory, by what they see."""
        return [pid for pid in _pids() if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        want = f"KEEPCLOSE_DATA_DIR={self.directory}".encode()
        try:
            seen = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return want in seen and pid != os.getpid() and not is_zombie(pid)
        except OSError:
            return False

    def places(self) -> dict[str, Any]:
        """Return the process that holds the namespaces, and its file of each."""
        found: dict[str, Any] = call_lab(self.directory, "places", {})
        return found


class Watcher:
    """Sees namespaces vanish: a link into each, whose near end goes when the far one does.

    NB: numbers of namespaces tell nothing, because the kernel gives them out again.
    """

    def __init__(self, places: dict[str, Any]) -> None:
        self._namespace = create_network_namespace("watcher")
        self.watched = len(places["fds"])
        for number, fd in enumerate(places["fds"].values()):
            far = f"netns /proc/{places['pid']}/fd/{fd}"
            line = f"link add w{number} type veth peer name watched {far}"
            self._namespace.run("ip", *line.split())

    def remaining(self) -> int:
        """Return how many of the namespaces are still there."""
        return self._namespace.run("ip", "-o", "link").count(": w")

    def close(self) -> None:
        """Stop watching."""
        self._namespace.close()


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def is_zombie(pid: int) -> bool:
    """Return whether a process has ended and waits to be asked about; raises OSError."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


@contextmanager
def watching(ground: Ground) -> Iterator[Watcher]:
    """Watch all namespaces of the cluster on the ground."""
    watcher = Watcher(ground.places())
    try:
        yield watcher
    finally:
        watcher.close()


def until(is_so: Callable[[], object], seconds: float = 120.0) -> None:
    """Return when it is so; fail when it is not in time."""
    end = time.monotonic() + seconds
    # NB: processes of others tell nobody when they end.
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def ground_for(directory: Path, **more: Any) -> Iterator[Ground]:
    """Give a ground, and end what is left on it."""
    ground = Ground(directory, **more)
    try:
        yield ground
    finally:
        ground.run("down")


def skip_without_packets() -> None:
    """Skip a test where no packets can be sent, with the reason."""
    reason = why_no_packets() if os.geteuid() == 0 else "needs root"
    if reason:
        pytest.skip(reason)
