"""Pods from their binding to their end, with our own API server and without packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from keepclose.kube.errors import Conflict
from keepclose.kube.requests import EVENTS, NODES, PatchType
from keepclose.kube.transport.transport import ApiRequest, Response
from keepclose.lab.kinds import LAB_PODS
from keepclose.lab.kubelet.pod_networks import AddressesOnly, PodPlace
from keepclose.model.meta import NamespacedName
from keepclose.model.workloads.pods import ReadinessGate, WorkloadPod
from keepclose.system.namespaces import NetworkError
from keepclose.testing.api_server import Served, serving
from keepclose.testing.fake_clock import FakeClock
from support.lab.kubeletbed import KubeletBed, is_ready, kubelets_of, status_of

WEB = NamespacedName("default", "web")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Served]:
    """Serve for one test."""
    async with serving(tmp_path / "data") as served:
        yield served


@pytest.fixture
async def bed(api: Served) -> AsyncIterator[KubeletBed]:
    """Run three kubelets by the real clock."""
    async with kubelets_of(api) as found:
        yield found


@pytest.fixture
def clock() -> FakeClock:
    """Stand still until told otherwise."""
    return FakeClock()


@pytest.fixture
async def timed(api: Served, clock: FakeClock) -> AsyncIterator[KubeletBed]:
    """Run three kubelets by a clock that the test moves."""
    async with kubelets_of(api, clock=clock) as found:
        yield found


async def change_status(bed: KubeletBed, status: dict[str, Any]) -> None:
    """Change the status of the pod web, as others than kubelets do."""
    await bed.client.patch(
        LAB_PODS,
        "web",
        {"status": status},
        namespace="default",
        type=PatchType.STRATEGIC,
        subresource="status",
    )


def row(table: dict[str, Any]) -> list[Any]:
    """Return what `kubectl get pods` prints of the first pod: name, ready, status, restarts."""
    cells: list[Any] = table["rows"][0]["cells"]
    return cells[:4]


async def printed(bed: KubeletBed) -> list[Any]:
    """Return what `kubectl get pods` prints of the first pod."""
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    reply = await bed.cluster.api.call("GET", "/api/v1/namespaces/default/pods", accept=accept)
    return row(reply.json)


async def test_a_pod_is_ready_after_one_write_that_says_all(bed: KubeletBed) -> None:
    """A pod bound to a node gets addresses of the node's ranges and is Running in one write."""
    await bed.add_pod("web", "n2")
    pod = await bed.until_ready()
    await bed.rest()
    status = pod.status
    assert (status.phase, status.pod_ip, status.host_ip) == ("Running", "10.244.2.3", "172.18.0.2")
    assert [one.ip for one in status.pod_ips] == ["10.244.2.3", "fd00:244:2::3"]
    assert [one.ip for one in status.host_ips] == ["172.18.0.2", "fd00:172::2"]
    assert status.start_time is not None
    want_conditions = {
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    }
    assert {one.type for one in status.conditions if one.status == "True"} == want_conditions
    (container,) = status.container_statuses
    assert (container.name, container.image, container.ready, container.restart_count) == (
        "main",
        "example.dev/web:1",
        True,
        0,
    )
    assert container.state.running is not UNSET
    assert await printed(bed) == ["web", "1/1", "Running", "0"]
    assert bed.wire.take() == ["PATCH pods/status"]
    assert await bed.until_told("Started") == [("Normal", "Started container main", 1)]


async def test_pods_of_other_nodes_are_left_alone(bed: KubeletBed) -> None:
    """A pod on a node that is none of ours, or on none at all, is never written."""
    await bed.add_pod("elsewhere", "other")
    await bed.add_pod("nowhere", "")
    await bed.add_pod("web", "n1")
    await bed.until_ready()
    await bed.rest()
    assert bed.wire.take() == ["PATCH pods/status"]


async def test_a_scheduled_condition_is_kept(bed: KubeletBed) -> None:
    """PodScheduled as the scheduler wrote it stays, time and all."""
    await bed.add_pod("web", "n1")
    pod = await bed.until_ready()
    stamp = "2020-01-01T00:00:00Z"
    await change_status(
        bed,
        {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp},
                {"type": "Ready", "status": "False", "lastTransitionTime": stamp},
            ]
        },
    )
    pod = await bed.until(
        lambda one: is_ready(one) and one.metadata.resource_version != pod.metadata.resource_version
    )
    found = pod.status.condition("PodScheduled")
    assert found is not None
    assert found.last_transition_time == stamp


