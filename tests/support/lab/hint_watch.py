"""Watches the hints of a lab's slices in a thread, and counts the endpoints that change theirs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from keepclose.kube.cache import Cache
from keepclose.kube.clock import SystemClock
from keepclose.kube.connection import ConnectionSettings, connect
from keepclose.kube.requests import ENDPOINT_SLICES
from keepclose.kube.watch.reflector import Reflector
from keepclose.model.endpointslice.types import Endpoint, EndpointSlice


def _hinted(endpoint: Endpoint) -> tuple[str, ...]:
    hints = endpoint.hints
    return () if hints is None else tuple(zone.name for zone in hints.for_zones)


class HintWatch:
    """The hints of all slices now, and how many endpoints were hinted otherwise than before."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._cache: Cache[EndpointSlice] = Cache()
        self.rehints: Counter[str] = Counter()
        """By Service; the first hints of an endpoint do not count."""

    def hints(self, service: str) -> dict[str, tuple[str, ...]]:
        """Return the zones that each endpoint of a Service is hinted for, by its address."""
        return {
            endpoint.addresses[0]: _hinted(endpoint)
            for endpoint_slice in self._cache.all()
            if endpoint_slice.service_key.name == service
            for endpoint in endpoint_slice.endpoints
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch for the time of the block."""
        loop = asyncio.new_event_loop()
        synced = threading.Event()
        task = loop.create_task(self._run(synced))
        thread = threading.Thread(target=self._serve, args=(loop, task), daemon=True)
        thread.start()
        try:
            assert synced.wait(120)
            yield
        finally:
            loop.call_soon_threadsafe(task.cancel)
            thread.join(60)

    def _serve(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        loop.close()

    async def _run(self, synced: threading.Event) -> None:
        clock = SystemClock()
        async with connect(self._settings, clock=clock) as client:
            reflector = Reflector(client, ENDPOINT_SLICES, self._cache, clock=clock)
            self._cache.subscribe(self._on_slice)
            running = asyncio.create_task(reflector.run())
            try:
                await reflector.synced.wait()
                synced.set()
                await running
            finally:
                running.cancel()

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        if old is None or new is None:
            return
        before = {endpoint.addresses: _hinted(endpoint) for endpoint in old.endpoints}
        changed = [
            endpoint
            for endpoint in new.endpoints
            if before.get(endpoint.addresses) and _hinted(endpoint) != before[endpoint.addresses]
        ]
        self.rehints[new.service_key.name] += len(changed)
