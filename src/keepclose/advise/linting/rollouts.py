"""In what share of rollouts and drains every zone keeps its endpoints, by playing many of them.

A rollout is played by the rules of the Deployment and ReplicaSet controllers: each step is theirs.
Pods become ready one at a time, in any order; the choice of a node among those that the scheduler
permits is random. A drain evicts the pods of one node as far as budgets permit, and waits for their
replacements. The seed is fixed, so that the same input gives the same shares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import msgspec
from msgspec.structs import replace

from keepclose.advise.linting.placements import ModelPods, can_place, seeded
from keepclose.advise.linting.workload_kinds import LintedWorkload
from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import OwnerReference
from keepclose.model.workload import Node
from keepclose.model.workloads.deployment_plan import plan_deployment
from keepclose.model.workloads.disruption_budgets import PodDisruptionBudget, eviction_refusal
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_set_plan import plan_replica_set
from keepclose.model.workloads.rolling_update import (
    TEMPLATE_HASH_LABEL,
    new_replica_set,
)
from keepclose.model.workloads.types import Deployment, ReplicaSet

RUNS: Final = 40
"""How many rollouts, and how many placements with the drains of all nodes, are played."""
MAX_WORKLOADS: Final = 20
"""Of more workloads fewer rollouts each are played, so that a large cluster takes no hours."""
MANY_REPLICAS: Final = 20
"""Of more replicas fewer rollouts are played: a step takes longer the more pods there are."""
LEAST_RUNS: Final = 4
MAX_REPLICAS_PLAYED: Final = 60
MAX_NODES_PLAYED: Final = 30
_STEPS_PER_POD: Final = 20
_SEED: Final = 20_260_101
_REVISION: Final = "lint.keepclose.dev/revision"
Keeps = Callable[[Mapping[str, int]], bool]
"""Whether ready pods by zone keep the promise of a Service."""


class PlayedShare(msgspec.Struct, frozen=True):
    """How many of the played rollouts or drains kept the promise.

    `stuck` ones did not end: no node was permitted for a pod, or a budget permitted no eviction.
    """

    kept: int
    played: int
    stuck: int = 0

    @property
    def percent(self) -> int:
        """The share in percent, rounded down, so that only all of them give 100."""
        return 100 * self.kept // self.played if self.played else 100


def play_rollouts(
    workload: LintedWorkload,
    nodes: Sequence[Node],
    keeps: Keeps,
    *,
    runs: int = RUNS,
    has_given_nodes: bool,
) -> PlayedShare | None:
    """Return the share of rollouts of a Deployment that keep the promise at every moment.

    None if it is no Deployment, too large to play, or its placement breaks the promise before.
    """
    deployment = workload.source
    if not isinstance(deployment, Deployment) or not _can_play(
        workload, deployment.spec.replicas, nodes
    ):
        return None
    kept = played = stuck = 0
    for run in range(runs):
        rollout = _Rollout(
            workload,
            deployment,
            ModelPods(workload, nodes, random=seeded(_SEED + run), has_given_nodes=has_given_nodes),
            seeded(_SEED - run),
        )
        if not keeps(rollout.model.ready_by_zone()):
            continue
        played += 1
        is_kept, is_complete = rollout.play(keeps)
        kept += is_kept
        stuck += not is_complete
    return PlayedShare(kept, played, stuck) if played else None


def play_drains(
    workload: LintedWorkload,
    nodes: Sequence[Node],
    keeps: Callable[[Mapping[str, int], str], bool],
    *,
    replicas: int,
    budgets: Sequence[PodDisruptionBudget],
    runs: int = RUNS,
    has_given_nodes: bool,
) -> PlayedShare | None:
    """Return the share of drains of single nodes that keep the promise at every moment.

    `keeps` gets the name of the drained node too. Nodes without a pod are not drained. None as for
    rollouts.
    """
    if workload.replicas is None or not _can_play(workload, replicas, nodes):
        return None
    kept = played = stuck = 0
    for run in range(runs):
        random = seeded(_SEED + run)
        model = ModelPods(workload, nodes, random=random, has_given_nodes=has_given_nodes)
        for _ in range(replicas):
            model.add()
        placed, former = list(model.pods), model.nodes
        for node in sorted({pod.spec.node_name for pod in placed if pod.spec.node_name}):
            model.pods, model.nodes = list(placed), [_cordon(each, node) for each in former]
            if not keeps(model.ready_by_zone(), node):
                continue
            played += 1
            is_kept, is_complete = _drain(model, node, keeps, replicas, budgets)
            kept += is_kept
            stuck += not is_complete
        model.nodes = former
    return PlayedShare(kept, played, stuck) if played else None


def runs_for(workloads: int, replicas: int) -> int:
    """Return how many rollouts to play of a workload with so many replicas, among so many."""
    divisor = max(1.0, workloads / MAX_WORKLOADS) * max(1.0, replicas / MANY_REPLICAS)
    return max(LEAST_RUNS, int(RUNS / divisor))


class _Rollout:
    """A Deployment with all pods of its old template, and the update to a new one."""

    def __init__(
        self, workload: LintedWorkload, deployment: Deployment, model: ModelPods, random: Random
    ) -> None:
        self.model, self._workload, self._random = model, workload, random
        self._sets: list[ReplicaSet] = []
        self._changed: set[str] = set()
        # Pods are those of the model; the controllers only compare templates.
        template: JsonObject = {"metadata": {"labels": workload.labels}}
        deployment = replace(
            deployment,
            metadata=replace(deployment.metadata, uid="deployment", generation=1),
            spec=replace(deployment.spec, paused=False, min_ready_seconds=0, template=template),
        )
        self._add_set(new_replica_set(deployment, replicas=deployment.spec.replicas, revision=1))
        meta = {"labels": workload.labels, "annotations": {_REVISION: "2"}}
        template = {"metadata": meta}
        self._deployment = replace(deployment, spec=replace(deployment.spec, template=template))
        for _ in range(deployment.spec.replicas):
            self._add_pod(self._sets[0], is_ready=True)
        self._sync_sets()

    def play(self, keeps: Keeps) -> tuple[bool, bool]:
        """Return whether every step kept the promise, and whether the rollout ended."""
        is_kept = True
        for _ in range(_STEPS_PER_POD * (self._deployment.spec.replicas + 1)):
            if not (self._step() or self._become_ready()):
                break
            is_kept = is_kept and keeps(self.model.ready_by_zone())
        new = self._sets[-1]
        is_complete = (
            len(self._sets) > 1
            and new.status.available_replicas == self._deployment.spec.replicas
            and all(not each.is_active for each in self._sets[:-1])
        )
        return is_kept, is_complete

    def _step(self) -> bool:
        """Carry out the next plans of the controllers; return whether anything changed."""
        if self._sync_sets():
            return True
        plan = plan_deployment(self._deployment, self._sets, self.model.pods, now=0.0)
        if plan.creation is not None:
            self._add_set(plan.creation)
            return True
        changed = False
        for size in plan.sizes:
            if size.replicas == size.replica_set.spec.replicas:
                continue
            changed = True
            self._changed.add(size.replica_set.metadata.uid)
            self._sets = [
                replace(
                    each,
                    spec=replace(each.spec, replicas=size.replicas),
                    metadata=replace(each.metadata, generation=each.metadata.generation + 1),
                )
                if each.metadata.uid == size.replica_set.metadata.uid
                else each
                for each in self._sets
            ]
        return changed

    def _sync_sets(self) -> bool:
        changed = False
        for index, each in enumerate(self._sets):
            if each.metadata.uid not in self._changed:
                continue
            plan = plan_replica_set(each, self._pods_of(each), related=self.model.pods, now=0.0)
            for _ in range(plan.missing):
                self._add_pod(each, is_ready=False)
            for pod in plan.excess:
                self.model.remove(pod)
            if plan.missing or plan.excess:
                changed = True
                plan = plan_replica_set(each, self._pods_of(each), now=0.0)
            self._sets[index] = replace(each, status=plan.status)
        self._changed.clear()
        return changed

    def _become_ready(self) -> bool:
        waiting = [pod for pod in self.model.pods if pod.spec.node_name and not pod.is_ready]
        if not waiting:
            return False
        pod = self._random.choice(waiting)
        self.model.set_ready(pod)
        if pod.controller is not None:
            self._changed.add(pod.controller.uid)
        return True

    def _add_set(self, body: JsonObject) -> None:
        decoded = convert_as(ReplicaSet, body)
        assert not isinstance(decoded, Rejected)  # noqa: S101 - made from a decoded Deployment
        number = len(self._sets) + 1
        meta = replace(
            decoded.metadata,
            uid=f"set-{number}",
            generation=1,
            creation_timestamp=f"2026-01-01T00:00:{number:02}Z",
        )
        self._sets.append(replace(decoded, metadata=meta))
        self._changed.add(meta.uid)

    def _add_pod(self, owner: ReplicaSet, *, is_ready: bool) -> None:
        reference = OwnerReference(
            "apps/v1", "ReplicaSet", owner.metadata.name, owner.metadata.uid, controller=True
        )
        hashed = owner.metadata.labels.get(TEMPLATE_HASH_LABEL, "")
        self.model.add(labels={TEMPLATE_HASH_LABEL: hashed}, owner=reference, is_ready=is_ready)

    def _pods_of(self, owner: ReplicaSet) -> list[WorkloadPod]:
        return [
            pod
            for pod in self.model.pods
            if pod.controller is not None and pod.controller.uid == owner.metadata.uid
        ]


def _drain(
    model: ModelPods,
    node: str,
    keeps: Callable[[Mapping[str, int], str], bool],
    replicas: int,
    budgets: Sequence[PodDisruptionBudget],
) -> tuple[bool, bool]:
    """Evict the pods of a node; return whether each step kept the promise, and whether it ended."""
    is_kept = True
    while leaving := [pod for pod in model.pods if pod.spec.node_name == node]:
        evicted = 0
        for pod in leaving:
            if not eviction_refusal(pod, budgets, pods=model.pods, replicas=replicas):
                model.remove(pod)
                evicted += 1
        if not evicted:
            return is_kept, False
        is_kept = is_kept and keeps(model.ready_by_zone(), node)
        for _ in range(evicted):
            if not model.add().spec.node_name:
                return is_kept, False
    return is_kept, True


def _cordon(node: Node, name: str) -> Node:
    if node.name != name:
        return node
    return replace(node, spec=replace(node.spec, unschedulable=True))


def _can_play(workload: LintedWorkload, replicas: int, nodes: Sequence[Node]) -> bool:
    is_small = 0 < replicas <= MAX_REPLICAS_PLAYED and 0 < len(nodes) <= MAX_NODES_PLAYED
    return is_small and can_place(workload.pod)
