"""The process that has a directory, told so that no other process is ever taken for it.

Numbers of processes are given again, so the number alone may be that of an innocent process by now.
A holder is named with the time at which it started, in ticks since the machine started, and is
signalled by a descriptor of the process: if that still runs under the number and started then, the
signal reaches it and no other.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

# In /proc/PID/stat, counted from behind the name in parentheses: the 22nd field of all.
_START_FIELD: Final = 19
_MOST_DIGITS: Final = 20


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
