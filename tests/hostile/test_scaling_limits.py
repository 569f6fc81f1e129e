"""Workloads that ask for more pods than any cluster has: work, memory and writes stay bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.kube.requests import NODES
from keepclose.lab.cluster.programs import ClusterLayout
from keepclose.lab.kinds import DEPLOYMENTS, REPLICA_SETS
from keepclose.lab.workloads import replicasets
from keepclose.lab.workloads.daemonsets import BURST_PODS, plan_daemon_set
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ObjectMeta
from keepclose.model.workload import Node
from keepclose.model.workloads.pods import PodMeta, WorkloadPod, WorkloadPodStatus
from keepclose.model.workloads.replica_set_plan import BURST_REPLICAS, plan_replica_set
from keepclose.model.workloads.rolling_update import (
    MOST_REPLICAS,
    deployment_bounds,
    resolve_share,
    spread_proportionally,
)
from keepclose.model.workloads.types import (
    DaemonSet,
    DaemonSetSpec,
    Deployment,
    DeploymentSpec,
    ReplicaSet,
    ReplicaSetSpec,
    RollingUpdate,
    RolloutStrategy,
)
from keepclose.testing.api_server import serving
from support.labs import Lab, workloads

MOST = 2**31 - 1
ZONES = {"n1": "zone-a", "n2": "zone-b"}
ROOM = 3
"""How many pods a node of these tests has room for."""
PENDING = 10
"""How many pods of these tests may be Pending."""
TEMPLATE: JsonObject = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {"containers": [{"name": "main", "image": "web:1"}]},
}


def body(replicas: int, **pod: object) -> JsonObject:
    """Return a Deployment or a ReplicaSet named web."""
    template = {**TEMPLATE, "spec": {**TEMPLATE["spec"], **pod}}
    return {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    }


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    """Tend two nodes with little room, in a cluster where few pods may be Pending."""
    monkeypatch.setattr(replicasets, "MAX_PENDING", PENDING)
    monkeypatch.setattr(replicasets, "CROWDED_RECHECK_S", 0.05)
    async with serving(tmp_path / "data") as api, workloads(api) as found:
        for name, zone in ZONES.items():
            await found.cluster.add_node(name, zone)
            status = {"status": {"allocatable": {"pods": str(ROOM)}}}
            await found.client.patch(NODES, name, status, subresource="status")
        nodes = found.controller.caches.nodes
        await found.until(
            lambda: sum("pods" in node.status.allocatable for node in nodes.all()) == len(ZONES)
        )
        yield found


def failure_of(lab: Lab) -> str:
    """Return what the ReplicaSets of the cluster say about pods that were not created."""
    conditions = [
        condition
        for replica_set in lab.controller.caches.replica_sets.all()
        for condition in replica_set.status.conditions
        if condition.type == "ReplicaFailure"
    ]
    return "".join(f"{condition.reason}: {condition.message}" for condition in conditions)


async def test_two_billion_replicas_fill_the_nodes_and_no_more(lab: Lab) -> None:
    """Nodes are filled, a bounded number of pods waits and says why, and scaling back works."""
    await lab.client.create(DEPLOYMENTS, body(MOST), namespace="default")
    await lab.until(lambda: failure_of(lab).startswith("FailedCreate: no more pods are created"))
    await lab.until(lambda: sum(pod.is_ready for pod in lab.pods) == len(ZONES) * ROOM)

    def reasons() -> list[str]:
        waiting = [
            pod.status.condition("PodScheduled") for pod in lab.pods if not pod.spec.node_name
        ]
        return [condition.message for condition in waiting if condition is not None]

    await lab.until(lambda: len(reasons()) >= PENDING)
    assert len(lab.pods) == len(ZONES) * ROOM + PENDING
    assert set(reasons()) == {"0/2 nodes are available: 2 Too many pods."}
    await lab.cluster.change(DEPLOYMENTS, "web", {"spec": {"replicas": 2}})
    await lab.until(lambda: len(lab.pods) == 2 and all(pod.is_ready for pod in lab.pods))
    await lab.until(lambda: failure_of(lab) == "")


@pytest.mark.parametrize(
    "pod", [{"schedulerName": "other"}, {"schedulingGates": [{"name": "example.com/gate"}]}]
)
async def test_pods_that_our_scheduler_does_not_place_count_too(
    lab: Lab, pod: dict[str, object]
) -> None:
    """Pods that another scheduler or a gate holds back are Pending as well, and bounded."""
    await lab.client.create(DEPLOYMENTS, body(MOST, **pod), namespace="default")
    await lab.until(lambda: "no more pods are created" in failure_of(lab))
    assert len(lab.pods) == PENDING


async def test_a_refused_template_costs_one_request_a_sync(lab: Lab) -> None:
    """Batches begin with one pod: a server that refuses it is not asked a thousand times."""

    def spoil(written: JsonObject) -> None:
        if "containers" in written.get("spec", {}):
            written["spec"]["containers"] = []

    lab.wire.alter = spoil
    await lab.client.create(REPLICA_SETS, body(1000), namespace="default")
    await lab.until(lambda: "FailedCreate" in failure_of(lab))
    posts = [
        request
        for request in lab.wire.writes
        if request.method == "POST" and request.path.endswith("/pods")
    ]
    assert 1 <= len(posts) <= 10


def test_one_sync_of_a_replica_set_creates_and_deletes_a_burst() -> None:
    """What a plan does is bounded in both directions, however far the wish is away."""
    huge = ReplicaSet(metadata=ObjectMeta(name="web", uid="u"), spec=ReplicaSetSpec(replicas=MOST))
    assert plan_replica_set(huge, [], now=0.0).missing == BURST_REPLICAS == 500
    none = ReplicaSet(metadata=ObjectMeta(name="web", uid="u"), spec=ReplicaSetSpec(replicas=0))
    pods = [
        WorkloadPod(
            metadata=PodMeta(name=f"p{number}", uid=f"u{number}"),
            status=WorkloadPodStatus(phase="Running"),
        )
        for number in range(BURST_REPLICAS + 7)
    ]
    plan = plan_replica_set(none, pods, now=0.0)
    assert (len(plan.excess), plan.status.replicas) == (BURST_REPLICAS, 7)


def test_one_sync_of_a_daemon_set_creates_a_burst() -> None:
    """Node objects are cheap to create: a thousand of them bring 250 pods at a time."""
    nodes = [Node(metadata=ObjectMeta(name=f"n{number:04}")) for number in range(1000)]
    daemon = DaemonSet(
        metadata=ObjectMeta(name="web", uid="u"),
        spec=DaemonSetSpec(
            template={
                **TEMPLATE,
                "spec": {**TEMPLATE["spec"], "tolerations": [{"operator": "Exists"}]},
            }
        ),
    )
    plan = plan_daemon_set(daemon, nodes, [], now=0.0)
    assert len(plan.creations) == BURST_PODS == 250


def test_a_surge_of_any_size_keeps_sizes_in_range() -> None:
    """A maxSurge beside two billion replicas never asks for a size that is no int32."""
    deployment = Deployment(
        metadata=ObjectMeta(name="web", uid="u"),
        spec=DeploymentSpec(
            replicas=MOST, strategy=RolloutStrategy(rolling_update=RollingUpdate(0, "999999999%"))
        ),
    )
    assert deployment_bounds(deployment).max_surge == MOST_REPLICAS
    parts = [
        ReplicaSet(metadata=ObjectMeta(name=name), spec=ReplicaSetSpec(replicas=replicas))
        for name, replicas in (("old", 3), ("new", MOST))
    ]
    sizes = spread_proportionally(deployment, parts, {"old": 4, "new": 4})
    assert all(0 <= size.replicas <= MOST_REPLICAS for size in sizes)


def test_a_share_of_ten_thousand_digits_is_no_share() -> None:
    """A number that Kubernetes cannot hold counts as none, and costs no time."""
    assert resolve_share(f"{'9' * 10_000}%", 100, up=True) == 0
    assert resolve_share(f"{'0' * 10_000}50%", 100, up=True) == 50


@pytest.mark.parametrize(
    ("zones", "nodes"), [(10**30, 1), (1, 10**30), (100_000, 100_000), (-(10**30), 2)]
)
def test_clusters_of_absurd_sizes_are_refused_at_once(zones: int, nodes: int) -> None:
    """--zones and --nodes-per-zone are checked before anything is made of them."""
    assert ClusterLayout(zones, nodes).flaws()
