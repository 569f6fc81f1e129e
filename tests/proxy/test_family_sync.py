"""When syncs happen: at once, together, again after failures, and as a whole from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family import FamilyEvents, FamilyProxy
from keepclose.proxy.family_sync import SharedParts
from keepclose.proxy.health import HealthState
from keepclose.proxy.nft.writer import NftError, NftFailure
from keepclose.proxy.own_node import OwnNode
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.validation import ValidationLog
from keepclose.testing.fake_clock import FakeClock
from keepclose.testing.recording_writer import RecordingWriter
from support.builders import endpoint, endpoint_slice, node, service
from support.proxies import FakeFlows

BUSY = NftError("Device or resource busy", failure=NftFailure.BUSY)
GONE = NftError("No such file or directory", failure=NftFailure.NOT_FOUND)


class Writer(RecordingWriter):
    """A recorder whose looks can fail too, and whose writes can hang."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[NftError] = []
        self.hanging = asyncio.Event()
        self.hanging.set()
        self.stamps: list[float] = []
        self.clock: FakeClock

    async def apply(self, text: str) -> None:
        """Note when, and wait while told to hang."""
        await self.hanging.wait()
        await super().apply(text)
        self.stamps.append(self.clock.monotonic())

    async def check(self, text: str) -> None:
        """Fail as told."""
        await super().check(text)
        if self.looks:
            raise self.looks.pop()

    def take(self) -> list[str]:
        """Return what was written since the last time."""
        taken, self.applied[:] = list(self.applied), []
        return taken


