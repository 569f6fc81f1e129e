"""Starts a cluster from a command, and ends one: `keepclose up`, `down` and `demo`.

Order matters: a user namespace can only be entered by a process with one thread, and the fork
server must be forked before there are threads, locks or namespaces that it would keep open.

A temporary cluster runs for one command in its own directory. It is a child that gets no signals of
the terminal, so that Ctrl-C stops the command first, which then stops the cluster in order. The
first signal ends the command; further ones cannot disturb the cleanup. If the command is killed,
the kernel signals the cluster.

The programs of a cluster are imported only to start one: `down` would take four times as long.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from msgspec.structs import replace

from keepclose.kube.errors import KubeError
from keepclose.lab.cluster.data_dir import (
    LOCK,
    ClusterDirectory,
    ClusterDirectoryError,
    ClusterState,
    NotRunningError,
    check_data_dir,
    claim_data_dir,
    clear_unheld,
    holder_of,
    is_held,
    send_signal,
)
from keepclose.lab.network.privilege import become_root, raise_file_limit, why_no_packets
from keepclose.system.namespaces import NetworkError, search_path

if TYPE_CHECKING:
    from keepclose.lab.cluster.fork_server import ForkServer
    from keepclose.lab.cluster.supervisor import ClusterSettings, StartStep

_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOP_S: Final = 10.0
_KILL_S: Final = 5.0
_POLL_S: Final = 0.02
_TEMPORARY_STOP_S: Final = 15.0
_ERROR: Final = "error: "


class LaunchError(Exception):
    """Why the cluster cannot start, in one line; `place` is the position in a file, or ""."""

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class StartCallbacks(NamedTuple):
    """The callbacks of a starting cluster."""

    step: Callable[[StartStep], None]
    no_packets: Callable[[str], None]
    ready: Callable[[ClusterState], None]
    set_up_logs: Callable[[], None]


def run_cluster(settings: ClusterSettings, reports: StartCallbacks) -> None:
    """Run a cluster until SIGTERM, SIGHUP or SIGINT; nothing remains of it afterwards.

    Call it while the process has one thread. Raises LaunchError.
    """
    # NB: blocked until the event loop handles them, because a fork would swallow an exception.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        _run_claimed(settings, reports)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def detach(work: Callable[[Callable[[], None]], int]) -> int:
    """Run a function in a detached process and return when it reports that it is ready.

    Returns 0 then, or the exit code if it ended before. The function gets the callback to report.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        try:
            is_ready = os.read(reader, 1) != b""
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise
        finally:
            os.close(reader)
        if is_ready:
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        os.close(reader)
        os.setsid()

        def report_ready() -> None:
            os.write(writer, b"!")
            os.close(writer)

        code = work(report_ready)
    except BaseException:  # noqa: BLE001 - a fork must never return into the caller's code
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class StillRunningError(Exception):
    """Why a cluster cannot be ended."""


def end_cluster(home: ClusterDirectory) -> bool:
    """End the cluster of a directory and remove its files; return whether one ran.

    Raises StillRunningError and ClusterDirectoryError.
    """
    ran = is_held(home)
    if ran:
        _end_holder(home)
    clear_unheld(home)
    return ran


class TemporaryError(Exception):
    """Why no cluster could be started; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def temporary_cluster(
    *options: str, on_line: Callable[[str], None]
) -> Iterator[tuple[Path, ClusterState]]:
    """Run a cluster while the context lasts; yield its directory and its state.

    `options` are those of `keepclose up`; `on_line` gets its output while it starts. Raises
    TemporaryError, and KeyboardInterrupt at the first signal that ends a command. Call it in the
    main thread.
    """
    with _signals_once():
        directory = Path(tempfile.mkdtemp(prefix="keepclose-"))
        process: subprocess.Popen[str] | None = None
        try:
            process = _start(directory, options)
            yield directory, _wait_until_ready(process, directory, on_line)
        finally:
            # No signal may interrupt the cleanup.
            for number in _END_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
            if process is not None:
                _end(process)
            shutil.rmtree(directory, ignore_errors=True)


def _run_claimed(settings: ClusterSettings, reports: StartCallbacks) -> None:
    from keepclose.lab.cluster.fork_server import ForkServer  # noqa: PLC0415 - see above
    from keepclose.lab.cluster.programs import ProgramError  # noqa: PLC0415
    from keepclose.lab.cluster.readiness import ApplyError  # noqa: PLC0415

    reasons = (ProgramError, NetworkError, ApplyError, KubeError, OSError)
    try:
        check_data_dir(settings.home)
    except ClusterDirectoryError as error:
        raise LaunchError(str(error)) from error
    settings = _with_privilege(settings)
    if settings.no_packets:
        reports.no_packets(settings.no_packets)
    raise_file_limit()
    # The PATH of users who are not root often lacks the directories of nft and ip.
    os.environ["PATH"] = search_path()
    try:
        claim = claim_data_dir(settings.home)
    except ClusterDirectoryError as error:
        raise LaunchError(str(error)) from error
    try:
        fork_server = ForkServer.open(reports.set_up_logs, settings.home.logs / "up.log")
        try:
            asyncio.run(_run(settings, fork_server, reports))
        finally:
            fork_server.close()
    except (*reasons, BaseExceptionGroup) as error:
        # NB: not by except*, because some versions of Python wrap what is raised there in a group.
        first = _first(error)
        if not isinstance(first, reasons):
            raise
        place = first.place if isinstance(first, ApplyError) else ""
        raise LaunchError(str(first), place=place) from error
    finally:
        claim.release()


def _with_privilege(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with why this process cannot have the network, after trying to."""
    try:
        become_root()
    except NetworkError as error:
        return replace(settings, no_packets=str(error))
    return replace(settings, no_packets=why_no_packets())


