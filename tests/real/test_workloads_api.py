"""Our controllers of workloads beside either make of API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from keepclose.kube.errors import NotFound
from keepclose.kube.requests import NODES, Kind
from keepclose.lab.kinds import DEPLOYMENTS, LAB_PODS, REPLICA_SETS
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from support.controllers import opened
from support.labs import Lab, tending
from support.real.apis import Api, serving

NODE_NAMES = ("lab-a", "lab-b", "lab-c")


def template(image: str) -> JsonObject:
    """Return a template of pods."""
    container = {"name": "main", "image": image}
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}


@pytest.fixture(scope="module", params=["real", "embedded"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run servers that have no other nodes and pods, for these count all."""
    with serving(request.param, tmp_path_factory.mktemp(request.param)) as found:
        yield found


@pytest.fixture
async def lab(api: Api, namespace: str) -> AsyncIterator[Lab]:
    """Tend three nodes that are cordoned."""
    async with opened(api.kubeconfig, namespace=namespace) as cluster:
        for name in NODE_NAMES:
            await cluster.add_node(name, f"zone-{name[-1]}")
            # NB: a real server taints new nodes until somebody finds them ready.
            spec = {"taints": None, "unschedulable": True}
            await cluster.change(NODES, name, {"spec": spec})
        async with tending(api.kubeconfig, cluster) as found:
            yield found
        # A real server alone has nobody who would remove what belongs to a Deployment.
        kinds: tuple[Kind[Any], ...] = (DEPLOYMENTS, REPLICA_SETS, LAB_PODS)
        for kind in kinds:
            for one in (await cluster.client.list_all(kind, namespace=namespace)).items:
                with suppress(NotFound):
                    await cluster.remove(kind, one.metadata.name)
        for name in NODE_NAMES:
            await cluster.remove(NODES, name)


async def test_a_deployment_waits_rolls_and_scales(namespace: str, lab: Lab) -> None:
    """Pods wait with a reason, are bound when nodes open, and updates and scaling come to rest."""
    key = NamespacedName(namespace, "web")
    body = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template("web:1"),
        },
    }
    await lab.client.create(DEPLOYMENTS, body, namespace=namespace)
    single = {"metadata": {"name": "single"}, "spec": template("web:1")["spec"]}
    await lab.client.create(LAB_PODS, single, namespace=namespace)
    want = "0/3 nodes are available: 3 node(s) were unschedulable."

    def reasons() -> list[str]:
        found = [pod.status.condition("PodScheduled") for pod in lab.pods]
        return [one.message for one in found if one is not None]

    await lab.until(lambda: reasons() == [want] * 4)
    waiting = {pod.uid for pod in lab.pods}
    for name in NODE_NAMES:
        await lab.cluster.change(NODES, name, {"spec": {"unschedulable": None}})
    await lab.until(lambda: len(lab.pods) == 4 and all(pod.is_ready for pod in lab.pods))
    # Those that waited have kept who they are.
    assert {pod.uid for pod in lab.pods} == waiting

    def is_done(replicas: int, generation: int) -> bool:
        found = lab.controller.caches.deployments.get(key)
        if found is None or found.status.observed_generation < generation:
            return False
        status = found.status
        counts = (status.updated_replicas, status.replicas, status.available_replicas)
        return counts == (replicas,) * 3 and len(lab.pods) == replicas + 1

    await lab.until(lambda: is_done(3, 1))
    await lab.cluster.change(DEPLOYMENTS, "web", {"spec": {"template": template("web:2")}})
    await lab.until(lambda: is_done(3, 2))
    await lab.cluster.change(DEPLOYMENTS, "web", {"spec": {"replicas": 6}})
    await lab.until(lambda: is_done(6, 3))
    owned = [pod.spec.node_name for pod in lab.pods if pod.controller]
    assert sorted(owned) == sorted(NODE_NAMES * 2)
    sizes = sorted(one.spec.replicas for one in lab.controller.caches.replica_sets.all())
    assert sizes == [0, 6]
