"""When node hints and zone hints count, and whom to blame when they do not."""

from __future__ import annotations

import pytest

from keepclose.model.endpointslice.types import EndpointHints, ForNode, ForZone
from keepclose.routing.hint_facts import (
    count_ready,
    follow_node_hints,
    follow_zone_hints,
    group_of,
    hints_for,
    name_group,
    slice_facts,
    zoneless_node,
    zones_of,
)
from keepclose.routing.port_endpoints import NodeView, PortEndpoint
from keepclose.routing.reasons import Reason, ReasonCode
from support import builders

NODE = NodeView("n1", "zone-a")
LABEL_N9 = "kubectl label node n9 topology.kubernetes.io/zone=<zone>"


def endpoint(
    last: int, *, zones: str = "", nodes: str = "", node: str = "", zone: str = ""
) -> PortEndpoint:
    """Return the ready endpoint 10.0.0.<last>; hints are separated by blanks."""
    return PortEndpoint(
        f"10.0.0.{last}",
        80,
        node_name=node,
        zone=zone,
        zone_hints=tuple(zones.split()),
        node_hints=tuple(nodes.split()),
    )


@pytest.mark.parametrize(
    ("ready", "node", "want"),
    [
        pytest.param([], NODE, [], id="no endpoints"),
        pytest.param([endpoint(1), endpoint(2)], NODE, [], id="no hints"),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(2, zones="zone-b")], NODE, [0], id="ours"
        ),
        pytest.param(
            [endpoint(1, zones="zone-b zone-a"), endpoint(2, zones="zone-a")],
            NODE,
            [0, 1],
            id="several zones in one hint",
        ),
        pytest.param([endpoint(1, zones="zone-a"), endpoint(2)], NODE, [], id="one lacks a hint"),
        pytest.param([endpoint(1, zones="zone-b")], NODE, [], id="none for our zone"),
        pytest.param([endpoint(1, zones="zone-a")], NodeView("n1"), [], id="node without zone"),
    ],
)
def test_zone_hints(ready: list[PortEndpoint], node: NodeView, want: list[int]) -> None:
    """Zone hints count if every endpoint has one and some name the node's zone."""
    chosen, _ = follow_zone_hints(ready, node)
    assert chosen == tuple(ready[position] for position in want)


@pytest.mark.parametrize(
    ("ready", "node", "want"),
    [
        pytest.param([], NODE, [], id="no endpoints"),
        pytest.param([endpoint(1, zones="zone-a")], NODE, [], id="no node hints"),
        pytest.param([endpoint(1, nodes="n1"), endpoint(2, nodes="n2")], NODE, [0], id="ours"),
        pytest.param([endpoint(1, nodes="n2 n1")], NODE, [0], id="several nodes in one hint"),
        pytest.param([endpoint(1, nodes="n1"), endpoint(2)], NODE, [], id="one lacks a hint"),
        pytest.param([endpoint(1, nodes="n2", node="n1")], NODE, [], id="hints count, not place"),
        pytest.param([endpoint(1, nodes="n1")], NodeView("n1"), [0], id="node without zone"),
        pytest.param(
            [PortEndpoint("10.0.0.1", 80, node_hints=("",))], NodeView(""), [], id="no name"
        ),
    ],
)
def test_node_hints(ready: list[PortEndpoint], node: NodeView, want: list[int]) -> None:
    """Node hints count if every endpoint has one and some name the node."""
    chosen, _ = follow_node_hints(ready, node)
    assert chosen == tuple(ready[position] for position in want)


def test_empty_zone_in_a_hint() -> None:
    """A hint for the zone "" does not mean a node without a zone."""
    odd = PortEndpoint("10.0.0.1", 80, zone_hints=("",))
    chosen, reason = follow_zone_hints([odd], NodeView("n1"))
    assert chosen == ()
    assert reason is not None
    assert reason.code is ReasonCode.NODE_WITHOUT_ZONE


@pytest.mark.parametrize(
    ("ready", "node", "want"),
    [
        pytest.param([endpoint(1)], NODE, None, id="nothing asked, nothing to say"),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(2, zones="zone-b")],
            NODE,
            Reason(ReasonCode.SAME_ZONE, "hinted for zone zone-a: 1 of 2 ready endpoints"),
            id="followed",
        ),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(7, node="n9")],
            NODE,
            Reason(
                ReasonCode.ZONE_HINT_MISSING,
                "every ready endpoint must have a zone hint; "
                "10.0.0.7 has none because its node n9 has no zone label",
                "Endpoint 10.0.0.7",
                LABEL_N9,
            ),
            id="an endpoint on a node without zone",
        ),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(7, node="n9"), endpoint(8), endpoint(9)],
            NODE,
            Reason(
                ReasonCode.ZONE_HINT_MISSING,
                "every ready endpoint must have a zone hint; "
                "10.0.0.7 has none because its node n9 has no zone label (and 2 more of 4)",
                "Endpoint 10.0.0.7",
                LABEL_N9,
            ),
            id="only the first of several is named",
        ),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(7)],
            NODE,
            Reason(
                ReasonCode.ZONE_HINT_MISSING,
                "every ready endpoint must have a zone hint; "
                "10.0.0.7 has none because it names neither zone nor node",
                "Endpoint 10.0.0.7",
                "name the zone of the endpoint in its EndpointSlice",
            ),
            id="an endpoint of nowhere",
        ),
        pytest.param(
            [endpoint(1, zones="zone-a"), endpoint(7, node="n9", zone="zone-b")],
            NODE,
            Reason(
                ReasonCode.ZONE_HINT_MISSING,
                "every ready endpoint must have a zone hint; "
                "10.0.0.7 has none although it is in zone zone-b",
                "Endpoint 10.0.0.7",
            ),
            id="a slice that is not written yet",
        ),
        pytest.param(
            [endpoint(1, zones="zone-a")],
            NodeView("n9"),
            Reason(
                ReasonCode.NODE_WITHOUT_ZONE,
                "node n9 has no zone label, so hints for zones cannot be followed there",
                "Node n9",
                LABEL_N9,
            ),
            id="this node has no zone",
        ),
        pytest.param(
            [endpoint(1, zones="zone-b")],
            NODE,
            Reason(
                ReasonCode.ZONE_NOT_HINTED,
                "no ready endpoint is hinted for zone zone-a of node n1",
                "Node n1",
                "run endpoints in zone zone-a, in proportion to its clients",
            ),
            id="none for our zone",
        ),
    ],
)
def test_zone_reasons(ready: list[PortEndpoint], node: NodeView, want: Reason | None) -> None:
    """Whether zone hints are followed is said in words, with the object to blame and the fix."""
    assert follow_zone_hints(ready, node)[1] == want


