"""The hand that binds pods, with caches that are behind what is stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import NODES
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.scheduler import Binder
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.testing.api_server import serving
from support.controllers import World, opened
from support.labs import CLOCK

WEB = {"containers": [{"name": "main", "image": "web:1"}]}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[World]:
    """Serve one node."""
    async with serving(tmp_path / "data"), opened(tmp_path / "data" / "kubeconfig") as found:
        await found.add_node("n1", "zone-a")
        yield found


async def bind_all(cluster: World, *waiting: WorkloadPod) -> None:
    """Look twice at pods that seem to wait, one node being there."""
    caches = LabCaches()
    caches.nodes.put(await cluster.client.get(NODES, "n1"))
    for pod in waiting:
        caches.pods.put(pod)
    binder = Binder(
        cluster.client,
        caches,
        expectations=Expectations(CLOCK, caches.pods),
        clock=CLOCK,
        recorder=EventRecorder(cluster.client, component="test", clock=CLOCK),
    )
    await binder.sync()
    await binder.sync()


async def make(cluster: World, name: str, node: str = "") -> WorkloadPod:
    """Make a pod, with a node or without."""
    body = {"metadata": {"name": name}, "spec": {**WEB, "nodeName": node}}
    return await cluster.client.create(LAB_PODS, body, namespace="default")


async def nodes_of(cluster: World) -> dict[NamespacedName, str]:
    """Return the node of every pod."""
    page = await cluster.client.list_all(LAB_PODS, namespace="default")
    return {pod.key: pod.spec.node_name for pod in page.items}


async def test_a_pod_is_bound_once(cluster: World) -> None:
    """Until the node is seen in the cache the pod is not looked at again, and says why it runs."""
    pod = await make(cluster, "web")
    await bind_all(cluster, pod)
    found = await cluster.client.get(LAB_PODS, "web", namespace="default")
    assert (found.uid, found.spec.node_name) == (pod.uid, "n1")
    condition = found.status.condition("PodScheduled")
    assert condition is not None
    assert condition.status == "True"


async def test_pods_that_others_took_care_of_are_left_alone(cluster: World) -> None:
    """A pod that is gone, made anew or bound meanwhile stops nobody, and keeps what it has."""
    gone, anew, taken = [await make(cluster, name) for name in ("gone", "anew", "taken")]
    for pod in (gone, anew, taken):
        await cluster.client.delete(LAB_PODS, pod.metadata.name, namespace="default")
    await make(cluster, "anew")
    await make(cluster, "taken", "n2")
    await bind_all(cluster, gone, anew, taken, await make(cluster, "web"))
    assert await nodes_of(cluster) == {
        NamespacedName("default", "anew"): "",
        NamespacedName("default", "taken"): "n2",
        NamespacedName("default", "web"): "n1",
    }
