"""The question to a custom heuristic, its possible answers, and the validation of every answer.

Third-party code gives the answers, so nothing in them is trusted: types, zone names, counts and
sums are validated before use. An invalid answer becomes a `HeuristicFailure` that names the first
validation error. Nothing here raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.endpointslice.validation import MAX_ZONE_HINTS
from keepclose.model.metadata_validation import plain_line
from keepclose.model.zone_weights import MAX_WEIGHT, WeightMatrix
from keepclose.routing.hint_facts import ZONE_SEPARATOR, name_group, zones_of
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import BY_CPU, ZoneNodes

Matrix = Mapping[str, Mapping[str, int]]
"""Number of endpoints, by the zone they are located in and the group of zones they serve.

A group is the name of a zone, or the names of several in order, separated by commas.
"""

Spread = Mapping[str, Mapping[int, int]]
"""By zone, how many nodes have how many ready endpoints; nodes without endpoints are omitted.

A zone with {1: 4, 3: 1} has four nodes with an endpoint each, and one with three.
"""

MAX_MESSAGE: Final = 500
MAX_REASONS: Final = 16
_MAX_SHOWN_BITS: Final = 1024


class ZoneDemand(msgspec.Struct, frozen=True):
    """The question to a heuristic: traffic shares, ready endpoints and nodes, all by zone.

    It grows with the number of zones, not with that of nodes or endpoints.
    """

    shares: Mapping[str, float]
    endpoints: Mapping[str, int]
    written: Matrix
    """The allocation of the written hints, so that a heuristic can change little."""
    written_weights: WeightMatrix = {}
    """The written weights; empty without any."""
    source: str = BY_CPU
    """What the shares come from."""
    nodes: Mapping[str, ZoneNodes] = {}
    """The nodes by zone; zones without ready nodes are omitted."""
    spread: Spread = {}
    """How the ready endpoints spread over the nodes of their zone."""


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The answer of a heuristic that gives no allocation; all nodes then use all endpoints."""

    reason: Reason
    reasons: tuple[Reason, ...] = ()
    """What else is to be said."""


class Allotment(msgspec.Struct, frozen=True, tag=True):
    """An allocation with its reasons, and weights for proxies that follow weights.

    Clients of a zone use all endpoints in proportion to these weights; those of a zone without
    weights follow the hints of the matrix, as all other proxies do.
    """

    matrix: Matrix
    reasons: tuple[Reason, ...] = ()
    weights: WeightMatrix = {}


class FailureCause(StrEnum):
    """How a heuristic failed; the value of a metric label."""

    NOT_LOADED = "NotLoaded"
    """The package that provides it could not be imported, or provides something else."""
    RAISED = "Raised"
    TIMED_OUT = "TimedOut"
    CRASHED = "Crashed"
    """The process that ran it ended."""
    INVALID_ANSWER = "InvalidAnswer"


class HeuristicFailure(msgspec.Struct, frozen=True, tag=True):
    """The failure of a heuristic and its cause; all nodes then use all endpoints."""

    cause: FailureCause
    message: str


class Postponed(msgspec.Struct, frozen=True):
    """A marker for an answer that the caller has to fetch, because it may take long."""


HeuristicAnswer = Allotment | Refusal | HeuristicFailure


def ask_heuristic(
    allocate: Callable[[ZoneDemand], object], demand: ZoneDemand
) -> HeuristicAnswer | Postponed:
    """Return the validated answer of a heuristic; never raises, but a hanging heuristic blocks."""
    # A heuristic that changes its argument must not change the caller's copy.
    question = ZoneDemand(
        dict(demand.shares),
        dict(demand.endpoints),
        {zone: dict(row) for zone, row in demand.written.items()},
        {zone: dict(row) for zone, row in demand.written_weights.items()},
        demand.source,
        dict(demand.nodes),
        {zone: dict(row) for zone, row in demand.spread.items()},
    )
    try:
        answer = allocate(question)
    except Exception as error:  # noqa: BLE001 - third-party code raises anything
        return HeuristicFailure(FailureCause.RAISED, f"allocate raised {describe_error(error)}")
    if isinstance(answer, Postponed):
        return answer
    return check_answer(answer, demand)


def check_answer(answer: object, demand: ZoneDemand) -> HeuristicAnswer:
    """Return the answer as an Allotment, a Refusal or a failure; an invalid answer is a failure."""
    try:
        return _check(answer, demand)
    except Exception as error:  # noqa: BLE001 - an answer is a third-party object
        return _invalid(f"the answer of allocate cannot be read: {describe_error(error)}")


def describe_error(error: BaseException) -> str:
    """Return the type and message of an exception on one line, cut to the length of an event."""
    try:
        text = _plain(str(error))
    except Exception:  # noqa: BLE001 - its __str__ is third-party code
        text = ""
    kind = type(error).__name__
    return _plain(f"{kind}: {text}" if text else kind)


