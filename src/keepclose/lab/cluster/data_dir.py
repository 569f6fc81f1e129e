"""The data directory of a cluster: its files, the process that holds it, and what remains.

One cluster at a time holds a directory, by a lock that the kernel releases when the holder ends in
any way. Only directories that a cluster created are ever removed, and only a directory of this user
is used: one of another user is rejected and never read.

The holder is identified by its pid and its start time, in clock ticks since boot, because pids are
reused. It is signalled by a pidfd: the signal reaches this very process or none.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from keepclose.system.private_files import BrokenFileError, PrivateDirectory

# In /proc/PID/stat, counted after the name in parentheses: field 22 of the whole line.
_START_FIELD: Final = 19
_MAX_DIGITS: Final = 20
DEFAULT_DATA_DIR: Final = Path("~/.keepclose")
_MARKER: Final = "made-by-keepclose-up"
LOCK: Final = "lab.lock"
_STATE: Final = "lab.json"
_SOCKET: Final = "lab.sock"
_LOGS: Final = "logs"
_FLOWS: Final = "flows"
_TEMPORARY_FILES: Final = (_STATE, _SOCKET, _FLOWS, LOCK)
_LOCK_WAIT_S: Final = 0.3


class Holder(NamedTuple):
    """A process, by its pid and its start time."""

    pid: int
    started: int


class NotRunningError(Exception):
    """The process has ended; another may have its pid."""


def identify_self() -> bytes:
    """Return this process in the form that `parse_holder` reads."""
    return f"{os.getpid()} {_start_of(os.getpid())}\n".encode()


def parse_holder(content: bytes) -> Holder | None:
    """Return the holder, or None if the content is incomplete."""
    words = content.decode("ascii", "replace").split()
    are_numbers = all(word.isdecimal() and len(word) <= _MAX_DIGITS for word in words)
    if len(words) != 2 or not are_numbers or int(words[0]) <= 1:
        return None
    return Holder(int(words[0]), int(words[1]))


def send_signal(holder: Holder, number: signal.Signals) -> None:
    """Send a signal; raises NotRunningError, and PermissionError for another user's process."""
    try:
        descriptor = os.pidfd_open(holder.pid)
    except OSError:
        raise NotRunningError from None
    try:
        # NB: read after the pidfd was opened, so that the pid cannot be reused in between.
        if _start_of(holder.pid) != holder.started:
            raise NotRunningError
        signal.pidfd_send_signal(descriptor, number)
    except (FileNotFoundError, ProcessLookupError):
        raise NotRunningError from None
    finally:
        os.close(descriptor)


class ClusterDirectoryError(Exception):
    """Why a directory cannot be used, and what to do."""


class BusyError(ClusterDirectoryError):
    """Another cluster holds the directory."""


class ClusterState(msgspec.Struct, frozen=True):
    """What a running cluster publishes about itself."""

    pid: int
    url: str
    kubeconfig: str
    zones: dict[str, list[str]]
    """The nodes of each zone."""
    packets: bool


