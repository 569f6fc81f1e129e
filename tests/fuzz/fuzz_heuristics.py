"""Answers of custom heuristics: a valid allocation, or a failure in one line, and no exception."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from fuzzbounds import require

from keepclose.routing.heuristic_answers import (
    MAX_MESSAGE,
    Allotment,
    HeuristicAnswer,
    HeuristicFailure,
    Refusal,
    ZoneDemand,
    check_answer,
)
from keepclose.routing.hint_facts import name_group, zones_of

MUTATES_JSON = True
DEMAND = ZoneDemand({"a": 0.5, "b": 0.25, "c": 0.25}, {"a": 2, "b": 1}, {"a": {"a": 2}})
GOOD = {"a": {"a": 1, "a,c": 1}, "b": {"b": 1}}


def seeds() -> Iterator[bytes]:
    """Yield an answer in each form: from a process, and as objects of the heuristic itself."""
    reason = {"code": "Allocated", "message": "so", "subject": "", "fix": ""}
    for answer in (
        {"type": "Allotment", "matrix": GOOD, "reasons": [reason], "weights": {"c": {"a": 7}}},
        {"type": "Refusal", "reason": reason},
        {"type": "HeuristicFailure", "cause": "Raised", "message": "no"},
        {"matrix": GOOD, "weights": {"a": {"a": 1, "b": 1000}, "c": {"b": 0.5}}},
        {"matrix": {"a": {"a,b,c": 2}, "b": {"c,b": 1}}, "weights": {"a": 5, "x": {}}},
        {"matrix": [1, None, True, "a"], "weights": []},
    ):
        yield b"\n" + msgspec.json.encode(answer)


def check(data: bytes) -> None:
    """Check the answer as it comes from a process, and its parts as a heuristic returns them."""
    text = data.partition(b"\n")[2]
    try:
        raw = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return
    try:
        decoded: HeuristicAnswer | None = msgspec.json.decode(text, type=HeuristicAnswer)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        decoded = None
    parts = raw if isinstance(raw, dict) else {}
    matrix = parts.get("matrix", raw)
    answers = [raw, matrix, Allotment(matrix, (), parts.get("weights", {}))]
    for answer in answers if decoded is None else [*answers, decoded]:
        _check_answer(answer)


def _check_answer(answer: object) -> None:
    checked = check_answer(answer, DEMAND)
    match checked:
        case HeuristicFailure():
            require(len(checked.message) <= MAX_MESSAGE, "a failure has a long message")
            require("\n" not in checked.message, "a failure has several lines")
        case Refusal():
            require(len(checked.reason.message) <= MAX_MESSAGE, "a refusal has a long reason")
        case Allotment():
            _check_allotment(checked)
            require(check_answer(checked, DEMAND) == checked, "a checked answer is not valid")


def _check_allotment(allotment: Allotment) -> None:
    zones = {*DEMAND.shares, *DEMAND.endpoints}
    for zone, row in allotment.matrix.items():
        require(sum(row.values()) == DEMAND.endpoints[zone], "an endpoint is lost or used twice")
        for group, number in row.items():
            require(type(number) is int and number > 0, "a count is no positive number")
            require(zones.issuperset(zones_of(group)), "an endpoint serves an unknown zone")
            require(name_group(zones_of(group)) == group, "a group is not in order")
    for client, weights in allotment.weights.items():
        require(client in zones and weights, "a client zone is unknown, or has no weights")
        for location, weight in weights.items():
            require(location in DEMAND.endpoints, "a weight has no endpoint")
            require(type(weight) is int and 0 < weight <= 1000, "a weight is out of range")
