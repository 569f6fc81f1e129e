"""Workloads on our own API server, with a stand-in for the kubelets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from keepclose.kube.event_recorder import EventRecorder
from keepclose.kube.requests import EVENTS, NODES
from keepclose.lab.caches import LabCaches
from keepclose.lab.kinds import DAEMON_SETS, DEPLOYMENTS, LAB_PODS, REPLICA_SETS
from keepclose.lab.workloads.expectations import Expectations
from keepclose.lab.workloads.pods import PodWriter
from keepclose.lab.workloads.replicasets import ReplicaSetSync
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.rolling_update import REVISION, template_hash
from keepclose.model.workloads.types import Deployment
from keepclose.testing.api_server import Served, serving
from support.controllers import opened
from support.labs import CLOCK, Lab, tending, workloads

WEB = NamespacedName("default", "web")
ZONES = {f"n{number}": f"zone-{'abc'[number % 3]}" for number in range(6)}


def template(image: str = "web:1", *, app: str = "web", **spec: Any) -> JsonObject:
    """Return a template of pods."""
    container = {"name": "main", "image": image}
    return {"metadata": {"labels": {"app": app}}, "spec": {"containers": [container], **spec}}


def manifest(replicas: int = 0, image: str = "web:1", **spec: Any) -> JsonObject:
    """Return a workload named web."""
    return {
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(image),
            **({"replicas": replicas} if replicas else {}),
            **spec,
        },
    }


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve for one test."""
    async with serving(tmp_path / "data") as served:
        yield served


@pytest.fixture
async def lab(api: Served) -> AsyncIterator[Lab]:
    """Tend six nodes in three zones."""
    async with workloads(api) as found:
        for name, zone in ZONES.items():
            await found.cluster.add_node(name, zone)
        # NB: what a controller sees of nodes and what it sees of workloads come by different ways.
        await found.until(lambda: len(found.controller.caches.nodes) == len(ZONES))
        yield found


def deployment_of(lab: Lab) -> Deployment:
    """Return the Deployment as the controller sees it."""
    found = lab.controller.caches.deployments.get(WEB)
    assert found is not None
    return found


def is_done(lab: Lab, replicas: int, *, generation: int = 1) -> bool:
    """Return whether `kubectl rollout status` would be content."""
    found = lab.controller.caches.deployments.get(WEB)
    if found is None or found.metadata.generation < generation:
        return False
    status = found.status
    return (
        status.observed_generation == found.metadata.generation
        and (status.updated_replicas, status.replicas, status.available_replicas)
        == (replicas, replicas, replicas)
        and len(lab.pods) == replicas
        and lab.controller.is_idle
    )


def zones_of(pods: list[WorkloadPod]) -> list[int]:
    """Return how many pods each zone has, most first."""
    return sorted(Counter(ZONES[pod.spec.node_name] for pod in pods).values(), reverse=True)


async def change(lab: Lab, patch: JsonObject) -> None:
    """Change the Deployment."""
    await lab.cluster.change(DEPLOYMENTS, "web", {"spec": patch})


async def test_a_deployment_comes_up_spread_over_zones(lab: Lab) -> None:
    """Five pods take five nodes in three zones, owned by one ReplicaSet of the Deployment."""
    await lab.client.create(DEPLOYMENTS, manifest(5), namespace="default")
    await lab.until(lambda: is_done(lab, 5))
    assert zones_of(lab.pods) == [2, 2, 1]
    assert len({pod.spec.node_name for pod in lab.pods}) == 5
    (replica_set,) = lab.controller.caches.replica_sets.all()
    assert {pod.controller and pod.controller.uid for pod in lab.pods} == {replica_set.metadata.uid}
    deployment = deployment_of(lab)
    assert deployment.metadata.annotations[REVISION] == "1"
    assert deployment.metadata.generation == 1
    reasons = {one.type: (one.status, one.reason) for one in deployment.status.conditions}
    assert reasons == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    writes = Counter(lab.wire.take())
    assert (writes["POST replicasets"], writes["POST pods"]) == (1, 5)


