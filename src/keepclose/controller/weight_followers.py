"""The zones in which all nodes follow weights, as the ledger of acknowledgements says of each node.

There weights need no regard for nodes that go by hints. A zone that stops to follow is dropped at
once, and counts again only after it has followed for some ticks: each change may write the weights
of many Services. This module counts by zone and must not judge acknowledgements itself. Every event
costs the same, however many nodes there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from keepclose.controller.acknowledgements import ANSWER_TICKS, AcknowledgementLedger
from keepclose.model.acknowledgements import HintLevel
from keepclose.model.workload import Node
from keepclose.reconcile.caches import Caches


class WeightFollowers:
    """Counts by zone the ready nodes, and those that follow weights.

    `on_change` is called with the zones in which all ready nodes follow weights. The ledger must
    receive each change of a node before this object does.
    """

    def __init__(
        self, ledger: AcknowledgementLedger, *, on_change: Callable[[frozenset[str]], None]
    ) -> None:
        self._ledger = ledger
        self._on_change = on_change
        self._zones: dict[str, str] = {}
        """The zone of each ready node."""
        self._counted: set[str] = set()
        """The nodes that are counted as following."""
        self._ready: Counter[str] = Counter()
        self._following: Counter[str] = Counter()
        self._tick = 0
        self._dropped: dict[str, int] = {}
        """Zones that were dropped, and the last tick at which they did not follow."""
        self.zones: frozenset[str] = frozenset()
        ledger.subscribe_followers(self._on_follower)

    def subscribe(self, caches: Caches) -> None:
        """Receive the present nodes of the caches and every later change."""
        caches.nodes.subscribe(self.on_node)

    def on_node(self, old: Node | None, new: Node | None) -> None:
        """Count a node that is ready, in its zone; a node without a zone follows nothing."""
        node = old if new is None else new
        if node is None:
            return
        name = node.name
        zone = new.zone if new is not None and new.is_ready else ""
        before = self._zones.get(name, "")
        if before == zone:
            return
        if before:
            del self._zones[name]
            self._ready[before] -= 1
            if name in self._counted:
                self._counted.discard(name)
                self._following[before] -= 1
        if zone:
            self._zones[name] = zone
            self._ready[zone] += 1
            self._recount(name, zone)
        self._publish()

    def tick(self) -> None:
        """Advance the time by one tick, after that of the ledger."""
        self._tick += 1
        if self._dropped:
            self._publish()

    def _on_follower(self, name: str) -> None:
        zone = self._zones.get(name)
        if zone is not None:
            self._recount(name, zone)
            self._publish()

    def _recount(self, name: str, zone: str) -> None:
        follows = self._ledger.follows(name, HintLevel.WEIGHTS)
        if follows and name not in self._counted:
            self._counted.add(name)
            self._following[zone] += 1
        elif not follows and name in self._counted:
            self._counted.discard(name)
            self._following[zone] -= 1

    def _publish(self) -> None:
        complete = {
            zone for zone, count in self._ready.items() if 0 < count == self._following[zone]
        }
        # NB: before the first tick the caches deliver the nodes, one after the other.
        lost = self.zones - complete if self._tick else frozenset()
        for zone in (*lost, *(self._dropped.keys() - complete)):
            self._dropped[zone] = self._tick
        for zone in complete & self._dropped.keys():
            if self._tick - self._dropped[zone] >= ANSWER_TICKS:
                del self._dropped[zone]
        zones = frozenset(complete - self._dropped.keys())
        if zones != self.zones:
            self.zones = zones
            self._on_change(zones)
