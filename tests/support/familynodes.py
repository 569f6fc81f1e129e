"""One address family of a proxy on a clock that a test moves, and a hand that changes its caches.

    async with running(RecordingWriter()) as one:
        one.put(service(), endpoint_slice(endpoint("10.0.0.1")))
        await one.clock.advance(2)

Any writer will do: a recorder, or one that writes to the kernel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.proxy.caches import ProxyCaches
from keepclose.proxy.counters.metrics import ProxyMetrics
from keepclose.proxy.family import FamilyEvents, FamilyProxy
from keepclose.proxy.family_sync import SharedParts
from keepclose.proxy.health import HealthState
from keepclose.proxy.nft.writer import NftFamily, NftWriter
from keepclose.proxy.own_node import OwnNode
from keepclose.proxy.settings import ProxySettings
from keepclose.proxy.validation import ValidationLog
from keepclose.testing.fake_clock import FakeClock
from support.builders import node
from support.proxies import FakeFlows


class FamilyNode:
    """The family, its clock and its caches."""

    def __init__(self, writer: NftWriter, family: str = "IPv4", **settings: Any) -> None:
        self.clock = FakeClock()
        self.writer = writer
        self.caches = ProxyCaches()
        self.metrics = ProxyMetrics()
        self.health = HealthState(clock=self.clock)
        self.failed_checks: list[tuple[NamespacedName, str]] = []
        wanted = replace(ProxySettings(node_name="n1", counts_connections=False), **settings)
        own = OwnNode("n1", gates=wanted.gates, on_topology=_nothing, on_addresses=_nothing)
        own.on_node(None, node("n1", "zone-a"))
        shared = SharedParts(
            wanted, self.caches, self.metrics, self.health, self.clock, ValidationLog()
        )
        self.family = FamilyProxy(
            family,
            shared,
            node=own,
            writer=writer,
            events=FamilyEvents(
                _nothing, _nothing, lambda *failure: self.failed_checks.append(failure)
            ),
            flows=FakeFlows(),
        )
        self.caches.services.subscribe(self.family.tracker.on_service)
        self.caches.slices.subscribe(self.family.tracker.on_slice)
        self.health.record_update(family)
        self._version = 0

    def put(self, *objects: Service | EndpointSlice) -> None:
        """Have the server know objects, each in a new version."""
        for one in objects:
            self._version += 1
            version = str(self._version)
            new = replace(one, metadata=replace(one.metadata, resource_version=version))
            if isinstance(new, Service):
                self.caches.services.put(new)
            else:
                self.caches.slices.put(new)

    def used(self, name: str = "web", namespace: str = "default") -> dict[str, list[str]]:
        """Return where traffic to the cluster IP of a Service goes, by the name of the port."""
        found = self.family.states.services.get(NamespacedName(namespace, name))
        if found is None:
            return {}
        return {
            port: [one.key for one in state.selection.internal.endpoints]
            for (port, _), state in found.ports.items()
        }


def _nothing() -> None:
    """Do nothing."""


@asynccontextmanager
async def running(
    writer: NftWriter, family: str = "IPv4", **settings: Any
) -> AsyncIterator[FamilyNode]:
    """Run the syncs of a family for the block."""
    one = FamilyNode(writer, family, **settings)
    task = asyncio.create_task(one.family.sync.run())
    try:
        yield one
    finally:
        task.cancel()
        await asyncio.wait((task,))
        await one.family.close()


class CheckingWriter:
    """Lets nft judge each text before it is applied, so that a refusal names the text."""

    def __init__(self, inner: NftWriter) -> None:
        self._inner = inner
        self.applied: list[str] = []

    async def apply(self, text: str) -> None:
        """Check and apply."""
        await self._inner.check(text)
        await self._inner.apply(text)
        self.applied.append(text)

    async def check(self, text: str) -> None:
        """Check only."""
        await self._inner.check(text)

    async def list_table(self, family: NftFamily, table: str) -> bytes:
        """Return what is there."""
        return await self._inner.list_table(family, table)

    async def close(self) -> None:
        """Close the writer behind."""
        await self._inner.close()
