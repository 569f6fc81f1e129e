"""Network namespaces held as open files of this process, without names that could stay behind.

The kernel removes a namespace when no process holds it, so all of them are gone when this process
ends, even after a crash. A socket belongs to the namespace in which it was created, whichever
thread uses it; so one process can serve and connect in all of them. The machine's own namespace is
never changed.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

_T = TypeVar("_T")
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWNET: Final = 0x40000000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_COMMAND_TIMEOUT_S: Final = 60
# The PATH of an ordinary user often lacks the directories of administrators' tools.
_ADMIN_PATHS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class NetworkError(Exception):
    """A failure of the kernel or of a network tool, in one line."""


class NetworkNamespace:
    """A network namespace, which exists as long as this object or a socket inside holds it."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self.fd = name, fd
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Namespace({self.name!r}, {self.fd})"

    @property
    def path(self) -> Path:
        """The file of the namespace, for processes that may inspect this one."""
        return Path(f"/proc/{self._process}/fd/{self.fd}")

    def do(self, work: Callable[[], _T]) -> _T:
        """Run the work in a thread inside the namespace; return or raise its result.

        Raise NetworkError when the namespace is closed.
        """
        with self._lock:
            if self.fd < 0:
                raise NetworkError(f"the network namespace of {self.name} is gone")
            # NB: a descriptor of its own, because another thread may close this one meanwhile.
            descriptor = os.dup(self.fd)

        def run() -> _T:
            _enter(descriptor, self.name)
            return work()

        try:
            return _do_in_thread(run)
        finally:
            os.close(descriptor)

    def open_socket(
        self,
        family: socket.AddressFamily = socket.AF_INET,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> socket.socket:
        """Return a new socket inside the namespace."""
        return self.do(lambda: socket.socket(family, kind))

    def set_values(self, values: Mapping[str, int | str]) -> None:
        """Write kernel settings of the namespace, by their path below /proc/sys/net."""
        self.do(lambda: _write_values(values))

    def run(self, *command: str, text: str = "") -> str:
        """Run a command inside and return its output; raise NetworkError if it fails."""
        try:
            # A child process inherits the namespace of the thread that starts it.
            done = self.do(
                lambda: subprocess.run(  # noqa: S603 - the caller's own command
                    command,
                    input=text,
                    capture_output=True,
                    text=True,
                    timeout=_COMMAND_TIMEOUT_S,
                    check=False,
                    # Descriptors of Python are not inherited anyway; closing all others is slow.
                    close_fds=False,
                    env={**os.environ, "PATH": search_path()},
                )
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NetworkError(f"{command[0]}: {error}") from None
        if done.returncode != 0:
            said = " ".join(done.stderr.split()) or f"ended with {done.returncode}"
            raise NetworkError(f"{command[0]}: {said}")
        return done.stdout

    def close(self) -> None:
        """Release the namespace; it stays as long as another process or socket holds it."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


def create_network_namespace(
    name: str, values: Mapping[str, int | str] | None = None
) -> NetworkNamespace:
    """Create a namespace with its loopback interface up and these settings; raise NetworkError."""

    def make() -> int:
        unshare(CLONE_NEWNET)
        _write_values(values or {})
        _set_loopback_up()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    try:
        return NetworkNamespace(name, _do_in_thread(make))
    except OSError as error:
        raise NetworkError(f"the kernel makes no network namespace: {error.strerror}") from None


def enter_network(namespace: Path) -> None:
    """Move only the calling thread into a network namespace; raise OSError."""
    with namespace.open() as file:
        _enter(file.fileno(), str(namespace))


def enter_command(command: list[str], *, pid: int, fd: int, user_namespace: bool) -> list[str]:
    """Return the command line that runs a command in the namespace of another process."""
    into = ["nsenter"]
    if user_namespace:
        # The user's own uid is root in there.
        into += [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"]
    return [*into, f"--net=/proc/{pid}/fd/{fd}", "--", *command]


def unshare(flag: int) -> None:
    """Move the calling thread into a new namespace of this kind; raise OSError.

    NB: `os.unshare` and `os.setns` exist from Python 3.12 on.
    """
    if _libc().unshare(flag) != 0:
        raise _last_error()


def search_path() -> str:
    """Return the PATH of the user with the directories of administrators' tools."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    missing = (directory for directory in _ADMIN_PATHS if directory not in path)
    return os.pathsep.join([*path, *missing])


def _do_in_thread(work: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    # NB: the thread ends inside the namespace, so that no other code ever runs there.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter(fd: int, name: str) -> None:
    if _libc().setns(fd, CLONE_NEWNET) != 0:
        raise _last_error(name)


def _write_values(values: Mapping[str, int | str]) -> None:
    for name, value in values.items():
        try:
            Path("/proc/sys/net", name).write_text(str(value))
        except OSError as error:
            setting = "net." + name.replace("/", ".")
            raise NetworkError(f"{setting} cannot be set: {error.strerror}") from None


def _set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _last_error(name: str | None = None) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
