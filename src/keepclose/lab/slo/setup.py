"""The objects of a measurement, all in one namespace, and the disruptions of their pods.

Restarts are rolling restarts of a whole workload. Moves delete pods at once: pods of a DaemonSet
come back on their node, pods of a Deployment on another one, because their node is cordoned during
the measurement. Everything is removed at the end, also after a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Final

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError, NotFound
from keepclose.kube.requests import NAMESPACES, SERVICES, Kind
from keepclose.lab.access import LabRefusal
from keepclose.lab.faults.node_states import delete_pods
from keepclose.lab.faults.node_status import LIFECYCLE_NODES, cordon_patch, uncordon_patch
from keepclose.lab.kinds import LAB_PODS, PLAIN_DAEMON_SETS, PLAIN_DEPLOYMENTS
from keepclose.lab.slo.figures import (
    EVERYWHERE,
    MEASUREMENT_LABEL,
    Policy,
    make_daemon_set,
    make_deployment,
    make_service,
    restart_patch,
)
from keepclose.lab.workloads.pods import name_pod
from keepclose.model.json_values import JsonObject
from keepclose.model.service.types import Service
from keepclose.model.timestamps import format_event_time
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import ready_count

PURPOSE: Final = "slo"
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 60.0
_MOVED_EVERY: Final = 3
"""Every third node loses its pod of a DaemonSet at once."""


class SloNamespace:
    """A namespace with workloads and Services, for one measurement."""

    def __init__(self, client: Client, *, clock: Clock, random: Random) -> None:
        self._client, self._clock = client, clock
        self.namespace = name_pod("keepclose-slo", random)
        self._cordoned: set[str] = set()

    async def create(self, policies: Sequence[Policy], nodes: int) -> dict[str, Service]:
        """Create everything, wait until all pods are ready, and return the Services by policy."""
        await self._remove_old()
        client, namespace = self._client, self.namespace
        meta = {"name": namespace, "labels": {MEASUREMENT_LABEL: PURPOSE}}
        await client.create(NAMESPACES, {"metadata": meta})
        await client.create(PLAIN_DAEMON_SETS, make_daemon_set(), namespace=namespace)
        await client.create(PLAIN_DEPLOYMENTS, make_deployment(nodes), namespace=namespace)
        services = {
            policy.title: await client.create(SERVICES, make_service(policy), namespace=namespace)
            for policy in policies
        }
        for policy in policies:
            await self.until_ready(policy.workload)
        return services

    async def until_ready(self, workload: str) -> None:
        """Wait until all pods of a workload are updated and ready; raises LabRefusal."""
        began = self._clock.monotonic()
        while not await self._is_ready(workload):
            if self._clock.monotonic() - began > _TIMEOUT_S:
                raise LabRefusal(
                    f"the pods of {self.namespace}/{workload} are not ready after "
                    f"{_TIMEOUT_S:g} s; keepclose lab status shows the nodes",
                    code=1,
                )
            await self._clock.sleep(_POLL_S)

    async def restart(self, workload: str) -> None:
        """Restart all pods of a workload, a few at a time."""
        patch = restart_patch(format_event_time(self._clock.now()))
        await self._client.patch(_kind_of(workload), workload, patch, namespace=self.namespace)

    async def move(self, workload: str) -> None:
        """Delete some pods of a workload at once; a Deployment creates them on other nodes."""
        pods = await self._pods(workload)
        nodes = sorted({pod.spec.node_name for pod in pods if pod.spec.node_name})
        chosen = nodes[:1]
        if workload == EVERYWHERE:
            chosen = nodes[::_MOVED_EVERY]
        else:
            for node in chosen:
                await self._cordon(node)
        await delete_pods(self._client, [pod for pod in pods if pod.spec.node_name in chosen])

    async def uncordon(self) -> None:
        """Uncordon the nodes that moves have cordoned."""
        for name in tuple(self._cordoned):
            with suppress(NotFound):
                patch = uncordon_patch(
                    await self._client.get(LIFECYCLE_NODES, name), only_ours=True
                )
                if patch is not None:
                    await self._client.patch(LIFECYCLE_NODES, name, patch)
            self._cordoned.discard(name)

    async def remove(self) -> None:
        """Undo everything; after an error of the server the next measurement cleans up."""
        with suppress(KubeError):
            await self.uncordon()
        with suppress(KubeError):
            await self._client.delete(NAMESPACES, self.namespace)
            await self._until_gone(self.namespace)

    async def _remove_old(self) -> None:
        """Delete the namespaces of measurements that were killed."""
        page = await self._client.list_all(
            NAMESPACES, label_selector=f"{MEASUREMENT_LABEL}={PURPOSE}"
        )
        for namespace in page.items:
            with suppress(NotFound):
                await self._client.delete(NAMESPACES, namespace.metadata.name)
                await self._until_gone(namespace.metadata.name)

    async def _until_gone(self, namespace: str) -> None:
        with suppress(NotFound, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    await self._client.get(NAMESPACES, namespace)
                    await self._clock.sleep(_POLL_S)

    async def _cordon(self, node: str) -> None:
        patch = cordon_patch(await self._client.get(LIFECYCLE_NODES, node))
        if patch is not None:
            self._cordoned.add(node)
            await self._client.patch(LIFECYCLE_NODES, node, patch)

    async def _pods(self, workload: str) -> list[WorkloadPod]:
        page = await self._client.list_all(
            LAB_PODS, namespace=self.namespace, label_selector=f"app={workload}"
        )
        return [pod for pod in page.items if not pod.is_terminating]

    async def _is_ready(self, workload: str) -> bool:
        stored = await self._client.get(_kind_of(workload), workload, namespace=self.namespace)
        return ready_count(stored) is not None


def _kind_of(workload: str) -> Kind[JsonObject]:
    return PLAIN_DAEMON_SETS if workload == EVERYWHERE else PLAIN_DEPLOYMENTS
