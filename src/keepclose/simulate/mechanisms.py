"""The mechanisms whose churn can be compared, and the scenarios that they go through.

Three things keep an allocation stable (KEP-2004): it starts and ends at different numbers of
endpoints (padding), it stays as it is while no zone is overloaded (lazy rebalance), and endpoints
keep the zone that they serve already (the previous assignment). Each mechanism is listed with and
without them.

A scenario names events. `play` turns them into concrete nodes and pods by a seed, once, so that
every mechanism goes through the same steps. Pods are scheduled as in a real cluster: roughly even,
but not quite. The same scenario and seed always give the same steps.
"""

from __future__ import annotations

import random
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import (
    PREFER_SAME_ZONE,
    SUBSETTING_ANNOTATION,
    TOPOLOGY_MODE_ANNOTATION,
    WEIGHTS_ANNOTATION,
)
from keepclose.model.workload import Node, Pod
from keepclose.routing.balanced import BALANCED
from keepclose.routing.heuristics import Heuristic, Matrix, Refusal, ZoneDemand
from keepclose.routing.subsets import Approach, SubsetMode, SubsetOptions, decide_subsets
from keepclose.simulate.algorithms import ALGORITHMS, RunsWith
from keepclose.simulate.cluster_objects import cluster_node, cluster_pod, web_service
from keepclose.slices.settings import PlannerSettings

_GATES: Final = FeatureGates().with_gates(
    Gate.TOPOLOGY_AWARE_SUBSETTING, Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS
)
_CUSTOM: Final = "keepclose.dev/Compared"
SURGE: Final = 0.25
"""The share of pods that one step of a rolling update replaces: the default of Deployments."""
_ZONES = {"zone-a": 4, "zone-b": 3, "zone-c": 2}


class EventKind(StrEnum):
    """The kinds of events in a scenario."""

    START = "start"
    SCALE_UP = "scale up"
    SCALE_DOWN = "scale down"
    ROLLING_UPDATE = "rolling update"
    ZONE_LOSS = "zone loss"
    ZONE_RETURN = "zone return"
    NODE_LOSS = "node loss"
    NODE_RETURN = "node return"


class ScenarioEvent(msgspec.Struct, frozen=True):
    """One event; `count` is a number of pods, or of lost nodes, which are drawn at random."""

    kind: EventKind
    count: int = 1


class Scenario(msgspec.Struct, frozen=True):
    """An initial cluster, with its nodes by zone, and the events that follow."""

    name: str
    about: str
    zones: dict[str, int]
    endpoints: int
    events: tuple[ScenarioEvent, ...]


class ScenarioStep(msgspec.Struct, frozen=True):
    """One sync of a controller: all nodes, and the pods that were added and removed."""

    event: EventKind
    nodes: tuple[Node, ...]
    added: tuple[Pod, ...] = ()
    removed: tuple[NamespacedName, ...] = ()


_UP, _DOWN, _ROLL = EventKind.SCALE_UP, EventKind.SCALE_DOWN, EventKind.ROLLING_UPDATE
_OUTAGE = (
    ScenarioEvent(EventKind.ZONE_LOSS),
    ScenarioEvent(EventKind.ZONE_RETURN),
    ScenarioEvent(_ROLL),
)
_NODE_OUTAGE = (ScenarioEvent(EventKind.NODE_LOSS), ScenarioEvent(EventKind.NODE_RETURN))

