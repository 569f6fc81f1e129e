"""The report of a traffic run: which sources reached which endpoints, beside what was expected.

The structs are the JSON output, and tables are rendered from them. Counts are summed here;
`expected_shares` judges them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keepclose.advise.expectations import Expectation, NamedEndpoint, is_unlikely
from keepclose.lab.traffic.answers import (
    ConnectionFailure,
    ConnectionResult,
    PodAnswer,
    expect_most,
    find_loads,
    is_beyond_chance,
)
from keepclose.lab.traffic.expected_shares import expected_failure
from keepclose.routing.reasons import Reason

_Counts = dict[str, int]
_Shares = dict[str, float]
# How rarely chance alone makes a share of a zone look as if a node were late.
_SURPRISING: Final = 1e-4


class _Camel(msgspec.Struct, frozen=True, rename="camel"):
    pass


class ReportedReason(_Camel, frozen=True):
    """A reason of a routing decision, with the number of nodes to which it applies."""

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
    """What is not as expected, "" if all is."""
    reasons: tuple[ReportedReason, ...]


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
    and chance; None if shares are not compared."""
    is_beyond_chance: bool = False
    """Whether chance makes an endpoint as busy as this in fewer than one of 1,000 runs."""


class TrafficReport(_Camel, frozen=True, kw_only=True):
    """The report of a whole run."""

    service: str
    port: str
    address: str
    via: str
    mechanism: str
    """The mechanism and policy that route the connections."""
    seconds: float
    connections: int
    failed: int
    failures: _Counts
    as_expected: bool
    zones: tuple[str, ...]
    """The zones of nodes and endpoints; "" for none."""
    nodes: tuple[str, ...]
    rows: tuple[TrafficRow, ...]
    sources: tuple[SourceRow, ...]
    in_zone: float | None
    """Part of the answered connections; None if none was answered."""
    on_node: float | None
    endpoints: int
    """How many endpoints are ready."""
    busiest: Busiest | None
    notes: tuple[str, ...]
    causes: tuple[str, ...] = ()
    """What is wrong with the Service or its pods, if connections failed."""

    @property
    def is_fine(self) -> bool:
        """Whether no connection failed and all is as expected."""
        return self.as_expected and not self.failed

    @property
    def is_settled(self) -> bool:
        """Whether shares were compared, and those of zones and endpoints are not even surprising.

        Shares are not compared while endpoints change. A node that applies a change only during
        the run does not show in its own few connections, but in the sums of its zone.
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
    """The results of one source, and what was expected of them."""

    group: str
    name: str
    node: str
    zone: str
    results: Mapping[ConnectionResult, int]
    expected: Expectation
    named: Mapping[str, NamedEndpoint]
    """The endpoints that may answer, by pod."""
    fault: str

    @property
    def connections(self) -> int:
        """How many connections were opened."""
        return sum(self.results.values())


class TrafficSums(NamedTuple):
    """The figures of a whole run."""

    connections: int
    failures: _Counts
    in_zone: float | None
    on_node: float | None
    busiest: Busiest | None


def make_source_row(seen: Observation, zones: Mapping[str, str]) -> SourceRow:
    """Return the row of one source, by the nodes that answered."""
    answers = _answers(seen, zones)
    nodes: Counter[str] = Counter()
    pods: Counter[str] = Counter()
    for endpoint, count in answers:
        nodes[endpoint.node] += count
        pods[endpoint.pod] += count
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
        reasons=_reported_reasons([seen]),
    )


def make_row(group: str, seen: Sequence[Observation], zones: Mapping[str, str]) -> TrafficRow:
    """Return the row of a group, by the zones that answered."""
    answered: Counter[str] = Counter()
    for observation in seen:
        for endpoint, count in _answers(observation, zones):
            answered[endpoint.zone] += count
    faulty = [observation for observation in seen if observation.fault]
    fault = f"{faulty[0].name}: {faulty[0].fault}" if faulty else ""
    return TrafficRow(
        source=group,
        connections=sum(observation.connections for observation in seen),
        answered=dict(answered),
        expected=_expected(seen, "zone"),
        failures=_failures(seen),
        expected_failures=_expected_failures(seen),
        fault=fault,
        reasons=_reported_reasons(seen),
    )


def sum_up_traffic(
    seen: Sequence[Observation],
    *,
    zones: Mapping[str, str],
    ready: Sequence[NamedEndpoint],
    compares_shares: bool = True,
) -> TrafficSums:
    """Return the figures of a run; a fair share is that of each of the `ready` endpoints."""
    answered = in_zone = on_node = 0
    pods: Counter[NamedEndpoint] = Counter()
    for observation in seen:
        for endpoint, count in _answers(observation, zones):
            answered += count
            in_zone += count if observation.zone and endpoint.zone == observation.zone else 0
            on_node += count if endpoint.node == observation.node else 0
            pods[endpoint] += count
    busiest = None
    if pods:
        endpoint, count = max(pods.items(), key=lambda item: (item[1], item[0]))
        fair = answered / (len(ready) or len(pods))
        busiest = Busiest(endpoint.pod, endpoint.node, endpoint.zone, count / fair)
        if compares_shares:
            # Failed connections were drawn too, but their endpoint is unknown.
            loads = find_loads(
                (_count_answers(observation), observation.expected.shares) for observation in seen
            )
            busiest = replace(
                busiest,
                expected=expect_most(loads) / fair,
                is_beyond_chance=is_beyond_chance(count, loads),
            )
    return TrafficSums(
        sum(observation.connections for observation in seen),
        _failures(seen),
        in_zone / answered if answered else None,
        on_node / answered if answered else None,
        busiest,
    )


def _endpoint_of(answer: PodAnswer, zones: Mapping[str, str]) -> NamedEndpoint:
    """Return the endpoint that answered, with the zone of its node's label."""
    return NamedEndpoint(answer.pod, answer.node, zones.get(answer.node, answer.zone))


