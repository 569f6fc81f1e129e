"""Logs of the long-running commands: one JSON object a line, on standard error.

Whatever a message holds, it stays one line of ASCII, and a value of others is cut where it is too
long. What libraries log, asyncio among them, and Python's warnings come in the same form. Traces
are plain text without the values of variables: those may be secrets, and may be megabytes.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, WrappedLogger

LONGEST_LOG_VALUE: Final = 16_384
"""What is kept of one value: messages of servers and texts of patches may be megabytes."""
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
            _cut,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=_standard_error()),
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(capture=True)
    logging.basicConfig(handlers=[_OneForm()], level=max(level, logging.WARNING), force=True)


def _standard_error() -> TextIO:
    """Return where logs go: nowhere where the caller closed standard error.

    NB: structlog takes standard output then, which may be rules that a program reads.
    """
    return sys.stderr or Path(os.devnull).open("w", encoding="utf-8")


class _OneForm(logging.Handler):
    """Hands on what libraries log by Python's own means, which would be several lines of text."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _cut(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > LONGEST_LOG_VALUE:
            rest = len(value) - LONGEST_LOG_VALUE
            event[key] = f"{value[:LONGEST_LOG_VALUE]}... ({rest:,} more characters)"
    return event


def _trace(exc_info: ExcInfo) -> str:
    # NB: an explicit limit, because commands set sys.tracebacklimit to keep traces from people.
    return "".join(traceback.format_exception(*exc_info, limit=-_MOST_FRAMES))


def import_lean(*modules: str) -> None:
    """Import structlog, aiohttp and then modules of ours; those that are loaded already stay."""
    with _collecting_nothing():
        with _without_module("rich"):
            import structlog  # noqa: F401 - loaded for its later users
        with _environment(SSL_CERT_FILE=os.devnull, SSL_CERT_DIR=os.devnull):
            import aiohttp  # noqa: F401
        for module in modules:
            import_module(module)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Hold the garbage collector off within the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _without_module(name: str) -> Iterator[None]:
    """Have imports of a module fail within the block, unless it is loaded already."""
    if name in sys.modules:
        yield
        return
    # NB: None is how Python itself marks a module that cannot be imported.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Have other environment variables within the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
