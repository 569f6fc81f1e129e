"""The unit tables of the EndpointSlice mirroring controller, asked of our mirroring."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keepclose.model.addresses import family_of
from keepclose.model.endpointslice.types import (
    Endpoint,
    EndpointAddress,
    EndpointPort,
    Endpoints,
    EndpointSlice,
)
from keepclose.model.service.types import Service
from keepclose.slices.mirroring import (
    mirrored_endpoint,
    mirrored_slice,
    plan_mirroring,
    should_mirror,
)
from support.real.slice_writes import as_write, unordered
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


def _should_mirror(case: Case) -> Answers:
    return Answers(
        should_mirror(read(Endpoints, case.given["endpoints"])), case.answered["result0"]
    )


def _reconcile(case: Case) -> Answers:
    given = case.given
    existing = read_list(EndpointSlice, given.get("existing"))
    names = {each.metadata.name: f"{index:03}" for index, each in enumerate(existing)}
    mirrored = plan_mirroring(
        read(Endpoints, given["endpoints"]),
        Service(),
        existing=[
            replace(each, metadata=replace(each.metadata, name=names[each.metadata.name]))
            for each in existing
        ],
        max_per_subset=given["max"],
    )
    plan = mirrored.plan
    # The API server fills in what Endpoints of some tests leave out, and so do we.
    subsets = given["endpoints"].get("subsets", [])
    is_whole = all("protocol" in port for subset in subsets for port in subset.get("ports", ()))
    ours = [as_write("create", each, with_ports=is_whole) for each in plan.create]
    ours += [as_write("update", each, with_ports=is_whole) for each in plan.update]
    ours += [as_write("delete", each) for each in plan.delete]
    theirs = []
    for action in case.answered.get("actions", [])[len(given.get("actions", ())) :]:
        if action["resource"]["Resource"] != "endpointslices":
            continue
        written = read(EndpointSlice, action.get("object", {}))
        name = names.get(action.get("name") or written.metadata.name, "")
        written = replace(written, metadata=replace(written.metadata, name=name))
        theirs.append(as_write(action["verb"], written, with_ports=is_whole))
    return Answers(unordered(ours), unordered(theirs))


def _new_slice(case: Case) -> Answers:
    ours = mirrored_slice(
        read(Endpoints, case.given["endpoints"]),
        address_type=case.given["addrType"],
        ports=read_list(EndpointPort, case.given.get("ports")),
    )
    theirs = read(EndpointSlice, case.answered["result0"])
    # A slice that has a name already is taken over later.
    meta = replace(theirs.metadata, name="", generate_name=ours.metadata.generate_name)
    return Answers(ours, replace(theirs, metadata=meta))


def _endpoint(case: Case) -> Answers:
    address = read(EndpointAddress, case.given["address"])
    family = family_of(address.ip)
    ours = None if family is None else mirrored_endpoint(address, ready=case.given["ready"])
    answered = case.answered
    theirs = read(Endpoint, answered["result0"]) if "result0" in answered else None
    return Answers((ours, family), (theirs, answered.get("result1")))


JUDGES: dict[str, dict[str, Judge]] = {
    "mirroring": {
        "Controller.shouldMirror": _should_mirror,
        "reconciler.reconcile": _reconcile,
        "newEndpointSlice": _new_slice,
        "addressToEndpoint": _endpoint,
    },
}


@pytest.mark.parametrize(("group", "function"), pairs(JUDGES))
def test_mirroring_is_that_of_kubernetes(group: str, function: str) -> None:
    """Endpoints written by hand become the slices that the mirroring controller makes of them."""
    compare(group, function, JUDGES[group][function])


def test_every_recorded_function_is_compared() -> None:
    """Nothing that is recorded is left out without a reason."""
    check_all_judged(JUDGES)