@pytest.mark.parametrize(
    ("ready", "want"),
    [
        pytest.param([endpoint(1, zones="zone-a")], None, id="nothing asked, nothing to say"),
        pytest.param(
            [endpoint(1, nodes="n1")],
            Reason(ReasonCode.SAME_NODE, "hinted for node n1: 1 of 1 ready endpoint"),
            id="followed",
        ),
        pytest.param(
            [endpoint(1, nodes="n2")],
            Reason(
                ReasonCode.NODE_NOT_HINTED,
                "no ready endpoint is hinted for node n1",
                "Node n1",
                "run endpoints on node n1, in proportion to its clients",
            ),
            id="none for this node",
        ),
        pytest.param(
            [endpoint(1, nodes="n1"), endpoint(7), endpoint(8)],
            Reason(
                ReasonCode.NODE_HINT_MISSING,
                "every ready endpoint must have a node hint; "
                "10.0.0.7 has none because it names no node (and 1 more of 3)",
                "Endpoint 10.0.0.7",
                "name the node of the endpoint in its EndpointSlice",
            ),
            id="an endpoint without node",
        ),
        pytest.param(
            [endpoint(1, nodes="n1"), endpoint(7, node="n9")],
            Reason(
                ReasonCode.NODE_HINT_MISSING,
                "every ready endpoint must have a node hint; "
                "10.0.0.7 has none although it is on node n9",
                "Endpoint 10.0.0.7",
            ),
            id="a slice that is not written yet",
        ),
    ],
)
def test_node_reasons(ready: list[PortEndpoint], want: Reason | None) -> None:
    """Whether node hints are followed is said in words, with the object to blame and the fix."""
    assert follow_node_hints(ready, NODE)[1] == want


def test_zoneless_node() -> None:
    """The caller says what follows from a node without a zone."""
    assert zoneless_node(NodeView("n9"), "it takes all").message == (
        "node n9 has no zone label, so it takes all"
    )


@pytest.mark.parametrize(
    ("count", "want"),
    [
        pytest.param(0, "0 ready endpoints", id="none"),
        pytest.param(1, "1 ready endpoint", id="one"),
        pytest.param(2, "2 ready endpoints", id="two"),
    ],
)
def test_count_ready(count: int, want: str) -> None:
    """One is singular."""
    assert count_ready(count) == want


@pytest.mark.parametrize(
    ("zones", "want_group"),
    [
        pytest.param((), "", id="no zones"),
        pytest.param(("a",), "a", id="one zone"),
        pytest.param(("b", "a"), "a,b", id="in order"),
        pytest.param(("b", "a", "b"), "a,b", id="each once"),
    ],
)
def test_zones_have_a_group(zones: tuple[str, ...], want_group: str) -> None:
    """A group names each of its zones once and in order, however the hints list them."""
    assert name_group(zones) == want_group
    assert group_of(EndpointHints(for_zones=tuple(ForZone(zone) for zone in zones))) == want_group
    assert zones_of(want_group) == tuple(sorted(set(zones)))


def test_hints_are_written_for_every_zone_of_a_group() -> None:
    """Each zone of the group has its entry, beside the node; no group and no node are no hints."""
    both = hints_for("a,b", "n1")
    assert both == EndpointHints(for_zones=(ForZone("a"), ForZone("b")), for_nodes=(ForNode("n1"),))
    assert group_of(both) == "a,b"
    assert hints_for("", "") is None
    assert group_of(None) == group_of(hints_for("", "n1")) == ""


def test_facts_count_an_endpoint_for_several_zones_in_each() -> None:
    """By hinted zone it counts twice, by group once, and it is not in its own zone alone."""
    facts = slice_facts(
        builders.endpoint_slice(
            builders.endpoint("1", zone="a", for_zones=("b", "a")),
            builders.endpoint("2", zone="a", for_zones=("a",)),
        )
    )
    assert facts.hinted == {"a": 2, "b": 1}
    assert facts.pairs == {("a", "a,b"): 1, ("a", "a"): 1}
    assert (facts.zone_hinted, facts.own_zones) == (2, False)
