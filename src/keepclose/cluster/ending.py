"""Ends a running cluster from outside, and cleans up after one that was killed."""

from __future__ import annotations

import signal
import time
from typing import Final

from keepclose.cluster.holders import NotRunningError, send_signal
from keepclose.lab.cluster.data_dir import LOCK, Home, clear_free, holder_of, is_held

_ORDERLY_S: Final = 10.0
_KILLED_S: Final = 5.0
_LOOK_S: Final = 0.02


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
