"""Logs of the long-running commands: one JSON object a line, on standard error.

Traces are plain text without the values of variables: those may be secrets, and may be megabytes.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Final

import structlog
from structlog.typing import ExcInfo

_MOST_FRAMES: Final = 50


def log_to_standard_error(level: int = logging.NOTSET) -> None:
    """Have everything that is logged from now on, from a level on, go to standard error."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(_trace),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def _trace(exc_info: ExcInfo) -> str:
    # NB: an explicit limit, because commands set sys.tracebacklimit to keep traces from people.
    return "".join(traceback.format_exception(*exc_info, limit=-_MOST_FRAMES))
