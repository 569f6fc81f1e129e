"""What a measurement refuses, and its plan."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.node_status import UNREACHABLE, LifecycleNode
from keepclose.lab.network.underlay import Underlay
from keepclose.lab.slo.measurement import (
    FaultMoment,
    SloRequest,
    choose_nodes,
    handle_slo,
    plan_faults,
)
from keepclose.model.gates import FeatureGates
from keepclose.model.well_known import ZONE_LABEL


class DryLab(NamedTuple):
    """A lab without packets."""

    gates: FeatureGates = FeatureGates()
    underlay: None = None
    no_packets: str = "nft is not installed"


class WetLab(NamedTuple):
    """A lab with a network and no API server."""

    underlay: Underlay
    client: None = None
    gates: FeatureGates = FeatureGates()


class Named:
    """A network, of which only the names of its nodes matter."""

    def __init__(self, *names: str) -> None:
        self.nodes = dict.fromkeys(names)


def a_node(name: str, zone: str = "zone-a", *, ready: str = "True", **spec: Any) -> LifecycleNode:
    """Return a node."""
    raw = {
        "metadata": {"name": name, "labels": {ZONE_LABEL: zone}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    return msgspec.convert(raw, LifecycleNode)


def test_the_plan() -> None:
    """Endpoints are restarted early and moved after the middle."""
    assert plan_faults(10.0) == [FaultMoment(1.0, "restart"), FaultMoment(6.0, "move")]


def test_what_is_measured_by_default() -> None:
    """Ten seconds for each policy, and no distance between zones."""
    assert msgspec.convert({}, SloRequest) == SloRequest(10.0, 0.0)


@pytest.mark.parametrize(
    ("params", "want", "want_code"),
    [
        pytest.param(
            {}, "there are no packets to measure here: nft is not installed", 5, id="no packets"
        ),
        pytest.param({"seconds": 0}, "invalid request: Expected `float` >= 1", 2, id="0 s"),
        pytest.param({"zone_latency": "far"}, "invalid request", 2, id="no number"),
    ],
)
async def test_refusals(params: dict[str, Any], want: str, want_code: int) -> None:
    """Each comes in one line with its exit code."""
    lab: Any = DryLab()
    with pytest.raises(LabRefusal, match=want) as refusal:
        await handle_slo(lab, params, lambda _: None)
    assert refusal.value.code == want_code


async def test_one_measurement_at_a_time_in_one_lab() -> None:
    """A second one is refused in the same lab and not in another."""
    busy: Any = WetLab(Underlay())
    idle: Any = WetLab(Underlay())
    async with busy.underlay.measuring:
        with pytest.raises(LabRefusal, match="another measurement runs in this lab"):
            await handle_slo(busy, {}, lambda _: None)
        with pytest.raises(AttributeError, match="list_all"):
            await handle_slo(idle, {}, lambda _: None)


def test_only_nodes_that_are_well_take_part() -> None:
    """Nodes that fail, are cordoned or silent, or have no network, are left out."""
    nodes = [
        a_node("n2", "zone-b"),
        a_node("n1"),
        a_node("n3", ready="Unknown"),
        a_node("n4", unschedulable=True),
        a_node("n5", taints=[{"key": UNREACHABLE}]),
        a_node("n6"),
    ]
    network: Any = Named("n1", "n2", "n3", "n4", "n5")
    assert choose_nodes(nodes, network) == {"n1": "zone-a", "n2": "zone-b"}
    with pytest.raises(LabRefusal, match="1 of 5 nodes are healthy, and a comparison needs 2"):
        choose_nodes(nodes[1:], network)
