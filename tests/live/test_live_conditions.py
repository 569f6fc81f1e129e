"""Status conditions of Services on a running cluster (KEP-4444): each reason, once, and no more.

Accepted says whether the value can be followed, Programmed whether the hints are there.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from keepclose.kube.client import PatchType
from keepclose.kube.requests import SERVICES
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.well_known import (
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    TRAFFIC_DISTRIBUTION_ANNOTATION,
)
from keepclose.routing.balanced import BALANCED
from support.controllers import World
from support.live.sights import POST, PUT, STATUS, conditions, quick

ACCEPTED, PROGRAMMED = "TrafficDistributionAccepted", "TrafficDistributionProgrammed"
FIELD = "spec.trafficDistribution"
ANNOTATION = f"metadata.annotations[{TRAFFIC_DISTRIBUTION_ANNOTATION}]"
MODE = f"metadata.annotations[{TOPOLOGY_MODE_ANNOTATION}]"
BALANCED_VALUE = "keepclose.dev/Balanced"
GATES = FeatureGates().with_gates(
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS,
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
)
HEURISTICS = {BALANCED_VALUE: BALANCED}
REFUSED = ("False", "NotAccepted", "no hints are written for this value")
LONG_AGO = "2020-02-02T02:02:02Z"
Said = tuple[str, str, str]


def governs(value: str, path: str = FIELD) -> Said:
    """Return what Accepted says of a value that is followed."""
    return ("True", "Accepted", f"{path}: {value} governs")


def hinted(count: int) -> Said:
    """Return what Programmed says when all is well."""
    return ("True", "HintsPopulated", f"all {count} ready endpoints are hinted")


@pytest.fixture
async def three_zones(cluster: World) -> World:
    """Three zones of one node each, and a pod on each."""
    for number in range(3):
        await cluster.add_node(f"n{number}", f"zone-{'abc'[number]}")
        await cluster.add_pod(f"p{number}", f"n{number}", ip=f"10.0.0.{number + 1}")
    return cluster


async def test_each_reason_is_written_once_and_never_again(three_zones: World) -> None:
    """A change of the wish or of the cluster costs one write of the status, rest costs none."""
    cluster = three_zones
    await cluster.add_service()

    async def wish(value: str | None, **annotations: str | None) -> None:
        notes = {
            TOPOLOGY_MODE_ANNOTATION: annotations.get("mode"),
            TRAFFIC_DISTRIBUTION_ANNOTATION: annotations.get("custom"),
            SUBSETTING_ANNOTATION: annotations.get("subsets"),
        }
        patch = {"metadata": {"annotations": notes}, "spec": {"trafficDistribution": value}}
        await cluster.change(SERVICES, "web", patch)

    async with cluster.controlled(quick(GATES, heuristics=HEURISTICS)) as controller:

        async def see(want: tuple[Said, Said] | None, *slices: str) -> None:
            """Compare conditions and writes, then touch the Service and see nothing written."""
            await cluster.settle(controller)
            names = (ACCEPTED, PROGRAMMED)
            found = await conditions(cluster)
            assert found == ({} if want is None else dict(zip(names, want, strict=True)))
            assert cluster.wire.take() == [*slices, STATUS]
            before = await cluster.conditions()
            for touch in ("yes", None):
                await cluster.change(SERVICES, "web", {"metadata": {"labels": {"touch": touch}}})
                await cluster.settle(controller)
            # The labels of a Service are on its slices too.
            assert cluster.wire.take() == [PUT, PUT]
            assert await cluster.conditions() == before

        await cluster.settle(controller)
        assert (await conditions(cluster), cluster.wire.take()) == ({}, [POST])
        await wish("PreferClose")
        await see((governs("PreferClose"), hinted(3)), PUT)
        await wish("PreferSameZone")
        await see((governs("PreferSameZone"), hinted(3)))
        await wish("PreferSameZone", mode="Auto")
        ignored = f"{FIELD}: PreferSameZone is ignored because {MODE} takes precedence"
        overridden = ("False", "OverriddenByAnnotation", f"{MODE} takes precedence")
        await see((("True", "Accepted", ignored), overridden))
        await wish("PreferSameZone", subsets="Require")
        other = f"metadata.annotations[{SUBSETTING_ANNOTATION}]"
        ignored = f"{FIELD}: PreferSameZone is ignored because {other} takes precedence"
        overridden = ("False", "OverriddenByAnnotation", f"{other} takes precedence")
        await cluster.settle(controller)
        assert await conditions(cluster) == {
            ACCEPTED: ("True", "Accepted", ignored),
            PROGRAMMED: overridden,
        }
        assert cluster.wire.take().count(STATUS) == 1
        await wish("PreferSameNode", mode="Disabled")
        await cluster.settle(controller)
        assert cluster.wire.take().count(STATUS) == 1
        want = {ACCEPTED: governs("PreferSameNode"), PROGRAMMED: hinted(3)}
        assert await conditions(cluster) == want
        await wish("PreferSameNode", custom="example.dev/Unknown")
        unknown = (
            f"{ANNOTATION}: 'example.dev/Unknown' is treated as absent because "
            "no heuristic of that name is registered"
        )
        await see((("False", "UnsupportedValue", unknown), REFUSED), PUT)
        await wish(None, custom=BALANCED_VALUE)
        await see((governs(BALANCED_VALUE, ANNOTATION), hinted(3)), PUT)
        await wish(None)
        await see(None, PUT)


async def test_missing_topology_and_missing_endpoints(three_zones: World) -> None:
    """Programmed follows the nodes and the pods; Accepted stays, with the time it came."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameNode")
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == [POST, STATUS]
        status = "True"

        async def see(want: Said, *writes: str) -> None:
            """Compare conditions and writes; times move with the status and with nothing else."""
            nonlocal status
            await cluster.settle(controller)
            assert await conditions(cluster) == {
                ACCEPTED: governs("PreferSameNode"),
                PROGRAMMED: want,
            }
            times = [one.last_transition_time == LONG_AGO for one in await cluster.conditions()]
            assert times == [True, want[0] == status]
            status = want[0]
            assert cluster.wire.take() == [*writes]
            await make_old()

        async def make_old() -> None:
            """Have all times long ago; nobody minds."""
            body = [
                {
                    "type": one.type,
                    "status": one.status,
                    "reason": one.reason,
                    "message": one.message,
                    "lastTransitionTime": LONG_AGO,
                }
                for one in await cluster.conditions()
            ]
            await cluster.client.patch(
                SERVICES,
                "web",
                {"status": {"conditions": body}},
                namespace=cluster.namespace,
                subresource="status",
            )
            await cluster.settle(controller)

        await make_old()

        lack = "{} of {} ready endpoints lack the zone or node to be hinted with"
        await cluster.label_node("n0", None)
        await see(("False", "MissingTopology", lack.format(1, 3)), PUT, STATUS)
        await cluster.label_node("n1", None)
        await see(("False", "MissingTopology", lack.format(2, 3)), PUT, STATUS)
        await cluster.set_pod("p0", ip="10.0.0.1", ready=False)
        await see(("False", "MissingTopology", lack.format(1, 2)), PUT, STATUS)
        await cluster.label_node("n1", "zone-b")
        await see(hinted(2), PUT, STATUS)
        for number in (1, 2):
            await cluster.set_pod(f"p{number}", ip=f"10.0.0.{number + 1}", ready=False)
            if number == 1:
                await see(hinted(1), PUT, STATUS)
        await see(("False", "NoEndpoints", "there is no ready endpoint"), PUT, STATUS)
        await cluster.end_pod("p1")
        await see(("False", "NoEndpoints", "there is no ready endpoint"), PUT)
        await cluster.set_pod("p2", ip="10.0.0.3")
        await see(hinted(1), PUT, STATUS)


