"""Third-party heuristics, each in a worker process of its own with limits on time and memory.

Third-party code is never imported here. A heuristic that cannot be imported, hangs, crashes or
exhausts its memory fails alone, and the result is a `HeuristicFailure`. Each heuristic has at most
one worker process, which starts with the first question; child processes of the worker end with it.
Questions and answers are numbered, so a surplus answer is never taken for the next one.

After a failure of its process a heuristic backs off: the delay doubles each time, and until it is
over the same failure is the answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.routing.heuristic_answers import (
    FailureCause,
    HeuristicAnswer,
    HeuristicFailure,
    Postponed,
    ZoneDemand,
)
from keepclose.routing.heuristics import HeuristicRegistry
from keepclose.system.threads import ask_in_thread

_READY: Final = b"ready"
_MAX_LINE_BYTES: Final = 1 << 20
# The kernel ends the worker at its limit; the parent waits this much longer before it does.
_GRACE_S: Final = 1.0
_BACKOFF_CAUSES: Final = frozenset(
    {FailureCause.NOT_LOADED, FailureCause.TIMED_OUT, FailureCause.CRASHED}
)
_WORKER_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from keepclose.heuristics.worker import run_worker; "
    "run_worker(sys.argv[2], sys.argv[3], start_s=float(sys.argv[4]), "
    "allocate_s=float(sys.argv[5]), memory_bytes=int(sys.argv[6]))"
)
_ANSWER_DECODER: Final = msgspec.json.Decoder(HeuristicAnswer)
_ENCODER: Final = msgspec.json.Encoder()


class HeuristicLimits(msgspec.Struct, frozen=True):
    """Limits of a heuristic on time and memory, and the bounds of its backoff after a failure."""

    start_s: float = 20.0
    allocate_s: float = 2.0
    first_pause_s: float = 5.0
    longest_pause_s: float = 300.0
    memory_bytes: int = 1 << 30


class IsolatedHeuristic:
    """A heuristic that runs in a worker process; several threads may call it."""

    sees_nodes: Final = True

    def __init__(
        self,
        name: str,
        value: str,
        *,
        limits: HeuristicLimits = HeuristicLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Take the name and value of the entry point; the worker starts with the first question."""
        self._name = name
        self._value = value
        self._limits = limits
        self._lock = threading.Lock()
        self._process: _WorkerProcess | None = None
        self._question_number = 0
        self._failures = 0
        self._backoff_until = 0.0
        self._failure: HeuristicFailure | None = None

    def allocate(self, demand: ZoneDemand) -> HeuristicAnswer:
        """Return the answer or the failure of the heuristic; blocks no longer than the limits."""
        with self._lock:
            if self._failure is not None and time.monotonic() < self._backoff_until:
                return self._failure
            answer = self._ask(demand)
            if isinstance(answer, HeuristicFailure) and answer.cause in _BACKOFF_CAUSES:
                self._stop()
                limits = self._limits
                backoff_s = min(limits.first_pause_s * 2.0**self._failures, limits.longest_pause_s)
                self._failures = min(self._failures + 1, 60)
                self._backoff_until = time.monotonic() + backoff_s
                self._failure = answer
            else:
                self._failures = 0
                self._failure = None
            return answer

    def close(self) -> None:
        """End the worker at once, even during a question; the next question starts it again."""
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, demand: ZoneDemand) -> HeuristicAnswer:
        limits = self._limits
        if self._process is None or not self._process.is_running:
            self._process = _WorkerProcess(self._name, self._value, limits)
            line = self._process.read_line(limits.start_s + _GRACE_S)
            if line != _READY:
                return self._read_answer(line, "was not loaded", limits.start_s)
        self._question_number += 1
        number = str(self._question_number).encode()
        question = number + b" " + _ENCODER.encode(demand) + b"\n"
        self._process.write(question, limits.allocate_s + _GRACE_S)
        line = self._process.read_line(limits.allocate_s + _GRACE_S)
        if line is not None:
            answer_number, _, line = line.partition(b" ")
            line = line if answer_number == number else b""
        return self._read_answer(line, "did not answer", limits.allocate_s)

    def _read_answer(self, line: bytes | None, problem: str, limit_s: float) -> HeuristicAnswer:
        process = self._process
        if line is None and process is not None:
            if not process.is_late:
                process.await_end(_GRACE_S)
            code = process.kill()
            if process.is_late or code == -signal.SIGALRM:
                return HeuristicFailure(
                    FailureCause.TIMED_OUT, f"it {problem} within {limit_s:g} s"
                )
            return HeuristicFailure(FailureCause.CRASHED, f"its process {_describe_end(code)}")
        try:
            answer: HeuristicAnswer = _ANSWER_DECODER.decode(line or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return HeuristicFailure(
                FailureCause.CRASHED, "its process sent something that is no answer"
            )
        if isinstance(answer, HeuristicFailure) and answer.cause is FailureCause.NOT_LOADED:
            # The caller already puts the name of the heuristic before every message.
            return replace(answer, message=answer.message.removeprefix(f"heuristic {self._name}: "))
        return answer

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class DeferredHeuristic:
    """An isolated heuristic for a caller that must not block: `allocate` postpones every answer."""

    sees_nodes: Final = True

    def __init__(self, isolated: IsolatedHeuristic) -> None:
        self._isolated = isolated

    def allocate(self, _demand: ZoneDemand) -> Postponed:
        """Return that the answer has to be fetched."""
        return Postponed()

    def fetch(self, demand: ZoneDemand) -> HeuristicAnswer:
        """Return the answer of the heuristic; blocks, so call it in a thread."""
        return self._isolated.allocate(demand)

    def close(self) -> None:
        """End the worker, which also ends a call of `fetch` in progress."""
        self._isolated.close()


def defer_heuristics(heuristics: HeuristicRegistry) -> HeuristicRegistry:
    """Return the registry with every isolated heuristic deferred; others stay as they are."""
    return {
        name: DeferredHeuristic(heuristic)
        if isinstance(heuristic, IsolatedHeuristic)
        else heuristic
        for name, heuristic in heuristics.items()
    }


async def fetch_answers(
    heuristics: HeuristicRegistry, name: str, questions: Iterable[ZoneDemand]
) -> list[tuple[ZoneDemand, HeuristicAnswer]]:
    """Return the questions with the answers of a deferred heuristic, fetched in threads."""
    heuristic = heuristics.get(name)
    if not isinstance(heuristic, DeferredHeuristic):
        return []
    answers: list[tuple[ZoneDemand, HeuristicAnswer]] = []
    for question in questions:
        fetch = partial(heuristic.fetch, question)
        # A cancelled caller does not wait: the thread ends with the answer or with `close`.
        answers.append((question, await ask_in_thread(fetch)))
    return answers


def close_heuristics(heuristics: HeuristicRegistry) -> None:
    """End the worker processes of all deferred heuristics."""
    for heuristic in heuristics.values():
        if isinstance(heuristic, DeferredHeuristic):
            heuristic.close()


class _WorkerProcess:
    """A worker process and the bytes received from it so far."""

    def __init__(self, name: str, value: str, limits: HeuristicLimits) -> None:
        numbers = (limits.start_s, limits.allocate_s, limits.memory_bytes)
        arguments = (json.dumps(sys.path), name, value, *map(str, numbers))
        self._popen = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", _WORKER_PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal goes to the parent only, which ends the worker's process group.
            start_new_session=True,
        )
        assert self._popen.stdin is not None  # noqa: S101 - a pipe, see above
        assert self._popen.stdout is not None  # noqa: S101
        self._to = self._popen.stdin.fileno()
        self._from = self._popen.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._received = b""
        self._kill_lock = threading.Lock()
        self.is_late = False
        """Whether the parent gave up waiting for an answer."""
        self._finalizer = weakref.finalize(self, _close_worker, self._popen)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return not _has_ended(self._popen)

    def await_end(self, limit_s: float) -> None:
        """Wait for a process that is about to exit, so that its own exit code is reported."""
        deadline = time.monotonic() + limit_s
        while self.is_running and time.monotonic() < deadline:
            time.sleep(0.005)

    def kill(self) -> int:
        """Kill the process and its children; return its exit code, negative for a signal."""
        with self._kill_lock:
            return _kill_group(self._popen)

    def write(self, data: bytes, limit_s: float) -> None:
        """Send bytes; a timeout here shows as a missing answer in `read_line`."""
        deadline = time.monotonic() + limit_s
        while data:
            left_s = deadline - time.monotonic()
            if not _wait_for(self._to, select.POLLOUT, left_s):
                return
            try:
                data = data[os.write(self._to, data) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                return

    def read_line(self, limit_s: float) -> bytes | None:
        """Return the next line; None after a timeout or the end of the process."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if not _wait_for(self._from, select.POLLIN, left_s):
                self.is_late = True
                return None
            chunk = os.read(self._from, 1 << 16)
            if not chunk or len(self._received) > _MAX_LINE_BYTES:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line


def _wait_for(file: int, event: int, limit_s: float) -> bool:
    """Return whether a file descriptor is ready, or at its end, within the time."""
    if limit_s <= 0:
        return False
    # NB: select() takes no descriptor above 1,023.
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(limit_s * 1000))


def _has_ended(popen: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it."""
    if popen.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _kill_group(popen: subprocess.Popen[bytes]) -> int:
    # NB: the kernel does not reuse the PID before the process is reaped, even after its end.
    if popen.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
    return popen.wait()


def _close_worker(popen: subprocess.Popen[bytes]) -> None:
    _kill_group(popen)
    for stream in (popen.stdin, popen.stdout):
        if stream is not None:
            stream.close()


def _describe_end(code: int) -> str:
    if code < 0:
        # NB: real-time signals have no names.
        names = {number.value: number.name for number in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
