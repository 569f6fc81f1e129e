"""The fork server: a process that forks the programs, with all their modules already loaded.

Forking a program takes milliseconds and shares the memory of loaded modules; a new interpreter
would take half a second and its own memory. The fork server has one thread and no event loop, so
that forking is safe at any time. When the cluster's first process ends, the kernel kills the fork
server and all its children.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from keepclose.lab.cluster.programs import Program, ProgramError
from keepclose.runtime.program import ReadyMessage
from keepclose.system.private_files import open_append

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)
_MAX_MESSAGE_BYTES: Final = 1 << 17
_FAILED: Final = 2


class Start(msgspec.Struct, frozen=True, tag="start"):
    """A request to start a program."""

    program: Program
    log: str


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """A request to signal a child."""

    name: str
    number: int


class ProcessReady(msgspec.Struct, frozen=True, tag="ready"):
    """A program is ready."""

    name: str
    message: ReadyMessage


class ProcessEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A program has ended; `why` is its own error, or ""."""

    name: str
    code: int
    why: str = ""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A program is about to end with this error."""

    name: str
    why: str


class ForkServerLost(msgspec.Struct, frozen=True):
    """The fork server itself has ended, and with it all its children."""


ProcessEvent = ProcessReady | ProcessEnded | ForkServerLost
_requests: Final = msgspec.json.Decoder(Start | Signal)
_events: Final = msgspec.json.Decoder(ProcessReady | Failed | ProcessEnded)


class ForkServer:
    """The parent's side. Create it with `ForkServer.open` while the process has one thread."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel, self.pid = channel, pid
        self._reasons: dict[str, str] = {}

    @classmethod
    def open(cls, set_up_logs: Callable[[], None], log: Path = Path(os.devnull)) -> ForkServer:
        """Fork the fork server; its own output goes to the log."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                _close_all_but(theirs.fileno())
                # NB: a reader of the command's output waits until no process can write to it.
                _write_output_to(str(log))
                _ForkServerProcess(theirs, set_up_logs).run()
            except BaseException:  # noqa: BLE001 - a fork must never return into the caller's code
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()
        return cls(ours, pid)

    def follow(self, on_event: Callable[[ProcessEvent], None]) -> None:
        """Report the events of children, in the running event loop.

        NB: only reading must not block. The fork server reads requests as they come, so a send
        blocks for milliseconds at most, where a non-blocking send to a full channel would fail.
        """
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._read, on_event)

    def start(self, program: Program, log: Path) -> None:
        """Start a program; raises OSError if the fork server has ended."""
        self._channel.send(msgspec.json.encode(Start(program, str(log))))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a program a signal, unless it has ended."""
        with contextlib.suppress(OSError):
            self._channel.send(msgspec.json.encode(Signal(name, number)))

    def close(self) -> None:
        """Kill all remaining children, and wait for the fork server to end."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _read(self, on_event: Callable[[ProcessEvent], None]) -> None:
        while True:
            try:
                data = self._channel.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._channel.fileno())
                on_event(ForkServerLost())
                return
            match _events.decode(data):
                case Failed(name, why):
                    self._reasons[name] = why
                case ProcessEnded(name, code):
                    on_event(ProcessEnded(name, code, self._reasons.pop(name, "")))
                case ProcessReady() as ready:
                    on_event(ready)


class _ForkServerProcess:
    """The fork server's own side."""

    def __init__(self, channel: socket.socket, set_up_logs: Callable[[], None]) -> None:
        self._channel, self._set_up_logs = channel, set_up_logs
        self._children: dict[str, int] = {}

    def run(self) -> NoReturn:
        # Signals of the terminal are for the cluster's first process, which ends this one in order.
        os.setsid()
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Loaded objects stay; the garbage collector of a child must not copy their pages.
        gc.collect()
        gc.freeze()
        while True:
            readable, _, _ = select.select([self._channel.fileno(), wake], [], [])
            if wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self._channel.fileno() in readable:
                data = self._channel.recv(_MAX_MESSAGE_BYTES)
                if not data:
                    self._end()
                self._handle(_requests.decode(data))

    def _handle(self, request: Start | Signal) -> None:
        if isinstance(request, Signal):
            if request.name in self._children:
                os.kill(self._children[request.name], request.number)
            return
        fork_server = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(fork_server)
                code = self._run_program(request)
            except BaseException:  # noqa: BLE001 - logged before the child exits
                traceback.print_exc()
                code = 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        self._children[request.program.name] = pid

    def _run_program(self, request: Start) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _write_output_to(request.log)
        self._set_up_logs()
        program = request.program

        def on_ready(message: ReadyMessage) -> None:
            self._channel.send(msgspec.json.encode(ProcessReady(program.name, message)))

        try:
            program.run(on_ready)
        except ProgramError as error:
            self._channel.send(msgspec.json.encode(Failed(program.name, str(error))))
            return _FAILED
        return 0

    def _reap(self) -> None:
        names = {pid: name for name, pid in self._children.items()}
        for pid, name in names.items():
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._children[name]
                code = os.waitstatus_to_exitcode(status)
                self._channel.send(msgspec.json.encode(ProcessEnded(name, code)))

    def _end(self) -> NoReturn:
        for pid in self._children.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._children.values():
            os.waitpid(pid, 0)
        os._exit(0)


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    # NB: the parent may have ended before the call.
    if os.getppid() != parent:
        os._exit(1)


def _close_all_but(kept: int) -> None:
    """Close the parent's files: a lock that two processes hold would outlive its owner."""
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _write_output_to(log: str) -> None:
    file = open_append(Path(log))
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, source in ((0, nothing), (1, file), (2, file)):
        os.dup2(source, number)
    os.close(file)
    os.close(nothing)