class Node:
    """One family of a proxy on a fake clock, and a hand that changes its caches."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.writer = Writer()
        self.writer.clock = self.clock
        self.caches = ProxyCaches()
        self.metrics = ProxyMetrics()
        self.health = HealthState(clock=self.clock)
        wanted = replace(ProxySettings(node_name="n1", counts_connections=False), **settings)
        own = OwnNode("n1", gates=wanted.gates, on_topology=_nothing, on_addresses=_nothing)
        own.on_node(None, node("n1", "zone-a"))
        shared = SharedParts(
            wanted, self.caches, self.metrics, self.health, self.clock, ValidationLog()
        )
        self.family = FamilyProxy(
            "IPv4",
            shared,
            node=own,
            writer=self.writer,
            events=FamilyEvents(_nothing, _nothing, lambda _service, _text: None),
            flows=FakeFlows(),
        )
        self.caches.services.subscribe(self.family.tracker.on_service)
        self.caches.slices.subscribe(self.family.tracker.on_slice)
        self.version = 0
        self.health.record_update("IPv4")

    def put(self, one: Service | EndpointSlice) -> None:
        """Have the server know an object."""
        self.version += 1
        one = replace(one, metadata=replace(one.metadata, resource_version=str(self.version)))
        if isinstance(one, Service):
            self.caches.services.put(one)
        else:
            self.caches.slices.put(one)

    def lead_to(self, *addresses: str) -> None:
        """Change the endpoints of the Service."""
        self.put(endpoint_slice(*map(endpoint, addresses)))

    def metric(self, name: str) -> float | None:
        """Return the value of a series of this family."""
        return self.metrics.registry.get_sample_value(f"kubeproxy_{name}", {"ip_family": "IPv4"})


def mentions(texts: list[str], word: str) -> bool:
    """Return whether something is in one of the transactions, in whatever form."""
    return any(word in text for text in texts)


def _nothing() -> None:
    """Do nothing."""


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Node]:
    """Run the syncs of a node with a Service; everything is written when the block starts."""
    one = Node(**settings)
    one.put(service())
    one.lead_to("10.0.0.1")
    task = asyncio.create_task(one.family.sync.run())
    try:
        await one.clock.run_until_idle()
        assert mentions(one.writer.take(), "10.0.0.1")
        yield one
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await one.family.close()


async def test_the_first_change_is_written_at_once_and_others_together() -> None:
    """After quiet nothing waits; changes within the least period share the next sync."""
    async with running(later_s=60.0) as one:
        await one.clock.advance(5)
        one.lead_to("10.0.0.2")
        await one.clock.run_until_idle()
        assert mentions(one.writer.take(), "10.0.0.2")
        syncs = one.family.sync.syncs
        for number in range(3, 9):
            one.lead_to(f"10.0.0.{number}")
            await one.clock.advance(0.1)
        assert (one.writer.take(), one.family.tracker.pending_endpoints) == ([], 6)
        await one.clock.advance(0.5)
        texts = one.writer.take()
        assert mentions(texts, "10.0.0.8")
        assert not mentions(texts, "10.0.0.7")
        assert one.family.sync.syncs == syncs + 1


async def test_what_is_being_written_is_not_done() -> None:
    """Nobody is idle between taking a change and its being in the kernel."""
    async with running() as one:
        await one.clock.advance(5)
        assert one.family.sync.is_idle
        one.writer.hanging.clear()
        one.lead_to("10.0.0.2")
        assert not one.family.sync.is_idle
        await one.clock.run_until_idle()
        assert (one.family.tracker.pending_endpoints, one.writer.take()) == (0, [])
        assert not one.family.sync.is_idle
        one.writer.hanging.set()
        await one.clock.run_until_idle()
        assert mentions(one.writer.take(), "10.0.0.2")
        assert one.family.sync.is_idle


async def test_what_was_replaced_goes_a_second_later() -> None:
    """The old chain is emptied and deleted only after a second, without another change."""
    async with running(counts_connections=True, pooled=False) as one:
        await one.clock.advance(5)
        one.lead_to("10.0.0.2")
        await one.clock.advance(0.9)
        assert mentions(one.writer.take(), "10.0.0.2")
        await one.clock.advance(0.2)
        flush, delete = one.writer.take()
        assert flush.startswith("flush chain ip kube-proxy service-")
        assert delete.startswith("delete chain ip kube-proxy service-")
        assert one.family.sync.next_sweep is None


async def test_an_edit_without_effect_writes_nothing() -> None:
    """A change that leads to the same rules is a sync without a transaction."""
    async with running() as one:
        await one.clock.advance(5)
        one.lead_to("10.0.0.1")
        await one.clock.advance(5)
        assert one.writer.take() == []
        assert one.family.sync.syncs == 2


async def test_failures_are_tried_again_with_growing_delays() -> None:
    """Attempts come after 0.5, 1, 2 and 4 more seconds than the least period, and then no more."""
    async with running() as one:
        await one.clock.advance(5)
        started, first = one.clock.monotonic(), len(one.writer.stamps)
        one.writer.fail_next(BUSY, BUSY, BUSY, BUSY)
        one.lead_to("10.0.0.2")
        await one.clock.advance(60)
        assert one.metric("sync_proxy_rules_nftables_sync_failures_total") == 4
        want = started + (1 + 0.5) + (1 + 1) + (1 + 2) + (1 + 4)
        assert one.writer.stamps[first] == pytest.approx(want)
        assert mentions(one.writer.take(), "10.0.0.2")
        assert not one.family.sync.is_failing


async def test_delays_stay_below_the_sync_period() -> None:
    """However long it fails, an attempt comes at least once a sync period."""
    async with running(sync_s=4.0, min_sync_s=0.0) as one:
        one.writer.fail_next(*[BUSY] * 1000)
        one.lead_to("10.0.0.2")
        await one.clock.advance(60)
        before = one.metric("sync_proxy_rules_nftables_sync_failures_total")
        await one.clock.advance(40)
        after = one.metric("sync_proxy_rules_nftables_sync_failures_total")
        assert before is not None
        assert after == before + 10


async def test_health_tells_of_writes_that_hang_or_fail() -> None:
    """A change that cannot be written for a minute makes the proxy ill, until it is written."""
    async with running() as one:
        await one.clock.advance(5)
        one.writer.hanging.clear()
        one.lead_to("10.0.0.2")
        await one.clock.advance(59)
        assert one.health.health().healthy
        await one.clock.advance(2)
        assert not one.health.health().healthy
        one.writer.hanging.set()
        await one.clock.advance(2)
        assert one.health.health().healthy


async def test_changes_without_end_are_no_illness() -> None:
    """While every sync is written, news that keep coming do not make the proxy ill."""
    async with running() as one:
        for number in range(100):
            one.lead_to(f"10.0.1.{number}")
            await one.clock.advance(0.9)
            assert one.health.health().healthy
        assert one.family.sync.syncs > 80


async def test_a_service_that_cannot_be_rendered_harms_nobody() -> None:
    """A mistake over one Service is told, and the others are written."""
    async with running() as one:
        select = one.family.states.select

        def stumble(key: NamespacedName) -> None:
            if key.name == "odd":
                raise ValueError("stumbled")
            select(key)

        one.family.states.select = stumble  # type: ignore[method-assign]
        one.put(service(name="odd", cluster_ip="10.96.0.77", cluster_ips=("10.96.0.77",)))
        one.lead_to("10.0.0.2")
        await one.clock.advance(2)
        texts = one.writer.take()
        assert mentions(texts, "10.0.0.2")
        assert not mentions(texts, "10.96.0.77")
        assert not one.family.sync.is_failing


async def test_a_sync_that_breaks_off_is_tried_again() -> None:
    """A mistake in what follows from the rules does not end the syncs."""
    async with running() as one:
        await one.clock.advance(5)
        run = one.family._post_sync.run
        broken = [ValueError("stumbled")]

        async def stumble(changed: set[NamespacedName]) -> None:
            if broken:
                raise broken.pop()
            await run(changed)

        one.family._post_sync.run = stumble  # type: ignore[method-assign]
        one.lead_to("10.0.0.2")
        await one.clock.advance(3)
        assert (broken, one.family.sync.is_failing) == ([], False)
        assert one.metric("sync_full_proxy_rules_duration_seconds_count") == 2


async def test_a_table_that_somebody_removed_is_made_again() -> None:
    """The periodic look finds it gone, and all of it is written."""
    async with running() as one:
        one.writer.looks.append(GONE)
        await one.clock.advance(29)
        assert one.writer.take() == []
        await one.clock.advance(3)
        texts = one.writer.take()
        assert texts[0].startswith("add table ip kube-proxy")
        assert mentions(texts, "add element ip kube-proxy service-ips")


async def test_a_change_into_a_table_that_is_gone() -> None:
    """A transaction that misses the table leads to a whole one, without waiting for the look."""
    async with running() as one:
        await one.clock.advance(5)
        one.writer.fail_next(GONE)
        one.lead_to("10.0.0.2")
        await one.clock.advance(2)
        texts = one.writer.take()
        assert texts[0].startswith("add table ip kube-proxy")
        assert mentions(texts, "10.0.0.2")


async def test_once_an_hour_the_whole_table_is_compared() -> None:
    """A full sync comes an hour after the last, and chains are written anew."""
    async with running() as one:
        await one.clock.advance(3590)
        assert one.writer.take() == []
        assert one.metric("sync_full_proxy_rules_duration_seconds_count") == 1
        await one.clock.advance(20)
        assert one.metric("sync_full_proxy_rules_duration_seconds_count") == 2
        assert mentions(one.writer.take(), "10.0.0.1")


async def test_a_sweep_that_fails_leads_to_a_whole_comparison() -> None:
    """What could not be deleted is counted, and looked for anew."""
    async with running(counts_connections=True, pooled=False) as one:
        await one.clock.advance(5)
        one.lead_to("10.0.0.2")
        await one.clock.run_until_idle()
        one.writer.take()
        one.writer.fail_next(BUSY)
        await one.clock.advance(3)
        assert one.metric("sync_proxy_rules_nftables_cleanup_failures_total") == 1
        assert one.writer.take()[0].startswith("add table ip kube-proxy")


async def test_all_ports_are_counted() -> None:
    """Plain ports by the elements of their map, others by elements of a set."""
    for counts in (True, False):
        one = Node(counts_connections=counts)
        one.put(service())
        ips: dict[str, Any] = {"cluster_ip": "10.96.0.9", "cluster_ips": ("10.96.0.9",)}
        one.put(service("sticky", session_affinity="ClientIP", **ips))
        one.lead_to("10.0.0.1")
        one.put(endpoint_slice(endpoint("10.0.0.2"), name="sticky-abcde", service_name="sticky"))
        await one.family.sync.sync()
        texts = one.writer.take()
        pooled = "-counted-endpoints { 10.96.0.10 . tcp . 80 . 0 : 10.0.0.1 . 8080"
        assert mentions(texts, pooled) is counts
        chained = "counted-connections { 10.96.0.9 . tcp . 80 . 10.0.0.2 . 8080 }"
        assert mentions(texts, chained) is counts
        await one.family.close()


async def test_the_time_from_pod_to_rules() -> None:
    """Each trigger time of a written change is observed once, also after a failure."""
    async with running() as one:
        await one.clock.advance(5)
        one.writer.fail_next(BUSY)
        changed = endpoint_slice(
            endpoint("10.0.0.2"),
            annotations={
                "endpoints.kubernetes.io/last-change-trigger-time": "2023-11-14T22:13:24Z"
            },
        )
        one.put(changed)
        await one.clock.run_until_idle()
        assert one.metric("network_programming_duration_seconds_count") is None
        await one.clock.advance(3)
        assert one.metric("network_programming_duration_seconds_count") == 1
        # Five seconds passed before the change, which was at four; then one and a half.
        assert one.metric("network_programming_duration_seconds_sum") == pytest.approx(2.5)
