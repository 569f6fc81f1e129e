"""Small clusters for replays: one Service, its pods by node, and scenarios as files would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepclose.advise.inventory import Inventory
from keepclose.advise.replaying.mechanism_figures import MechanismRun
from keepclose.advise.replaying.mechanisms import UnknownMechanism, choose_mechanisms
from keepclose.advise.replaying.replay import Replay, replay_scenario
from keepclose.advise.replaying.replay_start import ReplayObjects
from keepclose.advise.replaying.scenario import ReplayScenario
from keepclose.advise.replaying.scenario_reading import read_scenario
from keepclose.cli.options import parse_duration
from keepclose.heuristics.discovery import find_heuristics
from keepclose.simulate.cluster_objects import cluster_node, cluster_pod, web_service
from keepclose.slices.settings import PlannerSettings

THREE = {"n1": "zone-a", "n2": "zone-b", "n3": "zone-c"}
SETTINGS = PlannerSettings(heuristics=find_heuristics())


def cluster_of(
    nodes: Mapping[str, str], pods: Sequence[str], *, distribution: str | None = "PreferSameZone"
) -> ReplayObjects:
    """Return nodes by zone, and one pod, web-1 and so on, for each of the named nodes."""
    return ReplayObjects(
        Inventory.of(
            [
                *(cluster_node(name, zone) for name, zone in nodes.items()),
                *(
                    cluster_pod(f"web-{number}", name, ip=f"10.0.{number >> 8}.{number & 255}")
                    for number, name in enumerate(pods, 1)
                ),
                web_service(traffic_distribution=distribution),
            ]
        )
    )


def scenario_of(**raw: Any) -> ReplayScenario:
    """Return a scenario from the fields of a file."""
    scenario = read_scenario(raw, parse_duration=parse_duration)
    assert isinstance(scenario, ReplayScenario), scenario
    return scenario


def replay_of(objects: ReplayObjects, *mechanisms: str, seed: int = 0, **raw: Any) -> Replay:
    """Return the replay of a scenario with these mechanisms, by default the Service as it is."""
    chosen = choose_mechanisms(mechanisms or ("as-is",))
    assert not isinstance(chosen, UnknownMechanism), chosen
    result = replay_scenario(objects, scenario_of(**raw), chosen, settings=SETTINGS, seed=seed)
    assert isinstance(result, Replay), result
    return result


def run_of(objects: ReplayObjects, mechanism: str = "as-is", **raw: Any) -> MechanismRun:
    """Return what one mechanism does in a scenario."""
    return replay_of(objects, mechanism, **raw).runs[0]


def events_of(replay: Replay) -> list[tuple[float, str]]:
    """Return what is said to happen, with the times."""
    return [(step.at, note) for step in replay.played.steps for note in step.notes]


def sizes_of(run: MechanismRun) -> dict[float, int]:
    """Return how many ready endpoints there are after each write, by its time."""
    return {
        sync.at: sum(
            bool(endpoint.is_ready)
            for endpoint_slice in sync.slices
            for endpoint in endpoint_slice.endpoints
        )
        for sync in run.syncs
    }
