"""Traffic shares of zones from nodes: strict for Auto, lenient for subsetting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepclose.model.well_known import EXCLUDED_NODE_LABELS
from keepclose.model.workload import Node
from keepclose.routing.reasons import Reason, ReasonCode
from keepclose.routing.traffic_shares import (
    CpuRatios,
    Shares,
    ZoneNodes,
    count_zone_nodes,
    cpu_ratios,
    divide_shares,
    traffic_shares,
)
from support.builders import node

CONTROL_PLANE = {"node-role.kubernetes.io/control-plane": ""}


@pytest.mark.parametrize(
    ("nodes", "want_ratios"),
    [
        pytest.param([], None, id="no nodes"),
        pytest.param([node("n1", "zone-a", cpu="1000m")], None, id="a single node"),
        pytest.param(
            [node("n1", "zone-a", cpu="1"), node("n2", "zone-a", cpu="1")],
            None,
            id="two nodes in a single zone",
        ),
        pytest.param(
            [node("n1", "zone-a", cpu="1"), node("n2", "zone-b", cpu="1000m")],
            {"zone-a": 0.5, "zone-b": 0.5},
            id="two equal zones",
        ),
        pytest.param(
            [node("n1", "zone-a", cpu="1"), node("n2", "zone-b", cpu="1", ready=False)],
            None,
            id="two zones, the second not ready",
        ),
        pytest.param(
            [node("n1", "zone-a", cpu="1"), node("n2", "zone-b", cpu="1", labels=CONTROL_PLANE)],
            None,
            id="two zones, the second only for the control plane",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="1"),
                node("n2", "zone-b", cpu="1", ready=False),
                node("n3", "zone-b", cpu="3"),
            ],
            {"zone-a": 0.25, "zone-b": 0.75},
            id="two zones, the second with an unready and a ready node",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="1"),
                node("n2", "zone-b", cpu="5", labels=CONTROL_PLANE),
                node("n3", "zone-b", cpu="3"),
            ],
            {"zone-a": 0.25, "zone-b": 0.75},
            id="two zones, the second with a control-plane and a worker node",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="4000m"),
                node("n2", "zone-b", cpu="2000m"),
                node("n3", "zone-c", cpu="1000m"),
            ],
            {"zone-a": 4 / 7, "zone-b": 2 / 7, "zone-c": 1 / 7},
            id="three zones with 4, 2 and 1 CPU",
        ),
    ],
)
def test_ratios_of_ready_workers(nodes: list[Node], want_ratios: dict[str, float] | None) -> None:
    """Zones are weighed by the CPU of their ready worker nodes; two zones are the least."""
    got = cpu_ratios(nodes)

    assert got.ratios == want_ratios
    assert bool(got.reasons) == (want_ratios is None)


@pytest.mark.parametrize(
    ("blamed", "want_reason"),
    [
        pytest.param(
            node("n3", None),
            Reason(
                ReasonCode.INSUFFICIENT_NODE_INFO,
                "node n3 has no zone label",
                subject="Node n3",
                fix="kubectl label node n3 topology.kubernetes.io/zone=<zone>",
            ),
            id="no zone label",
        ),
        pytest.param(
            node("n3", ""),
            Reason(
                ReasonCode.INSUFFICIENT_NODE_INFO,
                "node n3 has no zone label",
                subject="Node n3",
                fix="kubectl label node n3 topology.kubernetes.io/zone=<zone>",
            ),
            id="an empty zone label",
        ),
        *(
            pytest.param(
                node("n3", "zone-b", cpu=cpu),
                Reason(
                    ReasonCode.INSUFFICIENT_NODE_INFO,
                    "node n3 reports no allocatable CPU",
                    subject="Node n3",
                    fix="make the kubelet of n3 report allocatable CPU",
                ),
                id=f"cpu {cpu}",
            )
            for cpu in (None, "0", "0m", "plenty", "-1")
        ),
    ],
)
def test_one_unknown_node_spoils_the_ratios(blamed: Node, want_reason: Reason) -> None:
    """A considered node without zone or CPU makes the ratios unknown and is named with its fix."""
    nodes = [node("n1", "zone-a"), blamed, node("n2", "zone-b")]

    assert cpu_ratios(nodes) == CpuRatios(None, (want_reason,))


@pytest.mark.parametrize(
    "ignored",
    [
        pytest.param(node("n3", None, ready=False), id="not ready"),
        *(
            pytest.param(node("n3", None, cpu=None, labels={label: ""}), id=label)
            for label in EXCLUDED_NODE_LABELS
        ),
    ],
)
def test_nodes_that_do_not_count_spoil_nothing(ignored: Node) -> None:
    """A node that is not ready or runs the control plane may lack zone and CPU."""
    nodes = [node("n1", "zone-a"), node("n2", "zone-b"), ignored]

    assert cpu_ratios(nodes) == CpuRatios({"zone-a": 0.5, "zone-b": 0.5})
    assert traffic_shares(nodes) == Shares({"zone-a": 0.5, "zone-b": 0.5})


def test_a_node_that_lacks_both_is_blamed_twice() -> None:
    """Each thing to mend has a reason of its own."""
    got = cpu_ratios([node("n1", None, cpu=None), node("n2", "zone-b")])

    assert [reason.message for reason in got.reasons] == [
        "node n1 has no zone label",
        "node n1 reports no allocatable CPU",
    ]


def test_many_blamed_nodes_are_counted() -> None:
    """Five nodes are named in the order of their names, of the others only the number is told."""
    got = cpu_ratios([node(f"n{number}", None) for number in range(8, 0, -1)])

    assert [reason.subject for reason in got.reasons] == [
        "Node n1",
        "Node n2",
        "Node n3",
        "Node n4",
        "Node n5",
        "",
    ]
    assert got.reasons[-1].message == "the same holds for 3 more nodes"
    assert len(cpu_ratios([node(f"n{number}", None) for number in range(5)]).reasons) == 5


@pytest.mark.parametrize(
    ("nodes", "want_reason"),
    [
        pytest.param(
            [node("n1", ready=False)],
            Reason(
                ReasonCode.INSUFFICIENT_NODE_INFO,
                "no node is both Ready and outside the control plane",
                fix="kubectl get nodes",
            ),
            id="no node at all",
        ),
        pytest.param(
            [node("n1", "zone-x")],
            Reason(
                ReasonCode.INSUFFICIENT_NODE_INFO,
                "all considered nodes are in zone zone-x",
                fix="run ready worker nodes in at least two zones",
            ),
            id="one zone only",
        ),
    ],
)
def test_too_few_zones_are_explained(nodes: list[Node], want_reason: Reason) -> None:
    """Complete nodes in fewer than two zones still give no ratios, and a reason."""
    assert cpu_ratios(nodes) == CpuRatios(None, (want_reason,))


@pytest.mark.parametrize(
    ("nodes", "want_shares", "want_codes"),
    [
        pytest.param([], {}, [], id="no nodes"),
        pytest.param([node("n1", "zone-a")], {"zone-a": 1.0}, [], id="one zone is a share of all"),
        pytest.param(
            [
                node("n1", "zone-b", cpu="1"),
                node("n2", "zone-a", cpu="2500m"),
                node("n3", "zone-b", cpu="500m"),
            ],
            {"zone-a": 0.625, "zone-b": 0.375},
            [],
            id="by CPU",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="64"),
                node("n2", "zone-b", cpu="1"),
                node("n3", "zone-b", cpu=None),
                node("n4", "zone-b", cpu="1"),
            ],
            {"zone-a": 0.25, "zone-b": 0.75},
            [ReasonCode.SHARE_BY_NODES],
            id="by nodes once the CPU of one is unknown",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="3"),
                node("n2", None, cpu="9"),
                node("n3", "zone-b", cpu="1"),
            ],
            {"zone-a": 0.75, "zone-b": 0.25},
            [ReasonCode.NODE_WITHOUT_ZONE],
            id="a node without zone is left out",
        ),
        pytest.param(
            [
                node("n1", "zone-a", cpu="3"),
                node("n2", None, cpu=None),
                node("n3", "zone-b", cpu="1"),
            ],
            {"zone-a": 0.75, "zone-b": 0.25},
            [ReasonCode.NODE_WITHOUT_ZONE],
            id="a node without zone cannot spoil the CPU of the others",
        ),
        pytest.param(
            [node("n1", None), node("n2", None, cpu=None)],
            {},
            [ReasonCode.NODE_WITHOUT_ZONE, ReasonCode.NODE_WITHOUT_ZONE],
            id="no zone anywhere",
        ),
    ],
)
def test_shares_for_subsetting(
    nodes: list[Node], want_shares: dict[str, float], want_codes: list[ReasonCode]
) -> None:
    """Shares go by CPU, by the number of nodes if need be, and by zone names in order."""
    got = traffic_shares(nodes)

    assert got.by_zone == want_shares
    assert list(got.by_zone) == sorted(want_shares)
    assert [reason.code for reason in got.reasons] == want_codes


def test_leniency_is_explained() -> None:
    """Nodes that were left out or spoil the CPU are named, with what would mend them."""
    got = traffic_shares([node("n1", "zone-a"), node("n2", "zone-b", cpu=None), node("n3", None)])

    assert got.reasons == (
        Reason(
            ReasonCode.NODE_WITHOUT_ZONE,
            "node n3 has no zone label, so its traffic is not counted",
            subject="Node n3",
            fix="kubectl label node n3 topology.kubernetes.io/zone=<zone>",
        ),
        Reason(
            ReasonCode.SHARE_BY_NODES,
            "node n2 reports no allocatable CPU, so nodes are counted instead",
            subject="Node n2",
            fix="make the kubelet of n2 report allocatable CPU",
        ),
    )


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from(["zone-a", "zone-b", "zone-c", None]),
            st.sampled_from(["1", "1500m", "64", None]),
        ),
        max_size=12,
    )
)
def test_both_views_agree_where_everything_is_known(
    rows: list[tuple[str | None, str | None]],
) -> None:
    """Shares add up to one, and equal the strict ratios whenever those exist."""
    nodes = [node(f"n{number}", zone, cpu=cpu) for number, (zone, cpu) in enumerate(rows)]

    shares = traffic_shares(nodes)
    ratios = cpu_ratios(nodes)

    assert sum(shares.by_zone.values()) == pytest.approx(1.0 if shares.by_zone else 0.0)
    assert set(shares.by_zone) == {zone for zone, _ in rows if zone}
    if ratios.ratios is not None:
        assert shares == Shares(ratios.ratios)


def test_nodes_are_counted_by_zone() -> None:
    """Ready nodes outside the control plane count, with the CPU that they report."""
    nodes = [
        node("n1", "b", cpu="1500m"),
        node("n2", "b", cpu=None),
        node("n3", "a", cpu="4"),
        node("n4", "a", ready=False),
        node("n5", None),
        node("n6", "c", labels={"node-role.kubernetes.io/control-plane": ""}),
    ]
    counted = count_zone_nodes(nodes)
    assert counted == {"a": ZoneNodes(1, 4000), "b": ZoneNodes(2, 1500)}
    assert list(counted) == ["a", "b"]
    assert count_zone_nodes([]) == {}


def test_shares_say_what_they_come_from() -> None:
    """CPU, or the number of nodes as soon as one of them reports no CPU."""
    assert traffic_shares([node("n1", "a"), node("n2", "b")]).basis == "cpu"
    assert traffic_shares([node("n1", "a"), node("n2", "b", cpu=None)]).basis == "nodes"
    assert traffic_shares([]).basis == "cpu"


@pytest.mark.parametrize(
    ("values", "want"),
    [
        pytest.param([], [], id="none"),
        pytest.param([3.0, 1.0], [0.75, 0.25], id="parts of the sum"),
        pytest.param([0.0, -1.0], [0.0, 0.0], id="nothing positive"),
        pytest.param([5e-324, 5e-324], [0.5, 0.5], id="the smallest numbers there are"),
        pytest.param([1.5e308, 1.5e308, 0.0], [0.5, 0.5, 0.0], id="a sum beyond all numbers"),
        pytest.param([1.5e308, 5e-324, 1.5e308], [0.5, 0.0, 0.5], id="both"),
        pytest.param([math.inf, 3.0, 1.0], [0.0, 0.75, 0.25], id="infinite"),
        pytest.param([math.nan, 3.0, 1.0], [0.0, 0.75, 0.25], id="not a number"),
    ],
)
def test_shares_are_parts_of_any_numbers(values: list[float], want: list[float]) -> None:
    """No sum overflows, and what is no finite number is no traffic."""
    assert divide_shares(values) == want