async def test_a_slow_pod_is_ready_after_its_time(timed: KubeletBed, clock: FakeClock) -> None:
    """A slow-start pod runs at once and is ready five seconds later, by a second write."""
    await timed.add_pod(args=["slow-start"])
    pod = await timed.until(lambda one: one.status.phase == "Running")
    assert status_of(pod, "Ready") == status_of(pod, "ContainersReady") == "False"
    found = pod.status.condition("Ready")
    assert found is not None
    assert (found.reason, found.message) == (
        "ContainersNotReady",
        "containers with unready status: [main]",
    )
    await clock.advance(4.9)
    await timed.rest()
    assert timed.wire.take() == ["PATCH pods/status"]
    await clock.advance(0.2)
    pod = await timed.until_ready()
    await timed.rest()
    (written,) = timed.written_statuses()
    assert set(written) == {"conditions", "containerStatuses"}
    assert pod.status.container_statuses[0].ready


async def test_the_delay_of_a_probe_is_honoured(timed: KubeletBed, clock: FakeClock) -> None:
    """A readiness probe with a first delay makes the pod ready after that delay."""
    probe = {"httpGet": {"port": 80}, "initialDelaySeconds": 7}
    await timed.add_pod(readinessProbe=probe)
    await timed.until(lambda one: one.status.phase == "Running")
    await clock.advance(6.9)
    await timed.rest()
    pod = timed.pod()
    assert pod is not None
    assert not is_ready(pod)
    await clock.advance(0.2)
    await timed.until_ready()


async def test_a_never_ready_pod_runs_and_is_never_ready(
    timed: KubeletBed, clock: FakeClock
) -> None:
    """Time does not help a pod that is never ready, and nothing more is written of it."""
    await timed.add_pod(image="example.dev/never-ready")
    await timed.until(lambda one: one.status.phase == "Running")
    await clock.advance(60)
    await timed.rest()
    pod = timed.pod()
    assert pod is not None
    assert not is_ready(pod)
    assert timed.wire.take() == ["PATCH pods/status"]


async def test_a_readiness_gate_holds_a_pod_back(bed: KubeletBed) -> None:
    """A pod with a gate is ready when the named condition is True, and no longer when it is not."""
    await bed.add_pod(readinessGates=[{"conditionType": "example.dev/fed"}])
    pod = await bed.until(lambda one: one.status.phase == "Running")
    assert pod.spec.readiness_gates == (ReadinessGate("example.dev/fed"),)
    assert (status_of(pod, "ContainersReady"), status_of(pod, "Ready")) == ("True", "False")
    found = pod.status.condition("Ready")
    assert found is not None
    assert (found.reason, found.message) == (
        "ReadinessGatesNotReady",
        'corresponding condition of pod readiness gate "example.dev/fed" does not exist.',
    )
    await change_status(bed, {"conditions": [{"type": "example.dev/fed", "status": "True"}]})
    await bed.until_ready()
    await change_status(bed, {"conditions": [{"type": "example.dev/fed", "status": "False"}]})
    pod = await bed.until(lambda one: not is_ready(one))
    found = pod.status.condition("Ready")
    assert found is not None
    assert found.message == (
        'the status of pod readiness gate "example.dev/fed" is not "True", but False'
    )


async def test_a_crashing_pod_is_started_again_with_growing_waits(
    timed: KubeletBed, clock: FakeClock
) -> None:
    """It ends after a second, waits one, runs again, ends, and waits two; people are told."""
    await timed.add_pod(command=["crash"])
    await timed.until(lambda one: one.status.phase == "Running")
    await clock.advance(1)
    pod = await timed.until(waits_to_restart)
    (container,) = pod.status.container_statuses
    assert container.state.waiting is not UNSET
    assert container.state.waiting.message == (
        f"back-off 1s restarting failed container=main pod=web_default({pod.uid})"
    )
    assert container.last_state.terminated is not UNSET
    assert container.last_state.terminated.exit_code == 1
    assert await printed(timed) == ["web", "0/1", "CrashLoopBackOff", "0"]
    assert not is_ready(pod)
    await clock.advance(1)
    await timed.until(lambda one: one.status.container_statuses[0].restart_count == 1)
    await clock.advance(1)
    pod = await timed.until(waits_to_restart)
    await clock.advance(1.9)
    await timed.rest()
    assert pod == timed.pod()
    await clock.advance(0.1)
    await timed.until(lambda one: one.status.container_statuses[0].restart_count == 2)
    text = f"Back-off restarting failed container main in pod web_default({pod.uid})"
    assert ("Warning", text) in [one[:2] for one in await timed.until_told("BackOff")]


