"""The kubelets of all nodes of a lab, in one event loop.

Level-based: a key says which pod to look at, the cache how it is wanted, and its life how it is.
A pod that was given to a node gets a place on the network, something that listens there, and a
status; one that was asked to end serves on for its time and is then deleted; one that is gone from
the API is gone here at once. What fails for one pod comes back after a growing delay and holds
nobody else up. A pod that another process left behind as running is started anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog

from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import ApiError, Conflict, KubeError, NotFound
from keepclose.kube.kinds import NODES
from keepclose.kube.recorder import EventRecorder
from keepclose.kube.reflector import Reflector
from keepclose.kube.requests import PatchType
from keepclose.kube.workqueue import WorkQueue
from keepclose.lab.answerers import Answers
from keepclose.lab.containerlives import Moment
from keepclose.lab.listeners import open_listener
from keepclose.lab.podlives import Happening, PodLife
from keepclose.lab.podmodes import Mode, mode_of, ports_of
from keepclose.lab.podnetworks import PodNetwork, PodPlace
from keepclose.lab.podspecs import KUBELET_PODS, KubeletPod
from keepclose.lab.podstatuses import status_patch
from keepclose.lab.resourcefit import TOO_MANY_PODS, resource_refusals
from keepclose.model.meta import NamespacedName
from keepclose.model.workload import Node
from keepclose.network.namespaces import NetworkError

COMPONENT: Final = "kubelet"
LINGER_S: Final = 1.0
WRITES_AT_ONCE: Final = 8
OUT_OF_PODS: Final = "OutOfpods"
_FIRST_RETRY_S: Final = 0.1
_LAST_RETRY_S: Final = 60.0
_log = structlog.get_logger(__name__)


class Kubelets:
    """Plays the kubelets of the nodes; run it once.

    Give it a client that does not repeat requests by itself: delays are the queue's.
    """

    def __init__(
        self,
        client: Client,
        network: PodNetwork,
        *,
        clock: Clock,
        nodes: Sequence[str],
        recorder: EventRecorder | None = None,
        linger_s: float = LINGER_S,
    ) -> None:
        self._client, self._network, self._clock = client, network, clock
        self._recorder = recorder or EventRecorder(client, component=COMPONENT, clock=clock)
        self._own = frozenset(nodes)
        self._failed: set[str] = set()
        self._linger_s = linger_s
        self._lives: dict[NamespacedName, PodLife] = {}
        self._on_node: Counter[str] = Counter()
        # Pods that the API has no more; those of failed nodes run on, others may have their names.
        self._lost: set[PodLife] = set()
        # The UIDs of pods that were deleted here and that the cache still shows.
        self._deleted: dict[NamespacedName, str] = {}
        self._slots = asyncio.Semaphore(WRITES_AT_ONCE)
        self.pods: Cache[KubeletPod] = Cache()
        self.nodes: Cache[Node] = Cache()
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, NODES, self.nodes, clock=clock),
            Reflector(client, KUBELET_PODS, self.pods, clock=clock),
        )
        self.queue: WorkQueue[NamespacedName] = WorkQueue(
            clock, first_delay_s=_FIRST_RETRY_S, cap_delay_s=_LAST_RETRY_S
        )
        self.pods.subscribe(self._pod_changed)
        self.synced = asyncio.Event()
        """Set once all caches have been complete and the work began."""

    @property
    def is_idle(self) -> bool:
        """Whether no pod is being looked at or waits for that; some may wait for their time."""
        return not (self.queue.depth or self.queue.running)

    def zone_of(self, node: str) -> str:
        """Return the zone that the node's label names now, "" for none."""
        found = self.nodes.get(NamespacedName("", node))
        return found.zone if found is not None else ""

    def place_of(self, key: NamespacedName) -> PodPlace | None:
        """Return where a pod lives here, None when it does not."""
        life = self._lives.get(key)
        return life.place if life is not None else None

    def fail(self, node: str) -> None:
        """Let a node's kubelet do and report nothing any more; its pods run on as they are."""
        self._failed.add(node)

    def recover(self, node: str) -> None:
        """Let a node's kubelet work again and look at all its pods."""
        self._failed.discard(node)
        for key in (*self._lives, *self.pods, *(life.key for life in self._lost)):
            self.queue.add(key)

    async def run(self) -> None:
        """Run until cancelled; only settings that cannot work end it by themselves.

        Nothing is reported at the end: to the cluster the pods run on, and whoever is next starts
        them anew.
        """
        background: list[Coroutine[Any, Any, Any]] = [one.run() for one in self._reflectors]
        background += [self._recorder.run(), self._work_all()]
        tasks = [asyncio.create_task(one) for one in background]
        try:
            # NB: none of them ends but by an error.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for life in (*self._lives.values(), *self._lost):
                life.close()

    def _pod_changed(self, old: KubeletPod | None, new: KubeletPod | None) -> None:
        for pod in (old, new):
            if pod is not None and pod.spec.node_name in self._own:
                self.queue.add(pod.key)
                return

    async def _work_all(self) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self.synced.set()
        # NB: as many at once as there are, because most of them wait for the network together.
        async with asyncio.TaskGroup() as group:
            while (key := await self.queue.get()) is not None:
                group.create_task(self._work(key))

    async def _work(self, key: NamespacedName) -> None:
        try:
            again_s = await self._visit(key)
        except Conflict:
            # Another pod has the name by now, and is on its way to the cache.
            self.queue.retry(key)
        except KubeError as error:
            after_s = error.retry_after if isinstance(error, ApiError) else None
            self.queue.retry(key, at_least_s=after_s or 0.0)
            _log.warning("pod not reported", pod=str(key), error=str(error))
        except Exception:  # noqa: BLE001 - whatever it is, it is told, and the pod comes back
            _log.exception("pod not tended", pod=str(key))
            self.queue.retry(key)
        else:
            self.queue.forget(key)
            if again_s is not None:
                self.queue.add_after(key, again_s)
        finally:
            self.queue.done(key)

    async def _visit(self, key: NamespacedName) -> float | None:
        """Look at one pod; return when to look again though nothing changed."""
        life, pod = self._lives.get(key), self.pods.get(key)
        if pod is None or pod.uid != self._deleted.get(key):
            self._deleted.pop(key, None)
        if life is not None and (pod is None or pod.uid != life.uid):
            self._lost.add(life)
            self._remove(life)
            life = None
        for lost in [one for one in self._lost if one.key == key and one.node not in self._failed]:
            await self._bury(lost)
        if pod is None or not self._tends(pod.spec.node_name):
            return None
        if pod.is_terminating:
            return await self._end(pod, life)
        if pod.has_ended:
            if life is not None:
                await self._bury(life)
            return None
        if life is None:
            if rejection := self._rejection(pod):
                await self._reject(pod, rejection)
                return None
            life = self._lives[key] = PodLife(pod, self._now())
            self._on_node[life.node] += 1
        if life.may_begin(self._now()):
            await self._begin(pod, life)
        self._tell(pod, life.move(self._now()))
        await self._report(pod, life)
        return life.due_in(self._now())

    async def _begin(self, pod: KubeletPod, life: PodLife) -> None:
        """Give a pod its place and let it listen there."""
        spec = pod.spec
        answers = Answers(
            pod=pod.metadata.name,
            node=life.node,
            zone=lambda: self.zone_of(life.node),
            names_only=any(mode_of(one) is Mode.SERVE_HOSTNAME for one in spec.lasting),
        )
        try:
            if life.on_host:
                place = await self._network.host(life.node)
            else:
                place = await self._network.attach(life.node, life.uid)
            listener = await open_listener(
                place, ports_of(spec.lasting), answers, on_host=life.on_host
            )
        except (NetworkError, OSError) as error:
            text = f"Failed to create pod sandbox: {error}"
            self._recorder.record(pod.reference(), "Warning", "FailedCreatePodSandBox", text)
            life.hold(self._now())
            return
        self._tell(pod, life.begin(place, listener, self._now()))

    async def _end(self, pod: KubeletPod, life: PodLife | None) -> float | None:
        """Let a pod serve until its time is over, then take it away; return when that is."""
        if life is not None and life.place is not None:
            now = self._now()
            self._tell(pod, life.end(pod, now, linger_s=self._linger_s))
            if not life.must_stop(now):
                self._tell(pod, life.move(now))
                await self._report(pod, life)
                return life.due_in(self._now())
            life.stop(now)
            with suppress(NotFound, Conflict):
                await self._report(pod, life)
        if life is not None:
            await self._bury(life)
        await self._delete(pod)
        return None

    async def _bury(self, life: PodLife) -> None:
        """Take away what a pod has on its node."""
        life.close()
        if not life.on_host:
            try:
                await self._network.detach(life.uid)
            except NetworkError as error:
                _log.warning("pod not taken away", pod=str(life.key), error=str(error))
        self._lost.discard(life)
        if self._lives.get(life.key) is life:
            self._remove(life)

    def _remove(self, life: PodLife) -> None:
        """Forget a pod, which leaves its place in the count of its node to another."""
        del self._lives[life.key]
        self._on_node[life.node] -= 1

    def _rejection(self, pod: KubeletPod) -> str:
        """Return why a pod that was given to a full node does not start, "" where there is room.

        Only a pod that names its node gets here: the scheduler counts the same room.
        """
        name = pod.spec.node_name
        node = self.nodes.get(NamespacedName("", name))
        used = self._on_node[name]
        if node is None or TOO_MANY_PODS not in resource_refusals({}, node, used={}, pods=used):
            return ""
        capacity = node.status.allocatable["pods"]
        return (
            "Pod was rejected: Node didn't have enough resource: pods, requested: 1, "
            f"used: {used}, capacity: {capacity}"
        )

    async def _reject(self, pod: KubeletPod, message: str) -> None:
        """Report that a pod failed before it started, in a kubelet's words."""
        self._recorder.record(pod.reference(), "Warning", OUT_OF_PODS, message)
        meta = pod.metadata
        status = {"phase": "Failed", "reason": OUT_OF_PODS, "message": message}
        async with self._slots:
            with suppress(NotFound):
                await self._client.patch(
                    KUBELET_PODS,
                    meta.name,
                    {"metadata": {"uid": meta.uid}, "status": status},
                    namespace=meta.namespace,
                    type=PatchType.STRATEGIC,
                    subresource="status",
                )

    async def _report(self, pod: KubeletPod, life: PodLife) -> None:
        """Write the status of a pod, if it is news."""
        stored = life.note_stored(pod)
        patch = status_patch(stored.status, life.status(stored, self._now()))
        if patch is None or not self._tends(life.node):
            return
        meta = pod.metadata
        async with self._slots:
            try:
                answer = await self._client.patch(
                    KUBELET_PODS,
                    meta.name,
                    {"metadata": {"uid": meta.uid}, "status": patch},
                    namespace=meta.namespace,
                    type=PatchType.STRATEGIC,
                    subresource="status",
                )
            except NotFound:
                return
        life.note_stored(answer)

    async def _delete(self, pod: KubeletPod) -> None:
        """Delete a pod for good, once: the cache may show it for a while, and finalizers longer."""
        meta = pod.metadata
        if self._deleted.get(pod.key) == meta.uid:
            return
        async with self._slots:
            with suppress(NotFound, Conflict):
                await self._client.delete(
                    KUBELET_PODS,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    grace_period=0,
                )
                # NB: not after a conflict: the server may ask for another attempt.
                self._deleted[pod.key] = meta.uid

    def _tell(self, pod: KubeletPod, happenings: Iterable[Happening]) -> None:
        for one in happenings:
            reference = pod.reference(one.container)
            self._recorder.record(reference, one.severity, one.reason, one.message)

    def _tends(self, node: str) -> bool:
        return node in self._own and node not in self._failed

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.now())


__all__ = ["Kubelets", "PodNetwork", "PodPlace"]