async def test_what_could_not_be_written_or_allocated_is_told(three_zones: World) -> None:
    """Hints that are not there are not said to be, and the reason says whose fault that is."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone")
    settings = replace(quick(GATES, heuristics=HEURISTICS), most_retries=2)
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        assert (await conditions(cluster))[PROGRAMMED] == hinted(3)
        cluster.wire.refused = "PUT"
        cluster.wire.take()
        await cluster.label_node("n0", "zone-b")
        await cluster.settle(controller)
        [piece] = await cluster.slices()
        failed = (
            f"failed to update {piece.metadata.name} EndpointSlice for Service "
            f"{cluster.namespace}/web: wire: cut before the request was served"
        )
        assert (await conditions(cluster))[PROGRAMMED] == ("False", "WriteFailed", failed)
        assert cluster.wire.take() == [PUT, STATUS, PUT, PUT]
        cluster.wire.refused = ""
        await cluster.set_pod("p2", ip="10.0.0.3", ready=False)
        await cluster.settle(controller)
        assert (await conditions(cluster))[PROGRAMMED] == hinted(2)
        assert cluster.wire.take() == [PUT, STATUS]
        # NB: Balanced would keep the written hints, with which all clients use both endpoints.
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        notes = {TRAFFIC_DISTRIBUTION_ANNOTATION: BALANCED_VALUE}
        await cluster.change(SERVICES, "web", {"metadata": {"annotations": notes}})
        await cluster.settle(controller)
        want = ("False", "NotAllocated", "the heuristic gave no allocation")
        assert (await conditions(cluster))[PROGRAMMED] == want


@pytest.mark.parametrize(
    ("value", "gate"),
    [
        pytest.param("PreferClose", Gate.SERVICE_TRAFFIC_DISTRIBUTION, id="the field"),
        pytest.param("PreferSameNode", Gate.PREFER_SAME_TRAFFIC_DISTRIBUTION, id="the value"),
    ],
)
async def test_a_closed_gate_is_told_and_an_opened_one_too(
    three_zones: World, value: str, gate: Gate
) -> None:
    """Restarts with another gate write the conditions, a further one with the same does not."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution=value)
    message = f"{FIELD}: {value} is ignored because feature gate {gate} is off"
    closed = {ACCEPTED: ("False", "FeatureDisabled", message), PROGRAMMED: REFUSED}
    opened = {ACCEPTED: governs(value), PROGRAMMED: hinted(3)}
    for gates, want, want_writes in (
        (GATES.without(gate), closed, [POST, STATUS]),
        (GATES, opened, [PUT, STATUS]),
        (GATES, opened, []),
        (GATES.without(gate), closed, [PUT, STATUS]),
    ):
        async with cluster.controlled(quick(gates)) as controller:
            await cluster.settle(controller)
            assert await conditions(cluster) == want
            assert cluster.wire.take() == want_writes


