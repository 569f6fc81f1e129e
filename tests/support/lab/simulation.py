"""A Deployment with its ReplicaSets and pods, moved by plans alone, one hand at a time.

Hands act in any order and see the statuses that others wrote last, late ones too. Each pod that
comes or goes is held against the bounds of the update.
"""

from __future__ import annotations

from typing import Any

import msgspec

from keepclose.model.workloads.deployment_plan import plan_deployment
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_set_plan import plan_replica_set
from keepclose.model.workloads.rolling_update import deployment_bounds, size_annotations
from keepclose.model.workloads.types import Deployment, ReplicaSet
from support.lab.labobjects import NOW, a_pod

replace = msgspec.structs.replace


class Simulation:
    """One Deployment and everything below it."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self._replica_sets: dict[str, ReplicaSet] = {}
        self._pods: dict[str, WorkloadPod] = {}
        self._made = 0
        self._is_watched = False

    def begin_watching(self) -> None:
        """Hold every step from now on against the bounds."""
        self._is_watched = True

    def set_image(self, image: str) -> None:
        """Change the template."""
        spec = self.deployment.spec
        container = {**spec.template["spec"]["containers"][0], "image": image}
        template = {**spec.template, "spec": {"containers": [container]}}
        if template == spec.template:
            return
        meta = self.deployment.metadata
        self.deployment = replace(
            self.deployment,
            spec=replace(spec, template=template),
            metadata=replace(meta, generation=meta.generation + 1),
        )

    def change(self, **spec: Any) -> None:
        """Change other fields of the Deployment."""
        meta = self.deployment.metadata
        self.deployment = replace(
            self.deployment,
            spec=replace(self.deployment.spec, **spec),
            metadata=replace(meta, generation=meta.generation + 1),
        )

    def images(self) -> list[str]:
        """Return the images of the pods that are there, each by its owner's template."""
        return [
            self._replica_sets[_owner(pod)].spec.template["spec"]["containers"][0]["image"]
            for pod in self._pods.values()
            if pod.is_active
        ]

    def do(self, dice: int) -> bool:
        """Let one hand act, chosen by the dice; return whether it did anything."""
        names = sorted(self._replica_sets)
        pods = sorted(self._pods)
        which, place = dice % 4, dice // 4
        if which == 0:
            return self._sync_deployment()
        if which == 1 and names:
            return self._sync_replica_set(names[place % len(names)])
        if which == 2 and pods:
            return self._run_pod(pods[place % len(pods)])
        return False

    def settle(self) -> None:
        """Let all hands act until none has anything to do."""
        for _ in range(500):
            moved = self._sync_deployment()
            for name in sorted(self._replica_sets):
                moved = self._sync_replica_set(name) or moved
            for name in sorted(self._pods):
                moved = self._run_pod(name) or moved
            if not moved:
                return
        raise AssertionError("it never comes to rest")

    def _sync_deployment(self) -> bool:
        replica_sets = list(self._replica_sets.values())
        pods = list(self._pods.values())
        plan = plan_deployment(self.deployment, replica_sets, pods, now=NOW)
        moved = plan.status != self.deployment.status
        self.deployment = replace(self.deployment, status=plan.status)
        if plan.creation is not None:
            raw: Any = plan.creation
            raw["metadata"] |= {"uid": raw["metadata"]["name"], "generation": 1}
            raw["metadata"]["creationTimestamp"] = f"2023-11-14T22:{self._made // 60 % 60:02}:00Z"
            made = msgspec.convert(raw, ReplicaSet)
            self._replica_sets[made.metadata.name] = made
            moved = True
        for one, size in plan.sizes:
            meta = one.metadata
            annotations = {**meta.annotations, **size_annotations(self.deployment)}
            changed = size != one.spec.replicas
            moved = moved or changed or annotations != meta.annotations
            self._replica_sets[meta.name] = replace(
                one,
                spec=replace(one.spec, replicas=size),
                metadata=replace(
                    meta, generation=meta.generation + changed, annotations=annotations
                ),
            )
        for one in plan.deletions:
            del self._replica_sets[one.metadata.name]
        return moved

    def _sync_replica_set(self, name: str) -> bool:
        one = self._replica_sets[name]
        own = [pod for pod in self._pods.values() if _owner(pod) == name]
        plan = plan_replica_set(one, own, now=NOW)
        moved = bool(plan.missing or plan.excess) or plan.status != one.status
        self._replica_sets[name] = replace(one, status=plan.status)
        for _ in range(plan.missing):
            self._made += 1
            self._pods[f"p{self._made}"] = a_pod(f"p{self._made}", "n1", owner=name)
        for pod in plan.excess:
            meta = replace(pod.metadata, deletion_timestamp="2023-11-14T22:13:20Z")
            self._pods[pod.metadata.name] = replace(pod, metadata=meta)
        self._check()
        return moved

    def _run_pod(self, name: str) -> bool:
        """Make a pod ready, or end it."""
        pod = self._pods[name]
        if pod.is_terminating:
            del self._pods[name]
            return True
        if pod.is_ready:
            return False
        self._pods[name] = a_pod(name, "n1", owner=_owner(pod), ready=True)
        return True

    def _check(self) -> None:
        if not self._is_watched:
            return
        wanted, bounds = self.deployment.spec.replicas, deployment_bounds(self.deployment)
        active = [pod for pod in self._pods.values() if pod.is_active]
        assert len(active) <= wanted + bounds.max_surge
        assert sum(pod.is_ready for pod in active) >= wanted - bounds.max_unavailable


def _owner(pod: WorkloadPod) -> str:
    assert pod.controller is not None
    return pod.controller.uid
