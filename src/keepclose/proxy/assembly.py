"""The whole proxy of a node: fills the caches and syncs both families until it is cancelled.

This module only connects the parts and runs them; it decides nothing itself. The proxy may be
stopped at any point: the rules stay, and the next proxy continues from them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

import structlog

from keepclose.kube.client import Client
from keepclose.kube.clock import Clock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName, ObjectReference, OwnerReference
from keepclose.model.workload import Node
from keepclose.proxy.acknowledgement import Acknowledger, Progress, reached_version, retract
from keepclose.proxy.caches import ProxyCaches, ServiceCidr
from keepclose.proxy.counters.connections import ConnectionCounters
from keepclose.proxy.counters.kernel_counters import CounterReader, KernelCounters
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family import FamilyEvents, FamilyProxy
from keepclose.proxy.family_sync import SharedParts
from keepclose.proxy.health import FAILED_REASON, HealthState
from keepclose.proxy.nft.writer import NftWriter
from keepclose.proxy.own_node import OtherNodes, OwnNode
from keepclose.proxy.post_sync import FlowCleaner
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.status import FamilyStatus, ProxyStatus, describe_services
from keepclose.proxy.validation import ValidationLog
from keepclose.routing.conditions import HONORED
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.topology import followed_levels
from keepclose.runtime.program import Parts

_log = structlog.get_logger(__name__)


class NodeMissingError(Exception):
    """The cluster has no Node with the configured name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the cluster has no Node {name!r}")
        self.name = name


