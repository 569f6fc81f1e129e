"""From a command to a running cluster: privilege, the directory, the nursery, and the way back.

Order matters: a user namespace can only be entered by a process with one thread, and the nursery
must be forked before there are threads, locks or namespaces that it would keep open.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from keepclose.cluster.applying import ApplyError
from keepclose.kube.errors import KubeError
from keepclose.lab.cluster.data_dir import ClusterState, HomeError, check_home, claim_home
from keepclose.lab.cluster.fork_server import Nursery
from keepclose.lab.cluster.programs import ProgramError
from keepclose.lab.cluster.supervisor import ClusterSettings, Step, Supervisor
from keepclose.lab.network.privilege import become_root, raise_file_limit, why_no_packets
from keepclose.system.namespaces import NetworkError, search_path

_REASONS: Final = (ProgramError, NetworkError, ApplyError, KubeError, OSError)
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class LaunchError(Exception):
    """Why there is no cluster, in one line, and where in a file that stands, if it does."""

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class Reports(NamedTuple):
    """Whom to tell about the way up."""

    step: Callable[[Step], None]
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
