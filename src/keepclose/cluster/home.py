"""The directory of a cluster: what lies where, who has it, and what is left when it ends.

One cluster at a time has a directory, told by a lock that the kernel takes back when its holder
ends in whatever way. Only directories that a cluster made for itself are ever removed.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

DEFAULT_HOME: Final = Path("~/.keepclose")
_MARK: Final = "made-by-keepclose-up"
LOCK: Final = "lab.lock"
_PASSING: Final = ("lab.json", "lab.sock", LOCK)
_LOOK_S: Final = 0.3


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
        return self.directory / "logs"

    @property
    def socket(self) -> Path:
        """Where a running cluster takes requests."""
        return self.directory / "lab.sock"

    def node_kubeconfig(self, node: str) -> Path:
        """Return the kubeconfig of a node."""
        return self.directory / f"node-{node}.kubeconfig"

    def read_state(self) -> ClusterState | None:
        """Return what the cluster here says about itself, or None."""
        try:
            return msgspec.json.decode(
                (self.directory / "lab.json").read_bytes(), type=ClusterState
            )
        except (OSError, msgspec.DecodeError):
            return None

    def write_state(self, state: ClusterState) -> None:
        """Let others find the cluster."""
        path = self.directory / "lab.json"
        path.with_suffix(".new").write_bytes(msgspec.json.encode(state))
        path.with_suffix(".new").replace(path)

    def clear(self) -> None:
        """Remove what a cluster leaves: everything, or of one that is kept what passes."""
        with suppress(FileNotFoundError):
            if not self.is_kept and (self.directory / _MARK).exists():
                _empty(self.directory)
            # NB: the lock goes last, because others take its absence for the end.
            for name in _PASSING:
                (self.directory / name).unlink(missing_ok=True)
            if not self.is_kept and not any(self.directory.iterdir()):
                self.directory.rmdir()


class Claim:
    """The right to a directory, for as long as this process lives or until it is given back."""

    def __init__(self, home: Home, file: int) -> None:
        self.home, self._file = home, file

    def release(self) -> None:
        """Remove what is to be removed and let others have the directory."""
        self.home.clear()
        os.close(self._file)


def claim_home(home: Home) -> Claim:
    """Return the right to a directory, made empty of what an earlier cluster left behind.

    Raises BusyError when another cluster has it, and HomeError when it cannot be used.
    """
    directory = home.directory
    try:
        _refuse_strange(home)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = _lock_patiently(directory / LOCK)
        if file is None:
            raise BusyError(_tell_holder(home))
        # NB: first of all, since others signal whoever is named here.
        os.truncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        if home.is_kept:
            (directory / _MARK).unlink(missing_ok=True)
        else:
            _empty(directory)
            (directory / _MARK).touch()
        for name in ("lab.json", "lab.sock"):
            (directory / name).unlink(missing_ok=True)
        home.logs.mkdir(exist_ok=True)
    except OSError as error:
        raise HomeError(
            f"{error.filename or directory}: {error.strerror}; choose another directory "
            "with --data-dir"
        ) from None
    return Claim(home, file)


def clear_free(home: Home) -> None:
    """Remove what a cluster left that was killed, unless another has the directory by now."""
    if not (home.directory / LOCK).exists():
        return
    file = _lock(home.directory / LOCK)
    if file is not None:
        Claim(home, file).release()


def holder_of(home: Home) -> int | None:
    """Return the process that has the directory, None when nobody has it or it says nothing yet.

    Raises HomeError.
    """
    if not is_held(home):
        return None
    try:
        return int((home.directory / LOCK).read_text())
    except (OSError, ValueError):
        return None


def is_held(home: Home) -> bool:
    """Return whether a cluster runs here, without making or changing anything; raises HomeError."""
    try:
        file = os.open(home.directory / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise HomeError(f"{home.directory}: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _refuse_strange(home: Home) -> None:
    directory = home.directory
    if home.is_kept or not directory.exists() or (directory / _MARK).exists():
        return
    if any(entry.name not in _PASSING for entry in directory.iterdir()):
        raise HomeError(
            f"{directory} holds files that no cluster made; "
            "move them, or choose another directory with --data-dir"
        )


def _empty(directory: Path) -> None:
    """Remove everything but the lock, which is ours by now."""
    for entry in directory.iterdir():
        if entry.name == LOCK:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _lock_patiently(path: Path) -> int | None:
    """Return the lock as `_lock` does; one who only looks has it for a moment too."""
    end = time.monotonic() + _LOOK_S
    while True:
        file = _lock(path)
        if file is not None or time.monotonic() > end:
            return file
        time.sleep(_LOOK_S / 10)


def _lock(path: Path) -> int | None:
    """Return an open file that holds the lock, or None when somebody else has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return None
        # NB: its last holder may have removed the file since it was opened.
        try:
            if os.stat(path).st_ino == os.fstat(file).st_ino:  # noqa: PTH116
                return file
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(file)


def _tell_holder(home: Home) -> str:
    state, pid = home.read_state(), holder_of(home)
    who = f" (process {state.pid}, {state.url})" if state else f" (process {pid})" if pid else ""
    option = f" --data-dir {shlex.quote(str(home.directory))}" if home.is_kept else ""
    return (
        f"a cluster runs in {home.directory} already{who}; "
        f"stop it with keepclose down{option}, or choose another directory with --data-dir"
    )
