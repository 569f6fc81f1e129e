"""The time and memory of `keepclose plan` for a middle-sized and a large cluster.

Prints each figure with its ratio to the limit. A plan uses one core. The clusters are made in
memory as objects that were read; the time is that of the plan, of all mechanisms for all Services.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from keepclose.advise.inventory import Inventory
from keepclose.advise.planning.client_weights import ClientBasis, distribute_clients
from keepclose.advise.planning.service_plans import plan_cluster
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.service.types import Service, ServicePort, ServiceSpec
from keepclose.model.well_known import ZONE_LABEL
from keepclose.model.workload import (
    Node,
    NodeStatus,
    Pod,
    PodIP,
    PodSpec,
    PodStatus,
    StatusCondition,
)
from keepclose.slices.settings import PlannerSettings

ZONES: Final = ("zone-a", "zone-b", "zone-c")
NAMESPACES: Final = 50
MIB: Final = 1 << 20
_READY: Final = (StatusCondition("Ready", "True"),)


class ClusterSize(NamedTuple):
    """How large a cluster is, and what its plan may take."""

    nodes: int
    services: int
    pods: int
    most_seconds: float
    most_mib: float


SIZES: Final = (
    ClusterSize(300, 1_000, 20_000, 5.0, 4_096.0),
    ClusterSize(5_000, 10_000, 150_000, 60.0, 4_096.0),
)


def make_cluster(size: ClusterSize, random: Random) -> Inventory:
    """Return a cluster whose Services have from one to many pods on random nodes."""
    return Inventory.of(_make_objects(size, random))


def _make_objects(size: ClusterSize, random: Random) -> Iterator[object]:
    for number in range(size.nodes):
        labels = {ZONE_LABEL: ZONES[number % len(ZONES)]}
        status = NodeStatus(allocatable={"cpu": "8"}, conditions=_READY)
        yield Node(metadata=ObjectMeta(name=f"n{number}", labels=labels), status=status)
    weights = [random.paretovariate(1.3) for _ in range(size.services)]
    whole = sum(weights)
    made = 0
    for number, weight in enumerate(weights):
        namespace = f"team-{number % NAMESPACES}"
        asks = random.choice((None, None, None, "PreferSameZone", "PreferSameNode"))
        address = f"10.{96 + number // 65536}.{number // 256 % 256}.{number % 256}"
        yield Service(
            metadata=ObjectMeta(name=f"svc-{number}", namespace=namespace, uid=f"svc-{number}"),
            spec=ServiceSpec(
                type="ClusterIP",
                selector={"app": f"app-{number}"},
                ports=(ServicePort(name="http", protocol="TCP", port=80, target_port=8080),),
                cluster_ip=address,
                cluster_ips=(address,),
                ip_families=("IPv4",),
                ip_family_policy="SingleStack",
                internal_traffic_policy="Cluster",
                traffic_distribution=asks,
            ),
        )
        count = max(1, round(size.pods * weight / whole))
        for _ in range(min(count, size.pods - made)):
            ip = f"10.{made // 65536}.{made // 256 % 256}.{made % 256}"
            owner = OwnerReference("apps/v1", "ReplicaSet", f"app-{number}-x", "u", True)
            yield Pod(
                metadata=ObjectMeta(
                    name=f"pod-{made}",
                    namespace=namespace,
                    uid=f"pod-{made}",
                    labels={"app": f"app-{number}", "pod-template-hash": "x", "team": namespace},
                    owner_references=(owner,),
                ),
                spec=PodSpec(node_name=f"n{random.randrange(size.nodes)}"),
                status=PodStatus(
                    phase="Running", pod_ip=ip, pod_ips=(PodIP(ip),), conditions=_READY
                ),
            )
            made += 1


def main() -> int:
    """Print the figures of each size; return 1 if a limit is missed."""
    chosen = [int(number) for number in sys.argv[1:]] or range(len(SIZES))
    is_kept = True
    for number in chosen:
        size = SIZES[number]
        inventory = make_cluster(size, Random(1))
        clients = distribute_clients(inventory, ClientBasis.PODS)
        assert clients is not None
        started, started_cpu = time.perf_counter(), time.process_time()
        plan = plan_cluster(inventory, settings=PlannerSettings(), clients=clients)
        seconds, cpu = time.perf_counter() - started, time.process_time() - started_cpu
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB
        # NB: other programs of the machine lengthen the wall time, and nothing here waits.
        kept = cpu <= size.most_seconds and mib <= size.most_mib
        is_kept = is_kept and kept
        print(
            f"plan of {size.nodes:,} nodes, {size.services:,} Services, {size.pods:,} pods: "
            f"{cpu:.1f} s of CPU in {seconds:.1f} s "
            f"({cpu / size.most_seconds:.2f} of the limit), "
            f"{mib:,.0f} MiB ({mib / size.most_mib:.2f}), "
            f"{plan.totals.advised:,} advised: {'ok' if kept else 'MISSED'}"
        )
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
