"""The proxy as a whole: caches fill, both families sync, until it is told to stop.

Built from parts that know nothing of each other's insides; this module only puts them together and
runs them. Stop it at any point: the rules stay, and whoever starts next goes on from them.
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
from keepclose.kube.errors import Forbidden, Unauthorized
from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.acknowledgements import NodeAcknowledgement
from keepclose.model.gates import Gate
from keepclose.model.meta import NamespacedName, ObjectReference, OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.proxy.acknowledgement import Acknowledger, Progress, reached_version, retract
from keepclose.proxy.caches import ProxyCaches, ServiceCidr
from keepclose.proxy.counters.connections import ConnectionCounters
from keepclose.proxy.counters.kernel_counters import CounterReader, KernelCounters
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family import FamilyProxy
from keepclose.proxy.health import FAILED_REASON, HealthState
from keepclose.proxy.nft.writer import NftWriter
from keepclose.proxy.own_node import OwnNode
from keepclose.proxy.post_sync import Flows
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.status import FamilyStatus, ProxyStatus, describe_services
from keepclose.proxy.validation import Flaws
from keepclose.routing.honored_condition import HONORED
from keepclose.routing.reasons import ReasonCode
from keepclose.routing.topology import followed_levels, needs_node_labels

_log = structlog.get_logger(__name__)


class NodeMissingError(Exception):
    """The cluster has no Node of the name that the proxy was given."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the cluster has no Node {name!r}")
        self.name = name


