"""The directory of a cluster: what lies where, who has it, and what is left when it ends.

One cluster at a time has a directory, told by a lock that the kernel takes back when its holder
ends in whatever way. Only directories that a cluster made for itself are ever removed, and only a
directory of this user is used at all: what another user left in its place is refused, not read.
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

# In /proc/PID/stat, counted from behind the name in parentheses: the 22nd field of all.
_START_FIELD: Final = 19
_MOST_DIGITS: Final = 20
DEFAULT_HOME: Final = Path("~/.keepclose")
_MARK: Final = "made-by-keepclose-up"
LOCK: Final = "lab.lock"
_STATE: Final = "lab.json"
_SOCKET: Final = "lab.sock"
_LOGS: Final = "logs"
_PASSING: Final = (_STATE, _SOCKET, LOCK)
_LOOK_S: Final = 0.3


class Holder(NamedTuple):
    """A process, by its number and the time at which it started."""

    pid: int
    started: int


class NotRunningError(Exception):
    """The process has ended; another may have its number."""


def identify_self() -> bytes:
    """Return what `parse_holder` reads, about this process."""
    return f"{os.getpid()} {_start_of(os.getpid())}\n".encode()


def parse_holder(content: bytes) -> Holder | None:
    """Return the process that is named, or None where none is named in full."""
    words = content.decode("ascii", "replace").split()
    are_numbers = all(word.isdecimal() and len(word) <= _MOST_DIGITS for word in words)
    if len(words) != 2 or not are_numbers or int(words[0]) <= 1:
        return None
    return Holder(int(words[0]), int(words[1]))


def send_signal(holder: Holder, number: signal.Signals) -> None:
    """Send the process a signal; raises NotRunningError, and PermissionError for one of others."""
    try:
        descriptor = os.pidfd_open(holder.pid)
    except OSError:
        raise NotRunningError from None
    try:
        # NB: read after it was opened, so that the number cannot pass on in between.
        if _start_of(holder.pid) != holder.started:
            raise NotRunningError
        signal.pidfd_send_signal(descriptor, number)
    except (FileNotFoundError, ProcessLookupError):
        raise NotRunningError from None
    finally:
        os.close(descriptor)


def _start_of(pid: int) -> int:
    """Return when a process started; raises FileNotFoundError or ProcessLookupError."""
    text = Path("/proc", str(pid), "stat").read_text(errors="replace")
    # NB: the name may hold spaces and parentheses.
    return int(text.rpartition(")")[2].split()[_START_FIELD])


class HomeError(Exception):
    """Why a directory cannot be used, and what to do."""


class BusyError(HomeError):
    """Another cluster has the directory."""


class ClusterState(msgspec.Struct, frozen=True):
    """What a running cluster tells about itself."""

    pid: int
    url: str
    kubeconfig: str
    zones: dict[str, list[str]]
    """The nodes of each zone."""
    packets: bool


class Home(NamedTuple):
    """Where a cluster keeps its files; one that is not kept is removed at the end."""

    directory: Path
    is_kept: bool = False

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "kubeconfig"

    @property
    def lab_kubeconfig(self) -> Path:
        """The kubeconfig of schedulers, kubelets and controllers of workloads."""
        return self.directory / "lab.kubeconfig"

    @property
    def controller_kubeconfig(self) -> Path:
        """The kubeconfig of the EndpointSlice controller."""
        return self.directory / "controller.kubeconfig"

    @property
    def logs(self) -> Path:
        """What each process logs."""
        return self.directory / _LOGS

    @property
    def socket(self) -> Path:
        """Where a running cluster takes requests."""
        return self.directory / _SOCKET

    def node_kubeconfig(self, node: str) -> Path:
        """Return the kubeconfig of a node."""
        return self.directory / f"node-{node}.kubeconfig"

    def read_state(self) -> ClusterState | None:
        """Return what the cluster here says about itself, or None; raises HomeError."""
        try:
            with PrivateDirectory.open(self.directory) as directory:
                content = directory.read(_STATE)
                return None if content is None else msgspec.json.decode(content, type=ClusterState)
        except BrokenFileError as error:
            raise HomeError(str(error)) from None
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: ClusterState) -> None:
        """Let others find the cluster."""
        with PrivateDirectory.open(self.directory) as directory:
            directory.write(_STATE, msgspec.json.encode(state))

    def clear(self) -> None:
        """Remove what a cluster leaves: everything, or of one that is kept what passes."""
        directory = _open_existing(self)
        if directory is not None:
            with directory:
                _clear(self, directory)


class _Claim:
    """The right to a directory, for as long as this process lives or until it is given back."""

    def __init__(self, home: Home, directory: PrivateDirectory, file: int) -> None:
        self.home, self._directory, self._file = home, directory, file

    def release(self) -> None:
        """Remove what is to be removed and let others have the directory."""
        with self._directory:
            _clear(self.home, self._directory)
        os.close(self._file)


def check_home(home: Home) -> None:
    """Return when the directory is ours or is not there yet; raises HomeError where it is not.

    To be called before a user namespace is entered: from within, all other users look alike.
    """
    try:
        PrivateDirectory.open(home.directory).close()
    except BrokenFileError as error:
        raise HomeError(str(error)) from None
    except OSError:
        # NB: claim_home says what is wrong with a directory that cannot be opened.
        return


def claim_home(home: Home) -> _Claim:
    """Return the right to a directory, made empty of what an earlier cluster left behind.

    Raises BusyError when another cluster has it, and HomeError when it cannot be used.
    """
    try:
        directory = PrivateDirectory.open(home.directory, make=True)
    except BrokenFileError as error:
        raise HomeError(str(error)) from None
    except OSError as error:
        raise _unusable(home, error) from None
    try:
        _refuse_strange(home, directory)
        directory, file = _lock_patiently(home, directory)
        if file is None:
            raise BusyError(_tell_holder(home))
        # NB: first of all, since others signal whoever is named here.
        os.truncate(file, 0)
        os.write(file, identify_self())
        if home.is_kept:
            directory.remove(_MARK)
        else:
            _empty(directory)
            directory.create(_MARK, b"")
        for name in (_STATE, _SOCKET):
            directory.remove(name)
        directory.make_directory(_LOGS)
    except BrokenFileError as error:
        directory.close()
        raise HomeError(str(error)) from None
    except OSError as error:
        directory.close()
        raise _unusable(home, error) from None
    except HomeError:
        directory.close()
        raise
    return _Claim(home, directory, file)


def _unusable(home: Home, error: OSError) -> HomeError:
    # NB: names are relative to the directory, unless it is one above that is in the way.
    where = error.filename if isinstance(error.filename, str) else ""
    path = home.directory / where if where else home.directory
    return HomeError(f"{path}: {error.strerror}; choose another directory with --data-dir")


def clear_free(home: Home) -> None:
    """Remove what a cluster left that was killed, unless another has the directory by now."""
    directory = _open_existing(home)
    if directory is None:
        return
    file = _lock(directory) if directory.has(LOCK) else None
    if file is None:
        directory.close()
    else:
        _Claim(home, directory, file).release()


def holder_of(home: Home) -> Holder | None:
    """Return the process that has the directory, None when nobody has it or it says nothing yet.

    Raises HomeError.
    """
    if not is_held(home):
        return None
    directory = _open_existing(home)
    if directory is None:
        return None
    with directory:
        return parse_holder(directory.read(LOCK) or b"")


def is_held(home: Home) -> bool:
    """Return whether a cluster runs here, without making or changing anything; raises HomeError."""
    directory = _open_existing(home)
    if directory is None:
        return False
    with directory:
        try:
            file = directory.open_file(LOCK, os.O_RDONLY)
        except FileNotFoundError:
            return False
        except BrokenFileError as error:
            raise HomeError(str(error)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _open_existing(home: Home) -> PrivateDirectory | None:
    try:
        return PrivateDirectory.open(home.directory)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except BrokenFileError as error:
        raise HomeError(str(error)) from None
    except OSError as error:
        raise HomeError(f"{home.directory}: {error.strerror}") from None


def _refuse_strange(home: Home, directory: PrivateDirectory) -> None:
    if home.is_kept or directory.has(_MARK):
        return
    if any(name not in _PASSING for name in directory.names()):
        raise HomeError(
            f"{home.directory} holds files that no cluster made; "
            "move them, or choose another directory with --data-dir"
        )


def _clear(home: Home, directory: PrivateDirectory) -> None:
    if not home.is_kept and directory.has(_MARK):
        _empty(directory)
    # NB: the lock goes last, because others take its absence for the end.
    for name in _PASSING:
        directory.remove(name)
    if not home.is_kept and not directory.names():
        with suppress(OSError):
            home.directory.rmdir()


def _empty(directory: PrivateDirectory) -> None:
    """Remove everything but the lock, which is ours by now."""
    for name in directory.names():
        if name != LOCK:
            directory.remove(name)


def _lock_patiently(home: Home, directory: PrivateDirectory) -> tuple[PrivateDirectory, int | None]:
    """Return the lock as `_lock` does; one who only looks has it for a moment too.

    The last holder may have removed the directory meanwhile, so that it is opened again.
    """
    end = time.monotonic() + _LOOK_S
    while True:
        try:
            file = _lock(directory)
        except FileNotFoundError:
            again = PrivateDirectory.open(home.directory, make=True)
            directory.close()
            directory = again
            continue
        if file is not None or time.monotonic() > end:
            return directory, file
        time.sleep(_LOOK_S / 10)


def _lock(directory: PrivateDirectory) -> int | None:
    """Return an open file that holds the lock, or None when another process has it.

    Raises FileNotFoundError when the directory itself is gone.
    """
    while True:
        file = directory.open_file(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        # NB: its last holder may have removed the file since it was opened.
        with suppress(FileNotFoundError):
            named = os.stat(LOCK, dir_fd=directory.descriptor, follow_symlinks=False)
            if named.st_ino == os.fstat(file).st_ino:
                return file
        os.close(file)


def _tell_holder(home: Home) -> str:
    state, holder = home.read_state(), holder_of(home)
    held = f" (process {holder.pid})" if holder else ""
    who = f" (process {state.pid}, {state.url})" if state else held
    option = f" --data-dir {shlex.quote(str(home.directory))}" if home.is_kept else ""
    return (
        f"a cluster runs in {home.directory} already{who}; "
        f"stop it with keepclose down{option}, or choose another directory with --data-dir"
    )
