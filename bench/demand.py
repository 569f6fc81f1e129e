"""What a demand update for 1,000 Services with Balanced costs, from the reading to the plans.

Each Service has nine endpoints in three zones. The first update moves every share by more than the
dead band, the second by less; neither may lead to a write where hints gain nothing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

from keepclose.demand.sources import DemandReading
from keepclose.demand.store import DemandStore
from keepclose.model.endpointslice.types import EndpointSlice
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.meta import NamespacedName
from keepclose.model.service.types import Service
from keepclose.model.well_known import TRAFFIC_DISTRIBUTION_ANNOTATION
from keepclose.routing.balanced import BALANCED
from keepclose.routing.demand import DemandSettings
from keepclose.slices.applied_plans import apply_plan
from keepclose.slices.service_planner import ServicePlanner
from keepclose.slices.settings import ClusterNodes, PlannerSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support import builders

SERVICES = 1_000
LIMIT_S = 1.0
ZONES = ("zone-a", "zone-b", "zone-c")
GATES = FeatureGates().with_gates(Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS)
SETTINGS = PlannerSettings(gates=GATES, heuristics={"keepclose.dev/Balanced": BALANCED})
ANNOTATIONS = {TRAFFIC_DISTRIBUTION_ANNOTATION: "keepclose.dev/Balanced"}


class Update(NamedTuple):
    """CPU seconds of an update, the Services that were planned, and the slices to write."""

    seconds: float
    changed: int
    written: int


class Bench:
    """The Services with their planners, and the store of their demand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.random = Random(1)
        cluster = ClusterNodes.of(
            [builders.node(f"n{number}", zone) for number, zone in enumerate(ZONES)]
        )
        self.store = DemandStore(
            DemandSettings(), source="bench", by_cpu=lambda: cluster.shares, now=lambda: self.now
        )
        self.stored: dict[NamespacedName, list[EndpointSlice]] = {}
        self.services: dict[NamespacedName, tuple[Service, ServicePlanner]] = {}
        pods = [builders.pod(f"p{n}", f"n{n % 3}", ip=f"10.0.0.{n + 1}") for n in range(9)]
        for number in range(SERVICES):
            service = builders.service(f"s{number}", annotations=ANNOTATIONS)
            planner = ServicePlanner(service, cluster=cluster, settings=SETTINGS)
            for pod in pods:
                planner.set_pod(pod)
            self.services[service.key] = (service, planner)
        self.shares = {key: [self.random.random() + 0.1 for _ in ZONES] for key in self.services}

    def move(self, part: float) -> None:
        """Replace a part of the share of each zone by another one."""
        for shares in self.shares.values():
            shares[:] = [
                (1.0 - part) * share + part * (self.random.random() + 0.1) for share in shares
            ]

    def measure(self, noise: float) -> None:
        """Take a reading in which each rate differs by up to that part."""
        rates = {
            key: {
                zone: 100.0 * share * (1.0 + noise * self.random.uniform(-1.0, 1.0))
                for zone, share in zip(ZONES, shares, strict=True)
            }
            for key, shares in self.shares.items()
        }
        self.store.receive(DemandReading(rates))

    def plan(self, keys: list[NamespacedName], *, observes: bool) -> int:
        """Plan Services; return how many slices would be written, and store them if wanted."""
        written = 0
        for key in keys:
            service, planner = self.services[key]
            plan = planner.plan(shares=self.store.shares_of(service))
            written += sum(
                len(slice_plan.create) + len(slice_plan.update)
                for slice_plan in plan.plans.values()
            )
            if observes:
                (slice_plan,) = plan.plans.values()
                self.stored[key] = apply_plan(self.stored.get(key, ()), slice_plan)
                for endpoint_slice in self.stored[key]:
                    planner.observe(endpoint_slice)
        return written

    def update(self, noise: float) -> Update:
        """Measure once more after the interval, and plan what changed."""
        self.now += 600.0
        self.measure(noise)
        started = time.process_time()
        changed = self.store.advance(self.store.keys)
        written = self.plan(changed, observes=False)
        seconds = time.process_time() - started
        self.plan(changed, observes=True)
        return Update(seconds, len(changed), written)


def main() -> int:
    """Print the cost of updates beside the limit; return 1 if one is missed."""
    bench = Bench()
    bench.measure(0.0)
    bench.plan(list(bench.services), observes=True)
    is_good = True
    for name, change, noise in (
        ("nothing new", 0.0, 0.0),
        ("noise inside the dead band", 0.0, 0.05),
        ("shares that move by a tenth", 0.1, 0.0),
        ("every share is another one", 1.0, 0.0),
    ):
        bench.move(change)
        update = bench.update(noise)
        is_good &= update.seconds <= LIMIT_S and (change > 0.0 or update.written == 0)
        print(
            f"{name:<28} {update.seconds:6.3f} s CPU, {update.changed:5,} Services planned, "
            f"{update.written:5,} slices written"
        )
    again = bench.plan(list(bench.services), observes=False)
    is_good &= again == 0
    print(f"planned once more: {again} slices written")
    print(f"limit for {SERVICES:,} Services {LIMIT_S:g} s: {'ok' if is_good else 'MISSED'}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
