"""Logging and quick imports of the long-running commands.

Logs are one JSON object a line, in ASCII, on standard error. Long values are cut. Logs of
libraries, asyncio among them, and Python's warnings have the same form. Traces never hold the
values of variables: those may be secrets, and may be megabytes.

`import_lean` skips work of libraries that keepclose never needs, a third of the time in which a
command starts. structlog imports rich to draw traces on terminals; our logs are JSON. aiohttp reads
all certificate authorities of the machine; our client trusts those of its kubeconfig only. Nearly
all objects that imports create stay, so the garbage collector would find nothing meanwhile.
NB: never for a program that uses keepclose as a library; it gets both libraries whole.
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
from typing import TYPE_CHECKING, Final, TextIO

# NB: this module must not import structlog itself: commands load it for `import_lean`.
if TYPE_CHECKING:
    from structlog.typing import EventDict, ExcInfo, WrappedLogger

MAX_LOG_VALUE: Final = 16_384
"""Longer values are cut: messages of servers and texts of patches may be megabytes."""
_MAX_FRAMES: Final = 50


def log_to_standard_error(level: int = logging.NOTSET) -> None:
    """Send all logs of a level or above to standard error from now on."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(_trace),
            _cut_values,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=_standard_error()),
        cache_logger_on_first_use=True,
    )
    logging.captureWarnings(capture=True)
    logging.basicConfig(
        handlers=[_StructlogHandler()], level=max(level, logging.WARNING), force=True
    )


def import_lean(*modules: str) -> None:
    """Import structlog, aiohttp and then modules of keepclose; loaded modules stay as they are."""
    with _collector_paused():
        with _without_module("rich"):
            import structlog  # noqa: F401 - loaded for its later users
        with _environment(SSL_CERT_FILE=os.devnull, SSL_CERT_DIR=os.devnull):
            import aiohttp  # noqa: F401
        for module in modules:
            import_module(module)


def _standard_error() -> TextIO:
    """Return standard error, or /dev/null where the caller closed it.

    NB: structlog would write to standard output then, which may hold rules for another program.
    """
    return sys.stderr or Path(os.devnull).open("w", encoding="utf-8")


class _StructlogHandler(logging.Handler):
    """Passes records of Python's logging to structlog; by default they span several lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record."""
        import structlog

        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)


def _cut_values(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    for key, value in event.items():
        if isinstance(value, str) and len(value) > MAX_LOG_VALUE:
            rest = len(value) - MAX_LOG_VALUE
            event[key] = f"{value[:MAX_LOG_VALUE]}... ({rest:,} more characters)"
    return event


def _trace(exc_info: ExcInfo) -> str:
    # NB: an explicit limit, because commands set sys.tracebacklimit to hide traces from users.
    return "".join(traceback.format_exception(*exc_info, limit=-_MAX_FRAMES))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector within the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def _without_module(name: str) -> Iterator[None]:
    """Let imports of a module fail within the block, unless it is loaded already."""
    if name in sys.modules:
        yield
        return
    # NB: an import of a module whose entry is None raises ModuleNotFoundError.
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables within the block, and restore them after it."""
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
