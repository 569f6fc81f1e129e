"""What a reflector has to say about a server and its objects, each thing once.

A server that is down for an hour is worth one line, not one for every attempt; the next line comes
when the message changes, or after it had worked in between. A server with a million broken objects
is worth a hundred lines and a count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from keepclose.kube.backoff import TokenBucket
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError
from keepclose.model.field_errors import Cause

# Names of objects that come and go must not pile up.
_MOST_REMEMBERED: Final = 1000
MOST_NAMED: Final = 100
"""How many unreadable objects are named in a row; after that one a minute."""
_NAMED_RATE: Final = 1 / 60
_log = structlog.get_logger(__name__)


def _tell_nobody() -> None:
    """Do nothing."""


class Complaints:
    """The complaints about one kind."""

    def __init__(self, kind: str, clock: Clock) -> None:
        self._kind = kind
        self._failure = ""
        self._unreadable: dict[str, str] = {}
        self._named = TokenBucket(clock, rate=_NAMED_RATE, burst=MOST_NAMED)
        self._unnamed = 0
        self.on_recovery: Callable[[], None] = _tell_nobody
        """Called when the server answers again after it had not."""

    def note_failure(self, doing: str, error: KubeError) -> None:
        """Log a failed request unless the last one failed for the same reason."""
        if str(error) != self._failure:
            self._failure = str(error)
            _log.warning("request failed", kind=self._kind, doing=doing, error=str(error))

    def note_success(self) -> None:
        """Make the next failure worth a line again."""
        if self._failure:
            self._failure = ""
            _log.info("request succeeded again", kind=self._kind)
            self.on_recovery()

    def note_unreadable(self, name: str, cause: Cause) -> None:
        """Log an object that cannot be read, unless that was said before or there are too many."""
        if self._unreadable.get(name) == str(cause):
            return
        if len(self._unreadable) >= _MOST_REMEMBERED:
            self._unreadable.clear()
        self._unreadable[name] = str(cause)
        if self._named.take():
            more = {"not_named_before": self._unnamed} if self._unnamed else {}
            self._unnamed = 0
            _log.warning("object skipped", kind=self._kind, object=name, cause=str(cause), **more)
            return
        if not self._unnamed:
            _log.warning("more objects are skipped than are named", kind=self._kind)
        self._unnamed += 1
