"""The worker process that runs one third-party heuristic: questions in, answers out, line by line.

The heuristic has the process to itself, so a crash or leak harms nothing else. The kernel ends the
process when loading or one answer takes longer than its limit, even if the parent is gone by then:
a heuristic that hangs never runs on unattended. RLIMIT_DATA bounds its memory, and the OOM killer
of the kernel takes this process first. Output of the heuristic goes to standard error, never into
the answers.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec

from keepclose.heuristics.discovery import GROUP, ExtensionError, load_heuristic
from keepclose.routing.heuristic_answers import (
    FailureCause,
    HeuristicAnswer,
    HeuristicFailure,
    ZoneDemand,
    ask_heuristic,
)

_READY = b"ready\n"
_ENCODER = msgspec.json.Encoder()
_DEMAND_DECODER = msgspec.json.Decoder(ZoneDemand)


def run_worker(
    name: str, value: str, *, start_s: float, allocate_s: float, memory_bytes: int
) -> None:
    """Answer questions until standard input ends.

    The first line out is "ready", or a `HeuristicFailure` if the heuristic cannot be loaded, after
    which the worker returns. Each question and its answer begin with the same number.
    """
    worker_pid = os.getpid()
    _limit_memory(memory_bytes)
    requests, replies = _detach_streams()
    # NB: the default action ends the process even while the interpreter is stuck in C code.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, start_s)
    try:
        heuristic = load_heuristic(EntryPoint(name=name, value=value, group=GROUP))
    except ExtensionError as error:
        os.write(replies, _encode(HeuristicFailure(FailureCause.NOT_LOADED, str(error))))
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    os.write(replies, _READY)
    with os.fdopen(requests, "rb") as lines, os.fdopen(replies, "wb") as out:
        for line in lines:
            number, _, question = line.partition(b" ")
            demand = _DEMAND_DECODER.decode(question)
            signal.setitimer(signal.ITIMER_REAL, allocate_s)
            answer = ask_heuristic(heuristic.allocate, demand)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if os.getpid() != worker_pid:
                # The heuristic forked this process, and the child returned from `allocate`.
                os._exit(0)
            if not isinstance(answer, HeuristicAnswer):
                message = "allocate returned an object of the type Postponed"
                answer = HeuristicFailure(FailureCause.INVALID_ANSWER, message)
            out.write(number + b" " + _encode(answer))
            out.flush()


def _limit_memory(limit_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    # Only Linux has this file, and some sandboxes forbid writing it.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _detach_streams() -> tuple[int, int]:
    """Return descriptors for questions and answers that the heuristic cannot disturb."""
    sys.stdout.flush()
    requests, replies = os.dup(0), os.dup(1)
    null_device = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_device, 0)
    os.close(null_device)
    os.dup2(2, 1)
    return requests, replies


def _encode(answer: HeuristicAnswer) -> bytes:
    return _ENCODER.encode(answer) + b"\n"