async def test_updates_keep_to_their_bounds(lab: Lab) -> None:
    """Of six pods one may be missing and one too many, to and back, and nobody sees otherwise."""
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    await lab.client.create(DEPLOYMENTS, manifest(6, strategy=rolling), namespace="default")
    await lab.until(lambda: is_done(lab, 6))
    seen: list[tuple[int, int]] = []

    def look(_old: WorkloadPod | None, _new: WorkloadPod | None) -> None:
        active = [pod for pod in lab.kubelet.pods.all() if pod.is_active]
        seen.append((len(active), sum(pod.is_ready for pod in active)))

    lab.kubelet.pods.subscribe(look)
    await change(lab, {"template": template("web:2")})
    await lab.until(lambda: is_done(lab, 6, generation=2))
    assert max(total for total, _ in seen) == 7
    assert min(ready for _, ready in seen) >= 5
    (old,) = (one for one in lab.controller.caches.replica_sets.all() if not one.is_active)
    await change(lab, {"template": template("web:1")})
    await lab.until(lambda: is_done(lab, 6, generation=3))
    assert max(total for total, _ in seen) == 7
    assert min(ready for _, ready in seen) >= 5
    assert len(lab.controller.caches.replica_sets) == 2
    assert {pod.controller and pod.controller.name for pod in lab.pods} == {old.metadata.name}
    assert deployment_of(lab).metadata.annotations[REVISION] == "3"
    assert zones_of(lab.pods) == [2, 2, 2]


async def test_a_rollout_that_cannot_go_on_waits(lab: Lab) -> None:
    """Pods that never get ready stop an update, and the next template ends it."""
    await lab.client.create(DEPLOYMENTS, manifest(4), namespace="default")
    await lab.until(lambda: is_done(lab, 4))
    first = {pod.metadata.name for pod in lab.pods}
    lab.kubelet.makes_ready = lambda pod: pod.metadata.name in first
    await change(lab, {"template": template("web:2")})
    await lab.until(lambda: deployment_of(lab).status.updated_replicas == 2)
    await lab.until(lambda: lab.controller.is_idle and len(lab.pods) == 5)
    assert sum(pod.is_ready for pod in lab.pods) == 3
    lab.kubelet.makes_ready = lambda _: True
    await change(lab, {"template": template("web:3")})
    await lab.until(lambda: is_done(lab, 4, generation=3))
    sizes = sorted(one.spec.replicas for one in lab.controller.caches.replica_sets.all())
    assert sizes == [0, 0, 4]


async def test_scaling_and_pausing(lab: Lab) -> None:
    """A number of replicas is followed at once; a paused template waits for its time."""
    await lab.client.create(DEPLOYMENTS, manifest(2), namespace="default")
    await lab.until(lambda: is_done(lab, 2))
    await change(lab, {"replicas": 9})
    await lab.until(lambda: is_done(lab, 9, generation=2))
    assert zones_of(lab.pods) == [3, 3, 3]
    await change(lab, {"replicas": 3, "paused": True, "template": template("web:2")})
    await lab.until(lambda: len(lab.pods) == 3 and lab.controller.is_idle)
    assert len({pod.spec.node_name for pod in lab.pods}) == 3
    assert len(lab.controller.caches.replica_sets) == 1
    await change(lab, {"paused": False})
    await lab.until(lambda: is_done(lab, 3, generation=4))
    assert len(lab.controller.caches.replica_sets) == 2


async def test_recreation_lets_all_go_first(lab: Lab) -> None:
    """With Recreate, no new pod is there while an old one is."""
    body = manifest(3, strategy={"type": "Recreate"})
    await lab.client.create(DEPLOYMENTS, body, namespace="default")
    await lab.until(lambda: is_done(lab, 3))
    seen: set[int] = set()
    lab.kubelet.pods.subscribe(
        lambda _old, _new: seen.add(
            len({pod.controller and pod.controller.uid for pod in lab.kubelet.pods.all()})
        )
    )
    await change(lab, {"template": template("web:2")})
    await lab.until(lambda: is_done(lab, 3, generation=2))
    assert seen == {0, 1}


