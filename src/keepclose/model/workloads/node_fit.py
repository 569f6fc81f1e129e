"""Whether a pod may run on a node, and if not, the reason in the words of kube-scheduler.

The checks are in the order of kube-scheduler, and the first that fails gives the reason. A node
that does not report Ready counts as tainted, because the lab has no node lifecycle controller that
would taint it.

Resources count as in kube-scheduler: the requests of a pod's containers, or of its init containers
if those need more, plus its overhead, beside the requests of all pods on the node that have not
ended. Actual usage does not count, and limits only where a container requests nothing. A node has
none of a resource that it does not list, but its number of pods is then unlimited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from keepclose.model.quantities import millis
from keepclose.model.workload import Node, Taint
from keepclose.model.workloads.constraints import NO_EXECUTE, NO_SCHEDULE, PREFER_NO_SCHEDULE
from keepclose.model.workloads.pods import (
    ALWAYS,
    ContainerSpec,
    HostPort,
    WorkloadPod,
    WorkloadPodSpec,
)

TOO_MANY_PODS: Final = "Too many pods"
_PODS: Final = "pods"
Amounts = Mapping[str, int]
"""By resource, in thousandths."""
NODE_UNSCHEDULABLE: Final = "node(s) were unschedulable"
NODE_NAME: Final = "node(s) didn't match the requested node name"
TAINTED: Final = "node(s) had untolerated taint(s)"
NODE_AFFINITY: Final = "node(s) didn't match Pod's node affinity/selector"
PORTS_TAKEN: Final = "node(s) didn't have free ports for the requested pod ports"
_CORDONED: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
_NOT_READY: Final = Taint(key="node.kubernetes.io/not-ready", effect=NO_SCHEDULE)
_REPELLING_EFFECTS: Final = (NO_SCHEDULE, NO_EXECUTE)
_EVERY_ADDRESS: Final = ("", "0.0.0.0", "::")  # noqa: S104 - nothing is bound here


def pod_requests(spec: WorkloadPodSpec) -> dict[str, int]:
    """Return the requests of a pod by resource, without zeros."""
    running: Counter[str] = Counter()
    for container in spec.containers:
        running.update(_requests(container))
    # Init containers run in sequence, beside the sidecars that were started before them.
    sidecars: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for container in spec.init_containers:
        own = Counter(_requests(container))
        if container.restart_policy == ALWAYS:
            sidecars.update(own)
            own = Counter(sidecars)
        else:
            own.update(sidecars)
        most |= own
    running.update(sidecars)
    needed = running | most
    needed.update(_amounts(spec.overhead))
    return {name: amount for name, amount in needed.items() if amount > 0}


def resource_refusals(requests: Amounts, node: Node, *, used: Amounts, pods: int) -> list[str]:
    """Return why a node has too few resources for a pod, in kube-scheduler's words; [] if it fits.

    `used` are the requests of the pods on the node, `pods` is their number.
    """
    allocatable = node.status.allocatable
    reasons = []
    room = millis(allocatable[_PODS]) if _PODS in allocatable else None
    if room is not None and (pods + 1) * 1000 > room:
        reasons.append(TOO_MANY_PODS)
    for name, amount in requests.items():
        free = (millis(allocatable.get(name, 0)) or 0) - used.get(name, 0)
        if amount > free:
            reasons.append(f"Insufficient {name}")
    return reasons


def node_refusal(spec: WorkloadPodSpec, node: Node) -> str:
    """Return why the node rejects the pod whatever else runs there, "" if it does not."""
    if node.spec.unschedulable and not _tolerates(spec, _CORDONED):
        return NODE_UNSCHEDULABLE
    if spec.node_name and spec.node_name != node.name:
        return NODE_NAME
    if has_untolerated_taint(spec, node, _REPELLING_EFFECTS):
        return TAINTED
    if not matches_affinity(spec, node):
        return NODE_AFFINITY
    return ""


def port_refusal(spec: WorkloadPodSpec, there: Iterable[WorkloadPod]) -> str:
    """Return why the host ports of a pod are not free, "" if they are."""
    requested = list(_host_ports(spec))
    if not requested:
        return ""
    taken = [port for pod in there for port in _host_ports(pod.spec)]
    clash = any(_collide(port, used) for port in requested for used in taken)
    return PORTS_TAKEN if clash else ""


def taints_of(node: Node) -> tuple[Taint, ...]:
    """Return the taints of a node, with the taint of a node that is not ready."""
    return node.spec.taints if node.is_ready else (*node.spec.taints, _NOT_READY)


def has_untolerated_taint(spec: WorkloadPodSpec, node: Node, effects: Iterable[str]) -> bool:
    """Return whether a taint of one of the effects repels the pod."""
    return any(taint.effect in effects and not _tolerates(spec, taint) for taint in taints_of(node))


def avoided_taints(spec: WorkloadPodSpec, node: Node) -> int:
    """Return how many untolerated PreferNoSchedule taints the node has."""
    return sum(
        taint.effect == PREFER_NO_SCHEDULE and not _tolerates(spec, taint)
        for taint in taints_of(node)
    )


def matches_affinity(spec: WorkloadPodSpec, node: Node) -> bool:
    """Return whether the node has the labels that the pod requires."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(term.matches(node) for term in affinity.required.node_selector_terms)


def preferred_weight(spec: WorkloadPodSpec, node: Node) -> int:
    """Return the sum of the weights by which the pod prefers the node."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return 0
    return sum(
        term.weight
        for term in affinity.preferred
        # NB: unlike a required term, an empty preference matches every node.
        if term.preference.matches(node)
        or not (term.preference.match_expressions or term.preference.match_fields)
    )


def _requests(container: ContainerSpec) -> dict[str, int]:
    resources = container.resources
    return _amounts({**resources.limits, **resources.requests})


def _amounts(quantities: Mapping[str, str | float]) -> dict[str, int]:
    # The API server rejects everything but quantities.
    return {name: max(0, millis(value) or 0) for name, value in quantities.items()}


def _tolerates(spec: WorkloadPodSpec, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in spec.tolerations)


def _host_ports(spec: WorkloadPodSpec) -> Iterable[HostPort]:
    return (port for container in spec.containers for port in container.ports if port.host_port)


def _collide(port: HostPort, other: HostPort) -> bool:
    if (port.host_port, port.protocol) != (other.host_port, other.protocol):
        return False
    either = (port.host_ip, other.host_ip)
    return port.host_ip == other.host_ip or any(address in _EVERY_ADDRESS for address in either)
