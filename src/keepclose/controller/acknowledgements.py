"""The condition Honored of Services, from the acknowledgements that nodes publish.

A Service is honored when every ready node follows hints of its level, has programmed its newest
slice and uses its hints. The versions that nodes have acknowledged are kept sorted, and so are the
versions that Services wait for. An acknowledgement therefore costs only what it changes: a Service
is requeued when the slowest node has passed its version, or when a node adds or removes it as an
exception; all Services with hints of a level are requeued when the first node stops following that
level, or the last one starts to.

A change of the message alone waits for a tick, and each tick requeues a bounded number of Services.
A node that joins does not revoke the condition at once, which would write every Service twice; one
that has not answered after some ticks does.

The ledger also knows which nodes follow a level. A node whose acknowledgement stays behind does
not: its object may outlive the proxy that wrote it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from keepclose.model.acknowledgements import (
    HintLevel,
    NodeAcknowledgement,
    parse_acknowledgement,
    parse_resource_version,
)
from keepclose.model.core_kinds import ConfigMap
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.workload import Node
from keepclose.model.zone_weights import hold_weights
from keepclose.reconcile.caches import Caches
from keepclose.routing.conditions import (
    MAX_NAMED_NODES,
    Acknowledgements,
    NodeSample,
    add_honored,
    find_obstacle,
    is_programmed,
)
from keepclose.routing.hint_facts import FactsOf
from keepclose.slices.settings import PlannerSettings

TICK_S: Final = 5.0
"""How often the owner of a ledger must call `tick`."""
_NAME_AFTER_TICKS: Final = 6
"""Ticks after which messages name the nodes that a Service waits for."""
ANSWER_TICKS: Final = 12
"""Ticks in which a node must answer, after it joined or a slice has changed."""
_MAX_A_TICK: Final = 50
# No node can acknowledge a version that is not a number.
_NEVER: Final = 2**70
_SPARE_ENTRIES: Final = 64


class NodeGroup:
    """A set of nodes with a sample of names for messages.

    A name stays in the sample as long as its node belongs to the group, so that a message does not
    change with every node that joins. The sample is computed on demand.
    """

    def __init__(self) -> None:
        self._members: set[str] = set()
        self._sample: NodeSample | None = NodeSample()
        self._named: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, node: object) -> bool:
        return node in self._members

    def put(self, node: str, *, belongs: bool) -> bool:
        """Add or remove a node; return whether the group changed."""
        if (node in self._members) == belongs:
            return False
        if belongs:
            self._members.add(node)
        else:
            self._members.discard(node)
        self._sample = None
        return True

    @property
    def sample(self) -> NodeSample:
        """The number of nodes in the group, and the names of a few."""
        if self._sample is None:
            named = [name for name in self._named if name in self._members]
            if len(named) < MAX_NAMED_NODES and len(named) < len(self._members):
                others = (name for name in self._members if name not in named)
                named += heapq.nsmallest(MAX_NAMED_NODES - len(named), others)
            self._named = tuple(named)
            self._sample = NodeSample(len(self._members), self._named)
        return self._sample


class AcknowledgementLedger:
    """The acknowledgements of all nodes, and the Services that wait for one.

    The ledger calls `on_due` with a Service whose condition may have changed.
    """

    def __init__(self, *, on_due: Callable[[NamespacedName], None]) -> None:
        self._on_due = on_due
        self._ready: set[str] = set()
        self._answers: dict[str, NodeAcknowledgement] = {}
        # The versions of ready nodes, sorted; 0 stands for a node without an acknowledgement.
        self._marks: list[int] = []
        self._refusals: dict[NamespacedName, set[str]] = {}
        self._levels: dict[NamespacedName, frozenset[HintLevel]] = {}
        """The Services with hints, and the levels of these hints."""
        self._silent = NodeGroup()
        """Ready nodes without a readable acknowledgement."""
        self._unable = {level: NodeGroup() for level in HintLevel}
        """Ready nodes that do not follow hints of a level."""
        self._joined: dict[str, int] = {}
        self._known: set[str] = set()
        """Nodes that have been ready."""
        self._new: set[str] = set()
        """Nodes that became ready for the first time and need not have answered yet."""
        self._behind: dict[str, int] = {}
        """The tick since which a node has not acknowledged what Services wait for."""
        self._lagging: set[str] = set()
        self._on_follower: Callable[[str], None] = lambda _: None
        self._tick = 0
        self._since: dict[NamespacedName, int] = {}
        self._outdated: dict[NamespacedName, None] = {}
        """Services whose condition may need a new message."""
        self._pending: dict[NamespacedName, int] = {}
        self._by_version: list[tuple[int, NamespacedName]] = []

    @property
    def pending(self) -> int:
        """The number of Services that wait for a node."""
        return len(self._pending)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Count a node that became ready; stop counting one that is no longer ready."""
        node = old if new is None else new
        if node is None:
            return
        name = node.name
        if new is None:
            self._known.discard(name)
        was_ready = old is not None and old.is_ready
        is_ready = new is not None and new.is_ready
        if was_ready == is_ready:
            return
        if is_ready:
            self._ready.add(name)
            self._joined[name] = self._tick
            # NB: the nodes that are there when the controller starts have had their time.
            if self._tick and name not in self._known and not self._has_answered(name):
                self._new.add(name)
            self._known.add(name)
            insort(self._marks, self._mark(name))
        else:
            self._ready.discard(name)
            self._joined.pop(name, None)
            self._new.discard(name)
            self._behind.pop(name, None)
            self._marks.pop(bisect_left(self._marks, self._mark(name)))
        answer = self._answers.get(name)
        if answer is not None:
            self._requeue(answer.exceptions)
        self._regroup(name)
        self._release_acknowledged()

    def on_acknowledgement(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Record an acknowledgement that was created, changed or deleted."""
        config_map = old if new is None else new
        named = None if config_map is None else parse_acknowledgement(config_map)
        if named is None:
            return
        after = None if new is None else named
        had_any = bool(self._answers)
        before = self._replace(named.node, after)
        self._regroup(named.node)
        if before != after:
            self._behind.pop(named.node, None)
            self._lagging.discard(named.node)
            if before is not None or self._has_answered(named.node):
                self._new.discard(named.node)
            self._on_follower(named.node)
        if had_any != bool(self._answers):
            self._requeue(tuple(self._levels))
            return
        refused_before = set() if before is None else set(before.exceptions.items())
        refused_after = set() if after is None else set(after.exceptions.items())
        self._requeue({service for service, _ in refused_before ^ refused_after})
        self._release_acknowledged()

    def subscribe_followers(self, on_follower: Callable[[str], None]) -> None:
        """Call the function with each node that may have begun or stopped to follow a level."""
        self._on_follower = on_follower

    def follows(self, node: str, level: HintLevel) -> bool:
        """Return whether a ready node follows the level; an unknown node follows none.

        A node that is new has some time to answer, because its proxy starts after it is ready. One
        that has not answered in that time, or no longer acknowledges what changes, follows none.
        """
        answer = self._answers.get(node)
        if answer is None or not self._has_answered(node):
            return node in self._new
        return level in answer.honors and node not in self._lagging

    def on_service(self, old: Service | None, new: Service | None) -> None:
        """Forget a Service that was deleted."""
        if new is None and old is not None:
            self.forget(old.key)

    def evaluate(
        self, service: NamespacedName, version: int, levels: frozenset[HintLevel]
    ) -> Acknowledgements | None:
        """Return which nodes have acknowledged the version of a Service's newest slice.

        None while no node of the cluster publishes acknowledgements. The ledger requeues the
        Service whenever the result may change.
        """
        self._levels[service] = levels
        self._outdated.pop(service, None)
        if not self._answers:
            self._stop_waiting(service)
            return None
        nodes = len(self._marks)
        answered = nodes - bisect_left(self._marks, version)
        is_waiting = not nodes or answered < nodes
        if is_waiting:
            self._start_waiting(service, version)
        else:
            self._stop_waiting(service)
        refusing = sorted(
            node
            for node in self._refusals.get(service, ())
            if node in self._ready and self._mark(node) >= version
        )
        lacking = next((level for level in sorted(levels) if len(self._unable[level])), None)
        return Acknowledgements(
            nodes,
            answered,
            answered - len(refusing),
            silent=self._name_awaited(service, version) if is_waiting else NodeSample(),
            refusing=NodeSample(
                len(refusing),
                tuple(
                    f"{node} ({self._answers[node].exceptions[service]})"
                    for node in refusing[:MAX_NAMED_NODES]
                ),
            ),
            unable=NodeSample() if lacking is None else self._unable[lacking].sample,
            lacking=lacking,
        )

    def follow(self, service: NamespacedName) -> bool:
        """Return whether any node publishes acknowledgements; requeue the Service on a change.

        For a Service whose condition does not depend on what nodes acknowledge.
        """
        self._levels[service] = frozenset()
        self._stop_waiting(service)
        return bool(self._answers)

    def forget(self, service: NamespacedName) -> None:
        """Stop waiting for a Service that was deleted or has no hints."""
        self._levels.pop(service, None)
        self._outdated.pop(service, None)
        self._stop_waiting(service)

    def tick(self) -> None:
        """Advance the time by one tick, and requeue some Services whose message is outdated."""
        self._tick += 1
        for service, since in self._since.items():
            if self._tick - since == _NAME_AFTER_TICKS:
                self._outdated[service] = None
        for name, since in list(self._joined.items()):
            if self._tick - since >= ANSWER_TICKS:
                del self._joined[name]
                if name in self._silent:
                    self._outdated.update(dict.fromkeys(self._levels))
                if name in self._new:
                    self._new.discard(name)
                    self._on_follower(name)
        self._note_lagging()
        for service in list(self._outdated)[:_MAX_A_TICK]:
            del self._outdated[service]
            self._on_due(service)

    def _note_lagging(self) -> None:
        """Stop counting on nodes that have acknowledged nothing for long, though slices changed."""
        awaited = max(self._pending.values(), default=0)
        if not self._marks or self._marks[0] >= awaited:
            self._behind.clear()
            return
        for name in self._ready:
            if self._mark(name) >= awaited:
                self._behind.pop(name, None)
                continue
            since = self._behind.setdefault(name, self._tick)
            if self._tick - since >= ANSWER_TICKS and name not in self._lagging:
                self._lagging.add(name)
                self._on_follower(name)

    def _has_answered(self, node: str) -> bool:
        answer = self._answers.get(node)
        return answer is not None and bool(answer.version or answer.honors)

    def _mark(self, node: str) -> int:
        answer = self._answers.get(node)
        return 0 if answer is None else answer.version

    def _name_awaited(self, service: NamespacedName, version: int) -> NodeSample:
        """Return the nodes to name: silent ones, or after some ticks those that lag behind."""
        if len(self._silent):
            return self._silent.sample
        if self._tick - self._since.get(service, self._tick) < _NAME_AFTER_TICKS:
            return NodeSample()
        behind = [node for node in self._ready if self._mark(node) < version]
        return NodeSample(len(behind), tuple(heapq.nsmallest(MAX_NAMED_NODES, behind)))

    def _regroup(self, node: str) -> None:
        """Put a node into its groups, and requeue the Services whose condition may change."""
        answer = self._answers.get(node)
        is_ready = node in self._ready
        if self._silent.put(node, belongs=is_ready and not self._has_answered(node)):
            self._outdated.update(dict.fromkeys(self._pending))
        for level, group in self._unable.items():
            was_any, before = bool(len(group)), str(group.sample)
            is_unable = answer is not None and answer.version > 0 and level not in answer.honors
            if not group.put(node, belongs=is_ready and is_unable):
                continue
            affected = [key for key, levels in self._levels.items() if level in levels]
            if was_any != bool(len(group)):
                self._requeue(affected)
            elif before != str(group.sample):
                self._outdated.update(dict.fromkeys(affected))

    def _replace(self, node: str, after: NodeAcknowledgement | None) -> NodeAcknowledgement | None:
        before = self._answers.get(node)
        if node in self._ready:
            self._marks.pop(bisect_left(self._marks, self._mark(node)))
            insort(self._marks, 0 if after is None else after.version)
        for service in () if before is None else before.exceptions:
            nodes = self._refusals[service]
            nodes.discard(node)
            if not nodes:
                del self._refusals[service]
        if after is None:
            self._answers.pop(node, None)
        else:
            self._answers[node] = after
            for service in after.exceptions:
                self._refusals.setdefault(service, set()).add(node)
        return before

    def _start_waiting(self, service: NamespacedName, version: int) -> None:
        if self._pending.get(service) == version:
            return
        self._since.setdefault(service, self._tick)
        self._pending[service] = version
        heapq.heappush(self._by_version, (version, service))
        if len(self._by_version) > 2 * len(self._pending) + _SPARE_ENTRIES:
            # NB: while a node never answers, replaced entries would accumulate.
            self._by_version = [(awaited, key) for key, awaited in self._pending.items()]
            heapq.heapify(self._by_version)

    def _release_acknowledged(self) -> None:
        """Requeue the Services whose version the slowest node has passed."""
        floor = self._marks[0] if self._marks else -1
        while self._by_version and self._by_version[0][0] <= floor:
            version, service = heapq.heappop(self._by_version)
            if self._pending.get(service) == version:
                self._stop_waiting(service)
                self._on_due(service)

    def _requeue(self, services: Iterable[NamespacedName]) -> None:
        for service in services:
            if service in self._levels:
                self._on_due(service)

    def _stop_waiting(self, service: NamespacedName) -> None:
        self._pending.pop(service, None)
        self._since.pop(service, None)


class HonoredConditions:
    """Adds the condition Honored to the conditions of Services."""

    def __init__(
        self,
        caches: Caches,
        *,
        settings: PlannerSettings,
        facts_of: Callable[[NamespacedName], FactsOf],
        on_due: Callable[[NamespacedName], None],
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._facts_of = facts_of
        self.ledger = AcknowledgementLedger(on_due=on_due)

    def subscribe(self) -> None:
        """Receive the present content of the caches and every later change."""
        self._caches.services.subscribe(self.ledger.on_service)
        self._caches.nodes.subscribe(self.ledger.on_node)
        self._caches.acknowledgements.subscribe(self.ledger.on_acknowledgement)

    def complete(
        self, service: Service, conditions: tuple[Condition, ...]
    ) -> tuple[Condition, ...]:
        """Return the conditions, with Honored where the Service has hints that nodes can follow."""
        key, prefix = service.key, self._settings.condition_prefix
        if not is_programmed(conditions, prefix=prefix):
            self.ledger.forget(key)
            return conditions
        obstacle = find_obstacle(service, gates=self._settings.gates)
        if obstacle is not None:
            is_answered = self.ledger.follow(key)
            return add_honored(conditions, obstacle if is_answered else None, prefix=prefix)
        slices = self._caches.slices_of(key, self._settings.managed_by)
        facts = self._facts_of(key)
        levels = frozenset[HintLevel]().union(*(facts(item).levels for item in slices))
        acknowledgements = self.ledger.evaluate(key, newest_version(slices), levels)
        if acknowledgements is not None and hold_weights(slices):
            acknowledgements = replace(acknowledgements, has_weights=True)
        return add_honored(conditions, acknowledgements, prefix=prefix)


def newest_version(slices: Iterable[EndpointSlice]) -> int:
    """Return the highest resource version, 0 without slices: every node has acknowledged that."""
    versions = [
        parse_resource_version(endpoint_slice.metadata.resource_version)
        for endpoint_slice in slices
    ]
    return max((_NEVER if version is None else version for version in versions), default=0)
