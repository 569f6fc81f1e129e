"""Targets of the fuzzers: inputs of old hold, and some seconds of fuzzing find nothing new."""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import structlog
from fuzzbounds import CORPUS, FINDINGS, FOLDER, TooSlow, bounded, load_target, target_names
from jsonmutation import mutate_json

# Enough to leave the seeds behind; numbers, not seconds, so that every run does the same.
RUNS: Final = {"patching": 2000, "scalars": 2000, "netlink": 2000, "access": 2000}
USUAL_RUNS: Final = 200
MAX_CORPUS: Final = 2_000_000
_READY: Final = FOLDER.parents[1] / ".venv" / ".fuzz-ready"


def _why_no_fuzzer() -> str:
    if importlib.util.find_spec("atheris") is not None:
        return ""
    said = _READY.read_text().strip() if _READY.exists() else ""
    return said or "atheris is not installed; make test installs it where it can"


def _inputs(name: str) -> list[bytes]:
    folders = [folder / name for folder in (CORPUS, FINDINGS) if (folder / name).is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return [*load_target(name).seeds(), *(file.read_bytes() for file in files)]


@pytest.mark.parametrize("name", target_names())
def test_inputs_of_old_break_no_rule(name: str) -> None:
    """Seeds, kept inputs and past findings pass, each within the time that one may take."""
    inputs = _inputs(name)
    assert len(inputs) > 1
    target = load_target(name)
    try:
        for data in inputs:
            with bounded():
                target.check(data)
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("name", target_names())
def test_fuzzing_finds_nothing(name: str, tmp_path: Path) -> None:
    """A bounded run from a fixed seed with coverage finds no input that breaks a rule."""
    reason = _why_no_fuzzer()
    if reason:
        pytest.skip(reason)
    growing, seeds, findings = (tmp_path / part for part in ("corpus", "seeds", "findings"))
    for folder in (growing, seeds, findings):
        folder.mkdir()
    inputs = _inputs(name)
    for number, data in enumerate(inputs):
        (seeds / str(number)).write_bytes(data)
    # NB: the inputs of old count as runs too.
    runs = len(inputs) + RUNS.get(name, USUAL_RUNS)
    ended = subprocess.run(
        [
            sys.executable,
            str(FOLDER / "fuzzing.py"),
            name,
            f"--findings={findings}",
            f"-runs={runs}",
            "-seed=1",
            f"-artifact_prefix={findings}/",
            str(growing),
            str(seeds),
        ],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600,
        # The order of sets decides which inputs follow.
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    traces = [file.read_text() for file in findings.glob("*.txt")]
    assert not traces, "\n".join(traces)
    assert ended.returncode == 0, ended.stderr[-3000:]
    covered = re.findall(r"cov: (\d+)", ended.stderr)
    # NB: nothing covered would mean that the fuzzer sees none of our code, and finds nothing ever.
    assert covered, ended.stderr[-3000:]
    assert int(covered[-1]) > 20


def _fuzz_target(folder: Path, statement: str) -> subprocess.CompletedProcess[str]:
    """Fuzz a target whose check is the statement, by 50 runs from the seed "x"."""
    (folder / "fuzz_own.py").write_text(
        '"""A target of a test."""\n\n\ndef check(data: bytes) -> None:\n'
        f'    """Check it."""\n    {statement}\n'
    )
    (folder / "seeds").mkdir()
    (folder / "seeds" / "x").write_bytes(b"x")
    program = (
        f"import sys; sys.path[:0] = [{str(FOLDER)!r}, {str(folder)!r}];"
        "import fuzzing; fuzzing.main()"
    )
    findings = f"--findings={folder / 'findings'}"
    return subprocess.run(
        [sys.executable, "-c", program, "own", findings, "-runs=50", "seeds"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
    )


def test_make_fuzz_loads_every_target(tmp_path: Path) -> None:
    """The program behind `make fuzz` finds the seeds of each target without paths of pytest."""
    scripts = FOLDER.parents[1] / "scripts"
    program = (
        f"import sys; sys.path.insert(0, {str(scripts)!r}); from pathlib import Path; import fuzz;"
        f"fuzz.WORK = Path({str(tmp_path)!r});"
        "[fuzz._corpora(name) for name in sys.argv[1:]]"
    )
    subprocess.run([sys.executable, "-c", program, *target_names()], check=True, timeout=300)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == sorted(target_names())
    assert all(list((folder / "seeds").iterdir()) for folder in tmp_path.iterdir())


def test_a_broken_rule_is_written_down(tmp_path: Path) -> None:
    """An input that raises is kept with its trace, and the run goes on."""
    reason = _why_no_fuzzer()
    if reason:
        pytest.skip(reason)
    ended = _fuzz_target(tmp_path, "if b'x' in data: raise ValueError(data)")
    assert ended.returncode == 0, ended.stderr
    [trace] = (tmp_path / "findings").glob("*.txt")
    assert "ValueError" in trace.read_text()
    assert b"x" in trace.with_suffix("").read_bytes()


def test_memory_counts_from_where_the_fuzzer_starts(tmp_path: Path) -> None:
    """What the process that starts it holds is no finding; what an input takes is."""
    reason = _why_no_fuzzer()
    if reason:
        pytest.skip(reason)
    (tmp_path / "quiet").mkdir()
    held = bytearray(600 << 20)
    # NB: libFuzzer looks once a second.
    ended = _fuzz_target(tmp_path / "quiet", "sum(range(3 * 10**6))")
    assert ended.returncode == 0, ended.stderr
    del held
    (tmp_path / "greedy").mkdir()
    ended = _fuzz_target(
        tmp_path / "greedy", "check.held = bytearray(600 << 20); sum(range(3 * 10**6))"
    )
    assert ended.returncode != 0
    assert "out-of-memory" in ended.stderr


def test_what_is_slow_is_interrupted() -> None:
    """An input that needs more of the processor than the limit is stopped where it is."""
    with pytest.raises(TooSlow, match=r"more than 0\.05 s"), bounded(0.05):
        sum(1 for _ in itertools.count())


def test_the_corpus_is_small() -> None:
    """What is kept for all targets stays within two megabytes."""
    files = [file for file in CORPUS.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < MAX_CORPUS


def test_mutants_of_json_are_json() -> None:
    """Mutation by structure gives other JSON, the same for the same seed."""
    text = b'{"a": [1, {"b": "c"}], "d": null}'
    mutants = [mutate_json(text, seed, largest=10_000) for seed in range(200)]
    assert len(set(mutants)) > 100
    assert mutants == [mutate_json(text, seed, largest=10_000) for seed in range(200)]
    assert mutate_json(b"no json", 1, largest=100) is None
