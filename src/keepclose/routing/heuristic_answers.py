"""What a heuristic is asked, what it may answer, and the check of every answer.

Code of third parties gives the answers, so nothing in them is taken for granted: types, names of
zones, counts and sums are checked before anything is made of them. An answer that cannot be used
becomes a Failure that names the first flaw. Nothing here raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.metadata_validation import plain_line
from keepclose.routing.reasons import Reason, ReasonCode

Matrix = Mapping[str, Mapping[str, int]]
"""Location zone to served zone to number of endpoints."""

LONGEST_MESSAGE: Final = 500
MOST_REASONS: Final = 16


class ZoneDemand(msgspec.Struct, frozen=True):
    """What a heuristic decides on: shares of traffic and ready endpoints by zone."""

    shares: Mapping[str, float]
    endpoints: Mapping[str, int]
    written: Matrix
    """The allocation that the present hints amount to, so that little need change."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """A heuristic's answer when it has none; all endpoints then stay in use everywhere."""

    reason: Reason


class Allotment(msgspec.Struct, frozen=True, tag=True):
    """An allocation about which there is something to say."""

    matrix: Matrix
    reasons: tuple[Reason, ...] = ()


class FailureCause(StrEnum):
    """How a heuristic failed; the values of a label of metrics."""

    NOT_LOADED = "NotLoaded"
    """The package that provides it could not be imported, or provides something else."""
    RAISED = "Raised"
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    """The process that ran it ended."""
    INVALID_ANSWER = "InvalidAnswer"


class HeuristicFailure(msgspec.Struct, frozen=True, tag=True):
    """That a heuristic failed, and how; all endpoints then stay in use everywhere."""

    cause: FailureCause
    message: str


class Postponed(msgspec.Struct, frozen=True):
    """That the answer has to be fetched elsewhere, because it may take long."""


HeuristicAnswer = Allotment | Refusal | HeuristicFailure


def ask_heuristic(
    allocate: Callable[[ZoneDemand], object], demand: ZoneDemand
) -> HeuristicAnswer | Postponed:
    """Return the checked answer of a heuristic; total, whatever it does except not to return."""
    # A heuristic that changes what it is given must not change it for others.
    given = ZoneDemand(
        dict(demand.shares),
        dict(demand.endpoints),
        {zone: dict(row) for zone, row in demand.written.items()},
    )
    try:
        answer = allocate(given)
    except Exception as error:  # noqa: BLE001 - code of third parties raises anything
        return HeuristicFailure(FailureCause.RAISED, f"allocate raised {describe_error(error)}")
    if isinstance(answer, Postponed):
        return answer
    return check_answer(answer, demand)


def check_answer(answer: object, demand: ZoneDemand) -> HeuristicAnswer:
    """Return the answer as an Allotment, a Refusal or a Failure; what is not valid is a Failure."""
    try:
        return _check(answer, demand)
    except Exception as error:  # noqa: BLE001 - an answer is an object of third parties
        return _invalid(f"the answer of allocate cannot be read: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception on one line, cut to a length that events take."""
    try:
        text = _plain(str(error))
    except Exception:  # noqa: BLE001 - its __str__ is code of third parties
        text = ""
    kind = type(error).__name__
    return _plain(f"{kind}: {text}" if text else kind)


def _check(answer: object, demand: ZoneDemand) -> HeuristicAnswer:
    if isinstance(answer, HeuristicFailure):
        return HeuristicFailure(FailureCause(answer.cause), _plain(answer.message))
    if isinstance(answer, Refusal):
        flaw = _find_flaw_in_reasons((answer.reason,))
        return _invalid(flaw) if flaw else Refusal(_plain_reason(answer.reason))
    matrix: object = answer
    reasons: tuple[Reason, ...] = ()
    if isinstance(answer, Allotment):
        matrix, reasons = answer.matrix, answer.reasons
        flaw = _find_flaw_in_reasons(reasons)
        if flaw:
            return _invalid(flaw)
    if not isinstance(matrix, Mapping):
        return _invalid(
            f"allocate returned {_kind(matrix)}, wanted a mapping of zones, an Allotment or a "
            "Refusal"
        )
    checked = _check_matrix(matrix, demand)
    if isinstance(checked, str):
        return _invalid(checked)
    return Allotment(checked, tuple([_plain_reason(reason) for reason in reasons]))


def _check_matrix(
    matrix: Mapping[object, object], demand: ZoneDemand
) -> dict[str, dict[str, int]] | str:
    """Return a plain copy of a matrix that uses each endpoint once, or the first flaw in words."""
    zones = {*demand.shares, *demand.endpoints}
    checked: dict[str, dict[str, int]] = {}
    for location, row in matrix.items():
        if not isinstance(location, str) or location not in demand.endpoints:
            return f"the answer has endpoints in {_show(location)}, where none is ready"
        if not isinstance(row, Mapping):
            return f"the answer for zone {location} is {_kind(row)}, wanted a mapping of zones"
        counts: dict[str, int] = {}
        for served, number in row.items():
            if not isinstance(served, str) or served not in zones:
                return f"the answer serves {_show(served)}, which is not a zone of the question"
            try:
                count = operator.index(number)
            except TypeError:
                count = -1
            if isinstance(number, bool) or count < 0:
                return (
                    f"the answer lets {_show(number)} endpoints of zone {location} serve zone "
                    f"{served}, wanted a whole number of at least 0"
                )
            if count:
                counts[served] = count
        if counts:
            checked[location] = counts
    for location, ready in demand.endpoints.items():
        used = sum(checked.get(location, {}).values())
        if used != ready:
            return f"the answer uses {_show(used)} of the {ready} endpoints of zone {location}"
    return checked


def _find_flaw_in_reasons(reasons: object) -> str:
    if not isinstance(reasons, tuple) or len(reasons) > MOST_REASONS:
        return f"the reasons of the answer are no tuple of at most {MOST_REASONS}"
    for reason in reasons:
        if not isinstance(reason, Reason):
            return f"a reason of the answer is {_kind(reason)}, wanted a Reason"
        if not isinstance(reason.code, ReasonCode):
            return f"a reason of the answer has the unknown code {_show(reason.code)}"
        texts: tuple[object, ...] = (reason.message, reason.subject, reason.fix)
        if not all(isinstance(text, str) and len(text) <= LONGEST_MESSAGE for text in texts):
            return f"a reason of the answer is no text of at most {LONGEST_MESSAGE} characters"
    return ""


def _plain(text: str) -> str:
    return plain_line(text, longest=LONGEST_MESSAGE)


def _plain_reason(reason: Reason) -> Reason:
    return Reason(
        reason.code,
        _plain(reason.message),
        subject=_plain(reason.subject),
        fix=_plain(reason.fix),
    )


def _invalid(message: str) -> HeuristicFailure:
    return HeuristicFailure(FailureCause.INVALID_ANSWER, _plain(message))


def _kind(value: object) -> str:
    return f"of the type {type(value).__name__}"


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
