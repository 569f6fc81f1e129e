"""Makes a DaemonSet have its pod on every node that should, and writes its status.

Its pods come with their node: nobody else has a say in where they go.
"""

from __future__ import annotations

from random import Random

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import NotFound
from keepclose.lab.ownership import settle_claims, sort_claims
from keepclose.lab.podmaking import daemon_spec, make_pod, name_pod, put_on_node, read_pod
from keepclose.lab.statuspatches import patch_status
from keepclose.lab.workloads.caches import WorkloadCaches
from keepclose.lab.workloads.daemonsets import DaemonSetPlan, daemon_labels, plan_daemon_set
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pod_writes import NewPod, PodWriter
from keepclose.lab.workloads.pods import PODS, WorkloadPod
from keepclose.lab.workloads.types import DAEMON_SETS, DaemonSet
from keepclose.model.meta import NamespacedName


class DaemonSetSync:
    """Carries out the plans of DaemonSets."""

    def __init__(
        self,
        client: Client,
        caches: WorkloadCaches,
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
        """Bring one DaemonSet forward; return when to look again though nothing changed."""
        daemon_set = self._caches.daemon_sets.get(key)
        if daemon_set is None:
            return None
        # NB: at the same moment as the pods; what is seen later must not count for either.
        wait_s = self._expectations.wait_s(daemon_set.metadata.uid)
        claims = sort_claims(
            daemon_set,
            self._caches.pods_of(daemon_set.metadata.uid),
            self._caches.orphan_pods(key.namespace),
        )
        pods = await settle_claims(self._client, PODS, daemon_set, claims)
        nodes = self._caches.nodes.all()
        plan = plan_daemon_set(daemon_set, nodes, pods, now=self._clock.now())
        await self._write_status(daemon_set, plan)
        if wait_s is None:
            if plan.creations:
                await self._writer.create(daemon_set, self._new_pods(daemon_set, plan.creations))
            if plan.deletions:
                await self._writer.delete(daemon_set, plan.deletions)
        return min((one for one in (wait_s, plan.recheck_s) if one is not None), default=None)

    def _new_pods(self, daemon_set: DaemonSet, nodes: tuple[str, ...]) -> list[NewPod]:
        labels = daemon_labels(daemon_set)
        spec = daemon_spec(daemon_set.spec.template)
        found: list[NewPod] = []
        for node in nodes:
            name = name_pod(daemon_set.metadata.name, self._random)
            body = put_on_node(make_pod(daemon_set, name=name, labels=labels, spec=spec), node)
            found.append(NewPod(body, read_pod(body) or WorkloadPod()))
        return found

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
