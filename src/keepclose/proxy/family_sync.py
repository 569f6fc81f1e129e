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
from typing import Final, NamedTuple, NoReturn

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


class SharedParts(NamedTuple):
    """The parts of a proxy that all its address families use."""

    settings: ProxySettings
    caches: ProxyCaches
    metrics: ProxyMetrics
    health: HealthState
    clock: Clock
    validation_log: ValidationLog


class SyncHooks(NamedTuple):
    """The work of a family before and after its syncs."""

    before_full: Callable[[], None]
    after: Callable[[set[NamespacedName]], Awaitable[None]]
    """Receives the Services that changed."""


class SyncSchedule:
    """When syncs, checks of the table and deletions of one family are due."""

    def __init__(self, settings: ProxySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self.requested = asyncio.Event()
        self.needs_full = True
        self.failures = 0
        """The number of failed syncs since the last success."""
        self._last_full = -math.inf
        self._last_check = -math.inf
        self._sweeps: list[tuple[float, int]] = []

    @property
    def next_sweep(self) -> float | None:
        """When the next deletion is due, by the monotonic clock."""
        return self._sweeps[0][0] if self._sweeps else None

    @property
    def is_full_due(self) -> bool:
        """Whether the last full sync is too long ago."""
        return self._clock.monotonic() >= self._last_full + self._settings.full_sync_s

    def take_request(self) -> bool:
        """Forget the request for a sync; return whether the sync must be full."""
        self.requested.clear()
        is_full = self.needs_full or self.is_full_due
        self.needs_full = False
        return is_full

    def take_check(self) -> bool:
        """Return whether a check of the table is due; the next is due one period later."""
        now = self._clock.monotonic()
        if self.needs_full or now - self._last_check < self._settings.sync_s:
            return False
        self._last_check = now
        return True

    def take_sweep(self, now: float) -> int | None:
        """Return and forget the serial of a deletion that is due; None for none."""
        if self._sweeps and self._sweeps[0][0] <= now:
            return self._sweeps.pop(0)[1]
        return None

    def cancel_sweeps(self) -> None:
        """Forget all deletions, because the next full sync finds what is unused."""
        self._sweeps.clear()

    def record_success(self, serial: int | None, *, is_full: bool) -> None:
        """Record a sync, which left objects to delete under this serial."""
        now = self._clock.monotonic()
        self.failures = 0
        if is_full:
            self._sweeps.clear()
            self._last_full = self._last_check = now
        if serial is not None:
            self._sweeps.append((now + self._settings.later_s, serial))

    def record_failure(self) -> None:
        """Record a sync that failed; the next one is full."""
        self.needs_full = True
        self.failures += 1
        self._sweeps.clear()

    async def wait(self) -> bool:
        """Wait until work is due; return whether a sync was requested or has to be retried."""
        if self.failures:
            doublings = min(self.failures - 1, 30)
            await self._clock.sleep(min(self._settings.sync_s, _FIRST_RETRY_S * 2.0**doublings))
            return True
        due = min(
            self._last_full + self._settings.full_sync_s,
            self._last_check + self._settings.sync_s,
            self._sweeps[0][0] if self._sweeps else math.inf,
        )
        try:
            await self._clock.wait_for(
                self.requested.wait(), max(0.0, due - self._clock.monotonic())
            )
        except TimeoutError:
            return False
        return True


class ServiceSelector:
    """Selects again for changed Services, and keeps what is not written yet."""

    def __init__(self, tracker: ChangeTracker, states: PortStates, *, shared: SharedParts) -> None:
        self._tracker = tracker
        self._states = states
        self._caches = shared.caches
        self._validation_log = shared.validation_log
        self.needs_all = False
        """Whether the next selection is for every Service."""
        self._changed: set[NamespacedName] = set()
        self._trigger_times: list[float] = []

    @property
    def is_idle(self) -> bool:
        """Whether no change waits for a selection."""
        return not (self._tracker.pending_services or self._tracker.pending_endpoints)

    async def select(self) -> int:
        """Take all changes and select again for the changed Services; return their version."""
        changes = self._tracker.take()
        states = self._states
        for key, ports in changes.services.items():
            states.set_ports(key, ports)
        for position, key in enumerate(changes.endpoints):
            self._try(key, lambda key: states.set_endpoints(key, self._caches.slices_of(key)))
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        changed = set(changes.services) | changes.endpoints
        self._changed |= changed
        self._trigger_times += changes.trigger_times
        if self.needs_all:
            self.needs_all = False
            changed |= set(states.keys())
        for position, key in enumerate(changed):
            self._try(key, states.select)
            if position % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        return changes.version

    def take_changed(self) -> set[NamespacedName]:
        """Return and forget the Services that changed since the last sync that succeeded."""
        changed, self._changed = self._changed, set()
        return changed

    def take_trigger_times(self) -> list[float]:
        """Return and forget when the pods changed that caused those changes."""
        trigger_times, self._trigger_times = self._trigger_times, []
        return trigger_times

    def _try(self, key: NamespacedName, work: Callable[[NamespacedName], None]) -> None:
        """Run the work for one Service; if it fails, the state of the Service stays as it was."""
        try:
            work(key)
        except Exception as error:  # noqa: BLE001 - one Service must not affect the others
            self._validation_log.report("Service", key, f"cannot be routed: {error!r}")


class FamilySync:
    """Keeps the table of one family up to date."""

    def __init__(
        self,
        family: str,
        shared: SharedParts,
        *,
        tracker: ChangeTracker,
        states: PortStates,
        rules: Rules,
        hooks: SyncHooks,
    ) -> None:
        self.family = family
        self._shared = shared
        self._states = states
        self._rules = rules
        self._hooks = hooks
        self._selector = ServiceSelector(tracker, states, shared=shared)
        self._schedule = SyncSchedule(shared.settings, shared.clock)
        self._is_syncing = False
        self._logged_failure = ""
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
            or self._schedule.requested.is_set()
            or self.is_failing
            or not self._selector.is_idle
        )

    @property
    def is_failing(self) -> bool:
        """Whether the last sync failed."""
        return self._schedule.failures > 0

    @property
    def next_sweep(self) -> float | None:
        """When the next deletion is due, by the monotonic clock."""
        return self._schedule.next_sweep

    def request(self, *, full: bool = False) -> None:
        """Request a sync."""
        schedule, shared = self._schedule, self._shared
        schedule.needs_full = schedule.needs_full or full
        if not schedule.requested.is_set():
            schedule.requested.set()
            shared.metrics.queued(self.family, shared.clock.now())
            shared.health.record_queued(self.family)

    def request_all_services(self) -> None:
        """Request a sync that selects again for every Service, as the own node has changed."""
        self._selector.needs_all = True
        self.request()

    async def run(self) -> NoReturn:
        """Sync now, and then whenever a sync is due or requested, until cancelled."""
        while True:
            await self.sync()
            # NB: changes come first; but deletions must not wait forever while changes keep coming.
            await self._maintain()
            await self._shared.clock.sleep(self._shared.settings.min_sync_s)
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
        now = self._shared.clock.monotonic()
        while (serial := self._schedule.take_sweep(now)) is not None:
            try:
                await self._rules.sweep(serial)
            except NftError as error:
                self._shared.metrics.cleanup_failed(self.family)
                _log.warning(
                    "unused chains cannot be deleted", family=self.family, error=str(error)
                )
                self._schedule.cancel_sweeps()
                self.request(full=True)

    async def _sync(self, *, runs_post_sync: bool) -> None:
        clock = self._shared.clock
        started = clock.monotonic()
        is_full = self._schedule.take_request()
        if is_full:
            self._hooks.before_full()
        version = await self._selector.select()
        try:
            if is_full:
                serial = await self._rules.write_all()
            else:
                serial = await self._rules.write_changes()
        except NftError as error:
            self._record_failure(error)
            raise
        else:
            self._record_success(serial, version=version, is_full=is_full)
        finally:
            self._shared.metrics.synced(self.family, clock.monotonic() - started, is_full=is_full)
        changed = self._selector.take_changed()
        if runs_post_sync:
            await self._hooks.after(changed)
        self.synced.set()

    def _record_success(self, serial: int | None, *, version: int, is_full: bool) -> None:
        schedule, shared, states = self._schedule, self._shared, self._states
        if schedule.failures:
            failures = schedule.failures
            _log.info("sync succeeded after failures", family=self.family, failures=failures)
        schedule.record_success(serial, is_full=is_full)
        self._logged_failure = ""
        self.syncs += 1
        self.version = version
        shared.metrics.succeeded(
            self.family,
            now=shared.clock.now(),
            trigger_times=self._selector.take_trigger_times(),
            no_local=states.no_local,
            modes=states.modes,
            fallbacks=states.fallbacks,
        )
        shared.health.record_update(self.family)
        if schedule.requested.is_set():
            # Changes that arrived during the sync wait from now on, not since the last request.
            shared.health.record_queued(self.family)

    def _record_failure(self, error: NftError) -> None:
        self._schedule.record_failure()
        self._shared.metrics.failed(self.family)
        self._shared.health.record_queued(self.family)
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
        if await self._schedule.wait():
            return True
        await self._maintain()
        return self._schedule.requested.is_set() or self._schedule.is_full_due

    async def _maintain(self) -> None:
        """Run deletions that are due, and check the table if that is due."""
        await self.sweep()
        if not self._schedule.take_check():
            return
        try:
            await self._rules.check()
        except NftError as error:
            if error.failure is NftFailure.NOT_FOUND:
                _log.warning("table removed or changed by another program", family=self.family)
            else:
                _log.warning("table cannot be checked", family=self.family, error=str(error))
            self.request(full=True)
