"""The mechanisms that a replay compares: the Service as it is, or switched to another one.

A Service is switched by `mechanism_changes`, as advice switches it, with the feature gates that the
mechanism needs. What excludes a mechanism, such as topologyKeys, stays; its label then says what
governs instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.advise.mechanism_changes import Mechanism, switch_to, with_mechanism
from keepclose.advise.replaying.scenario_reading import suggest_name
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRAFFIC_DISTRIBUTION_ANNOTATION, WEIGHTS_ANNOTATION
from keepclose.routing.strategy import StrategyName, choose_strategy
from keepclose.slices.settings import PlannerSettings


class ReplayMechanism(msgspec.Struct, frozen=True):
    """A way to route: the mechanism to switch to, and annotations beside it."""

    name: str
    about: str
    switches_to: Mechanism | None = None
    """None for the Service as it is."""
    annotations: dict[str, str] = {}
    label: str = ""
    """What governs then, as strategies are named; "" for the name."""

    def apply(self, service: Service, settings: PlannerSettings) -> tuple[Service, PlannerSettings]:
        """Return the Service and the settings with this mechanism."""
        if self.switches_to is None:
            return service, settings
        enabled = with_mechanism(self.switches_to, settings)
        if enabled is None:
            return service, settings
        change = switch_to(self.switches_to, service, enabled)
        changed = service if change is None else change.service
        annotations = {**changed.metadata.annotations, **self.annotations}
        return replace(
            changed, metadata=replace(changed.metadata, annotations=annotations)
        ), enabled

    def label_for(self, service: Service, settings: PlannerSettings) -> str:
        """Return the name in tables: with what governs, unless that is what the name says."""
        strategy = choose_strategy(
            service,
            gates=settings.gates,
            default_subsetting=settings.subsets.default,
            heuristics=settings.heuristics,
        )
        governs = strategy.label.rpartition("/")[2]
        if strategy.name is StrategyName.NONE:
            governs = "none"
        if governs.lower() == (self.label or self.name).lower():
            return self.name
        return f"{self.name} ({governs})"


def _custom(name: str) -> ReplayMechanism:
    value = f"keepclose.dev/{name}"
    # Switched to Balanced, which makes room for a heuristic, and from there to the other one.
    return ReplayMechanism(
        name, value, Mechanism.BALANCED, {TRAFFIC_DISTRIBUTION_ANNOTATION: value}
    )


REPLAY_MECHANISMS: Final = (
    ReplayMechanism("as-is", "the Service as it is"),
    ReplayMechanism("none", "every client uses every endpoint", Mechanism.NONE),
    ReplayMechanism(
        "PreferSameZone", "spec.trafficDistribution: PreferSameZone", Mechanism.SAME_ZONE
    ),
    ReplayMechanism(
        "PreferSameNode", "spec.trafficDistribution: PreferSameNode", Mechanism.SAME_NODE
    ),
    ReplayMechanism("Auto", "topology mode Auto", Mechanism.AUTO),
    ReplayMechanism("Subsetting", "slices by zone", Mechanism.SUBSETTING),
    ReplayMechanism("Balanced", "keepclose.dev/Balanced", Mechanism.BALANCED),
    ReplayMechanism(
        "Weights",
        "keepclose.dev/Balanced with weights, on nodes that follow them",
        Mechanism.BALANCED,
        {WEIGHTS_ANNOTATION: "Enabled"},
        label="Balanced",
    ),
    *map(_custom, ("LocalShared", "LocalWeighted", "LocalOpt")),
)
"""All mechanisms that a replay knows."""
DEFAULT_MECHANISMS: Final = (
    "as-is",
    "none",
    "PreferSameZone",
    "PreferSameNode",
    "Auto",
    "Balanced",
)


class UnknownMechanism(msgspec.Struct, frozen=True):
    """A name that no mechanism has, and what was perhaps meant."""

    name: str
    fix: str


def choose_mechanisms(names: Iterable[str]) -> tuple[ReplayMechanism, ...] | UnknownMechanism:
    """Return the named mechanisms once each, in order; without names the default ones.

    Capitals do not matter, and the values of heuristics count as names.
    """
    known = {mechanism.name.lower(): mechanism for mechanism in REPLAY_MECHANISMS}
    known |= {each.about.lower(): each for each in REPLAY_MECHANISMS}
    chosen: dict[str, ReplayMechanism] = {}
    for name in list(names) or DEFAULT_MECHANISMS:
        mechanism = known.get(name.lower())
        if mechanism is None:
            all_names = [each.name for each in REPLAY_MECHANISMS]
            return UnknownMechanism(name, suggest_name(name, all_names, what="mechanisms"))
        chosen[mechanism.name] = mechanism
    return tuple(chosen.values())
