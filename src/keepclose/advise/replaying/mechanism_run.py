"""Takes one mechanism through the steps of a scenario: the controller plans, the proxies follow.

The controller is told of changes as the EndpointSlice controller is: a pod's after the batch
period, a node's at once and only if it matters. All changes until a sync count in it, and its
writes are there at once; all proxies follow after their delay. Figures are sums over time, so no
connection is drawn at random. The plan at the start, before anything happens, costs nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from keepclose.advise.clients import ClientNodes
from keepclose.advise.replaying.mechanism_figures import (
    ROUNDING_RATE,
    LoadSpan,
    MechanismRun,
    ReplayedSync,
)
from keepclose.advise.replaying.mechanisms import ReplayMechanism
from keepclose.advise.replaying.replay_start import ReplayStart
from keepclose.advise.replaying.replayed_cluster import WorldStep
from keepclose.advise.replaying.routed_load import (
    ClientsByZone,
    EndpointTruth,
    RoutedLoad,
    measure_load,
)
from keepclose.advise.replaying.scenario import ReplayScenario
from keepclose.advise.replaying.scenario_run import PlayedScenario
from keepclose.model.addresses import IPV4, canonical
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.selectors import matches
from keepclose.model.workload import Node, Pod
from keepclose.routing.port_endpoints import (
    NodeView,
    PortEndpoint,
    collect_endpoints,
    labels_by_node,
)
from keepclose.routing.service_ports import RoutedPort, routed_ports
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.changes import services_for_pod_change
from keepclose.slices.node_changes import depends_on_shares, node_change
from keepclose.slices.service_planner import ServicePlan, ServicePlanner
from keepclose.slices.settings import ClusterNodes, PlannerSettings

HintsByPod = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
"""By pod, for ready endpoints: the hinted zones, and the hinted nodes."""


def run_mechanism(
    mechanism: ReplayMechanism,
    start: ReplayStart,
    scenario: ReplayScenario,
    played: PlayedScenario,
    settings: PlannerSettings,
) -> MechanismRun:
    """Return what a mechanism does while a scenario is played."""
    run = _MechanismRun(mechanism, start, scenario, settings)
    run.begin(played.steps[0])
    run.play(played.steps[1:], played.end)
    return run.result()


class _MechanismRun:
    """The controller, the slices, and what the proxies know of them."""

    def __init__(
        self,
        mechanism: ReplayMechanism,
        start: ReplayStart,
        scenario: ReplayScenario,
        settings: PlannerSettings,
    ) -> None:
        self._mechanism = mechanism
        self._service, self._settings = mechanism.apply(start.service, settings)
        self._batch_s = scenario.controller.batch_period
        self._delay_s = scenario.proxy.delay
        self._foreign = start.foreign_slices
        self._slices: list[EndpointSlice] = list(start.slices)
        family = (self._service.spec.ip_families or (IPV4,))[0]
        port = self._find_port(scenario.port, family)
        self._routes = _ProxyRoutes(port, family, self._settings)
        self._world = _World()
        self._cluster = ClusterNodes.of(())
        self._planner = ServicePlanner(
            self._service, cluster=self._cluster, settings=self._settings
        )
        self._by_shares = False
        self._plan_why = ""
        self._sync_at = math.inf
        self._deliveries: deque[tuple[float, tuple[EndpointSlice, ...]]] = deque()
        self._lost_hints: dict[str, set[object]] = {}
        self._hints: HintsByPod = {}
        self._spans: list[LoadSpan] = []
        self._syncs: list[ReplayedSync] = []

    def begin(self, step: WorldStep) -> None:
        """Plan the state at the start; the proxies know it at once."""
        for endpoint_slice in sorted(self._slices, key=lambda each: each.metadata.name):
            self._planner.observe(endpoint_slice)
        self._take(step)
        self._sync_at = math.inf
        self._apply(self._planner.plan())
        self._syncs = [ReplayedSync(0.0, tuple(self._slices))]
        self._hints, self._lost_hints = read_hints(self._slices), {}
        self._routes.follow((*self._slices, *self._foreign))
        self._deliveries.clear()

    def play(self, steps: Sequence[WorldStep], end: float) -> None:
        """Take all steps until the end."""
        waiting = deque(steps)
        now = 0.0
        while True:
            step_at = waiting[0].at if waiting else math.inf
            delivery_at = self._deliveries[0][0] if self._deliveries else math.inf
            due = min(step_at, self._sync_at, delivery_at, end)
            if due > now:
                self._measure(now, due)
                now = due
            # NB: what happens at the very end is planned too, and has no time to matter.
            if now >= end and min(step_at, self._sync_at, delivery_at) > end:
                return
            while waiting and waiting[0].at <= now:
                self._take(waiting.popleft())
            if self._sync_at <= now:
                self._sync(now)
            while self._deliveries and self._deliveries[0][0] <= now:
                self._routes.follow(self._deliveries.popleft()[1])

    def result(self) -> MechanismRun:
        """Return what was measured."""
        return MechanismRun(
            name=self._mechanism.name,
            label=self._mechanism.label_for(self._service, self._settings),
            about=self._mechanism.about,
            spans=tuple(self._spans),
            syncs=tuple(self._syncs),
            slices=tuple(self._slices),
        )

    def _find_port(self, name: str, family: str) -> RoutedPort | None:
        ports = routed_ports(
            self._service, family, gates=self._settings.gates, assume_allocated=True
        )
        return next((port for port in ports if name in ("", port.name)), None)

    def _take(self, step: WorldStep) -> None:
        """Pass a step to the controller's caches, and queue the Service if it is concerned."""
        selector = self._service.spec.selector or {}
        for key in step.removed:
            old = self._world.pods.get(key)
            if services_for_pod_change((self._service,), old=old, new=None):
                self._queue(step.at + self._batch_s)
            self._planner.drop_pod(key)
        if step.nodes is not None:
            self._take_nodes(step)
        for pod in step.pods:
            old = self._world.pods.get(pod.key)
            if services_for_pod_change((self._service,), old=old, new=pod):
                self._queue(step.at + self._batch_s)
            if matches(selector, pod.metadata.labels):
                self._planner.set_pod(pod)
        self._world.take(step)

    def _take_nodes(self, step: WorldStep) -> None:
        nodes = {node.name: node for node in step.nodes or ()}
        changes = [
            (name, node_change(self._world.nodes.get(name), nodes.get(name)))
            for name in {**self._world.nodes, **nodes}
        ]
        if all(change.is_nothing for _, change in changes):
            return
        self._cluster = ClusterNodes.of(
            nodes.values(), weighted_zones=frozenset(node.zone for node in nodes.values()) - {""}
        )
        self._planner.set_cluster(self._cluster)
        with_pods = {pod.spec.node_name for pod in self._world.pods.values()}
        moved = any(change.moved and name in with_pods for name, change in changes)
        shares = self._by_shares and any(change.shares for _, change in changes)
        if moved or shares:
            self._queue(step.at)

    def _queue(self, at: float) -> None:
        self._sync_at = min(self._sync_at, round(at, 6))

    def _sync(self, now: float) -> None:
        self._sync_at = math.inf
        plan = self._planner.plan()
        if plan.is_empty:
            self._note_plan(plan)
            return
        self._apply(plan)
        hints = read_hints(self._slices)
        rehinted, flaps = self._compare_hints(hints)
        self._hints = hints
        self._syncs.append(
            ReplayedSync(
                now, tuple(self._slices), writes=plan.writes, rehinted=rehinted, flaps=flaps
            )
        )
        at = round(now + self._delay_s, 6)
        self._deliveries.append((at, (*self._slices, *self._foreign)))

    def _apply(self, plan: ServicePlan) -> None:
        """Write a plan, and let the planner observe the writes."""
        before = {each.metadata.name: each for each in self._slices}
        after: list[EndpointSlice] = list(self._slices)
        for writes in plan.plans.values():
            after = apply_plan(after, writes)
        stray = {each.metadata.name for each in plan.stray}
        self._slices = [each for each in after if each.metadata.name not in stray]
        names = set()
        for endpoint_slice in self._slices:
            names.add(endpoint_slice.metadata.name)
            if before.get(endpoint_slice.metadata.name) is not endpoint_slice:
                self._planner.observe(endpoint_slice)
        for name in sorted(before.keys() - names):
            self._planner.forget(name)
        self._note_plan(plan)

    def _note_plan(self, plan: ServicePlan) -> None:
        self._by_shares = depends_on_shares(
            plan.strategy, self._service.metadata.annotations, settings=self._settings
        )
        reasons = (*plan.reasons, *plan.strategy.reasons)
        self._plan_why = reasons[0].message if reasons else ""

    def _compare_hints(self, hints: HintsByPod) -> tuple[int, int]:
        """Return how many endpoints got other hints, and how many of them got back former ones."""
        rehinted = flaps = 0
        for pod, now in hints.items():
            before = self._hints.get(pod)
            if before is None or before == now:
                continue
            rehinted += 1
            lost = self._lost_hints.setdefault(pod, set())
            flaps += now in lost
            lost.add(before)
        return rehinted, flaps

    def _measure(self, start: float, end: float) -> None:
        load = self._routes.measure(self._world)
        if load.without_zones > ROUNDING_RATE and not load.why:
            load = load._replace(why=self._plan_why)
        last = self._spans[-1] if self._spans else None
        if last is not None and last.load == load:
            self._spans[-1] = LoadSpan(last.start, end, load)
        else:
            self._spans.append(LoadSpan(start, end, load))


