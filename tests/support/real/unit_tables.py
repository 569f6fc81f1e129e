"""What Kubernetes' own unit tests gave to the functions under test, and what these answered.

`make real` records them (see tables/main.go). Here every recorded call is a case: the judge of its
function asks our code the same and returns both answers. Differences that are to stay are listed
in `kept_differences`, each with its reason; a difference that is not listed fails, and so does an
entry of the list that no longer has all its cases.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import gzip
import json
import pprint
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from support.real.kept_differences import KEPT, NOT_COMPARED, Kept
from support.real.programs import program

JsonObject = dict[str, Any]
T = TypeVar("T")
_IDENTITIES = frozenset({"tracker", "proxier", "nft", "storage"})
"""Inputs that name an object with a memory: the same call twice may be answered differently."""
_SHOWN = 6
_LONGEST = 900


class Case(NamedTuple):
    """One call of a function: where it was made, what it got, what it answered."""

    id: str
    function: str
    given: JsonObject
    answered: JsonObject


class Answers(NamedTuple):
    """Our answer and that of Kubernetes, in a form in which equal means the same."""

    ours: object
    theirs: object


Judge = Callable[[Case], Answers | None]
"""Returns None for a call that only changes what later calls go by; it is no case."""


class Score(NamedTuple):
    """How many cases of a function there are, and how many agree."""

    cases: int
    agreeing: int


SCORES: dict[tuple[str, str], Score] = {}
"""The scores of this run, by group and function; conftest prints them."""


def load_cases(group: str) -> Iterator[Case]:
    """Yield the calls of a group in the order in which they were made.

    A call without a memory behind it is a case once, however often tests make it.
    """
    seen: set[str] = set()
    numbers: Counter[tuple[str, str]] = Counter()
    with gzip.open(program(f"tables/{group}.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            given = _without_nulls(record["in"])
            if not _IDENTITIES & given.keys():
                key = record["function"] + json.dumps(given, sort_keys=True)
                if key in seen:
                    continue
                seen.add(key)
            place = (record["test"], record["function"])
            numbers[place] += 1
            suffix = f"#{numbers[place]}" if numbers[place] > 1 else ""
            yield Case(
                record["test"] + suffix, record["function"], given, _without_nulls(record["out"])
            )


@functools.lru_cache(maxsize=4)
def all_cases(group: str) -> tuple[Case, ...]:
    """Return the cases of a group in the order of the calls."""
    return tuple(load_cases(group))


def compare(group: str, function: str, judge: Judge) -> None:
    """Ask our code every case of a function; fail where the differences are not those listed."""
    compare_in_order(group, [function], judge)


def compare_in_order(group: str, functions: Collection[str], judge: Judge) -> None:
    """Ask our code every case of functions that share a memory, in the order of the calls."""
    differences: dict[str, dict[str, str]] = {}
    for case in all_cases(group):
        if case.function in functions:
            found = differences.setdefault(case.function, {})
            difference = _difference(judge, case)
            if difference is not None:
                found[case.id] = difference
    missing = set(functions) - differences.keys()
    problems = [f"no test of Kubernetes calls {function} any more" for function in missing]
    for function, found in differences.items():
        problems += check_differences(group, function, found)
        agreeing = sum(not text for text in found.values())
        SCORES[group, function] = Score(len(found), agreeing)
    if problems:
        pytest.fail("\n\n".join(problems), pytrace=False)


def check_differences(
    group: str,
    function: str,
    differences: Mapping[str, str],
    entries: Collection[Kept] = KEPT,
) -> list[str]:
    """Return what is wrong: differences that are not listed, and entries without their cases.

    The text of a difference is "" where there is none.
    """
    differing = {case: text for case, text in differences.items() if text}
    listed: set[str] = set()
    problems: list[str] = []
    for kept in entries:
        if (kept.group, kept.function) != (group, function):
            continue
        matching = {case for case in differing if fnmatch.fnmatchcase(case, kept.cases)}
        listed |= matching
        if len(matching) != kept.number:
            problems.append(
                f"{kept.cases}: {kept.number} differences are listed, {len(matching)} are there"
            )
    unlisted = [case for case in differing if case not in listed]
    agreeing = len(differences) - len(differing)
    problems += [f"{case}\n{differing[case]}" for case in unlisted[:_SHOWN]]
    if problems:
        summary = (
            f"{function}: {agreeing} of {len(differences)} agree, {len(unlisted)} are unlisted"
        )
        problems.insert(0, summary)
    return problems


def check_all_judged(judges: Mapping[str, Mapping[str, object]]) -> None:
    """Fail if a recorded function has no judge and no reason why not."""
    for group, functions in judges.items():
        recorded = {case.function for case in all_cases(group)}
        unjudged = sorted(recorded - functions.keys())
        reasoned = sorted(entry.function for entry in NOT_COMPARED if entry.group == group)
        assert (group, unjudged) == (group, reasoned)


def pairs(judges: Mapping[str, Mapping[str, object]]) -> list[tuple[str, str]]:
    """Return each group with each of its functions, to parametrize tests with."""
    return [(group, function) for group, functions in judges.items() for function in functions]


def summary_lines() -> list[str]:
    """Return for each group, and for all, how many cases agree."""
    groups: dict[str, Score] = {}
    for (group, _), score in SCORES.items():
        known = groups.get(group, Score(0, 0))
        groups[group] = Score(*(sum(both) for both in zip(known, score, strict=True)))
    lines = [_summary(group, score) for group, score in groups.items()]
    if lines:
        total = Score(*(sum(column) for column in zip(*groups.values(), strict=True)))
        lines.append(_summary("all", total))
    return lines


def _summary(name: str, score: Score) -> str:
    return f"{name:24} {score.agreeing:6} of {score.cases:6} agree"


def read(kind: type[T], value: object) -> T:
    """Return what Go wrote as one of our structs."""
    return msgspec.convert(_without_nulls(value), kind, strict=False)


def read_list(kind: type[T], value: object) -> tuple[T, ...]:
    """Return a list that Go wrote, where absent means empty."""
    return tuple(read(kind, item) for item in (value if isinstance(value, list) else ()))


def _difference(judge: Judge, case: Case) -> str | None:
    try:
        answers = judge(case)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong is a difference of this case
        return f"  ours raised {type(error).__name__}: {error}"[:_LONGEST]
    if answers is None:
        return None
    if answers.ours == answers.theirs:
        return ""
    lines = difflib.ndiff(_lines(answers.theirs), _lines(answers.ours))
    changed = [f"  {line}" for line in lines if not line.startswith((" ", "?"))]
    return "  - Kubernetes, + ours\n" + "\n".join(changed)[:_LONGEST]


def _lines(value: object) -> list[str]:
    plain = msgspec.to_builtins(value, enc_hook=str, str_keys=True)
    return pprint.pformat(plain, width=100).splitlines()


def _without_nulls(value: Any) -> Any:
    """Return plain values without absent members: Go writes null for a pointer to nothing."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
