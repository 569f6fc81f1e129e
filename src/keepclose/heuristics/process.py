"""Heuristics of third parties, each in a process of its own with a limit on time.

Nothing of a third party is imported here: a heuristic that cannot be imported, hangs, crashes or
takes all memory fails alone, and is told as a Failure. There is at most one process for each
heuristic, started when it is first asked; processes that it starts itself end with it. Questions
and answers are numbered, so that an answer too many is never taken for that of the next question.
After a failure of the process the heuristic is not asked for a pause that doubles each time;
meanwhile the same Failure is the answer.
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
from keepclose.routing.heuristics import Registry
from keepclose.system.threads import open_in_thread

_READY: Final = b"ready"
_MOST_BYTES: Final = 1 << 20
# The kernel ends the process at its limit; only where it does not do so this side has to.
_MARGIN_S: Final = 1.0
_PAUSING: Final = frozenset({FailureCause.NOT_LOADED, FailureCause.TIMED_OUT, FailureCause.CRASHED})
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from keepclose.heuristics.worker import run_worker; "
    "run_worker(sys.argv[2], sys.argv[3], start_s=float(sys.argv[4]), "
    "allocate_s=float(sys.argv[5]), memory_bytes=int(sys.argv[6]))"
)
_ANSWERS: Final = msgspec.json.Decoder(HeuristicAnswer)
_ENCODER: Final = msgspec.json.Encoder()


class HeuristicLimits(msgspec.Struct, frozen=True):
    """What a heuristic may take, and for how many seconds it is left alone after a failure."""

    start_s: float = 20.0
    allocate_s: float = 2.0
    first_pause_s: float = 5.0
    longest_pause_s: float = 300.0
    memory_bytes: int = 1 << 30


class IsolatedHeuristic:
    """A heuristic that runs in a process of its own; safe to be asked from several threads."""

    def __init__(
        self,
        name: str,
        value: str,
        *,
        limits: HeuristicLimits = HeuristicLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Take what the entry point says; nothing is started or imported yet."""
        self._name = name
        self._value = value
        self._limits = limits
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self._asked = 0
        self._failures = 0
        self._pause_ends = 0.0
        self._failure: HeuristicFailure | None = None

    def allocate(self, demand: ZoneDemand) -> HeuristicAnswer:
        """Return the answer, or how the heuristic failed; blocks for no longer than the limits."""
        with self._lock:
            if self._failure is not None and time.monotonic() < self._pause_ends:
                return self._failure
            answer = self._ask(demand)
            if isinstance(answer, HeuristicFailure) and answer.cause in _PAUSING:
                self._stop()
                limits = self._limits
                pause_s = min(limits.first_pause_s * 2.0**self._failures, limits.longest_pause_s)
                self._failures = min(self._failures + 1, 60)
                self._pause_ends = time.monotonic() + pause_s
                self._failure = answer
            else:
                self._failures = 0
                self._failure = None
            return answer

    def close(self) -> None:
        """End the process at once, also while an answer is waited for; it starts again if asked."""
        process = self._process
        if process is not None:
            process.kill()

    def _ask(self, demand: ZoneDemand) -> HeuristicAnswer:
        limits = self._limits
        if self._process is None or not self._process.is_running:
            self._process = _Process(self._name, self._value, limits)
            line = self._process.read_line(limits.start_s + _MARGIN_S)
            if line != _READY:
                return self._judge(line, "was not loaded", limits.start_s)
        self._asked += 1
        number = str(self._asked).encode()
        question = number + b" " + _ENCODER.encode(demand) + b"\n"
        self._process.write(question, limits.allocate_s + _MARGIN_S)
        line = self._process.read_line(limits.allocate_s + _MARGIN_S)
        if line is not None:
            answered, _, line = line.partition(b" ")
            line = line if answered == number else b""
        return self._judge(line, "did not answer", limits.allocate_s)

    def _judge(self, line: bytes | None, what: str, limit_s: float) -> HeuristicAnswer:
        process = self._process
        if line is None and process is not None:
            if not process.is_late:
                process.await_end(_MARGIN_S)
            code = process.kill()
            if process.is_late or code == -signal.SIGALRM:
                return HeuristicFailure(FailureCause.TIMED_OUT, f"it {what} within {limit_s:g} s")
            return HeuristicFailure(FailureCause.CRASHED, f"its process {_describe_end(code)}")
        try:
            answer: HeuristicAnswer = _ANSWERS.decode(line or b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return HeuristicFailure(
                FailureCause.CRASHED, "its process sent something that is no answer"
            )
        if isinstance(answer, HeuristicFailure) and answer.cause is FailureCause.NOT_LOADED:
            # The name of the heuristic stands before every message already.
            return replace(answer, message=answer.message.removeprefix(f"heuristic {self._name}: "))
        return answer

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


class DeferredHeuristic:
    """An isolated heuristic for a caller that must not wait: it postpones all answers."""

    def __init__(self, isolated: IsolatedHeuristic) -> None:
        self._isolated = isolated

    def allocate(self, _demand: ZoneDemand) -> Postponed:
        """Answer nothing."""
        return Postponed()

    def fetch(self, demand: ZoneDemand) -> HeuristicAnswer:
        """Return the answer; blocks, so call it in a thread."""
        return self._isolated.allocate(demand)

    def close(self) -> None:
        """End the process, which also ends the fetching of an answer."""
        self._isolated.close()


def defer_heuristics(heuristics: Registry) -> Registry:
    """Return the registry with every isolated heuristic deferred; others stay as they are."""
    return {
        name: DeferredHeuristic(one) if isinstance(one, IsolatedHeuristic) else one
        for name, one in heuristics.items()
    }


async def fetch_answers(
    heuristics: Registry, name: str, questions: Iterable[ZoneDemand]
) -> list[tuple[ZoneDemand, HeuristicAnswer]]:
    """Return the questions with the answers of a deferred heuristic, fetched in threads."""
    heuristic = heuristics.get(name)
    if not isinstance(heuristic, DeferredHeuristic):
        return []
    answers: list[tuple[ZoneDemand, HeuristicAnswer]] = []
    for question in questions:
        fetch = partial(heuristic.fetch, question)
        # A cancelled caller does not wait; the thread ends with the answer or with `close`.
        answers.append((question, await open_in_thread(fetch, _drop)))
    return answers


def _drop(_answer: HeuristicAnswer) -> None:
    """Release nothing: an answer holds no resources."""


def close_heuristics(heuristics: Registry) -> None:
    """End the processes of all deferred heuristics."""
    for heuristic in heuristics.values():
        if isinstance(heuristic, DeferredHeuristic):
            heuristic.close()


class _Process:
    """A running worker and what it has sent so far."""

    def __init__(self, name: str, value: str, limits: HeuristicLimits) -> None:
        numbers = (limits.start_s, limits.allocate_s, limits.memory_bytes)
        arguments = (json.dumps(sys.path), name, value, *map(str, numbers))
        self._popen = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C in a terminal is for the parent, which ends this one with all it started.
            start_new_session=True,
        )
        assert self._popen.stdin is not None  # noqa: S101 - asked for above
        assert self._popen.stdout is not None  # noqa: S101
        self._to = self._popen.stdin.fileno()
        self._from = self._popen.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._received = b""
        self._ending = threading.Lock()
        self.is_late = False
        """Whether this side had to give up waiting."""
        self._end = weakref.finalize(self, _end, self._popen)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return not _has_ended(self._popen)

    def await_end(self, limit_s: float) -> None:
        """Wait for a process that ends by itself, so that its own exit code is told."""
        deadline = time.monotonic() + limit_s
        while self.is_running and time.monotonic() < deadline:
            time.sleep(0.005)

    def kill(self) -> int:
        """End the process and what it started; return its exit code, negative for a signal."""
        with self._ending:
            return _kill_group(self._popen)

    def write(self, data: bytes, limit_s: float) -> None:
        """Send bytes; what cannot be sent in time shows as an answer that does not come."""
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
        """Return the next line; None when none came in time, or the process ended."""
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._received:
            left_s = deadline - time.monotonic()
            if not _wait_for(self._from, select.POLLIN, left_s):
                self.is_late = True
                return None
            chunk = os.read(self._from, 1 << 16)
            if not chunk or len(self._received) > _MOST_BYTES:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line


def _wait_for(file: int, event: int, limit_s: float) -> bool:
    """Return whether a file is ready, or at its end, within the time."""
    if limit_s <= 0:
        return False
    # NB: select takes no file beyond the 1,024th.
    poll = select.poll()
    poll.register(file, event)
    return bool(poll.poll(limit_s * 1000))


def _has_ended(popen: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, and leave it to be waited for."""
    if popen.returncode is not None:
        return True
    try:
        return os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _kill_group(popen: subprocess.Popen[bytes]) -> int:
    # NB: until it is waited for, no other process can have its number, not even once it has ended.
    if popen.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(popen.pid, signal.SIGKILL)
    return popen.wait()


def _end(popen: subprocess.Popen[bytes]) -> None:
    _kill_group(popen)
    for stream in (popen.stdin, popen.stdout):
        if stream is not None:
            stream.close()


def _describe_end(code: int) -> str:
    if code < 0:
        # NB: signals of real time have no names.
        names = {one.value: one.name for one in signal.Signals}
        return f"was ended by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