def _answers(seen: Observation, zones: Mapping[str, str]) -> Iterable[tuple[NamedEndpoint, int]]:
    return [
        (_endpoint_of(result, zones), count)
        for result, count in seen.results.items()
        if isinstance(result, PodAnswer)
    ]


def _count_answers(seen: Observation) -> int:
    return sum(count for result, count in seen.results.items() if isinstance(result, PodAnswer))


def _failures(seen: Iterable[Observation]) -> _Counts:
    counts: Counter[str] = Counter()
    for observation in seen:
        for result, count in observation.results.items():
            if isinstance(result, ConnectionFailure):
                counts[result.value] += count
    return dict(counts)


def _expected(seen: Sequence[Observation], field: str) -> _Shares:
    whole = sum(observation.connections for observation in seen)
    shares: _Shares = {}
    for observation in seen:
        for pod, share in observation.expected.shares.items():
            place: str = getattr(observation.named[pod], field)
            shares[place] = shares.get(place, 0.0) + share * observation.connections / whole
    return shares


def _expected_failures(seen: Sequence[Observation]) -> _Shares:
    whole = sum(observation.connections for observation in seen)
    shares: _Shares = {}
    for observation in seen:
        failure = expected_failure(observation.expected)
        if failure is not None:
            shares[failure.value] = shares.get(failure.value, 0.0) + observation.connections / whole
    return shares


def _reported_reasons(seen: Iterable[Observation]) -> tuple[ReportedReason, ...]:
    """Return each reason once, with the message of the first node to which it applies."""
    first: dict[tuple[str, str], Reason] = {}
    nodes: dict[tuple[str, str], set[str]] = {}
    for observation in seen:
        for reason in observation.expected.reasons:
            key = reason.code, re.sub(rf"\b{re.escape(observation.node)}\b", "*", reason.message)
            first.setdefault(key, reason)
            nodes.setdefault(key, set()).add(observation.node)
    return tuple(
        ReportedReason(reason.code, reason.message, reason.subject, reason.fix, len(nodes[key]))
        for key, reason in first.items()
    )
