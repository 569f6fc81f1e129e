"""KEP-4444, Possible future expansions: status reporting and implementation-specific heuristics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from keepclose.kube.requests import SERVICES
from keepclose.model.gates import Gate, parse_gates
from keepclose.model.meta import Condition
from keepclose.routing.balanced import BALANCED
from keepclose.testing.api_server import PATIENCE, serving
from keepclose.testing.recording_writer import RecordingWriter
from support.controllers import World, world
from support.live.sights import STATUS, conditions, hints, quick
from support.proposals.proposalapis import ProposalApi
from support.proposals.proposalscenes import GATES, THREE_ZONES, UNEVEN, Scene, asking
from support.proposals.proposalworlds import add_two_zones
from support.proxies import cluster_of

ACCEPTED = "TrafficDistributionAccepted"
PROGRAMMED = "TrafficDistributionProgrammed"
HONORED = "TrafficDistributionHonored"
REPORTING = GATES.with_gates(
    Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS, Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
)
HEURISTICS = {"keepclose.dev/Balanced": BALANCED}


def statuses(found: Iterable[Condition]) -> dict[str, str]:
    """Return the status of each condition by type."""
    return {one.type: one.status for one in found}


async def test_the_controller_reports_by_conditions(two_zones: World) -> None:
    """The EndpointSlice controller updates the Service status with conditions."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(REPORTING)) as controller:
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {ACCEPTED, PROGRAMMED}
        assert STATUS in cluster.wire.take()


@pytest.mark.parametrize("value", ["PreferFar", "prefersamezone", "example.dev/Unknown"])
def test_accepted_is_false_for_values_that_are_not_supported(value: str) -> None:
    """Accepted is False for an unsupported or malformed preference."""
    plan = Scene(THREE_ZONES, UNEVEN).plan(asking(value), gates=REPORTING)
    (accepted, _) = plan.conditions
    assert (accepted.type, accepted.status) == (ACCEPTED, "False")
    assert value in accepted.message


@pytest.mark.parametrize("value", ["PreferClose", "PreferSameZone", "PreferSameNode"])
def test_accepted_is_true_for_values_that_are_supported(value: str) -> None:
    """Accepted is True if the controller recognizes the value as one that it supports."""
    plan = Scene(THREE_ZONES, UNEVEN).plan(asking(value), gates=REPORTING)
    assert statuses(plan.conditions)[ACCEPTED] == "True"


async def test_programmed_is_true_once_hints_are_populated(two_zones: World) -> None:
    """Programmed is True if hints were populated on the slices by trafficDistribution."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(REPORTING)) as controller:
        await cluster.settle(controller)
        assert hints(await cluster.slices()) == {"10.0.0.1": "zone-a", "10.0.0.2": "zone-b"}
        assert (await conditions(cluster))[PROGRAMMED][:2] == ("True", "HintsPopulated")


async def test_programmed_is_false_while_hints_are_not_populated(two_zones: World) -> None:
    """Programmed indicates whether there is configuration for the data plane; False if not."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    await cluster.label_node("n2", None)
    async with cluster.controlled(quick(REPORTING)) as controller:
        await cluster.settle(controller)
        found = await conditions(cluster)
        assert (found[ACCEPTED][0], found[PROGRAMMED][0]) == ("True", "False")
        await cluster.label_node("n2", "zone-b")
        await cluster.settle(controller)
        assert (await conditions(cluster))[PROGRAMMED][0] == "True"


