"""Whether a JSON value has the shape of its type, and what of it is stored.

One walk does it all: it drops fields that the type does not have, treats null as absent, leaves out
the empty values that a kube-apiserver would not write, and says in the words of Go's decoder which
value has the wrong type. The value is changed in place. Nothing is said about rules, defaults or
required fields: those belong to the strategies.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepclose.apiserver.schema.checking import checker_of
from keepclose.apiserver.schema.types import Type
from keepclose.apiserver.schemas.findings import MAX_FINDINGS, Problem, word_of


class Problems(msgspec.Struct):
    """What is wrong with the shape of an object."""

    # The message of Go's decoder about the first value of a wrong type; empty when all are right.
    wrong_type: str = ""
    # Paths of the fields that the type does not have, in the order of the document.
    unknown: list[str] = []


def check_object(shape: Type, value: Any) -> Problems:
    """Bring a value to the form in which it is stored, and return what was wrong with it.

    After a wrong type the value is only half changed and must not be stored.
    """
    problems = Problems()
    if type(value) is not dict:
        problems.wrong_type = (
            f"json: cannot unmarshal {word_of(value)} into Go value of type {shape.go_type}"
        )
        return problems
    found = checker_of(shape)(value, None, None)
    if found is None:
        return problems
    unknown: dict[str, None] = {}
    for problem in found:
        if problem.is_unknown:
            unknown["".join(reversed(problem.path))[1:]] = None
        elif problem.final or not problems.wrong_type:
            problems.wrong_type = _message(problem)
    problems.unknown = list(unknown)[:MAX_FINDINGS]
    return problems


def _message(problem: Problem) -> str:
    if problem.text:
        return problem.text
    place = f"{problem.struct}.{'.'.join(reversed(problem.stack))}"
    return (
        f"json: cannot unmarshal {problem.word} into Go struct field {place}"
        f" of type {problem.go_type}"
    )
