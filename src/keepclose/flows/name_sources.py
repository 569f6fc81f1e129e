"""Watches the cluster for the owners of addresses: Services, slices, Nodes and pods.

Pods of other nodes are endpoints of slices, or have an address in the pod CIDR of their Node, so
the agent watches the pods of its own node only. It watches all pods as long as that does not hold:

- no Node has a pod CIDR, or one has had none for a minute. A Node that joins gets its pod CIDR a
  moment after its kubelet created it, so that moment does not count.
- a pod of this node has an address outside the Node's pod CIDRs: then the network does not use
  them, and they say nothing about pods of other nodes either.

Changes that concern no address are not passed on: Nodes report their state all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple

import structlog

from keepclose.accounting.address_book import (
    AddressBook,
    addresses_of,
    has_ended,
    pack_address,
    show_address,
    tunnel_addresses_of,
)
from keepclose.flows.settings import FlowSettings
from keepclose.kube.cache import Cache
from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node, Pod
from keepclose.runtime.program import Parts

RANGE_WAIT_S: Final = 60.0
"""How long a Node may have no pod CIDR before the pods of all nodes are watched."""
_POLL_S: Final = 0.02
_log = structlog.get_logger(__name__)


class SteadyTime:
    """Seconds of the Unix epoch at the start, and monotonic time since: it never jumps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.now() - clock.monotonic()

    def __call__(self) -> float:
        """Return the time."""
        return self._clock.monotonic() + self._offset


class WrongNodeName(NamedTuple):
    """A name that no Node has."""

    name: str
    reason: str
    nearest: str
    """The Node that is probably meant; "" if there is none."""

    @property
    def problem(self) -> str:
        """What is wrong."""
        return f"no Node has the name {self.name}: {self.reason}"

    @property
    def fix(self) -> str:
        """What to do."""
        if not self.nearest:
            return "check which cluster the kubeconfig names"
        return f"pass --node-name {self.nearest}, if that is the Node of this host"