async def test_pods_are_given_their_time_to_end(lab: Lab) -> None:
    """A pod that goes has the time that it asked for, and its successor does not wait for it."""
    body = manifest(1, template=template(terminationGracePeriodSeconds=77))
    await lab.client.create(DEPLOYMENTS, body, namespace="default")
    await lab.until(lambda: is_done(lab, 1))
    (first,) = lab.pods
    lab.kubelet.lets_end = lambda _: False
    await change(lab, {"replicas": 0})
    await lab.until(lambda: lab.pods[0].is_terminating)
    raw = await lab.cluster.api.get(f"/api/v1/namespaces/default/pods/{first.metadata.name}")
    assert raw["metadata"]["deletionGracePeriodSeconds"] == 77
    await change(lab, {"replicas": 1})
    await lab.until(lambda: sum(pod.is_ready and pod.is_active for pod in lab.pods) == 1)
    assert len(lab.pods) == 2


async def test_lost_requests_make_no_doubles(lab: Lab) -> None:
    """With every fourth write lost, half of them after they were served, all ends as it should."""
    lab.wire.failing = 0.25
    await lab.client.create(DEPLOYMENTS, manifest(6), namespace="default")
    await asyncio.sleep(0.2)
    await change(lab, {"template": template("web:2"), "replicas": 4})
    await asyncio.sleep(0.2)
    lab.wire.failing = 0.0
    await lab.until(lambda: is_done(lab, 4, generation=2))
    page = await lab.client.list_all(LAB_PODS, namespace="default")
    assert len(page.items) == 4


async def test_whoever_comes_next_goes_on(api: Served) -> None:
    """A controller that ends in the middle of an update leaves nothing that the next cannot end."""
    kubeconfig = api.server.settings.data_dir / "kubeconfig"
    async with workloads(api) as lab:
        for name, zone in ZONES.items():
            await lab.cluster.add_node(name, zone)
        await lab.client.create(DEPLOYMENTS, manifest(5), namespace="default")
        await lab.until(lambda: is_done(lab, 5))
        await change(lab, {"template": template("web:2")})
        await lab.until(lambda: len(lab.controller.caches.replica_sets) == 2)
        async with tending(kubeconfig, lab.cluster) as other:
            # Two at once do not harm each other either.
            await other.until(lambda: is_done(other, 5, generation=2))
    async with workloads(api) as lab:
        await lab.until(lambda: is_done(lab, 5, generation=2))
        assert [pod.controller is not None for pod in lab.pods] == [True] * 5


async def test_a_stale_cache_makes_no_doubles(api: Served) -> None:
    """A ReplicaSet looked at again before its pods were seen makes none, and ends none, twice."""
    caches = LabCaches()
    expectations = Expectations(CLOCK, caches.pods)
    async with opened(api.server.settings.data_dir / "kubeconfig") as cluster:
        recorder = EventRecorder(cluster.client, component="test", clock=CLOCK)
        sync = ReplicaSetSync(
            cluster.client,
            caches,
            expectations=expectations,
            writer=PodWriter(cluster.client, expectations, recorder=recorder),
            clock=CLOCK,
            random=Random(1),
        )
        await cluster.add_node("n0", "zone-a")
        caches.nodes.put(await cluster.client.get(NODES, "n0"))
        stored = await cluster.client.create(REPLICA_SETS, manifest(3), namespace="default")
        caches.replica_sets.put(stored)
        await sync.sync(WEB)
        await sync.sync(WEB)
        page = await cluster.client.list_all(LAB_PODS)
        assert [pod.spec.node_name for pod in page.items] == ["n0"] * 3
        for pod in page.items:
            caches.pods.put(pod)
        await cluster.change(REPLICA_SETS, "web", {"spec": {"replicas": 2}})
        caches.replica_sets.put(await cluster.client.get(REPLICA_SETS, "web", namespace="default"))
        await sync.sync(WEB)
        await sync.sync(WEB)
        page = await cluster.client.list_all(LAB_PODS)
        assert sum(pod.is_terminating for pod in page.items) == 1
        counted = await cluster.client.get(REPLICA_SETS, "web", namespace="default")
        assert (counted.status.replicas, counted.status.terminating_replicas) == (2, 1)


