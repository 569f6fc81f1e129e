"""What a run of traffic showed: who reached whom, beside what was expected of it.

The structs are the answer that programs get as JSON; tables are made of them too. Counts are summed
here and judged elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.lab.traffic.answers import (
    ConnectionFailure,
    ConnectionResult,
    PodAnswer,
    expect_most,
    find_loads,
    is_beyond_chance,
)
from keepclose.lab.traffic.expected_shares import Expectation, Goal, is_unlikely
from keepclose.routing.reasons import Reason

_Counts = dict[str, int]
_Shares = dict[str, float]


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    pass


# How rarely chance alone makes a share of a zone look as if a node were late.
_SURPRISING: Final = 1e-4


class ToldReason(_Camel, frozen=True):
    """A reason of the decisions, with the number of nodes on which it holds likewise."""

    code: str
    message: str
    subject: str
    fix: str
    nodes: int


class TrafficRow(_Camel, frozen=True, kw_only=True):
    """The connections of one source, or of all sources of a zone."""

    source: str = msgspec.field(name="from")
    connections: int
    answered: _Counts
    """By the zone that answered; for a single source by node."""
    expected: _Shares
    failures: _Counts
    expected_failures: _Shares
    fault: str
    """What is not as expected, "" when all is."""
    reasons: tuple[ToldReason, ...]


class SourceRow(TrafficRow, frozen=True, kw_only=True):
    """The connections of one source."""

    node: str
    zone: str
    pods: _Counts
    expected_pods: _Shares


class Busiest(_Camel, frozen=True):
    """The endpoint with the most connections, and how many times an equal share that is."""

    pod: str
    node: str
    zone: str
    times: float
    expected: float | None = None
    """How many times an equal share the busiest endpoint gets on average, by the expected shares
    and chance; None where shares are not compared."""
    is_beyond_chance: bool = False
    """Whether chance makes an endpoint as busy as this in fewer than one of 1,000 runs."""


class TrafficReport(_Camel, frozen=True, kw_only=True):
    """A whole run."""

    service: str
    port: str
    address: str
    via: str
    mechanism: str
    """What governs where connections go, in a few words."""
    seconds: float
    connections: int
    failed: int
    failures: _Counts
    as_expected: bool
    zones: tuple[str, ...]
    """Where nodes or endpoints are; "" stands for none."""
    nodes: tuple[str, ...]
    rows: tuple[TrafficRow, ...]
    sources: tuple[SourceRow, ...]
    in_zone: float | None
    """Part of the answered connections; None when none was answered."""
    on_node: float | None
    endpoints: int
    """How many are ready."""
    busiest: Busiest | None
    notes: tuple[str, ...]
    causes: tuple[str, ...] = ()
    """What is wrong with the Service or its pods, where connections failed."""

    @property
    def is_fine(self) -> bool:
        """Whether nothing failed and all is as expected."""
        return self.as_expected and not self.failed

    @property
    def is_settled(self) -> bool:
        """Whether shares were compared, and those of zones and endpoints are not just acceptable.

        Shares are not compared while endpoints change. A node that follows a change only during
        the run hides in its own few connections, but not in the sums of its zone.
        """
        busiest = self.busiest
        if busiest is None or busiest.expected is None or busiest.is_beyond_chance:
            return False
        return not any(
            is_unlikely(row.answered.get(zone, 0), whole, share, limit=_SURPRISING)
            for row in self.rows
            if (whole := sum(row.answered.values()))
            for zone, share in row.expected.items()
            if share > 0
        )


class Observation(NamedTuple):
    """What one source saw, and should have seen."""

    group: str
    name: str
    node: str
    zone: str
    results: Mapping[ConnectionResult, int]
    expected: Expectation
    goals: Mapping[str, Goal]
    """Where each pod is that might answer."""
    fault: str

    @property
    def connections(self) -> int:
        """How many were made."""
        return sum(self.results.values())


class TrafficSums(NamedTuple):
    """The figures of a whole run."""

    connections: int
    failures: _Counts
    in_zone: float | None
    on_node: float | None
    busiest: Busiest | None


def _place_of(answer: PodAnswer, zones: Mapping[str, str]) -> Goal:
    """Return who answered, with the zone that the label of its node names now."""
    return Goal(answer.pod, answer.node, zones.get(answer.node, answer.zone))


def make_source_row(seen: Observation, zones: Mapping[str, str]) -> SourceRow:
    """Return the row of one source, by the nodes that answered."""
    answers = _answers(seen, zones)
    nodes: Counter[str] = Counter()
    pods: Counter[str] = Counter()
    for goal, count in answers:
        nodes[goal.node] += count
        pods[goal.pod] += count
    return SourceRow(
        source=seen.name,
        node=seen.node,
        zone=seen.zone,
        connections=seen.connections,
        answered=dict(nodes),
        expected=_expected([seen], "node"),
        failures=_failures([seen]),
        expected_failures=_expected_failures([seen]),
        pods=dict(pods),
        expected_pods=dict(seen.expected.shares),
        fault=seen.fault,
        reasons=_tell_reasons([seen]),
    )


def make_row(group: str, seen: Sequence[Observation], zones: Mapping[str, str]) -> TrafficRow:
    """Return the row of a group, by the zones that answered."""
    answered: Counter[str] = Counter()
    for one in seen:
        for goal, count in _answers(one, zones):
            answered[goal.zone] += count
    faulty = [one for one in seen if one.fault]
    fault = f"{faulty[0].name}: {faulty[0].fault}" if faulty else ""
    return TrafficRow(
        source=group,
        connections=sum(one.connections for one in seen),
        answered=dict(answered),
        expected=_expected(seen, "zone"),
        failures=_failures(seen),
        expected_failures=_expected_failures(seen),
        fault=fault,
        reasons=_tell_reasons(seen),
    )


def sum_up_traffic(
    seen: Sequence[Observation],
    *,
    zones: Mapping[str, str],
    ready: Sequence[Goal],
    compares_shares: bool = True,
) -> TrafficSums:
    """Return the figures of a run; `ready` are the endpoints that share the load fairly."""
    answered = in_zone = on_node = 0
    pods: Counter[Goal] = Counter()
    for one in seen:
        for goal, count in _answers(one, zones):
            answered += count
            in_zone += count if one.zone and goal.zone == one.zone else 0
            on_node += count if goal.node == one.node else 0
            pods[goal] += count
    busiest = None
    if pods:
        goal, count = max(pods.items(), key=lambda item: (item[1], item[0]))
        fair = answered / (len(ready) or len(pods))
        busiest = Busiest(goal.pod, goal.node, goal.zone, count / fair)
        if compares_shares:
            # Connections that failed were drawn too, but for which endpoint is not known.
            loads = find_loads((_count_answers(one), one.expected.shares) for one in seen)
            busiest = replace(
                busiest,
                expected=expect_most(loads) / fair,
                is_beyond_chance=is_beyond_chance(count, loads),
            )
    return TrafficSums(
        sum(one.connections for one in seen),
        _failures(seen),
        in_zone / answered if answered else None,
        on_node / answered if answered else None,
        busiest,
    )


def _answers(seen: Observation, zones: Mapping[str, str]) -> Iterable[tuple[Goal, int]]:
    return [
        (_place_of(result, zones), count)
        for result, count in seen.results.items()
        if isinstance(result, PodAnswer)
    ]


def _count_answers(seen: Observation) -> int:
    return sum(count for result, count in seen.results.items() if isinstance(result, PodAnswer))


def _failures(seen: Iterable[Observation]) -> _Counts:
    counts: Counter[str] = Counter()
    for one in seen:
        for result, count in one.results.items():
            if isinstance(result, ConnectionFailure):
                counts[result.value] += count
    return dict(counts)


def _expected(seen: Sequence[Observation], field: str) -> _Shares:
    whole = sum(one.connections for one in seen)
    shares: _Shares = {}
    for one in seen:
        for pod, share in one.expected.shares.items():
            place: str = getattr(one.goals[pod], field)
            shares[place] = shares.get(place, 0.0) + share * one.connections / whole
    return shares


def _expected_failures(seen: Sequence[Observation]) -> _Shares:
    whole = sum(one.connections for one in seen)
    shares: _Shares = {}
    for one in seen:
        failure = one.expected.failure
        if failure is not None:
            shares[failure.value] = shares.get(failure.value, 0.0) + one.connections / whole
    return shares


def _tell_reasons(seen: Iterable[Observation]) -> tuple[ToldReason, ...]:
    """Return each reason once, in the words of the first node on which it holds."""
    first: dict[tuple[str, str], Reason] = {}
    nodes: dict[tuple[str, str], set[str]] = {}
    for one in seen:
        for reason in one.expected.reasons:
            key = reason.code, re.sub(rf"\b{re.escape(one.node)}\b", "*", reason.message)
            first.setdefault(key, reason)
            nodes.setdefault(key, set()).add(one.node)
    return tuple(
        ToldReason(reason.code, reason.message, reason.subject, reason.fix, len(nodes[key]))
        for key, reason in first.items()
    )
