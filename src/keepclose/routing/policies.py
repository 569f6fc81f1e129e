"""The two traffic policies of a service port on one node, apart from topology.

Says which endpoints on this node the Local policy means (KEP-2086; ready ones, else those that
terminate but still serve, KEP-1669), and puts into words what a policy did to one direction of
traffic. Never looks at hints or labels: topology has no say in what is local.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    EXTERNAL_POLICY_ANNOTATION,
    INTERNAL_POLICY_ANNOTATION,
)
from keepclose.routing.hintlevels import count_ready
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy


class LocalEndpoints(NamedTuple):
    """The endpoints on this node, and whether any exists on whatever node."""

    endpoints: tuple[PortEndpoint, ...] = ()
    is_terminating: bool = False
    """None on this node is ready; these terminate but still serve."""
    has_any: bool = False


class Direction(NamedTuple):
    """One of the two ways in, with its own policy."""

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
    ready = [one for one in endpoints if one.ready]
    name = node.name
    if name and (here := tuple([one for one in ready if one.node_name == name])):
        return LocalEndpoints(here, has_any=True)
    if not gates.on(Gate.PROXY_TERMINATING_ENDPOINTS):
        return LocalEndpoints(has_any=bool(ready))
    last = [one for one in endpoints if one.terminating and one.serving]
    here = tuple([one for one in last if one.node_name == name]) if name else ()
    return LocalEndpoints(here, bool(here), bool(ready or last))


def explain_policy(
    port: RoutedPort,
    direction: Direction,
    *,
    local: LocalEndpoints,
    prefers_local: bool,
    node: NodeView,
) -> tuple[Reason, ...]:
    """Return why the policy sends the direction's traffic where it does.

    Nothing for the Cluster policy, and nothing when no endpoint exists at all.
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