class NodeProxy:
    """The proxy of one node; run it once.

    Its client must not retry requests itself: the reflectors back off.
    """

    def __init__(
        self,
        client: Client,
        settings: ProxySettings,
        *,
        writer: NftWriter,
        clock: Clock,
        recorder: EventRecorder | None = None,
        counts: CounterReader | None = None,
        flows: Mapping[str, FlowCleaner] | None = None,
    ) -> None:
        """Take the parts that access the kernel; a test may replace them."""
        self.settings = settings
        self._client = client
        self._clock = clock
        self._recorder = recorder
        self.metrics = ProxyMetrics()
        self.health = HealthState(clock=clock, patience=2 * settings.sync_s)
        self.caches = ProxyCaches()
        self.caches.reflect(client, node_name=settings.node_name, clock=clock)
        self.node = OwnNode(
            settings.node_name,
            gates=settings.gates,
            bind_address=settings.bind_address,
            on_topology=self._on_topology_change,
            on_addresses=self._on_addresses_change,
        )
        self.acknowledger = Acknowledger(
            client,
            read=self._acknowledgement,
            owner=self._owner,
            every_s=settings.acknowledge_every_s,
            clock=clock,
        )
        shared = SharedParts(
            settings, self.caches, self.metrics, self.health, clock, ValidationLog()
        )
        events = FamilyEvents(
            self.acknowledger.trigger, self._show_pending, self._record_check_failure
        )
        self.families = {
            family: FamilyProxy(
                family,
                shared,
                node=self.node,
                writer=writer,
                events=events,
                flows=(flows or {}).get(family),
            )
            for family in settings.families
        }
        self.counters = ConnectionCounters(
            {name: family.rules for name, family in self.families.items()},
            table=settings.table,
            zone=lambda: self.node.view.zone,
            reader=counts or KernelCounters(clock=clock),
            clock=clock,
        )
        if settings.counts_connections:
            self.metrics.count_connections(lambda: self.counters.counts)
            self.metrics.count_unserved(lambda: self.counters.unserved)
            for name, family in self.families.items():
                family.rules.before_change = partial(self.counters.collect, name)
        self.synced = asyncio.Event()
        """Set after the first successful sync of all families."""
        self._other_nodes = OtherNodes(
            self.node, self.caches, wait_s=settings.node_wait_s, clock=clock
        )
        self._subscribe()

    @property
    def own_node(self) -> Node | None:
        """The Node object; None if it does not exist."""
        return self.caches.nodes.get(NamespacedName("", self.settings.node_name))

    @property
    def is_idle(self) -> bool:
        """Whether all received changes are written."""
        return self.synced.is_set() and all(
            family.sync.is_idle for family in self.families.values()
        )

    async def run(self) -> None:
        """Run until cancelled; the rules stay.

        Raises ConfigError for settings that cannot work, and nothing else.
        """
        has_gate = self.settings.gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
        acknowledges = self.settings.acknowledges
        syncing = self._sync_forever(retracts=not has_gate and acknowledges)
        await self._run(syncing, acknowledges=has_gate and acknowledges)

    async def run_once(self, *, within_s: float = math.inf) -> None:
        """Write everything once and return; raises NftError if that fails.

        Raises TimeoutError if the server does not respond in time, ApiError if it rejects the
        request, BrokenStream if it is not an API server, and NodeMissingError if it has no such
        Node.
        """
        await self._run(self._sync_once(within_s), acknowledges=False)

    async def _run(self, work: Coroutine[Any, Any, None], *, acknowledges: bool) -> None:
        background: list[Coroutine[Any, Any, Any]] = [
            reflector.run() for reflector in self.caches.reflectors
        ]
        background.append(self._other_nodes.watch())
        if self._recorder is not None:
            background.append(self._recorder.run())
        if acknowledges:
            background.append(self.acknowledger.run())
        parts = Parts(background)
        try:
            await parts.until(work)
        finally:
            try:
                await parts.stop()
            finally:
                for family in self.families.values():
                    await family.close()
                await self.counters.close()

    async def _sync_forever(self, *, retracts: bool) -> None:
        await self._await_lists(is_patient=True)
        await self._await_node(is_patient=True)
        await self.counters.start()
        for name in self.families:
            # From here on the family counts for the health of the proxy.
            self.health.record_update(name)
        syncs = Parts(family.sync.run() for family in self.families.values())
        try:
            for family in self.families.values():
                await syncs.until(family.sync.synced.wait())
            self.synced.set()
            self.acknowledger.trigger()
            if retracts and self._has_honored_conditions():
                await retract(self._client, self.settings.node_name)
            _log.info("first sync of all families succeeded", services=len(self.caches.services))
            await syncs.until_ended()
        finally:
            await syncs.stop()

    async def _sync_once(self, within_s: float) -> None:
        limit = None if within_s == math.inf else within_s
        try:
            await self._clock.wait_for(self._await_lists(is_patient=False), limit)
        except TimeoutError:
            unsynced = [
                reflector for reflector in self.caches.needed if not reflector.synced.is_set()
            ]
            reasons = [
                str(reflector.failure or f"the list of {reflector.kind} is not complete")
                for reflector in unsynced
            ]
            raise TimeoutError("; ".join(dict.fromkeys(reasons))) from None
        await self._await_node(is_patient=False)
        for family in self.families.values():
            await family.sync_once()
        self.synced.set()

    async def _await_lists(self, *, is_patient: bool) -> None:
        """Wait for the first lists; if not patient, raise errors that waiting cannot resolve."""
        for reflector in self.caches.needed:
            await (reflector.synced.wait() if is_patient else reflector.wait_synced())

    async def _await_node(self, *, is_patient: bool) -> None:
        """Wait a limited time for the labels of other Nodes and the addresses of the own Node."""
        await self._other_nodes.wait()
        if not is_patient and self.own_node is None:
            raise NodeMissingError(self.settings.node_name)
        end = self._clock.monotonic() + self.settings.node_wait_s
        while not self.node.addresses.ips and self._clock.monotonic() < end:
            await self._clock.sleep(min(1.0, max(0.0, end - self._clock.monotonic())))
        if not self.node.addresses.ips:
            _log.warning("addresses of the node are unknown", node=self.settings.node_name)

    def _subscribe(self) -> None:
        if self.settings.gates.on(Gate.SERVICE_TOPOLOGY):
            self.caches.services.subscribe(self._other_nodes.on_service)
            self.caches.all_nodes.subscribe(self._other_nodes.on_node)
        self.caches.nodes.subscribe(self.node.on_node)
        self.caches.service_cidrs.subscribe(self._on_service_cidr)
        for family in self.families.values():
            self.caches.services.subscribe(family.tracker.on_service)
            self.caches.slices.subscribe(family.tracker.on_slice)

    def _on_topology_change(self) -> None:
        for family in self.families.values():
            family.on_topology_change()

    def _on_addresses_change(self) -> None:
        for family in self.families.values():
            family.on_addresses_change()

    def _on_service_cidr(self, old: ServiceCidr | None, new: ServiceCidr | None) -> None:
        del old, new
        for family in self.families.values():
            family.set_service_cidrs(self.caches.cluster_ranges())

    def _show_pending(self) -> None:
        families = self.families.values()
        self.metrics.show_pending(
            services=sum(family.tracker.pending_services for family in families),
            endpoints=sum(family.tracker.pending_endpoints for family in families),
        )

    def _acknowledgement(self) -> NodeAcknowledgement | None:
        families = self.families.values()
        if not self.synced.is_set() or any(family.sync.is_failing for family in families):
            return None
        exceptions: dict[NamespacedName, str] = {}
        for family in families:
            for key, reason in family.states.exceptions.items():
                # NB: `honors` states once that the node ignores all hints.
                if reason is not ReasonCode.HINTS_IGNORED:
                    exceptions.setdefault(key, reason.value)
        version = reached_version(
            Progress(family.tracker.version, family.sync.version) for family in families
        )
        honors = followed_levels(self.settings.gates)
        return NodeAcknowledgement(self.settings.node_name, version, exceptions, honors)

    def _has_honored_conditions(self) -> bool:
        """Return whether the cluster uses acknowledgements, as the status of Services shows.

        If it never did, a proxy without the gate sends no request for them.
        """
        return any(
            condition.type == HONORED
            for service in self.caches.services.all()
            for condition in service.status.conditions
        )

    def _owner(self) -> OwnerReference | None:
        node = self.own_node
        if node is None or not node.metadata.uid:
            return None
        return OwnerReference(api_version="v1", kind="Node", name=node.name, uid=node.metadata.uid)

    def _record_check_failure(self, service: NamespacedName, message: str) -> None:
        if self._recorder is not None:
            reference = ObjectReference(
                kind="Service", namespace=service.namespace, name=service.name, api_version="v1"
            )
            self._recorder.record(reference, "Warning", FAILED_REASON, message)

    def status(self, namespace: str = "", name: str = "") -> ProxyStatus:
        """Return the status of all Services, or of those with the given namespace or name."""
        families = self.families
        return ProxyStatus(
            node=self.settings.node_name,
            zone=self.node.view.zone,
            families={
                family_name: FamilyStatus(
                    synced=family.sync.synced.is_set(),
                    failing=family.sync.is_failing,
                    service_ports=sum(family.states.modes.values()),
                )
                for family_name, family in families.items()
            },
            services=describe_services(
                {family_name: family.states.services for family_name, family in families.items()},
                self.counters.counts,
                self.counters.unserved,
                namespace=namespace,
                name=name,
            ),
            counted=any(family.is_counting for family in families.values()),
        )
