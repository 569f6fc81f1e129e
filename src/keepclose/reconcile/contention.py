"""Notices that another controller undoes what is written, and waits longer each time.

A change by hand is corrected at once, and so are a few: that is what a controller is for. When the
slices of one Service are changed by others after each of three writes within half a minute, another
controller wants them otherwise, and correcting them would be a war of writes. Each further round
doubles the wait of that Service; a time of peace forgets it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from keepclose.kube.client import USER_AGENT, Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError
from keepclose.kube.requests import ENDPOINT_SLICES, Kind
from keepclose.model.meta import NamespacedName
from keepclose.model.metadata_validation import plain_line

_FIRST_S: Final = 1.0
LONGEST_S: Final = 300.0
PEACE_S: Final = 60.0
ROUNDS: Final = 3
_WINDOW_S: Final = 30.0
LONGEST_CONTENTION_S: Final = 60.0
"""So long may a change of pods wait while another controller writes."""
# What API servers take; a name stands in logs, Events and conditions.
_LONGEST_MANAGER: Final = 128
_RAW_SLICES: Final[Kind[dict[str, Any]]] = Kind(
    ENDPOINT_SLICES.group,
    ENDPOINT_SLICES.version,
    ENDPOINT_SLICES.plural,
    ENDPOINT_SLICES.kind,
    ENDPOINT_SLICES.namespaced,
    dict,
)


class ReapplyBackoff:
    """The waits of all Services."""

    def __init__(self, clock: Clock, *, longest_s: float = LONGEST_S) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._waits: dict[NamespacedName, tuple[float, float]] = {}

    def note_loss(self, key: NamespacedName) -> float:
        """Note that hints of a Service were removed; return the wait in seconds that follows."""
        now = self._clock.monotonic()
        wait, until = self._waits.get(key, (0.0, now))
        if now < until:
            return until - now
        is_war = now - until < max(2 * wait, PEACE_S)
        wait = min(2 * wait, self._longest_s) if wait and is_war else _FIRST_S
        self._waits[key] = (wait, now + wait)
        return wait

    def left(self, key: NamespacedName) -> float:
        """Return how many seconds a Service must still wait; 0 when it need not."""
        _, until = self._waits.get(key, (0.0, 0.0))
        return max(0.0, until - self._clock.monotonic())

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that is gone or none of ours."""
        self._waits.pop(key, None)


class Contention:
    """The rounds of writes of all Services that were written of late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._brake = ReapplyBackoff(clock, longest_s=LONGEST_CONTENTION_S)
        self._undone: set[NamespacedName] = set()
        self._written: set[NamespacedName] = set()
        self._rounds: dict[NamespacedName, deque[float]] = {}
        self._fought: dict[NamespacedName, float] = {}

    @property
    def services(self) -> int:
        """How many Services another controller fights about."""
        end = self._clock.monotonic()
        self._fought = {key: until for key, until in self._fought.items() if until > end}
        return len(self._fought)

    def left(self, key: NamespacedName) -> float:
        """Return after how many seconds without another round there is peace; 0 in peace."""
        return max(0.0, self._fought.get(key, 0.0) - self._clock.monotonic())

    def note_written(self, key: NamespacedName) -> None:
        """Note that slices of a Service were written by us."""
        self._written.add(key)
        self._undone.discard(key)

    def note_foreign(self, key: NamespacedName) -> None:
        """Note that slices of a Service were written by another."""
        if key in self._written:
            self._undone.add(key)

    def ask(self, key: NamespacedName) -> float:
        """Return how many seconds a Service must wait before its slices are written again.

        Call it when something is to be written.
        """
        left = self._brake.left(key)
        if left > 0:
            return left
        if key not in self._undone:
            return 0.0
        self._undone.discard(key)
        now = self._clock.monotonic()
        rounds = self._rounds.setdefault(key, deque(maxlen=ROUNDS))
        rounds.append(now)
        if not self.left(key) and (len(rounds) < ROUNDS or now - rounds[0] > _WINDOW_S):
            return 0.0
        wait_s = self._brake.note_loss(key)
        self._fought[key] = now + wait_s + _WINDOW_S
        return wait_s

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that is gone."""
        self._brake.forget(key)
        self._undone.discard(key)
        self._written.discard(key)
        self._rounds.pop(key, None)
        self._fought.pop(key, None)


async def find_writer(client: Client, slice_key: NamespacedName) -> str:
    """Return the field manager, other than ours, that wrote a slice last; "" if unknown."""
    try:
        found = await client.get(_RAW_SLICES, slice_key.name, namespace=slice_key.namespace)
    except KubeError:
        return ""
    entries = found.get("metadata", {}).get("managedFields") or ()
    ours = USER_AGENT.partition("/")[0]
    others = [
        (str(entry.get("time", "")), plain_line(str(entry["manager"]), longest=_LONGEST_MANAGER))
        for entry in entries
        if entry.get("manager") not in (None, ours)
    ]
    return max(others, default=("", ""))[1]
