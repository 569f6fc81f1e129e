"""Running the commands of a page: one bash, in a folder of its own, from the first to the last.

Variables and folders are kept from command to command, as in a terminal. Output and errors come in
the order of a terminal too, and standard input is empty.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from support.consoles import Command, explain_difference

COMMAND_SECONDS: Final = 180.0
RETRY_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.5
_SYSTEM: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


class Done(NamedTuple):
    """What a command printed, and its exit code."""

    output: str
    exit_code: int


class Session:
    """One bash with a home directory of its own; `programs` come first in its PATH."""

    def __init__(self, folder: Path, *, home: Path, programs: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.home = home
        self._programs = [*programs, Path(sys.executable).parent]
        self._count = 0

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env={
                "HOME": str(self.home),
                "PATH": ":".join([*map(str, self._programs), *_SYSTEM]),
                "COLUMNS": "100",
                "TERM": "dumb",
                "LC_ALL": "C.UTF-8",
            },
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # All that a page left running in the background, and did not detach, ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        for pipe in (self._bash.stdin, self._bash.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, text: str, *, seconds: float = COMMAND_SECONDS) -> Done:
        """Run a command and return what came of it; raise TimeoutError where it does not end."""
        self._count += 1
        script = self.home / f".command-{self._count}"
        script.write_text(f"{text}\n")
        mark = f"--- end of command {self._count}: "
        assert self._bash.stdin is not None
        # NB: read from a file, so that a command that reads its input does not read our commands.
        self._bash.stdin.write(f". {script} </dev/null\nprintf '\\n{mark}%d\\n' $?\n".encode())
        self._bash.stdin.flush()
        output = self._read_until(mark.encode(), seconds).decode(errors="replace")
        script.unlink()
        before, found, after = output.rpartition(f"\n{mark}")
        if not found:
            return Done(f"{output}\n(the command ended the shell)", self._bash.wait())
        return Done(before, int(after))

    def _read_until(self, mark: bytes, seconds: float) -> bytes:
        """Return the output up to the line with the mark, or to the end of the shell."""
        assert self._bash.stdout is not None
        descriptor = self._bash.stdout.fileno()
        deadline = time.monotonic() + seconds
        output = b""
        while not (mark in output and output.endswith(b"\n")):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError(output.decode(errors="replace"))
            if not (read := os.read(descriptor, 65536)):
                break
            output += read
        return output


def run_page(session: Session, commands: Sequence[Command], page: str) -> None:
    """Run the commands in order; raise AssertionError at the first that is not as the page says."""
    for command in commands:
        deadline = time.monotonic() + (RETRY_SECONDS if command.rules.retried else 0.0)
        difference = _try(session, command)
        while difference is not None and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            difference = _try(session, command)
        if difference is not None:
            raise AssertionError(f"{page}:{command.line}: $ {command.text}\n  {difference}")


def _try(session: Session, command: Command) -> str | None:
    try:
        done = session.run(command.text)
    except TimeoutError as error:
        return f"did not end in time; so far it had printed:\n{error}"
    return explain_difference(
        command, done.output, exit_code=done.exit_code, home=str(session.home)
    )