async def test_no_acknowledgement_no_condition(two_zones: World) -> None:
    """Where the data plane acknowledges nothing, no condition denotes an acknowledgement."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(REPORTING)) as controller:
        await cluster.settle(controller)
        assert HONORED not in await conditions(cluster)


async def test_honored_confirms_what_the_data_plane_did(tmp_path: Path) -> None:
    """Honored confirms that the data plane received the hints and configured itself so."""
    async with serving(tmp_path, nodes=("n1", "n2")) as api, world(api) as cluster:
        await add_two_zones(cluster)
        await cluster.add_service(trafficDistribution="PreferClose")
        async with cluster_of(api) as seen, cluster.controlled(quick(REPORTING)):
            tells: dict[str, Any] = {
                "acknowledges": True,
                "acknowledge_every_s": 0.0,
                "families": ("IPv4",),
                "gates": REPORTING,
            }
            async with (
                seen.proxied("n1", writer=RecordingWriter(), **tells),
                seen.proxied("n2", writer=RecordingWriter(), **tells),
                asyncio.timeout(PATIENCE),
            ):
                # NB: no event tells that a status was written.
                while (await conditions(cluster)).get(HONORED, ("",))[0] != "True":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


async def test_other_implementations_prefix_their_conditions(two_zones: World) -> None:
    """Another implementation prefixes its condition types with its domain."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    settings = quick(REPORTING, condition_prefix="my.domain.io/")
    async with cluster.controlled(settings) as controller:
        await cluster.settle(controller)
        assert set(await conditions(cluster)) == {
            f"my.domain.io/{ACCEPTED}",
            f"my.domain.io/{PROGRAMMED}",
        }


async def test_prefixes_prevent_conflicts(two_zones: World) -> None:
    """With a prefix several control planes report without touching what others say."""
    cluster = two_zones
    await cluster.add_service(trafficDistribution="PreferClose")
    async with cluster.controlled(quick(REPORTING)) as controller:
        await cluster.settle(controller)
    ours = await conditions(cluster)
    async with cluster.controlled(quick(REPORTING, condition_prefix="my.domain.io/")) as controller:
        await cluster.settle(controller)
        found = await conditions(cluster)
        assert {name: found[name] for name in ours} == ours
        assert len(found) == 4


async def test_values_with_a_domain_are_taken(tmp_path: Path) -> None:
    """Implementations may support values of the form <domain>/<heuristicName>."""
    gates = parse_gates("TrafficDistributionCustomHeuristics=true")
    async with serving(tmp_path, gates=gates) as plain:
        api = ProposalApi(plain)
        reply = await api.post_service(trafficDistribution="keepclose.dev/Balanced")
        assert (reply.status, await api.distribution()) == (201, "keepclose.dev/Balanced")


async def test_values_without_a_domain_are_reserved(tmp_path: Path) -> None:
    """Heuristics without a domain prefix are reserved for standard values."""
    gates = parse_gates("TrafficDistributionCustomHeuristics=true")
    async with serving(tmp_path, gates=gates) as plain:
        reply = await ProposalApi(plain).post_service(trafficDistribution="Balanced")
        assert reply.status == 422
        assert 'Unsupported value: "Balanced"' in reply.message


async def test_the_heuristic_that_is_set_is_applied(tmp_path: Path) -> None:
    """Story: setting <domain>/<heuristicName> has the implementation apply that heuristic."""
    gates = parse_gates("TrafficDistributionCustomHeuristics=true")
    async with serving(tmp_path, gates=gates) as plain, world(plain) as cluster:
        await add_two_zones(cluster)
        for number in (3, 4, 5):
            await cluster.add_pod(f"p{number}", "n2", ip=f"10.0.0.{number}")
        await cluster.add_service(trafficDistribution="PreferClose")
        async with cluster.controlled(quick(REPORTING, heuristics=HEURISTICS)) as controller:
            await cluster.settle(controller)
            close = hints(await cluster.slices())
            value = {"spec": {"trafficDistribution": "keepclose.dev/Balanced"}}
            await cluster.change(SERVICES, "web", value)
            await cluster.settle(controller)
            balanced = hints(await cluster.slices())
    assert list(close.values()).count("zone-a") == 1
    # One endpoint cannot carry half of the traffic; the other zone lends it one.
    assert list(balanced.values()).count("zone-a") == 2