async def test_pods_are_adopted_and_let_go(lab: Lab) -> None:
    """A matching orphan counts as a replica; one that no longer matches is replaced."""
    await lab.cluster.add_pod("orphan", "n1", ip="10.0.0.9")
    await lab.client.create(REPLICA_SETS, manifest(3), namespace="default")
    await lab.until(lambda: len(lab.pods) == 3 and all(pod.is_ready for pod in lab.pods))
    await lab.until(lambda: all(pod.controller for pod in lab.pods))
    await lab.cluster.change(LAB_PODS, "orphan", {"metadata": {"labels": {"app": "other"}}})
    await lab.until(lambda: len(lab.pods) == 4)
    await lab.until(
        lambda: [pod.metadata.name for pod in lab.pods if not pod.controller] == ["orphan"]
    )


async def test_a_daemon_set_follows_the_nodes(lab: Lab) -> None:
    """Each node has one pod, new nodes get one, and a new template renews them one by one."""
    await lab.client.create(DAEMON_SETS, manifest(), namespace="default")

    def is_up(number: int, generation: int = 1) -> bool:
        found = lab.controller.caches.daemon_sets.get(WEB)
        if found is None or found.status.observed_generation != generation:
            return False
        status = found.status
        return (
            status.updated_number_scheduled
            == status.number_available
            == status.desired_number_scheduled
            == len(lab.pods)
            == number
        )

    await lab.until(lambda: is_up(6))
    assert sorted(pod.spec.node_name for pod in lab.pods) == sorted(ZONES)
    await lab.cluster.add_node("n9", "zone-a")
    await lab.until(lambda: is_up(7))
    seen: list[int] = []
    lab.kubelet.pods.subscribe(
        lambda _old, _new: seen.append(
            sum(pod.is_ready and pod.is_active for pod in lab.kubelet.pods.all())
        )
    )
    await lab.cluster.change(DAEMON_SETS, "web", {"spec": {"template": template("web:2")}})
    await lab.until(lambda: is_up(7, generation=2))
    assert min(seen) == 6


async def test_pods_of_a_deleted_node_are_replaced(lab: Lab) -> None:
    """Pods that no kubelet can end are reported as failed, deleted, and made again elsewhere."""
    await lab.client.create(DEPLOYMENTS, manifest(6), namespace="default")
    await lab.until(lambda: is_done(lab, 6))
    stranded = [pod for pod in lab.pods if pod.spec.node_name == "n0"]
    assert stranded
    # Its kubelet went with the node.
    lab.kubelet.makes_ready = lambda pod: pod.spec.node_name != "n0"
    ended: dict[str, WorkloadPod] = {}
    lab.controller.caches.pods.subscribe(
        lambda _, new: ended.update({new.uid: new}) if new and new.has_ended else None
    )
    await lab.client.delete(NODES, "n0")
    gone = {pod.uid for pod in stranded}
    await lab.until(lambda: not gone & {pod.uid for pod in lab.pods})
    await lab.until(lambda: is_done(lab, 6))
    assert {pod.spec.node_name for pod in lab.pods}.isdisjoint({"n0"})
    assert ended.keys() == gone
    conditions = [pod.status.condition("DisruptionTarget") for pod in ended.values()]
    assert {one.reason for one in conditions if one} == {"DeletionByPodGC"}


