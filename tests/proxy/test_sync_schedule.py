"""When the syncs of a family are due, and which Services they select for."""

from __future__ import annotations

import asyncio

import pytest

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates
from keepclose.model.meta import NamespacedName
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.change_tracker import ChangeTracker
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family_sync import ServiceSelector, SharedParts, SyncSchedule
from keepclose.proxy.health import HealthState
from keepclose.proxy.port_selections import PortStates
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.validation import ValidationLog
from keepclose.routing.port_endpoints import NodeView
from keepclose.routing.selection import Selection
from keepclose.routing.service_ports import RoutedPort
from keepclose.testing.fake_clock import FakeClock
from support.builders import endpoint, endpoint_slice, service

SETTINGS = ProxySettings(node_name="n1", sync_s=30.0, full_sync_s=3600.0, later_s=1.0)
GATES = FeatureGates()
WEB = NamespacedName("default", "web")


def started() -> tuple[SyncSchedule, FakeClock]:
    """Return the schedule of a family whose first sync has just succeeded."""
    clock = FakeClock()
    schedule = SyncSchedule(SETTINGS, clock)
    assert schedule.take_request()
    schedule.record_success(None, is_full=True)
    return schedule, clock


async def test_which_syncs_are_full() -> None:
    """The first, one after a failure, one on request, and one each hour; no other."""
    schedule, clock = started()
    assert not schedule.take_request()
    schedule.record_failure()
    assert schedule.take_request()
    assert not schedule.take_request()
    schedule.needs_full = True
    assert schedule.take_request()
    await clock.advance(3599.0)
    assert not schedule.is_full_due
    await clock.advance(1.0)
    assert schedule.is_full_due
    assert schedule.take_request()


def test_a_sync_takes_its_request() -> None:
    """A request that comes during the sync stays for the next."""
    schedule, _ = started()
    schedule.requested.set()
    schedule.take_request()
    assert not schedule.requested.is_set()


async def test_checks_are_due_once_a_period() -> None:
    """A full sync counts as a check; none is due while a full sync is."""
    schedule, clock = started()
    assert not schedule.take_check()
    await clock.advance(30.0)
    schedule.needs_full = True
    assert not schedule.take_check()
    schedule.needs_full = False
    assert [schedule.take_check(), schedule.take_check()] == [True, False]


async def test_deletions_wait() -> None:
    """Each is due a second after its sync and taken once; a full sync replaces those before."""
    schedule, clock = started()
    schedule.record_success(1, is_full=False)
    due = clock.monotonic() + 1.0
    await clock.advance(0.5)
    schedule.record_success(2, is_full=False)
    assert schedule.next_sweep == due
    assert schedule.take_sweep(clock.monotonic()) is None
    assert [schedule.take_sweep(due), schedule.take_sweep(due)] == [1, None]
    schedule.record_success(3, is_full=True)
    assert [schedule.take_sweep(due + 9), schedule.take_sweep(due + 9)] == [3, None]


@pytest.mark.parametrize("forget", [SyncSchedule.cancel_sweeps, SyncSchedule.record_failure])
def test_deletions_are_cancelled(forget: object) -> None:
    """After a failure the next full sync finds what is unused."""
    schedule, _ = started()
    schedule.record_success(1, is_full=False)
    assert callable(forget)
    forget(schedule)
    assert schedule.next_sweep is None


@pytest.mark.parametrize(
    ("failures", "want"), [(1, 0.5), (2, 1.0), (4, 4.0), (9, 30.0), (5000, 30.0)]
)
async def test_retries_back_off(failures: int, want: float) -> None:
    """Each waits twice as long as the one before, up to the period of checks."""
    schedule, clock = started()
    schedule.failures = failures
    waiting = asyncio.create_task(schedule.wait())
    await clock.run_until_idle()
    assert clock.next_due_in == want
    await clock.advance(want)
    assert await waiting
    schedule.record_success(None, is_full=True)
    assert schedule.failures == 0


async def test_waits_end_with_a_request_or_with_what_is_due() -> None:
    """A request ends the wait at once; a deletion, a check and a full sync end it in time."""
    schedule, clock = started()
    for serial, want in ((1, 1.0), (None, 30.0)):
        schedule.record_success(serial, is_full=True)
        waiting = asyncio.create_task(schedule.wait())
        await clock.run_until_idle()
        assert clock.next_due_in == want
        await clock.advance(want)
        assert not await waiting
    waiting = asyncio.create_task(schedule.wait())
    schedule.requested.set()
    assert await waiting


class Family:
    """The parts of a family that select."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.caches = ProxyCaches()
        shared = SharedParts(
            SETTINGS,
            self.caches,
            ProxyMetrics(),
            HealthState(clock=clock),
            clock,
            ValidationLog(),
        )
        self.ports: list[tuple[NamespacedName, int]] = []
        self.states = PortStates("IPv4", gates=GATES, node=NodeView("n1"), set_port=self._set_port)
        tracker = ChangeTracker(
            "IPv4",
            gates=GATES,
            counter=shared.metrics,
            on_change=lambda: None,
            started_at=0.0,
            validation_log=shared.validation_log,
        )
        self.caches.services.subscribe(tracker.on_service)
        self.caches.slices.subscribe(tracker.on_slice)
        self.selector = ServiceSelector(tracker, self.states, shared=shared)

    def _set_port(self, port: RoutedPort, selection: Selection | None) -> None:
        count = 0 if selection is None else len(selection.internal.endpoints)
        self.ports.append((port.service, count))

    def put(self, changed: EndpointSlice) -> None:
        """Change a slice in the cache."""
        self.caches.slices.put(changed)


async def test_selection_for_changed_services() -> None:
    """Changes are taken once; the changed Services are kept until they are written."""
    family = Family()
    assert family.selector.is_idle
    family.caches.services.put(service())
    family.put(endpoint_slice(endpoint("10.0.0.1"), endpoint("10.0.0.2")))
    assert not family.selector.is_idle
    await family.selector.select()
    assert (family.selector.is_idle, family.ports) == (True, [(WEB, 2)])
    await family.selector.select()
    assert family.ports == [(WEB, 2)]
    assert [family.selector.take_changed(), family.selector.take_changed()] == [{WEB}, set()]
    assert family.selector.take_trigger_times() == []


async def test_selection_for_all_services() -> None:
    """It is made once, and does not count as a change of the Services."""
    family = Family()
    family.caches.services.put(service())
    family.put(endpoint_slice(endpoint("10.0.0.1", zone="zone-a")))
    await family.selector.select()
    family.selector.take_changed()
    selected: list[NamespacedName] = []
    family.states.select = selected.append  # type: ignore[method-assign,assignment]
    family.selector.needs_all = True
    await family.selector.select()
    await family.selector.select()
    assert (selected, family.selector.take_changed()) == ([WEB], set())


async def test_a_service_that_cannot_be_selected() -> None:
    """It keeps its state and does not affect the others."""
    family = Family()
    for name in ("web", "other"):
        family.caches.services.put(service(name))
        family.put(endpoint_slice(endpoint("10.0.0.1"), service_name=name, name=f"{name}-1"))
    select, failing = family.states.select, WEB

    def fail_once(key: NamespacedName) -> None:
        if key == failing:
            raise LookupError("mine")
        select(key)

    family.states.select = fail_once  # type: ignore[method-assign]
    await family.selector.select()
    assert family.ports == [(NamespacedName("default", "other"), 1)]
    assert family.selector.take_changed() == {WEB, NamespacedName("default", "other")}
