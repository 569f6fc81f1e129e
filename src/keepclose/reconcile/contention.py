"""Detects that another controller reverts writes of slices or hints, and backs off.

A manual change is corrected at once, and so are a few: that is what a controller is for. When other
clients change the slices of a Service after each of three writes within half a minute, another
controller has a different desired state, and both would write forever. Each further round doubles
the backoff of that Service; a quiet period resets it.

The webhook's hint keeper uses the same backoff. While the API server calls the webhook, hints are
never lost; where it cannot reach the webhook, the built-in controller removes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from keepclose.kube.client import USER_AGENT, Client
from keepclose.kube.clock import Clock
from keepclose.kube.errors import KubeError
from keepclose.kube.requests import ENDPOINT_SLICES, Kind
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.metadata_validation import plain_line

MAX_S: Final = 300.0
RESET_S: Final = 60.0
ROUNDS: Final = 3
MAX_CONTENTION_S: Final = 60.0
"""The longest delay of a pod's change while another controller writes."""
_FIRST_S: Final = 1.0
_WINDOW_S: Final = 30.0
# API servers accept no longer name of a manager; it appears in logs, Events and conditions.
_MAX_MANAGER: Final = 128
_RAW_SLICES: Final[Kind[dict[str, Any]]] = Kind(
    ENDPOINT_SLICES.group,
    ENDPOINT_SLICES.version,
    ENDPOINT_SLICES.plural,
    ENDPOINT_SLICES.kind,
    ENDPOINT_SLICES.namespaced,
    dict,
)


class ReapplyBackoff:
    """The backoff of each Service before its hints or slices are written again."""

    def __init__(self, clock: Clock, *, longest_s: float = MAX_S) -> None:
        self._clock = clock
        self._longest_s = longest_s
        self._waits: dict[NamespacedName, tuple[float, float]] = {}

    def record_loss(self, key: NamespacedName) -> float:
        """Record that writes of a Service were reverted; return the backoff in seconds."""
        now = self._clock.monotonic()
        wait, until = self._waits.get(key, (0.0, now))
        if now < until:
            return until - now
        is_contended = now - until < max(2 * wait, RESET_S)
        wait = min(2 * wait, self._longest_s) if wait and is_contended else _FIRST_S
        self._waits[key] = (wait, now + wait)
        return wait

    def left(self, key: NamespacedName) -> float:
        """Return the remaining backoff of a Service in seconds; 0 without one."""
        _, until = self._waits.get(key, (0.0, 0.0))
        return max(0.0, until - self._clock.monotonic())

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that was deleted or is out of scope."""
        self._waits.pop(key, None)


class Contention:
    """The Services whose slices another controller keeps changing, and their backoff."""

    def __init__(
        self,
        clock: Clock,
        *,
        find_writer: Callable[[NamespacedName], Awaitable[str]] | None = None,
    ) -> None:
        """Take the function from a slice to the controller that wrote it last; "" if unknown."""
        self._clock = clock
        self._find_writer = find_writer
        self._writers: dict[NamespacedName, str] = {}
        self._backoff = ReapplyBackoff(clock, longest_s=MAX_CONTENTION_S)
        self._undone: set[NamespacedName] = set()
        self._written: set[NamespacedName] = set()
        self._rounds: dict[NamespacedName, deque[float]] = {}
        self._contended_until: dict[NamespacedName, float] = {}

    @property
    def services(self) -> int:
        """The number of contended Services."""
        now = self._clock.monotonic()
        self._contended_until = {
            key: until for key, until in self._contended_until.items() if until > now
        }
        return len(self._contended_until)

    def left(self, key: NamespacedName) -> float:
        """Return the seconds until a Service no longer counts as contended; 0 if it is not."""
        return max(0.0, self._contended_until.get(key, 0.0) - self._clock.monotonic())

    def record_own_write(self, key: NamespacedName) -> None:
        """Record a write of this controller to the slices of a Service."""
        self._written.add(key)
        self._undone.discard(key)

    def record_foreign_write(self, key: NamespacedName) -> None:
        """Record a write of another client to the slices of a Service."""
        if key in self._written:
            self._undone.add(key)

    def required_wait(self, key: NamespacedName) -> float:
        """Return how many seconds a Service must wait before its slices are written again.

        NB: it counts a round of writes; call it only when there is something to write.
        """
        left = self._backoff.left(key)
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
        wait_s = self._backoff.record_loss(key)
        self._contended_until[key] = now + wait_s + _WINDOW_S
        return wait_s

    async def identify_writer(self, key: NamespacedName, slices: Sequence[EndpointSlice]) -> bool:
        """Find the controller that changes these slices; return False if it is known already."""
        if key in self._writers:
            return False
        name = ""
        if slices and self._find_writer is not None:
            name = await self._find_writer(slices[0].metadata.key)
        self._writers[key] = name or "another controller"
        return True

    def writer(self, key: NamespacedName) -> str:
        """Return the controller that keeps changing the slices of a Service; "" for none."""
        return self._writers.get(key, "")

    def release_writer(self, key: NamespacedName) -> None:
        """Forget the other controller of a Service that no longer counts as contended."""
        if not self.left(key):
            self._writers.pop(key, None)

    def forget(self, key: NamespacedName) -> None:
        """Forget a Service that was deleted."""
        self._backoff.forget(key)
        self._undone.discard(key)
        self._written.discard(key)
        self._rounds.pop(key, None)
        self._contended_until.pop(key, None)
        self._writers.pop(key, None)


async def find_writer(client: Client, slice_key: NamespacedName) -> str:
    """Return the field manager, other than keepclose, that wrote a slice last; "" if unknown."""
    try:
        endpoint_slice = await client.get(
            _RAW_SLICES, slice_key.name, namespace=slice_key.namespace
        )
    except KubeError:
        return ""
    entries = endpoint_slice.get("metadata", {}).get("managedFields") or ()
    ours = USER_AGENT.partition("/")[0]
    others = [
        (str(entry.get("time", "")), plain_line(str(entry["manager"]), longest=_MAX_MANAGER))
        for entry in entries
        if entry.get("manager") not in (None, ours)
    ]
    return max(others, default=("", ""))[1]
