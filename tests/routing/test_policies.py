"""Endpoints on this node, and the words for what a traffic policy did."""

from __future__ import annotations

import pytest

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.selection import (
    EXTERNAL,
    INTERNAL,
    Direction,
    LocalEndpoints,
    explain_policy,
    find_local_endpoints,
)
from keepclose.routing.service_ports import RoutedPort, TrafficPolicy

GATES = FeatureGates()
NO_TERMINATING = GATES.without(Gate.PROXY_TERMINATING_ENDPOINTS)
NODE = NodeView("n1", "zone-a")
HERE = PortEndpoint("10.0.0.1", 80, node_name="n1", zone_hints=("zone-b",))
AWAY = PortEndpoint("10.0.0.2", 80, node_name="n2")
LEAVING = PortEndpoint("10.0.0.3", 80, ready=False, terminating=True, node_name="n1")
LEAVING_AWAY = PortEndpoint("10.0.0.4", 80, ready=False, terminating=True, node_name="n2")
UNREADY = PortEndpoint("10.0.0.5", 80, ready=False, node_name="n1")
DEAD = PortEndpoint("10.0.0.6", 80, ready=False, serving=False, terminating=True, node_name="n1")
NAMELESS = PortEndpoint("10.0.0.7", 80)
NAMELESS_LEAVING = PortEndpoint("10.0.0.8", 80, ready=False, terminating=True)


@pytest.mark.parametrize(
    ("endpoints", "node", "gates", "want"),
    [
        pytest.param([], NODE, GATES, LocalEndpoints(), id="none"),
        pytest.param(
            [HERE, AWAY, LEAVING], NODE, GATES, LocalEndpoints((HERE,), False, True), id="ready"
        ),
        pytest.param(
            [AWAY, LEAVING, DEAD, UNREADY],
            NODE,
            GATES,
            LocalEndpoints((LEAVING,), True, True),
            id="only one that terminates but serves",
        ),
        pytest.param(
            [AWAY, LEAVING],
            NODE,
            NO_TERMINATING,
            LocalEndpoints((), False, True),
            id="terminating ones need their gate",
        ),
        pytest.param([LEAVING], NODE, NO_TERMINATING, LocalEndpoints(), id="and do not exist then"),
        pytest.param([AWAY], NODE, GATES, LocalEndpoints((), False, True), id="elsewhere"),
        pytest.param(
            [LEAVING_AWAY], NODE, GATES, LocalEndpoints((), False, True), id="terminates elsewhere"
        ),
        pytest.param([UNREADY, DEAD], NODE, GATES, LocalEndpoints(), id="nothing usable"),
        pytest.param(
            [NAMELESS],
            NodeView(""),
            GATES,
            LocalEndpoints((), False, True),
            id="a node without a name owns nothing",
        ),
        pytest.param(
            [NAMELESS_LEAVING],
            NodeView(""),
            GATES,
            LocalEndpoints((), False, True),
            id="a node without a name owns nothing that terminates",
        ),
    ],
)
def test_local_endpoints(
    endpoints: list[PortEndpoint], node: NodeView, gates: FeatureGates, want: LocalEndpoints
) -> None:
    """Ready endpoints on the node, else those that still serve there; hints have no say."""
    assert find_local_endpoints(endpoints, node=node, gates=gates) == want


def explain(
    direction: Direction,
    policy: TrafficPolicy,
    local: LocalEndpoints,
    *,
    prefers_local: bool = False,
) -> tuple[Reason, ...]:
    """Return the reasons for a port that has the policy in both directions."""
    port = RoutedPort(
        NamespacedName("shop", "web"),
        "http",
        "TCP",
        "10.96.0.10",
        80,
        internal_policy=policy,
        external_policy=policy,
    )
    return explain_policy(port, direction, local=local, prefers_local=prefers_local, node=NODE)


FOUND = LocalEndpoints((HERE,), False, True)
FOUND_LEAVING = LocalEndpoints((LEAVING,), True, True)
ELSEWHERE = LocalEndpoints((), False, True)


@pytest.mark.parametrize(
    ("direction", "policy", "local", "prefers_local", "want"),
    [
        pytest.param(
            INTERNAL, TrafficPolicy.CLUSTER, ELSEWHERE, False, (), id="Cluster has nothing to say"
        ),
        pytest.param(
            INTERNAL,
            TrafficPolicy.LOCAL,
            LocalEndpoints(),
            False,
            (),
            id="without endpoints the policy is not to blame",
        ),
        pytest.param(
            INTERNAL,
            TrafficPolicy.LOCAL,
            FOUND,
            False,
            (
                Reason(
                    ReasonCode.LOCAL_POLICY,
                    "internalTrafficPolicy Local: traffic to the cluster IP goes to "
                    "1 ready endpoint on node n1",
                ),
            ),
            id="Local",
        ),
        pytest.param(
            EXTERNAL,
            TrafficPolicy.LOCAL,
            FOUND_LEAVING,
            False,
            (
                Reason(
                    ReasonCode.TERMINATING_FALLBACK,
                    "externalTrafficPolicy Local: traffic from outside goes to endpoints on node "
                    "n1 that still serve while they terminate (1), as none there is ready",
                ),
            ),
            id="Local, terminating",
        ),
        pytest.param(
            INTERNAL,
            TrafficPolicy.PREFER_LOCAL,
            FOUND,
            True,
            (
                Reason(
                    ReasonCode.LOCAL_PREFERRED,
                    "internalTrafficPolicy PreferLocal: traffic to the cluster IP goes to "
                    "1 ready endpoint on node n1",
                ),
            ),
            id="PreferLocal",
        ),
        pytest.param(
            EXTERNAL,
            TrafficPolicy.PREFER_LOCAL,
            ELSEWHERE,
            False,
            (
                Reason(
                    ReasonCode.LOCAL_FELL_BACK,
                    "externalTrafficPolicy PreferLocal: no endpoint on node n1 is ready, "
                    "so traffic from outside goes where Cluster would send it",
                    "Node n1",
                ),
            ),
            id="PreferLocal, fell back",
        ),
    ],
)
def test_policy_reasons(
    direction: Direction,
    policy: TrafficPolicy,
    local: LocalEndpoints,
    prefers_local: bool,
    want: tuple[Reason, ...],
) -> None:
    """A policy other than Cluster says where it sends the traffic of its direction."""
    assert explain(direction, policy, local, prefers_local=prefers_local) == want


@pytest.mark.parametrize("direction", [INTERNAL, EXTERNAL], ids=["internal", "external"])
def test_dropped_traffic(direction: Direction) -> None:
    """Traffic that Local drops comes with a fix that neither widens it nor hides clients."""
    (reason,) = explain(direction, TrafficPolicy.LOCAL, ELSEWHERE)
    assert reason == Reason(
        ReasonCode.NO_LOCAL_ENDPOINT,
        f"{direction.field} Local: no endpoint on node n1 can serve, "
        f"so {direction.traffic} is dropped",
        "Node n1",
        "run an endpoint on node n1",
    )
