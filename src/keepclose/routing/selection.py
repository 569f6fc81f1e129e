"""Which endpoints one node uses for one service port, per traffic direction.

The traffic policy comes first. Local uses endpoints on this node (ready ones, else those that
terminate but still serve, KEP-1669) or drops. PreferLocal uses ready endpoints on this node or
falls back to Cluster. Cluster uses what topology selects. So a direction always gets the Local set,
the Cluster set, or a refusal; there is no third set. Follows kube-proxy (KEP-2086, KEP-1669) and
the first draft of KEP-3015 for PreferLocal.

Topology is never applied to the Local set: hints and labels have no effect on it. Under the Cluster
policy traffic is never black-holed while an endpoint is ready, unless topologyKeys demand it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

import msgspec

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    HOSTNAME_LABEL,
    INTERNAL_POLICY_ANNOTATION,
)
from keepclose.routing.hint_facts import count_ready
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy
from keepclose.routing.topology import (
    ClusterChoice,
    RoutingMode,
    choose_cluster_endpoints,
    needs_node_labels,
)

PREFER_LOCAL_MAY_USE_TERMINATING: Final = False
"""Whether PreferLocal prefers a terminating endpoint on this node to a ready one elsewhere.

The draft leaves it open. The answer is no: the policy serves reliability, and the Cluster set has
its own fallback to terminating endpoints.
"""

_LOCAL_POLICIES = (TrafficPolicy.LOCAL, TrafficPolicy.PREFER_LOCAL)
_CLUSTER_UNUSED = ClusterChoice((), RoutingMode.ALL, by_slice_labels=False, reasons=())


class LocalEndpoints(NamedTuple):
    """The endpoints on this node, and whether a usable endpoint exists on any node."""

    endpoints: tuple[PortEndpoint, ...] = ()
    is_terminating: bool = False
    """No endpoint on this node is ready; these terminate but still serve."""
    has_any: bool = False


class Direction(NamedTuple):
    """A traffic direction, internal or external, with its policy field and annotation."""

    field: str
    annotation: str
    traffic: str


INTERNAL: Final = Direction(
    "internalTrafficPolicy", INTERNAL_POLICY_ANNOTATION, "traffic to the cluster IP"
)
EXTERNAL: Final = Direction(
    "externalTrafficPolicy", EXTERNAL_POLICY_ANNOTATION, "traffic from outside"
)


def find_local_endpoints(
    endpoints: Sequence[PortEndpoint], *, node: NodeView, gates: FeatureGates
) -> LocalEndpoints:
    """Return the endpoints that the Local policy uses on the node, in the given order.

    A node without a name has no local endpoints.
    """
    ready = [endpoint for endpoint in endpoints if endpoint.ready]
    name = node.name
    if name and (here := tuple([endpoint for endpoint in ready if endpoint.node_name == name])):
        return LocalEndpoints(here, has_any=True)
    if not gates.on(Gate.PROXY_TERMINATING_ENDPOINTS):
        return LocalEndpoints(has_any=bool(ready))
    draining = [endpoint for endpoint in endpoints if endpoint.terminating and endpoint.serving]
    here = tuple([endpoint for endpoint in draining if endpoint.node_name == name]) if name else ()
    return LocalEndpoints(here, bool(here), bool(ready or draining))


def explain_policy(
    port: RoutedPort,
    direction: Direction,
    *,
    local: LocalEndpoints,
    prefers_local: bool,
    node: NodeView,
) -> tuple[Reason, ...]:
    """Return the reasons for what the policy does to the traffic of a direction.

    The Cluster policy, and a port without endpoints, give no reason.
    """
    policy = port.internal_policy if direction is INTERNAL else port.external_policy
    if policy is TrafficPolicy.CLUSTER or not local.has_any:
        return ()
    asked = f"{direction.field} {policy}"
    where = _count_local(local, node)
    if policy is TrafficPolicy.PREFER_LOCAL:
        if prefers_local:
            message = f"{asked}: {direction.traffic} goes to {where}"
            return (Reason(ReasonCode.LOCAL_PREFERRED, message),)
        return (
            Reason(
                ReasonCode.LOCAL_FELL_BACK,
                f"{asked}: no endpoint on node {node.name} is ready, "
                f"so {direction.traffic} goes where Cluster would send it",
                subject=f"Node {node.name}",
            ),
        )
    if local.endpoints:
        code = ReasonCode.LOCAL_POLICY
        if local.is_terminating:
            code = ReasonCode.TERMINATING_FALLBACK
        return (Reason(code, f"{asked}: {direction.traffic} goes to {where}"),)
    return (
        Reason(
            ReasonCode.NO_LOCAL_ENDPOINT,
            f"{asked}: no endpoint on node {node.name} can serve, "
            f"so {direction.traffic} is dropped",
            subject=f"Node {node.name}",
            fix=f"run an endpoint on node {node.name}",
        ),
    )


def _count_local(local: LocalEndpoints, node: NodeView) -> str:
    count = len(local.endpoints)
    if local.is_terminating:
        return (
            f"endpoints on node {node.name} that still serve while they terminate ({count}), "
            "as none there is ready"
        )
    return f"{count_ready(count)} on node {node.name}"


def find_distinguished_nodes(
    port: RoutedPort, endpoints: Sequence[PortEndpoint]
) -> frozenset[str] | None:
    """Return the names of nodes for which `select` may differ from others of their zone and region.

    All other nodes of one zone and region get the same endpoints, so one selection serves them all.
    None if labels of nodes count besides zone and region: then every node may differ.
    """
    if needs_node_labels(port.topology_keys):
        return None
    names: set[str] = set()
    policies = (port.internal_policy, port.external_policy)
    if (
        port.node_level
        or HOSTNAME_LABEL in port.topology_keys
        or any(policy in _LOCAL_POLICIES for policy in policies)
    ):
        names.update([endpoint.node_name for endpoint in endpoints])
    if port.honours_hints:
        for endpoint in endpoints:
            names.update(endpoint.node_hints)
    names.discard("")
    return frozenset(names)


class PacketVerdict(StrEnum):
    """What happens to traffic that gets no endpoint."""

    NONE = ""
    DROP = "drop"
    REJECT = "reject"


class Outcome(msgspec.Struct, frozen=True):
    """What traffic of one direction gets: endpoints, or a verdict that refuses it.

    Neither means that there is no such traffic, because the port has no external address.
    """

    endpoints: tuple[PortEndpoint, ...] = ()
    verdict: PacketVerdict = PacketVerdict.NONE


NO_TRAFFIC: Final = Outcome()
DROPPED: Final = Outcome(verdict=PacketVerdict.DROP)
REJECTED: Final = Outcome(verdict=PacketVerdict.REJECT)


class Selection(msgspec.Struct, frozen=True):
    """Everything that a node needs to route one service port."""

    mode: RoutingMode
    by_slice_labels: bool
    """Slices labelled for other zones or regions were skipped in `cluster`."""
    cluster: tuple[PortEndpoint, ...] | None
    """Endpoints for the Cluster policy; None if no traffic can use it."""
    local: tuple[PortEndpoint, ...] | None
    """Endpoints for the Local policy; None if no traffic can use it."""
    reachable: tuple[PortEndpoint, ...]
    """Every endpoint to which this node may send traffic of the port."""
    has_any: bool
    """A usable endpoint exists on some node."""
    local_is_terminating: bool
    """`local` holds endpoints that terminate, because none on this node is ready."""
    internal: Outcome
    """What traffic to the cluster IP gets."""
    external: Outcome
    """What traffic from outside to a node port, load balancer or external IP gets."""
    external_from_inside: Outcome
    """What pods and processes of this node get at those addresses: never less than Cluster."""
    internal_reasons: tuple[Reason, ...]
    """What internalTrafficPolicy does."""
    external_reasons: tuple[Reason, ...]
    """What externalTrafficPolicy does."""
    other_reasons: tuple[Reason, ...]
    """Reasons that concern the traffic of both directions."""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """All reasons, those of policies first."""
        return self.internal_reasons + self.external_reasons + self.other_reasons


def select(
    port: RoutedPort,
    endpoints: Sequence[PortEndpoint],
    *,
    node: NodeView,
    gates: FeatureGates,
    prefer_local_may_use_terminating: bool = PREFER_LOCAL_MAY_USE_TERMINATING,
) -> Selection:
    """Return what the node uses for the port; the order of the endpoints is kept.

    Without endpoints the traffic of both directions is rejected.
    """
    internal_policy, external_policy = port.internal_policy, port.external_policy
    is_external = port.is_externally_accessible
    # NB: traffic of this node and its pods to external addresses uses the Cluster set even if both
    # policies are Local, so an externally accessible port always needs that set.
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

    explain = partial(explain_policy, port, local=local, prefers_local=prefers_local, node=node)
    reasons: list[Reason] = []
    if any(outcome is via_cluster for outcome in (internal, external, from_inside)):
        reasons += choice.reasons
    reachable = _reachable(endpoints, choice, local, uses_cluster=uses_cluster)
    if not has_any and choice.mode is not RoutingMode.TOPOLOGY_KEYS:
        reasons.append(_no_endpoints(port, len(endpoints)))
    elif choice.mode is not RoutingMode.WEIGHTS and any(
        [endpoint.weight != 1 for endpoint in reachable]  # noqa: C419 - generators are slower
    ):
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
        internal_reasons=explain(INTERNAL),
        external_reasons=explain(EXTERNAL) if is_external else (),
        other_reasons=tuple(reasons),
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
    if choice.mode is RoutingMode.WEIGHTS:
        # Endpoints with the weights of a zone are copies.
        keys = {
            (endpoint.address, endpoint.port) for endpoint in (*choice.endpoints, *local.endpoints)
        }
        return tuple([each for each in endpoints if (each.address, each.port) in keys])
    # NB: by identity, because hashing or comparing endpoints costs far more than this whole call.
    used = {id(endpoint) for endpoint in choice.endpoints} | {
        id(endpoint) for endpoint in local.endpoints
    }
    return tuple([endpoint for endpoint in endpoints if id(endpoint) in used])


def _no_endpoints(port: RoutedPort, count: int) -> Reason:
    what = "there are no endpoints"
    if count:
        what = f"of {count} endpoints none is ready and none still serves while it terminates"
    return Reason(
        ReasonCode.NO_ENDPOINTS,
        f"{what}, so connections are refused",
        subject=f"Service {port.service}",
    )
