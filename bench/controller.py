"""CPU that the controller spends on one changed pod, for Services of growing size.

Run with `python bench/controller.py`. A pod becomes ready or not; processor time is taken
from the event, decoded, to the request handed to the transport, and to the end of the sync, its
answer read and everything counted. The transport answers at once, so that nothing but the
controller is measured.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keepclose.controller.controller import Controller
from keepclose.controller.metrics import ControllerMetrics
from keepclose.kube.client import Client
from keepclose.kube.clock import SystemClock
from keepclose.kube.event_recorder import EventRecorder
from keepclose.model.well_known import TOPOLOGY_MODE_ANNOTATION
from keepclose.model.workload import Pod, StatusCondition
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.slices.settings import PlannerSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import builders
from support.echoes import EchoTransport

SIZES = (50, 500, 5_000)
CHANGES = 300
LIMIT_MS = 1.0
MAX_RATIO = 3.0


async def measure(size: int, **wish: Any) -> tuple[float, float]:
    """Return the milliseconds to the request and to the end, medians over many changes."""
    clock, transport = SystemClock(), EchoTransport()
    client = Client(transport, clock=clock)
    settings = ControllerSettings(
        plan=PlannerSettings(heuristics={"keepclose.dev/Balanced": BALANCED}), mirrors=False
    )
    recorder = EventRecorder(client, component="bench", clock=clock)
    metrics = ControllerMetrics(max_endpoints=settings.plan.max_endpoints)
    controller = Controller(client, settings, clock=clock, recorder=recorder, observer=metrics)
    caches = controller.caches
    for number in range(60):
        caches.nodes.put(builders.node(f"n{number}", f"zone-{'abc'[number % 3]}"))
    pods = [_pod(number) for number in range(size)]
    for pod in pods:
        caches.pods.put(pod)
    service = builders.service(**wish)
    caches.services.put(service)
    await controller.services.sync(service.key)
    handed: list[float] = []
    whole: list[float] = []
    gc.collect()
    for change in range(CHANGES):
        pod = _flipped(pods[change * 7 % size], version=10_000_000 + change)
        pods[change * 7 % size] = pod
        before = len(transport.requests)
        started = time.process_time()
        caches.pods.put(pod)
        key = await controller.services.queue.get()
        assert key is not None
        result = await controller.services.sync(key)
        metrics.synced(key, result, 0.0)
        controller.services.queue.done(key)
        ended = time.process_time()
        assert len(transport.requests) == before + 1
        handed.append(transport.handed_over - started)
        whole.append(ended - started)
    return statistics.median(handed) * 1e3, statistics.median(whole) * 1e3


def _pod(number: int) -> Pod:
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    found = builders.pod(f"p{number}", f"n{number % 60}", ip=address)
    meta = replace(found.metadata, resource_version=str(number + 1))
    return replace(found, metadata=meta)


def _flipped(pod: Pod, *, version: int) -> Pod:
    conditions = (StatusCondition(type="Ready", status="False" if pod.is_ready else "True"),)
    return replace(
        pod,
        metadata=replace(pod.metadata, resource_version=str(version)),
        status=replace(pod.status, conditions=conditions),
    )


async def main() -> int:
    """Print the figures; fail when one change costs too much, or grows with the Service."""
    wishes: dict[str, dict[str, Any]] = {
        "none": {},
        "PreferSameZone": {"traffic_distribution": "PreferSameZone"},
        "Auto": {"annotations": {TOPOLOGY_MODE_ANNOTATION: "Auto"}},
    }
    failures = 0
    print(f"{'wish':<16}{'pods':>6}{'to request ms':>15}{'whole ms':>10}")
    for name, wish in wishes.items():
        figures: list[float] = []
        for size in SIZES:
            handed, whole = await measure(size, **wish)
            figures.append(handed)
            print(f"{name:<16}{size:>6}{handed:>15.3f}{whole:>10.3f}")
        # The smallest Service has less than one full slice; slices of 100 are compared.
        ratio = figures[-1] / figures[1]
        print(f"{name:<16}  5,000 pods cost {ratio:.2f} times what 500 do")
        failures += figures[-1] > LIMIT_MS or ratio > MAX_RATIO
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
