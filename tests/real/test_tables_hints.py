"""The unit tables of k8s.io/endpointslice/trafficdist and topologycache, asked of our hints."""

from __future__ import annotations

from typing import Any

import pytest

from keepclose.model.endpointslice.types import Endpoint, EndpointSlice
from keepclose.model.workload import Node
from keepclose.routing.auto import (
    Bounds,
    Infeasible,
    allocate_proportionally,
    disabled_event,
    lend,
    zone_bounds,
)
from keepclose.routing.hint_facts import slice_facts
from keepclose.routing.hints import SliceSet, hint_own, remove_hints
from keepclose.routing.traffic_shares import cpu_ratios
from support.real.unit_tables import (
    Answers,
    Case,
    Judge,
    check_all_judged,
    compare,
    pairs,
    read,
    read_list,
)

pytestmark = pytest.mark.real


def _written(slices: SliceSet) -> tuple[object, object]:
    return slices.create, slices.update


def _given_slices(info: dict[str, Any]) -> SliceSet:
    return SliceSet(
        create=read_list(EndpointSlice, info.get("ToCreate")),
        update=read_list(EndpointSlice, info.get("ToUpdate")),
        unchanged=read_list(EndpointSlice, info.get("Unchanged")),
    )


def _theirs_written(case: Case) -> tuple[object, object]:
    return (
        read_list(EndpointSlice, case.answered.get("result0")),
        read_list(EndpointSlice, case.answered.get("result1")),
    )


def _reconcile_hints(case: Case) -> Answers:
    slices = SliceSet(
        create=read_list(EndpointSlice, case.given.get("slicesToCreate")),
        update=read_list(EndpointSlice, case.given.get("slicesToUpdate")),
        unchanged=read_list(EndpointSlice, case.given.get("slicesUnchanged")),
    )
    match case.given.get("trafficDistribution"):
        case "PreferClose" | "PreferSameZone":
            hinted = hint_own(slices, zones=True, nodes=False)
        case "PreferSameNode":
            hinted = hint_own(slices, zones=True, nodes=True)
        case _:
            hinted = remove_hints(slices)
    return Answers(
        (hinted.create, hinted.update, hinted.unchanged),
        (*_theirs_written(case), read_list(EndpointSlice, case.answered.get("result2"))),
    )


def _add_hints(case: Case) -> Answers | None:
    if case.given.get("ratios") == {}:
        # SetNodes, which a test calls at the same time, is filling the ratios; AddHints waits for
        # its lock after they were recorded, and answers by what they are then.
        return None
    info = case.given["si"]
    result = allocate_proportionally(
        _given_slices(info),
        ratios=case.given.get("ratios"),
        address_type=info["AddressType"],
        populated=info["ServiceKey"] in case.given["populated"],
    )
    events = [(event.type, event.reason, event.message) for event in result.events]
    theirs_events = [
        (event["EventType"], event["Reason"], event["Message"])
        for event in case.answered["result2"]
    ]
    theirs_totals = case.answered["endpoints"].get(info["ServiceKey"], {}).get(info["AddressType"])
    return Answers(
        (*_written(result.slices), events, result.totals),
        (*_theirs_written(case), theirs_events, theirs_totals),
    )


def _remove_hints(case: Case) -> Answers:
    return Answers(_written(remove_hints(_given_slices(case.given["si"]))), _theirs_written(case))


def _set_nodes(case: Case) -> Answers:
    ours = cpu_ratios(read_list(Node, case.given["nodes"])).ratios
    return Answers(ours, case.answered.get("ratios"))


def _get_allocations(case: Case) -> Answers:
    ours = zone_bounds(case.given.get("ratios"), case.given["numEndpoints"])
    if isinstance(ours, Infeasible):
        return Answers(ours.message, case.answered.get("result1", {}).get("Message"))
    theirs = {
        zone: Bounds(allocation["desired"], allocation["maximum"])
        for zone, allocation in case.answered["result0"].items()
    }
    return Answers(ours, theirs)


def _lend(case: Case) -> Answers:
    targets = {
        zone: allocation["desired"] for zone, allocation in case.given["allocations"].items()
    }
    ours = lend(targets, case.given["allocatedHintsByZone"])
    return Answers(ours, (case.answered["result0"], case.answered["result1"]))


def _node_ready(case: Case) -> Answers:
    return Answers(read(Node, case.given["node"]).is_ready, case.answered["result0"])


def _node_excluded(case: Case) -> Answers:
    node = read(Node, {"metadata": {"labels": case.given.get("labels", {})}})
    return Answers(node.is_excluded, case.answered["result0"])


def _endpoint_ready(case: Case) -> Answers:
    return Answers(read(Endpoint, case.given["endpoint"]).is_ready, case.answered["result0"])


def _ready_endpoints(case: Case) -> Answers:
    endpoints = read_list(Endpoint, case.given.get("endpoints"))
    ours = slice_facts(EndpointSlice(endpoints=endpoints)).ready
    return Answers(ours, case.answered["result0"])


def _with_address_type(case: Case) -> Answers:
    ours = disabled_event(case.given["addressType"], case.given["s"]).message
    return Answers(ours, case.answered["result0"])


JUDGES: dict[str, dict[str, Judge]] = {
    "trafficdist": {"ReconcileHints": _reconcile_hints},
    "topologycache": {
        "TopologyCache.AddHints": _add_hints,
        "TopologyCache.SetNodes": _set_nodes,
        "TopologyCache.getAllocations": _get_allocations,
        "RemoveHintsFromSlices": _remove_hints,
        "getGivingAndReceivingZones": _lend,
        "isNodeReady": _node_ready,
        "hasExcludedLabels": _node_excluded,
        "EndpointReady": _endpoint_ready,
        "numReadyEndpoints": _ready_endpoints,
        "FormatWithAddressType": _with_address_type,
    },
}


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_hints_are_those_of_kubernetes(group: str, function: str) -> None:
    """Hints, of trafficDistribution and of the mode Auto, are those of the controller."""
    compare(group, function, JUDGES[group][function])


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged(JUDGES)
