"""No regular expression of the package takes more than linear time on a hostile text."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import keepclose

# Texts of tests only, and a process that reads nothing when it is imported.
SKIPPED = ("keepclose.testing", "keepclose.__main__", "keepclose.heuristics.worker")
METHODS = frozenset({"match", "fullmatch", "search", "sub", "split", "findall", "finditer"})
_DOUBTFUL_S, _CERTAIN_S = 0.02, 1.0
SMALL, LARGE = 2_000, 16_000


class Use(NamedTuple):
    """A pattern and a method by which the package uses it."""

    place: str
    pattern: str
    flags: int
    method: str


def module_names() -> list[str]:
    """Return all modules whose patterns meet texts of others."""
    found = pkgutil.walk_packages(keepclose.__path__, "keepclose.")
    return sorted(info.name for info in found if not info.name.startswith(SKIPPED))


def compiled_in(value: Any) -> Iterator[re.Pattern[Any]]:
    """Yield the patterns in a value of a module."""
    owner = getattr(value, "__self__", None)
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(owner, re.Pattern):
        yield owner
    elif isinstance(value, list | tuple | dict):
        for member in value.values() if isinstance(value, dict) else value:
            yield from compiled_in(member)


def methods_of(name: str, value: Any, tree: ast.AST) -> set[str]:
    """Return how a module uses a pattern that it has under a name."""
    if not isinstance(value, re.Pattern):
        method = getattr(value, "__name__", "")
        return {method} if method in METHODS else {"match"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        and node.attr in METHODS
    }
    return used or {"search"}


def uses_in(module: ModuleType) -> Iterator[Use]:
    """Yield the patterns of a module: those that it keeps, and those that it writes into a call."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    for name, value in vars(module).items():
        for pattern in compiled_in(value):
            text, flags = pattern.pattern, pattern.flags
            if isinstance(text, bytes):
                # A pattern of bytes costs what the same pattern of ASCII texts does.
                text, flags = text.decode("latin-1"), flags | re.ASCII
            for method in methods_of(name, value, tree):
                yield Use(f"{module.__name__}.{name}", text, flags, method)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in METHODS
            and isinstance(node.args[0], ast.Constant)
        ):
            place = f"{module.__name__}:{node.lineno}"
            yield Use(place, str(node.args[0].value), 0, node.func.attr)


@cache
def all_uses() -> list[Use]:
    """Return the patterns of the whole package."""
    return sorted(
        {use for name in module_names() for use in uses_in(importlib.import_module(name))}
    )


def sample_characters(pattern: str) -> list[str]:
    """Return characters that a pattern tells apart."""
    classes = {r"\d": "1", r"\w": "a", r"\s": " ", "0-9": "1", "a-z": "a", "A-Z": "A"}
    drawn = {sample for name, sample in classes.items() if name in pattern}
    plain = re.sub(r"\\[a-zA-Z]|\(\?P<\w+>|a-z|A-Z|0-9|a-f|A-F", "", pattern)
    drawn |= {char for char in plain if char not in "()[]{}?*+|^$"}
    return [*sorted(drawn)[:14], ".", "-"]


def hostile_texts(pattern: str, length: int) -> Iterator[str]:
    """Yield texts that repeat what a pattern repeats and end as none of them may."""
    characters = sample_characters(pattern)
    for first in characters:
        yield first * length + "\x00"
        for second in characters:
            if second != first:
                yield (first + second) * (length // 2) + "\x00"


def cost_of(use: Use, text: str) -> float:
    """Return the CPU time of one use of a pattern."""
    call = getattr(re.compile(use.pattern, use.flags), use.method)
    start = time.process_time()
    result = call("", text) if use.method == "sub" else call(text)
    if use.method == "finditer":
        list(result)
    return time.process_time() - start


def is_linear(use: Use) -> bool:
    """Return whether eight times the text takes about eight times as long, for all texts."""
    for small, large in zip(
        hostile_texts(use.pattern, SMALL), hostile_texts(use.pattern, LARGE), strict=True
    ):
        # NB: a linear pattern takes a tenth of this; the load of the machine is outlived by trying.
        costs = [cost_of(use, large)]
        while _DOUBTFUL_S < costs[-1] < _CERTAIN_S and len(costs) < 5:
            costs.append(cost_of(use, large))
        if min(costs) > _DOUBTFUL_S and min(costs) > 24 * cost_of(use, small):
            return False
    return True


def test_the_patterns_of_the_package_are_found() -> None:
    """The search for patterns finds kept ones, bound methods, those in tables and in calls."""
    places = {use.place.rpartition(".")[2] for use in all_uses()}
    assert {"_CONTROLS", "_is_label", "_quantity", "_TIME_PARTS"} <= places
    assert any(use.place.startswith("keepclose.lab.network.links:") for use in all_uses())
    assert len(all_uses()) >= 60


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        pytest.param(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([a-z]*[0-9]*)", "fullmatch", id="two runs"),
        pytest.param(r"\d+x", "search", id="a run that is searched for"),
        pytest.param(r"(a|b)*-*(ab)*c", "match", id="two characters"),
    ],
)
def test_a_quadratic_pattern_is_noticed(pattern: str, method: str) -> None:
    """The measure tells patterns apart that take quadratic time."""
    assert not is_linear(Use("example", pattern, 0, method))


@pytest.mark.parametrize("use", all_uses(), ids=lambda use: f"{use.place}-{use.method}")
def test_a_pattern_takes_linear_time(use: Use) -> None:
    """Texts built against a pattern cost no more than their length."""
    assert is_linear(use)