class _World:
    """What is really there: pods, nodes, clients."""

    def __init__(self) -> None:
        self.pods: dict[NamespacedName, Pod] = {}
        self.nodes: dict[str, Node] = {}
        self.zones: dict[str, str] = {}
        self.clients: dict[str, float] = {}
        self.refusing: set[str] = set()
        self.version = 0
        self._by_zone: ClientsByZone | None = None

    def take(self, step: WorldStep) -> None:
        """Take a step; pods that were never seen to accept connections refuse them."""
        self.version += 1
        if step.nodes is not None or step.zones is not None or step.clients is not None:
            self._by_zone = None
        if step.nodes is not None:
            self.nodes = {node.name: node for node in step.nodes}
        if step.zones is not None:
            self.zones = step.zones
        if step.clients is not None:
            self.clients = step.clients
        for key in step.removed:
            pod = self.pods.pop(key, None)
            self.refusing.update(_addresses(pod))
        for pod in step.pods:
            if pod.key not in self.pods or self.pods[pod.key].status.pod_ips != pod.status.pod_ips:
                self.refusing.update(_addresses(pod))
            self.pods[pod.key] = pod
        for key in step.refusing:
            self.refusing.update(_addresses(self.pods.get(key)))
        for key in step.accepting:
            self.refusing.difference_update(_addresses(self.pods.get(key)))

    def clients_by_zone(self) -> ClientsByZone:
        """Return the nodes with clients; the same object until nodes or clients change."""
        if self._by_zone is None:
            labels = labels_by_node(self.nodes.values())
            views: dict[str, list[NodeView]] = {}
            for name in self.clients:
                view = NodeView.of(self.nodes[name], labels)
                views.setdefault(self.zones[name], []).append(view)
            self._by_zone = {
                zone: ClientNodes(group, self.clients) for zone, group in views.items()
            }
        return self._by_zone


