"""Which pods leave a drained node."""

from __future__ import annotations

import msgspec

from keepclose.lab.faults.node_states import sort_pods
from keepclose.model.meta import OwnerReference
from keepclose.model.workloads.pods import WorkloadPod
from support.lab.labobjects import a_pod


def daemon(name: str) -> WorkloadPod:
    """Return a pod of a DaemonSet on n1."""
    pod = a_pod(name, "n1")
    owner = OwnerReference(kind="DaemonSet", name="log", uid="log", controller=True)
    meta = msgspec.structs.replace(pod.metadata, owner_references=(owner,))
    return msgspec.structs.replace(pod, metadata=meta)


def test_pods_by_what_a_drain_does() -> None:
    """Daemons and mirrors stay, what nobody replaces is set apart, what ended may go."""
    pods = [
        a_pod("b-web", "n1", owner="web"),
        a_pod("a-web", "n1", owner="web"),
        a_pod("elsewhere", "n2", owner="web"),
        a_pod("waiting", owner="web"),
        a_pod("alone", "n1"),
        a_pod("alone-but-done", "n1", phase="Succeeded"),
        a_pod("alone-but-leaving", "n1", terminating=True),
        a_pod("mirror", "n1", annotations={"kubernetes.io/config.mirror": "x"}),
        daemon("log"),
    ]
    going, staying, unmanaged = sort_pods(pods, "n1")
    assert [pod.metadata.name for pod in going] == [
        "a-web",
        "alone-but-done",
        "alone-but-leaving",
        "b-web",
    ]
    assert [pod.metadata.name for pod in staying] == ["log", "mirror"]
    assert [pod.metadata.name for pod in unmanaged] == ["alone"]


def test_an_empty_node() -> None:
    """Nothing leaves a node without pods."""
    assert sort_pods([a_pod("web", "n2", owner="web")], "n1") == ([], [], [])
