"""Which workloads a Service has at the start: those of the input, else assumed ones."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from keepclose.advise.replaying.start_workloads import FoundWorkloads, find_workloads
from keepclose.model.meta import OwnerReference
from keepclose.model.service.types import Service
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.types import Deployment, ReplicaSet
from keepclose.simulate.cluster_objects import web_service
from support.lab.labobjects import a_deployment, a_pod, a_replica_set
from support.replays import THREE, cluster_of, replay_of, sizes_of

SERVICE: Service = web_service()


def owned(name: str, kind: str, owner: str) -> WorkloadPod:
    """Return a ready pod with an owner of any kind, which manifests name without a uid."""
    pod = a_pod(name, "n1", ready=True, owner=owner)
    (reference,) = pod.metadata.owner_references
    return replace(
        pod,
        metadata=replace(pod.metadata, owner_references=(replace(reference, kind=kind, uid=""),)),
    )


def names(found: FoundWorkloads) -> dict[str, tuple[int, list[str]]]:
    """Return replicas and pods by Deployment."""
    return {
        workload.deployment.metadata.name: (
            workload.deployment.spec.replicas,
            sorted(
                pod.metadata.name
                for pod in found.pods
                if pod.controller is not None
                and pod.controller.uid in {each.metadata.uid for each in workload.replica_sets}
            ),
        )
        for workload in found.workloads
    }


def test_pods_belong_to_the_deployment_of_the_input() -> None:
    """By their ReplicaSet, by uid or by name; a pod without an owner is adopted."""
    replica_set = a_replica_set("web-1", 2)
    reference = OwnerReference(kind="Deployment", name="web", uid="uid-web", controller=True)
    meta = replace(replica_set.metadata, owner_references=(reference,))
    found = find_workloads(
        SERVICE,
        [
            a_pod("by-uid", "n1", ready=True, owner="web-1"),
            owned("by-name", "ReplicaSet", "web-1"),
            a_pod("orphan", "n2", ready=True),
        ],
        deployments=[a_deployment(3)],
        replica_sets=[replace(replica_set, metadata=meta)],
    )
    assert names(found) == {"web": (3, ["by-name", "by-uid", "orphan"])}
    assert found.notes == ()


def test_a_deployment_without_pods_counts() -> None:
    """It may be scaled up in the replay."""
    found = find_workloads(SERVICE, [], deployments=[a_deployment(0)])
    assert names(found) == {"web": (0, [])}


def test_deployments_of_others_do_not_count() -> None:
    """Those in other namespaces, and those whose pods the Service does not select."""
    far = a_deployment()
    far = replace(far, metadata=replace(far.metadata, namespace="far"))
    other = a_deployment()
    template = {**other.spec.template, "metadata": {"labels": {"app": "other"}}}
    other = replace(other, spec=replace(other.spec, template=template))
    assert find_workloads(SERVICE, [], deployments=[far, other]).workloads == ()


def test_a_deployment_is_assumed_for_each_owner() -> None:
    """A ReplicaSet stands for its Deployment; pods of DaemonSets stay as they are."""
    found = find_workloads(
        SERVICE,
        [
            owned("a", "ReplicaSet", "blue-6d5f"),
            owned("b", "ReplicaSet", "blue-7c8d"),
            owned("c", "StatefulSet", "db"),
            owned("d", "DaemonSet", "agent"),
            a_pod("e", "n1", ready=True),
        ],
    )
    assert names(found) == {"blue": (2, ["a", "b"]), "db": (1, ["c"]), "web": (1, ["e"])}
    replayed = "replayed as a Deployment with surge and unavailability of 25 %"
    assert found.notes == (
        f"pods of Deployment blue are {replayed}",
        f"pods of StatefulSet db are {replayed}",
        f"1 pod without an owner is {replayed}",
        "1 pod of DaemonSets stays as it is",
    )


@pytest.mark.parametrize(
    "template",
    [
        pytest.param({"metadata": [1]}, id="metadata"),
        pytest.param({"metadata": {"labels": ["a"]}}, id="labels"),
        pytest.param({"spec": {"containers": 3}}, id="containers"),
        pytest.param({"spec": "x"}, id="spec"),
    ],
)
def test_templates_that_cannot_be_read(template: dict[str, Any]) -> None:
    """A Deployment with such a template is named, a ReplicaSet with one is left out."""
    deployment: Deployment = a_deployment()
    broken = replace(deployment, spec=replace(deployment.spec, template=template))
    found = find_workloads(SERVICE, [], deployments=[broken])
    assert found.workloads == ()
    assert found.notes == ("the template of Deployment web cannot be read",)
    replica_set: ReplicaSet = a_replica_set("web-1", 1)
    broken_set = replace(replica_set, spec=replace(replica_set.spec, template=template))
    found = find_workloads(SERVICE, [], deployments=[deployment], replica_sets=[broken_set])
    assert [workload.replica_sets for workload in found.workloads] == [()]


def test_a_deployment_that_lacks_pods_gets_them_at_the_start() -> None:
    """What its controllers would do in any case is no event of the scenario."""
    objects = cluster_of(THREE, ["n1"])
    deployment = a_deployment(3)
    objects = type(objects)(objects.inventory, deployments=(deployment,))
    replay = replay_of(objects, events=[{"at": 60, "scale": {"replicas": 3}}])
    assert list(sizes_of(replay.runs[0]).items())[-1] == (10.0, 3)
