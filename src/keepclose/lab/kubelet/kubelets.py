"""The kubelets of all nodes of a lab, in one event loop.

Level-based: the queue names a pod, the cache has its desired state, and a PodInstance its actual
state. A pod that is bound to a node gets addresses, a listener and a status. A terminating pod
serves during its grace period and is then deleted. A pod that is gone from the API is torn down at
once. A failure requeues its pod with backoff and delays no other. A pod that an earlier process
reported as running is started again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import Conflict, NotFound
from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import PatchType
from keepclose.kube.work_queue import WorkQueue
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.kubelet.container_modes import ContainerMode, mode_of, ports_of
from keepclose.lab.kubelet.container_runtime import Moment
from keepclose.lab.kubelet.pod_networks import PodNetwork, PodPlace
from keepclose.lab.kubelet.pod_runtime import ContainerEvent, PodInstance
from keepclose.lab.kubelet.pod_servers import PodReplies, open_listener
from keepclose.lab.kubelet.pod_status import status_patch
from keepclose.lab.kubelet.probes import LabProbe
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.node_fit import TOO_MANY_PODS, resource_refusals
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.runtime.program import run_parts
from keepclose.runtime.workers import Workers
from keepclose.system.namespaces import NetworkError
from keepclose.system.threads import finish_in_thread

_COMPONENT: Final = "kubelet"
LINGER_S: Final = 1.0
WRITES_AT_ONCE: Final = 8
OUT_OF_PODS: Final = "OutOfpods"
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 60.0
_log = structlog.get_logger(__name__)


class Kubelets:
    """The kubelets of the nodes; run it once, beside the caches.

    The client must not retry requests by itself: the queue decides on delays.
    """

    def __init__(
        self,
        client: Client,
        network: PodNetwork,
        caches: LabCaches,
        *,
        clock: Clock,
        nodes: Sequence[str],
        recorder: EventRecorder | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        self._client, self._network, self._clock = client, network, clock
        self._recorder = recorder or EventRecorder(client, component=_COMPONENT, clock=clock)
        self._own = frozenset(nodes)
        self._failed: set[str] = set()
        self._linger_s = linger_s
        self._instances: dict[NamespacedName, PodInstance] = {}
        self._on_node: Counter[str] = Counter()
        # Pods that are gone from the API. On failed nodes they run on; their names may be reused.
        self._lost: set[PodInstance] = set()
        # The UIDs of pods that were deleted here while the cache still has them.
        self._deleted: dict[NamespacedName, str] = {}
        self._probes: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self.caches = caches
        self.queue: WorkQueue[NamespacedName] = WorkQueue(
            clock, first_delay_s=_FIRST_RETRY_S, cap_delay_s=_LAST_RETRY_S
        )
        caches.pods.subscribe(self._on_pod)
        self.synced = asyncio.Event()
        """Set once the caches have synced and pods are worked on."""

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty and no pod is worked on; pods may still be due later."""
        return not (self.queue.depth or self.queue.running)

    def zone_of(self, node: str) -> str:
        """Return the zone that the node's label names now, "" for none."""
        cached = self.caches.nodes.get(NamespacedName("", node))
        return cached.zone if cached is not None else ""

    def place_of(self, key: NamespacedName) -> PodPlace | None:
        """Return the addresses of a pod, None if it has no instance here."""
        instance = self._instances.get(key)
        return instance.place if instance is not None else None

    def fail(self, node: str) -> None:
        """Stop all work and reports of a node's kubelet; its pods run on as they are."""
        self._failed.add(node)

    def recover(self, node: str) -> None:
        """Let a node's kubelet work again, and requeue all its pods."""
        self._failed.discard(node)
        for key in (
            *self._instances,
            *self.caches.pods,
            *(instance.key for instance in self._lost),
        ):
            self.queue.add(key)

    async def run(self) -> None:
        """Run until cancelled; only unusable settings end it earlier.

        Nothing is reported at the end: in the API the pods run on, and the next process starts them
        again.
        """
        try:
            await run_parts((self._recorder.run(), self._work()))
        finally:
            for instance in (*self._instances.values(), *self._lost):
                instance.close()
            await asyncio.gather(*self._probes, return_exceptions=True)

    def _on_pod(self, old: WorkloadPod | None, new: WorkloadPod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.spec.node_name in self._own:
                self.queue.add(pod.key)
                return

    async def _work(self) -> None:
        await self.caches.synced.wait()
        self.synced.set()
        # NB: no limit of workers, because most of them wait for the network together.
        await Workers(self.queue, self._sync, kind="Pod", clock=self._clock).run()

    async def _sync(self, key: NamespacedName) -> float | None:
        """Bring a pod to its desired state; return the seconds until a change is due."""
        instance, pod = self._instances.get(key), self.caches.pods.get(key)
        if pod is None or pod.uid != self._deleted.get(key):
            self._deleted.pop(key, None)
        if instance is not None and (pod is None or pod.uid != instance.uid):
            self._lost.add(instance)
            self._remove(instance)
            instance = None
        lost = [gone for gone in self._lost if gone.key == key and gone.node not in self._failed]
        for lost_instance in lost:
            await self._tear_down(lost_instance)
        if pod is None or not self._is_served(pod.spec.node_name):
            return None
        if pod.is_terminating:
            return await self._end(pod, instance)
        if pod.has_ended:
            if instance is not None:
                await self._tear_down(instance)
            return None
        if instance is None:
            if rejection := self._rejection(pod):
                await self._reject(pod, rejection)
                return None
            instance = self._instances[key] = PodInstance(pod, self._now())
            self._on_node[instance.node] += 1
        if instance.may_start(self._now()):
            await self._start(pod, instance)
        self._record_events(pod, instance.move(self._now()))
        await self._report(pod, instance)
        return instance.due_in(self._now())

    async def _start(self, pod: WorkloadPod, instance: PodInstance) -> None:
        """Give a pod its addresses and open its listener."""
        spec = pod.spec
        replies = PodReplies(
            pod=pod.metadata.name,
            node=instance.node,
            zone=lambda: self.zone_of(instance.node),
            names_only=any(
                mode_of(container) is ContainerMode.SERVE_HOSTNAME for container in spec.lasting
            ),
        )
        try:
            if instance.on_host:
                place = await self._network.host(instance.node)
            else:
                place = await self._network.attach(instance.node, instance.uid)
            listener = await open_listener(
                place, ports_of(spec.lasting), replies, on_host=instance.on_host
            )
        except (NetworkError, OSError) as error:
            text = f"Failed to create pod sandbox: {error}"
            self._recorder.record(pod.reference(), "Warning", "FailedCreatePodSandBox", text)
            instance.back_off(self._now())
            return
        self._record_events(pod, instance.start(place, listener, self._now()))
        for name, probe in instance.probes():
            task = asyncio.create_task(self._probe(instance, name, probe))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

    async def _probe(self, instance: PodInstance, name: str, probe: LabProbe) -> None:
        """Run a container that connects to a Service, and end it with its log."""
        namespace = instance.place.namespace if instance.place is not None else None
        log = ""
        if namespace is not None:
            try:
                log = await finish_in_thread(
                    lambda: namespace.do(lambda: probe.run(instance.stopped))
                )
            except NetworkError as error:
                _log.warning("probe ended", pod=str(instance.key), error=str(error))
        instance.finish(name, log, self._now())
        self.queue.add(instance.key)

    async def _end(self, pod: WorkloadPod, instance: PodInstance | None) -> float | None:
        """Let a pod serve until its grace period ends, then delete it; return when that is due."""
        if instance is not None and instance.place is not None:
            now = self._now()
            self._record_events(pod, instance.end(pod, now, linger_s=self._linger_s))
            if not instance.must_stop(now):
                self._record_events(pod, instance.move(now))
                await self._report(pod, instance)
                return instance.due_in(self._now())
            instance.stop(now)
            with suppress(NotFound, Conflict):
                await self._report(pod, instance)
        if instance is not None:
            await self._tear_down(instance)
        await self._delete(pod)
        return None

    async def _tear_down(self, instance: PodInstance) -> None:
        """Release the listener and the addresses of a pod."""
        instance.close()
        if not instance.on_host:
            try:
                await self._network.detach(instance.uid)
            except NetworkError as error:
                _log.warning("pod network not released", pod=str(instance.key), error=str(error))
        self._lost.discard(instance)
        if self._instances.get(instance.key) is instance:
            self._remove(instance)

    def _remove(self, instance: PodInstance) -> None:
        """Forget a pod, so that it no longer counts on its node."""
        del self._instances[instance.key]
        self._on_node[instance.node] -= 1

    def _rejection(self, pod: WorkloadPod) -> str:
        """Return why a full node rejects the pod, "" if the pod fits.

        This concerns pods that name their node: the scheduler counts the same capacity.
        """
        name = pod.spec.node_name
        node = self.caches.nodes.get(NamespacedName("", name))
        used = self._on_node[name]
        if node is None or TOO_MANY_PODS not in resource_refusals({}, node, used={}, pods=used):
            return ""
        capacity = node.status.allocatable["pods"]
        return (
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, "
            f"used: {used}, capacity: {capacity}"
        )

    async def _reject(self, pod: WorkloadPod, message: str) -> None:
        """Report that a pod failed before it started, as a kubelet does."""
        self._recorder.record(pod.reference(), "Warning", OUT_OF_PODS, message)
        meta = pod.metadata
        status = {"phase": "Failed", "reason": OUT_OF_PODS, "message": message}
        async with self._slots:
            with suppress(NotFound):
                await self._client.patch(
                    LAB_PODS,
                    meta.name,
                    {"metadata": {"uid": meta.uid}, "status": status},
                    namespace=meta.namespace,
                    type=PatchType.STRATEGIC,
                    subresource="status",
                )

    async def _report(self, pod: WorkloadPod, instance: PodInstance) -> None:
        """Write the status of a pod if it has changed."""
        stored = instance.record_stored(pod)
        patch = status_patch(stored.status, instance.status(stored, self._now()))
        if patch is None or not self._is_served(instance.node):
            return
        meta = pod.metadata
        async with self._slots:
            try:
                answer = await self._client.patch(
                    LAB_PODS,
                    meta.name,
                    {"metadata": {"uid": meta.uid}, "status": patch},
                    namespace=meta.namespace,
                    type=PatchType.STRATEGIC,
                    subresource="status",
                )
            except NotFound:
                return
        instance.record_stored(answer)

    async def _delete(self, pod: WorkloadPod) -> None:
        """Delete a pod once: the cache may have it for a while, and with finalizers for longer."""
        meta = pod.metadata
        if self._deleted.get(pod.key) == meta.uid:
            return
        async with self._slots:
            with suppress(NotFound, Conflict):
                await self._client.delete(
                    LAB_PODS,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    grace_period=0,
                )
                # NB: not after a conflict: the server may ask for another attempt.
                self._deleted[pod.key] = meta.uid

    def _record_events(self, pod: WorkloadPod, events: Iterable[ContainerEvent]) -> None:
        for event in events:
            reference = pod.reference(event.container)
            self._recorder.record(reference, event.severity, event.reason, event.message)

    def _is_served(self, node: str) -> bool:
        return node in self._own and node not in self._failed

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now())


__all__ = ["Kubelets", "PodNetwork", "PodPlace"]