SCENARIOS: Final = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario(
                "autoscaling",
                "pods come and go around the starting threshold of subsetting",
                _ZONES,
                8,
                tuple(
                    ScenarioEvent(_UP, change) if change > 0 else ScenarioEvent(_DOWN, -change)
                    for _ in range(6)
                    for change in (1, 1, 2, -1, 1, -2, -1, -1)
                ),
            ),
            Scenario(
                "rolling-updates",
                "every pod is replaced, five times over",
                _ZONES,
                40,
                (ScenarioEvent(_ROLL),) * 5,
            ),
            Scenario(
                "zone-outages",
                "a zone is lost and comes back, and the next rollout spreads the pods again",
                _ZONES,
                40,
                _OUTAGE * 3,
            ),
            Scenario(
                "node-outages",
                "nodes are lost one after the other and come back",
                _ZONES,
                40,
                _NODE_OUTAGE * 10,
            ),
            Scenario(
                "mixed",
                "scaling in both directions, rollouts, and losses of nodes and of a zone",
                _ZONES,
                60,
                (
                    *(ScenarioEvent(_UP, 5) for _ in range(4)),
                    ScenarioEvent(_ROLL),
                    *_NODE_OUTAGE,
                    *(ScenarioEvent(_DOWN, 10) for _ in range(6)),
                    *_OUTAGE,
                    *(ScenarioEvent(_DOWN, 4) for _ in range(4)),
                    *(ScenarioEvent(_UP, 3) for _ in range(6)),
                    *_NODE_OUTAGE,
                    ScenarioEvent(_ROLL),
                ),
            ),
        )
    }
)


def play(scenario: Scenario, seed: int) -> tuple[ScenarioStep, ...]:
    """Return the steps of a scenario; the first one is the start. No nodes mean no pods."""
    state = _ClusterState(scenario, random.Random(seed))  # noqa: S311 - seeded, nothing secret
    for event in scenario.events:
        state.apply(event)
    return tuple(state.steps)


class _ClusterState:
    """The current state of the cluster, and the steps so far."""

    def __init__(self, scenario: Scenario, rng: random.Random) -> None:
        self.steps: list[ScenarioStep] = []
        self._rng = rng
        self._nodes = {
            name: cluster_node(name, zone)
            for zone, count in sorted(scenario.zones.items())
            for name in (f"{zone}-n{number}" for number in range(1, count + 1))
        }
        self._lost: dict[str, Node] = {}
        self._pods: dict[NamespacedName, Pod] = {}
        self._created = 0
        self._record_step(EventKind.START, added=self._schedule(scenario.endpoints))

    def apply(self, event: ScenarioEvent) -> None:
        match event.kind:
            case EventKind.SCALE_UP:
                self._record_step(event.kind, added=self._schedule(event.count))
            case EventKind.SCALE_DOWN:
                self._record_step(event.kind, removed=self._pick_pods(event.count))
            case EventKind.ROLLING_UPDATE:
                self._rolling_update()
            case EventKind.NODE_LOSS:
                names = sorted(self._nodes)
                self._lose_nodes(event.kind, self._rng.sample(names, min(event.count, len(names))))
            case EventKind.ZONE_LOSS:
                zones = sorted({node.zone for node in self._nodes.values()})
                zone = self._rng.choice(zones or [""])
                lost = [name for name, node in sorted(self._nodes.items()) if node.zone == zone]
                self._lose_nodes(event.kind, lost)
            case EventKind.ZONE_RETURN | EventKind.NODE_RETURN:
                self._nodes.update(self._lost)
                self._lost = {}
                self._record_step(event.kind)

    def _record_step(
        self,
        kind: EventKind,
        *,
        added: tuple[Pod, ...] = (),
        removed: tuple[NamespacedName, ...] = (),
    ) -> None:
        for key in removed:
            self._pods.pop(key)
        nodes = tuple(node for _, node in sorted(self._nodes.items()))
        self.steps.append(ScenarioStep(kind, nodes, added, removed))

    def _schedule(self, count: int) -> tuple[Pod, ...]:
        """Start pods, each on the emptier of two random nodes."""
        started: list[Pod] = []
        names = sorted(self._nodes)
        load = dict.fromkeys(names, 0)
        for pod in self._pods.values():
            load[pod.spec.node_name] = load.get(pod.spec.node_name, 0) + 1
        for _ in range(count if names else 0):
            drawn = (self._rng.choice(names), self._rng.choice(names))
            chosen = min(drawn, key=load.__getitem__)
            load[chosen] += 1
            self._created += 1
            number = self._created
            ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            started.append(cluster_pod(f"web-{number:05}", chosen, ip=ip))
        self._pods.update((pod.key, pod) for pod in started)
        return tuple(started)

    def _pick_pods(self, count: int) -> tuple[NamespacedName, ...]:
        keys = sorted(self._pods)
        return tuple(sorted(self._rng.sample(keys, min(count, len(keys)))))

    def _rolling_update(self) -> None:
        old = sorted(self._pods)
        self._rng.shuffle(old)
        wave = max(1, int(len(old) * SURGE))
        for start in range(0, len(old), wave):
            removed = tuple(old[start : start + wave])
            self._record_step(EventKind.ROLLING_UPDATE, added=self._schedule(len(removed)))
            self._record_step(EventKind.ROLLING_UPDATE, removed=removed)

    def _lose_nodes(self, kind: EventKind, names: list[str]) -> None:
        for name in names:
            self._lost[name] = self._nodes.pop(name)
        removed = tuple(
            sorted(key for key, pod in self._pods.items() if pod.spec.node_name in names)
        )
        self._record_step(kind, removed=removed)
        if removed:
            self._record_step(kind, added=self._schedule(len(removed)))