class ClusterDirectory(NamedTuple):
    """The files of a cluster; a directory that is not kept is removed at the end."""

    directory: Path
    is_kept: bool = False

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def lab_kubeconfig(self) -> Path:
        """The kubeconfig of scheduler, kubelets and workload controllers."""
        return self.directory / "lab.kubeconfig"

    @property
    def controller_kubeconfig(self) -> Path:
        """The kubeconfig of the EndpointSlice controller."""
        return self.directory / "controller.kubeconfig"

    @property
    def logs(self) -> Path:
        """The directory of the logs, one of each process."""
        return self.directory / _LOGS

    @property
    def socket(self) -> Path:
        """The control socket of a running cluster."""
        return self.directory / _SOCKET

    @property
    def viewer_kubeconfig(self) -> Path:
        """The kubeconfig of programs that only read, such as the agents of flows."""
        return self.directory / "viewer.kubeconfig"

    def flow_checkpoint(self, node: str) -> Path:
        """Return the file in which the flow agent of a node keeps its counts over a restart.

        It is removed with the cluster: the connections of the next one are others.
        """
        return self.directory / _FLOWS / f"{node}.json"

    def node_kubeconfig(self, node: str) -> Path:
        """Return the kubeconfig of a node."""
        return self.directory / f"node-{node}.kubeconfig"

    def read_state(self) -> ClusterState | None:
        """Return the published state of the cluster, or None; raises ClusterDirectoryError."""
        try:
            with PrivateDirectory.open(self.directory) as directory:
                content = directory.read(_STATE)
                return None if content is None else msgspec.json.decode(content, type=ClusterState)
        except BrokenFileError as error:
            raise ClusterDirectoryError(str(error)) from None
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: ClusterState) -> None:
        """Publish the state of the cluster."""
        with PrivateDirectory.open(self.directory) as directory:
            directory.write(_STATE, msgspec.json.encode(state))

    def clear(self) -> None:
        """Remove everything, or in a kept directory the temporary files."""
        directory = _open_existing(self)
        if directory is not None:
            with directory:
                _clear(self, directory)


class _Claim:
    """A held directory, until `release` or the end of this process."""

    def __init__(self, data_dir: ClusterDirectory, directory: PrivateDirectory, file: int) -> None:
        self.data_dir, self._directory, self._file = data_dir, directory, file

    def release(self) -> None:
        """Clear the directory and release its lock."""
        with self._directory:
            _clear(self.data_dir, self._directory)
        os.close(self._file)


def check_data_dir(data_dir: ClusterDirectory) -> None:
    """Check that the directory is this user's or does not exist yet; raises ClusterDirectoryError.

    Call it before a user namespace is entered: from within, all other users look alike.
    """
    try:
        PrivateDirectory.open(data_dir.directory).close()
    except BrokenFileError as error:
        raise ClusterDirectoryError(str(error)) from None
    except OSError:
        # NB: claim_data_dir reports why a directory cannot be opened.
        return


def claim_data_dir(data_dir: ClusterDirectory) -> _Claim:
    """Take the directory and clear what an earlier cluster left behind.

    Raises BusyError if another cluster holds it, and ClusterDirectoryError if it cannot be used.
    """
    try:
        directory = PrivateDirectory.open(data_dir.directory, make=True)
    except BrokenFileError as error:
        raise ClusterDirectoryError(str(error)) from None
    except OSError as error:
        raise _unusable(data_dir, error) from None
    try:
        _reject_foreign_files(data_dir, directory)
        directory, file = _lock_with_retries(data_dir, directory)
        if file is None:
            raise BusyError(_describe_holder(data_dir))
        # NB: first of all, because `keepclose down` signals the process that is named here.
        os.truncate(file, 0)
        os.write(file, identify_self())
        if data_dir.is_kept:
            directory.remove(_MARKER)
        else:
            _empty(directory)
            directory.create(_MARKER, b"")
        for name in (_STATE, _SOCKET, _FLOWS):
            directory.remove(name)
        for name in (_LOGS, _FLOWS):
            directory.make_directory(name)
    except BrokenFileError as error:
        directory.close()
        raise ClusterDirectoryError(str(error)) from None
    except OSError as error:
        directory.close()
        raise _unusable(data_dir, error) from None
    except ClusterDirectoryError:
        directory.close()
        raise
    return _Claim(data_dir, directory, file)


def clear_unheld(data_dir: ClusterDirectory) -> None:
    """Clear what a killed cluster left behind, unless another cluster holds the directory."""
    directory = _open_existing(data_dir)
    if directory is None:
        return
    file = _lock(directory) if directory.has(LOCK) else None
    if file is None:
        directory.close()
    else:
        _Claim(data_dir, directory, file).release()


def holder_of(data_dir: ClusterDirectory) -> Holder | None:
    """Return the process that holds the directory, None if there is none or it is starting.

    Raises ClusterDirectoryError.
    """
    if not is_held(data_dir):
        return None
    directory = _open_existing(data_dir)
    if directory is None:
        return None
    with directory:
        return parse_holder(directory.read(LOCK) or b"")


