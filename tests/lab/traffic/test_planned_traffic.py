"""What a plan predicts for each mechanism is where real connections go afterwards.

A real controller writes the slices, real proxies follow them, and every connection is counted.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

from keepclose.advise.clients import ClientNodes
from keepclose.advise.expectations import is_unlikely
from keepclose.advise.inventory import Inventory
from keepclose.advise.mechanism_changes import Mechanism, switch_to
from keepclose.advise.planning.mechanism_trials import ServiceTrials, Trial
from keepclose.advise.service_objects import gather_objects
from keepclose.controller.controller import Controller
from keepclose.kube.requests import ENDPOINT_SLICES, NODES, PODS, SERVICES
from keepclose.lab.traffic.report import TrafficReport
from keepclose.model.gates import FeatureGates, Gate
from keepclose.model.service.types import Service
from keepclose.reconcile.settings import ControllerSettings
from keepclose.routing.balanced import BALANCED
from keepclose.routing.port_endpoints import NodeView
from keepclose.slices.settings import ClusterNodes, PlannerSettings
from support.controllers import World, world
from support.lab.trafficbeds import TrafficBed, traffic_bed

GATES: Final = FeatureGates().with_gates(
    Gate.TRAFFIC_DISTRIBUTION_CUSTOM_HEURISTICS,
    Gate.TOPOLOGY_AWARE_SUBSETTING,
    Gate.ENDPOINT_SLICE_SUBSETTING,
)
PLANNER: Final = PlannerSettings(gates=GATES, heuristics={"keepclose.dev/Balanced": BALANCED})
SETTINGS: Final = ControllerSettings(PLANNER, slice_delay_s=0.01, retry_delay_s=0.01)
ZONES: Final = {
    "n1": "zone-a",
    "n2": "zone-a",
    "n3": "zone-b",
    "n4": "zone-b",
    "n5": "zone-c",
    "n6": "zone-c",
}
PODS_OF_NODES: Final = 3
CLUSTERS: Final = 3
CONNECTIONS: Final = 600
"""Of each run, the same number from each zone, as all nodes send the same."""
CHANCE: Final = 1e-12
"""Of a count, that it differs so far from its share by chance."""


class PlannedWeb:
    """A Service, a real controller, real proxies, and pods of which some are ready."""

    def __init__(self, bed: TrafficBed, cluster: World, controller: Controller) -> None:
        self.bed, self.cluster, self.controller = bed, cluster, controller
        self.addresses: dict[str, str] = {}
        """The address of each pod."""

    async def add_pods(self) -> None:
        """Run pods on all nodes."""
        for node, zone in ZONES.items():
            for number in range(PODS_OF_NODES):
                name = f"{node}-{number}"
                endpoint = await self.bed.add_pod(name, node, zone)
                labels = {"metadata": {"labels": {"app": "web"}}}
                await self.bed.cluster.client.patch(PODS, name, labels, namespace="default")
                self.addresses[name] = endpoint["addresses"][0]

    async def place(self, ready: set[str]) -> None:
        """Let exactly these pods be ready."""
        for name, address in self.addresses.items():
            await self.cluster.set_pod(name, ip=address, ready=name in ready)
        await self.settle()

    async def settle(self) -> None:
        """Return when slices are written and all nodes use them."""
        await self.cluster.settle(self.controller)
        await self.bed.settle()

    async def inventory(self) -> Inventory:
        """Return the objects of the cluster, as a plan reads them."""
        client = self.bed.cluster.client
        objects: list[object] = []
        objects += (await client.list_all(NODES)).items
        objects += (await client.list_all(SERVICES)).items
        objects += (await client.list_all(PODS)).items
        objects += (await client.list_all(ENDPOINT_SLICES)).items
        return Inventory.of(objects)

    async def ask(self, before: Service, after: Service) -> None:
        """Change the Service in the API as a command of the plan would."""
        old, new = before.metadata.annotations, after.metadata.annotations
        annotations = {key: new.get(key) for key in {*old, *new}}
        patch: dict[str, Any] = {"metadata": {"annotations": annotations}}
        patch["spec"] = {"trafficDistribution": after.spec.traffic_distribution}
        await self.cluster.change(SERVICES, "web", patch)
        await self.settle()


def check(report: TrafficReport, predicted: Trial, pods: dict[str, str], where: str) -> None:
    """Compare the counts of connections with the shares that the plan predicted."""
    assert report.failed == 0, where
    assert predicted.figures.failed == 0
    counts: Counter[tuple[str, str]] = Counter()
    by_pod: Counter[str] = Counter()
    for row in report.rows:
        for zone, count in row.answered.items():
            counts[row.source, zone] += count
    for sender in report.sources:
        by_pod.update(sender.pods)
    shares = {(source, target): share for source, target, share in predicted.traffic.zones}
    assert {*counts} <= {*shares}, where
    whole = sum(counts.values())
    for (source, target), share in shares.items():
        sent = sum(count for (zone, _), count in counts.items() if zone == source)
        part = share * len({*ZONES.values()})
        message = f"{where}: {source} -> {target} {counts[source, target]} of {sent}, {part:.3f}"
        assert not is_unlikely(counts[source, target], sent, part, limit=CHANCE), message
    kept = sum(count for (source, target), count in counts.items() if source == target)
    assert not is_unlikely(kept, whole, predicted.figures.in_zone, limit=CHANCE), where
    address = predicted.traffic.busiest_endpoint.rpartition(":")[0]
    fair = whole / predicted.traffic.ready
    expected = predicted.figures.busiest * fair
    busiest = by_pod[pods[address]]
    assert not is_unlikely(busiest, whole, expected / whole, limit=CHANCE), where


async def test_plans_predict_where_connections_go(tmp_path: Path) -> None:
    """For random clusters and every mechanism, shares of zones and the busiest endpoint agree."""
    random = Random(20_260)
    async with traffic_bed(tmp_path, ZONES, gates=GATES) as bed, world(bed.api) as cluster:
        for name in ZONES:
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            status = {"status": {"allocatable": {"cpu": "4"}, **ready}}
            await bed.cluster.client.patch(NODES, name, status, subresource="status")
        await cluster.add_service()
        async with cluster.controlled(SETTINGS) as controller:
            web = PlannedWeb(bed, cluster, controller)
            await web.add_pods()
            names = sorted(web.addresses)
            pods = {address: name for name, address in web.addresses.items()}
            tried: Counter[str] = Counter()
            distinct: set[tuple[tuple[str, str, float], ...]] = set()
            for number in range(CLUSTERS):
                parts = {zone: random.random() for zone in ZONES.values()}
                chosen = {
                    name for name in names if random.random() < parts[ZONES[name.partition("-")[0]]]
                }
                await web.place(chosen | {*random.sample(names, 3)})
                inventory = await web.inventory()
                (service,) = [each for each in inventory.services if each.key.name == "web"]
                objects = gather_objects(service, inventory, PLANNER.managed_by)
                clients = ClientNodes(NodeView.of(node) for node in inventory.nodes)
                nodes = ClusterNodes.of(inventory.nodes)
                trials = ServiceTrials(service, objects, nodes, PLANNER, clients)
                report = await bed.send(connections=CONNECTIONS)
                check(report, trials.now, pods, f"cluster {number}, as is")
                for trial in trials.try_all():
                    mechanism = Mechanism(trial.figures.mechanism)
                    change = switch_to(mechanism, service, PLANNER)
                    assert change is not None
                    await web.ask(service, change.service)
                    report = await bed.send(connections=CONNECTIONS)
                    check(report, trial, pods, f"cluster {number}, {mechanism}")
                    await web.ask(change.service, service)
                    tried[mechanism] += 1
                    distinct.add(trial.traffic.zones)
            assert {*tried} == {each.value for each in Mechanism if each is not Mechanism.NONE}
            # The test can fail: mechanisms lead to different shares in these clusters.
            assert len(distinct) > CLUSTERS