class PodScope:
    """Whether the pods of all nodes must be watched, from what Nodes have."""

    def __init__(self) -> None:
        self._with_range: set[str] = set()
        self._without: dict[str, float] = {}
        """Since when a Node has had no pod CIDR."""
        self.are_ranges_unused = False
        """Whether pods have addresses outside the pod CIDRs of their Node."""

    def set_node(self, name: str, *, has_range: bool, at: float) -> None:
        """Record whether a Node has a pod CIDR."""
        if has_range:
            self._with_range.add(name)
            self._without.pop(name, None)
        else:
            self._with_range.discard(name)
            self._without.setdefault(name, at)

    def remove_node(self, name: str) -> None:
        """Record that a Node was deleted."""
        self._with_range.discard(name)
        self._without.pop(name, None)

    def needs_all(self, at: float) -> bool:
        """Whether the pods of this node are not enough."""
        if self.are_ranges_unused:
            return True
        if not self._without:
            return False
        return not self._with_range or self.due_in(at) <= 0

    def due_in(self, at: float) -> float:
        """Return in how many seconds a Node has waited long enough for its pod CIDR."""
        since = min(self._without.values(), default=at)
        return since + RANGE_WAIT_S - at


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
        self._scope = PodScope()
        self._has_scope_changed = asyncio.Event()
        self._has_all_pods = asyncio.Event()
        self.synced = asyncio.Event()
        """Set once all caches were complete."""
        self._reflectors: list[Reflector[Any]] = []
        self._nodes.subscribe(self._on_node)
        self._services.subscribe(self._on_service)
        self._slices.subscribe(self._on_slice)
        self._pods.subscribe(self._on_own_pod)

    @property
    def is_synced(self) -> bool:
        """Whether all caches were complete and the API server answers now."""
        return self.synced.is_set() and not any(
            reflector.failure is not None for reflector in self._reflectors
        )

    def find_wrong_name(self, own_addresses: Collection[bytes]) -> WrongNodeName | None:
        """Return what is wrong if Nodes are listed and none has the name of this node.

        The Node that is meant is the one that has an address of this host, else the nearest name.
        """
        name = self._settings.node_name
        if not self.synced.is_set() or NamespacedName("", name) in self._nodes:
            return None
        nodes = {node.name: node for node in self._nodes.all()}
        for node in nodes.values():
            for address in node.status.addresses:
                if pack_address(address.address) in own_addresses:
                    why = f"Node {node.name} has the address {address.address} of this host"
                    return WrongNodeName(name, why, node.name)
        if not nodes:
            return WrongNodeName(name, "the cluster has no Nodes", "")
        import difflib  # noqa: PLC0415 - only a wrong name needs it

        (nearest,) = difflib.get_close_matches(name, sorted(nodes), n=1, cutoff=0.0)
        return WrongNodeName(name, f"of {len(nodes):,} Nodes, {nearest} is the nearest", nearest)

    async def run(self) -> None:
        """Watch until cancelled; only unusable settings end it earlier."""
        parts = Parts()

        def start(reflector: Reflector[Any]) -> Reflector[Any]:
            self._reflectors.append(reflector)
            parts.start(reflector.run())
            return reflector

        async def go_on() -> None:
            # NB: the nodes of pods and the Services of slices come first, so that each address has
            # its best owner as soon as it has any.
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
            for reflector in then:
                await reflector.synced.wait()
            parts.start(self._watch_all_pods_if_needed())
            if self._needs_all_pods():
                await self._has_all_pods.wait()
            self.synced.set()

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

    async def _watch_all_pods_if_needed(self) -> None:
        while True:
            await self._until_needed(is_needed=True)
            _log.info("the pods of all nodes are watched: pod CIDRs do not name their nodes")
            await self._watch_all_pods()
            _log.info("the pods of this node are watched: pod CIDRs name the nodes of others")

    async def _watch_all_pods(self) -> None:
        pods: Cache[Pod] = Cache()
        pods.subscribe(self._on_any_pod)
        reflector = Reflector(self._client, PODS, pods, clock=self._clock)
        self._reflectors.append(reflector)
        parts = Parts((reflector.run(),))

        async def watch() -> None:
            await reflector.synced.wait()
            self._has_all_pods.set()
            await self._until_needed(is_needed=False)

        try:
            await parts.until(watch())
        finally:
            await parts.stop()
            self._reflectors.remove(reflector)
        for pod in pods.all():
            self._on_any_pod(pod, None)

    async def _until_needed(self, *, is_needed: bool) -> None:
        while self._needs_all_pods() is not is_needed:
            self._has_scope_changed.clear()
            # NB: nothing reports that a Node has waited long enough.
            due = self._scope.due_in(self._now())
            with suppress(TimeoutError):
                await self._clock.wait_for(
                    self._has_scope_changed.wait(), due if due > 0 else RANGE_WAIT_S
                )

    def _needs_all_pods(self) -> bool:
        wanted = self._settings.watches_all_pods
        return self._scope.needs_all(self._now()) if wanted is None else wanted

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        at = self._now()
        if new is None:
            if old is not None:
                self._book.remove_node(old.name, at=at)
                self._scope.remove_node(old.name)
                self._has_scope_changed.set()
            return
        if old is not None and _node_facts(old) == _node_facts(new):
            return
        self._book.set_node(new, at=at)
        has_range = bool(new.spec.pod_cidrs or new.spec.pod_cidr)
        self._scope.set_node(new.name, has_range=has_range, at=at)
        self._has_scope_changed.set()
        if new.name == self._settings.node_name:
            for pod in self._pods.all():
                self._check_ranges(pod)

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
            # NB: a kubelet may report a pod of a moment only when it has ended.
            has_run_unseen = old is not None and not has_ended(old) and not addresses_of(old)
            self._book.set_pod(new, at=self._now(), has_run_unseen=has_run_unseen)

    def _on_own_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._on_pod(old, new)
        if new is not None:
            self._check_ranges(new)

    def _check_ranges(self, pod: Pod) -> None:
        """Find out whether the network gives pods other addresses than those of Nodes' ranges."""
        node = self._settings.node_name
        if (
            self._scope.are_ranges_unused
            or pod.spec.host_network
            or pod.spec.node_name != node
            or has_ended(pod)
        ):
            return
        for address in addresses_of(pod):
            if self._book.is_in_range_of(node, address) is False:
                self._log_unused_ranges(pod, address)
                self._scope.are_ranges_unused = True
                self._book.distrust_ranges()
                self._has_scope_changed.set()
                return

    def _log_unused_ranges(self, pod: Pod, address: bytes) -> None:
        message = "the network does not use the pod CIDRs of Nodes"
        at = {"pod": str(pod.key), "address": show_address(address)}
        if self._settings.cluster_ranges:
            _log.info(message, **at)
            return
        # NB: a node may masquerade with an address that no object names, as of its tunnel.
        _log.warning(
            f"{message}; connections that nodes masquerade may be counted twice",
            fix="pass --cluster-cidr with the ranges of all pods and Services",
            **at,
        )

    def _on_any_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Pass on pods of other nodes; this node's have a watch of their own."""
        pod = new or old
        if pod is not None and pod.spec.node_name != self._settings.node_name:
            self._on_pod(old, new)


def _node_facts(node: Node) -> tuple[object, ...]:
    spec = node.spec
    tunnels = tunnel_addresses_of(node)
    return node.zone, node.status.addresses, tunnels, spec.pod_cidrs, spec.pod_cidr


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
