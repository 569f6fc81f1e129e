"""Watches the cluster for the owners of addresses: Services, slices, Nodes and pods.

Pods of other nodes are endpoints of slices, or have an address in the pod CIDR of their Node, so
the agent watches the pods of its own node only. Where Nodes have no pod CIDRs and the user gave no
ranges, it watches all pods. Changes that concern no address are not passed on: Nodes report their
state all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from keepclose.accounting.address_book import AddressBook
from keepclose.flows.settings import FlowSettings
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.runtime.program import Parts

_POLL_S: Final = 0.02


class SteadyTime:
    """Seconds of the Unix epoch at the start, and monotonic time since: it never jumps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return self._clock.monotonic() + self._offset


class NameSources:
    """Keeps an address book up to date; run it once."""

    def __init__(
        self,
        book: AddressBook,
        settings: FlowSettings,
        *,
        client: Client,
        clock: Clock,
        now: Callable[[], float],
    ) -> None:
        self._book, self._settings, self._now = book, settings, now
        self._client, self._clock = client, clock
        self._nodes: Cache[Node] = Cache()
        self._services: Cache[Service] = Cache()
        self._slices: Cache[EndpointSlice] = Cache()
        self._pods: Cache[Pod] = Cache()
        self._all_pods: Cache[Pod] = Cache()
        self._needs_all_pods = asyncio.Event()
        self.synced = asyncio.Event()
        """Set once all caches were complete."""
        self._reflectors: list[Reflector[Any]] = []
        self._nodes.subscribe(self._on_node)
        self._services.subscribe(self._on_service)
        self._slices.subscribe(self._on_slice)
        self._pods.subscribe(self._on_pod)
        self._all_pods.subscribe(self._on_pod)

    @property
    def is_synced(self) -> bool:
        """Whether all caches were complete and the API server answers now."""
        return self.synced.is_set() and not any(
            reflector.failure is not None for reflector in self._reflectors
        )

    async def run(self) -> None:
        """Watch until cancelled; only unusable settings end it earlier."""
        parts = Parts()

        def start(reflector: Reflector[Any]) -> Reflector[Any]:
            self._reflectors.append(reflector)
            parts.start(reflector.run())
            return reflector

        async def go_on() -> None:
            # NB: a pod in the host network is recognised by the address of its Node, and a slice
            # of a headless Service by its Service, so those come first.
            first = [
                start(Reflector(self._client, NODES, self._nodes, clock=self._clock)),
                start(Reflector(self._client, SERVICES, self._services, clock=self._clock)),
            ]
            for reflector in first:
                await reflector.synced.wait()
            selector = f"spec.nodeName={self._settings.node_name}"
            then = [
                start(Reflector(self._client, ENDPOINT_SLICES, self._slices, clock=self._clock)),
                start(
                    Reflector(
                        self._client,
                        PODS,
                        self._pods,
                        clock=self._clock,
                        field_selector=selector,
                    )
                ),
            ]
            if self._needs_all_pods.is_set():
                then.append(start(self._watch_all_pods()))
            for reflector in then:
                await reflector.synced.wait()
            self.synced.set()
            if len(then) == 2:
                await self._needs_all_pods.wait()
                start(self._watch_all_pods())

        if self._settings.watches_all_pods:
            self._needs_all_pods.set()
        try:
            await parts.until(go_on())
            await parts.until_ended()
        finally:
            await parts.stop()

    async def wait_synced(self) -> None:
        """Wait until all caches were complete; raise an error that waiting does not change."""
        while not self.synced.is_set():
            for reflector in tuple(self._reflectors):
                await reflector.wait_synced()
            await asyncio.sleep(0)
            if all(reflector.synced.is_set() for reflector in self._reflectors):
                await self._clock.sleep(_POLL_S)

    def _watch_all_pods(self) -> Reflector[Pod]:
        return Reflector(self._client, PODS, self._all_pods, clock=self._clock)

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if new is None:
            if old is not None:
                self._book.remove_node(old.name, at=self._now())
            return
        if old is not None and _node_facts(old) == _node_facts(new):
            return
        self._book.set_node(new, at=self._now())
        has_range = bool(new.spec.pod_cidrs or new.spec.pod_cidr)
        if (
            not has_range
            and not self._settings.cluster_ranges
            and self._settings.watches_all_pods is None
        ):
            self._needs_all_pods.set()

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        if new is None:
            if old is not None:
                self._book.remove_service(old.key, at=self._now())
        elif old is None or old.spec != new.spec or old.status != new.status:
            self._book.set_service(new, at=self._now())

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if new is None:
            if old is not None:
                self._book.remove_slice(old.metadata.key, at=self._now())
        elif (
            old is None
            or old.endpoints != new.endpoints
            or old.ports != new.ports
            or old.service_key != new.service_key
        ):
            self._book.set_slice(new, at=self._now())

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._book.remove_pod(old.key, at=self._now())
        elif old is None or _pod_facts(old) != _pod_facts(new):
            self._book.set_pod(new, at=self._now())


def _node_facts(node: Node) -> tuple[object, ...]:
    return node.zone, node.status.addresses, node.spec.pod_cidrs, node.spec.pod_cidr


def _pod_facts(pod: Pod) -> tuple[object, ...]:
    status, metadata = pod.status, pod.metadata
    return (
        metadata.uid,
        status.phase,
        status.pod_ip,
        status.pod_ips,
        pod.spec.node_name,
        metadata.owner_references,
    )