class Mechanism(msgspec.Struct, frozen=True):
    """A Service that uses a mechanism, and the controller's settings for it."""

    name: str
    about: str
    service: Service
    settings: PlannerSettings = PlannerSettings(gates=_GATES)
    remembers: bool = True
    """Whether a step sees the hints of the step before."""
    algorithm: str = ""
    """The algorithm that a cluster runs for it; "" for one that is simulated only."""

    @property
    def runs_with(self) -> RunsWith:
        """Whether a cluster can run it today, and with which proxy."""
        return ALGORITHMS[self.algorithm].runs_with if self.algorithm else RunsWith.SIMULATOR


class LocalHints(msgspec.Struct, frozen=True):
    """The allocator of subsetting as a heuristic: hints instead of slices for each zone."""

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
            # An allocation that is computed again at every sync still ends where the padding says.
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


def _auto_service() -> Service:
    return web_service(annotations={TOPOLOGY_MODE_ANNOTATION: "Auto"})


def _subsetting_service() -> Service:
    return web_service(annotations={SUBSETTING_ANNOTATION: Approach.PREFER.value})


def _hinted(
    heuristic: Heuristic, annotations: dict[str, str] | None = None
) -> tuple[Service, PlannerSettings]:
    settings = PlannerSettings(gates=_GATES, heuristics={_CUSTOM: heuristic})
    return web_service(annotations=annotations, traffic_distribution=_CUSTOM), settings


def _list_mechanisms() -> tuple[Mechanism, ...]:
    no_padding = PlannerSettings(gates=_GATES, subsets=SubsetOptions(padding=0))
    return (
        Mechanism(
            "none",
            "no mechanism: every client uses every endpoint",
            web_service(),
            algorithm="original",
        ),
        Mechanism(
            "same-zone",
            "spec.trafficDistribution: PreferSameZone",
            web_service(traffic_distribution=PREFER_SAME_ZONE),
            algorithm="same-zone",
        ),
        Mechanism("auto", "topology mode Auto", _auto_service(), algorithm="kube-auto"),
        Mechanism(
            "auto-forgetful",
            "topology mode Auto without the previous assignment",
            _auto_service(),
            remembers=False,
        ),
        Mechanism(
            "subsetting",
            "slices by zone, with padding and lazy rebalance",
            _subsetting_service(),
            algorithm="local",
        ),
        Mechanism(
            "subsetting-unpadded",
            "slices by zone without padding",
            _subsetting_service(),
            no_padding,
            algorithm="local",
        ),
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
        Mechanism("balanced", "keepclose.dev/Balanced", *_hinted(BALANCED), algorithm="balanced"),
        Mechanism(
            "balanced-forgetful",
            "keepclose.dev/Balanced without the previous assignment",
            *_hinted(BALANCED),
            remembers=False,
        ),
    )


MECHANISMS: Final = MappingProxyType(
    {mechanism.name: mechanism for mechanism in _list_mechanisms()}
)

WEIGHTS_MECHANISM: Final = Mechanism(
    "weights",
    "keepclose.dev/Balanced with weights beside its hints",
    *_hinted(BALANCED, {WEIGHTS_ANNOTATION: "Enabled"}),
    algorithm="balanced-weights",
)
"""Hints with weights, for runs that evaluate weights."""
