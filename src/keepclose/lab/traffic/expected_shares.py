"""Which endpoints a node's connections should reach, and which part of them each one.

The same selection that the proxies use is asked, for the Service and the slices as they are in the
API now. Only carries what it decides: equal shares of what a node may use, or by weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from keepclose.lab.traffic.answers import Failure
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
    PacketVerdict.DROP: Failure.TIMED_OUT,
    PacketVerdict.REJECT: Failure.REFUSED,
    PacketVerdict.NONE: Failure.UNREACHABLE,
}


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
    def failure(self) -> Failure | None:
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
