"""Which endpoints a node's connections should reach, and which part of them each one.

The same selection that the proxies use is asked, for the Service and the slices as they are in the
API now. Only carries what it decides: equal shares of what a node may use, or by weight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from keepclose.lab.traffic.answers import ConnectionFailure, ConnectionResult, PodAnswer
from keepclose.model.addresses import canonical
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import SEEN_IN_CHOICE, Reason, ReasonCode
from keepclose.routing.selection import (
    EXTERNAL,
    INTERNAL,
    Outcome,
    PacketVerdict,
    Selection,
    select,
)
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy

_FAILURES: Final = {
    PacketVerdict.DROP: ConnectionFailure.TIMED_OUT,
    PacketVerdict.REJECT: ConnectionFailure.REFUSED,
    PacketVerdict.NONE: ConnectionFailure.UNREACHABLE,
}
FALSE_ALARMS: Final = 1e-6
"""How likely it is that a run in which all is well is called wrong, at most.

Each count of a run is judged by the exact binomial tails, because endpoints with few connections
are too far from a normal distribution for a number of sigmas; and as one run has many counts, each
gets an equal part of this chance.
"""


class Goal(NamedTuple):
    """An endpoint as people and its own answers name it: the pod, and where it is."""

    pod: str
    node: str
    zone: str


class Expectation(NamedTuple):
    """Where the connections that one node routes should go."""

    shares: dict[str, float]
    """By pod; they make 1 together, or there are none."""
    verdict: PacketVerdict
    """What happens to connections where there are no shares."""
    reasons: tuple[Reason, ...]
    """Why, apart from what the shares show."""

    @property
    def failure(self) -> ConnectionFailure | None:
        """How connections should fail; None when they should be answered."""
        return None if self.shares else _FAILURES[self.verdict]


class PortGoals(NamedTuple):
    """All endpoints of one service port."""

    port: RoutedPort
    endpoints: tuple[PortEndpoint, ...]
    goals: dict[str, Goal]
    """By address."""

    @property
    def ready(self) -> list[Goal]:
        """The endpoints that are ready."""
        return [self.goals[one.address] for one in self.endpoints if one.ready]


def find_goals(
    port: RoutedPort,
    slices: Iterable[EndpointSlice],
    *,
    family: str,
    zones: Mapping[str, str],
    pods: Iterable[Pod] = (),
    gates: FeatureGates,
) -> PortGoals:
    """Return the endpoints of a service port with their names.

    `zones` holds the zone of each node as its label says now; an endpoint on another node has the
    zone that its slice names. `pods` give names to endpoints whose slices name no pod; without one
    an endpoint goes by its address.
    """
    listed = tuple(slices)
    names = {
        address: one.metadata.name
        for one in pods
        for text in (one.status.pod_ip, *(ip.ip for ip in one.status.pod_ips))
        if (address := canonical(text))
    }
    for piece in listed:
        for endpoint in piece.endpoints:
            ref = endpoint.target_ref
            address = canonical(endpoint.addresses[0]) if endpoint.addresses else None
            if address and ref is not None and ref.kind == "Pod":
                names[address] = ref.name
    endpoints = collect_endpoints(listed, family, gates=gates).get(port.key, ())
    goals = {
        one.address: Goal(
            names.get(one.address, one.address),
            one.node_name,
            zones.get(one.node_name, one.zone),
        )
        for one in endpoints
    }
    return PortGoals(port, endpoints, goals)


def expect(
    known: PortGoals, *, node: NodeView, gates: FeatureGates, from_outside: bool = False
) -> Expectation:
    """Return where connections go that the node is the first to route.

    From outside means to a node port or a load balancer's address, else to the cluster IP.
    """
    selection = select(known.port, known.endpoints, node=node, gates=gates)
    outcome = selection.external if from_outside else selection.internal
    whole = sum(one.weight for one in outcome.endpoints)
    shares: dict[str, float] = {}
    for one in outcome.endpoints:
        pod = known.goals[one.address].pod
        shares[pod] = shares.get(pod, 0.0) + one.weight / whole
    return Expectation(
        shares, outcome.verdict, _reasons(known.port, selection, outcome, from_outside=from_outside)
    )


def _reasons(
    port: RoutedPort, selection: Selection, outcome: Outcome, *, from_outside: bool
) -> tuple[Reason, ...]:
    ours, other = (EXTERNAL, INTERNAL) if from_outside else (INTERNAL, EXTERNAL)
    policy = port.external_policy if from_outside else port.internal_policy
    is_local = policy is TrafficPolicy.LOCAL or (
        policy is TrafficPolicy.PREFER_LOCAL
        and bool(outcome.endpoints)
        and outcome.endpoints is selection.local
    )
    kept: list[Reason] = []
    for reason in selection.reasons:
        # NB: a selection speaks of both directions, and the words name the field.
        if reason.code in SEEN_IN_CHOICE or reason.message.startswith(other.field):
            continue
        is_about_policy = reason.message.startswith(ours.field)
        if is_local and not is_about_policy and reason.code is not ReasonCode.NO_ENDPOINTS:
            continue
        kept.append(reason)
    return tuple(kept)


def find_fault(
    results: Mapping[ConnectionResult, int],
    expected: Sequence[Expectation],
    *,
    compares_shares: bool = True,
    judged: int = 0,
) -> str:
    """Return what is not as expected in one line, or "" when all is.

    Several expectations are those before and after a change: then only failures are judged, since
    nobody knows which pods came and went in between. `judged` is the number of counts that are
    compared in the whole run.
    """
    shares = {pod: share for one in expected for pod, share in one.shares.items()}
    failures = [one.failure for one in expected if one.failure is not None]
    instead = f", expected {' or '.join(failures)}" if failures and not shares else ""
    pods: Counter[str] = Counter()
    for result, count in results.items():
        if isinstance(result, PodAnswer):
            pods[result.pod] += count
        elif result not in failures:
            return f"{count:,} {result}{instead}"
    if len(expected) > 1:
        return ""
    strangers = Counter({pod: count for pod, count in pods.items() if pod not in shares})
    if strangers:
        first, _ = max(strangers.items(), key=lambda item: (item[1], item[0]))
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        why = instead or ", which should get none"
        return f"{strangers.total():,} answered by {first}{more}{why}"
    if not compares_shares:
        return ""
    whole = pods.total()
    limit = FALSE_ALARMS / max(judged, len(shares), 1)
    for pod, share in shares.items():
        if is_unlikely(pods[pod], whole, share, limit=limit):
            part = f"{100 * pods[pod] / whole:.1f} %"
            return f"{pod} got {part}, expected {100 * share:.1f} %"
    return ""


def is_unlikely(count: int, whole: int, share: float, *, limit: float) -> bool:
    """Return whether a count is so far from its share that chance explains it less than `limit`.

    Both tails count: the chance is twice that of the nearer one.
    """
    if share >= 1.0:
        return count != whole
    middle = whole * share
    # Within three sigmas nothing can be unlikely, and most counts are there.
    if abs(count - middle) <= 3 * math.sqrt(middle * (1 - share)):
        return False
    return 2 * _tail(count, whole, share) < limit


def _tail(count: int, whole: int, share: float) -> float:
    """Return the chance of this many or a number further out on the same side."""
    term = math.exp(
        math.lgamma(whole + 1)
        - math.lgamma(count + 1)
        - math.lgamma(whole - count + 1)
        + count * math.log(share)
        + (whole - count) * math.log1p(-share)
    )
    odds = share / (1 - share)
    total = 0.0
    step = 1 if count > whole * share else -1
    while 0 <= count <= whole and term > total * 1e-9:
        total += term
        if step > 0:
            term *= (whole - count) / (count + 1) * odds
        else:
            term *= count / (whole - count + 1) / odds
        count += step
    return total
