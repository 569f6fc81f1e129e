"""Run one target under atheris: python tests/fuzz/fuzzing.py <target> [options of libFuzzer].

An input that breaks a rule is written to the folder of `--findings` and named on standard error;
the run goes on, so that one finding does not hide the next. The same cause is written down once.
Memory beyond the limit, and a hang within C code, end the process, as libFuzzer does it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import shlex
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Final

# The targets build objects as other tests do.
sys.path.insert(0, str(Path(__file__).parents[1]))
import fuzzbounds
from jsonmutation import mutate_json

MEMORY_MIB: Final = 512
# Wall time, for what the limit of processor time cannot interrupt.
HANG_SECONDS: Final = 20
MAX_INPUT: Final = 1 << 14
_PR_SET_PDEATHSIG: Final = 1


class Findings:
    """The inputs that broke a rule, one of each cause."""

    def __init__(self, folder: Path) -> None:
        """Write into the folder."""
        self._folder = folder
        self._known: set[str] = set()

    def add(self, data: bytes, error: BaseException) -> None:
        """Write the input down unless its cause is known."""
        signature = fuzzbounds.signature_of(error)
        if signature in self._known:
            return
        self._known.add(signature)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(signature.encode()).hexdigest()[:12]
        (self._folder / name).write_bytes(data)
        trace = "".join(traceback.format_exception(error))
        (self._folder / f"{name}.txt").write_text(f"{signature}\n\n{trace}")
        sys.stderr.write(f"FINDING {signature} ({self._folder / name})\n")
        sys.stderr.flush()


def run_apart() -> None:
    """Go on in a process of our own; this one ends as that one does.

    libFuzzer judges memory by the peak that the kernel counts, and Linux hands the size of the
    process that started this one over to it: a test runner of 600 MB would be a finding.
    """
    child = os.fork()
    if child:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(ended if ended >= 0 else 128 - ended)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def main() -> None:
    """Fuzz until libFuzzer's options end it."""
    run_apart()
    atheris: Any = importlib.import_module("atheris")
    name, *options = sys.argv[1:]
    folder = Path(f"findings-{name}")
    if options and options[0].startswith("--findings="):
        folder = Path(options.pop(0).partition("=")[2])
    with atheris.instrument_imports(include=["keepclose"]):
        target = fuzzbounds.load_target(name)
    findings = Findings(folder)
    is_json = getattr(target, "MUTATES_JSON", False)

    def test_one(data: bytes) -> None:
        try:
            with fuzzbounds.bounded():
                target.check(data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
            findings.add(data, error)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        head, newline, text = data.partition(b"\n")
        if seed % 4:
            mutated = mutate_json(text, seed, largest=max_size - len(head) - 1)
            if mutated is not None:
                return head + newline + mutated
        return bytes(atheris.Mutate(data, max_size))

    limits = [
        f"-timeout={HANG_SECONDS}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-max_len={MAX_INPUT}",
    ]
    # NB: to merge, libFuzzer starts itself again by a shell; the first argument is how.
    again = shlex.join([sys.executable, sys.argv[0], name, f"--findings={folder}"])
    arguments = [again, *limits, *options]
    if is_json:
        atheris.Setup(arguments, test_one, custom_mutator=mutate)
    else:
        atheris.Setup(arguments, test_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
