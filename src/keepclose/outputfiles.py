"""Files that commands are told to write: opened at once, or refused with the reason."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import BinaryIO, Final

_PATIENCE_S: Final = 0.5
"""How long a pipe may be without a program that reads from it."""


def open_output(path: Path) -> BinaryIO:
    """Open a file for writing, empty; raises OSError, also for a pipe from which nothing reads."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            file = open(path, "wb", opener=_open_at_once)  # noqa: SIM115 - Path has no opener
        except OSError as error:
            # NB: also what a pipe says before the program that reads it has opened it.
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > until:
                text = "it is a pipe from which nothing reads"
                raise OSError(errno.ENXIO, text, str(path)) from error
            time.sleep(0.01)
            continue
        os.set_blocking(file.fileno(), True)
        return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
