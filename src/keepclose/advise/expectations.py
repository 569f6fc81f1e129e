"""Where the connections that a node routes should go, in which shares, and what chance explains.

The expectation comes from the same selection that the proxies use, for the Service and the slices
in the API. Endpoints that a node may use have equal shares, or shares by weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from keepclose.model.addresses import canonical
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.workload import Pod
from keepclose.routing.port_endpoints import NodeView, PortEndpoint, collect_endpoints
from keepclose.routing.reasons import VISIBLE_IN_SELECTION, Reason, ReasonCode
from keepclose.routing.selection import (
    Outcome,
    PacketVerdict,
    Selection,
    select,
)
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy

FALSE_ALARMS: Final = 1e-6
"""The chance of a false alarm in a run that is as expected, at most.

Each count of a run is judged by the exact binomial tails, because endpoints with few connections
are too far from a normal distribution for a number of sigmas; and as one run has many counts, each
gets an equal part of this chance.
"""


class NamedEndpoint(NamedTuple):
    """An endpoint as users and its own answers name it: pod, node and zone."""

    pod: str
    node: str
    zone: str


class Expectation(NamedTuple):
    """Where the connections that one node routes should go."""

    shares: dict[str, float]
    """By pod; their sum is 1, or there are none."""
    verdict: PacketVerdict
    """What happens to connections if there are no shares."""
    reasons: tuple[Reason, ...]
    """The reasons that the shares do not show."""


class NamedPortEndpoints(NamedTuple):
    """All endpoints of a service port, with their names."""

    port: RoutedPort
    endpoints: tuple[PortEndpoint, ...]
    named: dict[str, NamedEndpoint]
    """By address."""

    @property
    def ready(self) -> list[NamedEndpoint]:
        """The ready endpoints."""
        return [self.named[endpoint.address] for endpoint in self.endpoints if endpoint.ready]


def name_endpoints(
    port: RoutedPort,
    slices: Iterable[EndpointSlice],
    *,
    family: str,
    zones: Mapping[str, str],
    pods: Iterable[Pod] = (),
    gates: FeatureGates,
) -> NamedPortEndpoints:
    """Return the endpoints of a service port with their names.

    `zones` has the zone of each node's label; an endpoint on another node has the zone of its
    slice. `pods` name the endpoints whose slices have no targetRef; an endpoint without a pod is
    named by its address.
    """
    listed = tuple(slices)
    names = {
        address: pod.metadata.name
        for pod in pods
        for text in (pod.status.pod_ip, *(ip.ip for ip in pod.status.pod_ips))
        if (address := canonical(text))
    }
    for endpoint_slice in listed:
        for endpoint in endpoint_slice.endpoints:
            ref = endpoint.target_ref
            address = canonical(endpoint.addresses[0]) if endpoint.addresses else None
            if address and ref is not None and ref.kind == "Pod":
                names[address] = ref.name
    endpoints = collect_endpoints(listed, family, gates=gates).get(port.key, ())
    named = {
        endpoint.address: NamedEndpoint(
            names.get(endpoint.address, endpoint.address),
            endpoint.node_name,
            zones.get(endpoint.node_name, endpoint.zone),
        )
        for endpoint in endpoints
    }
    return NamedPortEndpoints(port, endpoints, named)


def expect(
    named_port: NamedPortEndpoints,
    *,
    node: NodeView,
    gates: FeatureGates,
    from_outside: bool = False,
) -> Expectation:
    """Return where the connections should go that the node routes first.

    With `from_outside` they go to a node port or a load balancer's address, else to the cluster IP.
    """
    selection = select(named_port.port, named_port.endpoints, node=node, gates=gates)
    outcome = selection.external if from_outside else selection.internal
    whole = sum(endpoint.weight for endpoint in outcome.endpoints)
    shares: dict[str, float] = {}
    for endpoint in outcome.endpoints:
        pod = named_port.named[endpoint.address].pod
        shares[pod] = shares.get(pod, 0.0) + endpoint.weight / whole
    return Expectation(
        shares,
        outcome.verdict,
        _reasons(named_port.port, selection, outcome, from_outside=from_outside),
    )


def is_unlikely(count: int, whole: int, share: float, *, limit: float) -> bool:
    """Return whether the chance of a count as far from its share is less than `limit`.

    Both tails count: the chance is twice that of the nearer one.
    """
    if share >= 1.0:
        return count != whole
    if share <= 0.0:
        return count != 0
    middle = whole * share
    # A count within three sigmas is never unlikely; most counts are there.
    if abs(count - middle) <= 3 * math.sqrt(middle * (1 - share)):
        return False
    return 2 * _tail(count, whole, share) < limit


def _reasons(
    port: RoutedPort, selection: Selection, outcome: Outcome, *, from_outside: bool
) -> tuple[Reason, ...]:
    policy = port.external_policy if from_outside else port.internal_policy
    of_policy = selection.external_reasons if from_outside else selection.internal_reasons
    is_local = policy is TrafficPolicy.LOCAL or (
        policy is TrafficPolicy.PREFER_LOCAL
        and bool(outcome.endpoints)
        and outcome.endpoints is selection.local
    )
    others = [
        reason
        for reason in selection.other_reasons
        if not is_local or reason.code is ReasonCode.NO_ENDPOINTS
    ]
    return tuple(
        reason for reason in (*of_policy, *others) if reason.code not in VISIBLE_IN_SELECTION
    )


def _tail(count: int, whole: int, share: float) -> float:
    """Return the chance of this count or one further out on the same side."""
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