def is_held(data_dir: ClusterDirectory) -> bool:
    """Return whether a cluster holds the directory; raises ClusterDirectoryError."""
    directory = _open_existing(data_dir)
    if directory is None:
        return False
    with directory:
        try:
            file = directory.open_file(LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except BrokenFileError as error:
            raise ClusterDirectoryError(str(error)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _start_of(pid: int) -> int:
    """Return the start time of a process; raises FileNotFoundError or ProcessLookupError."""
    text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    # NB: the name may contain spaces and parentheses.
    return int(text.rpartition(")")[2].split()[_START_FIELD])


def _unusable(data_dir: ClusterDirectory, error: OSError) -> ClusterDirectoryError:
    # NB: names are relative to the directory, unless a parent directory is at fault.
    where = error.filename if isinstance(error.filename, str) else ""
    path = data_dir.directory / where if where else data_dir.directory
    return ClusterDirectoryError(
        f"{path}: {error.strerror}; choose another directory with --data-dir"
    )


def _open_existing(data_dir: ClusterDirectory) -> PrivateDirectory | None:
    try:
        return PrivateDirectory.open(data_dir.directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BrokenFileError as error:
        raise ClusterDirectoryError(str(error)) from None
    except OSError as error:
        raise ClusterDirectoryError(f"{data_dir.directory}: {error.strerror}") from None


def _reject_foreign_files(data_dir: ClusterDirectory, directory: PrivateDirectory) -> None:
    if data_dir.is_kept or directory.has(_MARKER):
        return
    if any(name not in _TEMPORARY_FILES for name in directory.names()):
        raise ClusterDirectoryError(
            f"{data_dir.directory} holds files that no cluster created; "
            "move them, or choose another directory with --data-dir"
        )


def _clear(data_dir: ClusterDirectory, directory: PrivateDirectory) -> None:
    if not data_dir.is_kept and directory.has(_MARKER):
        _empty(directory)
    # NB: the lock is removed last, because its absence means that the cluster has ended.
    for name in _TEMPORARY_FILES:
        directory.remove(name)
    if not data_dir.is_kept and not directory.names():
        with suppress(OSError):
            data_dir.directory.rmdir()


def _empty(directory: PrivateDirectory) -> None:
    """Remove everything but the lock, which this process holds."""
    for name in directory.names():
        if name != LOCK:
            directory.remove(name)


def _lock_with_retries(
    data_dir: ClusterDirectory, directory: PrivateDirectory
) -> tuple[PrivateDirectory, int | None]:
    """Lock as `_lock` does, with retries, because `is_held` also locks for a moment.

    The last holder may have removed the directory meanwhile; then it is created again.
    """
    end = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            file = _lock(directory)
        except FileNotFoundError:
            again = PrivateDirectory.open(data_dir.directory, make=True)
            directory.close()
            directory = again
            continue
        if file is not None or time.monotonic() > end:
            return directory, file
        time.sleep(_LOCK_WAIT_S / 10)


def _lock(directory: PrivateDirectory) -> int | None:
    """Return an open file that holds the lock, or None if another process has it.

    Raises FileNotFoundError if the directory itself is gone.
    """
    while True:
        file = directory.open_file(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        # NB: the last holder may have removed the file since it was opened.
        with suppress(FileNotFoundError):
            named = os.stat(LOCK, dir_fd=directory.descriptor, follow_symlinks=False)
            if named.st_ino == os.fstat(file).st_ino:
                return file
        os.close(file)


def _describe_holder(data_dir: ClusterDirectory) -> str:
    state, holder = data_dir.read_state(), holder_of(data_dir)
    held = f" (process {holder.pid})" if holder else ""
    who = f" (process {state.pid}, {state.url})" if state else held
    option = f" --data-dir {shlex.quote(str(data_dir.directory))}" if data_dir.is_kept else ""
    return (
        f"a cluster runs in {data_dir.directory} already{who}; "
        f"stop it with keepclose down{option}, or choose another directory with --data-dir"
    )
