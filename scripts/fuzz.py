"""Fuzz every target for its part of the time, two at once, and print what came of it.

    scripts/fuzz.py --seconds 3600 [target ...]     fuzz
    scripts/fuzz.py --keep [target ...]             keep the inputs that cover more, in tests/fuzz

Inputs that break a rule are in .fuzz/<target>/findings, each with its trace; the exit code is 1
when there are any. Fix the cause of one, and copy the input to tests/fuzz/findings/<target>, where
`make test` replays it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
TARGETS: Final = ROOT / "tests" / "fuzz"
WORK: Final = ROOT / ".fuzz"
AT_ONCE: Final = 2
# A process that ends early, for memory or a hang, is started again this often.
RESTARTS: Final = 20
_STATISTICS: Final = re.compile(r"^#(\d+)\s+\w+\s+cov: (\d+)", re.MULTILINE)


class Outcome(NamedTuple):
    """What the run of one target came to."""

    target: str
    executions: int
    coverage: int
    corpus: int
    findings: int


def main() -> int:
    """Fuzz or keep; return 1 when an input broke a rule, 2 without a fuzzer."""
    parser = argparse.ArgumentParser(description="fuzz the parsers of keepclose")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("targets", nargs="*")
    chosen = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        sys.stderr.write(
            f"fuzz: atheris has no package for Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}; "
            "it needs CPython 3.11 to 3.14 on Linux x86_64\n"
        )
        return 2
    known = sorted(file.stem.removeprefix("fuzz_") for file in TARGETS.glob("fuzz_*.py"))
    unknown = set(chosen.targets) - set(known)
    if unknown:
        sys.stderr.write(f"fuzz: no target {', '.join(sorted(unknown))}; {', '.join(known)}\n")
        return 2
    targets = chosen.targets or known
    if chosen.keep:
        for target in targets:
            _keep(target)
        return 0
    seconds = chosen.seconds * min(AT_ONCE, len(targets)) / len(targets)
    sys.stdout.write(f"{len(targets)} targets, {seconds:.0f} s each, {AT_ONCE} at once\n")
    sys.stdout.write(
        f"{'target':18}{'executions':>12}{'coverage':>10}{'corpus':>8}{'findings':>10}\n"
    )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = [pool.submit(_fuzz, target, seconds) for target in targets]
        broken = sum([_show(outcome.result()) for outcome in outcomes])
    if broken:
        sys.stdout.write(f"inputs that broke a rule, with their traces: {WORK}/<target>/findings\n")
    return 1 if broken else 0


def _show(outcome: Outcome) -> int:
    sys.stdout.write(
        f"{outcome.target:18}{outcome.executions:12,}{outcome.coverage:10,}{outcome.corpus:8,}"
        f"{outcome.findings:10,}\n"
    )
    sys.stdout.flush()
    return outcome.findings


def _fuzz(target: str, seconds: float) -> Outcome:
    folder = WORK / target
    findings = folder / "findings"
    shutil.rmtree(findings, ignore_errors=True)
    findings.mkdir(parents=True)
    corpora = _corpora(target)
    executions = coverage = 0
    until = time.monotonic() + seconds
    for _ in range(RESTARTS):
        left = int(until - time.monotonic())
        if left < 1:
            break
        ended = _run(
            target,
            f"--findings={findings}",
            f"-max_total_time={left}",
            f"-artifact_prefix={findings}/",
            *map(str, corpora),
        )
        statistics = _STATISTICS.findall(ended.stderr)
        if statistics:
            executions += int(statistics[-1][0])
            coverage = max(coverage, int(statistics[-1][1]))
        (folder / "log").write_text(ended.stderr)
        if ended.returncode == 0:
            break
    inputs = [file for file in findings.iterdir() if file.suffix != ".txt"]
    return Outcome(target, executions, coverage, len(list(corpora[0].iterdir())), len(inputs))


def _run(target: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, str(TARGETS / "fuzzing.py"), target, *options],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )


def _corpora(target: str) -> list[Path]:
    """Return the folders of inputs: the one that grows, the seeds, what is kept, past findings."""
    growing, seeds = WORK / target / "corpus", WORK / target / "seeds"
    for folder in (growing, seeds):
        folder.mkdir(parents=True, exist_ok=True)
    # The targets build objects as other tests do.
    sys.path[:0] = [str(TARGETS), str(TARGETS.parent)]
    from fuzzbounds import CORPUS, FINDINGS, load_target  # noqa: PLC0415 - beside the targets

    for seed in load_target(target).seeds():
        (seeds / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    kept = [CORPUS / target, FINDINGS / target]
    return [growing, seeds, *(folder for folder in kept if folder.is_dir())]


def _keep(target: str) -> None:
    """Copy the fewest inputs that cover what all of them cover into the repository."""
    growing, *others = _corpora(target)
    smallest = WORK / target / "smallest"
    shutil.rmtree(smallest, ignore_errors=True)
    smallest.mkdir()
    # NB: counters would keep an input for each number of rounds of a loop.
    options = ("-merge=1", "-use_counters=0", "-timeout=20")
    findings = f"--findings={WORK / target / 'merged'}"
    _run(target, findings, *options, str(smallest), str(growing), *map(str, others))
    kept = TARGETS / "corpus" / target
    shutil.rmtree(kept, ignore_errors=True)
    seeds = {file.read_bytes() for file in (WORK / target / "seeds").iterdir()}
    chosen = [
        file
        for file in smallest.iterdir()
        if file.read_bytes() not in seeds and _passes(target, file.read_bytes())
    ]
    if chosen:
        kept.mkdir(parents=True)
    for file in chosen:
        shutil.copy(file, kept / file.name[:16])
    size = sum(file.stat().st_size for file in chosen)
    sys.stdout.write(f"{target}: {len(chosen)} inputs, {size:,} bytes\n")


def _passes(target: str, data: bytes) -> bool:
    """Return whether an input breaks no rule; one that does belongs to the findings."""
    from fuzzbounds import bounded, load_target  # noqa: PLC0415 - beside the targets

    try:
        with bounded():
            load_target(target).check(data)
    except BaseException:  # noqa: BLE001 - whatever it is, it is a finding
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
