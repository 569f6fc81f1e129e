"""From a command to a running cluster: privilege, the directory, the nursery, and the way back.

Order matters: a user namespace can only be entered by a process with one thread, and the nursery
must be forked before there are threads, locks or namespaces that it would keep open.
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
from typing import Final, NamedTuple, NoReturn

from msgspec.structs import replace

from keepclose.kube.errors import KubeError
from keepclose.lab.cluster.data_dir import (
    LOCK,
    ClusterState,
    Home,
    HomeError,
    NotRunningError,
    check_home,
    claim_home,
    clear_free,
    holder_of,
    is_held,
    send_signal,
)
from keepclose.lab.cluster.fork_server import Nursery, die_with_parent
from keepclose.lab.cluster.programs import ProgramError
from keepclose.lab.cluster.readiness import ApplyError
from keepclose.lab.cluster.supervisor import ClusterSettings, StartStep, Supervisor
from keepclose.lab.network.privilege import become_root, raise_file_limit, why_no_packets
from keepclose.system.namespaces import NetworkError, search_path

_REASONS: Final = (ProgramError, NetworkError, ApplyError, KubeError, OSError)
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ORDERLY_S: Final = 10.0
_KILLED_S: Final = 5.0
_LOOK_S: Final = 0.02
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TEMPORARY_ORDERLY_S: Final = 15.0
_ERROR: Final = "error: "


class LaunchError(Exception):
    """Why there is no cluster, in one line, and where in a file that stands, if it does."""

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class Reports(NamedTuple):
    """Whom to tell about the way up."""

    step: Callable[[StartStep], None]
    no_packets: Callable[[str], None]
    ready: Callable[[ClusterState], None]
    set_up_logs: Callable[[], None]


def run_cluster(settings: ClusterSettings, reports: Reports) -> None:
    """Run a cluster until SIGTERM, SIGHUP or SIGINT; nothing is left of it afterwards.

    Call it while the process has one thread. Raises LaunchError.
    """
    # NB: held back until the loop hears them. An exception would do, but forks swallow exceptions.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        _run_claimed(settings, reports)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_claimed(settings: ClusterSettings, reports: Reports) -> None:
    try:
        check_home(settings.home)
    except HomeError as error:
        raise LaunchError(str(error)) from error
    settings = _gain_packets(settings)
    if settings.no_packets:
        reports.no_packets(settings.no_packets)
    raise_file_limit()
    # Those who are not root often lack the directories of nft and ip.
    os.environ["PATH"] = search_path()
    try:
        claim = claim_home(settings.home)
    except HomeError as error:
        raise LaunchError(str(error)) from error
    try:
        nursery = Nursery.open(reports.set_up_logs, settings.home.logs / "up.log")
        try:
            asyncio.run(_run(settings, nursery, reports))
        finally:
            nursery.close()
    except (*_REASONS, BaseExceptionGroup) as error:
        # NB: not by except*, because some versions of Python make a group of what is raised there.
        first = _first(error)
        if not isinstance(first, _REASONS):
            raise
        place = first.place if isinstance(first, ApplyError) else ""
        raise LaunchError(str(first), place=place) from error
    finally:
        claim.release()


def _gain_packets(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with what this process may do."""
    try:
        become_root()
    except NetworkError as error:
        return replace(settings, no_packets=str(error))
    return replace(settings, no_packets=why_no_packets())