class NodeProxy:
    """Keeps the rules of one node; run it once.

    Give it a client that does not repeat requests by itself: delays are the reflectors'.
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
        flows: Mapping[str, Flows] | None = None,
    ) -> None:
        """Take the parts that touch the machine; a test hands in others than the kernel's."""
        self.settings = settings
        self._client = client
        self._retracts = False
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
            on_topology=self._move_node,
            on_addresses=self._lay_out,
        )
        self.acknowledger = Acknowledger(
            client,
            read=self._acknowledgement,
            owner=self._owner,
            every_s=settings.acknowledge_every_s,
            clock=clock,
        )
        flaws = Flaws()
        self.families = {
            family: FamilyProxy(
                family,
                settings=settings,
                caches=self.caches,
                node=self.node,
                writer=writer,
                metrics=self.metrics,
                health=self.health,
                clock=clock,
                flaws=flaws,
                on_written=self.acknowledger.note,
                on_change=self._show_pending,
                on_check_failure=self._tell_check_failure,
                flows=(flows or {}).get(family),
            )
            for family in settings.families
        }
        self.counters = ConnectionCounters(
            {name: family.rules for name, family in self.families.items()},
            table=settings.table,
            reader=counts or KernelCounters(clock=clock),
            clock=clock,
        )
        if settings.counts_connections:
            self.metrics.count_connections(lambda: self.counters.counts)
            self.metrics.count_unserved(lambda: self.counters.unserved)
            for name, family in self.families.items():
                family.rules.before_change = partial(self.counters.collect, name)
        self.synced = asyncio.Event()
        """Set once all families were written."""
        self._needs_nodes = asyncio.Event()
        self._will_tell_nodes = False
        self._subscribe()

    @property
    def own_node(self) -> Node | None:
        """The Node object, None when there is none."""
        return self.caches.nodes.get(NamespacedName("", self.settings.node_name))

    @property
    def is_idle(self) -> bool:
        """Whether all that came in is written."""
        return self.synced.is_set() and all(one.sync.is_idle for one in self.families.values())

    async def run(self) -> None:
        """Run until cancelled; the rules stay.

        Only settings that cannot work end it by themselves: ConfigError comes through.
        """
        has_gate = self.settings.gates.on(Gate.SERVICE_TRAFFIC_DISTRIBUTION_STATUS)
        self._retracts = not has_gate and self.settings.acknowledges
        await self._run(
            [self._sync_for_ever()], acknowledges=has_gate and self.settings.acknowledges
        )

    async def run_once(self, *, within_s: float = math.inf) -> None:
        """Write everything once and return; raises NftError when that fails.

        Raises TimeoutError when the server does not answer within the time, ApiError when it
        refuses, BrokenStream when it is no API server, and NodeMissingError when it has no such
        Node.
        """
        await self._run([self._sync_once(within_s)], acknowledges=False)

    async def _run(self, work: list[Coroutine[Any, Any, None]], *, acknowledges: bool) -> None:
        background: list[Coroutine[Any, Any, Any]] = [one.run() for one in self.caches.reflectors]
        background.append(self._follow_nodes())
        if self._recorder is not None:
            background.append(self._recorder.run())
        if acknowledges:
            background.append(self.acknowledger.run())
        main = [asyncio.create_task(one) for one in work]
        beside = [asyncio.create_task(one) for one in background]
        try:
            await _until_done(main, beside)
        finally:
            tasks = [*main, *beside]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for family in self.families.values():
                await family.close()
            await self.counters.close()

    async def _sync_for_ever(self) -> None:
        await self._await_lists(is_patient=True)
        await self._await_node(is_patient=True)
        await self.counters.start()
        for name in self.families:
            # From here on a family counts for the health of the proxy.
            self.health.note_update(name)
        tasks = [asyncio.create_task(one.sync.run()) for one in self.families.values()]
        try:
            for one in self.families.values():
                await _first(one.sync.synced.wait(), tasks)
            self.synced.set()
            self.acknowledger.note()
            if self._retracts and self._is_counted_on():
                await retract(self._client, self.settings.node_name)
            _log.info("rules are written", services=len(self.caches.services))
            await _until_done(tasks, [])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sync_once(self, within_s: float) -> None:
        limit = None if within_s == math.inf else within_s
        try:
            await self._clock.wait_for(self._await_lists(is_patient=False), limit)
        except TimeoutError:
            missing = [one for one in self.caches.needed if not one.synced.is_set()]
            reasons = [str(one.failure or f"the list of {one.kind} has no end") for one in missing]
            raise TimeoutError("; ".join(dict.fromkeys(reasons))) from None
        await self._await_node(is_patient=False)
        for one in self.families.values():
            await one.sync_once()
        self.synced.set()

    async def _await_lists(self, *, is_patient: bool) -> None:
        """Wait for what rules follow from; where not patient, raise what waiting cannot change."""
        for reflector in self.caches.needed:
            await (reflector.synced.wait() if is_patient else reflector.wait_synced())

    async def _await_node(self, *, is_patient: bool) -> None:
        """Wait for labels of other Nodes and for addresses of the own one, but not for long."""
        if self._needs_nodes.is_set():
            await self._await_nodes()
        if not is_patient and self.own_node is None:
            raise NodeMissingError(self.settings.node_name)
        end = self._clock.monotonic() + self.settings.node_wait_s
        while not self.node.addresses.ips and self._clock.monotonic() < end:
            await self._clock.sleep(min(1.0, max(0.0, end - self._clock.monotonic())))
        if not self.node.addresses.ips:
            _log.warning("the addresses of the node are not known", node=self.settings.node_name)

    async def _follow_nodes(self) -> None:
        """Follow all Nodes from when the first Service needs their labels."""
        await self._needs_nodes.wait()
        reflector = self.caches.all_nodes_reflector
        if reflector is not None:
            _log.info("topologyKeys need the labels of all Nodes")
            await reflector.run()

    async def _await_nodes(self) -> None:
        """Wait for the labels of all Nodes, or else such Services would refuse for a moment.

        No longer than for the own Node: other Services need not wait for them.
        """
        reflector = self.caches.all_nodes_reflector
        if reflector is None:
            return
        try:
            await self._clock.wait_for(reflector.wait_synced(), self.settings.node_wait_s)
        except (TimeoutError, Forbidden, Unauthorized) as error:
            _log.warning("labels of other Nodes are not known", error=str(error))
        self._tell_nodes()

    def _hear_keys(self, old: Service | None, new: Service | None) -> None:
        del old
        if new is not None and needs_node_labels(new.spec.topology_keys):
            self._needs_nodes.set()

    def _hear_any_node(self, old: Node | None, new: Node | None) -> None:
        labels = [{} if one is None else one.metadata.labels for one in (old, new)]
        # NB: heartbeats come every few seconds from every node, and change no label.
        is_news = labels[0] != labels[1] or old is None or new is None
        if is_news and not self._will_tell_nodes:
            # Once for all that came together, such as a first list.
            self._will_tell_nodes = True
            asyncio.get_running_loop().call_soon(self._tell_nodes)

    def _tell_nodes(self) -> None:
        self._will_tell_nodes = False
        self.node.know_others(self.caches.all_nodes.all())

    def _subscribe(self) -> None:
        if self.settings.gates.on(Gate.SERVICE_TOPOLOGY):
            self.caches.services.subscribe(self._hear_keys)
            self.caches.all_nodes.subscribe(self._hear_any_node)
        self.caches.nodes.subscribe(self.node.hear_node)
        self.caches.service_cidrs.subscribe(self._hear_cidrs)
        for family in self.families.values():
            self.caches.services.subscribe(family.tracker.hear_service)
            self.caches.slices.subscribe(family.tracker.hear_slice)

    def _move_node(self) -> None:
        for family in self.families.values():
            family.move_node()

    def _lay_out(self) -> None:
        for family in self.families.values():
            family.lay_out()

    def _hear_cidrs(self, old: ServiceCidr | None, new: ServiceCidr | None) -> None:
        del old, new
        for family in self.families.values():
            family.set_service_cidrs(self.caches.cluster_ranges())

    def _show_pending(self) -> None:
        families = self.families.values()
        self.metrics.show_pending(
            services=sum(one.tracker.pending_services for one in families),
            endpoints=sum(one.tracker.pending_endpoints for one in families),
        )

    def _acknowledgement(self) -> NodeAcknowledgement | None:
        families = self.families.values()
        if not self.synced.is_set() or any(one.sync.is_failing for one in families):
            return None
        exceptions: dict[NamespacedName, str] = {}
        for one in families:
            for key, reason in one.states.exceptions.items():
                # NB: that hints are not followed at all is said once, and not of each Service.
                if reason is not ReasonCode.HINTS_IGNORED:
                    exceptions.setdefault(key, reason.value)
        version = reached_version(
            Progress(one.tracker.version, one.sync.version) for one in families
        )
        honors = followed_levels(self.settings.gates)
        return NodeAcknowledgement(self.settings.node_name, version, exceptions, honors)

    def _is_counted_on(self) -> bool:
        """Return whether the cluster goes by what nodes say, as the status of Services shows.

        Where it never did, a proxy without the gate does not ask the server for anything.
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

    def _tell_check_failure(self, service: NamespacedName, message: str) -> None:
        if self._recorder is not None:
            reference = ObjectReference(
                kind="Service", namespace=service.namespace, name=service.name, api_version="v1"
            )
            self._recorder.record(reference, "Warning", FAILED_REASON, message)

    def status(self, namespace: str = "", name: str = "") -> ProxyStatus:
        """Return what is done with each Service, or with those of one namespace or name."""
        families = self.families
        return ProxyStatus(
            node=self.settings.node_name,
            zone=self.node.view.zone,
            families={
                family: FamilyStatus(
                    synced=one.sync.synced.is_set(),
                    failing=one.sync.is_failing,
                    service_ports=sum(one.states.modes.values()),
                )
                for family, one in families.items()
            },
            services=describe_services(
                {family: one.states.services for family, one in families.items()},
                self.counters.counts,
                self.counters.unserved,
                namespace=namespace,
                name=name,
            ),
            counted=any(one.is_counting for one in families.values()),
        )


async def _first(one: Coroutine[Any, Any, Any], tasks: list[asyncio.Task[Any]]) -> None:
    """Wait for one thing, or for a task to fail, and raise that."""
    task = asyncio.ensure_future(one)
    try:
        await asyncio.wait((task, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for other in tasks:
            if other.done():
                other.result()
    finally:
        task.cancel()


async def _until_done(main: list[asyncio.Task[Any]], beside: list[asyncio.Task[Any]]) -> None:
    """Return when the main tasks are done; what any task raises is raised."""
    pending = {*main, *beside}
    while any(not task.done() for task in main):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
