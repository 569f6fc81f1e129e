"""The DaemonSet controller: on which nodes a DaemonSet has a pod, which pods to delete, its status.

Every node whose labels and taints allow it has one pod. A changed template replaces pods node by
node. Without a surge an old pod is deleted while no more than maxUnavailable are missing, and its
node gets a new pod once the old one is gone. With a surge the new pod is created first, and the old
one is deleted once the new one is available. OnDelete never deletes old pods. Pods are created with
their node: the scheduler has no part in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

import msgspec

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import NotFound
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import DAEMON_SETS, LAB_PODS
from keepclose.lab.workloads.expectations import Expectations, settle_claims, sort_claims
from keepclose.lab.workloads.pods import NewPod, PodWriter, daemon_spec, name_pod, patch_status
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node
from keepclose.model.workloads.constraints import NO_EXECUTE, NO_SCHEDULE
from keepclose.model.workloads.node_fit import has_untolerated_taint, matches_affinity
from keepclose.model.workloads.pods import WorkloadPod, WorkloadPodSpec
from keepclose.model.workloads.replica_pods import (
    available_in,
    is_pod_available,
    make_pod,
    put_on_node,
    read_pod,
    read_spec,
)
from keepclose.model.workloads.rolling_update import RolloutBounds, daemon_bounds, template_hash
from keepclose.model.workloads.types import DaemonSet, DaemonSetStatus

REVISION_LABEL: Final = "controller-revision-hash"
GENERATION_LABEL: Final = "pod-template-generation"
GENERATION_ANNOTATION: Final = "deprecated.daemonset.template.generation"
BURST_PODS: Final = 250
"""How many pods one sync creates or deletes, as in kube-controller-manager."""


class DaemonSetPlan(msgspec.Struct, frozen=True):
    """The next writes for a DaemonSet, and its status."""

    status: DaemonSetStatus
    creations: tuple[str, ...] = ()
    """The nodes that get a pod."""
    deletions: tuple[WorkloadPod, ...] = ()
    """The pods to delete."""
    recheck_s: float | None = None
    """When the next pod has been ready for long enough."""


def plan_daemon_set(
    daemon_set: DaemonSet, nodes: Iterable[Node], pods: Sequence[WorkloadPod], *, now: float
) -> DaemonSetPlan:
    """Return the next step of a DaemonSet with these pods."""
    view = _View(daemon_set, nodes, pods, now)
    plan = DaemonSetPlan(view.status(), recheck_s=view.recheck_s())
    if daemon_set.metadata.deletion_timestamp is not None:
        return plan
    creations, deletions = view.manage()
    if not (creations or deletions) and daemon_set.spec.update_strategy.type == "RollingUpdate":
        creations, deletions = view.surge() if view.bounds.max_surge else view.replace()
    return msgspec.structs.replace(
        plan, creations=tuple(creations[:BURST_PODS]), deletions=tuple(deletions[:BURST_PODS])
    )


def daemon_labels(daemon_set: DaemonSet) -> dict[str, str]:
    """Return the labels that identify the pods of the current template."""
    labels = {REVISION_LABEL: template_hash(daemon_set.spec.template)}
    generation = daemon_set.metadata.annotations.get(GENERATION_ANNOTATION)
    return {**labels, GENERATION_LABEL: generation} if generation else labels


def should_run(spec: WorkloadPodSpec, node: Node) -> bool:
    """Return whether the node should have a pod of the DaemonSet."""
    if spec.node_name not in ("", node.name) or not matches_affinity(spec, node):
        return False
    return not has_untolerated_taint(spec, node, (NO_SCHEDULE, NO_EXECUTE))


def may_stay(spec: WorkloadPodSpec, node: Node) -> bool:
    """Return whether a pod on the node may stay; of the taints only NoExecute evicts it."""
    if spec.node_name not in ("", node.name) or not matches_affinity(spec, node):
        return False
    return not has_untolerated_taint(spec, node, (NO_EXECUTE,))


class _View:
    """A DaemonSet, the nodes by name, and its pods by node, the oldest first."""

    def __init__(
        self, daemon_set: DaemonSet, nodes: Iterable[Node], pods: Sequence[WorkloadPod], now: float
    ) -> None:
        self._set, self._now, self._pods = daemon_set, now, pods
        self._nodes = sorted(nodes, key=lambda node: node.name)
        self._spec = read_spec(daemon_spec(daemon_set.spec.template))
        self._hash = template_hash(daemon_set.spec.template)
        self._pods_by_node: dict[str, list[WorkloadPod]] = {}
        for pod in sorted(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.key)):
            if pod.spec.node_name and not (pod.is_terminating and pod.has_ended):
                self._pods_by_node.setdefault(pod.spec.node_name, []).append(pod)
        self._desired_nodes = [node for node in self._nodes if should_run(self._spec, node)]
        self.bounds: RolloutBounds = daemon_bounds(
            daemon_set.spec.update_strategy, len(self._desired_nodes)
        )

    def status(self) -> DaemonSetStatus:
        """Return the status."""
        desired = {node.name for node in self._desired_nodes}
        first = [
            self._pods_by_node[name][0] for name in sorted(desired) if name in self._pods_by_node
        ]
        available = sum(pod.is_ready and self._is_available(pod) for pod in first)
        elsewhere = (
            n for n in self._nodes if n.name not in desired and n.name in self._pods_by_node
        )
        return DaemonSetStatus(
            observed_generation=self._set.metadata.generation,
            desired_number_scheduled=len(desired),
            current_number_scheduled=len(first),
            number_misscheduled=sum(1 for _ in elsewhere),
            number_ready=sum(pod.is_ready for pod in first),
            updated_number_scheduled=sum(self._is_new(pod) for pod in first),
            number_available=available,
            number_unavailable=len(desired) - available,
        )

    def recheck_s(self) -> float | None:
        """Return when the next pod has been ready for long enough."""
        least = self._set.spec.min_ready_seconds
        waits = (available_in(pod, min_ready_s=least, now=self._now) for pod in self._pods)
        return min((wait for wait in waits if wait), default=None)

    def manage(self) -> tuple[list[str], list[WorkloadPod]]:
        """Return nodes without a pod, and pods that are surplus, ended, or on a wrong node."""
        creations: list[str] = []
        deletions: list[WorkloadPod] = []
        for node in self._nodes:
            there = self._pods_by_node.get(node.name, [])
            staying = [pod for pod in there if not pod.is_terminating]
            is_desired = should_run(self._spec, node)
            if not is_desired and not may_stay(self._spec, node):
                deletions += staying
                continue
            deletions += [pod for pod in staying if pod.has_ended]
            running = [pod for pod in staying if not pod.has_ended]
            # Without a surge a node waits until its old pod is gone.
            if is_desired and not (running if self.bounds.max_surge else there):
                creations.append(node.name)
            deletions += self._surplus(running)
        return creations, deletions

    def replace(self) -> tuple[list[str], list[WorkloadPod]]:
        """Return old pods that may be deleted; their nodes get new ones afterwards."""
        missing = 0
        useless: list[WorkloadPod] = []
        candidates: list[WorkloadPod] = []
        for _, new, old in self._pairs():
            if old is None:
                missing += new is None or not self._is_available(new)
            elif self._is_available(old):
                candidates.append(old)
            else:
                useless.append(old)
                missing += 1
        return [], useless + candidates[: max(0, self.bounds.max_unavailable - missing)]

    def surge(self) -> tuple[list[str], list[WorkloadPod]]:
        """Return nodes that may get a new pod beside the old one, and old pods to delete."""
        surging = 0
        at_once: list[str] = []
        candidates: list[str] = []
        deletions: list[WorkloadPod] = []
        for node, new, old in self._pairs():
            if old is None:
                continue
            if new is not None:
                if self._is_available(new):
                    deletions.append(old)
                else:
                    surging += 1
            elif not should_run(self._spec, node):
                if not self._is_available(old):
                    deletions.append(old)
            elif self._is_available(old):
                candidates.append(node.name)
            else:
                at_once.append(node.name)
        return at_once + candidates[: max(0, self.bounds.max_surge - surging)], deletions

    def _pairs(self) -> Iterable[tuple[Node, WorkloadPod | None, WorkloadPod | None]]:
        """Yield each node that has pods, with its new and its old pod."""
        for node in self._nodes:
            if node.name in self._pods_by_node:
                there = [pod for pod in self._pods_by_node[node.name] if not pod.is_terminating]
                new = next((pod for pod in there if self._is_new(pod)), None)
                yield node, new, next((pod for pod in there if not self._is_new(pod)), None)

    def _surplus(self, running: Sequence[WorkloadPod]) -> list[WorkloadPod]:
        if not self.bounds.max_surge:
            return list(running[1:])
        new = [pod for pod in running if self._is_new(pod)]
        old = [pod for pod in running if not self._is_new(pod)]
        extra = new[1:] + old[1:]
        if new and old and (not old[0].is_ready or self._is_available(new[0])):
            extra.append(old[0])
        return extra

    def _is_new(self, pod: WorkloadPod) -> bool:
        return pod.metadata.labels.get(REVISION_LABEL) == self._hash

    def _is_available(self, pod: WorkloadPod) -> bool:
        least = self._set.spec.min_ready_seconds
        return is_pod_available(pod, min_ready_s=least, now=self._now)


class DaemonSetSync:
    """Carries out the plans of DaemonSets."""

    def __init__(
        self,
        client: Client,
        caches: LabCaches,
        *,
        expectations: Expectations,
        writer: PodWriter,
        clock: Clock,
        random: Random,
    ) -> None:
        self._client, self._caches = client, caches
        self._expectations, self._writer = expectations, writer
        self._clock, self._random = clock, random

    async def sync(self, key: NamespacedName) -> float | None:
        """Sync a DaemonSet; return the seconds after which to sync it again without a change."""
        daemon_set = self._caches.daemon_sets.get(key)
        if daemon_set is None:
            return None
        # NB: read at the same moment as the pods, so that both are of the same state.
        wait_s = self._expectations.wait_s(daemon_set.metadata.uid)
        claims = sort_claims(
            daemon_set,
            self._caches.pods_of(daemon_set.metadata.uid),
            self._caches.orphan_pods(key.namespace),
        )
        pods = await settle_claims(self._client, LAB_PODS, daemon_set, claims)
        nodes = self._caches.nodes.all()
        plan = plan_daemon_set(daemon_set, nodes, pods, now=self._clock.now())
        await self._write_status(daemon_set, plan)
        if wait_s is None:
            if plan.creations:
                await self._writer.create(daemon_set, self._new_pods(daemon_set, plan.creations))
            if plan.deletions:
                await self._writer.delete(daemon_set, plan.deletions)
        return min((wait for wait in (wait_s, plan.recheck_s) if wait is not None), default=None)

    def _new_pods(self, daemon_set: DaemonSet, nodes: tuple[str, ...]) -> list[NewPod]:
        labels = daemon_labels(daemon_set)
        spec = daemon_spec(daemon_set.spec.template)
        new_pods: list[NewPod] = []
        for node in nodes:
            name = name_pod(daemon_set.metadata.name, self._random)
            body = put_on_node(make_pod(daemon_set, name=name, labels=labels, spec=spec), node)
            new_pods.append(NewPod(body, read_pod(body) or WorkloadPod()))
        return new_pods

    async def _write_status(self, daemon_set: DaemonSet, plan: DaemonSetPlan) -> None:
        patch = patch_status(daemon_set.status, plan.status)
        if patch is None:
            return
        meta = daemon_set.metadata
        try:
            await self._client.patch(
                DAEMON_SETS, meta.name, patch, namespace=meta.namespace, subresource="status"
            )
        except NotFound:
            return