async def _run(settings: ClusterSettings, nursery: Nursery, reports: Reports) -> None:
    supervisor = Supervisor(settings, nursery, reports.step)
    task = asyncio.ensure_future(supervisor.run(reports.ready))
    loop = asyncio.get_running_loop()
    is_asked = False

    def stop() -> None:
        nonlocal is_asked
        is_asked = True
        task.cancel()

    for number in _ENDING:
        loop.add_signal_handler(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        await task
    except asyncio.CancelledError:
        if not is_asked:
            raise
    finally:
        # What is left to do is short, and nobody may cut it off.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def detach(work: Callable[[Callable[[], None]], int]) -> int:
    """Do the work in a process of its own and return when it says that it is ready.

    Returns 0 then, or the code with which the work ended before. The work is given what to call.
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

        def say_ready() -> None:
            os.write(writer, b"!")
            os.close(writer)

        code = work(say_ready)
    except BaseException:  # noqa: BLE001 - a fork must never return into the caller's code
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class StillRunningError(Exception):
    """A cluster that cannot be ended, and why."""


def end_cluster(home: Home) -> bool:
    """Return whether a cluster ran here; afterwards none does, and its files are gone.

    Raises StillRunningError and HomeError.
    """
    ran = is_held(home)
    if ran:
        _end_holder(home)
    clear_free(home)
    return ran


def _end_holder(home: Home) -> None:
    holder = holder_of(home)
    if holder is None:
        if not is_held(home):
            return
        raise StillRunningError(f"the cluster in {home.directory} is just starting; try again")
    try:
        send_signal(holder, signal.SIGTERM)
        if not _await_end(home, _ORDERLY_S):
            send_signal(holder, signal.SIGKILL)
            if not _await_end(home, _KILLED_S):
                raise StillRunningError(f"process {holder.pid} does not end")
    except PermissionError:
        raise StillRunningError(
            f"the cluster in {home.directory} belongs to another user (process {holder.pid})"
        ) from None
    except NotRunningError:
        if _await_end(home, _LOOK_S * 5):
            # It has just ended by itself.
            return
        raise StillRunningError(
            f"{home.directory / LOCK} names process {holder.pid}, which has ended, and is held by "
            f"another; see who holds it: fuser {home.directory / LOCK}"
        ) from None


def _await_end(home: Home, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_held(home):
            return True
        # The lock tells only who asks.
        time.sleep(_LOOK_S)
    return False


class TemporaryError(Exception):
    """Why no cluster could be started; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def temporary_cluster(
    *options: str, on_line: Callable[[str], None]
) -> Iterator[tuple[Path, ClusterState]]:
    """Run a cluster for as long as the context lasts; give its directory and its state.

    `options` are those of `keepclose up`; `on_line` gets what that prints while it starts. Raises
    TemporaryError, and KeyboardInterrupt at the first signal that ends a command. Only the main
    thread can do this.
    """
    with _stopped_once():
        directory = Path(tempfile.mkdtemp(prefix="keepclose-"))
        process: subprocess.Popen[str] | None = None
        try:
            process = _start(directory, options)
            yield directory, _await_ready(process, directory, on_line)
        finally:
            # Nothing may come between now and the end of what was made.
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            if process is not None:
                _end(process)
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _stopped_once() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(directory: Path, options: tuple[str, ...]) -> subprocess.Popen[str]:
    # NB: without -P modules of the directory in which somebody happens to be would come first.
    command = [sys.executable, "-P", "-m", "keepclose", "up"]
    return subprocess.Popen(  # noqa: S603 - this very program
        [*command, "--port", "0", "--data-dir", str(directory), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        # NB: its marks are looked for, whatever the locale makes of them.
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        # There are no threads yet, so that this is safe between fork and exec.
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
    )


def _await_ready(
    process: subprocess.Popen[str], directory: Path, on_line: Callable[[str], None]
) -> ClusterState:
    """Return when the cluster works: it says so in its directory before it prints the rest."""
    assert process.stdout is not None  # noqa: S101 - asked for
    home = Home(directory, is_kept=True)
    said = ""
    for line in process.stdout:
        text = line.rstrip()
        state = home.read_state()
        if text.startswith(("✓", "!")):
            on_line(text)
        said = text or said
        if state is not None:
            return state
    code = process.wait()
    text = said.removeprefix(_ERROR) or "it said nothing"
    raise TemporaryError(f"no cluster could be started: {text}", code if code > 0 else 1)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_TEMPORARY_ORDERLY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
