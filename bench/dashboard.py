"""How far behind the API the dashboard is, with 500 Services of 30 endpoints each.

Prints each figure with its ratio to the limit. API server, dashboard and client share one process
and one core, so that the figures hold what all three take. The delay begins with the write and ends
where a browser has read the changed row; 50 ms of it are the pause between two messages.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from keepclose.testing.api_server import serving
from support.dashboards import (
    SERVICE_PATH,
    SLICE_PATH,
    ZONES,
    Dashboard,
    Messages,
    create_zones,
    dashboard,
    service_object,
    slice_object,
)

SERVICES: Final = 500
ENDPOINTS: Final = 30
CHANGES: Final = 60
MOST_MS: Final = 200.0


def endpoints_of(number: int, *, lacks_hint: bool = False) -> dict[str, str]:
    """Return the addresses of a Service by zone; the first may lack its hint."""
    zones = {
        f"10.{number // 250}.{number % 250}.{place + 1}": ZONES[place % len(ZONES)]
        for place in range(ENDPOINTS)
    }
    if lacks_hint:
        first = next(iter(zones))
        zones[first] += "!"
    return zones


async def main() -> int:
    """Measure, print, and return 1 if a figure misses its limit."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(Path(folder)) as api:
            await create_zones(api)
            for number in range(SERVICES):
                name = f"s{number}"
                made = service_object(name, traffic_distribution="PreferSameZone")
                await api.create(SERVICE_PATH, made)
                slices = slice_object(f"{name}-1", endpoints_of(number), of=name)
                await api.create(SLICE_PATH, slices)
            async with dashboard(api) as shown, shown.stream() as stream:
                figures = await measure(shown, stream)
    misses = 0
    for name, taken_ms in figures.items():
        misses += taken_ms > MOST_MS
        print(f"{name:52} {taken_ms:7.1f} ms  {taken_ms / MOST_MS:5.2f} of the limit")
    return 1 if misses else 0


async def measure(shown: Dashboard, stream: Messages) -> dict[str, float]:
    """Return the figures by name, in milliseconds."""
    assert len((await stream.next())["services"]) == SERVICES
    delays = [await follow_change(shown, stream, number) for number in range(CHANGES)]
    page = await take_time(shown.ask("/api/service", namespace="default", name="s1"))
    preview = await take_time(
        shown.ask("/api/preview", mechanism="none", namespace="default", name="s1")
    )
    return {
        "one of 500 Services changes, median": statistics.median(delays),
        "one of 500 Services changes, slowest": max(delays),
        "a node fails, so all 500 Services change": await fail_node(shown, stream),
        "the page of a Service": page,
        "the preview of another mechanism": preview,
    }


async def follow_change(shown: Dashboard, stream: Messages, number: int) -> float:
    """Take a hint from a Service, and return when its row has come."""
    name = f"s{number}"
    changed = slice_object(f"{name}-1", endpoints_of(number, lacks_hint=True), of=name)
    started = time.perf_counter()
    await shown.api.call("PUT", f"{SLICE_PATH}/{name}-1", changed)
    value = await stream.until("services", f"default/{name}")
    assert value["row"]["state"] == "falling back"
    return 1e3 * (time.perf_counter() - started)


async def fail_node(shown: Dashboard, stream: Messages) -> float:
    """Let a node be not ready, and return when all rows have come."""
    status = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    path = f"/api/v1/nodes/{ZONES[0]}-1/status"
    started = time.perf_counter()
    await shown.api.call("PATCH", path, status, type="application/merge-patch+json")
    seen: set[str] = set()
    while len(seen) < SERVICES:
        seen.update((await stream.next()).get("services", {}))
    return 1e3 * (time.perf_counter() - started)


async def take_time(awaited: Awaitable[object]) -> float:
    """Return how long something takes, in milliseconds."""
    started = time.perf_counter()
    await awaited
    return 1e3 * (time.perf_counter() - started)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
