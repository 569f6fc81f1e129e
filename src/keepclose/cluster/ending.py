"""Ends a running cluster from outside, and cleans up after one that was killed."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from keepclose.cluster.home import Home, clear_free, holder_of, is_held

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
    pid = holder_of(home)
    if pid is None:
        if not is_held(home):
            return
        raise StillRunningError(f"the cluster in {home.directory} is just starting; try again")
    try:
        os.kill(pid, signal.SIGTERM)
        if not _await_end(home, _ORDERLY_S):
            os.kill(pid, signal.SIGKILL)
            if not _await_end(home, _KILLED_S):
                raise StillRunningError(f"process {pid} does not end")
    except PermissionError:
        raise StillRunningError(
            f"the cluster in {home.directory} belongs to another user (process {pid})"
        ) from None
    except ProcessLookupError:
        # It has just ended by itself.
        return


def _await_end(home: Home, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_held(home):
            return True
        # The lock tells only who asks.
        time.sleep(_LOOK_S)
    return False
