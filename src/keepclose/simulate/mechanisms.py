"""The mechanisms whose churn can be compared, each with and without what keeps it calm.

Three things keep an allocation calm (KEP-2004): it starts and ends at different numbers of
endpoints (padding), it stays as it is while no zone is overloaded (lazy rebalance), and endpoints
keep the zone that they serve already (the previous assignment). Here each can be taken away.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    PREFER_SAME_ZONE,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
)
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import Heuristic, Matrix, Refusal, ZoneDemand
from keepclose.routing.subsets import Approach, SubsetMode, SubsetOptions, decide_subsets
from keepclose.slices.settings import Settings
from keepclose.testing.builders import service

_GATES: Final = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
)
_CUSTOM: Final = "keepclose.dev/Compared"


class Mechanism(msgspec.Struct, frozen=True):
    """A Service that asks for a mechanism, and a controller set up for it."""

    name: str
    about: str
    service: Service
    settings: Settings = Settings(gates=_GATES)
    remembers: bool = True
    """Whether the hints of the step before are seen by the next."""


class LocalHints(msgspec.Struct, frozen=True):
    """The allocator of subsetting as a heuristic: hints instead of slices of their own."""

    padding: int = SubsetOptions().padding
    lazy: bool = True

    def allocate(self, demand: ZoneDemand) -> Matrix | Refusal:
        """Return how many endpoints of each zone serve each zone, or why none are allocated."""
        active = bool(demand.written)
        placed: dict[str, dict[str, int]] = {}
        for zone, row in demand.written.items():
            for served, number in row.items():
                placed.setdefault(served, {})[zone] = number
        options = SubsetOptions(padding=self.padding)
        if active and not self.lazy:
            # An allocation made anew at every look still ends where the padding says.
            zones = max(1, sum(share > 0 for share in demand.shares.values()))
            start = float(options.start_per_zone) * zones - self.padding + min(1, self.padding)
            options = replace(options, padding=0, start_per_zone=max(start, 1.0) / zones)
            active, placed = False, {}
        decision = decide_subsets(
            approach=Approach.PREFER,
            shares=demand.shares,
            located=demand.endpoints,
            placed=placed,
            active=active,
            options=options,
        )
        if decision.mode is SubsetMode.RANDOM:
            return Refusal(decision.reasons[-1])
        return decision.target


def _mode_auto() -> Service:
    return service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})


def _subsets() -> Service:
    return service(annotations={SUBSETTING_ANNOTATION: Approach.PREFER.value})


def _hinted(heuristic: Heuristic) -> tuple[Service, Settings]:
    settings = Settings(gates=_GATES, heuristics={_CUSTOM: heuristic})
    return service(traffic_distribution=_CUSTOM), settings


def _list_mechanisms() -> tuple[Mechanism, ...]:
    no_padding = Settings(gates=_GATES, subsets=SubsetOptions(padding=0))
    return (
        Mechanism("none", "no mechanism: every client uses every endpoint", service()),
        Mechanism(
            "same-zone",
            "spec.trafficDistribution: PreferSameZone",
            service(traffic_distribution=PREFER_SAME_ZONE),
        ),
        Mechanism("auto", "topology mode Auto", _mode_auto()),
        Mechanism(
            "auto-forgetful",
            "topology mode Auto without the previous assignment",
            _mode_auto(),
            remembers=False,
        ),
        Mechanism("subsetting", "slices by zone, with padding and lazy rebalance", _subsets()),
        Mechanism("subsetting-unpadded", "slices by zone without padding", _subsets(), no_padding),
        Mechanism(
            "local", "local by hints, with padding and lazy rebalance", *_hinted(LocalHints())
        ),
        Mechanism(
            "local-unpadded", "local by hints without padding", *_hinted(LocalHints(padding=0))
        ),
        Mechanism(
            "local-eager", "local by hints without lazy rebalance", *_hinted(LocalHints(lazy=False))
        ),
        Mechanism(
            "local-forgetful",
            "local by hints without padding, lazy rebalance and the previous assignment",
            *_hinted(LocalHints(padding=0, lazy=False)),
            remembers=False,
        ),
        Mechanism("balanced", "keepclose.dev/Balanced", *_hinted(BALANCED)),
        Mechanism(
            "balanced-forgetful",
            "keepclose.dev/Balanced without the previous assignment",
            *_hinted(BALANCED),
            remembers=False,
        ),
    )


MECHANISMS: Final = MappingProxyType({one.name: one for one in _list_mechanisms()})
