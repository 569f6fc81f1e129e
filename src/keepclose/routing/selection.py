"""What one node uses for one service port, per traffic direction.

The traffic policy comes first: Local uses endpoints on this node or drops, PreferLocal uses ready
ones on this node or does as Cluster does, Cluster uses what topology leaves. So the answer for a
direction is always the Local set, the Cluster set, or a refusal; there is no third set. Follows
kube-proxy (KEP-2086, KEP-1669) and the first draft of KEP-3015 for PreferLocal.

Topology is never applied to the Local set. Under the Cluster policy a ready endpoint anywhere is
never black-holed, unless topologyKeys demand it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from keepclose.model.gates import FeatureGates
from keepclose.routing.policies import (
    EXTERNAL,
    INTERNAL,
    LocalEndpoints,
    explain_policy,
    find_local_endpoints,
)
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.routing.topology import ClusterChoice, RoutingMode, choose_cluster_endpoints

PREFER_LOCAL_MAY_USE_TERMINATING: Final = False
"""Whether PreferLocal takes an endpoint on this node that terminates over a ready one elsewhere.

The draft leaves it open. No: the policy is there for reliability, and the Cluster set has its own
fallback to terminating endpoints.
"""


class PacketVerdict(StrEnum):
    """What happens to traffic that gets no endpoint."""

    NONE = ""
    DROP = "drop"
    REJECT = "reject"


class Outcome(msgspec.Struct, frozen=True):
    """What traffic of one direction gets: endpoints, or a verdict that refuses it.

    Neither of them means that there is no such traffic, as nothing outside can address the port.
    """

    endpoints: tuple[PortEndpoint, ...] = ()
    verdict: PacketVerdict = PacketVerdict.NONE


NO_TRAFFIC: Final = Outcome()
DROPPED: Final = Outcome(verdict=PacketVerdict.DROP)
REJECTED: Final = Outcome(verdict=PacketVerdict.REJECT)


class Selection(msgspec.Struct, frozen=True):
    """Everything that a node has to know to route one service port."""

    mode: RoutingMode
    by_slice_labels: bool
    """Slices labelled for other zones or regions were left out of `cluster`."""
    cluster: tuple[PortEndpoint, ...] | None
    """Endpoints for the Cluster policy; None when no traffic can come under it."""
    local: tuple[PortEndpoint, ...] | None
    """Endpoints for the Local policy; None when no traffic can come under it."""
    reachable: tuple[PortEndpoint, ...]
    """Every endpoint to which this node may send traffic of the port."""
    has_any: bool
    """Some usable endpoint exists, on whatever node."""
    local_is_terminating: bool
    """`local` holds endpoints that terminate, because none on this node is ready."""
    internal: Outcome
    """What traffic to the cluster IP gets."""
    external: Outcome
    """What traffic from outside to a node port, load balancer or external IP gets."""
    external_from_inside: Outcome
    """What pods and processes of this node get at those addresses: never less than the cluster."""
    reasons: tuple[Reason, ...]


_LOCAL_POLICIES = (TrafficPolicy.LOCAL, TrafficPolicy.PREFER_LOCAL)
_CLUSTER_UNUSED = ClusterChoice((), RoutingMode.ALL, by_slice_labels=False, reasons=())


def select(
    port: RoutedPort,
    endpoints: Sequence[PortEndpoint],
    *,
    node: NodeView,
    gates: FeatureGates,
    prefer_local_may_use_terminating: bool = PREFER_LOCAL_MAY_USE_TERMINATING,
) -> Selection:
    """Return what the node uses for the port; the order of the endpoints is kept.

    No endpoints at all: traffic of both directions is rejected.
    """
    internal_policy, external_policy = port.internal_policy, port.external_policy
    is_external = port.is_externally_accessible
    # NB: what this node and its pods send to external addresses goes by the Cluster set even if
    # both policies are Local, so an externally accessible port always needs that set.
    uses_cluster = is_external or internal_policy is not TrafficPolicy.LOCAL
    uses_local = internal_policy in _LOCAL_POLICIES or (
        is_external and external_policy in _LOCAL_POLICIES
    )
    choice = (
        choose_cluster_endpoints(port, endpoints, node=node, gates=gates)
        if uses_cluster
        else _CLUSTER_UNUSED
    )
    local = (
        find_local_endpoints(endpoints, node=node, gates=gates) if uses_local else LocalEndpoints()
    )
    has_any = bool(choice.endpoints) or local.has_any
    prefers_local = bool(local.endpoints) and (
        prefer_local_may_use_terminating or not local.is_terminating
    )

    via_cluster = Outcome(choice.endpoints) if choice.endpoints else REJECTED
    via_local = DROPPED if has_any else REJECTED
    if local.endpoints:
        via_local = Outcome(local.endpoints)
    outcomes = {
        TrafficPolicy.CLUSTER: via_cluster,
        TrafficPolicy.LOCAL: via_local,
        TrafficPolicy.PREFER_LOCAL: via_local if prefers_local else via_cluster,
    }
    internal = outcomes[internal_policy]
    external = outcomes[external_policy] if is_external else NO_TRAFFIC
    from_inside = external
    if is_external and external_policy is TrafficPolicy.LOCAL:
        from_inside = via_cluster

    reasons: list[Reason] = []
    for direction in (INTERNAL, EXTERNAL) if is_external else (INTERNAL,):
        reasons += explain_policy(
            port, direction, local=local, prefers_local=prefers_local, node=node
        )
    if any(outcome is via_cluster for outcome in (internal, external, from_inside)):
        reasons += choice.reasons
    reachable = _reachable(endpoints, choice, local, uses_cluster=uses_cluster)
    if not has_any and choice.mode is not RoutingMode.TOPOLOGY_KEYS:
        reasons.append(_no_endpoints(port, len(endpoints)))
    elif any([one.weight != 1 for one in reachable]):  # noqa: C419 (a generator costs twice as much)
        reasons.append(
            Reason(ReasonCode.WEIGHTED, "endpoints get traffic in proportion to their weights")
        )
    return Selection(
        mode=choice.mode,
        by_slice_labels=choice.by_slice_labels,
        cluster=choice.endpoints if uses_cluster else None,
        local=local.endpoints if uses_local else None,
        reachable=reachable,
        has_any=has_any,
        local_is_terminating=local.is_terminating,
        internal=internal,
        external=external,
        external_from_inside=from_inside,
        reasons=tuple(reasons),
    )


def _reachable(
    endpoints: Sequence[PortEndpoint],
    choice: ClusterChoice,
    local: LocalEndpoints,
    *,
    uses_cluster: bool,
) -> tuple[PortEndpoint, ...]:
    if not uses_cluster:
        return local.endpoints
    # Ready local endpoints are among all ready ones; only a narrowed Cluster set may lack some.
    if not local.endpoints or not (choice.is_narrowed or local.is_terminating):
        return choice.endpoints
    # NB: by identity, because hashing or comparing endpoints costs far more than this whole call.
    used = {id(one) for one in choice.endpoints} | {id(one) for one in local.endpoints}
    return tuple([one for one in endpoints if id(one) in used])


def _no_endpoints(port: RoutedPort, count: int) -> Reason:
    what = "there are no endpoints"
    if count:
        what = f"of {count} endpoints none is ready and none still serves while it terminates"
    return Reason(
        ReasonCode.NO_ENDPOINTS,
        f"{what}, so connections are refused",
        subject=f"Service {port.service}",
    )