def waits_to_restart(pod: WorkloadPod) -> bool:
    """Return whether the first container of a pod crashed and waits."""
    (container,) = pod.status.container_statuses
    return container.state.waiting is not UNSET


async def test_a_pod_that_may_not_restart_fails(timed: KubeletBed, clock: FakeClock) -> None:
    """With the policy Never a crash ends the pod for good, and its address is free again."""
    await timed.add_pod(image="crash", restartPolicy="Never")
    await timed.until(lambda one: one.status.phase == "Running")
    await clock.advance(1)
    pod = await timed.until(lambda one: one.status.phase == "Failed")
    await timed.rest()
    assert status_of(pod, "Ready") == "False"
    assert await printed(timed) == ["web", "0/1", "Error", "0"]
    assert timed.kubelets.place_of(WEB) is None


@pytest.mark.parametrize(
    ("hook", "grace", "want_s"),
    [
        pytest.param(None, None, 1, id="without a hook a pod serves one second more"),
        pytest.param({"sleep": {"seconds": 4}}, None, 5, id="a sleep is added"),
        pytest.param({"exec": {"command": ["sleep", "3"]}}, None, 4, id="as a command too"),
        pytest.param(
            {"exec": {"command": ["/bin/sh", "-c", "sleep 2"]}}, None, 3, id="and in a shell"
        ),
        pytest.param({"sleep": {"seconds": 30}}, 8, 8, id="but never beyond the grace"),
    ],
)
async def test_a_pod_serves_on_for_its_time(
    timed: KubeletBed, clock: FakeClock, hook: Any, grace: int | None, want_s: int
) -> None:
    """A pod that was asked to go stays ready until its time is over, and is then deleted."""
    await timed.add_pod(lifecycle={"preStop": hook} if hook else None)
    await timed.until_ready()
    await timed.rest()
    timed.wire.take()
    await timed.delete(grace=grace)
    await timed.until(lambda one: one.is_terminating)
    await timed.rest()
    await clock.advance(want_s - 0.1)
    await timed.rest()
    pod = timed.pod()
    assert pod is not None
    assert is_ready(pod)
    assert timed.wire.take() == []
    await clock.advance(0.1)
    await timed.until_gone()
    last, deletion = timed.wire.writes
    assert deletion.body is not None
    assert b'"gracePeriodSeconds":0' in deletion.body
    assert pod.uid.encode() in deletion.body
    assert last.body is not None
    assert b'"PodCompleted"' in last.body
    assert timed.wire.take() == ["PATCH pods/status", "DELETE pods"]
    assert await timed.until_told("Killing") == [("Normal", "Stopping container main", 1)]


async def test_a_pod_is_deleted_once_however_late_that_is_seen(
    timed: KubeletBed, clock: FakeClock
) -> None:
    """A kubelet that looks again while a finalizer keeps the pod deletes it no second time."""
    await timed.add_pod()
    await timed.until_ready()
    await timed.client.patch(
        LAB_PODS, "web", {"metadata": {"finalizers": ["example.dev/kept"]}}, namespace="default"
    )
    await timed.delete()
    await timed.until(lambda one: one.is_terminating)
    await timed.rest()
    timed.wire.take()
    await clock.advance(1)
    await timed.until(lambda _: timed.kubelets.place_of(WEB) is None)
    await timed.rest()
    assert timed.wire.take() == ["PATCH pods/status", "DELETE pods"]
    timed.kubelets.queue.add(WEB)
    await timed.rest()
    assert timed.wire.take() == []
    await timed.client.patch(
        LAB_PODS, "web", {"metadata": {"finalizers": None}}, namespace="default"
    )
    await timed.until_gone()
    await timed.rest()
    assert timed.wire.take() == []


