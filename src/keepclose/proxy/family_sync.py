"""The sync of one address family: changes in, transactions out, at a limited rate.

The first change after an idle period is written at once; changes within the minimum period after a
sync share the next sync. A sync processes only changed Services. A full sync compares the whole
table: at start, after a failure, once an hour, and when the table is missing. The changes of a
failed sync stay in memory, so none is lost; retries back off. Unused chains are deleted a second
later.

A failure never removes rules that work.
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
from keepclose.proxy.validation import ValidationLog

_FIRST_RETRY_S: Final = 0.5
# After so many Services the sync yields to other tasks.
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
        validation_log: ValidationLog,
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
        self._validation_log = validation_log
        self._before_full = before_full
        self._before_write = before_write
        self._after = after
        self._requested = asyncio.Event()
        self._needs_full = True
        self._needs_all_services = False
        self._is_syncing = False
        self._last_full = -math.inf
        self._last_check = -math.inf
        self._failures = 0
        self._logged_failure = ""
        self._changed: set[NamespacedName] = set()
        self._trigger_times: list[float] = []
        self._sweeps: list[tuple[float, int]] = []
        self.version = 0
        """The highest version of a slice with hints whose rules are written."""
        self.synced = asyncio.Event()
        """Set after the first successful sync."""
        self.syncs = 0
        """The number of successful syncs."""

    @property
    def is_idle(self) -> bool:
        """Whether no change waits to be written or is being written."""
        return not (
            self._is_syncing
            or self._requested.is_set()
            or self._failures
            or self.tracker.pending_services
            or self.tracker.pending_endpoints
        )

    @property
    def is_failing(self) -> bool:
        """Whether the last sync failed."""
        return self._failures > 0

    @property
    def next_sweep(self) -> float | None:
        """When the next deletion is due, by the monotonic clock."""
        return self._sweeps[0][0] if self._sweeps else None

    def request(self, *, full: bool = False) -> None:
        """Request a sync."""
        self._needs_full = self._needs_full or full
        if not self._requested.is_set():
            self._requested.set()
            self._metrics.queued(self.family, self._clock.now())
            self._health.record_queued(self.family)

    def request_all_services(self) -> None:
        """Request a sync that selects again for every Service, as the own node has changed."""
        self._needs_all_services = True
        self.request()

    async def run(self) -> NoReturn:
        """Sync now, and then whenever a sync is due or requested, until cancelled."""
        while True:
            await self.sync()
            # NB: changes come first; but deletions must not wait forever while changes keep coming.
            await self._maintain()
            await self._clock.sleep(self._settings.min_sync_s)
            while not await self._wait():
                pass

    async def sync(self) -> bool:
        """Write the changes since the last sync; return whether that succeeded."""
        try:
            await self.sync_or_raise()
        except NftError:
            return False
        except Exception as error:  # noqa: BLE001 - a bug of ours must not stop later syncs
            _log.exception("sync failed unexpectedly", family=self.family)
            self._record_failure(NftError(f"sync failed unexpectedly: {error!r}"))
            return False
        return True

    async def sync_or_raise(self, *, runs_post_sync: bool = True) -> None:
        """Write the changes since the last sync; record and raise NftError."""
        self._is_syncing = True
        try:
            await self._sync(runs_post_sync=runs_post_sync)
        finally:
            self._is_syncing = False

    async def sweep(self) -> None:
        """Delete the objects whose deletion is due."""
        now = self._clock.monotonic()
        while self._sweeps and self._sweeps[0][0] <= now:
            _, serial = self._sweeps.pop(0)
            try:
                await self.rules.sweep(serial)
            except NftError as error:
                self._metrics.cleanup_failed(self.family)
                _log.warning(
                    "unused chains cannot be deleted", family=self.family, error=str(error)
                )
                self._sweeps.clear()
                self.request(full=True)

    async def _sync(self, *, runs_post_sync: bool) -> None:
        started = self._clock.monotonic()
        self._requested.clear()
        is_due = started - self._last_full >= self._settings.full_sync_s
        is_full = self._needs_full or is_due
        self._needs_full = False
        if is_full:
            self._before_full()
        version = await self._select()
        if self._before_write():
            # The layout changed, so the whole table has to be written again.
            is_full = True
        try:
            if is_full:
                serial = await self.rules.write_all()
            else:
                serial = await self.rules.write_changes()
        except NftError as error:
            self._record_failure(error)
            raise
        else:
            self._record_success(serial, version=version, is_full=is_full)
        finally:
            self._metrics.synced(self.family, self._clock.monotonic() - started, is_full=is_full)
        changed, self._changed = self._changed, set()
        if runs_post_sync:
            await self._after(changed)
        self.synced.set()

    async def _select(self) -> int:
        """Take all changes and select again for the changed Services; return their version."""
        changes = self.tracker.take()
        states = self.states
        for key, ports in changes.services.items():
            states.set_ports(key, ports)
        for position, key in enumerate(changes.endpoints):
            self._try(key, lambda key: states.set_endpoints(key, self._caches.slices_of(key)))
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        changed = set(changes.services) | changes.endpoints
        self._changed |= changed
        self._trigger_times += changes.trigger_times
        if self._needs_all_services:
            self._needs_all_services = False
            changed |= set(states.keys())
        for position, key in enumerate(changed):
            self._try(key, states.select)
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return changes.version

    def _try(self, key: NamespacedName, work: Callable[[NamespacedName], None]) -> None:
        """Run the work for one Service; if it fails, the state of the Service stays as it was."""
        try:
            work(key)
        except Exception as error:  # noqa: BLE001 - one Service must not affect the others
            self._validation_log.report("Service", key, f"cannot be routed: {error!r}")

    def _record_success(self, serial: int | None, *, version: int, is_full: bool) -> None:
        now = self._clock.monotonic()
        if self._failures:
            _log.info("sync succeeded after failures", family=self.family, failures=self._failures)
        self._failures = 0
        self._logged_failure = ""
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
        self._health.record_update(self.family)
        if self._requested.is_set():
            # Changes that arrived during the sync wait from now on, not since the last request.
            self._health.record_queued(self.family)

    def _record_failure(self, error: NftError) -> None:
        self._needs_full = True
        self._failures += 1
        self._sweeps.clear()
        self._metrics.failed(self.family)
        self._health.record_queued(self.family)
        # Repeated failures for the same reason are logged once.
        if str(error) != self._logged_failure:
            self._logged_failure = str(error)
            _log.error(
                "rules cannot be written; the existing rules stay",
                family=self.family,
                error=str(error),
                failure=error.failure.value,
            )

    async def _wait(self) -> bool:
        """Wait until work is due; return whether that is a sync."""
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
            await self._clock.wait_for(
                self._requested.wait(), max(0.0, due - self._clock.monotonic())
            )
        except TimeoutError:
            await self._maintain()
            is_due = self._clock.monotonic() >= self._last_full + self._settings.full_sync_s
            return self._requested.is_set() or is_due
        return True

    async def _maintain(self) -> None:
        """Run deletions that are due, and check the table if that is due."""
        await self.sweep()
        now = self._clock.monotonic()
        if self._needs_full or now - self._last_check < self._settings.sync_s:
            return
        self._last_check = now
        try:
            await self.rules.check()
        except NftError as error:
            if error.failure is NftFailure.NOT_FOUND:
                _log.warning("table removed or changed by another program", family=self.family)
            else:
                _log.warning("table cannot be checked", family=self.family, error=str(error))
            self.request(full=True)
