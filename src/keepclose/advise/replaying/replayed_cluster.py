"""The cluster of a replay: nodes and pods as the API shows them, and what is really there.

A node that is lost stays Ready in the API until that is detected, its pods too; and a node may be
in a zone that its label does not say yet. The figures of a replay need both. Changes are collected
until `take_step`, which returns them as one step of the time line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv6Address
from itertools import count
from typing import Final

import msgspec

from keepclose.advise.replaying.replay_start import ReplayStart
from keepclose.advise.replaying.scenario import ClientTraffic
from keepclose.model.addresses import IPV6
from keepclose.model.meta import NamespacedName
from keepclose.model.timestamps import format_event_time
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import WorkloadPod

MAX_REPLAY_STEPS: Final = 20_000
"""How many things may happen in a replay, each retry of an eviction counted."""
MAX_REPLAY_PODS: Final = 10_000
"""How many pods a replay creates."""
_FIRST_IPV4: Final = int(IPv4Address("198.18.0.1"))
_FIRST_IPV6: Final = int(IPv6Address("2001:db8::1"))


class WorldStep(msgspec.Struct, frozen=True):
    """What changes in the cluster at one moment; the same for every mechanism."""

    at: float
    notes: tuple[str, ...] = ()
    pods: tuple[WorkloadPod, ...] = ()
    """New pods and changed ones."""
    removed: tuple[NamespacedName, ...] = ()
    nodes: tuple[Node, ...] | None = None
    """All nodes, if one of them changed."""
    accepting: tuple[NamespacedName, ...] = ()
    """Pods that accept connections from now on."""
    refusing: tuple[NamespacedName, ...] = ()
    """Pods that no longer do."""
    clients: dict[str, float] | None = None
    """The connections a second that each node sends, if they changed."""
    zones: dict[str, str] | None = None
    """The zone that each node is really in, if a node was added."""


class ReplayClock:
    """Simulated time, and what is due when; things due at the same time happen in their order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    @property
    def next_at(self) -> float | None:
        """When the next thing is due; None if nothing is."""
        return self._queue[0][0] if self._queue else None

    @property
    def is_exhausted(self) -> bool:
        """Whether more has happened than a replay allows."""
        return self.steps > MAX_REPLAY_STEPS

    def call_after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen after a time, at once for 0."""
        # NB: rounded, so that sums of durations that should be equal are equal.
        at = max(self.now, round(self.now + seconds, 6))
        heapq.heappush(self._queue, (at, next(self._order), action))

    def run_due(self, until: float) -> bool:
        """Do everything that is due next, at one time; return whether there was anything."""
        at = self.next_at
        if at is None or at > until:
            return False
        self.now = at
        while self.next_at == at and not self.is_exhausted:
            _, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
        return True


class ReplayedCluster:
    """Nodes and pods, and their changes since the last step."""

    def __init__(self, start: ReplayStart, traffic: ClientTraffic, clock: ReplayClock) -> None:
        self.clock = clock
        self.nodes = {node.name: node for node in start.nodes}
        self.zones = {node.name: node.zone for node in start.nodes}
        """The zones that nodes are really in."""
        self.down = {node.name for node in start.nodes if not node.is_ready}
        self.pods = {pod.key: pod for pod in start.pods}
        self._owned: dict[str, dict[NamespacedName, WorkloadPod]] = {}
        for pod in start.pods:
            self._file(pod)
        self.other_pods = start.other_pods
        self.created = 0
        self._epoch = start.epoch
        self._traffic = traffic
        self._families = start.service.spec.ip_families or ("IPv4",)
        self._taken = {
            address.ip for pod in (*start.pods, *start.other_pods) for address in pod.status.pod_ips
        }
        self._addresses = count()
        self._nodes_at_start = sum(node.is_ready for node in start.nodes)
        self._accepting: set[NamespacedName] = set()
        self._announced: frozenset[NamespacedName] = frozenset()
        self._clients: dict[str, float] = {}
        self._changed: dict[NamespacedName, None] = dict.fromkeys(self.pods)
        self._is_touched = False
        self._touched_nodes = True
        self._touched_clients = True
        self._touched_zones = True
        self._notes: list[str] = []

    @property
    def time(self) -> float:
        """The present time in seconds since 1970."""
        return self._epoch + self.clock.now

    @property
    def stamp(self) -> str:
        """The present time as the API writes it."""
        return format_event_time(self.time)

    @property
    def has_changed(self) -> bool:
        """Whether controllers may have something to do since the last step."""
        return bool(self._changed or self._notes or self._touched_nodes or self._is_touched)

    def touch(self) -> None:
        """Let controllers look again, because time has passed."""
        self._is_touched = True

    def say(self, note: str) -> None:
        """Add a line to the account of what happens."""
        self._notes.append(note)

    def pods_on(self, names: Iterable[str]) -> list[WorkloadPod]:
        """Return the pods on nodes, in the order of their names."""
        wanted = set(names)
        on_nodes = [pod for pod in self.pods.values() if pod.spec.node_name in wanted]
        return sorted(on_nodes, key=lambda pod: pod.key)

    def pods_of(self, owner_uid: str) -> list[WorkloadPod]:
        """Return the pods that an object controls."""
        return list(self._owned.get(owner_uid, {}).values())

    def put_pod(self, pod: WorkloadPod) -> None:
        """Add or change a pod, whose owner stays the same."""
        self.pods[pod.key] = pod
        self._file(pod)
        self._changed[pod.key] = None

    def remove_pod(self, key: NamespacedName) -> None:
        """Remove a pod; it accepts nothing any more."""
        pod = self.pods.pop(key, None)
        if pod is not None and pod.controller is not None:
            del self._owned[pod.controller.uid][key]
        self._accepting.discard(key)
        self._changed[key] = None

    def accept(self, key: NamespacedName, accepts: bool = True) -> None:
        """Set whether a pod accepts connections."""
        if accepts:
            self._accepting.add(key)
        else:
            self._accepting.discard(key)

    def put_node(self, node: Node, *, zone: str | None = None) -> None:
        """Add or change a node; a new one needs the zone that it is in."""
        self.nodes[node.name] = node
        self._touched_nodes = True
        if zone is not None:
            self.zones[node.name] = zone
            self._touched_zones = self._touched_clients = True

    def set_down(self, names: Iterable[str], *, is_down: bool) -> None:
        """Set whether nodes are gone, with their pods and clients."""
        for name in names:
            if is_down:
                self.down.add(name)
            else:
                self.down.discard(name)
        self._touched_clients = True

    def new_addresses(self) -> tuple[str, ...]:
        """Return addresses for a pod that no other pod has, one for each family of the Service."""
        while True:
            number = next(self._addresses)
            addresses = tuple(
                str(IPv6Address(_FIRST_IPV6 + number))
                if family == IPV6
                else str(IPv4Address(_FIRST_IPV4 + number))
                for family in self._families
            )
            if self._taken.isdisjoint(addresses):
                self._taken.update(addresses)
                return addresses

    def take_step(self) -> WorldStep | None:
        """Return everything that changed since the last step; None if nothing did."""
        accepting = frozenset(self._accepting)
        clients = self._divide_clients() if self._touched_clients else self._clients
        step = WorldStep(
            at=self.clock.now,
            notes=tuple(self._notes),
            pods=tuple(self.pods[key] for key in self._changed if key in self.pods),
            removed=tuple(key for key in self._changed if key not in self.pods),
            nodes=tuple(self.nodes.values()) if self._touched_nodes else None,
            accepting=tuple(sorted(accepting - self._announced)),
            refusing=tuple(sorted(self._announced - accepting)),
            clients=clients if clients != self._clients else None,
            zones=dict(self.zones) if self._touched_zones else None,
        )
        self._announced, self._clients = accepting, clients
        self._changed, self._notes = {}, []
        self._touched_nodes = self._touched_clients = self._touched_zones = False
        self._is_touched = False
        return None if step == WorldStep(at=step.at) else step

    def _file(self, pod: WorkloadPod) -> None:
        owner = pod.controller
        if owner is not None:
            self._owned.setdefault(owner.uid, {})[pod.key] = pod

    def _divide_clients(self) -> dict[str, float]:
        """Return the connections a second that each node sends."""
        rate, parts = self._traffic.connections_per_second, self._traffic.zones
        present = [name for name in self.nodes if name not in self.down]
        if not parts:
            return {name: rate / max(1, self._nodes_at_start) for name in present}
        whole = sum(parts.values())
        in_zone: dict[str, list[str]] = {}
        for name in present:
            in_zone.setdefault(self.zones[name], []).append(name)
        return {
            name: rate * part / whole / len(in_zone[zone])
            for zone, part in parts.items()
            if part > 0
            for name in in_zone.get(zone, ())
        }
