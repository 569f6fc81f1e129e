"""Plays a scenario: what happens to nodes and pods over time, by the rules of Kubernetes.

The result does not depend on how traffic is routed, so it is played once for all mechanisms. The
same start, scenario and seed give the same steps. A scenario that goes on for ever is cut: an hour
after its last event, or at its own duration.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.advise.replaying.replay_start import ReplayStart
from keepclose.advise.replaying.replayed_cluster import (
    MAX_REPLAY_PODS,
    MAX_REPLAY_STEPS,
    ReplayClock,
    ReplayedCluster,
    WorldStep,
)
from keepclose.advise.replaying.replayed_deployment import ReplayedDeployment
from keepclose.advise.replaying.replayed_drain import ReplayedDrain
from keepclose.advise.replaying.replayed_kubelets import ReplayedKubelets
from keepclose.advise.replaying.scenario import (
    MAX_REPLAY_S,
    AddNodesEvent,
    AutoscaleEvent,
    DrainEvent,
    DropZoneLabelsEvent,
    ReplayAction,
    ReplayScenario,
    RolloutEvent,
    ScaleEvent,
    ZoneLossEvent,
)
from keepclose.model.meta import ObjectMeta
from keepclose.model.well_known import HOSTNAME_LABEL, ZONE_LABEL
from keepclose.model.workload import Node, NodeStatus, StatusCondition
from keepclose.model.workloads.placement import place_pods

QUIET_END_S: Final = 60.0
"""How long a replay goes on after its last change."""
_MOST_ROUNDS: Final = 10_000
LONGEST_WAIT_S: Final = 3600.0
"""How long a replay without a duration goes on after its last event."""


class PlayedScenario(msgspec.Struct, frozen=True):
    """What happened, step by step; the first step is the start."""

    steps: tuple[WorldStep, ...]
    end: float
    problem: str = ""
    """Why the scenario was not played to its end; "" if it was."""


def play_scenario(start: ReplayStart, scenario: ReplayScenario, *, seed: int) -> PlayedScenario:
    """Return the steps of a scenario whose names were checked."""
    return _ScenarioRun(start, scenario, seed).play()


class _ScenarioRun:
    """The cluster, its controllers and what is due."""

    def __init__(self, start: ReplayStart, scenario: ReplayScenario, seed: int) -> None:
        self._scenario = scenario
        self._budgets = start.budgets
        self._clock = ReplayClock()
        self._cluster = ReplayedCluster(start, scenario.clients, self._clock)
        random = Random(seed)  # noqa: S311 - repeatable, nothing secret
        self._kubelets = ReplayedKubelets(self._cluster, scenario.pods, random)
        self._deployments = [
            ReplayedDeployment(workload, self._cluster, self._kubelets)
            for workload in start.workloads
        ]
        self._waiting = ""
        self._outages: dict[str, int] = {}
        self._added = 0
        self._is_restless = False

    def play(self) -> PlayedScenario:
        """Play everything."""
        last = 0.0
        for event in self._scenario.events:
            for action in event.actions.values():
                last = max(last, event.at + _lasts(action))
                self._clock.call_after(event.at, partial(self._begin, action))
        asked = self._scenario.duration
        limit = min(last + LONGEST_WAIT_S, MAX_REPLAY_S) if asked is None else float(asked)
        self._kubelets.take_over()
        self._settle()
        steps = [self._cluster.take_step() or WorldStep(0.0)]
        problem = self._find_problem()
        while not problem and self._clock.run_due(limit):
            self._settle()
            problem = self._find_problem()
            step = self._cluster.take_step()
            if step is not None:
                steps.append(step)
        end = limit
        if asked is None and self._clock.next_at is None:
            after = self._scenario.controller.batch_period + self._scenario.proxy.delay
            end = min(limit, max(steps[-1].at, last) + max(QUIET_END_S, after + 1.0))
        return PlayedScenario(tuple(steps), end, problem)

    def _find_problem(self) -> str:
        if self._clock.is_exhausted:
            return f"more than {MAX_REPLAY_STEPS:,} things happen in it"
        if self._cluster.created > MAX_REPLAY_PODS:
            return f"more than {MAX_REPLAY_PODS:,} pods are created in it"
        if self._is_restless:
            return "its controllers never come to rest"
        return ""

    def _settle(self) -> None:
        """Let all controllers act until none has anything to do, and place what waits."""
        if not self._cluster.has_changed:
            return
        rounds = 0
        while any(deployment.sync() for deployment in self._deployments):
            rounds += 1
            self._is_restless = rounds > _MOST_ROUNDS
            if self._is_restless or self._cluster.created > MAX_REPLAY_PODS:
                return
        pods = self._cluster.pods.values()
        pending = [pod for pod in pods if pod.awaits_node]
        reason = ""
        if pending:
            placements = place_pods(
                pending,
                nodes=self._cluster.nodes.values(),
                pods=[*pods, *self._cluster.other_pods],
            )
            for placement in placements:
                if placement.node:
                    self._kubelets.bind(placement.placed)
                else:
                    reason = placement.reason
        if reason and reason != self._waiting:
            count = sum(pod.awaits_node for pod in pods)
            who = "1 pod waits" if count == 1 else f"{count:,} pods wait"
            self._cluster.say(f"{who} for a node: {reason}")
        self._waiting = reason

    def _begin(self, action: ReplayAction) -> None:
        match action:
            case RolloutEvent():
                self._deployment(action.deployment).roll_out(action)
            case ScaleEvent():
                self._deployment(action.deployment).scale(action.replicas)
            case AutoscaleEvent():
                deployment = self._deployment(action.deployment)
                for number, replicas in enumerate(action.replicas):
                    self._clock.call_after(
                        number * action.every, partial(deployment.scale, replicas)
                    )
            case DrainEvent():
                ReplayedDrain(
                    self._names(action.nodes, action.zone),
                    back_after=action.back_after,
                    cluster=self._cluster,
                    kubelets=self._kubelets,
                    deployments=self._deployments,
                    budgets=self._budgets,
                ).begin()
            case ZoneLossEvent():
                self._lose_zone(action)
            case AddNodesEvent():
                self._add_nodes(action)
            case DropZoneLabelsEvent():
                names = self._names(action.nodes, action.zone)
                self._drop_labels(names, lasts=action.lasts)
                self._cluster.say(f"{_count(names)} lose their zone label")

    def _deployment(self, name: str) -> ReplayedDeployment:
        if not name:
            return self._deployments[0]
        return next(each for each in self._deployments if each.name == name)

    def _names(self, names: tuple[str, ...], zone: str) -> list[str]:
        if names:
            return list(dict.fromkeys(names))
        return sorted(name for name, located in self._cluster.zones.items() if located == zone)

    def _lose_zone(self, event: ZoneLossEvent) -> None:
        names = [name for name in self._names((), event.zone) if name not in self._cluster.down]
        outages = {}
        for name in names:
            outages[name] = self._outages[name] = self._outages.get(name, 0) + 1

        def still_lost() -> list[str]:
            return [
                name
                for name, outage in outages.items()
                if self._outages[name] == outage and name in self._cluster.down
            ]

        def detect() -> None:
            if still_lost():
                self._kubelets.report_lost(still_lost())
                self._cluster.say(f"the loss of zone {event.zone} is detected")

        def evict() -> None:
            if still_lost():
                self._kubelets.evict(still_lost())
                self._cluster.say(f"the pods of zone {event.zone} are deleted")

        def recover() -> None:
            if still_lost():
                self._kubelets.recover(still_lost())
                self._cluster.say(f"zone {event.zone} is back")

        self._kubelets.lose(names)
        self._cluster.say(f"zone {event.zone} is lost")
        self._clock.call_after(event.detected_after, detect)
        self._clock.call_after(event.detected_after + event.evicted_after, evict)
        if event.lasts is not None:
            self._clock.call_after(event.lasts, recover)

    def _add_nodes(self, event: AddNodesEvent) -> None:
        zone_of = self._cluster.zones
        first = next((name for name in sorted(zone_of) if zone_of[name] == event.zone), "")
        like = self._cluster.nodes[event.like or first or min(self._cluster.nodes)]
        names = []
        for _ in range(event.count):
            self._added += 1
            name = f"added-{self._added}"
            while name in self._cluster.nodes:
                self._added += 1
                name = f"added-{self._added}"
            names.append(name)
            self._cluster.put_node(_new_node(name, like, event.zone), zone=event.zone)
        late = event.zone_label_after
        if late > 0:
            self._drop_labels(names, lasts=late)
        without = ", without its label" if late > 0 else ""
        self._cluster.say(f"{_count(names)} join zone {event.zone}{without}")

    def _drop_labels(self, names: list[str], *, lasts: float | None) -> None:
        labels = {}
        for name in names:
            node = self._cluster.nodes[name]
            label = node.metadata.labels.get(ZONE_LABEL)
            if label is not None:
                labels[name] = label
                self._cluster.put_node(_with_zone(node, None))

        def restore() -> None:
            for name, label in labels.items():
                self._cluster.put_node(_with_zone(self._cluster.nodes[name], label))
            self._cluster.say(f"{_count(list(labels))} get their zone label")

        if lasts is not None and labels:
            self._clock.call_after(lasts, restore)


def _lasts(action: ReplayAction) -> float:
    """Return how long an event goes on by itself."""
    match action:
        case AutoscaleEvent():
            return action.every * (len(action.replicas) - 1)
        case ZoneLossEvent():
            return max(action.lasts or 0.0, action.detected_after + action.evicted_after)
        case DropZoneLabelsEvent():
            return action.lasts or 0.0
        case AddNodesEvent():
            return action.zone_label_after
        case _:
            return 0.0


def _new_node(name: str, like: Node, zone: str) -> Node:
    labels = {**like.metadata.labels, HOSTNAME_LABEL: name, ZONE_LABEL: zone}
    return Node(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=labels),
        status=NodeStatus(
            allocatable=dict(like.status.allocatable),
            conditions=(StatusCondition(type="Ready", status="True"),),
        ),
    )


def _with_zone(node: Node, zone: str | None) -> Node:
    labels = {key: text for key, text in node.metadata.labels.items() if key != ZONE_LABEL}
    if zone is not None:
        labels[ZONE_LABEL] = zone
    return replace(node, metadata=replace(node.metadata, labels=labels))


def _count(names: list[str]) -> str:
    return f"node {names[0]}" if len(names) == 1 else f"{len(names):,} nodes"