async def test_a_prefix_keeps_two_implementations_apart(three_zones: World) -> None:
    """Under a prefix only conditions of that prefix are written and removed, whoever else does."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
    plain = {ACCEPTED: governs("PreferSameZone"), PROGRAMMED: hinted(3)}
    assert await conditions(cluster) == plain
    settings = quick(GATES, condition_prefix="keepclose.dev/")
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        ours = {f"keepclose.dev/{name}": said for name, said in plain.items()}
        assert await conditions(cluster) == {**plain, **ours}
        assert cluster.wire.take() == [STATUS]
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": None}})
        await cluster.settle(controller)
        assert await conditions(cluster) == plain
        assert cluster.wire.take() == [PUT, STATUS]
        # Whoever removes ours has them back at once.
        await cluster.change(SERVICES, "web", {"spec": {"trafficDistribution": "PreferSameZone"}})
        await cluster.settle(controller)
        cluster.wire.take()
        await cluster.client.patch(
            SERVICES,
            "web",
            {"status": {"conditions": None}},
            namespace=cluster.namespace,
            subresource="status",
        )
        await cluster.settle(controller)
        assert await conditions(cluster) == ours
        assert cluster.wire.take() == [STATUS]


async def test_conditions_go_with_the_gate_and_cost_nothing_without(three_zones: World) -> None:
    """A controller with the gate off removes what another left, and writes nothing else."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone")
    await cluster.add_service("plain")
    foreign = {"type": "example.dev/Other", "status": "True", "reason": "So", "message": ""}
    foreign["lastTransitionTime"] = LONG_AGO
    await cluster.client.patch(
        SERVICES,
        "web",
        {"status": {"conditions": [foreign]}},
        namespace=cluster.namespace,
        subresource="status",
    )
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {ACCEPTED, PROGRAMMED, "example.dev/Other"}
    without = quick(GATES.without(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS))
    async with cluster.controlled(without) as controller:
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {"example.dev/Other"}
        assert cluster.wire.take() == [STATUS]
        # Another process, not yet ended, may write them once more.
        ours = {**foreign, "type": PROGRAMMED}
        await cluster.client.patch(
            SERVICES,
            "web",
            {"status": {"conditions": [foreign, ours]}},
            namespace=cluster.namespace,
            subresource="status",
        )
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {"example.dev/Other"}
        assert cluster.wire.take() == [STATUS]
    async with cluster.controlled(without) as controller:
        await cluster.settle(controller)
        assert cluster.wire.take() == []


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"trafficDistribution": None}, id="the field is removed"),
        pytest.param({"selector": None}, id="the selector is removed"),
        pytest.param(
            {"type": "ExternalName", "externalName": "example.dev", "clusterIP": None},
            id="the type leads elsewhere",
        ),
    ],
)
@pytest.mark.parametrize("is_running", [True, False], ids=["meanwhile", "while it was away"])
async def test_conditions_go_with_what_they_speak_of(
    three_zones: World, spec: dict[str, str | None], *, is_running: bool
) -> None:
    """They are removed whether or not the controller ran when their cause went."""
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {ACCEPTED, PROGRAMMED}
        if is_running:
            await cluster.change(SERVICES, "web", {"spec": spec})
            await cluster.settle(controller)
    if not is_running:
        await cluster.change(SERVICES, "web", {"spec": spec})
        async with cluster.controlled(quick(GATES)) as controller:
            await cluster.settle(controller)
    assert await conditions(cluster) == {}


async def test_the_page_removes_conditions_by_hand(three_zones: World) -> None:
    """The patch of the page about going back takes ours away, and leaves those of others."""
    page = (Path(__file__).parents[2] / "docs/howto/rollback.md").read_text()
    [text] = re.findall(r"--subresource=status -p '(.*?)'", page, re.DOTALL)
    cluster = three_zones
    await cluster.add_service(trafficDistribution="PreferSameZone")
    async with cluster.controlled(quick(GATES)) as controller:
        await cluster.settle(controller)
    said = {"status": "True", "reason": "So", "message": "", "lastTransitionTime": LONG_AGO}
    names = (ACCEPTED, PROGRAMMED, "TrafficDistributionHonored", "example.dev/Other")
    body = {"status": {"conditions": [{"type": name, **said} for name in names]}}
    for patch, type_ in ((body, PatchType.MERGE), (msgspec.json.decode(text), PatchType.STRATEGIC)):
        await cluster.client.patch(
            SERVICES,
            "web",
            patch,
            namespace=cluster.namespace,
            type=type_,
            subresource="status",
        )
    assert set(await conditions(cluster)) == {"example.dev/Other"}
