"""Network namespaces held as open files of this process: they have no names that could stay behind.

The kernel removes a namespace when nobody holds it any more, so all of them are gone when their
process ends in whatever way. A socket belongs to the namespace in which it was made, whoever uses
it; so one process can serve and call in all of them. The machine's own namespace is never changed.
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
_CLONE_NEWNET: Final = 0x40000000
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 0x1
_SECONDS: Final = 60
# The paths of ordinary users often lack the folders of the tools that only root used to need.
_MORE_PATHS: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")


class NetworkError(Exception):
    """The kernel or one of its tools refused something; says what in one line."""


class NetworkNamespace:
    """A network namespace, there as long as this object or a socket inside holds it."""

    def __init__(self, name: str, fd: int) -> None:
        self.name, self.fd = name, fd
        self._process = os.getpid()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Namespace({self.name!r}, {self.fd})"

    @property
    def path(self) -> Path:
        """The file that stands for it, for whoever may look into this process."""
        return Path(f"/proc/{self._process}/fd/{self.fd}")

    def do(self, work: Callable[[], _T]) -> _T:
        """Return what the work returns, done by a thread inside; raises what it raises.

        Raises NetworkError when the namespace is closed.
        """
        with self._lock:
            if self.fd < 0:
                raise NetworkError(f"the network namespace of {self.name} is gone")
            # NB: a number of its own, because another thread may close this one meanwhile.
            held = os.dup(self.fd)

        def run() -> _T:
            _enter(held, self.name)
            return work()

        try:
            return _do_in_thread(run)
        finally:
            os.close(held)

    def open_socket(
        self,
        family: socket.AddressFamily = socket.AF_INET,
        kind: socket.SocketKind = socket.SOCK_STREAM,
    ) -> socket.socket:
        """Return a new socket that lives inside."""
        return self.do(lambda: socket.socket(family, kind))

    def set_values(self, values: Mapping[str, int | str]) -> None:
        """Write kernel settings of the namespace, by their path below /proc/sys/net."""
        self.do(lambda: _write_values(values))

    def run(self, *command: str, text: str = "") -> str:
        """Run a command inside and return what it printed; raises NetworkError if it fails."""
        try:
            # A child starts where the thread is that starts it.
            done = self.do(
                lambda: subprocess.run(  # noqa: S603 - the caller's own command
                    command,
                    input=text,
                    capture_output=True,
                    text=True,
                    timeout=_SECONDS,
                    check=False,
                    # Python's files are closed in children anyway; looking for others takes long.
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
        """Let go of it; it stays as long as somebody else holds it."""
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
            self.fd = -1


def make_namespace(name: str, values: Mapping[str, int | str] | None = None) -> NetworkNamespace:
    """Make a namespace with its loopback up and perhaps settings; raises NetworkError."""

    def make() -> int:
        if _libc().unshare(_CLONE_NEWNET) != 0:
            raise _last_error(name)
        _write_values(values or {})
        _raise_loopback()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    try:
        return NetworkNamespace(name, _do_in_thread(make))
    except OSError as error:
        raise NetworkError(f"the kernel makes no network namespace: {error.strerror}") from None


def enter_network(namespace: Path) -> None:
    """Move the calling thread, and it alone, into a network namespace; raises OSError.

    Python has `os.setns` from 3.12 on only.
    """
    with namespace.open() as file:
        _enter(file.fileno(), str(namespace))


def search_path() -> str:
    """Return where programs are looked for: where users have them, and administrators."""
    path = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*path, *(one for one in _MORE_PATHS if one not in path)])


def _do_in_thread(work: Callable[[], _T]) -> _T:
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
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


def _enter(fd: int, name: str) -> None:
    if _libc().setns(fd, _CLONE_NEWNET) != 0:
        raise _last_error(name)


def _write_values(values: Mapping[str, int | str]) -> None:
    for name, value in values.items():
        try:
            Path("/proc/sys/net", name).write_text(str(value))
        except OSError as error:
            setting = "net." + name.replace("/", ".")
            raise NetworkError(f"{setting} cannot be set: {error.strerror}") from None


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(one, _SIOCGIFFLAGS, request))
        fcntl.ioctl(one, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def _last_error(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), name)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