async def _run(settings: ClusterSettings, fork_server: ForkServer, reports: StartCallbacks) -> None:
    from keepclose.lab.cluster.supervisor import Supervisor  # noqa: PLC0415 - see above

    supervisor = Supervisor(settings, fork_server, reports.step)
    task = asyncio.ensure_future(supervisor.run(reports.ready))
    loop = asyncio.get_running_loop()
    was_signalled = False

    def stop() -> None:
        nonlocal was_signalled
        was_signalled = True
        task.cancel()

    for number in _END_SIGNALS:
        loop.add_signal_handler(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_SIGNALS)
    try:
        await task
    except asyncio.CancelledError:
        if not was_signalled:
            raise
    finally:
        # The rest is short, and no signal may interrupt it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _end_holder(home: ClusterDirectory) -> None:
    holder = holder_of(home)
    if holder is None:
        if not is_held(home):
            return
        raise StillRunningError(f"the cluster in {home.directory} is just starting; try again")
    try:
        send_signal(holder, signal.SIGTERM)
        if not _wait_for_end(home, _STOP_S):
            send_signal(holder, signal.SIGKILL)
            if not _wait_for_end(home, _KILL_S):
                raise StillRunningError(f"process {holder.pid} does not end")
    except PermissionError:
        raise StillRunningError(
            f"the cluster in {home.directory} belongs to another user (process {holder.pid})"
        ) from None
    except NotRunningError:
        if _wait_for_end(home, _POLL_S * 5):
            # It has just ended by itself.
            return
        raise StillRunningError(
            f"{home.directory / LOCK} names process {holder.pid}, which has ended, and is held by "
            f"another; see who holds it: fuser {home.directory / LOCK}"
        ) from None


def _wait_for_end(home: ClusterDirectory, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_held(home):
            return True
        # The kernel does not report the release of a lock.
        time.sleep(_POLL_S)
    return False


@contextmanager
def _signals_once() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in _END_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(directory: Path, options: tuple[str, ...]) -> subprocess.Popen[str]:
    from keepclose.lab.cluster.fork_server import die_with_parent  # noqa: PLC0415 - see above

    # NB: without -P modules in the current directory would come first.
    command = [sys.executable, "-P", "-m", "keepclose", "up"]
    return subprocess.Popen(  # noqa: S603 - this very program
        [*command, "--port", "0", "--data-dir", str(directory), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        # NB: `_wait_until_ready` looks for the marks of lines, so the locale must not change them.
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        # There are no threads yet, so that this is safe between fork and exec.
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
    )


def _wait_until_ready(
    process: subprocess.Popen[str], directory: Path, on_line: Callable[[str], None]
) -> ClusterState:
    """Wait until the cluster publishes its state, which it does before its last output."""
    assert process.stdout is not None  # noqa: S101 - a pipe was requested
    home = ClusterDirectory(directory, is_kept=True)
    last_line = ""
    for line in process.stdout:
        text = line.rstrip()
        state = home.read_state()
        if text.startswith(("✓", "!")):
            on_line(text)
        last_line = text or last_line
        if state is not None:
            return state
    code = process.wait()
    text = last_line.removeprefix(_ERROR) or "it said nothing"
    raise TemporaryError(f"no cluster could be started: {text}", code if code > 0 else 1)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_TEMPORARY_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
