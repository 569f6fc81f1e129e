"""The Deployments of a Service at the start of a replay, and the pods that each of them owns.

A Deployment of the input counts if the Service selects the pods of its template. Its pods are those
of its ReplicaSets, by uid or by name, because manifests written by hand have no uids; pods that its
selector matches and that nothing owns are adopted. For other pods a Deployment is assumed, one for
each owner. All uids are there afterwards, so that pods can be counted by their owners.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from keepclose.model.decoding import Rejected, convert_as
from keepclose.model.json_values import JsonObject
from keepclose.model.meta import ObjectMeta, OwnerReference
from keepclose.model.selectors import matches
from keepclose.model.service.types import Service
from keepclose.model.workloads.constraints import NodeLabelSelector
from keepclose.model.workloads.pods import WorkloadPod
from keepclose.model.workloads.replica_pods import read_pod, read_spec
from keepclose.model.workloads.rolling_update import (
    TEMPLATE_HASH_LABEL,
    find_current,
    new_replica_set,
)
from keepclose.model.workloads.types import (
    Deployment,
    DeploymentSpec,
    ReplicaSet,
    workload_owner_of,
)

_DAEMON_SET: Final = "DaemonSet"
_REPLICA_SET: Final = "ReplicaSet"
_LONG_AGO: Final = "1970-01-01T00:00:00Z"
_NOT_IN_TEMPLATES: Final = ("nodeName", "hostname")


class StartWorkload(msgspec.Struct, frozen=True):
    """A Deployment with its ReplicaSets."""

    deployment: Deployment
    replica_sets: tuple[ReplicaSet, ...]


class FoundWorkloads(msgspec.Struct, frozen=True):
    """The workloads of a Service, and its pods with owners among them."""

    workloads: tuple[StartWorkload, ...]
    pods: tuple[WorkloadPod, ...]
    notes: tuple[str, ...] = ()


def find_workloads(
    service: Service,
    pods: Iterable[WorkloadPod],
    *,
    deployments: Sequence[Deployment] = (),
    replica_sets: Sequence[ReplicaSet] = (),
) -> FoundWorkloads:
    """Return the workloads of the pods that a Service selects; no pods may have some too."""
    namespace = service.metadata.namespace
    found: list[StartWorkload] = []
    owned: list[WorkloadPod] = []
    notes: list[str] = []
    left = list(pods)
    sets = [
        each
        for each in replica_sets
        if each.metadata.namespace == namespace and read_template(each.spec.template) is not None
    ]
    for deployment in deployments:
        if deployment.metadata.namespace != namespace:
            continue
        template = read_template(deployment.spec.template)
        if template is None:
            notes.append(f"the template of Deployment {deployment.metadata.name} cannot be read")
        elif matches(service.spec.selector or {}, template.metadata.labels):
            workload, its_pods, left = _take(deployment, sets, left)
            found.append(workload)
            owned += its_pods
    groups: dict[tuple[str, str], list[WorkloadPod]] = {}
    for pod in left:
        if is_of_daemon_set(pod):
            owned.append(pod)
        elif not pod.has_ended:
            groups.setdefault(_assumed_name(service, pod.controller), []).append(pod)
    for (kind, name), group in groups.items():
        workload, its_pods = _assume(service, name, group)
        found.append(workload)
        owned += its_pods
        whose = f"{_count(len(group))} without an owner"
        if kind:
            whose = f"pods of {kind} {name}"
        verb = "is" if len(group) == 1 and not kind else "are"
        notes.append(
            f"{whose} {verb} replayed as a Deployment with surge and unavailability of 25 %"
        )
    daemons = sum(is_of_daemon_set(pod) for pod in owned)
    if daemons:
        stay = "stays as it is" if daemons == 1 else "stay as they are"
        notes.append(f"{_count(daemons)} of DaemonSets {stay}")
    return FoundWorkloads(tuple(found), tuple(owned), tuple(notes))


def is_of_daemon_set(pod: WorkloadPod) -> bool:
    """Return whether a DaemonSet owns the pod."""
    owner = pod.controller
    return owner is not None and owner.kind == _DAEMON_SET


def read_template(template: JsonObject) -> WorkloadPod | None:
    """Return a template as a pod, None if pods of it could not be decoded."""
    meta = template.get("metadata") or {}
    if not isinstance(meta, dict):
        return None
    return read_pod({**template, "metadata": {**meta, "name": "template"}})


def identify_replica_set(body: JsonObject, *, created: str) -> ReplicaSet | None:
    """Return a ReplicaSet as an API server would create it; None if its template is invalid."""
    meta = {
        **body["metadata"],
        "uid": f"uid-{body['metadata']['name']}",
        "creationTimestamp": created,
        "generation": 1,
    }
    decoded = convert_as(ReplicaSet, {**body, "metadata": meta})
    return None if isinstance(decoded, Rejected) else decoded


def _take(
    deployment: Deployment, replica_sets: Sequence[ReplicaSet], pods: Sequence[WorkloadPod]
) -> tuple[StartWorkload, list[WorkloadPod], list[WorkloadPod]]:
    """Return a Deployment with its ReplicaSets, its pods, and the pods of others."""
    deployment = replace(
        deployment,
        metadata=_identified(deployment.metadata),
        # NB: a deadline would only change conditions, and cost a step each time.
        spec=replace(deployment.spec, progress_deadline_seconds=None, paused=False),
    )
    own_sets = [
        replace(each, metadata=_identified(each.metadata))
        for each in replica_sets
        if _owns(deployment.metadata, workload_owner_of(each.metadata))
    ]
    own: list[WorkloadPod] = []
    orphans: list[WorkloadPod] = []
    others: list[WorkloadPod] = []
    selector = deployment.spec.selector
    for pod in pods:
        owner = pod.controller
        match = next((each for each in own_sets if _owns(each.metadata, owner)), None)
        if match is not None:
            own.append(_owned_by_set(pod, match))
        elif (
            (owner is None or (owner.kind == _REPLICA_SET and not replica_sets))
            and selector is not None
            and selector.matches(pod.metadata.labels)
        ):
            orphans.append(pod)
        else:
            others.append(pod)
    active = [pod for pod in orphans if pod.is_active]
    current = find_current(deployment, own_sets)
    if active and current is None:
        current = _current_set(deployment, len(active))
        own_sets.append(current)
    if current is not None:
        own += [_owned_by_set(pod, current) for pod in active]
    return StartWorkload(deployment, tuple(own_sets)), own, others


def _assume(
    service: Service, name: str, pods: Sequence[WorkloadPod]
) -> tuple[StartWorkload, list[WorkloadPod]]:
    """Return a Deployment that could have made the pods."""
    active = [pod for pod in pods if pod.is_active]
    like = (active or list(pods))[0]
    labels = {key: text for key, text in like.metadata.labels.items() if key != TEMPLATE_HASH_LABEL}
    spec: dict[str, Any] = msgspec.to_builtins(like.spec)
    for field in _NOT_IN_TEMPLATES:
        spec.pop(field, None)
    meta = ObjectMeta(name=name, namespace=service.metadata.namespace)
    deployment = Deployment(
        metadata=_identified(meta),
        spec=DeploymentSpec(
            replicas=len(active),
            selector=NodeLabelSelector(match_labels=labels),
            template={"metadata": {"labels": labels}, "spec": spec},
        ),
    )
    replica_set = _current_set(deployment, len(active))
    owned = [_owned_by_set(pod, replica_set) for pod in pods]
    return StartWorkload(deployment, (replica_set,)), owned


def _current_set(deployment: Deployment, replicas: int) -> ReplicaSet:
    body = new_replica_set(deployment, replicas=replicas, revision=1)
    replica_set = identify_replica_set(body, created=_LONG_AGO)
    assert replica_set is not None  # noqa: S101 - made from a Deployment that was decoded
    return replica_set


def _identified(meta: ObjectMeta) -> ObjectMeta:
    return replace(meta, uid=meta.uid or f"uid-{meta.name}", generation=max(1, meta.generation))


def _owns(meta: ObjectMeta, owner: OwnerReference | None) -> bool:
    """Return whether an owner reference names the object, by its uid if it has one."""
    if owner is None:
        return False
    return owner.uid == meta.uid if owner.uid else owner.name == meta.name


def _owned_by_set(pod: WorkloadPod, replica_set: ReplicaSet) -> WorkloadPod:
    meta = replica_set.metadata
    owner = OwnerReference(
        api_version="apps/v1", kind=_REPLICA_SET, name=meta.name, uid=meta.uid, controller=True
    )
    # The labels that Services select by stay; the hash tells the ReplicaSets apart.
    spec = read_spec(replica_set.spec.template.get("spec") or {})
    if spec.containers:
        # Pods that were read for routing lack what scheduling reads; their template has it.
        own = pod.spec
        spec = replace(
            spec, node_name=own.node_name, hostname=own.hostname, subdomain=own.subdomain
        )
        pod = replace(pod, spec=spec)
    hashed = meta.labels.get(TEMPLATE_HASH_LABEL)
    labels = {**pod.metadata.labels, **({TEMPLATE_HASH_LABEL: hashed} if hashed else {})}
    return replace(pod, metadata=replace(pod.metadata, owner_references=(owner,), labels=labels))


def _assumed_name(service: Service, owner: OwnerReference | None) -> tuple[str, str]:
    """Return kind and name of what owns a pod; a ReplicaSet stands for its Deployment."""
    if owner is None:
        return "", service.metadata.name
    if owner.kind == _REPLICA_SET:
        name = owner.name.rpartition("-")[0] or owner.name
        return "Deployment", name
    return owner.kind, owner.name


def _count(pods: int) -> str:
    return "1 pod" if pods == 1 else f"{pods:,} pods"
