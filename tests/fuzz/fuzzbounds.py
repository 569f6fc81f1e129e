"""What one input may cost, and what a target says when one breaks a rule.

A target is a module `fuzz_<name>.py` with two functions: `check(data)` raises for an input that
breaks a rule, and returns for every other one; `seeds()` yields inputs that are worth mutating. The
same `check` runs under the fuzzer, in the replay of the corpus and by hand.
"""

from __future__ import annotations

import importlib
import signal
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, Protocol, cast

FOLDER: Final = Path(__file__).parent
CORPUS: Final = FOLDER / "corpus"
FINDINGS: Final = FOLDER / "findings"
CPU_SECONDS: Final = 1.0
"""An input that takes more time of the processor than this is a finding; the inputs are small."""


class Target(Protocol):
    """A module with something to fuzz."""

    def check(self, data: bytes) -> None:
        """Raise for an input that breaks a rule."""
        ...

    def seeds(self) -> Iterable[bytes]:
        """Return inputs to begin with."""
        ...


class RuleBroken(AssertionError):  # noqa: N818 - a finding, not an error of the test
    """A result that no input may have."""


class TooSlow(BaseException):
    """An input that takes too long."""


def load_target(name: str) -> Target:
    """Return the target of a name."""
    return cast("Target", importlib.import_module(f"fuzz_{name}"))


def target_names() -> list[str]:
    """Return the names of all targets."""
    return sorted(file.stem.removeprefix("fuzz_") for file in FOLDER.glob("fuzz_*.py"))


def require(condition: object, message: str) -> None:
    """Raise RuleBroken unless the condition holds."""
    if not condition:
        raise RuleBroken(message)


@contextmanager
def bounded(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise TooSlow when the block takes more time of the processor, wherever it is then.

    NB: time that other processes take does not count, so that a busy machine finds nothing.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"more than {seconds:g} s of the processor")

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def signature_of(error: BaseException) -> str:
    """Return what two findings of one cause have in common: the error and where it came up."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/keepclose/" in frame.filename] or list(frames)
    kind = type(error).__name__
    if not ours:
        return kind
    if isinstance(error, TooSlow):
        # A slow input is interrupted anywhere; the outermost function of ours names it.
        return f"{kind} in {Path(ours[0].filename).name}:{ours[0].name}"
    if isinstance(error, RuleBroken):
        return f"{kind}: {str(error).partition(':')[0]}"
    last = ours[-1]
    return f"{kind} in {Path(last.filename).name}:{last.lineno} {last.name}"
