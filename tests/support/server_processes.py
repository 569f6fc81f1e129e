"""Our own API server as a process, as a user starts it, for tests that must see it end.

    with embedded_server(tmp_path / "data") as server:
        server.process.kill()

What it logs goes to a file beside its directory, so that nothing is lost when it is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

STOP_SECONDS: Final = 60


class NotStartedError(Exception):
    """The server ended before it was ready; says what it said."""


class Embedded(NamedTuple):
    """A running `keepclose apiserver`."""

    process: subprocess.Popen[str]
    url: str
    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """The admin's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.url.rpartition(":")[2])

    @property
    def log(self) -> Path:
        """Where its standard error goes."""
        return log_of(self.directory)

    def role(self, name: str) -> Path:
        """Return the kubeconfig of a role."""
        return self.directory / f"{name}.kubeconfig"

    def token(self, name: str = "admin") -> str:
        """Return the token of a role, or of a node as node-<name>."""
        return (self.directory / "tokens" / name).read_text().strip()

    def stop(self) -> int:
        """End the process, if it still runs, as a user does, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def kill(self) -> None:
        """End the process without any warning."""
        self.process.kill()
        self.stop()


@contextlib.contextmanager
def embedded_server(directory: Path, *flags: str, port: int = 0) -> Iterator[Embedded]:
    """Run the server for the time of the block."""
    server = start_embedded(directory, *flags, port=port)
    try:
        yield server
    finally:
        server.stop()


def start_embedded(directory: Path, *flags: str, port: int = 0) -> Embedded:
    """Start the server and return when it says that it is ready; raises NotStartedError."""
    command = [sys.executable, "-m", "keepclose", "apiserver", "--data-dir", str(directory)]
    with log_of(directory).open("ab") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    line = "" if process.stdout is None else process.stdout.readline()
    if "ready" not in line:
        process.kill()
        process.communicate()
        raise NotStartedError(f"{line}{log_of(directory).read_text()[-3000:]}")
    url = next(word for word in line.split() if word.startswith("http"))
    return Embedded(process, url, directory)


def log_of(directory: Path) -> Path:
    """Return where the server of a directory logs to."""
    return directory.parent / f"{directory.name}.log"
