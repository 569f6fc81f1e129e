"""Ends a running cluster from outside, and cleans up after one that was killed."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from keepclose.cluster.home import Home, holder_of, is_held

_ORDERLY_S: Final = 10.0
_KILLED_S: Final = 5.0
_LOOK_S: Final = 0.02


class StillRunningError(Exception):
    """A cluster that cannot be ended, and why."""


def end_cluster(home: Home) -> bool:
    """Return whether a cluster ran here; afterwards none does, and its files are gone.

    Raises StillRunningError.
    """
    if not is_held(home):
        home.clear()
        return False
    pid = holder_of(home)
    if pid is None:
        raise StillRunningError(f"the cluster in {home.directory} is just starting; try again")
    try:
        os.kill(pid, signal.SIGTERM)
        if not _await_end(home, _ORDERLY_S):
            os.kill(pid, signal.SIGKILL)
            if not _await_end(home, _KILLED_S):
                raise StillRunningError(f"process {pid} does not end")
            home.clear()
    except PermissionError:
        raise StillRunningError(
            f"the cluster in {home.directory} belongs to another user (process {pid})"
        ) from None
    except ProcessLookupError:
        home.clear()
    return True


def _await_end(home: Home, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not is_held(home):
            return True
        # The lock tells only who asks.
        time.sleep(_LOOK_S)
    return False
