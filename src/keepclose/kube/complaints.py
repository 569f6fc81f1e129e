"""What a reflector has to say about a server and its objects, each thing once.

A server that is down for an hour is worth one line, not one for every attempt; the next line comes
when the message changes, or after it had worked in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from keepclose.kube.errors import KubeError
from keepclose.model.causes import Cause

# Names of objects that come and go must not pile up.
_MOST_REMEMBERED: Final = 1000
_log = structlog.get_logger(__name__)


def _tell_nobody() -> None:
    """Do nothing."""


class Complaints:
    """The complaints about one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._failure = ""
        self._unreadable: dict[str, str] = {}
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
        """Log an object that cannot be read, unless that was said before."""
        if self._unreadable.get(name) != str(cause):
            if len(self._unreadable) >= _MOST_REMEMBERED:
                self._unreadable.clear()
            self._unreadable[name] = str(cause)
            _log.warning("object skipped", kind=self._kind, object=name, cause=str(cause))
