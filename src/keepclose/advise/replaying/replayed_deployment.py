"""A Deployment of a replay: rollouts and scaling, step by step as its controllers plan them.

The controllers of Deployments and ReplicaSets, and the scheduler, take no time: all of their steps
happen at the moment of the change that they follow from. Names, uids and resourceVersions count up
instead of being drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from keepclose.advise.replaying.replayed_cluster import ReplayedCluster
from keepclose.advise.replaying.replayed_kubelets import ReplayedKubelets
from keepclose.advise.replaying.scenario import RolloutEvent
from keepclose.advise.replaying.start_workloads import StartWorkload, identify_replica_set
from keepclose.model.workloads.deployment_plan import plan_deployment
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import make_pod, read_pod
from keepclose.model.workloads.replica_set_plan import plan_replica_set
from keepclose.model.workloads.rolling_update import size_annotations
from keepclose.model.workloads.types import Deployment, ReplicaSet, RollingUpdate

_RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"


class ReplayedDeployment:
    """A Deployment, its ReplicaSets and what is due for them."""

    def __init__(
        self, workload: StartWorkload, cluster: ReplayedCluster, kubelets: ReplayedKubelets
    ) -> None:
        self._cluster, self._kubelets = cluster, kubelets
        self._deployment = workload.deployment
        self._sets = {each.metadata.name: each for each in workload.replica_sets}
        self._rollouts = 0
        self._is_rolling = False
        self._recheck_at: float | None = None

    @property
    def name(self) -> str:
        """The name of the Deployment."""
        return self._deployment.metadata.name

    @property
    def replicas(self) -> int:
        """How many pods it should have."""
        return self._deployment.spec.replicas

    @property
    def pods(self) -> list[WorkloadPod]:
        """Its pods."""
        return [
            pod
            for replica_set in self._sets.values()
            for pod in self._cluster.pods_of(replica_set.metadata.uid)
        ]

    def roll_out(self, event: RolloutEvent) -> None:
        """Change the template, and the bounds of the update if the event has some."""
        self._rollouts += 1
        self._is_rolling = True
        spec = self._deployment.spec
        meta = dict(spec.template.get("metadata") or {})
        restarted = f"{self._cluster.stamp}/{self._rollouts}"
        meta["annotations"] = {**(meta.get("annotations") or {}), _RESTARTED: restarted}
        spec = replace(spec, template={**spec.template, "metadata": meta})
        if event.max_surge is not None or event.max_unavailable is not None:
            before = spec.strategy.rolling_update or RollingUpdate("25%", "25%")
            rolling = RollingUpdate(
                before.max_unavailable if event.max_unavailable is None else event.max_unavailable,
                before.max_surge if event.max_surge is None else event.max_surge,
            )
            strategy = replace(spec.strategy, type="RollingUpdate", rolling_update=rolling)
            spec = replace(spec, strategy=strategy)
        if event.min_ready_seconds is not None:
            spec = replace(spec, min_ready_seconds=event.min_ready_seconds)
        self._change(replace(self._deployment, spec=spec))
        self._cluster.say(f"rollout of {self.name} begins")

    def scale(self, replicas: int) -> None:
        """Change the number of replicas."""
        before = self.replicas
        spec = replace(self._deployment.spec, replicas=replicas)
        self._change(replace(self._deployment, spec=spec))
        self._cluster.say(f"{self.name} is scaled from {before:,} to {replicas:,}")

    def sync(self) -> bool:
        """Take the next step of each controller; return whether anything changed."""
        pods = self.pods
        changed = self._sync_deployment(pods)
        for name in sorted(self._sets):
            replica_set = self._sets[name]
            own = self._cluster.pods_of(replica_set.metadata.uid)
            changed = self._sync_replica_set(replica_set, own, pods) or changed
        if not changed:
            self._report_progress()
        return changed

    def _change(self, deployment: Deployment) -> None:
        meta = deployment.metadata
        self._deployment = replace(
            deployment, metadata=replace(meta, generation=meta.generation + 1)
        )

    def _sync_deployment(self, pods: Sequence[WorkloadPod]) -> bool:
        plan = plan_deployment(
            self._deployment, list(self._sets.values()), pods, now=self._cluster.time
        )
        # NB: the conditions alone change without progress, because they have times.
        changed = replace(plan.status, conditions=()) != replace(
            self._deployment.status, conditions=()
        )
        self._deployment = replace(self._deployment, status=plan.status)
        if plan.creation is not None:
            created = identify_replica_set(plan.creation, created=self._cluster.stamp)
            if created is not None:
                self._sets[created.metadata.name] = created
                changed = True
        for replica_set, size in plan.sizes:
            annotations = size_annotations(self._deployment)
            changed = self._resize(replica_set, size, annotations) or changed
        if plan.current is not None and plan.current.metadata.name in self._sets:
            current = self._sets[plan.current.metadata.name]
            changed = self._resize(current, current.spec.replicas, plan.annotations) or changed
        for replica_set in plan.deletions:
            del self._sets[replica_set.metadata.name]
        return changed

    def _resize(self, replica_set: ReplicaSet, size: int, annotations: dict[str, str]) -> bool:
        meta, spec = replica_set.metadata, replica_set.spec
        least_s = self._deployment.spec.min_ready_seconds
        merged = {**meta.annotations, **annotations}
        spec = replace(spec, replicas=size, min_ready_seconds=least_s)
        if spec == replica_set.spec and merged == meta.annotations:
            return False
        is_new = spec != replica_set.spec
        meta = replace(meta, annotations=merged, generation=meta.generation + is_new)
        self._sets[meta.name] = replace(replica_set, metadata=meta, spec=spec)
        return True

    def _sync_replica_set(
        self, replica_set: ReplicaSet, own: Sequence[WorkloadPod], related: Sequence[WorkloadPod]
    ) -> bool:
        plan = plan_replica_set(replica_set, own, related=related, now=self._cluster.time)
        name = replica_set.metadata.name
        # NB: the Deployment may have changed the size a moment ago; the status is of that version.
        self._sets[name] = replace(self._sets[name], status=plan.status)
        for _ in range(plan.missing):
            self._create(replica_set)
        for pod in plan.excess:
            self._kubelets.delete(pod)
        if plan.recheck_s is not None:
            self._recheck_after(plan.recheck_s)
        return bool(plan.missing or plan.excess) or plan.status != replica_set.status

    def _create(self, replica_set: ReplicaSet) -> None:
        self._cluster.created += 1
        name = f"{replica_set.metadata.name}-{self._cluster.created:05}"
        body = make_pod(replica_set, name=name)
        body["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": self._cluster.stamp}
        pod = read_pod({**body, "status": {"phase": "Pending"}})
        if pod is not None:
            self._cluster.put_pod(pod)

    def _recheck_after(self, seconds: float) -> None:
        """Let something happen when the next pod is available, so that everything is synced."""
        # NB: never now, as rounding would repeat the same moment.
        clock = self._cluster.clock
        at = round(clock.now + max(seconds, 0.001), 6)
        if self._recheck_at is None or not clock.now < self._recheck_at <= at:
            self._recheck_at = at
            clock.call_after(at - clock.now, self._cluster.touch)

    def _report_progress(self) -> None:
        if not self._is_rolling:
            return
        status = self._deployment.status
        numbers = (status.replicas, status.updated_replicas, status.available_replicas)
        if numbers == (self.replicas,) * 3 and not any(pod.is_terminating for pod in self.pods):
            self._is_rolling = False
            self._cluster.say(f"rollout of {self.name} is complete")