async def test_pods_of_a_node_that_comes_back_stay(lab: Lab) -> None:
    """A node that is made again in time keeps its pods, and so do nodes that were never gone."""
    await lab.client.create(DEPLOYMENTS, manifest(6), namespace="default")
    await lab.until(lambda: is_done(lab, 6))
    before = {pod.uid for pod in lab.pods}
    await lab.client.delete(NODES, "n0")
    await lab.cluster.add_node("n0", ZONES["n0"])
    # One whose node was never there marks the time at which the others would have gone.
    stray = {"metadata": {"name": "stray"}, "spec": {**template()["spec"], "nodeName": "none"}}
    await lab.client.create(LAB_PODS, stray, namespace="default")
    await lab.until(lambda: any(pod.metadata.name == "stray" for pod in lab.pods))
    await lab.until(lambda: all(pod.metadata.name != "stray" for pod in lab.pods))
    assert {pod.uid for pod in lab.pods} == before


async def test_pods_wait_for_a_node_and_say_why(lab: Lab) -> None:
    """With all nodes cordoned pods stay pending with the reason, and are bound when one opens."""
    for name in ZONES:
        await lab.cluster.change(NODES, name, {"spec": {"unschedulable": True}})
    caches = lab.controller.caches
    await lab.until(lambda: all(node.spec.unschedulable for node in caches.nodes.all()))
    await lab.client.create(DEPLOYMENTS, manifest(2), namespace="default")
    single = {"metadata": {"name": "single"}, "spec": template()["spec"]}
    await lab.client.create(LAB_PODS, single, namespace="default")
    want = "0/6 nodes are available: 6 node(s) were unschedulable."

    def reasons() -> list[str]:
        found = [pod.status.condition("PodScheduled") for pod in lab.pods]
        return [one.message for one in found if one is not None]

    await lab.until(lambda: reasons() == [want] * 3)
    waiting = {pod.uid for pod in lab.pods}
    page = await lab.client.list_all(EVENTS, namespace="default")
    told = {one.message for one in page.items if one.reason == "FailedScheduling"}
    assert told <= {want}
    await lab.cluster.change(NODES, "n3", {"spec": {"unschedulable": None}})
    await lab.until(lambda: len(lab.pods) == 3 and all(pod.is_ready for pod in lab.pods))
    assert {pod.spec.node_name for pod in lab.pods} == {"n3"}
    assert {pod.uid for pod in lab.pods} == waiting
    assert Counter(lab.wire.take())["DELETE pods"] == 0


async def test_availability_takes_its_time(lab: Lab) -> None:
    """With minReadySeconds a pod counts as available only after that time."""
    # NB: times of pods are whole seconds, and a busy machine takes some of them.
    await lab.client.create(DEPLOYMENTS, manifest(2, minReadySeconds=4), namespace="default")
    await lab.until(lambda: deployment_of(lab).status.ready_replicas == 2 if lab.pods else False)
    assert deployment_of(lab).status.available_replicas == 0
    await lab.until(lambda: is_done(lab, 2))


async def test_deleted_workloads_take_their_pods_along(lab: Lab) -> None:
    """After the Deployment its ReplicaSets and pods go, and nothing makes them anew."""
    await lab.client.create(DEPLOYMENTS, manifest(3), namespace="default")
    await lab.until(lambda: is_done(lab, 3))
    await lab.cluster.remove(DEPLOYMENTS, "web")
    await lab.until(lambda: not lab.pods and not lab.controller.caches.replica_sets.all())
    lab.wire.take()
    await lab.until(lambda: lab.controller.is_idle)
    assert not [write for write in lab.wire.take() if write.startswith("POST")]


