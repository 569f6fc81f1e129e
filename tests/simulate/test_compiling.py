"""Compiled functions do what the plain ones do, and never what an older text of them did."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from keepclose.routing.allocation.local import find_least_size
from keepclose.simulate import compiling
from keepclose.simulate.compiling import (
    bind_function,
    compile_function,
    find_cache_folder,
    is_available,
)

numpy = pytest.importorskip("numpy")
pytest.importorskip("numba")

FACTOR = 3


def scale(value: float) -> float:
    """Return a multiple of a value."""
    return FACTOR * value


def shrink(value: float) -> float:
    """Return a part of a value."""
    return value / FACTOR


def change(value: float) -> float:
    """Return the changed value, rounded down."""
    return math.floor(scale(value))


def add_up(values: Sequence[float], out: MutableSequence[float]) -> int:
    """Write the sum of all changed values and return how many there are."""
    out[0] = 0.0
    for value in values:
        out[0] += change(value)
    return len(values)


def call_itself(value: int) -> int:
    """Return 0 in a roundabout way."""
    return 0 if value == 0 else call_itself(value - 1)


def list_up(value: int) -> int:
    """Return a sum by way of a function inside."""
    return sum(one for one in range(value))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Keep machine code in a folder of its own, and forget what was compiled."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "code"))
    before = dict(compiling._COMPILED)
    compiling._COMPILED.clear()
    yield tmp_path / "code"
    compiling._COMPILED.clear()
    compiling._COMPILED.update(before)


def load(path: Path, text: str) -> ModuleType:
    """Write a module and import it anew."""
    path.write_text(text)
    # NB: bytecode of the text before, of the same size and second, would be taken for this one's.
    for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        stale.unlink()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def count_hits(function: Any) -> int:
    """Return how often machine code was found in a file."""
    return sum(function.stats.cache_hits.values())


def test_function_is_compiled_with_what_it_calls() -> None:
    """A function that calls a function that calls a function gives what it gives uncompiled."""
    values = [0.5, 1.25, 7.0]
    want = [0.0]
    add_up(values, want)
    out = numpy.zeros(1)

    count = compile_function(add_up)(numpy.array(values), out)

    assert (count, out.tolist()) == (3, want)
    assert add_up.__globals__["change"] is change


def test_compiling_twice_gives_the_same_object() -> None:
    """Compiled functions are remembered."""
    assert compile_function(change) is compile_function(change)


def test_bindings_replace_what_a_function_calls() -> None:
    """The same loop runs with another callee, compiled or not, and both are told apart."""
    compiled = compile_function(change, {"scale": shrink})

    assert bind_function(change, {"scale": shrink})(7.0) == 2
    assert compiled(7.0) == 2
    assert compile_function(change)(7.0) == 21
    assert change(7.0) == 21


@pytest.mark.parametrize(
    ("expected", "threshold"),
    [(expected, threshold) for expected in (0.0, 2.9, 3.0, 495.0) for threshold in (0.1, 0.5)],
)
def test_part_of_an_allocator_gives_the_same_compiled(expected: float, threshold: float) -> None:
    """A function of the controller, compiled as it is, answers alike."""
    want = find_least_size(expected, threshold, 1000)

    assert compile_function(find_least_size)(expected, threshold, 1000) == want


def test_machine_code_is_found_again(folder: Path) -> None:
    """What was compiled once comes from a file the next time."""
    first = compile_function(change)
    assert first(2.0) == 6
    compiling._COMPILED.clear()

    again = compile_function(change)

    assert again(2.0) == 6
    assert (count_hits(first), count_hits(again)) == (0, 1)
    assert len(list(folder.rglob("*.nbi"))) == 1


@pytest.mark.parametrize(
    ("old", "new", "want"),
    [
        pytest.param("2 * value", "5 * value", 35, id="another text of the callee"),
        pytest.param("FACTOR = 4", "FACTOR = 6", 42, id="another constant of the callee"),
    ],
)
def test_changed_callee_is_compiled_anew(tmp_path: Path, old: str, new: str, want: int) -> None:
    """Machine code is not taken from a file when only a callee in another module changed."""
    expression = "FACTOR * value" if old.startswith("FACTOR") else old
    text = f"FACTOR = 4\ndef inner(value):\n    return {expression}\n"
    outer = "from inner_module import inner\ndef outer(value):\n    return inner(value)\n"
    load(tmp_path / "inner_module.py", text)
    before = compile_function(load(tmp_path / "outer_module.py", outer).outer)(7)
    load(tmp_path / "inner_module.py", text.replace(old, new))

    after = compile_function(load(tmp_path / "outer_module.py", outer).outer)(7)

    assert (before, after) == (28 if old.startswith("FACTOR") else 14, want)


def test_compiling_is_reported_once_where_it_takes_place(folder: Path) -> None:
    """The first process compiles two functions and reports once; the next one loads both."""
    program = (
        "import numpy\n"
        "from keepclose.simulate.compiling import compile_function, report_compiling\n"
        "from keepclose.routing.allocation.local import find_least_size\n"
        "from keepclose.routing.allocation.weighted import weighted_matrix\n"
        "report_compiling(lambda: print('compiling'))\n"
        "compile_function(find_least_size)(0.3, 0.5, 99)\n"
        "part = numpy.array([0.5, 0.3, 0.2])\n"
        "compile_function(weighted_matrix)(3, part, numpy.array([1.0, 2, 3]), numpy.zeros(9))\n"
        "print('done')\n"
    )
    command = [sys.executable, "-c", program]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    assert first.stdout.splitlines() == ["compiling", "done"]
    assert second.stdout.splitlines() == ["done"]
    assert any(folder.rglob("*.nbi"))


def test_another_process_finds_the_code(folder: Path) -> None:
    """A second process loads what the first one compiled and compiles nothing itself."""
    text = (
        "from keepclose.routing.allocation.local import find_least_size\n"
        "from keepclose.simulate.compiling import compile_function\n"
        "compiled = compile_function(find_least_size)\n"
        "print(compiled(7.0, 0.5, 100), sum(compiled.stats.cache_hits.values()))\n"
    )
    command = [sys.executable, "-c", text]

    first = subprocess.run(command, capture_output=True, text=True, check=True)
    second = subprocess.run(command, capture_output=True, text=True, check=True)

    assert (first.stdout.split(), second.stdout.split()) == (["5", "0"], ["5", "1"])
    assert folder.is_dir()


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(len, id="a builtin"),
        pytest.param(call_itself, id="a function that calls itself"),
        pytest.param(list_up, id="a function with a function inside"),
    ],
)
def test_other_functions_are_refused(function: Callable[..., Any]) -> None:
    """What cannot be compiled is refused at once."""
    with pytest.raises(TypeError):
        compile_function(function)


def test_closures_are_refused() -> None:
    """A function that remembers something cannot be compiled."""
    remembered = 1

    def inner(value: int) -> int:
        return value + remembered

    with pytest.raises(TypeError, match="module-level"):
        compile_function(inner)


def test_folder_set_for_numba_wins(folder: Path) -> None:
    """A folder the user chose is used as it is."""
    assert find_cache_folder() == folder


def test_cache_folder_of_the_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the code goes where caches of the user are."""
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))

    assert find_cache_folder() == tmp_path / "caches" / "keepclose"


def test_temporary_folder_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the user has no place for caches a private temporary folder serves."""
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    found = find_cache_folder()

    assert found is not None
    assert found.parent == tmp_path
    assert found.stat().st_mode & 0o777 == 0o700


def test_nothing_is_kept_where_nothing_can_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that others may write is refused, and functions are compiled all the same."""
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    shared = tmp_path / ".cache" / "keepclose"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", "/dev/null/nowhere")

    assert find_cache_folder() is None
    assert compile_function(change)(2.0) == 6
    assert list(shared.iterdir()) == []


def test_compiler_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a compiler is told without loading it."""
    assert is_available()
    monkeypatch.setitem(sys.modules, "numba", None)

    assert not is_available()