async def test_a_refused_delete_is_tried_again(
    timed: KubeletBed, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conflict leaves the pod where it is; the report of its end has the kubelet try again."""
    await timed.add_pod()
    await timed.until_ready()
    await timed.delete()
    await timed.until(lambda one: one.is_terminating)
    await timed.rest()
    timed.wire.take()
    send = timed.wire.send
    refused: list[str] = []

    async def refuse_once(request: ApiRequest) -> Response:
        if request.method == "DELETE" and not refused:
            refused.append(request.path)
            raise Conflict(409, "Conflict", "try again")
        return await send(request)

    monkeypatch.setattr(timed.wire, "send", refuse_once)
    await clock.advance(1)
    await timed.until_gone()
    assert len(refused) == 1
    assert timed.wire.take() == ["PATCH pods/status", "DELETE pods"]


async def test_a_shorter_grace_counts_at_once(timed: KubeletBed, clock: FakeClock) -> None:
    """Somebody who asks again with less patience gets the pod sooner."""
    await timed.add_pod(lifecycle={"preStop": {"sleep": {"seconds": 20}}})
    await timed.until_ready()
    await timed.delete()
    await timed.until(lambda one: one.is_terminating)
    await timed.delete(grace=5)
    await timed.until(lambda one: one.metadata.deletion_grace_period_seconds == 5)
    await timed.rest()
    await clock.advance(5)
    await timed.until_gone()


async def test_a_pod_removed_by_force_is_gone_at_once(bed: KubeletBed) -> None:
    """A pod that is gone from the API is taken down without a word; its name may come again."""
    await bed.add_pod()
    before = await bed.until_ready()
    await bed.delete(grace=0)
    await bed.until_gone()
    await bed.add_pod()
    pod = await bed.until_ready()
    assert pod.uid != before.uid
    assert pod.status.pod_ip == "10.244.1.4"


async def test_a_name_that_comes_again_at_once_is_another_pod(bed: KubeletBed) -> None:
    """Kubelets that slept through the change find that the pod they have is gone."""
    await bed.add_pod()
    await bed.until_ready()
    bed.kubelets.fail("n1")
    await bed.delete(grace=0)
    await bed.add_pod()
    await bed.rest()
    bed.kubelets.recover("n1")
    pod = await bed.until_ready()
    assert pod.status.pod_ip == "10.244.1.4"
    assert pod.status.container_statuses[0].restart_count == 0


async def test_a_pod_asked_to_go_before_it_ran_is_removed(api: Served) -> None:
    """Kubelets that find a pod which was to end before they knew it just delete it."""
    async with kubelets_of(api, nodes=("other",)) as bed:
        await bed.add_pod()
        await bed.delete()
    async with kubelets_of(api) as bed:
        await bed.until_gone()
        assert bed.wire.take() == ["DELETE pods"]


async def test_new_kubelets_start_running_pods_anew(api: Served) -> None:
    """Pods that say Running get new addresses and count a restart; nothing of the old stays."""
    async with kubelets_of(api) as bed:
        await bed.add_pod("first")
        await bed.until_ready("first")
        await bed.add_pod()
        before = await bed.until_ready()
        await bed.delete("first", grace=0)
        await bed.until_gone("first")
    assert before.status.pod_ip == "10.244.1.4"
    async with kubelets_of(api) as bed:
        pod = await bed.until(lambda one: one.status.pod_ip == "10.244.1.3")
        await bed.rest()
        assert [one.ip for one in pod.status.pod_ips] == ["10.244.1.3", "fd00:244:1::3"]
        assert pod.status.start_time == before.status.start_time
        (container,) = pod.status.container_statuses
        assert container.restart_count == 1
        assert container.last_state.terminated is not UNSET
        assert container.last_state.terminated.exit_code == 255
        assert is_ready(pod)
        assert bed.wire.take() == ["PATCH pods/status"]


async def test_a_pod_on_the_host_network_has_the_nodes_addresses(bed: KubeletBed) -> None:
    """Its addresses are the node's, and no pod address is taken for it."""
    await bed.add_pod("host", "n3", hostNetwork=True)
    pod = await bed.until_ready("host")
    assert pod.status.pod_ip == pod.status.host_ip == "172.18.0.3"
    assert [one.ip for one in pod.status.pod_ips] == ["172.18.0.3", "fd00:172::3"]
    await bed.add_pod("web", "n3")
    assert (await bed.until_ready()).status.pod_ip == "10.244.3.3"
    await bed.delete("host", grace=0)
    await bed.until_gone("host")


async def test_a_failed_kubelet_is_silent_until_it_recovers(bed: KubeletBed) -> None:
    """Of the pods of a failed node nothing is written; then what others wrote is put right."""
    await bed.add_pod()
    await bed.until_ready()
    await bed.rest()
    bed.wire.take()
    bed.kubelets.fail("n1")
    await bed.add_pod("new", "n1")
    await change_status(bed, {"conditions": [{"type": "Ready", "status": "False"}]})
    await bed.until(lambda one: not is_ready(one))
    await bed.add_pod("other", "n2")
    await bed.until_ready("other")
    await bed.rest()
    assert bed.wire.take() == ["PATCH pods/status"]
    bed.kubelets.recover("n1")
    await bed.until_ready()
    await bed.until_ready("new")


async def test_a_pod_deleted_on_a_failed_node_ends_when_it_recovers(bed: KubeletBed) -> None:
    """A pod that is to go waits for its kubelet."""
    await bed.add_pod()
    await bed.until_ready()
    bed.kubelets.fail("n1")
    await bed.delete()
    await bed.until(lambda one: one.is_terminating)
    await bed.rest()
    bed.kubelets.recover("n1")
    await bed.until_gone()


class NotedNetwork(AddressesOnly):
    """Knows who has a place, and where."""

    def __init__(self) -> None:
        super().__init__(("n1", "n2", "n3"))
        self.placed: dict[str, str] = {}

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Note whom it gives a place."""
        self.placed[pod] = node
        return await super().attach(node, pod)

    async def detach(self, pod: str) -> None:
        """Note whose place it takes."""
        self.placed.pop(pod, None)
        await super().detach(pod)


async def test_a_name_lost_with_its_node_lives_on_elsewhere(api: Served) -> None:
    """A pod removed by force from a failed node holds nobody up, and is buried on recovery."""
    network = NotedNetwork()
    async with kubelets_of(api, network) as bed:
        await bed.add_pod()
        lost = await bed.until_ready()
        bed.kubelets.fail("n1")
        await bed.delete(grace=0)
        await bed.add_pod(node="n2")
        pod = await bed.until(lambda one: one.spec.node_name == "n2" and is_ready(one))
        await bed.rest()
        assert network.placed == {lost.uid: "n1", pod.uid: "n2"}
        bed.kubelets.recover("n1")
        await bed.rest()
        assert network.placed == {pod.uid: "n2"}
        assert bed.pod() == pod


async def test_a_name_lost_with_its_node_comes_back_there(bed: KubeletBed) -> None:
    """A pod of the same name on the failed node waits for the recovery and then has a place."""
    await bed.add_pod()
    await bed.until_ready()
    bed.kubelets.fail("n1")
    await bed.delete(grace=0)
    await bed.rest()
    await bed.add_pod()
    await bed.rest()
    assert not is_ready(await bed.until(lambda _: True))
    bed.kubelets.recover("n1")
    assert (await bed.until_ready()).status.pod_ip == "10.244.1.4"


async def test_zones_follow_the_labels_of_nodes(bed: KubeletBed) -> None:
    """The zone of a node is what its label says now; a node that is not there has none."""
    await bed.cluster.add_node("n1", "zone-a")
    await bed.cluster.label_node("n1", "zone-b")
    await bed.until_zone("n1", "zone-b")
    assert bed.kubelets.zone_of("n2") == ""


class FullNetwork(AddressesOnly):
    """Refuses pods on one node until told otherwise."""

    full = "n1"

    async def attach(self, node: str, pod: str) -> PodPlace:
        """Refuse, or give a place."""
        if node == self.full:
            raise NetworkError(f"node {node} takes no more pods")
        return await super().attach(node, pod)


async def test_a_refused_pod_waits_and_holds_nobody_up(api: Served, clock: FakeClock) -> None:
    """A pod without a place is told of, shown as being created, and tried again later."""
    network = FullNetwork(("n1", "n2", "n3"))
    async with kubelets_of(api, network, clock=clock) as bed:
        await bed.add_pod()
        await bed.add_pod("other", "n2")
        await bed.until_ready("other")
        pod = await bed.until(lambda one: bool(one.status.container_statuses))
        assert (pod.status.phase, pod.status.pod_ip) == ("Pending", "")
        assert await bed.until_told("FailedCreatePodSandBox") == [
            ("Warning", "Failed to create pod sandbox: node n1 takes no more pods", 1)
        ]
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        path = "/api/v1/namespaces/default/pods?fieldSelector=metadata.name%3Dweb"
        table = (await bed.cluster.api.call("GET", path, accept=accept)).json
        assert row(table) == ["web", "0/1", "ContainerCreating", "0"]
        network.full = ""
        await bed.rest()
        await clock.advance(0.5)
        pod = await bed.until_ready()
        assert pod.status.container_statuses[0].restart_count == 0


async def test_a_pod_that_never_got_a_place_is_deleted_when_asked(
    api: Served, clock: FakeClock
) -> None:
    """It has nothing to end, so it goes at once."""
    async with kubelets_of(api, FullNetwork(("n1",)), clock=clock) as bed:
        await bed.add_pod()
        await bed.until(lambda one: bool(one.status.container_statuses))
        await bed.delete()
        await bed.until_gone()


async def test_lost_writes_are_made_again(bed: KubeletBed) -> None:
    """Kubelets whose writes fail come back until the server has them."""
    bed.wire.failing = 0.5
    for number in range(4):
        await bed.add_pod(f"web-{number}", "n1")
    for number in range(4):
        await bed.until_ready(f"web-{number}")
    for number in range(4):
        await bed.delete(f"web-{number}")
    for number in range(4):
        await bed.until_gone(f"web-{number}")


async def test_init_containers_are_done_and_sidecars_run(bed: KubeletBed) -> None:
    """Init containers count as completed, and those that stay count among the ready ones."""
    await bed.add_pod(
        initContainers=[
            {"name": "once", "image": "init"},
            {"name": "side", "image": "mesh", "restartPolicy": "Always"},
        ]
    )
    pod = await bed.until_ready()
    await bed.rest()
    once, side = pod.status.init_container_statuses
    assert once.state.terminated is not UNSET
    assert (once.state.terminated.exit_code, once.state.terminated.reason) == (0, "Completed")
    assert side.state.running is not UNSET
    assert await printed(bed) == ["web", "2/2", "Running", "0"]
    assert bed.wire.take() == ["PATCH pods/status"]


async def test_a_hundred_pods_at_once_take_one_write_each(bed: KubeletBed) -> None:
    """A burst is ready with a write a pod, and all addresses differ."""
    names = [f"web-{number}" for number in range(100)]
    await asyncio.gather(
        *(bed.add_pod(name, f"n{number % 3 + 1}") for number, name in enumerate(names))
    )
    pods = [await bed.until_ready(name) for name in names]
    await bed.rest()
    assert len({pod.status.pod_ip for pod in pods}) == 100
    assert bed.wire.take() == ["PATCH pods/status"] * 100
    page = await bed.client.list_all(EVENTS, namespace="default")
    assert {one.source.component for one in page.items} <= {"kubelet"}


async def test_a_pod_without_its_image_is_pending(bed: KubeletBed) -> None:
    """It says why in its status and by events, and goes away like any other."""
    await bed.add_pod(image="nginx:1.161")

    def waits_with(*reasons: str) -> Callable[[WorkloadPod], bool]:
        def is_so(pod: WorkloadPod) -> bool:
            states = [one.state.waiting for one in pod.status.container_statuses]
            return any(one is not UNSET and one.reason in reasons for one in states)

        return is_so

    pod = await bed.until(waits_with("ErrImagePull", "ImagePullBackOff"))
    assert pod.status.phase == "Pending"
    assert (status_of(pod, "Ready"), status_of(pod, "Initialized")) == ("False", "True")
    assert pod.status.pod_ip
    events = await bed.until_told("Failed", events=2)
    assert ("Warning", "Error: ErrImagePull") in [(kind, text) for kind, text, _ in events]
    await bed.until(waits_with("ImagePullBackOff"))
    ((kind, text, _),) = await bed.until_told("BackOff")
    assert (kind, text) == ("Normal", 'Back-off pulling image "nginx:1.161"')
    await bed.delete()
    await bed.until_gone()
    await bed.add_pod("invalid", image="Web:1")
    pod = await bed.until(waits_with("InvalidImageName"), "invalid")
    assert pod.status.phase == "Pending"
    assert (await bed.until_told("InspectFailed"))[0][0] == "Warning"


async def test_a_full_node_rejects_pods_that_name_it(bed: KubeletBed) -> None:
    """A pod beyond the room of its node fails with a kubelet's words, and gets no place."""
    status = {"status": {"allocatable": {"pods": "1"}}}
    await bed.cluster.add_node("n1", "zone-a")
    await bed.client.patch(NODES, "n1", status, subresource="status")
    await bed.until_zone("n1", "zone-a")
    await bed.add_pod("first")
    await bed.until_ready("first")
    await bed.add_pod("second")
    pod = await bed.until(lambda pod: pod.has_ended, "second")
    assert pod.status.phase == "Failed"
    assert bed.kubelets.place_of(pod.key) is None
    told = await bed.until_told("OutOfpods")
    assert told[0][1].endswith("requested: 1, used: 1, capacity: 1")
    await bed.delete("first")
    await bed.until_gone("first")
    await bed.add_pod("third")
    await bed.until_ready("third")
