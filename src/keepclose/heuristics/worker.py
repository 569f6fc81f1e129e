"""The process that runs one heuristic of a third party: questions in, answers out, line by line.

It has the heuristic to itself, so that whatever the heuristic does to a process, it does to this
one. The kernel ends the process where loading or one answer takes longer than its limit, even if
the parent is gone by then, so a heuristic that hangs never runs on unattended. Memory beyond its
limit is refused to the process, and where the machine has none left the process is the first to be
ended. What the heuristic prints goes to standard error.
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
_DEMANDS = msgspec.json.Decoder(ZoneDemand)


def run_worker(
    name: str, value: str, *, start_s: float, allocate_s: float, memory_bytes: int
) -> None:
    """Answer questions until standard input ends.

    The first line out says READY, or holds the Failure to load the heuristic, which ends it all.
    Each question begins with its number, and so does its answer.
    """
    own = os.getpid()
    _limit_memory(memory_bytes)
    requests, replies = _take_streams()
    # NB: the default action ends the process without asking the interpreter, which may be stuck.
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
            demand = _DEMANDS.decode(question)
            signal.setitimer(signal.ITIMER_REAL, allocate_s)
            answer = ask_heuristic(heuristic.allocate, demand)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if os.getpid() != own:
                # A copy that the heuristic made of this process and let return here.
                os._exit(0)
            if not isinstance(answer, HeuristicAnswer):
                text = "allocate returned an object of the type Postponed"
                answer = HeuristicFailure(FailureCause.INVALID_ANSWER, text)
            out.write(number + b" " + _encode(answer))
            out.flush()


def _limit_memory(most_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))
    # Only Linux has this file, and some sandboxes do not let it be written.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _take_streams() -> tuple[int, int]:
    """Return where questions come from and answers go to, out of the heuristic's way."""
    sys.stdout.flush()
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _encode(answer: HeuristicAnswer) -> bytes:
    return _ENCODER.encode(answer) + b"\n"
