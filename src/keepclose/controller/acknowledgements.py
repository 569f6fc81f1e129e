"""Who has answered for which hints: the acknowledgements of nodes, held against Services.

A Service is honoured when every ready node has programmed its newest slice and uses its hints.
Watermarks of nodes are kept in order and Services that wait are kept by version, so that an answer
costs what it settles: only a Service that the slowest node has just passed, or that a node names or
no longer names as an exception, is looked at again. What was honoured is not taken back when a node
joins, which would write every Service twice; its next sync looks anew.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Final

from keepclose.controller.caches import Caches
from keepclose.model.acknowledgements import (
    NodeAcknowledgement,
    parse_acknowledgement,
    parse_version,
)
from keepclose.model.configuration import ConfigMap
from keepclose.model.endpointslice import EndpointSlice
from keepclose.model.meta import Condition, NamespacedName
from keepclose.model.service import Service
from keepclose.model.workload import Node
from keepclose.routing.conditions import Acknowledgements, add_honored, is_programmed

# What cannot be compared is answered by nobody.
_NEVER: Final = 2**70
_SPARE: Final = 64


class Ledger:
    """The answers of all nodes, and the Services that wait for some.

    `on_due` is called with a Service whose condition may have changed.
    """

    def __init__(self, *, on_due: Callable[[NamespacedName], None]) -> None:
        self._on_due = on_due
        self._ready: set[str] = set()
        self._answers: dict[str, NodeAcknowledgement] = {}
        # The versions of ready nodes in order, 0 for one that has not answered at all.
        self._marks: list[int] = []
        self._refusals: dict[NamespacedName, set[str]] = {}
        self._hinted: set[NamespacedName] = set()
        self._pending: dict[NamespacedName, int] = {}
        self._line: list[tuple[int, NamespacedName]] = []

    @property
    def pending(self) -> int:
        """How many Services wait for some node."""
        return len(self._pending)

    def hear_node(self, old: Node | None, new: Node | None) -> None:
        """Count a node that became ready, or do not count it any more."""
        node = old if new is None else new
        was_ready = old is not None and old.is_ready
        is_ready = new is not None and new.is_ready
        if node is None or was_ready == is_ready:
            return
        name = node.name
        if is_ready:
            self._ready.add(name)
            insort(self._marks, self._mark(name))
        else:
            self._ready.discard(name)
            self._marks.pop(bisect_left(self._marks, self._mark(name)))
        answer = self._answers.get(name)
        if answer is not None:
            self._look_again(answer.exceptions)
        self._settle()

    def hear_acknowledgement(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take an answer that came, changed or went."""
        one = old if new is None else new
        named = None if one is None else parse_acknowledgement(one)
        if named is None:
            return
        after = None if new is None else named
        had_any = bool(self._answers)
        before = self._replace(named.node, after)
        if had_any != bool(self._answers):
            self._look_again(tuple(self._hinted))
            return
        refused_before = () if before is None else before.exceptions.keys()
        refused_after = () if after is None else after.exceptions.keys()
        self._look_again(set(refused_before) ^ set(refused_after))
        self._settle()

    def hear_service(self, old: Service | None, new: Service | None) -> None:
        """Forget a Service that is gone."""
        if new is None and old is not None:
            self.forget(old.key)

    def judge(self, service: NamespacedName, version: int) -> Acknowledgements | None:
        """Return who has answered for a Service whose newest slice has the version.

        None while no node in the cluster answers at all. From now on the Service is looked at
        again when that changes.
        """
        self._hinted.add(service)
        if not self._answers:
            self._pending.pop(service, None)
            return None
        nodes = len(self._marks)
        answered = nodes - bisect_left(self._marks, version)
        if nodes and answered == nodes:
            self._pending.pop(service, None)
        else:
            self._await(service, version)
        refusing = [
            node
            for node in self._refusals.get(service, ())
            if node in self._ready and self._mark(node) >= version
        ]
        return Acknowledgements(nodes, answered, answered - len(refusing))

    def forget(self, service: NamespacedName) -> None:
        """Wait no more for answers about a Service, which is gone or has no hints."""
        self._hinted.discard(service)
        self._pending.pop(service, None)

    def _mark(self, node: str) -> int:
        answer = self._answers.get(node)
        return 0 if answer is None else answer.version

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

    def _await(self, service: NamespacedName, version: int) -> None:
        if self._pending.get(service) == version:
            return
        self._pending[service] = version
        heapq.heappush(self._line, (version, service))
        if len(self._line) > 2 * len(self._pending) + _SPARE:
            # NB: a node that never answers would let replaced entries pile up.
            self._line = [(waiting, key) for key, waiting in self._pending.items()]
            heapq.heapify(self._line)

    def _settle(self) -> None:
        """Have the Services looked at that the slowest node has passed."""
        floor = self._marks[0] if self._marks else -1
        while self._line and self._line[0][0] <= floor:
            version, service = heapq.heappop(self._line)
            if self._pending.get(service) == version:
                del self._pending[service]
                self._on_due(service)

    def _look_again(self, services: Iterable[NamespacedName]) -> None:
        for service in services:
            if service in self._hinted:
                self._on_due(service)


class Honoring:
    """Adds the condition Honored to the conditions of Services."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        slices_of: Callable[[NamespacedName], Iterable[EndpointSlice]],
        prefix: str = "",
    ) -> None:
        self._ledger = ledger
        self._slices_of = slices_of
        self._prefix = prefix

    def subscribe(self, caches: Caches) -> None:
        """Hear of every change from now on, and of all that is in the caches already."""
        caches.services.subscribe(self._ledger.hear_service)
        caches.nodes.subscribe(self._ledger.hear_node)
        caches.acknowledgements.subscribe(self._ledger.hear_acknowledgement)

    def complete(
        self, service: NamespacedName, conditions: tuple[Condition, ...]
    ) -> tuple[Condition, ...]:
        """Return the conditions with Honored, as far as nodes can have something to honour."""
        if not is_programmed(conditions, prefix=self._prefix):
            self._ledger.forget(service)
            return conditions
        version = newest_version(self._slices_of(service))
        return add_honored(conditions, self._ledger.judge(service, version), prefix=self._prefix)


def newest_version(slices: Iterable[EndpointSlice]) -> int:
    """Return the highest resource version; without slices there is nothing to answer for."""
    versions = [parse_version(one.metadata.resource_version) for one in slices]
    return max((_NEVER if one is None else one for one in versions), default=0)