def _check(answer: object, demand: ZoneDemand) -> HeuristicAnswer:
    if isinstance(answer, HeuristicFailure):
        return HeuristicFailure(FailureCause(answer.cause), _plain(answer.message))
    if isinstance(answer, Refusal):
        error = _reasons_error((answer.reason,)) or _reasons_error(answer.reasons)
        if error:
            return _invalid(error)
        return Refusal(
            _plain_reason(answer.reason),
            tuple([_plain_reason(reason) for reason in answer.reasons]),
        )
    matrix: object = answer
    weights: object = {}
    reasons: tuple[Reason, ...] = ()
    if isinstance(answer, Allotment):
        matrix, reasons, weights = answer.matrix, answer.reasons, answer.weights
        error = _reasons_error(reasons)
        if error:
            return _invalid(error)
    if not isinstance(matrix, Mapping):
        return _invalid(
            f"allocate returned {_kind(matrix)}, expected a mapping of zones, an Allotment or a "
            "Refusal"
        )
    checked = _check_matrix(matrix, demand)
    if isinstance(checked, str):
        return _invalid(checked)
    checked_weights = _check_weights(weights, demand)
    if isinstance(checked_weights, str):
        return _invalid(checked_weights)
    plain_reasons = tuple([_plain_reason(reason) for reason in reasons])
    return Allotment(checked, plain_reasons, checked_weights)


def _check_matrix(
    matrix: Mapping[object, object], demand: ZoneDemand
) -> dict[str, dict[str, int]] | str:
    """Return a plain copy of a matrix that uses each endpoint once, or its first error."""
    zones = {*demand.shares, *demand.endpoints}
    checked: dict[str, dict[str, int]] = {}
    for location, row in matrix.items():
        if not isinstance(location, str) or location not in demand.endpoints:
            return f"the answer has endpoints in {_show(location)}, where none is ready"
        if not isinstance(row, Mapping):
            return f"the answer for zone {location} is {_kind(row)}, expected a mapping of zones"
        counts: dict[str, int] = {}
        for served, number in row.items():
            if not isinstance(served, str) or not zones.issuperset(served.split(ZONE_SEPARATOR)):
                return f"the answer serves {_show(served)}, which is not a zone of the question"
            if ZONE_SEPARATOR in served and name_group(zones_of(served)) != served:
                return (
                    f"the answer serves {_show(served)}, expected each zone once and the zones in "
                    "order"
                )
            try:
                count = operator.index(number)
            except TypeError:
                count = -1
            if isinstance(number, bool) or count < 0:
                return (
                    f"the answer lets {_show(number)} endpoints of zone {location} serve zone "
                    f"{served}, expected a whole number of at least 0"
                )
            if count and len(zones_of(served)) > MAX_ZONE_HINTS:
                # NB: an API server would reject the slice, so that every sync of it failed.
                return (
                    f"the answer lets endpoints of zone {location} serve {_show(served)}, expected "
                    f"at most {MAX_ZONE_HINTS} zones"
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


def _check_weights(weights: object, demand: ZoneDemand) -> dict[str, dict[str, int]] | str:
    """Return a plain copy of the weights without zeros, or their first error."""
    if not isinstance(weights, Mapping):
        return f"the weights of the answer are {_kind(weights)}, expected a mapping of zones"
    zones = {*demand.shares, *demand.endpoints}
    checked: dict[str, dict[str, int]] = {}
    for client, row in weights.items():
        if not isinstance(client, str) or client not in zones:
            return f"the weights serve {_show(client)}, which is not a zone of the question"
        if not isinstance(row, Mapping):
            return f"the weights for zone {client} are {_kind(row)}, expected a mapping of zones"
        numbers: dict[str, int] = {}
        for location, number in row.items():
            if not isinstance(location, str) or location not in demand.endpoints:
                return f"the weights name endpoints in {_show(location)}, where none is ready"
            try:
                weight = operator.index(number)
            except TypeError:
                weight = -1
            if isinstance(number, bool) or not 0 <= weight <= MAX_WEIGHT:
                return (
                    f"the weight {_show(number)} for zone {client} is not a whole number of 0 to "
                    f"{MAX_WEIGHT}"
                )
            if weight:
                numbers[location] = weight
        if not numbers:
            return f"the weights for zone {client} are all 0"
        checked[client] = numbers
    return checked


def _reasons_error(reasons: object) -> str:
    if not isinstance(reasons, tuple) or len(reasons) > MAX_REASONS:
        return f"the reasons of the answer are no tuple of at most {MAX_REASONS}"
    for reason in reasons:
        if not isinstance(reason, Reason):
            return f"a reason of the answer is {_kind(reason)}, expected a Reason"
        if not isinstance(reason.code, ReasonCode):
            return f"a reason of the answer has the unknown code {_show(reason.code)}"
        texts: tuple[object, ...] = (reason.message, reason.subject, reason.fix)
        if not all(isinstance(text, str) and len(text) <= MAX_MESSAGE for text in texts):
            return f"a reason of the answer is no text of at most {MAX_MESSAGE} characters"
    return ""


def _plain(text: str) -> str:
    return plain_line(text, longest=MAX_MESSAGE)


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
    """Return a plain value in short; the text of any other object is third-party code."""
    if type(value) is int and value.bit_length() > _MAX_SHOWN_BITS:
        # NB: Python refuses to print a number of thousands of digits.
        return f"a number of {value.bit_length():,} bits"
    if value is not None and type(value) not in (bool, int, float, str):
        return f"an object {_kind(value)}"
    text = repr(value[:60] if isinstance(value, str) else value)
    is_cut = isinstance(value, str) and len(value) > 60
    return text if len(text) <= 60 and not is_cut else f"{text[:57]}..."