class _ProxyRoutes:
    """The slices that the proxies follow, and the load that results."""

    def __init__(self, port: RoutedPort | None, family: str, settings: PlannerSettings) -> None:
        self._port, self._family, self._gates = port, family, settings.gates
        self._endpoints: tuple[PortEndpoint, ...] = ()
        self._measured: tuple[int, RoutedLoad] | None = None

    def follow(self, slices: Iterable[EndpointSlice]) -> None:
        """Follow these slices from now on."""
        self._measured = None
        port = self._port
        if port is not None:
            by_port = collect_endpoints(slices, self._family, gates=self._gates)
            self._endpoints = by_port.get(port.key, ())

    def measure(self, world: _World) -> RoutedLoad:
        """Return how the connections divide now."""
        if self._measured is not None and self._measured[0] == world.version:
            return self._measured[1]
        load = RoutedLoad()
        if self._port is not None:
            truth = EndpointTruth(world.refusing, world.zones)
            load = measure_load(
                self._port, self._endpoints, world.clients_by_zone(), truth, gates=self._gates
            )
        self._measured = world.version, load
        return load


def read_hints(slices: Iterable[EndpointSlice]) -> HintsByPod:
    """Return the hints of all ready endpoints, by pod."""
    hints: HintsByPod = {}
    for endpoint_slice in slices:
        for endpoint in endpoint_slice.endpoints:
            if endpoint.target_ref is None or not endpoint.is_ready:
                continue
            given = endpoint.hints
            hints[endpoint.target_ref.name] = (
                tuple([hint.name for hint in given.for_zones]) if given is not None else (),
                tuple([hint.name for hint in given.for_nodes]) if given is not None else (),
            )
    return hints


def _addresses(pod: Pod | None) -> list[str]:
    if pod is None:
        return []
    return [address for ip in pod.status.pod_ips if (address := canonical(ip.ip)) is not None]
