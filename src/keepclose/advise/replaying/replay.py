"""A replay: one scenario, played once, and each mechanism taken through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from keepclose.advise.replaying.mechanism_figures import MechanismRun
from keepclose.advise.replaying.mechanism_run import run_mechanism
from keepclose.advise.replaying.mechanisms import ReplayMechanism
from keepclose.advise.replaying.replay_start import (
    ReplayObjects,
    ReplayStart,
    begin_replay,
    zones_of_nodes,
)
from keepclose.advise.replaying.scenario import ReplayScenario
from keepclose.advise.replaying.scenario_reading import ScenarioProblem
from keepclose.advise.replaying.scenario_run import PlayedScenario, play_scenario
from keepclose.slices.settings import PlannerSettings


class Replay(msgspec.Struct, frozen=True):
    """A scenario that was played, and what each mechanism did."""

    scenario: ReplayScenario
    start: ReplayStart
    played: PlayedScenario
    runs: tuple[MechanismRun, ...]
    seed: int

    @property
    def zones(self) -> list[str]:
        """The zones of the nodes at the start."""
        return zones_of_nodes(self.start.nodes)


def replay_scenario(
    objects: ReplayObjects,
    scenario: ReplayScenario,
    mechanisms: Sequence[ReplayMechanism],
    *,
    settings: PlannerSettings,
    seed: int = 0,
    progress: Callable[[int], object] = lambda _: None,
) -> Replay | list[ScenarioProblem]:
    """Return what each mechanism does, or what is wrong with the scenario for these objects.

    Services must have been admitted. `progress` takes the number of mechanisms done so far.
    """
    start = begin_replay(objects, scenario, settings)
    if isinstance(start, list):
        return start
    played = play_scenario(start, scenario, seed=seed)
    if played.problem:
        fix = "let it have a shorter duration, fewer events or fewer pods"
        return [ScenarioProblem("events", played.problem, fix)]
    runs = []
    for number, mechanism in enumerate(mechanisms):
        runs.append(run_mechanism(mechanism, start, scenario, played, settings))
        progress(number + 1)
    return Replay(scenario, start, played, tuple(runs), seed)
