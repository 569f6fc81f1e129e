"""The sync of one address family: changes in, transactions out, at most so often.

The first change after a quiet time is written at once; those that come within the least period
after a sync share the next one. A sync looks only at touched Services. A full one compares the
whole table: at start, after a failure, once an hour, and when the table turns out to be gone. What
a failed sync had taken stays in effect in memory, so nothing is lost by it; the next attempts come
with growing delays. Chains that nothing leads to any more are deleted a second later.

Rules that stand are never taken away because something fails.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import structlog

from keepclose.kube.clock import Clock
from keepclose.model.meta import NamespacedName
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.change_tracker import ChangeTracker
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.health import HealthState
from keepclose.proxy.nft.rules import Rules
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.proxy.port_selections import PortStates
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.validation import Flaws

_FIRST_RETRY_S: Final = 0.5
# So many Services are looked at before others get their turn.
_AT_ONCE: Final = 200
_log = structlog.get_logger(__name__)


class FamilySync:
    """Keeps the table of one family up to date."""

    def __init__(
        self,
        family: str,
        *,
        settings: ProxySettings,
        caches: ProxyCaches,
        tracker: ChangeTracker,
        states: PortStates,
        rules: Rules,
        metrics: ProxyMetrics,
        health: HealthState,
        clock: Clock,
        flaws: Flaws,
        before_full: Callable[[], None],
        before_write: Callable[[], bool],
        after: Callable[[set[NamespacedName]], Awaitable[None]],
    ) -> None:
        self.family = family
        self._settings = settings
        self._caches = caches
        self.tracker = tracker
        self.states = states
        self.rules = rules
        self._metrics = metrics
        self._health = health
        self._clock = clock
        self._flaws = flaws
        self._before_full = before_full
        self._before_write = before_write
        self._after = after
        self._wanted = asyncio.Event()
        self._needs_full = True
        self._is_moved = False
        self._is_syncing = False
        self._last_full = -math.inf
        self._last_check = -math.inf
        self._failures = 0
        self._told_failure = ""
        self._touched: set[NamespacedName] = set()
        self._trigger_times: list[float] = []
        self._sweeps: list[tuple[float, int]] = []
        self.version = 0
        """The highest version of a slice with hints whose rules are written."""
        self.synced = asyncio.Event()
        """Set once a sync was written."""
        self.syncs = 0
        """Syncs that were written."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written or is being written."""
        return not (
            self._is_syncing
            or self._wanted.is_set()
            or self._failures
            or self.tracker.pending_services
            or self.tracker.pending_endpoints
        )

    @property
    def is_failing(self) -> bool:
        """Whether the last sync could not be written."""
        return self._failures > 0

    def request(self, *, full: bool = False) -> None:
        """Ask for a sync."""
        self._needs_full = self._needs_full or full
        if not self._wanted.is_set():
            self._wanted.set()
            self._metrics.queued(self.family, self._clock.now())
            self._health.note_queued(self.family)

    def move_node(self) -> None:
        """Ask for a sync that selects anew for every Service, as the own node has moved."""
        self._is_moved = True
        self.request()

    async def run(self) -> NoReturn:
        """Sync now, and then whenever there is something to do, until cancelled."""
        while True:
            await self.sync()
            # NB: news first; and yet what is due must not wait for ever while news keep coming.
            await self._tend()
            await self._clock.sleep(self._settings.min_sync_s)
            while not await self._wait():
                pass

    async def sync(self) -> bool:
        """Write what came since the last sync; return whether that worked."""
        try:
            await self.sync_or_raise()
        except NftError:
            return False
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not stop later syncs
            _log.exception("a sync broke off", family=self.family)
            self._note_failure(NftError(f"a sync broke off: {error!r}"))
            return False
        return True

    async def sync_or_raise(self, *, follows: bool = True) -> None:
        """Write what came since the last sync; raises NftError, after noting it.

        Unless told otherwise, what follows from new rules is done too.
        """
        self._is_syncing = True
        try:
            await self._sync(follows=follows)
        finally:
            self._is_syncing = False

    async def _sync(self, *, follows: bool) -> None:
        started = self._clock.monotonic()
        self._wanted.clear()
        is_due = started - self._last_full >= self._settings.full_sync_s
        is_full = self._needs_full or is_due
        self._needs_full = False
        if is_full:
            self._before_full()
        version = await self._select()
        if self._before_write():
            # Another layout was taken, and everything has to be said again.
            is_full = True
        try:
            if is_full:
                serial = await self.rules.write_all()
            else:
                serial = await self.rules.write_changes()
        except NftError as error:
            self._note_failure(error)
            raise
        else:
            self._note_success(serial, version=version, is_full=is_full)
        finally:
            self._metrics.synced(self.family, self._clock.monotonic() - started, is_full=is_full)
        touched, self._touched = self._touched, set()
        if follows:
            await self._after(touched)
        self.synced.set()

    async def sweep(self) -> None:
        """Delete what was replaced long enough ago."""
        now = self._clock.monotonic()
        while self._sweeps and self._sweeps[0][0] <= now:
            _, serial = self._sweeps.pop(0)
            try:
                await self.rules.sweep(serial)
            except NftError as error:
                self._metrics.cleanup_failed(self.family)
                _log.warning("cannot delete old chains", family=self.family, error=str(error))
                self._sweeps.clear()
                self.request(full=True)

    @property
    def next_sweep(self) -> float | None:
        """When something is to be deleted, by the clock that never goes back."""
        return self._sweeps[0][0] if self._sweeps else None

    async def _select(self) -> int:
        """Take in all changes and select anew where they matter; return the version reached."""
        changes = self.tracker.take()
        states = self.states
        for key, ports in changes.services.items():
            states.set_ports(key, ports)
        for position, key in enumerate(changes.endpoints):
            self._try(key, lambda key: states.set_endpoints(key, self._caches.slices_of(key)))
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        touched = set(changes.services) | changes.endpoints
        self._touched |= touched
        self._trigger_times += changes.trigger_times
        if self._is_moved:
            self._is_moved = False
            touched |= set(states.keys())
        for position, key in enumerate(touched):
            self._try(key, states.select)
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return changes.version

    def _try(self, key: NamespacedName, work: Callable[[NamespacedName], None]) -> None:
        """Do something for one Service; what it is stays as it was if that cannot be done."""
        try:
            work(key)
        except Exception as error:  # noqa: BLE001 - one Service must not keep others from theirs
            self._flaws.note("Service", key, f"cannot be routed: {error!r}")

    def _note_success(self, serial: int | None, *, version: int, is_full: bool) -> None:
        now = self._clock.monotonic()
        if self._failures:
            _log.info("rules are written again", family=self.family, failures=self._failures)
        self._failures = 0
        self._told_failure = ""
        self.syncs += 1
        self.version = version
        if is_full:
            self._sweeps.clear()
            self._last_full = self._last_check = now
        if serial is not None:
            self._sweeps.append((now + self._settings.later_s, serial))
        trigger_times, self._trigger_times = self._trigger_times, []
        self._metrics.succeeded(
            self.family,
            now=self._clock.now(),
            trigger_times=trigger_times,
            no_local=self.states.no_local,
            modes=self.states.modes,
            fallbacks=self.states.fallbacks,
        )
        self._health.note_update(self.family)
        if self._wanted.is_set():
            # What came meanwhile waits from now on, not since what is written now came.
            self._health.note_queued(self.family)

    def _note_failure(self, error: NftError) -> None:
        self._needs_full = True
        self._failures += 1
        self._sweeps.clear()
        self._metrics.failed(self.family)
        self._health.note_queued(self.family)
        # An hour of failures for one reason is worth one line.
        if str(error) != self._told_failure:
            self._told_failure = str(error)
            _log.error(
                "rules cannot be written; those that stand stay",
                family=self.family,
                error=str(error),
                failure=error.failure.value,
            )

    async def _wait(self) -> bool:
        """Wait for the next thing to do; return whether that is a sync."""
        if self._failures:
            doublings = min(self._failures - 1, 30)
            await self._clock.sleep(min(self._settings.sync_s, _FIRST_RETRY_S * 2.0**doublings))
            return True
        due = min(
            self._last_full + self._settings.full_sync_s,
            self._last_check + self._settings.sync_s,
            self._sweeps[0][0] if self._sweeps else math.inf,
        )
        try:
            await self._clock.wait_for(self._wanted.wait(), max(0.0, due - self._clock.monotonic()))
        except TimeoutError:
            await self._tend()
            is_due = self._clock.monotonic() >= self._last_full + self._settings.full_sync_s
            return self._wanted.is_set() or is_due
        return True

    async def _tend(self) -> None:
        """Delete what is due, and look whether the table is still there when that is due."""
        await self.sweep()
        now = self._clock.monotonic()
        if self._needs_full or now - self._last_check < self._settings.sync_s:
            return
        self._last_check = now
        try:
            await self.rules.check()
        except NftError as error:
            if error.failure is NftFailure.NOT_FOUND:
                _log.warning("somebody removed our table or parts of it", family=self.family)
            else:
                _log.warning("cannot look at our table", family=self.family, error=str(error))
            self.request(full=True)
