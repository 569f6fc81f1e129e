"""Statuses of pods as pure values."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from keepclose.lab.kubelet.container_runtime import ContainerInstance, Moment
from keepclose.lab.kubelet.pod_networks import PodPlace
from keepclose.lab.kubelet.pod_status import report_status, status_patch
from keepclose.model.workload import PodIP
from keepclose.model.workloads.pods import PodCondition, WorkloadPod, WorkloadPodStatus

PLACE = PodPlace(("10.244.1.3", "fd00:244:1::3"), None, ("172.18.0.1", "fd00:172::1"))
STAMP = "2023-11-14T22:13:20Z"
OLD = "2020-01-01T00:00:00Z"


def at(seconds: float = 0.0) -> Moment:
    """Return a moment after the start."""
    return Moment(100.0 + seconds, 1_700_000_000.0 + seconds)


def a_pod(*conditions: dict[str, str], **spec: Any) -> WorkloadPod:
    """Return a pod of one container, with conditions that are stored."""
    raw = {
        "metadata": {"name": "web", "namespace": "default", "uid": "u1"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "web"}], **spec},
        "status": {"phase": "Pending", "conditions": conditions},
    }
    return msgspec.convert(raw, WorkloadPod)


def instances_of(pod: WorkloadPod) -> list[ContainerInstance]:
    """Return the containers of a pod, started."""
    lives = [
        ContainerInstance(one, pod="web", uid="u1", before=None, now=at())
        for one in pod.spec.lasting
    ]
    for one in lives:
        one.start(at())
    return lives


def conditions_of(status: WorkloadPodStatus) -> dict[str, tuple[str, str]]:
    """Return status and reason of each condition."""
    return {one.type: (one.status, one.reason) for one in status.conditions}


def test_a_running_pod_says_all() -> None:
    """Addresses of both families, of pod and node, the time of the start, and five conditions."""
    pod = a_pod()
    status = report_status(pod, place=PLACE, containers=instances_of(pod), now=at())
    assert (status.phase, status.start_time) == ("Running", STAMP)
    assert (status.pod_ip, status.host_ip) == ("10.244.1.3", "172.18.0.1")
    assert status.pod_ips == (PodIP("10.244.1.3"), PodIP("fd00:244:1::3"))
    assert set(conditions_of(status).values()) == {("True", "")}
    assert len(status.conditions) == 5


def test_a_status_says_which_generation_it_is_about() -> None:
    """The status and the kubelet's conditions carry the generation; those of others do not."""
    pod = a_pod({"type": "example.com/warm", "status": "True"})
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, generation=3))
    status = report_status(pod, place=PLACE, containers=instances_of(pod), now=at())
    assert status.observed_generation == 3
    generations = {one.type: one.observed_generation for one in status.conditions}
    assert generations.pop("example.com/warm") == 0
    assert set(generations.values()) == {3}
    patch = status_patch(pod.status, status)
    assert patch is not None
    assert patch["observedGeneration"] == 3


def test_a_pod_without_a_place_waits() -> None:
    """It is pending, its containers are being created, and its network is not ready."""
    pod = a_pod()
    lives = [ContainerInstance(pod.spec.containers[0], pod="web", uid="u1", before=None, now=at())]
    status = report_status(pod, place=None, containers=lives, now=at())
    assert (status.phase, status.pod_ips) == ("Pending", ())
    assert conditions_of(status) == {
        "PodReadyToStartContainers": ("False", ""),
        "Initialized": ("True", ""),
        "Ready": ("False", "ContainersNotReady"),
        "ContainersReady": ("False", "ContainersNotReady"),
        "PodScheduled": ("True", ""),
    }


def test_a_pod_without_a_place_is_not_initialized() -> None:
    """Init containers cannot be done before there is a place for them."""
    pod = a_pod(initContainers=[{"name": "one"}, {"name": "two"}])
    found = report_status(pod, place=None, containers=[], now=at()).condition("Initialized")
    assert found is not None
    assert (found.status, found.reason, found.message) == (
        "False",
        "ContainersNotInitialized",
        "containers with incomplete status: [one two]",
    )


@pytest.mark.parametrize(
    ("image", "want_phase", "want_reason", "want_initialized"),
    [
        pytest.param("web", "Succeeded", "PodCompleted", ("True", "PodCompleted"), id="well"),
        pytest.param("crash", "Failed", "PodFailed", ("True", ""), id="badly"),
    ],
)
def test_an_ended_pod_says_how(
    image: str, want_phase: str, want_reason: str, want_initialized: tuple[str, str]
) -> None:
    """The codes of its containers decide the phase, and nothing is ready."""
    pod = a_pod(containers=[{"name": "main", "image": image}])
    lives = instances_of(pod)
    for one in lives:
        if one.must_crash(at(1)):
            one.crash(at(1), again=False)
        one.stop(at(1))
    status = report_status(pod, place=PLACE, containers=lives, now=at(1))
    assert status.phase == want_phase
    assert conditions_of(status) == {
        "PodReadyToStartContainers": ("False", ""),
        "Initialized": want_initialized,
        "Ready": ("False", want_reason),
        "ContainersReady": ("False", want_reason),
        "PodScheduled": ("True", ""),
    }


def test_times_change_with_the_status_alone() -> None:
    """A condition that stays keeps its time; one that turns gets a new one."""
    pod = a_pod(
        {"type": "Ready", "status": "False", "lastTransitionTime": OLD},
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": OLD},
        {"type": "example.dev/own", "status": "True", "lastTransitionTime": OLD},
    )
    status = report_status(pod, place=PLACE, containers=instances_of(pod), now=at())
    times = {one.type: one.last_transition_time for one in status.conditions}
    assert times["Ready"] == STAMP
    assert times["ContainersReady"] == times["example.dev/own"] == OLD


def test_a_patch_holds_what_changed_alone() -> None:
    """Conditions that stay are left out, former reasons taken away, former addresses replaced."""
    kept = PodCondition(type="Initialized", status="True", last_transition_time=OLD)
    before = PodCondition(type="Ready", status="False", last_transition_time=OLD, reason="so")
    after = PodCondition(type="Ready", status="True", last_transition_time=STAMP)
    stored = WorkloadPodStatus(
        phase="Running", pod_ips=(PodIP("10.0.0.1"),), conditions=(kept, before)
    )
    wanted = WorkloadPodStatus(
        phase="Running", pod_ips=(PodIP("10.0.0.2"),), conditions=(kept, after)
    )
    assert status_patch(stored, wanted) == {
        "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "lastTransitionTime": STAMP,
                "reason": None,
                "message": None,
            }
        ],
    }
    assert status_patch(wanted, wanted) is None


def test_two_gates_are_both_told() -> None:
    """What each gate lacks stands in the message, in the order of the gates."""
    gates = [{"conditionType": "a"}, {"conditionType": "b"}]
    pod = a_pod({"type": "b", "status": "Unknown"}, readinessGates=gates)
    status = report_status(pod, place=PLACE, containers=instances_of(pod), now=at())
    found = status.condition("Ready")
    assert found is not None
    assert found.message == (
        'corresponding condition of pod readiness gate "a" does not exist., '
        'the status of pod readiness gate "b" is not "True", but Unknown'
    )
