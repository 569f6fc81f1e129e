"""A cluster for the time of one command: in a directory of its own, gone when the command ends.

It runs as a child that hears no keys of the terminal, so that whoever stops the command stops the
command first, and that takes the cluster down in order. Signals that end a command are obeyed once;
more of them cannot disturb what is cleaned up by then. If the command is killed, the kernel tells
the cluster to end.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from keepclose.lab.cluster.data_dir import ClusterState, Home
from keepclose.lab.cluster.fork_server import die_with_parent

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ORDERLY_S: Final = 15.0
_ERROR: Final = "error: "


class TemporaryError(Exception):
    """Why no cluster could be started; `code` is the command's exit code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def temporary_cluster(
    *options: str, on_line: Callable[[str], None]
) -> Iterator[tuple[Path, ClusterState]]:
    """Run a cluster for as long as the context lasts; give its directory and its state.

    `options` are those of `keepclose up`; `on_line` gets what that prints while it starts. Raises
    TemporaryError, and KeyboardInterrupt at the first signal that ends a command. Only the main
    thread can do this.
    """
    with _stopped_once():
        directory = Path(tempfile.mkdtemp(prefix="keepclose-"))
        process: subprocess.Popen[str] | None = None
        try:
            process = _start(directory, options)
            yield directory, _await_ready(process, directory, on_line)
        finally:
            # Nothing may come between now and the end of what was made.
            for number in _ENDS:
                signal.signal(number, signal.SIG_IGN)
            if process is not None:
                _end(process)
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _stopped_once() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _ENDS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(directory: Path, options: tuple[str, ...]) -> subprocess.Popen[str]:
    # NB: without -P modules of the directory in which somebody happens to be would come first.
    command = [sys.executable, "-P", "-m", "keepclose", "up"]
    return subprocess.Popen(  # noqa: S603 - this very program
        [*command, "--port", "0", "--data-dir", str(directory), *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        # NB: its marks are looked for, whatever the locale makes of them.
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        start_new_session=True,
        # There are no threads yet, so that this is safe between fork and exec.
        preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGTERM),  # noqa: PLW1509
    )


def _await_ready(
    process: subprocess.Popen[str], directory: Path, on_line: Callable[[str], None]
) -> ClusterState:
    """Return when the cluster works: it says so in its directory before it prints the rest."""
    assert process.stdout is not None  # noqa: S101 - asked for
    home = Home(directory, is_kept=True)
    said = ""
    for line in process.stdout:
        text = line.rstrip()
        state = home.read_state()
        if text.startswith(("✓", "!")):
            on_line(text)
        said = text or said
        if state is not None:
            return state
    code = process.wait()
    text = said.removeprefix(_ERROR) or "it said nothing"
    raise TemporaryError(f"no cluster could be started: {text}", code if code > 0 else 1)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_ORDERLY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
