"""What happens to the pods and nodes of a Service over time, as a list of steps.

A scenario names events; playing it with a seed turns them into concrete nodes and pods, once, so
that every mechanism is then put through the very same steps. Pods are scheduled as a real cluster
does it: roughly even, but not quite. The same scenario and seed always give the same steps.
"""

from __future__ import annotations

import random
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node, Pod
from keepclose.testing.builders import node, pod


class EventKind(StrEnum):
    """Everything that can happen in a scenario."""

    START = "start"
    SCALE_UP = "scale up"
    SCALE_DOWN = "scale down"
    ROLLING_UPDATE = "rolling update"
    ZONE_LOSS = "zone loss"
    ZONE_RETURN = "zone return"
    NODE_LOSS = "node loss"
    NODE_RETURN = "node return"


class Event(msgspec.Struct, frozen=True):
    """One event; `count` is a number of pods, or of nodes lost. Losses strike at random."""

    kind: EventKind
    count: int = 1


class Scenario(msgspec.Struct, frozen=True):
    """A cluster to start from, nodes by zone, and what happens to it."""

    name: str
    about: str
    zones: dict[str, int]
    endpoints: int
    events: tuple[Event, ...]


class Step(msgspec.Struct, frozen=True):
    """One moment at which a controller looks: all nodes, and the pods that came and went."""

    event: EventKind
    nodes: tuple[Node, ...]
    added: tuple[Pod, ...] = ()
    removed: tuple[NamespacedName, ...] = ()


SURGE: Final = 0.25
"""The part of all pods that one wave of a rolling update replaces, as Deployments do by default."""

_ZONES = {"zone-a": 4, "zone-b": 3, "zone-c": 2}
_UP, _DOWN, _ROLL = EventKind.SCALE_UP, EventKind.SCALE_DOWN, EventKind.ROLLING_UPDATE
_OUTAGE = (Event(EventKind.ZONE_LOSS), Event(EventKind.ZONE_RETURN), Event(_ROLL))
_NODE_OUTAGE = (Event(EventKind.NODE_LOSS), Event(EventKind.NODE_RETURN))

SCENARIOS: Final = MappingProxyType(
    {
        one.name: one
        for one in (
            Scenario(
                "autoscaling",
                "pods come and go around the starting threshold of subsetting",
                _ZONES,
                8,
                tuple(
                    Event(_UP, change) if change > 0 else Event(_DOWN, -change)
                    for _ in range(6)
                    for change in (1, 1, 2, -1, 1, -2, -1, -1)
                ),
            ),
            Scenario(
                "rolling-updates",
                "every pod is replaced, five times over",
                _ZONES,
                40,
                (Event(_ROLL),) * 5,
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
                    *(Event(_UP, 5) for _ in range(4)),
                    Event(_ROLL),
                    *_NODE_OUTAGE,
                    *(Event(_DOWN, 10) for _ in range(6)),
                    *_OUTAGE,
                    *(Event(_DOWN, 4) for _ in range(4)),
                    *(Event(_UP, 3) for _ in range(6)),
                    *_NODE_OUTAGE,
                    Event(_ROLL),
                ),
            ),
        )
    }
)


def play(scenario: Scenario, seed: int) -> tuple[Step, ...]:
    """Return the steps of a scenario; the first one starts it. No nodes mean no pods."""
    course = _Course(scenario, random.Random(seed))  # noqa: S311 - seeded, nothing secret
    for event in scenario.events:
        course.carry_out(event)
    return tuple(course.steps)


class _Course:
    """The cluster as it is now, and the steps that led here."""

    def __init__(self, scenario: Scenario, dice: random.Random) -> None:
        self.steps: list[Step] = []
        self._dice = dice
        self._nodes = {
            name: node(name, zone)
            for zone, count in sorted(scenario.zones.items())
            for name in (f"{zone}-n{number}" for number in range(1, count + 1))
        }
        self._lost: dict[str, Node] = {}
        self._pods: dict[NamespacedName, Pod] = {}
        self._made = 0
        self._note(EventKind.START, added=self._schedule(scenario.endpoints))

    def carry_out(self, event: Event) -> None:
        match event.kind:
            case EventKind.SCALE_UP:
                self._note(event.kind, added=self._schedule(event.count))
            case EventKind.SCALE_DOWN:
                self._note(event.kind, removed=self._pick_pods(event.count))
            case EventKind.ROLLING_UPDATE:
                self._roll()
            case EventKind.NODE_LOSS:
                names = sorted(self._nodes)
                self._lose(event.kind, self._dice.sample(names, min(event.count, len(names))))
            case EventKind.ZONE_LOSS:
                zone = self._dice.choice(sorted({one.zone for one in self._nodes.values()}) or [""])
                lost = [name for name, one in sorted(self._nodes.items()) if one.zone == zone]
                self._lose(event.kind, lost)
            case EventKind.ZONE_RETURN | EventKind.NODE_RETURN:
                self._nodes.update(self._lost)
                self._lost = {}
                self._note(event.kind)

    def _note(
        self,
        kind: EventKind,
        *,
        added: tuple[Pod, ...] = (),
        removed: tuple[NamespacedName, ...] = (),
    ) -> None:
        for key in removed:
            self._pods.pop(key)
        nodes = tuple(one for _, one in sorted(self._nodes.items()))
        self.steps.append(Step(kind, nodes, added, removed))

    def _schedule(self, count: int) -> tuple[Pod, ...]:
        """Start pods, each on the emptier of two nodes drawn by lot."""
        started: list[Pod] = []
        names = sorted(self._nodes)
        load = dict.fromkeys(names, 0)
        for one in self._pods.values():
            load[one.spec.node_name] = load.get(one.spec.node_name, 0) + 1
        for _ in range(count if names else 0):
            drawn = (self._dice.choice(names), self._dice.choice(names))
            chosen = min(drawn, key=load.__getitem__)
            load[chosen] += 1
            self._made += 1
            number = self._made
            ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
            started.append(pod(f"web-{number:05}", chosen, ip=ip))
        self._pods.update((one.key, one) for one in started)
        return tuple(started)

    def _pick_pods(self, count: int) -> tuple[NamespacedName, ...]:
        keys = sorted(self._pods)
        return tuple(sorted(self._dice.sample(keys, min(count, len(keys)))))

    def _roll(self) -> None:
        old = sorted(self._pods)
        self._dice.shuffle(old)
        wave = max(1, int(len(old) * SURGE))
        for start in range(0, len(old), wave):
            gone = tuple(old[start : start + wave])
            self._note(EventKind.ROLLING_UPDATE, added=self._schedule(len(gone)))
            self._note(EventKind.ROLLING_UPDATE, removed=gone)

    def _lose(self, kind: EventKind, names: list[str]) -> None:
        for name in names:
            self._lost[name] = self._nodes.pop(name)
        gone = tuple(sorted(key for key, one in self._pods.items() if one.spec.node_name in names))
        self._note(kind, removed=gone)
        if gone:
            self._note(kind, added=self._schedule(len(gone)))
