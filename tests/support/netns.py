"""Network namespaces: worlds of their own for nodes, pods and clients, gone after the block.

Both ends of every link are inside namespaces, so the machine's own network is never touched. A
socket belongs to the namespace in which it was made, whoever uses it; so one process can serve and
call in all of them. Needs root; whoever lacks it is told so and not failed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from keepclose.proxy.health import listen_here
from keepclose.system.namespaces import enter_network

T = TypeVar("T")
PREFIX: Final = "kcbed"
_HOME: Final = Path("/run/netns")
_SECONDS: Final = 60
_NUMBERS: Final = itertools.count(1)


class NamespacesUnavailableError(Exception):
    """This process may not or cannot make network namespaces; says why."""


class Namespace(NamedTuple):
    """A network namespace."""

    name: str

    @property
    def path(self) -> Path:
        """The file that stands for it."""
        return _HOME / self.name

    def do(self, work: Callable[[], T]) -> T:
        """Return what the work returns, done by a thread inside; raises what it raises."""
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                enter_network(self.path)
                results.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again by the caller
                errors.append(error)

        # NB: the thread ends inside, so that no other code ever finds itself there.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def open_socket(
        self,
        family: socket.AddressFamily = socket.AF_INET,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> socket.socket:
        """Return a new socket that lives inside."""
        return self.do(lambda: socket.socket(family, kind))

    def listen(self, host: str, port: int) -> socket.socket:
        """Return a TCP socket that listens inside."""
        return self.do(lambda: listen_here(host, port))

    def set_values(self, values: Mapping[str, int | str]) -> None:
        """Write kernel settings of the namespace, by their path below /proc/sys/net."""

        def write() -> None:
            for name, value in values.items():
                Path("/proc/sys/net", name).write_text(str(value))

        self.do(write)

    def run(self, *command: str, text: str = "") -> str:
        """Run a command inside and return what it printed; raises CalledProcessError."""
        done = subprocess.run(
            self.command(*command),
            input=text,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=True,
        )
        return done.stdout

    def command(self, *command: str | Path) -> list[str]:
        """Return the command line that runs a command inside."""
        return ["ip", "netns", "exec", self.name, *(str(one) for one in command)]

    @contextlib.contextmanager
    def running(
        self, command: Sequence[str | Path], log: Path
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program inside for the block; its output goes to the log."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(*command),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextlib.contextmanager
def namespaces(*roles: str) -> Iterator[list[Namespace]]:
    """Make a namespace for each role, with its loopback up, and remove them all afterwards.

    Raises NamespacesUnavailableError.
    """
    reason = why_unavailable()
    if reason:
        raise NamespacesUnavailableError(reason)
    _remove(leftovers())
    bed = f"{PREFIX}-{os.getpid()}-{next(_NUMBERS)}"
    made = [Namespace(f"{bed}-{role}") for role in roles]
    try:
        try:
            ip_batch([f"netns add {one.name}" for one in made])
            ip_batches({one: ["link set lo up"] for one in made})
        except subprocess.CalledProcessError as error:
            raise NamespacesUnavailableError(
                f"the kernel makes no network namespaces: {error.stderr.strip()}"
            ) from None
        yield made
    finally:
        _remove([one.name for one in made if one.path.exists()])


@contextlib.contextmanager
def namespaces_or_skip(*roles: str) -> Iterator[list[Namespace]]:
    """Make namespaces for the block of a test, or skip the test with the reason."""
    import pytest  # noqa: PLC0415 - only tests have it

    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(namespaces(*roles))
        except NamespacesUnavailableError as error:
            pytest.skip(str(error))
        yield made


def why_unavailable() -> str:
    """Return why no namespaces can be made here, or ""."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package {package})"
    return ""


def leftovers(home: Path = _HOME) -> list[str]:
    """Return the names of namespaces whose makers were killed before they could clean up."""
    found = []
    for path in home.glob(f"{PREFIX}-*"):
        match = re.fullmatch(rf"{PREFIX}-(\d+)-.*", path.name)
        if match and not Path("/proc", match[1]).exists():
            found.append(path.name)
    return found


def ip_batch(lines: Sequence[str], namespace: Namespace | None = None) -> None:
    """Run commands of `ip` with one process, inside the namespace; raises CalledProcessError."""
    where = [] if namespace is None else ["-n", namespace.name]
    subprocess.run(
        ["ip", *where, "-batch", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )


def ip_batches(batches: Mapping[Namespace, Sequence[str]]) -> None:
    """Run commands in several namespaces at once; raises CalledProcessError."""
    processes = [
        (
            lines,
            subprocess.Popen(
                ["ip", "-n", namespace.name, "-batch", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
        for namespace, lines in batches.items()
    ]
    failed: list[subprocess.CalledProcessError] = []
    for lines, process in processes:
        with process:
            _, said = process.communicate("\n".join(lines) + "\n", timeout=_SECONDS)
        if process.returncode != 0:
            failed.append(
                subprocess.CalledProcessError(process.returncode, process.args, stderr=said)
            )
    if failed:
        raise failed[0]


def _remove(names: Sequence[str]) -> None:
    if names:
        with contextlib.suppress(subprocess.CalledProcessError):
            # One that somebody else removed must not keep the others.
            subprocess.run(
                ["ip", "-force", "-batch", "-"],
                input="".join(f"netns delete {name}\n" for name in names),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=True,
            )