async def test_a_replica_set_that_was_left_is_adopted(lab: Lab) -> None:
    """A Deployment made anew takes over what one that was deleted alone has left, pods and all."""
    await lab.client.create(DEPLOYMENTS, manifest(3), namespace="default")
    await lab.until(lambda: is_done(lab, 3))
    names = [pod.metadata.name for pod in lab.pods]
    await lab.client.delete(DEPLOYMENTS, "web", namespace="default", propagation="Orphan")
    await lab.until(lambda: lab.controller.caches.deployments.get(WEB) is None)
    await lab.client.create(DEPLOYMENTS, manifest(3), namespace="default")
    await lab.until(lambda: is_done(lab, 3))
    assert [pod.metadata.name for pod in lab.pods] == names
    (replica_set,) = lab.controller.caches.replica_sets.all()
    (owner,) = replica_set.metadata.owner_references
    assert owner.uid == deployment_of(lab).metadata.uid


async def test_a_name_that_is_taken_is_avoided(lab: Lab) -> None:
    """Where another ReplicaSet has the name that follows from the template, another is found."""
    probe = await lab.client.create(DEPLOYMENTS, manifest(1), namespace="default", dry_run=True)
    taken = f"web-{template_hash(probe.spec.template)}"
    other = manifest(0, selector={"matchLabels": {"app": "other"}}, template=template(app="other"))
    body = {**other, "metadata": {"name": taken}, "spec": {**other["spec"], "replicas": 0}}
    await lab.client.create(REPLICA_SETS, body, namespace="default")
    await lab.client.create(DEPLOYMENTS, manifest(1), namespace="default")
    await lab.until(lambda: WEB in lab.controller.caches.deployments and is_done(lab, 1))
    assert deployment_of(lab).status.collision_count == 1
    assert {pod.controller and pod.controller.name for pod in lab.pods} != {taken}


async def test_old_revisions_go(lab: Lab) -> None:
    """Of three templates, with a history of one, the first is forgotten."""
    await lab.client.create(DEPLOYMENTS, manifest(1, revisionHistoryLimit=1), namespace="default")
    await lab.until(lambda: is_done(lab, 1))
    await change(lab, {"template": template("web:2")})
    await lab.until(lambda: is_done(lab, 1, generation=2))
    await change(lab, {"template": template("web:3")})
    await lab.until(lambda: is_done(lab, 1, generation=3))
    replica_sets = lab.controller.caches.replica_sets
    await lab.until(lambda: len(replica_sets) == 2)
    revisions = sorted(one.metadata.annotations[REVISION] for one in replica_sets.all())
    assert revisions == ["2", "3"]


async def test_pods_wait_for_the_cpu_that_they_request(lab: Lab) -> None:
    """Those that fit nowhere stay pending and say why, until a node with room comes."""
    spec = template()
    spec["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3", "memory": "1"}}
    body = manifest(8, template=spec)
    for name in ZONES:
        status = {"status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "250"}}}
        await lab.client.patch(NODES, name, status, subresource="status")
    await lab.until(
        lambda: all("pods" in node.status.allocatable for node in lab.controller.caches.nodes.all())
    )
    await lab.client.create(DEPLOYMENTS, body, namespace="default")

    def waiting() -> list[WorkloadPod]:
        found = [(pod, pod.status.condition("PodScheduled")) for pod in lab.pods]
        return [pod for pod, condition in found if condition and condition.status == "False"]

    await lab.until(lambda: len(waiting()) == 2 and sum(pod.is_ready for pod in lab.pods) == 6)
    assert Counter(pod.spec.node_name for pod in lab.pods) == {**dict.fromkeys(ZONES, 1), "": 2}
    for pod in waiting():
        condition = pod.status.condition("PodScheduled")
        assert condition is not None
        assert (pod.status.phase, condition.reason) == ("Pending", "Unschedulable")
        assert condition.message == "0/6 nodes are available: 6 Insufficient cpu."
    await lab.cluster.add_node("n6", "zone-a")
    status = {"status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "250"}}}
    await lab.client.patch(NODES, "n6", status, subresource="status")
    await lab.until(lambda: sum(pod.spec.node_name == "n6" for pod in lab.pods) == 1)
    await lab.until(lambda: len(waiting()) == 1)
